"""The pool on a GPU holds the bytes and gives the results it has on a CPU."""

import pytest
import torch

from ninfer_core.api import KVGeometry
from ninfer_core.kv.cache import KVCache
from ninfer_core.testing import compose, make_step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
GEOMETRY = KVGeometry(heads=(2,), head_dims=(128,))
TOLERANCE = 1e-5  # as between the routes on a CPU


def on_gpu(step):
    moved = {name: getattr(step, name).cuda() for name in ("token_ids", "positions", "page_table", "cache_slots")}
    return type(step)(**{name: moved.get(name, getattr(step, name)) for name in step.__slots__})


@pytest.mark.parametrize("name", ["bf16", "fp32", "int8"])
@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
def test_the_pool_on_a_gpu_equals_the_pool_on_a_cpu(name, reference):
    dtype = compose(["kv_bf16", "kv_int8"]).kv_dtypes[name]
    host, device = (KVCache(GEOMETRY, dtype, 8, where, reference) for where in ("cpu", "cuda"))
    pages = [[5, 2, 7], [0, 6, 3]]
    units = [([100], [0], pages[:1]), ([3], [0], pages[1:]), ([40], [100], pages[:1]), ([1, 4], [140, 3], pages)]
    for seed, (widths, frontiers, own) in enumerate(units):
        step = make_step([[0] * width for width in widths], frontiers=frontiers, pages=own)
        generator = torch.Generator().manual_seed(seed)
        k, v = (torch.randn(sum(widths), 2, 128, generator=generator) for _ in range(2))
        q = torch.randn(sum(widths), 8, 128, generator=generator)
        host.store(0, k, v, step)
        device.store(0, k.cuda(), v.cuda(), on_gpu(step))
        out = device.attend(0, q.cuda(), on_gpu(step), 0.1)
        torch.testing.assert_close(out.cpu(), host.attend(0, q, step, 0.1), rtol=0, atol=TOLERANCE)
        for a, b in zip(device.gather(0, on_gpu(step), 0, 0, 3), host.gather(0, step, 0, 0, 3), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=0, atol=TOLERANCE)
    for a, b in zip(device.layers[0].keys.planes, host.layers[0].keys.planes, strict=True):
        assert torch.equal(a.cpu(), b)
