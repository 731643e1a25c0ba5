"""The engine that is measured: of a model's path, or of random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.api import Checkpoint, ModelFamily, OptionValues
from ninfer_core.cli.local import StageLine, loaded
from ninfer_core.engine.graphs import Shape
from ninfer_core.engine.load import build_engine
from ninfer_core.kv.cache import KVCache, page_bytes
from ninfer_core.plugins import Plugins
from ninfer_core.weights.checkpoint import open_checkpoint

from .geometry import random_model
from .plan import Plan
from .work import Work, work_of

if TYPE_CHECKING:
    from ninfer_core.engine.engine import LocalEngine


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A model before it is loaded."""

    family: ModelFamily
    checkpoint: Checkpoint
    stored_bytes: Callable[[str, tuple[int, ...]], int]  # of a parameter
    label: str | None  # what it is called in rows; None: its public name

    @property
    def longest(self) -> int:
        """The most tokens a sequence may have."""
        limit = self.family.context_limit or self.family.context_length
        return limit(self.checkpoint.config)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What runs, what it is called in rows, and the least it has to do."""

    engine: LocalEngine
    label: str
    work: Work


def open_model(model: str, plugins: Plugins) -> Opened:
    family, checkpoint = open_checkpoint(model, plugins)

    def stored_bytes(name: str, shape: tuple[int, ...]) -> int:
        return sum(piece.bytes for piece in checkpoint.pieces(name, shape))  # type: ignore[attr-defined]

    return Opened(family=family, checkpoint=checkpoint, stored_bytes=stored_bytes, label=None)


def open_geometry(values: OptionValues, plugins: Plugins) -> Opened:
    """The random weights that ``--geometry``, ``--layers`` and ``--weights`` describe."""
    name, layers, scheme = values["geometry"], values["layers"], values["weights"]
    found = random_model(name, layers, scheme, plugins)

    def stored_bytes(name: str, shape: tuple[int, ...]) -> int:
        return plugins.weight_formats[found.formats[name]].encoded_bytes(shape)

    label = f"{name}-L{layers}-{scheme}" if layers else f"{name}-{scheme}"
    return Opened(family=found.family, checkpoint=found.checkpoint, stored_bytes=stored_bytes, label=label)


def load_subject(opened: Opened, values: OptionValues, plan: Plan, plugins: Plugins) -> Subject:
    """The engine of what was opened; StartupError when there can be none."""
    # with --spec, rounds are as wide as its drafts are long
    rounds = None if values["spec"] else recorded_rounds(plan)

    def load(line: StageLine) -> LocalEngine:
        return build_engine(opened.family, opened.checkpoint, values, plugins, line, rounds=rounds)

    engine = loaded(load, values)
    cache = engine.worker.program.cache
    assert isinstance(cache, KVCache)
    work = work_of(
        opened.family,
        opened.checkpoint.config,
        opened.stored_bytes,
        state_bytes=engine.worker.program.states.image_bytes,
        page_bytes=page_bytes(cache.geometry, cache.dtype),
    )
    return Subject(engine=engine, label=f"{opened.label or engine.info.id}-kv-{cache.dtype.name}", work=work)


def recorded_rounds(plan: Plan) -> list[Shape]:
    """The rounds the plan has: requests come and go one by one, sequences of a context stay together."""
    shapes = {Shape(rows=rows, width=1) for rows in range(1, max(plan.rows) + 1)}
    if plan.contexts:
        shapes |= {Shape(rows=rows, width=width) for rows in plan.rows for width in plan.widths}
    return sorted(shapes, key=lambda shape: (shape.rows, shape.width))
