"""Matrix products for Hopper of few rows or few tiles, which memory or latency bounds.

What counts is that all multiprocessors read, and that many bytes are under way. So tiles are 64
or 128 columns of B, which are the *rows* of the matrix unit's products: C^T = B^T A^T. What A has
less than 64 rows costs neither sums nor shared memory. Programs of a cluster share a tile, each
with a part of K, where there are fewer tiles than multiprocessors; the first one adds what the
others give it through the cluster's shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finished, store
from remora.kernels.gemm_specialized import copy_block, leaves
from remora.kernels.tiles import top_and_bottom
from remora.kernels.warp_group import (
    give,
    given_to,
    let_next_kernel_begin,
    wait_for_kernels_before,
)


@tlx.jit(do_not_specialize=["M"])
def gemm_narrow(
    a_desc, b_desc, c_ptr, scale_a, scale_b, args, M, N, K, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr,
    SHARE: tl.constexpr, KEEP: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``.

    Grid: clusters of SHARE programs (1, 2, 4 or 8), each for every so many-th tile of BLOCK_M
    rows (16, 32, 64 or 128) and BLOCK_N columns (64 or 128); with SHARE of more than 1 a cluster
    for each tile. K: at least SHARE steps of BLOCK_K. Descriptors: a_desc (M, K) in blocks of
    (BLOCK_M, BLOCK_K), or (K, M) the other way round if A_BY_COLUMN; b_desc (K, N) in (BLOCK_K,
    BLOCK_N), or (N, K) in (BLOCK_N, BLOCK_K) if B_BY_COLUMN. ACC: the accumulator's element type.
    KEEP: see ``gemm_specialized``. The rest: see ``finished``.
    """
    PARTS: tl.constexpr = BLOCK_N // 64
    A_SHAPE: tl.constexpr = (BLOCK_K, BLOCK_M) if A_BY_COLUMN else (BLOCK_M, BLOCK_K)
    B_SHAPE: tl.constexpr = (BLOCK_N, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, BLOCK_N)
    a_buffers = tlx.local_alloc(A_SHAPE, tlx.dtype_of(a_desc), STAGES)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    full = tlx.alloc_barriers(STAGES, 1)
    empty = tlx.alloc_barriers(STAGES, 1)
    sums, given = full, full
    if SHARE > 1:
        sums = tlx.local_alloc((64 * BLOCK_M,), tl.float32, (SHARE - 1) * PARTS)
        given = tlx.alloc_barriers(1, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c_ptr, scale_a, scale_b, args, a_buffers, b_buffers, full, empty, sums, given,
                M, N, K, stride_cm, stride_cn, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_BY_COLUMN,
                B_BY_COLUMN, ACC, SHARE, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=1):
            _produce(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, BLOCK_M, BLOCK_N,
                BLOCK_K, STAGES, A_BY_COLUMN, B_BY_COLUMN, SHARE, KEEP,
            )  # fmt: skip


@triton.jit
def _work(
    M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SHARE: tl.constexpr,
):  # fmt: skip
    """This program's cluster, of how many; tiles; rank and steps of K: first, after the last."""
    rank = 0
    if SHARE > 1:
        rank = tlx.cluster_cta_rank()
    steps = tl.cdiv(K, BLOCK_K)
    return (
        tl.program_id(0) // SHARE, tl.num_programs(0) // SHARE,
        tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), rank, rank * steps // SHARE,
        (rank + 1) * steps // SHARE,
    )  # fmt: skip


@triton.jit
def _origin(tile, M, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile's first row and column; those below each other are neighbours, which share B."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    return tile % tiles_m * BLOCK_M, tile // tiles_m * BLOCK_N


@triton.jit
def _produce(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, SHARE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Copy the program's rows of A and columns of B, stage by stage."""
    BYTES: tl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    A_LEAVES: tl.constexpr = leaves("a", KEEP)
    B_LEAVES: tl.constexpr = leaves("b", KEEP)
    cluster, clusters, tiles, _, first, last = _work(M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, SHARE)
    let_next_kernel_begin()
    wait_for_kernels_before()
    step = 0
    for tile in range(cluster, tiles, clusters):
        row, column = _origin(tile, M, BLOCK_M, BLOCK_N)
        for i in range(first, last):
            stage, k = step % STAGES, i * BLOCK_K
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            copy_block(
                b_desc, b_buffers[stage], full[stage], 0, column, k, False, not B_BY_COLUMN,
                0, 1, 1, B_LEAVES,
            )  # fmt: skip
            copy_block(
                a_desc, a_buffers[stage], full[stage], 0, row, k, False, A_BY_COLUMN,
                0, 1, 1, A_LEAVES,
            )  # fmt: skip
            step += 1


@triton.jit
def _consume(
    c_ptr, scale_a, scale_b, args, a_buffers, b_buffers, full, empty, sums, given,
    M, N, K, stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, SHARE: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Multiply; give the sums to the cluster's first program, or add, finish and store them."""
    PARTS: tl.constexpr = BLOCK_N // 64
    cluster, clusters, tiles, rank, first, last = _work(M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, SHARE)
    if SHARE > 1:
        if rank == 0:
            tlx.barrier_expect_bytes(given[0], (SHARE - 1) * BLOCK_N * BLOCK_M * 4)
    wait_for_kernels_before()
    step = 0
    for tile in range(cluster, tiles, clusters):
        tl.assume(last > first)
        acc = tl.zeros((BLOCK_N, BLOCK_M), ACC)
        before = step % STAGES
        for i in range(first, last):
            stage = step % STAGES
            tlx.barrier_wait(full[stage], (step // STAGES) & 1)
            a = a_buffers[stage] if A_BY_COLUMN else tlx.local_trans(a_buffers[stage])
            b = b_buffers[stage] if B_BY_COLUMN else tlx.local_trans(b_buffers[stage])
            acc = tlx.async_dot(b, a, acc)
            acc = tlx.async_dot_wait(1, acc)
            if i > first:
                tlx.barrier_arrive(empty[before])
            before = stage
            step += 1
        acc = tlx.async_dot_wait(0, acc)
        tlx.barrier_arrive(empty[before])
        row, column = _origin(tile, M, BLOCK_M, BLOCK_N)
        parts = top_and_bottom(acc) if PARTS == 2 else (acc,)
        if SHARE > 1:
            if rank > 0:
                for half in tl.static_range(PARTS):
                    bits = parts[half].to(tl.float32, bitcast=True)
                    give(bits, sums[(rank - 1) * PARTS + half], 0, given[0])
        if rank == 0:
            if SHARE > 1:
                tlx.barrier_wait(given[0], 0)
            for half in tl.static_range(PARTS):
                part, at = parts[half], column + half * 64
                for other in tl.static_range(SHARE - 1):
                    part += given_to(sums[other * PARTS + half]).to(ACC, bitcast=True)
                values = finished(
                    tl.trans(part), 0, row, at, M, N, scale_a, scale_b, args, EPILOGUE, INDEX
                )
                store(c_ptr, values, 0, row, at, M, N, 0, stride_cm, stride_cn, INDEX)
