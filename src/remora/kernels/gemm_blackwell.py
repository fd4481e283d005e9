"""Matrix product for Blackwell: persistent, with tasks, sums in tensor memory, launch control.

Three tasks: one warp copies operands (TMA), one starts products (tcgen05), four store what the
tensor memory holds. Two sums fit into it: one is stored while the next one grows. The machine
hands out tiles: where a program is done, it takes the place of one that has not begun.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finished, store
from remora.kernels.gemm_specialized import copy_block, hand_over
from remora.kernels.tiles import place_of


@triton.jit
def _place(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
           PAIR: tl.constexpr):  # fmt: skip
    """Where a program's tile begins: matrix of the batch, row, column; of two, each has half of
    the rows."""
    CTAS: tl.constexpr = 2 if PAIR else 1
    batch, tile_m, tile_n = place_of(program // CTAS, M, N, CTAS * BLOCK_M, BLOCK_N, GROUP_M)
    return batch, (tile_m * CTAS + program % CTAS) * BLOCK_M, tile_n * BLOCK_N


@triton.jit
def _copy(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, tiles, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """The operands of tile after tile, stage by stage; this task asks for the tiles, too."""
    COLUMNS: tl.constexpr = BLOCK_N // 2 if PAIR else BLOCK_N
    BYTES: tl.constexpr = (BLOCK_M + COLUMNS) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    program, step, phase = tl.program_id(0), 0, 0
    while program >= 0:
        tlx.clc_producer(tiles, phase ^ 1, multi_ctas=PAIR)
        batch, row, column = _place(program, M, N, BLOCK_M, BLOCK_N, GROUP_M, PAIR)
        if PAIR:
            column += program % 2 * COLUMNS
        for k in range(0, K, BLOCK_K):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], (step // STAGES) & 1 ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            copy_block(
                a_desc, a_buffers[stage], full[stage], batch, row, k, A_BATCHED, A_BY_COLUMN,
                0, 1, 1,
            )  # fmt: skip
            copy_block(
                b_desc, b_buffers[stage], full[stage], batch, column, k, B_BATCHED,
                not B_BY_COLUMN, 0, 1, 1,
            )  # fmt: skip
            step += 1
        program = tlx.clc_consumer(tiles, phase, multi_ctas=PAIR)
        phase ^= 1


@triton.jit
def _multiply(
    a_buffers, b_buffers, sums, full, empty, ready, summed, stored, tiles, K,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """The products of tile after tile, in one of two sums. Of a pair the first CTA multiplies."""
    program, step, done = tl.program_id(0), 0, 0
    first = program % 2 == 0
    while program >= 0:
        total = done % 2
        if PAIR:
            tlx.barrier_wait(stored[total], (done // 2) & 1 ^ 1, first)
        else:
            tlx.barrier_wait(stored[total], (done // 2) & 1 ^ 1)
        for k in range(0, K, BLOCK_K):
            stage = step % STAGES
            phase = (step // STAGES) & 1
            tlx.barrier_wait(full[stage], phase)
            if PAIR:  # both have their operands
                tlx.barrier_arrive(ready[stage], 1, 0)
                tlx.barrier_wait(ready[stage], phase, first)
            a = tlx.local_trans(a_buffers[stage]) if A_BY_COLUMN else a_buffers[stage]
            b = tlx.local_trans(b_buffers[stage]) if B_BY_COLUMN else b_buffers[stage]
            tlx.async_dot(a, b, sums[total], use_acc=k > 0, mBarriers=[empty[stage]], two_ctas=PAIR)
            step += 1
        tlx.tcgen05_commit(summed[total], two_ctas=PAIR)
        program = tlx.clc_consumer(tiles, done & 1, multi_ctas=PAIR)
        done += 1


@triton.jit
def _store(
    c, c_buffers, scale_a, scale_b, args, sums, summed, stored, tiles, M, N,
    stride_cb, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, SUBTILES: tl.constexpr,
    C_DESCRIBED: tl.constexpr, PAIR: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Finish sum after sum and store it, in SUBTILES parts; by TMA through two buffers."""
    COLUMNS: tl.constexpr = BLOCK_N // SUBTILES
    program, done = tl.program_id(0), 0
    while program >= 0:
        total = done % 2
        batch, row, column = _place(program, M, N, BLOCK_M, BLOCK_N, GROUP_M, PAIR)
        tlx.barrier_wait(summed[total], (done // 2) & 1)
        for part in tl.static_range(SUBTILES):
            values = tlx.local_load(tlx.subslice(sums[total], part * COLUMNS, COLUMNS))
            if part == SUBTILES - 1:
                if PAIR:
                    tlx.barrier_arrive(stored[total], 1, 0)
                else:
                    tlx.barrier_arrive(stored[total])
            at = column + part * COLUMNS
            values = finished(values, batch, row, at, M, N, scale_a, scale_b, args, EPILOGUE, INDEX)
            if C_DESCRIBED:
                hand_over(c, c_buffers[part % 2], values, batch, row, at, 1)
            else:
                store(c, values, batch, row, at, M, N, stride_cb, stride_cm, stride_cn, INDEX)
        program = tlx.clc_consumer(tiles, done & 1, multi_ctas=PAIR)
        done += 1
    if C_DESCRIBED:
        tlx.async_descriptor_store_wait(0)


@tlx.jit
def gemm_blackwell(
    a_desc, b_desc, c, scale_a, scale_b, args, M, N, K, stride_cb, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, SUBTILES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr,
    C_DESCRIBED: tl.constexpr, ACC: tl.constexpr, PAIR: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, in batches; K at least 1.

    With PAIR two CTAs of a cluster share a tile of 2 * BLOCK_M rows, each with half of A's rows
    and half of B's columns: half of B's traffic.

    a_desc (M, K) in blocks of (BLOCK_M, BLOCK_K), or (K, M) in (BLOCK_K, BLOCK_M) if
    A_BY_COLUMN; b_desc (K, N) in (BLOCK_K, COLUMNS), or (N, K)
    in (COLUMNS, BLOCK_K) if B_BY_COLUMN, COLUMNS being BLOCK_N, or BLOCK_N // 2 with PAIR;
    c (M, N) in (BLOCK_M, BLOCK_N // SUBTILES) if C_DESCRIBED, a pointer otherwise. With A_BATCHED,
    B_BATCHED the operand, and with more than one matrix c has a dimension in front of these, of
    blocks of 1. Grid: a program for each tile, two with PAIR, one matrix after the other.
    BLOCK_M: 128. BLOCK_N: at most 256. STAGES: buffers of each operand. SUBTILES: even.
    ACC: the accumulator's element type. scale_a, ..., args, EPILOGUE, INDEX: see ``finished``.
    """
    COLUMNS: tl.constexpr = BLOCK_N // 2 if PAIR else BLOCK_N
    CTAS: tl.constexpr = 2 if PAIR else 1
    B_SHAPE: tl.constexpr = (COLUMNS, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, COLUMNS)
    A_SHAPE: tl.constexpr = (BLOCK_K, BLOCK_M) if A_BY_COLUMN else (BLOCK_M, BLOCK_K)
    a_buffers = tlx.local_alloc(A_SHAPE, tlx.dtype_of(a_desc), STAGES)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = b_buffers
    if C_DESCRIBED:
        c_buffers = tlx.local_alloc((BLOCK_M, BLOCK_N // SUBTILES), tlx.dtype_of(c), 2)
    sums = tlx.local_alloc((BLOCK_M, BLOCK_N), ACC, 2, tlx.storage_kind.tmem)
    full = tlx.alloc_barriers(STAGES)
    empty = tlx.alloc_barriers(STAGES)
    ready = tlx.alloc_barriers(STAGES, CTAS)
    summed = tlx.alloc_barriers(2)
    stored = tlx.alloc_barriers(2, CTAS)
    tiles = tlx.clc_create_context(3 * CTAS)
    with tlx.async_tasks():
        with tlx.async_task(num_warps=1, num_regs=40):
            _copy(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, tiles, M, N, K,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, A_BY_COLUMN, B_BY_COLUMN,
                A_BATCHED, B_BATCHED, PAIR,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _multiply(
                a_buffers, b_buffers, sums, full, empty, ready, summed, stored, tiles, K,
                BLOCK_K, STAGES, A_BY_COLUMN, B_BY_COLUMN, PAIR,
            )  # fmt: skip
        with tlx.async_task("default"):
            _store(
                c, c_buffers, scale_a, scale_b, args, sums, summed, stored, tiles, M, N,
                stride_cb, stride_cm, stride_cn, BLOCK_M, BLOCK_N, GROUP_M, SUBTILES,
                C_DESCRIBED, PAIR, EPILOGUE, INDEX,
            )  # fmt: skip
