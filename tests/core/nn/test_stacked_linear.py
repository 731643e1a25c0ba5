"""A stack of several storages: one product, or two operations."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.nn.linear import DenseLinear, StackedLinear

ROWS = (3, 4, 2)


@pytest.fixture
def stack() -> StackedLinear:
    return StackedLinear([DenseLinear(torch.randn(rows, 5)) for rows in ROWS])


@pytest.mark.parametrize("rows", [3, 7])
def test_a_stack_parts_between_its_operations(stack, rows):
    x = torch.randn(2, 5)
    parted = stack.parted(rows)
    assert parted is not None
    assert [part.rows for part in parted] == [rows, sum(ROWS) - rows]
    assert torch.equal(torch.cat([part(x) for part in parted], -1), stack(x))


@pytest.mark.parametrize("rows", [0, 2, 5, 9, 12])
def test_a_stack_does_not_part_within_an_operation_or_at_its_ends(stack, rows):
    assert stack.parted(rows) is None
