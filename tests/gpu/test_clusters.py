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


# --- barriers of other CTAs ----------------------------------------------------------------------


@tlx.jit
def swap(x, y, M: tl.constexpr, N: tl.constexpr, WARPS: tl.constexpr, WARP_BARRIER: tl.constexpr):
    """Each CTA gives the other its tile asynchronously, and says that it has read the other's."""
    other = tlx.cluster_cta_rank() ^ 1
    full = tlx.alloc_barriers(1)
    read = tlx.alloc_warp_barrier(1, WARPS) if WARP_BARRIER else tlx.alloc_barriers(1, 3)
    buffer = tlx.local_view(tlx.local_alloc((M, N), tlx.dtype_of(x), 1), 0)
    at = tl.program_id(0) * M * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    size: tl.constexpr = M * N * tlx.dtype_of(x).primitive_bitwidth // 8
    for turn in range(3):
        tlx.barrier_expect_bytes(full[0], size)
        value = tl.load(x + at + turn * tl.num_programs(0) * M * N)
        tlx.async_remote_shmem_store(buffer, value, other, full[0])
        tlx.barrier_wait(full[0], turn & 1)
        tl.store(y + at + turn * tl.num_programs(0) * M * N, tlx.local_load(buffer))
        if WARP_BARRIER:
            tlx.barrier_arrive(read[0], remote_cta_rank=other)
        else:
            tlx.barrier_arrive(tlx.remote_view(read[0], other), 2)
            tlx.barrier_arrive(read[0], 1, other)
        tlx.barrier_wait(read[0], turn & 1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 8), (64, 64), (8, 512)])
@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("warp_barrier", [False, True])
def test_tiles_that_are_swapped(dtype, m, n, num_warps, warp_barrier) -> None:
    x = numbers((3, 4, m, n), dtype)
    y = torch.zeros_like(x)
    swap[(4,)](x, y, m, n, num_warps, warp_barrier, num_warps=num_warps, ctas_per_cga=(2, 1, 1))
    expected = bits(x).view(3, 2, 2, -1).flip(2)
    assert (bits(y).view(expected.shape) == expected).all()


@tlx.jit
def pass_on(x, y, n, B: tl.constexpr):
    """A task of each CTA fills the other's buffers, another one empties its own."""
    other = tlx.cluster_cta_rank() ^ 1
    full = tlx.alloc_barriers(2, 1)
    empty = tlx.alloc_barriers(2, 1)
    buffers = tlx.local_alloc((B,), tlx.dtype_of(x), 2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(n):
                tlx.barrier_wait(full[i % 2], (i // 2) & 1)
                value = tlx.local_load(buffers[i % 2])
                tlx.barrier_arrive(empty[i % 2], 1, other)
                tl.store(y + (tl.program_id(0) * n + i) * B + tl.arange(0, B), value)
        with tlx.async_task(num_warps=2):
            for i in range(n):
                tlx.barrier_wait(empty[i % 2], ((i // 2) & 1) ^ 1)
                value = tl.load(x + (tl.program_id(0) * n + i) * B + tl.arange(0, B))
                tlx.remote_shmem_store(buffers[i % 2], value, other)
                tlx.barrier_arrive(full[i % 2], 1, other)


@pytest.mark.parametrize("n", [0, 1, 2, 37])
@pytest.mark.parametrize("block", [32, 128, 1024])
def test_tasks_that_pass_on(n, block) -> None:
    x = torch.randn((64, max(n, 1), block), device="cuda")
    y = torch.zeros_like(x)
    pass_on[(64,)](x, y, n, block, ctas_per_cga=(2, 1, 1))
    expected = x.view(32, 2, -1).flip(1).view(x.shape) if n else torch.zeros_like(x)
    assert (y == expected).all()


# --- copies into several CTAs --------------------------------------------------------------------


@tlx.jit
def shared_tile(desc, y, M: tl.constexpr, N: tl.constexpr, CTAS: tl.constexpr):
    """Each CTA of a cluster copies a part of a tile, and into all of them."""
    rank = tlx.cluster_cta_rank()
    part: tl.constexpr = N // CTAS
    full = tlx.alloc_barriers(1)
    tile = tlx.local_view(tlx.local_alloc((M, N), tlx.dtype_of(desc), 1), 0)
    row = tl.program_id(0) // CTAS * M
    tlx.barrier_expect_bytes(full[0], M * N * tlx.size_of(tlx.dtype_of(desc)))
    tlx.cluster_barrier()
    if CTAS == 2:
        if rank == 0:
            mine = tlx.local_slice(tile, [0, 0], [M, part])
        else:
            mine = tlx.local_slice(tile, [0, part], [M, part])
        tlx.async_descriptor_load(
            desc, mine, [row, rank * part], full[0], multicast_targets=[rank, rank ^ 1]
        )
    elif rank == 1:
        tlx.async_descriptor_load(
            desc, tile, [row, 0], full[0], multicast_targets=[0, 1, 2, 3], pred=rank == 1
        )
    tlx.barrier_wait(full[0], 0)
    at = (tl.program_id(0) * M + tl.arange(0, M)[:, None]) * N + tl.arange(0, N)[None, :]
    tl.store(y + at, tlx.local_load(tile))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize(("m", "n"), [(8, 128), (64, 256), (256, 128)])
@pytest.mark.parametrize("ctas", [2, 4])
def test_a_copy_into_several_ctas(dtype, m, n, ctas) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = numbers((4 * m, n), dtype)
    y = torch.zeros((4, ctas, m, n), dtype=x.dtype, device="cuda")
    desc = TensorDescriptor(x, [4 * m, n], [n, 1], [m, n // 2 if ctas == 2 else n])
    shared_tile[(4 * ctas,)](desc, y, m, n, ctas, ctas_per_cga=(ctas, 1, 1))
    assert (y == x.view(4, 1, m, n)).all()
