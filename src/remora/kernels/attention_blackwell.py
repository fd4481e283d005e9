"""Attention, forward, for Blackwell: scores and sums in tensor memory, five tasks.

A program has two halves of 128 queries each, so that one half's products run while the other
half's softmax does. One warp copies (TMA), one starts products (tcgen05); four warps for each
half turn scores into weights, which lie over the scores; four scale the sums where a maximum
has grown, and store them. Nothing is divided before the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.attention_plain import LN2

#: Rows of a half: the lanes of tensor memory.
ROWS = tl.constexpr(128)

#: Columns that the warps which scale hold at once.
_PART = tl.constexpr(32)


@triton.jit
def attention_blackwell(
    q_desc, k_desc, v_desc, o_desc, sums, scale, HEADS, LENGTH_Q, LENGTH_K, shift,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    CAUSAL: tl.constexpr, TAIL: tl.constexpr, TASKS: tl.constexpr,
):  # fmt: skip
    """``O = softmax(scale * Q @ K.T) @ V`` for each head.

    The descriptors: (batch, HEADS, LENGTH_Q, DIM) of q and o, (batch, HEADS // GROUP, LENGTH_K,
    DIM) of k and v, in blocks of 128 and of BLOCK_N rows of a head. DIM: 64 or 128. sums: fp32,
    (batch, HEADS, LENGTH_Q): the logarithm of each row's sum. scale: times log2(e). CAUSAL: row i
    sees columns up to i + shift; shift is not negative, so that each row sees one. BLOCK_N: at
    most 128. STAGES: buffers of K, and of V. TAIL: whether BLOCK_N does not divide LENGTH_K.
    TASKS: False runs the steps of all tasks in one order, as a CPU has to.
    Grid: (cdiv(LENGTH_Q, 256), batch * HEADS). num_warps=4.
    """
    dtype: tl.constexpr = tlx.dtype_of(q_desc)
    tmem: tl.constexpr = tlx.storage_kind.tmem
    q = tlx.local_alloc((ROWS, DIM), dtype, 2)
    k = tlx.local_alloc((BLOCK_N, DIM), dtype, STAGES)
    v = tlx.local_alloc((BLOCK_N, DIM), dtype, STAGES)
    factors = tlx.local_alloc((ROWS,), tl.float32, 2)
    scores = tlx.local_alloc((ROWS, BLOCK_N), tl.float32, 2, tmem)
    weights = tlx.local_alloc((ROWS, BLOCK_N), dtype, 4, tmem, reuse=scores)
    acc = tlx.local_alloc((ROWS, DIM), tl.float32, 2, tmem)
    q_full = tlx.alloc_barriers(2)
    k_full, k_empty = tlx.alloc_barriers(STAGES), tlx.alloc_barriers(STAGES)
    v_full, v_empty = tlx.alloc_barriers(STAGES), tlx.alloc_barriers(STAGES)
    # Of each half: scores are there, weights are; a factor is there, and read; the sum has been
    # scaled, and added to.
    scored, weighted = tlx.alloc_barriers(2), tlx.alloc_barriers(2)
    factored, taken = tlx.alloc_barriers(2), tlx.alloc_barriers(2)
    scaled, added = tlx.alloc_barriers(2), tlx.alloc_barriers(2)

    # The longest rows first, where they differ.
    tile = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    row = tile * 2 * ROWS
    batch, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    sums += tl.program_id(1).to(tl.int64) * LENGTH_Q
    last = tl.minimum(row + 2 * ROWS + shift, LENGTH_K) if CAUSAL else LENGTH_K
    steps = tl.cdiv(last, BLOCK_N)
    tl.assume(steps > 0)
    if TASKS:
        with tlx.async_tasks():
            with tlx.async_task("default"):
                for step in range(1, steps):
                    for half in tl.static_range(2):
                        _scale(acc, factors, factored, taken, scaled, added, half, step, DIM)
                for half in tl.static_range(2):
                    _store(
                        q, acc, factors, factored, added, o_desc, batch, head, half, row, steps, DIM
                    )
            with tlx.async_task(num_warps=4, num_regs=200, replicate=2):
                half = tlx.async_task_replica_id()
                highest = tl.full((ROWS,), float("-inf"), tl.float32)
                total = tl.zeros((ROWS,), tl.float32)
                for step in range(steps):
                    highest, total = _soften(
                        scores, weights, factors, scored, weighted, factored, taken, highest,
                        total, scale, half, step, row, LENGTH_K, shift, BLOCK_N, CAUSAL, TAIL,
                    )  # fmt: skip
                _hand_over(
                    factors, factored, taken, highest, total, sums, half, row, LENGTH_Q, steps
                )
            with tlx.async_task(num_warps=1, num_regs=24):
                for half in tl.static_range(2):
                    _score(q, k, scores, q_full, k_full, k_empty, scored, half, 0, STAGES)
                for step in range(1, steps):
                    for half in tl.static_range(2):
                        _add(
                            weights, v, acc, v_full, v_empty, weighted, scaled, added, half,
                            step - 1, STAGES,
                        )  # fmt: skip
                        _score(q, k, scores, q_full, k_full, k_empty, scored, half, step, STAGES)
                for half in tl.static_range(2):
                    _add(
                        weights, v, acc, v_full, v_empty, weighted, scaled, added, half,
                        steps - 1, STAGES,
                    )  # fmt: skip
            with tlx.async_task(num_warps=1, num_regs=24):
                for step in range(steps):
                    _copy(
                        q_desc, k_desc, v_desc, q, k, v, q_full, k_full, k_empty, v_full, v_empty,
                        batch, head, row, step, GROUP, STAGES, BLOCK_N, DIM,
                    )  # fmt: skip
    else:
        highest0 = tl.full((ROWS,), float("-inf"), tl.float32)
        highest1 = highest0
        total0, total1 = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
        for step in range(steps):
            _copy(
                q_desc, k_desc, v_desc, q, k, v, q_full, k_full, k_empty, v_full, v_empty, batch,
                head, row, step, GROUP, STAGES, BLOCK_N, DIM,
            )  # fmt: skip
            for half in tl.static_range(2):
                _score(q, k, scores, q_full, k_full, k_empty, scored, half, step, STAGES)
            highest0, total0 = _soften(
                scores, weights, factors, scored, weighted, factored, taken, highest0, total0,
                scale, 0, step, row, LENGTH_K, shift, BLOCK_N, CAUSAL, TAIL,
            )  # fmt: skip
            highest1, total1 = _soften(
                scores, weights, factors, scored, weighted, factored, taken, highest1, total1,
                scale, 1, step, row, LENGTH_K, shift, BLOCK_N, CAUSAL, TAIL,
            )  # fmt: skip
            for half in tl.static_range(2):
                if step > 0:
                    _scale(acc, factors, factored, taken, scaled, added, half, step, DIM)
                _add(weights, v, acc, v_full, v_empty, weighted, scaled, added, half, step, STAGES)
        _hand_over(factors, factored, taken, highest0, total0, sums, 0, row, LENGTH_Q, steps)
        _hand_over(factors, factored, taken, highest1, total1, sums, 1, row, LENGTH_Q, steps)
        for half in tl.static_range(2):
            _store(q, acc, factors, factored, added, o_desc, batch, head, half, row, steps, DIM)


@triton.jit
def _copy(
    q_desc, k_desc, v_desc, q, k, v, q_full, k_full, k_empty, v_full, v_empty, batch, head, row,
    step, GROUP: tl.constexpr, STAGES: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Keys and values of a step; before the first one's, the queries."""
    SIZE: tl.constexpr = DIM * tlx.size_of(tlx.dtype_of(q_desc))
    if step == 0:
        for half in tl.static_range(2):
            tlx.barrier_expect_bytes(q_full[half], ROWS * SIZE)
            at = row + half * ROWS
            tlx.async_descriptor_load(q_desc, q[half], [batch, head, at, 0], q_full[half])
    stage = step % STAGES
    phase = (step // STAGES) & 1
    at = step * BLOCK_N
    tlx.barrier_wait(k_empty[stage], phase ^ 1)
    tlx.barrier_expect_bytes(k_full[stage], BLOCK_N * SIZE)
    tlx.async_descriptor_load(k_desc, k[stage], [batch, head // GROUP, at, 0], k_full[stage])
    tlx.barrier_wait(v_empty[stage], phase ^ 1)
    tlx.barrier_expect_bytes(v_full[stage], BLOCK_N * SIZE)
    tlx.async_descriptor_load(v_desc, v[stage], [batch, head // GROUP, at, 0], v_full[stage])


@triton.jit
def _score(q, k, scores, q_full, k_full, k_empty, scored, half, step, STAGES: tl.constexpr):
    """``Q @ K.T`` of a half. What the half's weights are read for comes before it in the unit."""
    stage = step % STAGES
    if step == 0:
        tlx.barrier_wait(q_full[half], 0)
    tlx.barrier_wait(k_full[stage], (step // STAGES) & 1)
    keys = tlx.local_trans(k[stage])
    if half == 0:
        tlx.async_dot(q[half], keys, scores[half], use_acc=False, mBarriers=[scored[half]])
    else:
        tlx.async_dot(
            q[half], keys, scores[half], use_acc=False, mBarriers=[scored[half], k_empty[stage]]
        )


@triton.jit
def _add(
    weights, v, acc, v_full, v_empty, weighted, scaled, added, half, step, STAGES: tl.constexpr
):
    """``O += P @ V`` of a half, once its sum has been scaled."""
    stage = step % STAGES
    tlx.barrier_wait(v_full[stage], (step // STAGES) & 1)
    tlx.barrier_wait(weighted[half], step & 1)
    tlx.barrier_wait(scaled[half], (step & 1) ^ 1, step > 0)
    if half == 0:
        tlx.async_dot(
            weights[2 * half], v[stage], acc[half], use_acc=step > 0, mBarriers=[added[half]]
        )
    else:
        tlx.async_dot(
            weights[2 * half], v[stage], acc[half], use_acc=step > 0,
            mBarriers=[added[half], v_empty[stage]],
        )  # fmt: skip


@triton.jit
def _soften(
    scores, weights, factors, scored, weighted, factored, taken, highest, total, scale, half, step,
    row, LENGTH_K, shift, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """A half's scores to weights; from the second step on with a factor for what was summed."""
    tlx.barrier_wait(scored[half], step & 1)
    x = tlx.local_load(scores[half])
    columns = step * BLOCK_N + tl.arange(0, BLOCK_N)
    if CAUSAL:
        first = row + half * ROWS + shift
        if (step + 1) * BLOCK_N > first:
            last = first + tl.arange(0, ROWS)
            x = tl.where(columns[None, :] <= last[:, None], x, float("-inf"))
    if TAIL:
        if (step + 1) * BLOCK_N > LENGTH_K:
            x = tl.where((columns < LENGTH_K)[None, :], x, float("-inf"))
    higher = tl.maximum(highest, tl.max(x, 1) * scale)
    shrink = tl.math.exp2(highest - higher)
    if step > 0:
        _give(factors, factored, taken, shrink, half, step)
    x = tl.math.exp2(x * scale - higher[:, None])
    tlx.local_store(weights[2 * half], x.to(tlx.dtype_of(weights)))
    tlx.barrier_arrive(weighted[half])
    return higher, total * shrink + tl.sum(x, 1)


@triton.jit
def _give(factors, factored, taken, factor, half, number):
    """The ``number``-th factor of a half, from 1 on."""
    tlx.barrier_wait(taken[half], number & 1)
    tlx.local_store(factors[half], factor)
    tlx.barrier_arrive(factored[half])


@triton.jit
def _hand_over(factors, factored, taken, highest, total, sums, half, row, LENGTH_Q, steps):
    """The last factor makes an average of the sum."""
    rows = row + half * ROWS + tl.arange(0, ROWS)
    logarithms = (highest + tl.math.log2(total)) * LN2
    tl.store(sums + rows, logarithms, mask=rows < LENGTH_Q)
    _give(factors, factored, taken, 1 / total, half, steps)


@triton.jit
def _scale(acc, factors, factored, taken, scaled, added, half, step, DIM: tl.constexpr):
    """A half's sum times its factor, between the products of two steps."""
    tlx.barrier_wait(factored[half], (step & 1) ^ 1)
    factor = tlx.local_load(factors[half])
    tlx.barrier_arrive(taken[half])
    tlx.barrier_wait(added[half], (step & 1) ^ 1)
    for part in tl.static_range(DIM // _PART):
        columns = tlx.subslice(acc[half], part * _PART, _PART)
        tlx.local_store(columns, tlx.local_load(columns) * factor[:, None])
    tlx.barrier_arrive(scaled[half])


@triton.jit
def _store(
    q, acc, factors, factored, added, o_desc, batch, head, half, row, steps, DIM: tl.constexpr
):
    """A half's average; the queries' buffer is free."""
    tlx.barrier_wait(factored[half], (steps & 1) ^ 1)
    factor = tlx.local_load(factors[half])
    tlx.barrier_wait(added[half], (steps & 1) ^ 1)
    for part in tl.static_range(DIM // 64):
        x = tlx.local_load(tlx.subslice(acc[half], part * 64, 64)) * factor[:, None]
        tlx.local_store(tlx.subslice(q[half], part * 64, 64), x.to(tlx.dtype_of(o_desc)))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(o_desc, q[half], [batch, head, row + half * ROWS, 0])
    tlx.async_descriptor_store_wait(0)
