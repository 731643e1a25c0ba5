"""One recorded shape of a decode round: the numbers that go up, and what comes down.

Everything a round reads lies at fixed addresses. The host writes one pinned buffer, which goes up before the round
begins; what was drawn comes down into one of two, since the next round may end before the host has read this one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import torch

from ninfer_core.api.nn import RowsOnDevice, Step
from ninfer_core.kv.pages import PAGE_TOKENS
from ninfer_core.sampling.params import SamplingParams
from ninfer_core.sampling.sampler import Drawn, record, settings
from ninfer_kernels.sampling import DECODE, DRAWN, NUMBERS, OUT, draws_in, packed

__all__ = ["DRAWN", "PageTable", "Recorded", "Replayed", "RoundRow", "Shape", "Tally"]

NOTHING = -1  # in place of a token to count
ALIGNMENT = 16  # numbers; kernels are then compiled for one alignment of what they read


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Rows of a round, and the columns each of them has a place for."""

    rows: int
    width: int


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a round. What it has said matters only to a row with penalties."""

    tokens: Sequence[int]  # fed: the last token, then drafts; DRAWN alone: what the lane draws in the round before
    frontier: int  # position of the first of them
    state_slot: int
    pages: list[int]
    params: SamplingParams
    logprobs: int | None = None  # rivals to report; None: nothing to report
    lane: int = 0
    request: int = 0  # whose output the lane holds
    ledger: Sequence[int] = ()  # prompt and output, the first fed token included
    after: Sequence[int] = ()  # output that the ledger does not have yet: nothing, or DRAWN
    prompt_tokens: int = 0  # of the ledger, which penalties leave out


class Replayed(Protocol):
    """A recorded stretch of device work (torch.cuda.CUDAGraph)."""

    def replay(self) -> None: ...


class PageTable:
    """The pages of each row of a round on the device, shared by all shapes. What has not changed is not uploaded: a
    row's pages seldom do from one round to the next, and there may be thousands."""

    def __init__(self, rows: int, pages: int, scratch_page: int, device: torch.device) -> None:
        self._host = torch.full((rows, pages), scratch_page, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._numbers = self._host.numpy()
        self.device = torch.full((rows, pages), scratch_page, dtype=torch.int64, device=device)
        self._held: list[list[int]] = [[] for _ in range(rows)]

    def hold(self, row: int, own: list[int]) -> None:
        """Make ``own`` the pages of a row. What is left of longer ones lies past its last page, where nobody reads."""
        held = self._held[row]
        if held == own:
            return
        first = len(held) if own[: len(held)] == held else 0
        if not first and held[: len(own)] == own:
            first = len(own)
        if first < len(own):
            self._numbers[row, first : len(own)] = own[first:]
            self.upload(row, first, len(own))
        self._held[row] = list(own)

    def upload(self, row: int, first: int, end: int) -> None:
        self.device[row, first:end].copy_(self._host[row, first:end], non_blocking=True)


class Tally:
    """How often each lane's request has said each token, on the device: what penalties read. Beside it ``last``: the
    token each lane has drawn last.

    A round brings the news of its own rows along. A request that was not tallied for a while, or is new to its lane,
    catches up in a launch of its own.
    """

    def __init__(self, lanes: int, vocab: int, device: torch.device) -> None:
        self.counts = torch.zeros(lanes, vocab, dtype=torch.int32, device=device)
        self.last = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._held: list[tuple[int, int]] = [(-1, 0)] * lanes  # the request, and how many of its tokens are counted

    def news(self, row: RoundRow, room: int) -> Sequence[int]:
        """Up to ``room`` tokens that the round has to count for its row; what is beyond them is counted now."""
        request, said = self._held[row.lane]
        if request != row.request:
            self.clear(row.lane)
            said = 0
        new = [*row.ledger[row.prompt_tokens + said :], *row.after]
        self._held[row.lane] = (row.request, said + len(new))
        if len(new) > room:
            self.add(row.lane, new[: len(new) - room])
        return new[max(len(new) - room, 0) :]

    def clear(self, lane: int) -> None:
        self.counts[lane].zero_()

    def add(self, lane: int, tokens: Sequence[int]) -> None:
        said = torch.tensor(tokens, dtype=torch.int64).to(self.counts.device)
        self.counts[lane].index_add_(0, said, torch.ones_like(said, dtype=torch.int32))


class Recorded:
    """One shape: its buffers, the step over them, the recorded round and the recorded fold."""

    def __init__(self, shape: Shape, table: PageTable, scratch_page: int, news: int, device: torch.device) -> None:
        """``news``: tokens a row may have to count in a round."""
        self.shape = shape
        self._table, self._scratch_slot, self._room = table, scratch_page * PAGE_TOKENS, news
        B, T, pinned = shape.rows, shape.rows * shape.width, device.type == "cuda"
        sizes = [T, T, T, B, B, B, B, B * NUMBERS, B * news]
        places = [_aligned(size) for size in sizes]
        self._host = torch.zeros(sum(places), dtype=torch.int64, pin_memory=pinned)
        self._device = torch.zeros(sum(places), dtype=torch.int64, device=device)
        written = [part[:size] for part, size in zip(torch.split(self._host, places), sizes, strict=True)]
        self._settings = written[-2].view(B, NUMBERS).numpy()
        self._said = written[-1].view(B, news).numpy()
        self._said.fill(NOTHING)
        self._params: list[SamplingParams | None] = [None] * B
        self._has_news = False
        # what is written anew for every round lies together, with these between its parts
        self._numbers = self._host[: sum(places[:7])].numpy()
        self._after_columns, self._after_rows = [0] * (places[0] - T), [0] * (places[3] - B)
        parts = [part[:size] for part, size in zip(torch.split(self._device, places), sizes, strict=True)]
        self.ids, self.positions, cache_slots, widths, frontiers, state_slots, self.lanes, of_rows, said = parts
        self.settings, self.said = of_rows.view(B, NUMBERS), said.view(B, news)
        self._kept_host = torch.zeros(B, dtype=torch.int64, pin_memory=pinned)
        self._kept_numbers = self._kept_host.numpy()
        self.kept = torch.zeros(B, dtype=torch.int64, device=device)
        firsts = torch.arange(0, T, shape.width, device=device)
        self.step = Step(
            token_ids=self.ids,
            positions=self.positions,
            starts=tuple(range(0, T + 1, shape.width)),
            frontiers=(0,) * B,
            page_table=table.device[:B],
            cache_slots=cache_slots,
            state_slots=tuple(range(B)),
            logit_index=torch.arange(T, device=device),
            provisional=True,
            on_device=RowsOnDevice(firsts=firsts, widths=widths, frontiers=frontiers, state_slots=state_slots),
        )
        self.forward: Replayed | None = None
        self.fold: Replayed | None = None  # of a model with recurrent state
        self.records: Any = None  # of the forward pass, for the fold
        self._drawn = torch.zeros(T * OUT, dtype=torch.int32, device=device)
        self.draws = draws_in(self._drawn)
        self._down = [torch.zeros(T * OUT, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self._seen = [[part.numpy() for part in draws_in(down)] for down in self._down]

    # ------------------------------------------------------------------ on the host

    def fill(self, rows: Sequence[RoundRow], tally: Tally) -> None:
        """Write a round's numbers. Columns without a token repeat the last one and write where nobody reads."""
        W, scratch = self.shape.width, self._scratch_slot
        ids: list[int] = []
        positions: list[int] = []
        cache_slots: list[int] = []
        if self._has_news:
            self._said.fill(NOTHING)
            self._has_news = False
        for b, row in enumerate(rows):
            fed, own = row.tokens, row.pages
            missing = W - len(fed)
            ids += fed
            for position in range(row.frontier, row.frontier + len(fed)):
                positions.append(position)
                cache_slots.append(own[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS)
            if missing:
                ids += [fed[-1]] * missing
                positions += [positions[-1]] * missing
                cache_slots += [scratch] * missing
            self._table.hold(b, own)
            self._draw_as(b, row, tally)
        after_columns, after_rows = self._after_columns, self._after_rows
        self._numbers[:] = [
            *ids, *after_columns, *positions, *after_columns, *cache_slots, *after_columns,
            *[len(row.tokens) for row in rows], *after_rows,
            *[row.frontier for row in rows], *after_rows,
            *[row.state_slot for row in rows], *after_rows,
            *[row.lane for row in rows], *after_rows,
        ]  # fmt: skip

    def _draw_as(self, b: int, row: RoundRow, tally: Tally) -> None:
        params = row.params
        if self._params[b] is not params:
            self._params[b] = params
            self._settings[b] = packed(settings(params, 0, DECODE))
        if params.penalized:
            for i, token in enumerate(tally.news(row, self._room)):
                self._said[b, i] = token
                self._has_news = True

    def keep(self, kept: Sequence[int]) -> None:
        """How many tokens of each row the fold is to keep."""
        self._kept_numbers[:] = kept

    def drawn(self, rows: Sequence[RoundRow], side: int) -> list[list[Drawn]]:
        """What has come down on a side, by row and column."""
        out, first = [], 0
        tokens = self._seen[side][0].tolist()
        for row in rows:
            own = tokens[first : first + len(row.tokens)]
            if row.logprobs is None:
                out.append([Drawn(token) for token in own])
            else:
                out.append(self._reported(side, own, first, row.logprobs))
            first += self.shape.width
        return out

    def _reported(self, side: int, tokens: list[int], first: int, wanted: int) -> list[Drawn]:
        ids, logprobs = (part[first : first + len(tokens)].tolist() for part in self._seen[side][1:])
        return [
            Drawn(token, record(token, its_ids, its_logprobs, wanted))
            for token, its_ids, its_logprobs in zip(tokens, ids, logprobs, strict=True)
        ]

    # ------------------------------------------------------------------ up and down

    def upload(self) -> None:
        self._device.copy_(self._host, non_blocking=True)

    def upload_kept(self) -> None:
        self.kept.copy_(self._kept_host, non_blocking=True)

    def download(self, side: int) -> None:
        self._down[side].copy_(self._drawn, non_blocking=True)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
