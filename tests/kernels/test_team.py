import ctypes
import subprocess
import sys
import threading
import time

import pytest

from ninfer_kernels import team
from ninfer_kernels.native import Code

# argument: [0] tasks, [1] next task, [2] sum of the task numbers done, [3] threads that took part
COUNT = """
define void @count(ptr %a) {
entry:
  %next = getelementptr i64, ptr %a, i64 1
  %sum = getelementptr i64, ptr %a, i64 2
  %threads = getelementptr i64, ptr %a, i64 3
  %tasks = load i64, ptr %a
  %t = atomicrmw add ptr %threads, i64 1 seq_cst
  br label %loop
loop:
  %i = atomicrmw add ptr %next, i64 1 seq_cst
  %more = icmp slt i64 %i, %tasks
  br i1 %more, label %work, label %done
work:
  %s = atomicrmw add ptr %sum, i64 %i seq_cst
  br label %loop
done:
  ret void
}
"""

pytestmark = pytest.mark.skipif(team._team() is None, reason="no team on this system")


@pytest.fixture(scope="module")
def count():
    code = Code(COUNT)
    yield code.address("count")


def run(count, tasks, threads):
    argument = (ctypes.c_int64 * 4)(tasks, 0, 0, 0)
    assert team.run_together(count, ctypes.addressof(argument), threads)
    return argument


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("tasks", [0, 1, 7, 1000])
def test_every_task_is_done_once_and_done_when_the_call_returns(count, tasks, threads):
    for _ in range(50):
        argument = run(count, tasks, threads)
        assert argument[2] == tasks * (tasks - 1) // 2
        assert 1 <= argument[3] <= threads


def test_nobody_touches_the_argument_after_the_call(count):
    for _ in range(2000):
        argument = run(count, 3, 4)
        before = list(argument)
        argument[:] = [0, 0, 0, 0]
        assert before[2] == 3
        assert list(argument) == [0, 0, 0, 0]


def test_helpers_take_part_in_a_long_call(count):
    for _ in range(20):
        if run(count, 2_000_000, 2)[3] == 2:
            return
    pytest.fail("a helper never joined")


def test_a_call_after_a_long_pause_wakes_sleeping_helpers(count):
    run(count, 1000, 2)
    time.sleep(0.05)
    for _ in range(20):
        if run(count, 2_000_000, 2)[3] == 2:
            return
        time.sleep(0.01)
    pytest.fail("a sleeping helper never joined")


def test_callers_from_several_threads_do_not_mix(count):
    wrong = []

    def call(tasks):
        for _ in range(500):
            argument = run(count, tasks, 3)
            if argument[2] != tasks * (tasks - 1) // 2:
                wrong.append(list(argument))

    callers = [threading.Thread(target=call, args=(tasks,)) for tasks in (5, 50, 500)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_process_with_helpers_ends_at_once_and_cleanly():
    code = (
        "import torch; from ninfer_kernels import quant_linear as q\n"
        "x = q.linear('q8_0', [q.Matrix(torch.zeros(340 * 34, dtype=torch.uint8), 340, 32)])\n"
        "torch.set_num_threads(4)\n"
        "big = q.linear('fp32', [q.Matrix(torch.zeros(4 << 20, dtype=torch.uint8), 1024, 1024)])\n"
        "big(torch.zeros(1, 1024)); print('ran')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_after_its_helpers_are_dismissed_a_team_still_works(count):
    own = team.Team()
    for _ in range(2):
        argument = (ctypes.c_int64 * 4)(100, 0, 0, 0)
        own.run(count, ctypes.addressof(argument), 2)
        assert argument[2] == 4950
        own.dismiss()
