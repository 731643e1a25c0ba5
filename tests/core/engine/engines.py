"""Engines over scripts, driven a boundary at a time on the test's own thread."""

from __future__ import annotations

import asyncio
import functools
import itertools
from pathlib import Path
from typing import Any

import msgspec

from ninfer_core.api import ApiError, Delta, Done, Event, Result, SamplingRequest
from ninfer_core.engine.engine import LocalEngine
from ninfer_core.engine.generation import LocalGeneration
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.progress import Silent
from ninfer_core.engine.request import Request, output_budget
from ninfer_core.engine.thinking import plan_budget
from ninfer_core.engine.worker import RECOVERIES
from ninfer_core.kv.prefix import Prefix
from ninfer_core.options import parse
from ninfer_core.plugins import Plugins
from ninfer_core.sampling.params import resolve
from ninfer_core.testing import compose

SEEDED = SamplingRequest(seed=1)
PLUGINS = ("scripted", "kv_bf16", "kv_int8", "spec_ngram")


@functools.cache
def installed() -> Plugins:
    """The plugins of these tests; immutable, so every engine may share them."""
    return compose(PLUGINS)


def open_engine(folder: Path, script: dict[str, Any], *flags: str) -> LocalEngine:
    path = folder / "script.json"
    path.write_bytes(msgspec.json.encode(script))
    plugins = installed()
    model = f"scripted:{path}"
    _, values = parse([model, *flags], plugins, "serve")
    return load_engine(model, values, plugins, Silent())


class NowLoop:
    """Delivers a flush at once, in the engine's thread."""

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: Any, *arguments: Any) -> None:
        callback(*arguments)


class Driver:
    """One engine without its thread: submit, cancel and step in any order, under a clock the test moves."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.worker = engine.worker
        self.worker.outbox.loop = NowLoop()  # type: ignore[assignment]
        self.now = 1000.0
        self.worker._clock = lambda: self.now
        self._open_session = self.worker.lanes._open_session
        self._ids = itertools.count(10_000)

    def submit(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        sampling: SamplingRequest = SEEDED,
        stops: tuple[str, ...] = (),
        patience: float = 1e9,
        budget_tokens: int | None = None,
        logprobs: int | None = None,
        thinking: bool = False,
        scored: tuple[int, ...] = (),
        prefix: Prefix | None = None,
    ) -> LocalGeneration:
        format, limits = self.engine.format, self.engine.limits
        ids = tuple(format.tokenizer.encode_with_control(prompt))
        budget = output_budget(
            prompt=len(ids),
            requested=max_tokens,
            max_context=limits.max_context,
            share_pages=limits.share_pages,
            default=None,
        )
        params = resolve(sampling, format.preset, self.engine._options)
        unit = self.engine.capacity.acquire()
        generation = LocalGeneration(sampling={}, max_tokens=budget.tokens, unit=unit)
        request = Request(
            id=next(self._ids),
            prompt_ids=ids,
            tool_texts=(),
            reasoning=format.reasoning if thinking else None,
            in_reasoning=thinking,
            raw=not thinking,
            params=params,
            post_params=None,
            budget=plan_budget(budget_tokens, budget.tokens, limits.guidance) if budget_tokens else None,
            logprobs=logprobs,
            stop_ids=format.stop_ids,
            stops=stops,
            limit=budget.tokens,
            limit_finish=budget.finish,
            want_progress=True,
            deadline=self.now + patience,
            submitted=self.now,
            generation=generation,
            scored=scored,
            prefix=prefix,
        )
        self.worker.queue.submit(request)
        return generation

    def step(self) -> None:
        self.now += 0.001
        self.worker.step()

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing runs or waits."""
        for _ in range(limit):
            if self.worker.idle and not len(self.worker.queue):
                return
            self.step()
        raise AssertionError("the engine does not come to rest")

    def run_out_of_memory_in_the_next_unit(self) -> None:
        """It fails after it ran."""
        model = self.worker.program.model
        forward = type(model).forward

        def broken(step: Any, cache: Any, state: Any) -> Any:
            model.forward = functools.partial(forward, model)  # type: ignore[method-assign]
            forward(model, step, cache, state)
            raise MemoryError

        model.forward = broken  # type: ignore[method-assign]

    def run_out_of_memory_in_the_next_admission(self) -> None:
        lanes = self.worker.lanes
        real = self._open_session

        def broken(request: Request) -> Any:
            lanes._open_session = real
            raise MemoryError

        lanes._open_session = broken

    @property
    def survives_faults(self) -> bool:
        """Whether one more fault of each kind (a unit, an admission, a copy of a state) leaves the engine running.

        It gives up after so many without a unit that completes.
        """
        return self.worker._streak + 3 <= RECOVERIES

    def check_at_rest(self) -> None:
        """Everything is back where it was before the first request."""
        worker = self.worker
        worker.lanes.check()
        assert worker.lanes.pool.available == worker.lanes.pool.total
        assert worker.program.states.available == worker.program.states.slots
        assert worker.idle


def events(generation: LocalGeneration) -> list[Event | ApiError]:
    """What has been delivered so far."""
    return list(generation._events)


def text(generation: LocalGeneration) -> str:
    return "".join(event.text for event in events(generation) if isinstance(event, Delta))


def end(generation: LocalGeneration) -> Result | ApiError | None:
    """The result or the error, once there is one."""
    last = events(generation)[-1:] or [None]
    if isinstance(last[0], Done):
        return last[0].result
    return last[0] if isinstance(last[0], ApiError) else None


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))
