"""Clusters on a GPU: ranks, and tensors that go from CTA to CTA."""

from __future__ import annotations

from typing import Any

import pytest
import triton.language as tl

import remora.tlx as tlx

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9,
        reason="needs a GPU with clusters",
    ),
]

DTYPES = {
    "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
    "float64": torch.float64, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    x = torch.randint(-100, 100, shape, device="cuda")
    return (x / 8 if dtype.startswith(("float", "bfloat")) else x).to(DTYPES[dtype])


def bits(x: Any) -> Any:
    return x.contiguous().view(torch.uint8)


@tlx.jit
def places(out):
    program = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    tl.store(out + 2 * program, tlx.cluster_cta_rank())
    tl.store(out + 2 * program + 1, tlx.cluster_size_1d())


@pytest.mark.parametrize("size", [None, (1, 1, 1), (2, 1, 1), (8, 1, 1), (1, 2, 1), (2, 2, 1)])
def test_ranks_and_sizes(size) -> None:
    out = torch.full((4, 8, 2), -1, dtype=torch.int32, device="cuda")
    places[(8, 4)](out, ctas_per_cga=size)
    x, y, _ = size or (1, 1, 1)
    for row in range(4):
        for column in range(8):
            assert out[row, column].tolist() == [column % x + x * (row % y), x * y]


@tlx.jit
def rotate(x, y, by, M: tl.constexpr, N: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Each CTA gives its tile to the CTA ``by`` further on in its cluster."""
    buffer = tlx.local_view(tlx.local_alloc((M, N), tlx.dtype_of(x), 2), 1)
    if TRANSPOSED:
        at = tl.arange(0, M)[:, None] + M * tl.arange(0, N)[None, :]
    else:
        at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    at += tl.program_id(0) * M * N
    to = (tlx.cluster_cta_rank() + by) % tlx.cluster_size_1d()
    tlx.remote_shmem_store(buffer, tl.load(x + at), to)
    tlx.cluster_barrier()
    tl.store(y + at, tlx.local_load(buffer))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 1), (1, 2), (4, 8), (64, 64), (16, 256)])
@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_that_are_given_on(dtype, m, n, transposed) -> None:
    for size, by, num_warps in ((2, 1, 4), (4, 3, 8), (2, 0, 1)):
        x = numbers((8, m, n), dtype)
        y = torch.zeros_like(x)
        rotate[(8,)](x, y, by, m, n, transposed, num_warps=num_warps, ctas_per_cga=(size, 1, 1))
        expected = bits(x).view(8 // size, size, -1).roll(by, 1)
        assert (bits(y).view(expected.shape) == expected).all()


@tlx.jit
def product_of_others(x, y, D: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The product of the tiles that the other CTA gave: its layout is the matrix unit's."""
    a = tlx.local_view(tlx.local_alloc((D, D), tlx.dtype_of(x), 1), 0)
    b = tlx.local_view(tlx.local_alloc((D, D), tlx.dtype_of(x), 1), 0)
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    tile = tl.load(x + tl.program_id(0) * D * D + at)
    across = tl.arange(0, D)[:, None] + tl.arange(0, D)[None, :] * D
    other = tl.load(x + tl.program_id(0) * D * D + across) if TRANSPOSED else tile
    tlx.remote_shmem_store(a, tile, tlx.cluster_cta_rank() ^ 1)
    tlx.remote_shmem_store(b, other, tlx.cluster_cta_rank() ^ 1)
    tlx.cluster_barrier()
    acc = tlx.async_dot(a, b)
    tl.store(y + tl.program_id(0) * D * D + at, tlx.async_dot_wait(0, acc))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e5m2"])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_tiles_that_were_given(dtype, size, transposed) -> None:
    x = (torch.randint(-4, 5, (2, size, size), device="cuda")).to(DTYPES[dtype])
    y = torch.zeros((2, size, size), device="cuda")
    product_of_others[(2,)](x, y, size, transposed, ctas_per_cga=(2, 1, 1))
    wide = x.double().flip(0)
    expected = wide @ (wide.mT if transposed else wide)
    assert (y.double() == expected).all()
