"""The most likely tokens of each row, in rank order: logit descending, equal logits by lower id."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DOMAIN = 20  # a sampler never looks past the 20 best tokens


class Candidates(NamedTuple):
    logits: np.ndarray  # [R, K] fp32, rank order; NaN in a row whose logits are not finite
    ids: np.ndarray  # [R, K] int64


def top_candidates(logits: Tensor, k: int) -> Candidates:
    """The ``k`` best of each row, on the host. logits: [R, V] on any device, any float dtype; 1 <= k <= DOMAIN.

    ``torch.topk`` orders equal values arbitrarily, so ties at the cut are resolved here: everything above the k-th
    value is in, then the lowest ids that equal it. A row with a NaN keeps it among its candidates.
    """
    vocab = logits.shape[-1]
    k = min(k, vocab)
    found = torch.topk(logits, min(k + 1, vocab), dim=-1)
    values_RK = found.values.float().cpu().numpy()
    ids_RK = found.indices.cpu().numpy()
    if vocab > k:
        for row in np.nonzero(values_RK[:, k] == values_RK[:, k - 1])[0].tolist():
            cut = values_RK[row, k - 1]
            above = int((values_RK[row, :k] > cut).sum())
            equal = torch.nonzero(logits[row] == logits[row, ids_RK[row, k - 1]]).flatten()
            ids_RK[row, above:k] = equal[: k - above].cpu().numpy()
    values_RK, ids_RK = values_RK[:, :k], ids_RK[:, :k]
    order = np.lexsort((ids_RK, -values_RK), axis=-1)
    return Candidates(np.take_along_axis(values_RK, order, -1), np.take_along_axis(ids_RK, order, -1))


def best(logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The largest logit of each row and its lowest id, on the host: [R] float, [R] int64. NaN is largest.

    logits: [R, V]. On the CPU by numpy: torch splits a row among threads, which wait for each other spinning.
    """
    if logits.device.type == "cpu":
        rows = logits.float().numpy()
        ids = rows.argmax(axis=-1)
        return np.take_along_axis(rows, ids[:, None], -1)[:, 0], ids
    found = logits.max(dim=-1)  # the first index among equals is the lowest id
    return found.values.float().cpu().numpy(), found.indices.cpu().numpy()
