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
    value
    is in, then the lowest ids that equal it.
    """
    vocab = logits.shape[-1]
    k = min(k, vocab)
    values, ids = torch.topk(logits, k, dim=-1)
    cut = values[:, -1:]
    crowded = (logits == cut).sum(-1) > (values == cut).sum(-1)
    values_RK = values.float().cpu().numpy()
    ids_RK = ids.cpu().numpy()
    for row in torch.nonzero(crowded).flatten().tolist():
        above = int((values_RK[row] > values_RK[row, -1]).sum())
        equal = torch.nonzero(logits[row] == cut[row]).flatten()[: k - above].cpu().numpy()
        ids_RK[row, above:] = equal
    order = np.lexsort((ids_RK, -values_RK), axis=-1)
    return Candidates(np.take_along_axis(values_RK, order, -1), np.take_along_axis(ids_RK, order, -1))
