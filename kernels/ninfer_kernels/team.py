"""Helpers for compiled functions: threads that join a call when they get a core and are not missed when they do not.

An OpenMP region waits for every thread of its team, and libgomp waits spinning: beside one other busy process a matrix
product of 30 microseconds then takes 15 milliseconds. Here the caller starts at once, helpers that are awake take part,
and the call ends when the work is done and those who joined have left.

A function run this way takes its work from a counter in its argument until none is left, so any number of threads will
do. After a call helpers wait spinning for some tens of microseconds, the time between two products of a model, then
sleep on a futex.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import platform
import sys
import threading

from .native import Code, Unsupported

MAX_HELPERS = 255
SPINS = 6000  # pauses before a helper sleeps: about 80 microseconds
PATIENCE = 2000  # pauses before a caller that waits for a helper offers its core

# words of the memory shared with helpers, int64 each, a cache line apart
TICKET, SLEEPERS, GATE, FUNCTION, ARGUMENT, WANTED, BUSY, STOP = range(0, 64, 8)
# the hint that this thread spins: declaration and call
PAUSE = {
    "x86_64": ("void @llvm.x86.sse2.pause()", "void @llvm.x86.sse2.pause()"),
    "aarch64": ("void @llvm.aarch64.hint(i32)", "void @llvm.aarch64.hint(i32 1)"),
}
FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call's number
WAIT, WAKE = 128, 129  # futex operations, private to the process


def run_together(function: int, argument: int, threads: int) -> bool:
    """Run ``void function(void *argument)`` here and on up to ``threads - 1`` helpers; False: there is no team.

    Any thread may call; while one call has the helpers, others run alone.
    """
    team = _team()
    if team is None:
        return False
    team.run(function, argument, threads - 1)
    return True


@functools.cache
def _team() -> Team | None:
    if sys.platform != "linux" or platform.machine() not in FUTEX:
        return None
    try:
        return Team()
    except Unsupported:
        return None


class Team:
    """The helper threads and the memory they share with callers."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_int64 * 72)()
        # the words begin on a cache line
        self._words = -(-ctypes.addressof(self._memory) // 64) * 64
        self._code = Code(source())
        address = self._code.address
        self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address("call"))
        self._help = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address("help"))
        self._dismiss = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address("dismiss"))
        self._helpers: list[threading.Thread] = []
        self._hiring = threading.Lock()
        # a helper must not outlive the code it runs
        atexit.register(self.dismiss)

    def run(self, function: int, argument: int, helpers: int) -> None:
        if helpers > len(self._helpers):
            self._hire(min(helpers, MAX_HELPERS))
        self._call(self._words, function, argument, helpers)

    def _hire(self, count: int) -> None:
        with self._hiring:
            while len(self._helpers) < count:
                name = f"ninfer-helper-{len(self._helpers)}"
                self._helpers.append(threading.Thread(target=self._help, args=(self._words,), name=name, daemon=True))
                self._helpers[-1].start()

    def dismiss(self) -> None:
        """Send the helpers home; calls after this run alone."""
        self._dismiss(self._words)
        for helper in self._helpers:
            helper.join()


def source() -> str:
    """``call``, ``help`` and ``dismiss`` in LLVM IR.

    The gate holds the ticket of the current call in its high half; below it, whether helpers may still join (bit 16),
    how many have joined (bits 8 to 15) and how many of them are still inside (bits 0 to 7). A helper touches a call's
    function and argument only between joining and leaving, and a caller goes on only when none is inside.
    """
    words = "\n".join(
        f"  %{name} = getelementptr i64, ptr %team, i64 {word}"
        for name, word in (
            ("ticket", TICKET),
            ("sleepers", SLEEPERS),
            ("gate", GATE),
            ("function.word", FUNCTION),
            ("argument.word", ARGUMENT),
            ("wanted.word", WANTED),
            ("busy", BUSY),
            ("stop", STOP),
        )
    )
    machine = platform.machine()
    declared, paused = PAUSE[machine]
    pause = f"call {paused}"
    futex = f"call i64 (i64, ...) @syscall(i64 {FUTEX[machine]}, ptr %ticket, i64"
    return f"""
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare {declared}

define void @call(ptr %team, ptr %function, ptr %argument, i64 %helpers) {{
{words}
  %was.busy = atomicrmw xchg ptr %busy, i64 1 acquire
  %is.free = icmp eq i64 %was.busy, 0
  br i1 %is.free, label %open, label %alone
alone:
  call void %function(ptr %argument)
  ret void
open:
  store ptr %function, ptr %function.word
  store ptr %argument, ptr %argument.word
  store atomic i64 %helpers, ptr %wanted.word monotonic, align 8
  %last = load i64, ptr %ticket
  %next = add i64 %last, 1
  %mine = and i64 %next, 2147483647
  %high = shl i64 %mine, 32
  %open.gate = or i64 %high, 65536
  store atomic i64 %open.gate, ptr %gate release, align 8
  store atomic i64 %mine, ptr %ticket seq_cst, align 8
  %asleep = load atomic i64, ptr %sleepers seq_cst, align 8
  %any.asleep = icmp ne i64 %asleep, 0
  br i1 %any.asleep, label %wake, label %work
wake:
  %woken = {futex} {WAKE}, i64 %helpers)
  br label %work
work:
  call void %function(ptr %argument)
  %closed = atomicrmw and ptr %gate, i64 -65537 acq_rel
  br label %leave
leave:
  %waits = phi i64 [ 0, %work ], [ %more, %again ], [ 0, %yield ]
  %now = load atomic i64, ptr %gate acquire, align 8
  %inside = and i64 %now, 255
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %done, label %wait
wait:
  {pause}
  %more = add i64 %waits, 1
  %patient = icmp slt i64 %more, {PATIENCE}
  br i1 %patient, label %again, label %yield
again:
  br label %leave
yield:
  %yielded = call i32 @sched_yield()
  br label %leave
done:
  store atomic i64 0, ptr %busy release, align 8
  ret void
}}

define void @help(ptr %team) {{
entry:
{words}
  br label %watch
watch:
  %seen = phi i64 [ 0, %entry ], [ %seen, %idle ], [ %seen, %sleep ], [ %current, %check ], [ %current, %join ]
  %spins = phi i64 [ 0, %entry ], [ %spun, %idle ], [ 0, %sleep ], [ 0, %check ], [ 0, %join ]
  %current = load atomic i64, ptr %ticket acquire, align 8
  %unchanged = icmp eq i64 %current, %seen
  br i1 %unchanged, label %idle, label %look
idle:
  {pause}
  %spun = add i64 %spins, 1
  %awake = icmp slt i64 %spun, {SPINS}
  br i1 %awake, label %watch, label %sleep
sleep:
  %before = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %slept = {futex} {WAIT}, i64 %seen, ptr null)
  %after = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  br label %watch
look:
  %stopping = load atomic i64, ptr %stop acquire, align 8
  %goes.home = icmp ne i64 %stopping, 0
  br i1 %goes.home, label %home, label %first
first:
  %first.gate = load atomic i64, ptr %gate acquire, align 8
  br label %check
check:
  %seen.gate = phi i64 [ %first.gate, %first ], [ %newer, %try ]
  %of = lshr i64 %seen.gate, 32
  %is.current = icmp eq i64 %of, %current
  %open.bit = and i64 %seen.gate, 65536
  %is.open = icmp ne i64 %open.bit, 0
  %joined.high = lshr i64 %seen.gate, 8
  %joined = and i64 %joined.high, 255
  %wanted = load atomic i64, ptr %wanted.word monotonic, align 8
  %has.room = icmp slt i64 %joined, %wanted
  %both = and i1 %is.current, %is.open
  %may.join = and i1 %both, %has.room
  br i1 %may.join, label %try, label %watch
try:
  %with.me = add i64 %seen.gate, 257
  %pair = cmpxchg ptr %gate, i64 %seen.gate, i64 %with.me acq_rel acquire
  %newer = extractvalue {{ i64, i1 }} %pair, 0
  %did.join = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %did.join, label %join, label %check
join:
  %function = load ptr, ptr %function.word
  %argument = load ptr, ptr %argument.word
  call void %function(ptr %argument)
  %left = atomicrmw sub ptr %gate, i64 1 release
  br label %watch
home:
  ret void
}}

define void @dismiss(ptr %team) {{
{words}
  store atomic i64 1, ptr %stop release, align 8
  %changed = atomicrmw xor ptr %ticket, i64 1073741824 seq_cst
  %woken = {futex} {WAKE}, i64 {MAX_HELPERS})
  ret void
}}
"""
