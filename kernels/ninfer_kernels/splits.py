"""Programs that share a sum: each leaves its part in memory, and the last to come adds up all of them.

Parts are added from the first program's to the last one's, whatever order they came in: the sum has the same bits in
every run. A ticket tells who comes last, an int32 that is zero before a launch and after it. A kernel touches parts and
tickets only after ``pdl.begin``, since those of the launch before it may still be in use.
"""

import triton
import triton.language as tl


@triton.jit
def comes_last(ticket, programs):
    """Whether all of ``programs`` have stored their parts; called by each of them once it has. The last one leaves the
    ticket at zero."""
    # every thread has stored before the ticket is drawn
    tl.debug_barrier()
    last = tl.atomic_add(ticket, 1) == programs - 1
    tl.debug_barrier()
    if last:
        tl.store(ticket, 0)
    return last


@triton.jit
def added_up(parts, step, programs: tl.constexpr, mask):
    """The parts of all programs, ``step`` apart, from the first to the last. parts: pointers to the first one's."""
    # past the first-level cache, which knows nothing of other programs; all on their way at once
    b_sum = tl.load(parts, mask=mask, other=0.0, cache_modifier=".cg")
    for i in tl.static_range(1, programs):
        b_sum += tl.load(parts + i * step, mask=mask, other=0.0, cache_modifier=".cg")
    return b_sum
