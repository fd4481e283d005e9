"""Attention, backward, for Hopper and head dimensions of more than 128, in two kernels.

One has 64 keys a program, whose gradients are the most that two consumers' registers hold: each
has half of the columns (128 of 256, 128 or 64 of 192) of the gradients of keys and values. The
scores and what is a product of their size exist once, and the consumers divide the work on them:
the first makes the weights, the second the changes of the scores; both are handed over in shared
memory. The other has 128 queries, 64 for each consumer, and works the scores and their changes out
again: two products of seven, for which no block of keys adds to global memory (docs/attention.md).
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.attention_backward import KEYS, _hidden, _put, first_row, place_of, queries_of
from remora.kernels.attention_plain import EXTENTS, LOG2E
from remora.kernels.attention_specialized import (
    ROWS,
    _blocks,
    _copy,
    _extents,
    _masked,
    _scores,
)
from remora.kernels.warp_group import release
from remora.pipeline import attach

#: Queries of a step.
QUERIES = tl.constexpr(64)

# The hardware's named barriers: the weights are there, the changes are there, and the weights
# have been read; Triton's own begin at 0.
_WEIGHTS, _CHANGES, _READ = tl.constexpr(8), tl.constexpr(9), tl.constexpr(10)


@attach(tlx.products_in_flight, tlx.short_descriptors)
@triton.jit(do_not_specialize=[*EXTENTS, "PADDED_Q"])
def attention_backward_keys_wide(
    q0_desc, q1_desc, k0_desc, k1_desc, v0_desc, v1_desc, do0_desc, do1_desc,
    dk0_desc, dk1_desc, dv0_desc, dv1_desc, lows, deltas,
    begins_q, begins_k, scale, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right, PADDED_Q,
    GROUP: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr, STAGES: tl.constexpr,
    REGISTERS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values.

    Descriptors of boxes of 64 rows and DIM0 or DIM1 columns, the two parts of the head dimension.
    Grid: (blocks of 64 keys, HEADS // GROUP, batch). The rest as of ``attention_backward``.
    """
    dtype: tl.constexpr = tlx.dtype_of(q0_desc)
    k0, k1 = tlx.local_alloc((KEYS, DIM0), dtype, 1), tlx.local_alloc((KEYS, DIM1), dtype, 1)
    v0, v1 = tlx.local_alloc((KEYS, DIM0), dtype, 1), tlx.local_alloc((KEYS, DIM1), dtype, 1)
    q0 = tlx.local_alloc((QUERIES, DIM0), dtype, STAGES)
    q1 = tlx.local_alloc((QUERIES, DIM1), dtype, STAGES)
    do0 = tlx.local_alloc((QUERIES, DIM0), dtype, STAGES)
    do1 = tlx.local_alloc((QUERIES, DIM1), dtype, STAGES)
    low_buffers = tlx.local_alloc((QUERIES,), tl.float32, STAGES)
    delta_buffers = tlx.local_alloc((QUERIES,), tl.float32, STAGES)
    # Weights and changes of the scores: (keys, queries).
    ps = tlx.local_alloc((KEYS, QUERIES), dtype, 1)
    dss = tlx.local_alloc((KEYS, QUERIES), dtype, 1)
    k_full = tlx.alloc_barriers(1, 1)
    q_full, q_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    do_full, do_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)

    batch, kv_head = tl.program_id(2), tl.program_id(1)
    length_q, length_k, end_q, end_k = _extents(
        begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED
    )
    shift = length_k - length_q if LOWER else 0
    column = tl.program_id(0) * KEYS
    first, blocks = queries_of(
        column, length_q, length_k, shift, left, right, KEYS, QUERIES, LEFT, RIGHT
    )
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _gather(
                q0, q1, k0, k1, v0, v1, do0, do1, low_buffers, delta_buffers, ps, dss,
                k_full, q_full, q_empty, do_full, do_empty, dk0_desc, dv0_desc,
                batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
                left, right, scale, 0,
                GROUP, DIM0, DIM1, STAGES, LEFT, RIGHT, TAIL, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=REGISTERS):
            _gather(
                q0, q1, k0, k1, v0, v1, do0, do1, low_buffers, delta_buffers, ps, dss,
                k_full, q_full, q_empty, do_full, do_empty, dk1_desc, dv1_desc,
                batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
                left, right, scale, 1,
                GROUP, DIM0, DIM1, STAGES, LEFT, RIGHT, TAIL, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            if blocks > 0:
                ROW: tl.constexpr = (DIM0 + DIM1) * tlx.size_of(dtype)
                tlx.barrier_expect_bytes(k_full[0], 2 * KEYS * ROW)
                _copy(
                    k0_desc, k1_desc, k0[0], k1[0], batch, kv_head, column,
                    length_k, end_k, k_full[0], DIM0, DIM1, PACKED,
                )  # fmt: skip
                _copy(
                    v0_desc, v1_desc, v0[0], v1[0], batch, kv_head, column,
                    length_k, end_k, k_full[0], DIM0, DIM1, PACKED,
                )  # fmt: skip
                for step in range(blocks * GROUP):
                    head, row = place_of(step, blocks, kv_head, first, GROUP, QUERIES)
                    rows = first_row(batch, head, HEADS, end_q - length_q, PADDED_Q, PACKED) + row
                    stage, phase = step % STAGES, ((step // STAGES) & 1) ^ 1
                    tlx.barrier_wait(q_empty[stage], phase)
                    tlx.barrier_expect_bytes(q_full[stage], QUERIES * (ROW + 4))
                    tlx.async_load(
                        lows + rows, low_buffers[stage], bulk=True, barrier=q_full[stage]
                    )
                    _copy(
                        q0_desc, q1_desc, q0[stage], q1[stage], batch, head, row,
                        length_q, end_q, q_full[stage], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                    tlx.barrier_wait(do_empty[stage], phase)
                    tlx.barrier_expect_bytes(do_full[stage], QUERIES * (ROW + 4))
                    tlx.async_load(
                        deltas + rows, delta_buffers[stage], bulk=True, barrier=do_full[stage]
                    )
                    _copy(
                        do0_desc, do1_desc, do0[stage], do1[stage], batch, head, row,
                        length_q, end_q, do_full[stage], DIM0, DIM1, PACKED,
                    )  # fmt: skip


@triton.jit
def _gather(
    q0, q1, k0, k1, v0, v1, do0, do1, low_buffers, delta_buffers, ps, dss,
    k_full, q_full, q_empty, do_full, do_empty, dk_desc, dv_desc,
    batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
    left, right, scale,
    ME: tl.constexpr, GROUP: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr,
    STAGES: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The gradients' columns of one part; the weights (0) or the changes of the scores (1)."""
    dtype: tl.constexpr = tlx.dtype_of(dk_desc)
    WIDTH: tl.constexpr = DIM0 if ME == 0 else DIM1
    TO: tl.constexpr = 0 if ME == 0 else DIM0
    q, k, v, do = q0, k0, v0, do0
    if ME == 1:
        q, k, v, do = q1, k1, v1, do1
    factor = scale * LOG2E
    dk = tl.zeros((KEYS, WIDTH), tl.float32)
    dv = tl.zeros((KEYS, WIDTH), tl.float32)
    steps = blocks * GROUP
    if steps > 0:
        tlx.barrier_wait(k_full[0], 0)
        tl.assume(steps > 0)
        if ME == 1:
            tlx.named_barrier_arrive(_READ, 256)  # there are none before the first
        for step in range(steps):
            stage, phase = step % STAGES, (step // STAGES) & 1
            _, row = place_of(step, blocks, kv_head, first, GROUP, QUERIES)
            if ME == 0:
                tlx.barrier_wait(q_full[stage], phase)
                scores = _scores(k0[0], k1[0], q0[stage], q1[stage], DIM1)
                low = tlx.local_load(low_buffers[stage])
                scores = tlx.async_dot_wait(0, scores)
                scores = _hidden(
                    scores, row, column, length_k, shift, left, right, LEFT, RIGHT, TAIL
                )
                weights16 = tl.math.exp2(scores * factor + low[None, :]).to(dtype)
                tlx.named_barrier_wait(_READ, 256)
                tlx.local_store(ps[0], weights16)
                tlx.fence_async_shared()
                tlx.named_barrier_wait(_WEIGHTS, 256)
                tlx.barrier_wait(do_full[stage], phase)
                dv = tlx.async_dot(ps[0], do[stage], dv)
            else:
                tlx.barrier_wait(do_full[stage], phase)
                changes = _scores(v0[0], v1[0], do0[stage], do1[stage], DIM1)
                delta = tlx.local_load(delta_buffers[stage])
                changes = tlx.async_dot_wait(0, changes)
                tlx.named_barrier_wait(_WEIGHTS, 256)
                dv = tlx.async_dot(ps[0], do[stage], dv)
                weights = tlx.local_load(ps[0]).to(tl.float32)
                tlx.local_store(dss[0], (weights * (changes + delta[None, :])).to(dtype))
                tlx.fence_async_shared()
                tlx.barrier_wait(q_full[stage], phase)
            tlx.named_barrier_wait(_CHANGES, 256)
            dk = tlx.async_dot(dss[0], q[stage], dk)
            dv = tlx.async_dot_wait(1, dv)
            release(do_empty[stage])
            if ME == 1:
                tlx.named_barrier_arrive(_READ, 256)
            dk = tlx.async_dot_wait(0, dk)
            release(q_empty[stage])

    # The other consumer has read these keys and values for the last time.
    tlx.named_barrier_wait(_WEIGHTS, 256)
    tlx.local_store(k[0], (dk * scale).to(dtype))
    tlx.local_store(v[0], dv.to(dtype))
    tlx.fence_async_shared()
    _put(dk_desc, k[0], batch, kv_head, column, TO, length_k, end_k, PACKED)
    _put(dv_desc, v[0], batch, kv_head, column, TO, length_k, end_k, PACKED)
    tlx.async_descriptor_store_wait(0)


@attach(tlx.products_in_flight, tlx.short_descriptors)
@triton.jit(do_not_specialize=[*EXTENTS, "PADDED_Q"])
def attention_backward_queries_wide(
    q0_desc, q1_desc, k0_desc, k1_desc, v0_desc, v1_desc, do0_desc, do1_desc,
    dq0_desc, dq1_desc, lows, deltas,
    begins_q, begins_k, scale, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right, PADDED_Q,
    GROUP: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr, REGISTERS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Gradients of queries; descriptors of boxes of 64 rows and DIM0 or DIM1 columns.

    Grid: (blocks of 128 queries, HEADS, batch). The rest as of ``attention_backward``.
    """
    dtype: tl.constexpr = tlx.dtype_of(q0_desc)
    q0, q1 = tlx.local_alloc((ROWS, DIM0), dtype, 2), tlx.local_alloc((ROWS, DIM1), dtype, 2)
    do0, do1 = tlx.local_alloc((ROWS, DIM0), dtype, 2), tlx.local_alloc((ROWS, DIM1), dtype, 2)
    # Keys are read by the last product of a step, values by the second: 224 KiB in all for 256.
    k0, k1 = tlx.local_alloc((KEYS, DIM0), dtype, 2), tlx.local_alloc((KEYS, DIM1), dtype, 2)
    v0, v1 = tlx.local_alloc((KEYS, DIM0), dtype, 1), tlx.local_alloc((KEYS, DIM1), dtype, 1)
    q_full = tlx.alloc_barriers(2, 1)
    k_full, k_empty = tlx.alloc_barriers(2, 1), tlx.alloc_barriers(2, 2)
    v_full, v_empty = tlx.alloc_barriers(1, 1), tlx.alloc_barriers(1, 2)
    batch, head = tl.program_id(2), tl.program_id(1)
    length_q, length_k, end_q, end_k = _extents(
        begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED
    )
    shift = length_k - length_q if LOWER else 0
    # The longest rows first, where they differ.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if RIGHT else tl.program_id(0)
    row = block * (2 * ROWS)
    first, steps = _blocks(row, length_q, length_k, left, right, 2 * ROWS, KEYS, LEFT, RIGHT, LOWER)
    steps = tl.where(row < length_q, steps, 0)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _gather_queries(
                q0, q1, k0, k1, v0, v1, do0, do1, q_full, k_full, k_empty, v_full, v_empty,
                dq0_desc, dq1_desc, lows, deltas, batch, head, row, first, steps,
                length_q, length_k, end_q, shift, left, right, scale, HEADS, PADDED_Q, 0,
                DIM0, DIM1, LEFT, RIGHT, TAIL, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=REGISTERS):
            _gather_queries(
                q0, q1, k0, k1, v0, v1, do0, do1, q_full, k_full, k_empty, v_full, v_empty,
                dq0_desc, dq1_desc, lows, deltas, batch, head, row, first, steps,
                length_q, length_k, end_q, shift, left, right, scale, HEADS, PADDED_Q, 1,
                DIM0, DIM1, LEFT, RIGHT, TAIL, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            if steps > 0:
                ROW: tl.constexpr = (DIM0 + DIM1) * tlx.size_of(dtype)
                for part in tl.static_range(2):
                    tlx.barrier_expect_bytes(q_full[part], 2 * ROWS * ROW)
                    _copy(
                        q0_desc, q1_desc, q0[part], q1[part], batch, head, row + part * ROWS,
                        length_q, end_q, q_full[part], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                    _copy(
                        do0_desc, do1_desc, do0[part], do1[part], batch, head, row + part * ROWS,
                        length_q, end_q, q_full[part], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                for step in range(steps):
                    stage = step % 2
                    column = first + step * KEYS
                    tlx.barrier_wait(k_empty[stage], ((step // 2) & 1) ^ 1)
                    tlx.barrier_expect_bytes(k_full[stage], KEYS * ROW)
                    _copy(
                        k0_desc, k1_desc, k0[stage], k1[stage], batch, head // GROUP, column,
                        length_k, end_k, k_full[stage], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                    tlx.barrier_wait(v_empty[0], (step & 1) ^ 1)
                    tlx.barrier_expect_bytes(v_full[0], KEYS * ROW)
                    _copy(
                        v0_desc, v1_desc, v0[0], v1[0], batch, head // GROUP, column,
                        length_k, end_k, v_full[0], DIM0, DIM1, PACKED,
                    )  # fmt: skip


@triton.jit
def _gather_queries(
    q0, q1, k0, k1, v0, v1, do0, do1, q_full, k_full, k_empty, v_full, v_empty,
    dq0_desc, dq1_desc, lows, deltas, batch, head, row, first, steps, length_q, length_k,
    end_q, shift, left, right, scale, HEADS, PADDED_Q,
    ME: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The gradients of 64 queries: of a consumer."""
    dtype: tl.constexpr = tlx.dtype_of(dq0_desc)
    factor = scale * LOG2E
    if steps > 0:
        dq0 = tl.zeros((ROWS, DIM0), tl.float32)
        dq1 = tl.zeros((ROWS, DIM1), tl.float32)
        row += ME * ROWS
        at = first_row(batch, head, HEADS, end_q - length_q, PADDED_Q, PACKED) + row
        low = tl.load(lows + at + tl.arange(0, ROWS))
        delta = tl.load(deltas + at + tl.arange(0, ROWS))
        tlx.barrier_wait(q_full[ME], 0)
        tl.assume(steps > 0)
        for step in range(steps):
            stage = step % 2
            tlx.barrier_wait(k_full[stage], (step // 2) & 1)
            scores = _scores(q0[ME], q1[ME], k0[stage], k1[stage], DIM1)
            tlx.barrier_wait(v_full[0], step & 1)
            changes = _scores(do0[ME], do1[ME], v0[0], v1[0], DIM1)
            scores = tlx.async_dot_wait(2, scores)
            scores = _masked(
                scores, row, first + step * KEYS, length_k, shift, left, right, LEFT, RIGHT, TAIL
            )
            weights = tl.math.exp2(scores * factor + low[:, None])
            changes = tlx.async_dot_wait(0, changes)
            release(v_empty[0])
            changes16 = (weights * (changes + delta[:, None])).to(dtype)
            dq0 = tlx.async_dot(changes16, k0[stage], dq0)
            dq1 = tlx.async_dot(changes16, k1[stage], dq1)
            dq0 = tlx.async_dot_wait(0, dq0)
            dq1 = tlx.async_dot_wait(0, dq1)
            release(k_empty[stage])
        tlx.local_store(q0[ME], (dq0 * scale).to(dtype))
        tlx.local_store(q1[ME], (dq1 * scale).to(dtype))
        tlx.fence_async_shared()
        _put(dq0_desc, q0[ME], batch, head, row, 0, length_q, end_q, PACKED)
        _put(dq1_desc, q1[ME], batch, head, row, DIM0, length_q, end_q, PACKED)
        tlx.async_descriptor_store_wait(0)
