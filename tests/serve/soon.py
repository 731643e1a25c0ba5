"""Waiting on the event loop for what another thread brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

ROUNDS = 10_000  # of a millisecond and more; a test that waits this long fails


async def soon(claim: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str) -> None:
    """Wait for ``claim``; an AssertionError says ``what`` never came true."""
    for _ in range(ROUNDS):
        found = claim()
        if (await found) if not isinstance(found, bool) else found:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"never: {what}")
