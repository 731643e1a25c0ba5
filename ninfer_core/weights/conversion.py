"""A checkpoint in another suit: everything ``ninfer convert`` decides, before a byte is written.

Nothing is read here. Each object of the new artifact knows how to read its parameters when its turn comes, so that a
conversion never holds more than one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ninfer_core.api import EncodedTensor, Encoder, ModelFamily, WeightFormat
from ninfer_core.errors import ArtifactError
from ninfer_core.registry import Registry

from . import carried
from .artifact import ArtifactCheckpoint
from .directory import elements
from .draft_head import DraftHead
from .imported import ROWS_ARE_BYTES, encode
from .layout_plan import NewArtifact, NewResource, NewTensor
from .names import listed, quoted
from .packing import candidates
from .proposal import HEAD as PROPOSAL
from .recipes import KEEP, targets
from .resources import ROLES, check_resource, check_tokens
from .stored import Piece, StoredCheckpoint, encoded_size, full_inventory

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["KEEP", "new_artifact"]

Shape = tuple[int, ...]
CHUNK_ELEMENTS = 1 << 20
"""A matrix is decoded and encoded this many elements at a time."""

HEAD = "text/output_head"
DRAFTERS = ("mtp", "dflash", "dflash2")
DROP_BYTES = 64 << 20
"""After so much of a source was read its pages are given back."""


def new_artifact(
    family: ModelFamily,
    checkpoint: StoredCheckpoint,
    formats: Registry[WeightFormat],
    *,
    weights: str = KEEP,
    encoder: str | None = None,
    draft: DraftHead | None = None,
    name: str | None = None,
    origin: str = "",
) -> NewArtifact:
    """The artifact of a checkpoint that ``bind`` found complete.

    ``weights``: a scheme of ``recipes.SCHEMES``. ``encoder``: the method where a format has it; ArtifactError when none
    of them has. ``draft``: a proposal head to store, in place of the one an artifact has. ``origin`` is the source's
    name, for the record. Parameters that are the same bytes (a tied head) share one object. Raises ArtifactError for
    resources that do not belong to the model.
    """
    config = msgspec.to_builtins(dict(checkpoint.config))
    if list(config.get("architectures") or ()) != [checkpoint.architecture]:
        # a reader finds the family by this name
        raise ArtifactError(f"{checkpoint.path}: models of the {family.name} family have no artifact form")
    wanted = targets(family, checkpoint, formats, weights)
    inventory = full_inventory(family, checkpoint)
    proposal: Mapping[str, Any] = {}
    if draft is not None:
        inventory |= draft.shapes
        wanted |= draft.wanted
        proposal = draft.proposal
    elif isinstance(checkpoint, ArtifactCheckpoint):
        extra, proposal = carried.proposal(checkpoint)
        inventory |= extra
    plan = _Plan(checkpoint, formats, wanted, encoder)
    plan.add(inventory, draft.pieces if draft is not None else {})
    if encoder is not None and not plan.encoder_used:
        raise ArtifactError(f"{checkpoint.path}: --weights {weights} stores nothing that encoder {encoder} could make")
    uses = plan.uses(_inputs(family, checkpoint))
    resources = _resources(checkpoint)
    public_name = name or checkpoint.name
    return NewArtifact(
        components={
            "text": {
                "config": config,
                "resources": {role: f"resource/text/{role}" for role in resources},
                **proposal,
            },
            **{
                component: {"config": msgspec.to_builtins(dict(companion)), "target": "text"}
                for component, companion in checkpoint.companions.items()
                if component in family.companions
            },
        },
        resources=[NewResource(id=f"resource/text/{role}", data=data) for role, data in resources.items()],
        tensors=list(plan.objects.values()),
        bindings={name: plan.bindings[name] for name in inventory},
        uses=uses,
        metadata={"name": public_name} if public_name else {},
        provenance={"converter": "ninfer-v3", "recipe": weights, "sources": {"text": {"path": origin}}},
    )


def _inputs(family: ModelFamily, checkpoint: StoredCheckpoint) -> dict[str, tuple[str, ...]]:
    """The inputs of each matrix; a drafter beside the text model multiplies by the text model's heads too."""
    found = dict(family.uses(checkpoint.config))
    drafted = tuple(f"{name}/final_hidden" for name in checkpoint.companions if name in DRAFTERS)
    if HEAD in found:
        found[HEAD] += drafted
    return {**found, PROPOSAL: drafted}


def left_out(family: ModelFamily, checkpoint: StoredCheckpoint) -> tuple[str, ...]:
    """What of an artifact the new one will not hold, a line each."""
    if not isinstance(checkpoint, ArtifactCheckpoint):
        return ()
    dropped = [name for name in checkpoint.companions if name not in family.companions]
    return tuple(f"{checkpoint.path}: component {quoted(name)} is left out" for name in dropped)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parameter:
    """A parameter on its way: what it is read from, and what it is stored as (None: as it is)."""

    name: str
    shape: Shape
    pieces: tuple[Piece, ...]
    target: str | None

    @property
    def format(self) -> str:
        return self.target or self.pieces[0].format

    @property
    def key(self) -> Hashable:
        return (tuple(piece.key for piece in self.pieces), self.shape, self.format)


class _Plan:
    """Objects and bindings as they come to be."""

    def __init__(
        self,
        checkpoint: StoredCheckpoint,
        formats: Registry[WeightFormat],
        wanted: Mapping[str, str],
        encoder: str | None,
    ) -> None:
        self.checkpoint = checkpoint
        self.formats = formats
        self.wanted = wanted
        self.encoder = encoder
        self.encoder_used = False
        self.objects: dict[Hashable, NewTensor] = {}
        self.bindings: dict[str, Any] = {}
        self._parameters: dict[str, _Parameter] = {}
        self._given: Collection[str] = ()

    def add(self, inventory: Mapping[str, Shape], given: Mapping[str, tuple[Piece, ...]]) -> None:
        """Bind every parameter: in a parent with its neighbours where they go together, else by itself.

        ``given``: what the checkpoint does not have, by parameter.
        """
        self._given = given
        self._parameters = {name: self._parameter(name, shape, given.get(name)) for name, shape in inventory.items()}
        packed = self._packed()
        for name, parameter in self._parameters.items():
            if name in self.bindings:
                continue
            if name in packed:
                self._bind_parent([self._parameters[member] for member in packed[name]])
            elif parameter.target is None:
                self._bind_pieces(parameter)
            else:
                stored = self._object(parameter.key, [parameter], parameter.shape)
                self.bindings[name] = {"object": stored.id}

    def uses(self, inputs: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
        """A Use per parameter and input; those of an artifact are carried over where the parameter is kept."""
        found: list[dict[str, Any]] = []
        for name, parameter in self._parameters.items():
            if isinstance(self.checkpoint, ArtifactCheckpoint) and parameter.target is None and name not in self._given:
                stored = self.checkpoint.container.directory.uses_of.get(name, ())
                found += [carried.use(self.checkpoint, use, self.objects) for use in stored]
                continue
            policy = self.formats[parameter.format].activations
            columns = parameter.pieces[0].columns if parameter.target is None else None
            more = {"auxiliaries": {"input_columns": carried.columns(columns, self.objects)}} if columns else {}
            found += [
                {"parameter": name, "input": i, "activation_policy": policy, **more} for i in inputs.get(name, ())
            ]
        return found

    def _parameter(self, name: str, shape: Shape, pieces: tuple[Piece, ...] | None) -> _Parameter:
        if pieces is None:
            pieces = self.checkpoint.pieces(name, shape)
        target = self.wanted.get(name)
        if target is not None and all(piece.format in (target, "int32") for piece in pieces):
            target = None
        if target is not None:
            encoded_size(self.formats[target], self.checkpoint.path, name, shape)
        return _Parameter(name=name, shape=shape, pieces=pieces, target=target)

    def _packed(self) -> dict[str, tuple[str, ...]]:
        """Member -> its group."""
        times = Counter(parameter.key for parameter in self._parameters.values())
        found: dict[str, tuple[str, ...]] = {}
        for group in candidates(self._parameters):
            members = [self._parameters[name] for name in group]
            alone = all(times[member.key] == 1 and member.name not in found for member in members)
            if alone and self._fit(members):
                found |= dict.fromkeys(group, group)
        return found

    def _fit(self, members: Sequence[_Parameter]) -> bool:
        """Whether their rows make one object: one format, one width, and bytes that can follow each other."""
        first = members[0]
        if any(m.format != first.format or m.shape[1:] != first.shape[1:] for m in members):
            return False
        if any((m.target is None) != (first.target is None) for m in members):
            return False
        if first.target is not None:
            return True
        return all(len(m.pieces) == 1 and m.pieces[0].layout in ROWS_ARE_BYTES for m in members)

    def _bind_parent(self, members: Sequence[_Parameter]) -> None:
        shape = (sum(member.shape[0] for member in members), *members[0].shape[1:])
        stored = self._object(tuple(member.key for member in members), members, shape)
        begin = 0
        for member in members:
            end = begin + elements(member.shape)
            self.bindings[member.name] = {"parts": [{"object": stored.id, "range": [begin, end]}]}
            begin = end

    def _bind_pieces(self, parameter: _Parameter) -> None:
        """The parameter as it is stored, piece by piece."""
        stored = []
        for piece in parameter.pieces:
            if piece.key not in self.objects:
                self.objects[piece.key] = NewTensor(
                    id=self._next_id(),
                    shape=piece.shape,
                    format=piece.format,
                    layout=piece.layout,
                    bytes=piece.bytes,
                    read=partial(_read_kept, [piece]),
                    divisors=piece.divisors,
                )
            stored.append(self.objects[piece.key])
        if len(stored) == 1 and stored[0].shape == parameter.shape:
            self.bindings[parameter.name] = {"object": stored[0].id}
        else:
            parts = [{"object": tensor.id, "range": [0, elements(tensor.shape)]} for tensor in stored]
            self.bindings[parameter.name] = {"parts": parts}

    def _object(self, key: Hashable, members: Sequence[_Parameter], shape: Shape) -> NewTensor:
        if key not in self.objects:
            form = self.formats[members[0].format]
            pieces = [piece for member in members for piece in member.pieces]
            read: Callable[[], Sequence[memoryview]] = partial(_read_kept, pieces)
            if members[0].target is not None:
                read = partial(self._read_encoded, form, shape, members)
                self.encoder_used |= self.encoder in form.encoders
            self.objects[key] = NewTensor(
                id=self._next_id(),
                shape=shape,
                format=form.name,
                layout=form.layout,
                bytes=encoded_size(form, self.checkpoint.path, members[0].name, shape),
                read=read,
            )
        return self.objects[key]

    def _next_id(self) -> str:
        return f"weight/{len(self.objects):06d}"

    def _method(self, form: WeightFormat) -> Encoder | None:
        """How this format encodes rows that come some at a time."""
        if self.encoder is not None and self.encoder in form.encoders:
            return form.encoders[self.encoder]
        return next(iter(form.encoders.values()), None)

    def _read_encoded(self, form: WeightFormat, shape: Shape, members: Sequence[_Parameter]) -> Sequence[memoryview]:
        origins = dict.fromkeys(piece.origin for member in members for piece in member.pieces)
        where = f"{self.checkpoint.path}: {listed(origins, 4)}"
        method = self._method(form)
        rows = partial(self._rows, members, where)
        if method is None or len(shape) != 2:
            import torch

            found = encode(form, torch.cat(list(rows())).reshape(shape), where)
        else:
            try:
                found = method(shape, rows)
            except ValueError as error:
                raise ArtifactError(f"{where}: cannot be stored as {form.name}: {error}") from None
        return [_buffer(found)]

    def _rows(self, members: Sequence[_Parameter], where: str) -> Iterator[Tensor]:
        """The decoded rows of all members, some at a time."""
        read = 0
        for piece in (piece for member in members for piece in member.pieces):
            source = self.formats[piece.format]
            tensor = piece.read()
            change = tensor.input
            if change is not None and change.columns is None:
                raise ArtifactError(f"{where}: stored for a changed input, which only --weights {KEEP} preserves")
            for part in _slices(source, tensor):
                decoded = source.decode(part)
                if change is not None and change.columns is not None:
                    decoded = decoded.new_empty(decoded.shape).index_copy_(1, change.columns, decoded)
                yield decoded
                read += part.data.numel()
                if read >= DROP_BYTES:
                    read = 0
                    self.checkpoint.drop_pages()


def _slices(form: WeightFormat, tensor: EncodedTensor) -> Iterator[EncodedTensor]:
    """Runs of rows, small enough to be decoded together."""
    if len(tensor.shape) != 2 or elements(tensor.shape) <= CHUNK_ELEMENTS:
        yield tensor
        return
    rows, step = tensor.shape[0], max(1, CHUNK_ELEMENTS // tensor.shape[1])
    for start in range(0, rows, step):
        yield form.take_rows(tensor, range(start, min(start + step, rows)))


def _read_kept(pieces: Sequence[Piece]) -> Sequence[memoryview]:
    return [_buffer(piece.read()) for piece in pieces]


def _buffer(tensor: EncodedTensor) -> memoryview:
    return tensor.data.contiguous().numpy().data


def _resources(checkpoint: StoredCheckpoint) -> Mapping[str, bytes]:
    """Role -> content, the known roles first and checked."""
    roles = sorted(checkpoint.resources(), key=lambda role: (ROLES.index(role) if role in ROLES else len(ROLES), role))
    found: dict[str, bytes] = {}
    for role in roles:
        data = checkpoint.resource(role)
        if data:
            check_resource(role, data, f"{checkpoint.path}: text")
            found[role] = data
    vocab_size = checkpoint.config.get("vocab_size")
    if "tokenizer.json" in found and type(vocab_size) is int:
        check_tokens(found, vocab_size, checkpoint.path)
    return found
