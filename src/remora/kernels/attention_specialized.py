"""Attention, forward, for Hopper: a producer and two consumers, each with its own warps.

The consumers share a tile of queries, half of its rows each. While the matrix
units add one block of values, the softmax of the next block is worked out.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx


@triton.jit
def attention_forward(
    q0_desc, q1_desc, k0_desc, k1_desc, v0_desc, v1_desc, o0_desc, o1_desc, sums,
    scale, LENGTH,
    DIM0: tl.constexpr, DIM1: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """``O = softmax(scale * Q @ K.T) @ V`` for each head.

    The head dimension is DIM0 + DIM1, each a power of two, DIM1 0 where one is enough;
    the descriptors end in 0 and 1 for the two parts, (heads * LENGTH, dimension) all,
    in blocks of BLOCK_M // 2 rows (q, o) and BLOCK_N rows (k, v). sums: fp32,
    (heads, LENGTH): the logarithm of each row's sum. scale: times log2(e). LENGTH: a
    multiple of BLOCK_M and BLOCK_N. Grid: (LENGTH // BLOCK_M, heads).
    """
    ROWS: tl.constexpr = BLOCK_M // 2
    SIZE: tl.constexpr = tlx.size_of(tlx.dtype_of(q0_desc))
    SECOND: tl.constexpr = DIM1 if DIM1 > 0 else 16  # a buffer has some extent
    q0 = tlx.local_alloc((ROWS, DIM0), tlx.dtype_of(q0_desc), 2)
    k0 = tlx.local_alloc((BLOCK_N, DIM0), tlx.dtype_of(k0_desc), STAGES)
    v0 = tlx.local_alloc((BLOCK_N, DIM0), tlx.dtype_of(v0_desc), STAGES)
    q1, k1, v1 = q0, k0, v0
    if DIM1 > 0:
        q1 = tlx.local_alloc((ROWS, SECOND), tlx.dtype_of(q0_desc), 2)
        k1 = tlx.local_alloc((BLOCK_N, SECOND), tlx.dtype_of(k0_desc), STAGES)
        v1 = tlx.local_alloc((BLOCK_N, SECOND), tlx.dtype_of(v0_desc), STAGES)
    q_full = tlx.alloc_barriers(2, 1)
    k_full, k_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    v_full, v_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)

    # The longest rows first, where they differ.
    tile = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    first = tl.program_id(1) * LENGTH
    steps = tl.cdiv((tile + 1) * BLOCK_M if CAUSAL else LENGTH, BLOCK_N)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _attend(
                q0, q1, k0, k1, v0, v1, q_full, k_full, k_empty, v_full, v_empty,
                o0_desc, o1_desc, sums, scale, first, tile * BLOCK_M, steps,
                0, ROWS, BLOCK_N, DIM0, DIM1, STAGES, CAUSAL,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _attend(
                q0, q1, k0, k1, v0, v1, q_full, k_full, k_empty, v_full, v_empty,
                o0_desc, o1_desc, sums, scale, first, tile * BLOCK_M, steps,
                1, ROWS, BLOCK_N, DIM0, DIM1, STAGES, CAUSAL,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            for part in tl.static_range(2):
                row = first + tile * BLOCK_M + part * ROWS
                tlx.barrier_expect_bytes(q_full[part], ROWS * (DIM0 + DIM1) * SIZE)
                _copy(q0_desc, q1_desc, q0[part], q1[part], row, q_full[part], DIM0, DIM1)
            for step in range(steps):
                stage = step % STAGES
                phase = (step // STAGES) & 1
                row = first + step * BLOCK_N
                tlx.barrier_wait(k_empty[stage], phase ^ 1)
                tlx.barrier_expect_bytes(k_full[stage], BLOCK_N * (DIM0 + DIM1) * SIZE)
                _copy(k0_desc, k1_desc, k0[stage], k1[stage], row, k_full[stage], DIM0, DIM1)
                tlx.barrier_wait(v_empty[stage], phase ^ 1)
                tlx.barrier_expect_bytes(v_full[stage], BLOCK_N * (DIM0 + DIM1) * SIZE)
                _copy(v0_desc, v1_desc, v0[stage], v1[stage], row, v_full[stage], DIM0, DIM1)


@triton.jit
def _copy(desc0, desc1, buffer0, buffer1, row, full, DIM0: tl.constexpr, DIM1: tl.constexpr):
    tlx.async_descriptor_load(desc0, buffer0, [row, 0], full)
    if DIM1 > 0:
        tlx.async_descriptor_load(desc1, buffer1, [row, DIM0], full)


@triton.jit
def _scores(q0, q1, k0, k1, DIM1: tl.constexpr):
    """Start ``Q @ K.T``."""
    scores = tlx.async_dot(q0, tlx.local_trans(k0))
    if DIM1 > 0:
        scores = tlx.async_dot(q1, tlx.local_trans(k1), scores)
    return scores


@triton.jit
def _attend(
    q0, q1, k0, k1, v0, v1, q_full, k_full, k_empty, v_full, v_empty,
    o0_desc, o1_desc, sums, scale, first, row, steps,
    PART: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, DIM0: tl.constexpr,
    DIM1: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Half of the rows of a tile of queries."""
    tl.assume(steps > 0)
    row += PART * ROWS
    rows = row + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_N)
    acc0 = tl.zeros((ROWS, DIM0), tl.float32)
    acc1 = tl.zeros((ROWS, DIM1 if DIM1 > 0 else 16), tl.float32)
    qa, qb = q0[PART], q1[PART]

    tlx.barrier_wait(q_full[PART], 0)
    tlx.barrier_wait(k_full[0], 0)
    scores = tlx.async_dot_wait(0, _scores(qa, qb, k0[0], k1[0], DIM1))
    tlx.barrier_arrive(k_empty[0])
    if CAUSAL:
        if row < BLOCK_N:
            scores = tl.where(rows[:, None] >= columns[None, :], scores, float("-inf"))
    highest = tl.max(scores, 1) * scale
    weights = tl.math.exp2(scores * scale - highest[:, None])
    total = tl.sum(weights, 1)
    weights16 = weights.to(tlx.dtype_of(o0_desc))

    for step in range(1, steps):
        stage = step % STAGES
        before = (step - 1) % STAGES
        tlx.barrier_wait(k_full[stage], (step // STAGES) & 1)
        scores = _scores(qa, qb, k0[stage], k1[stage], DIM1)
        tlx.barrier_wait(v_full[before], ((step - 1) // STAGES) & 1)
        acc0 = tlx.async_dot(weights16, v0[before], acc0)
        if DIM1 > 0:
            acc1 = tlx.async_dot(weights16, v1[before], acc1)
        scores = tlx.async_dot_wait(1 if DIM1 == 0 else 2, scores)
        tlx.barrier_arrive(k_empty[stage])
        if CAUSAL:
            at = step * BLOCK_N
            if at + BLOCK_N > row:
                scores = tl.where(rows[:, None] >= at + columns[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * scale)
        shrink = tl.math.exp2(highest - higher)
        highest = higher
        weights = tl.math.exp2(scores * scale - highest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc0 = tlx.async_dot_wait(0, acc0)
        if DIM1 > 0:
            acc1 = tlx.async_dot_wait(0, acc1) * shrink[:, None]
        tlx.barrier_arrive(v_empty[before])
        acc0 = acc0 * shrink[:, None]
        weights16 = weights.to(tlx.dtype_of(o0_desc))

    last = steps - 1
    stage = last % STAGES
    tlx.barrier_wait(v_full[stage], (last // STAGES) & 1)
    acc0 = tlx.async_dot(weights16, v0[stage], acc0)
    if DIM1 > 0:
        acc1 = tlx.async_dot(weights16, v1[stage], acc1)
        acc1 = tlx.async_dot_wait(0, acc1) / total[:, None]
    acc0 = tlx.async_dot_wait(0, acc0) / total[:, None]
    tl.store(sums + first + rows, (highest + tl.math.log2(total)) * 0.6931471805599453)
    # The queries' buffer is free.
    tlx.local_store(qa, acc0.to(tlx.dtype_of(o0_desc)))
    if DIM1 > 0:
        tlx.local_store(qb, acc1.to(tlx.dtype_of(o0_desc)))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(o0_desc, qa, [first + row, 0])
    if DIM1 > 0:
        tlx.async_descriptor_store(o1_desc, qb, [first + row, DIM0])
    tlx.async_descriptor_store_wait(0)
