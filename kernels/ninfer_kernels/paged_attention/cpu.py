"""Attention through torch's fused operations: every storage, every device. The route of whatever has no kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .layout import Rows, Stored


def attend(q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float) -> Tensor:
    """``reference.attend``: the same sums in another order. q: [T, H, D] any float -> [T, H, D] fp32."""
    q_THD = q_THD.float()
    out = torch.empty_like(q_THD)
    for row in range(len(rows)):
        first, last = rows.starts[row], rows.starts[row + 1]
        if first == last:
            continue
        index = rows.page_heads(row, keys.heads)
        k_GLD, v_GLD = keys.pages(index, rows.length(row)), values.pages(index, rows.length(row))
        if last - first == 1:
            out[first] = _one_token(q_THD[first], k_GLD, v_GLD, scale)
        else:
            out[first:last] = _several_tokens(q_THD[first:last], k_GLD, v_GLD, rows, row, scale)
    return out


def _one_token(q_HD: Tensor, k_GLD: Tensor, v_GLD: Tensor, scale: float) -> Tensor:
    """The query heads of one KV head are the rows of one product; two products and a softmax beat the fused op."""
    q_GHD = q_HD.view(k_GLD.shape[0], -1, q_HD.shape[-1])
    weights_GHL = torch.softmax(torch.bmm(q_GHD * scale, k_GLD.transpose(1, 2)), dim=-1)
    return torch.bmm(weights_GHL, v_GLD).view(q_HD.shape)


def _several_tokens(q_WHD: Tensor, k_GLD: Tensor, v_GLD: Tensor, rows: Rows, row: int, scale: float) -> Tensor:
    # torch's own causal mask is aligned to the first key, so it serves a row without history only
    from_start = rows.frontiers[row] == 0
    out_HWD = F.scaled_dot_product_attention(
        q_WHD.transpose(0, 1)[None],
        k_GLD[None],
        v_GLD[None],
        attn_mask=None if from_start else rows.causal_bias(row),
        is_causal=from_start,
        scale=scale,
        enable_gqa=q_WHD.shape[1] != k_GLD.shape[0],
    )[0]
    return out_HWD.transpose(0, 1)
