"""The definition of paged attention, in plain torch and fp32: one row at a time, one position at a time."""

import torch
from torch import Tensor

from .layout import PAGE_TOKENS, Rows, Stored


def attend(
    q_THD: Tensor, keys: Stored, values: Stored, rows: Rows, scale: float, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """Causal attention of every token over what is stored for its row, itself included: [T, H, D], fp32 rounded once.

    q: [T, H, D] any float. Query head h reads KV head ``h // (H / G)``. A token at position p sees positions 0..p of
    its own row and nothing else; scores ``scale * q.k`` and their softmax are fp32. Source: Vaswani et al. 2017, eq. 1.
    """
    out = torch.zeros(q_THD.shape, dtype=torch.float32, device=q_THD.device)
    group = q_THD.shape[1] // keys.heads
    for row in range(len(rows)):
        for token in range(rows.starts[row], rows.starts[row + 1]):
            seen = rows.frontiers[row] + token - rows.starts[row] + 1
            positions = torch.arange(seen, device=q_THD.device)
            pages, offsets = rows.page_table[row, positions // PAGE_TOKENS], positions % PAGE_TOKENS
            k_LHD = keys.slots(pages, offsets).repeat_interleave(group, dim=1)
            v_LHD = values.slots(pages, offsets).repeat_interleave(group, dim=1)
            scores_HL = torch.einsum("hd,lhd->hl", q_THD[token].float(), k_LHD) * scale
            out[token] = torch.einsum("hl,lhd->hd", torch.softmax(scores_HL, dim=-1), v_LHD)
    return out.to(out_dtype)
