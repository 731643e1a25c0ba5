"""The draw in the domain of 20 candidates, and what a round is fed with before it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ninfer_kernels.sampling import (
    DECODE,
    DOMAIN,
    DRAWN,
    OUT,
    Settings,
    draws_in,
    gpu,
    packed,
    pick,
    support,
    top_candidates,
    uniform,
)

from .case import Case, Inputs, Result, Sizes, randn, sized

TESTS = "test_sampling_gpu.py"
GREEDY = Settings(temperature=0.0, top_p=1.0, min_p=0.0, top_k=DOMAIN, seed=0, position=0, purpose=DECODE)
SAMPLED = Settings(temperature=0.7, top_p=0.8, min_p=0.05, top_k=DOMAIN, seed=11, position=0, purpose=DECODE)
PENALIZED = SAMPLED._replace(presence=1.5, frequency=0.25)
SPREAD = 3.0  # of logits
SAID = 8  # tokens of a row in a round


def cases(sizes: Sizes) -> Iterator[Case]:
    for R in (1, sizes.rows):
        for name, settings in (("greedy", GREEDY), ("sampled", SAMPLED)):
            yield draw(sizes, name, R, settings)
    yield draw(sizes, "penalized", sizes.rows, PENALIZED)
    yield feed(sizes)


def draw(sizes: Sizes, name: str, R: int, settings: Settings) -> Case:
    """As a recorded round draws: everything lies on the device, the counts too."""
    V = sizes.dense.vocab_size
    rows = [settings._replace(seed=settings.seed + b, position=100 + b) for b in range(R)]

    def make(generator: torch.Generator) -> Inputs:
        device = generator.device
        numbers = torch.tensor([packed(row) for row in rows], device=device)
        positions = torch.tensor([row.position for row in rows], device=device)
        logits = randn(generator, R, V, dtype=torch.float32, scale=SPREAD)
        return logits, numbers, positions, spoken_of(R, V, generator)

    def run(inputs: Inputs) -> Result:
        logits, numbers, positions, spoken = inputs
        out = draws_in(torch.empty(R * OUT, dtype=torch.int32, device=logits.device))
        gpu.draw_into(out, logits, numbers, positions, spoken=spoken)
        return *out, spoken.last

    def moved(inputs: Inputs, result: Result) -> int:
        logits, numbers, positions, spoken = inputs
        asked = (spoken.counts,) if settings.presence or settings.frequency else ()
        return sized((logits, numbers, positions, asked, result))

    return Case(
        op=f"sampling.draw_{name}", shape=f"V{V}-R{R}", tests=TESTS, tolerance=1e-5, make=make, run=run, moved=moved,
        reference=lambda inputs: drawn(inputs[0], inputs[3], rows),
    )  # fmt: skip


def drawn(logits: Tensor, spoken: gpu.Spoken, rows: list[Settings]) -> Result:
    """The definition, row by row: tokens, candidates, log probabilities, and what each lane has drawn."""
    tokens, ids, logprobs = [], [], []
    for b, row in enumerate(rows):
        said = spoken.counts[spoken.lanes[b]].float()
        penalty = torch.tensor(row.presence) + torch.tensor(row.frequency) * said.cpu()
        x = torch.where(said > 0, logits[b] - penalty.to(logits.device), logits[b])
        found = top_candidates(x[None], DOMAIN)
        rank = 0
        if row.temperature > 0:
            weights = support(found.logits[0][: row.top_k], row.temperature, row.top_p, row.min_p)
            rank = pick(weights, uniform(row.seed, row.position, row.purpose))
        best = torch.from_numpy(found.ids[0]).to(logits.device)
        tokens.append(best[rank])
        ids.append(best)
        logprobs.append(torch.log_softmax(x.double() / (row.temperature or 1.0), -1)[best])
    spoken.last[spoken.lanes] = torch.stack(tokens)
    return torch.stack(tokens), torch.stack(ids), torch.stack(logprobs), spoken.last


def feed(sizes: Sizes) -> Case:
    """What rows drew last becomes the tokens they are fed, and what they have said is counted."""
    V, R = sizes.dense.vocab_size, sizes.rows

    def make(generator: torch.Generator) -> Inputs:
        spoken = spoken_of(R, V, generator)
        said = torch.randint(1, V, (R, SAID), generator=generator, device=generator.device)
        said[:, -1] = DRAWN
        return spoken._replace(ids=torch.full_like(spoken.ids, DRAWN)), said

    def run(inputs: Inputs) -> Result:
        spoken, said = inputs
        gpu.feed(spoken, said)
        return spoken.ids, spoken.counts

    def reference(inputs: Inputs) -> Result:
        spoken, said = inputs
        drawn = spoken.last[spoken.lanes]
        for lane, last, tokens in zip(spoken.lanes.tolist(), drawn, said, strict=True):
            tokens = torch.where(tokens == DRAWN, last, tokens)
            spoken.counts[lane].index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.int32))
        return drawn, spoken.counts

    def moved(inputs: Inputs, result: Result) -> int:
        """Each count in and out."""
        spoken, said = inputs
        return sized((spoken.last, spoken.lanes, spoken.ids, said)) + 8 * said.numel()

    return Case(
        op="sampling.feed",
        shape=f"V{V}-R{R}-D{SAID}",
        tests=TESTS,
        make=make,
        run=run,
        reference=reference,
        moved=moved,
    )


def spoken_of(R: int, V: int, generator: torch.Generator) -> gpu.Spoken:
    """Of rows in lanes of another order: every token said twice at most."""
    device = generator.device
    counts = torch.randint(0, 3, (R, V), generator=generator, device=device, dtype=torch.int32)
    last, ids = (torch.randint(1, V, (R,), generator=generator, device=device) for _ in "li")
    return gpu.Spoken(counts, last, torch.randperm(R, generator=generator, device=device), ids)
