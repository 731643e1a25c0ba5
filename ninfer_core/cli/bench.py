"""``ninfer bench``: prefill and decode rates of a model through the engine, as JSON rows on stdout."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core import demo, options
from ninfer_core.api import (
    ApiError,
    Command,
    Delta,
    Done,
    Option,
    OptionError,
    OptionValues,
    RawJob,
    SamplingRequest,
    StartupError,
    integer,
)

from .local import StageLine, changed, local_engine

if TYPE_CHECKING:
    from ninfer_core.engine.engine import LocalEngine

    from .rows import Row


def row_counts(value: str) -> tuple[int, ...]:
    """``1,8`` -> (1, 8)."""
    try:
        return tuple(integer(1, 256)(part) for part in value.split(","))
    except ValueError:
        raise ValueError("whole numbers from 1 to 256 with commas between them") from None


OPTIONS = (
    Option(flag="--prompt-tokens", metavar="N", parse=integer(1, 1 << 20), default=512, help="tokens of each prompt"),
    Option(
        flag="--decode-tokens", metavar="N", parse=integer(2, 1 << 20), default=64, help="tokens each request generates"
    ),
    Option(flag="--rows", metavar="A,B", parse=row_counts, default=(1,), help="requests that run together"),
    Option(flag="--repeats", metavar="N", parse=integer(1, 1000), default=3, help="measurements behind each row"),
)
USAGE = "ninfer bench [MODEL] [options]; no MODEL is the demo model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What one measurement runs."""

    rows: int
    prompt_tokens: int
    decode_tokens: int

    def __str__(self) -> str:
        return f"R{self.rows}-P{self.prompt_tokens}-D{self.decode_tokens}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """``prefill_ms``: from the start to the last row's first token. ``decode_ms``: from there to the first row's end.

    ``decoded``: the tokens all rows produced in ``decode_ms``.
    """

    prefill_ms: float
    decode_ms: float
    decoded: int


class Shown:
    """How far one measurement is, for whoever waits at a terminal."""

    def __init__(self, line: StageLine, name: str, rows: int) -> None:
        self._line, self._name, self._rows = line, name, rows
        self._begun = 0  # rows whose first token came
        self._line.stage(f"{name}: prefill")

    def first_token(self) -> None:
        self._begun += 1
        self._line.advance(self._begun, self._rows)
        if self._begun == self._rows:
            self._line.stage(f"{self._name}: decode")

    def tokens(self, done: int, total: int) -> None:
        """``done`` of ``total`` of one row; the rows go in step."""
        if self._begun == self._rows:
            self._line.advance(done, total)


def run(argv: Sequence[str]) -> int:
    """Print two rows per count of rows: prefill and decode. 1 when the shapes do not fit the model."""
    import msgspec

    plugins = options.compose(argv)
    found, values = options.parse(argv, plugins, "bench", own=OPTIONS, usage=USAGE)
    model = (*options.exactly(found, "ninfer bench", "[MODEL]"), None)[0]
    shapes = [
        Shape(rows=rows, prompt_tokens=values["prompt_tokens"], decode_tokens=values["decode_tokens"])
        for rows in values["rows"]
    ]
    line = StageLine(sys.stderr)
    with local_engine(demo.resolve(model), _sized(values, shapes), plugins) as (engine, runner):
        for shape in shapes:
            try:
                runs = []
                for seed in range(values["repeats"]):
                    shown = Shown(line, f"{shape} run {seed + 1} of {values['repeats']}", shape.rows)
                    runs.append(runner.run(_measure(engine, shape, seed, shown)))
            except ApiError as error:
                raise StartupError(error.message) from None
            finally:
                line.clear()
            for item in _rows(engine, shape, runs):
                print(msgspec.json.encode(item).decode(), flush=True)
                print(f"{item.op} {item.shape}: {item.tokens_per_second:.1f} tokens/s", file=sys.stderr)
    return 0


def _sized(values: OptionValues, shapes: Sequence[Shape]) -> OptionValues:
    """Lanes, context and pool as large as the shapes ask for, where the operator did not say."""
    lanes = max(shape.rows for shape in shapes)
    context = -(-max(shape.prompt_tokens + shape.decode_tokens for shape in shapes) // 64) * 64
    if "max_concurrency" in values.given and values["max_concurrency"] < lanes:
        raise OptionError(f"--rows {lanes} needs --max-concurrency {lanes} or more; leave that option out")
    context = values["max_context"] if "max_context" in values.given else context
    pool = values["kv_capacity"] if "kv_capacity" in values.given else context * lanes
    return changed(values, max_concurrency=lanes, max_context=context, kv_capacity=pool)


async def _measure(engine: LocalEngine, shape: Shape, seed: int, shown: Shown) -> Measured:
    """Start all rows at once and watch when their tokens come."""
    prompts = [_prompt(engine, shape.prompt_tokens, f"{seed}/{row}") for row in range(shape.rows)]
    import asyncio

    start = time.perf_counter()
    stamps = await asyncio.gather(*(_row(engine, prompt, shape.decode_tokens, shown) for prompt in prompts))
    first = max(times[0][0] for times in stamps)
    end = min(times[-1][0] for times in stamps)
    decoded = sum(count for times in stamps for when, count in times if first < when <= end)
    return Measured(prefill_ms=1e3 * (first - start), decode_ms=1e3 * (end - first), decoded=decoded)


def _prompt(engine: LocalEngine, tokens: int, seed: str) -> tuple[int, ...]:
    """Random tokens, no control token among them; another seed shares nothing with it."""
    draw = random.Random(seed)
    control = frozenset(engine.format.tokenizer.control_tokens.values())
    public = [token for token in range(engine.info.vocab_tokens) if token not in control]
    return tuple(draw.choices(public, k=tokens))


async def _row(engine: LocalEngine, prompt: tuple[int, ...], tokens: int, shown: Shown) -> list[tuple[float, int]]:
    """Arrival time and number of tokens of each event that brought some."""
    job = RawJob(prompt=(prompt,), max_tokens=tokens, ignore_eos=True, sampling=SamplingRequest(temperature=0.0))
    stamps: list[tuple[float, int]] = []
    done = 0
    async with await engine.complete(job) as generation:
        async for event in generation:
            if isinstance(event, Delta | Done) and event.token_ids:
                stamps.append((time.perf_counter(), len(event.token_ids)))
                if len(stamps) == 1:
                    shown.first_token()
                done += len(event.token_ids)
                shown.tokens(done, tokens)
    return stamps


def _rows(engine: LocalEngine, shape: Shape, runs: Sequence[Measured]) -> list[Row]:
    from .rows import row

    # every run decodes the same number of tokens but for the ones that share an event; times are put on one count
    decoded = min(item.decoded for item in runs)
    decode_ms = [item.decode_ms * decoded / item.decoded for item in runs if item.decoded]
    rows = [
        row(
            "prefill",
            str(shape),
            "ninfer",
            [item.prefill_ms for item in runs],
            tokens=shape.rows * shape.prompt_tokens,
            note=engine.info.id,
        )
    ]
    if decode_ms:
        rounds = max(decoded // shape.rows, 1)
        moved = rounds * engine.info.weight_bytes
        rows.append(
            row("decode", str(shape), "ninfer", decode_ms, tokens=decoded, bytes_moved=moved, note=engine.info.id)
        )
    return rows


COMMAND = Command(name="bench", summary="prefill and decode rates of a model, as JSON rows", run=run)
