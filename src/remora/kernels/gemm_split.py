"""Matrix products for Hopper whose tiles are shared by two CTAs, each with half of K.

For products of few rows, which memory bounds: a tile of 128 rows may be as wide as makes the
number of CTAs that of the multiprocessors, and each CTA copies half of A only. A tile's columns
are up to three powers of two, with sums of their own: 208 are 128, 64 and 16. At the end the
CTAs give each other half of the rows' sums, from registers into shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finished
from remora.kernels.tiles import columns_of
from remora.kernels.warp_group import give, given_to

#: Columns that are stored at a time: as many as a buffer of A has.
_COLUMNS = tl.constexpr(64)


@tlx.jit
def gemm_split(
    a_desc, b0_desc, b1_desc, b2_desc, c_desc, c_last_desc, scale_a, scale_b, args, M, N, K,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, WIDTH_0: tl.constexpr, WIDTH_1: tl.constexpr,
    WIDTH_2: tl.constexpr, B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, KEEP: tl.constexpr,
    EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B`` in tiles of 128 rows and WIDTH_0 + WIDTH_1 + WIDTH_2 columns.

    Grid: two CTAs for each tile, in clusters of two. Each width is a power of two or, from the
    second on, 0, and no larger than the one before; the last one is 16 at least, those of 64 and
    more come first. K: more than BLOCK_K, which is 64.

    Descriptors: a_desc (M, K) in blocks of (64, BLOCK_K); b0_desc, ...: B, for each width,
    (K, N) in (BLOCK_K, width), or (N, K) in (width, BLOCK_K) if B_BY_COLUMN; c_desc (M, N) in
    (64, 64), c_last_desc in (64, last width) where that is less. C is of A's type.
    KEEP: A is to leave the second-level cache last, B first. The rest: see ``finished``.
    """
    a_buffers = tlx.local_alloc((64, BLOCK_K), tlx.dtype_of(a_desc), STAGES * 2)
    b0_buffers = _buffers_of_b(b0_desc, BLOCK_K, WIDTH_0, STAGES, B_BY_COLUMN)
    sums_0 = tlx.local_alloc((64 * WIDTH_0,), ACC, 1)
    b1_buffers, b2_buffers, sums_1, sums_2 = b0_buffers, b0_buffers, sums_0, sums_0
    if WIDTH_1 > 0:
        b1_buffers = _buffers_of_b(b1_desc, BLOCK_K, WIDTH_1, STAGES, B_BY_COLUMN)
        sums_1 = tlx.local_alloc((64 * WIDTH_1,), ACC, 1)
    if WIDTH_2 > 0:
        b2_buffers = _buffers_of_b(b2_desc, BLOCK_K, WIDTH_2, STAGES, B_BY_COLUMN)
        sums_2 = tlx.local_alloc((64 * WIDTH_2,), ACC, 1)
    last_buffer = a_buffers
    if c_last_desc is not None:
        LAST: tl.constexpr = WIDTH_2 if WIDTH_2 > 0 else (WIDTH_1 if WIDTH_1 > 0 else WIDTH_0)
        last_buffer = tlx.local_alloc((64, LAST), tlx.dtype_of(c_desc), 1)
    full = tlx.alloc_barriers(STAGES, 1)
    empty = tlx.alloc_barriers(STAGES, 2)
    arrived = tlx.alloc_barriers(1, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c_desc, c_last_desc, scale_a, scale_b, args, a_buffers, b0_buffers, b1_buffers,
                b2_buffers, sums_0, sums_1, sums_2, last_buffer, full, empty, arrived, M, N, K, 0,
                BLOCK_K, STAGES, WIDTH_0, WIDTH_1, WIDTH_2, B_BY_COLUMN, ACC, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _consume(
                c_desc, c_last_desc, scale_a, scale_b, args, a_buffers, b0_buffers, b1_buffers,
                b2_buffers, sums_0, sums_1, sums_2, last_buffer, full, empty, arrived, M, N, K, 1,
                BLOCK_K, STAGES, WIDTH_0, WIDTH_1, WIDTH_2, B_BY_COLUMN, ACC, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                a_desc, b0_desc, b1_desc, b2_desc, a_buffers, b0_buffers, b1_buffers, b2_buffers,
                full, empty, M, N, K, BLOCK_K, STAGES, WIDTH_0, WIDTH_1, WIDTH_2, B_BY_COLUMN,
                KEEP,
            )  # fmt: skip


@triton.jit
def _buffers_of_b(
    desc, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
    B_BY_COLUMN: tl.constexpr,
):  # fmt: skip
    SHAPE: tl.constexpr = (WIDTH, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, WIDTH)
    return tlx.local_alloc(SHAPE, tlx.dtype_of(desc), STAGES)


@triton.jit
def _work(M, K, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr):
    """This CTA's rank; its tile's row and column; its first step of K and the one after its last.

    Tiles below each other are neighbours, so that their columns of B come from memory once.
    """
    rank = tlx.cluster_cta_rank()
    tile = tl.program_id(0) // 2
    tiles_m = tl.cdiv(M, 128)
    steps = tl.cdiv(K, BLOCK_K)
    half = steps // 2
    first = rank * half
    last = tl.where(rank == 0, half, steps)
    return rank, tile % tiles_m * 128, tile // tiles_m * WIDTH, first, last


@triton.jit
def _produce(
    a_desc, b0_desc, b1_desc, b2_desc, a_buffers, b0_buffers, b1_buffers, b2_buffers, full, empty,
    M, N, K, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, WIDTH_0: tl.constexpr,
    WIDTH_1: tl.constexpr, WIDTH_2: tl.constexpr, B_BY_COLUMN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Copy A in two parts and B in as many as there are widths, stage by stage."""
    WIDTH: tl.constexpr = WIDTH_0 + WIDTH_1 + WIDTH_2
    BYTES: tl.constexpr = (128 + WIDTH) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    A_LEAVES: tl.constexpr = "evict_last" if KEEP else ""
    B_LEAVES: tl.constexpr = "evict_first" if KEEP else ""
    _, row, column, first, last = _work(M, K, BLOCK_K, WIDTH)
    for step in range(last - first):
        stage = step % STAGES
        k = (first + step) * BLOCK_K
        tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
        tlx.barrier_expect_bytes(full[stage], BYTES)
        _copy_b(b0_desc, b0_buffers[stage], full[stage], k, column, B_BY_COLUMN, B_LEAVES)
        if WIDTH_1 > 0:
            at = column + WIDTH_0
            _copy_b(b1_desc, b1_buffers[stage], full[stage], k, at, B_BY_COLUMN, B_LEAVES)
        if WIDTH_2 > 0:
            at = column + WIDTH_0 + WIDTH_1
            _copy_b(b2_desc, b2_buffers[stage], full[stage], k, at, B_BY_COLUMN, B_LEAVES)
        for part in tl.static_range(2):
            tlx.async_descriptor_load(
                a_desc, a_buffers[stage * 2 + part], (row + part * 64, k), full[stage],
                eviction_policy=A_LEAVES,
            )  # fmt: skip


@triton.jit
def _copy_b(desc, buffer, full, k, column, B_BY_COLUMN: tl.constexpr, LEAVES: tl.constexpr):
    offsets = (column, k) if B_BY_COLUMN else (k, column)
    tlx.async_descriptor_load(desc, buffer, offsets, full, eviction_policy=LEAVES)


@triton.jit
def _multiplied(a, b, acc, B_BY_COLUMN: tl.constexpr):
    return tlx.async_dot(a, tlx.local_trans(b) if B_BY_COLUMN else b, acc)


@triton.jit
def _consume(
    c_desc, c_last_desc, scale_a, scale_b, args, a_buffers, b0_buffers, b1_buffers, b2_buffers,
    sums_0, sums_1, sums_2, last_buffer, full, empty, arrived, M, N, K, ME: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, WIDTH_0: tl.constexpr, WIDTH_1: tl.constexpr,
    WIDTH_2: tl.constexpr, B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Multiply 64 of the tile's rows; the CTA whose rank is ME's finishes and stores them."""
    WIDTH: tl.constexpr = WIDTH_0 + WIDTH_1 + WIDTH_2
    PIECES: tl.constexpr = 1 + (WIDTH_1 > 0) + (WIDTH_2 > 0)
    rank, row, column, first, last = _work(M, K, BLOCK_K, WIDTH)
    row += ME * 64
    if rank == ME:
        tlx.barrier_expect_bytes(arrived[0], 64 * WIDTH * tlx.size_of(ACC))
    acc_0 = tl.zeros((64, WIDTH_0), ACC)
    acc_1, acc_2 = acc_0, acc_0
    if WIDTH_1 > 0:
        acc_1 = tl.zeros((64, WIDTH_1), ACC)
    if WIDTH_2 > 0:
        acc_2 = tl.zeros((64, WIDTH_2), ACC)
    steps = last - first
    tl.assume(steps > 0)
    for step in range(steps):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        a = a_buffers[stage * 2 + ME]
        acc_0 = _multiplied(a, b0_buffers[stage], acc_0, B_BY_COLUMN)
        if WIDTH_1 > 0:
            acc_1 = _multiplied(a, b1_buffers[stage], acc_1, B_BY_COLUMN)
        if WIDTH_2 > 0:
            acc_2 = _multiplied(a, b2_buffers[stage], acc_2, B_BY_COLUMN)
        # The products of the step before are done.
        acc_0 = tlx.async_dot_wait(PIECES, acc_0)
        if step > 0:
            tlx.barrier_arrive(empty[(step - 1) % STAGES])
    acc_0 = tlx.async_dot_wait(0, acc_0)
    if WIDTH_1 > 0:
        acc_1 = tlx.async_dot_wait(0, acc_1)
    if WIDTH_2 > 0:
        acc_2 = tlx.async_dot_wait(0, acc_2)
    if rank == ME:
        tlx.barrier_wait(arrived[0], 0)
        # Parts of 64 columns go through this consumer's buffers of A, which nothing uses now.
        _put(
            c_desc, c_last_desc, acc_0, sums_0[0], a_buffers, last_buffer, 0, row, column, M, N,
            scale_a, scale_b, args, ME, STAGES, EPILOGUE, INDEX,
        )  # fmt: skip
        if WIDTH_1 > 0:
            _put(
                c_desc, c_last_desc, acc_1, sums_1[0], a_buffers, last_buffer,
                WIDTH_0 // _COLUMNS, row, column + WIDTH_0, M, N,
                scale_a, scale_b, args, ME, STAGES, EPILOGUE, INDEX,
            )  # fmt: skip
        if WIDTH_2 > 0:
            _put(
                c_desc, c_last_desc, acc_2, sums_2[0], a_buffers, last_buffer,
                (WIDTH_0 + WIDTH_1) // _COLUMNS, row, column + WIDTH_0 + WIDTH_1, M, N,
                scale_a, scale_b, args, ME, STAGES, EPILOGUE, INDEX,
            )  # fmt: skip
        tlx.async_descriptor_store_wait(0)
    else:
        give(acc_0, sums_0[0], 1 - rank, arrived[0])
        if WIDTH_1 > 0:
            give(acc_1, sums_1[0], 1 - rank, arrived[0])
        if WIDTH_2 > 0:
            give(acc_2, sums_2[0], 1 - rank, arrived[0])


@triton.jit
def _put(
    c_desc, c_last_desc, acc, sums, a_buffers, last_buffer, FIRST: tl.constexpr, row, column, M, N,
    scale_a, scale_b, args, ME: tl.constexpr, STAGES: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Add the other CTA's sums, finish and store; through A's buffers from FIRST on."""
    acc += given_to(sums)
    PARTS: tl.constexpr = max(acc.shape[1] // _COLUMNS, 1)
    parts = columns_of(acc, PARTS)
    for i in tl.static_range(PARTS):
        at = column + i * _COLUMNS
        batch = tl.program_id(1)  # there is one
        values = finished(parts[i], batch, row, at, M, N, scale_a, scale_b, args, EPILOGUE, INDEX)
        values = values.to(tlx.dtype_of(c_desc))
        if acc.shape[1] < _COLUMNS:
            tlx.local_store(last_buffer[0], values)
            tlx.fence_async_shared()
            tlx.async_descriptor_store(c_last_desc, last_buffer[0], (row, at))
        else:
            buffer = a_buffers[(FIRST + i) % STAGES * 2 + ME]
            if FIRST + i >= STAGES:
                tlx.async_descriptor_store_wait(0)  # the one before has read the buffer
            tlx.local_store(buffer, values)
            tlx.fence_async_shared()
            tlx.async_descriptor_store(c_desc, buffer, (row, at))
