"""Attention, backward, for Hopper and head dimensions of more than 128.

As ``attention_backward``, but a program has 64 keys, whose gradients are the most that two
consumers' registers hold: each has half of the columns (128 of 256, 128 or 64 of 192), of the
gradients of keys, values and queries. The scores and what is a product of their size exist
once, and the consumers divide the work on them: the first makes the weights, the second the
changes of the scores; both are handed over in shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.attention_backward import (
    KEYS,
    _hidden,
    _put,
    first_row,
    place_of,
    queries_of,
    store_rows,
)
from remora.kernels.attention_specialized import _EXTENTS, _copy, _extents, _scores
from remora.kernels.warp_group import release
from remora.pipeline import attach

#: Queries of a step, and columns in which the gradient of the queries is added.
QUERIES = tl.constexpr(64)
COLUMNS = tl.constexpr(64)

# The hardware's named barriers: the weights are there, the changes are there, and the weights
# have been read; Triton's own begin at 0.
_WEIGHTS, _CHANGES, _READ = tl.constexpr(8), tl.constexpr(9), tl.constexpr(10)


@attach(tlx.products_in_flight, tlx.short_descriptors)
@triton.jit(do_not_specialize=[*_EXTENTS[1:], "PADDED_Q"])
def attention_backward_wide(
    q0_desc, q1_desc, k0_desc, k1_desc, v0_desc, v1_desc, do0_desc, do1_desc, dq_desc,
    dk0_desc, dk1_desc, dv0_desc, dv1_desc, lows, deltas,
    begins_q, begins_k, scale, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right, PADDED_Q,
    GROUP: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr, STAGES: tl.constexpr,
    DO_STAGES: tl.constexpr, REGISTERS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values.

    Descriptors of boxes of 64 rows and DIM0 or DIM1 columns, the two parts of the head dimension;
    dq_desc: of fp32, in boxes of 64 rows and 64 columns. Grid: (blocks of 64 keys, HEADS //
    GROUP, batch). STAGES, DO_STAGES: buffers of queries, and of gradients of results. The rest as
    of ``attention_backward``.
    """
    dtype: tl.constexpr = tlx.dtype_of(q0_desc)
    k0, k1 = tlx.local_alloc((KEYS, DIM0), dtype, 1), tlx.local_alloc((KEYS, DIM1), dtype, 1)
    v0, v1 = tlx.local_alloc((KEYS, DIM0), dtype, 1), tlx.local_alloc((KEYS, DIM1), dtype, 1)
    q0 = tlx.local_alloc((QUERIES, DIM0), dtype, STAGES)
    q1 = tlx.local_alloc((QUERIES, DIM1), dtype, STAGES)
    do0 = tlx.local_alloc((QUERIES, DIM0), dtype, DO_STAGES)
    do1 = tlx.local_alloc((QUERIES, DIM1), dtype, DO_STAGES)
    low_buffers = tlx.local_alloc((QUERIES,), tl.float32, STAGES)
    delta_buffers = tlx.local_alloc((QUERIES,), tl.float32, DO_STAGES)
    # Weights and changes of the scores: (keys, queries).
    ps = tlx.local_alloc((KEYS, QUERIES), dtype, 1)
    dss = tlx.local_alloc((KEYS, QUERIES), dtype, 1)
    dqs = tlx.local_alloc((QUERIES, COLUMNS), tl.float32, 2)
    k_full = tlx.alloc_barriers(1, 1)
    q_full, q_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    do_full, do_empty = tlx.alloc_barriers(DO_STAGES, 1), tlx.alloc_barriers(DO_STAGES, 2)

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
                q0, q1, k0, k1, v0, v1, do0, do1, low_buffers, delta_buffers, ps, dss, dqs,
                k_full, q_full, q_empty, do_full, do_empty, dq_desc, dk0_desc, dv0_desc,
                batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
                left, right, scale, 0,
                GROUP, DIM0, DIM1, STAGES, DO_STAGES, LEFT, RIGHT, TAIL, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=REGISTERS):
            _gather(
                q0, q1, k0, k1, v0, v1, do0, do1, low_buffers, delta_buffers, ps, dss, dqs,
                k_full, q_full, q_empty, do_full, do_empty, dq_desc, dk1_desc, dv1_desc,
                batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
                left, right, scale, 1,
                GROUP, DIM0, DIM1, STAGES, DO_STAGES, LEFT, RIGHT, TAIL, PACKED,
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
                    stage = step % STAGES
                    tlx.barrier_wait(q_empty[stage], ((step // STAGES) & 1) ^ 1)
                    tlx.barrier_expect_bytes(q_full[stage], QUERIES * (ROW + 4))
                    tlx.async_load(
                        lows + rows, low_buffers[stage], bulk=True, barrier=q_full[stage]
                    )
                    _copy(
                        q0_desc, q1_desc, q0[stage], q1[stage], batch, head, row,
                        length_q, end_q, q_full[stage], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                    stage = step % DO_STAGES
                    tlx.barrier_wait(do_empty[stage], ((step // DO_STAGES) & 1) ^ 1)
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
    q0, q1, k0, k1, v0, v1, do0, do1, low_buffers, delta_buffers, ps, dss, dqs,
    k_full, q_full, q_empty, do_full, do_empty, dq_desc, dk_desc, dv_desc,
    batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
    left, right, scale,
    ME: tl.constexpr, GROUP: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr,
    STAGES: tl.constexpr, DO_STAGES: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The gradients' columns of one part; the weights (0) or the changes of the scores (1)."""
    dtype: tl.constexpr = tlx.dtype_of(dk_desc)
    WIDTH: tl.constexpr = DIM0 if ME == 0 else DIM1
    TO: tl.constexpr = 0 if ME == 0 else DIM0
    q, k, v, do = q0, k0, v0, do0
    if ME == 1:
        q, k, v, do = q1, k1, v1, do1
    factor = scale * 1.4426950408889634
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
            do_stage, do_phase = step % DO_STAGES, (step // DO_STAGES) & 1
            head, row = place_of(step, blocks, kv_head, first, GROUP, QUERIES)
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
                tlx.barrier_wait(do_full[do_stage], do_phase)
                dv = tlx.async_dot(ps[0], do[do_stage], dv)
            else:
                tlx.barrier_wait(do_full[do_stage], do_phase)
                changes = _scores(v0[0], v1[0], do0[do_stage], do1[do_stage], DIM1)
                delta = tlx.local_load(delta_buffers[do_stage])
                changes = tlx.async_dot_wait(0, changes)
                tlx.named_barrier_wait(_WEIGHTS, 256)
                dv = tlx.async_dot(ps[0], do[do_stage], dv)
                weights = tlx.local_load(ps[0]).to(tl.float32)
                tlx.local_store(dss[0], (weights * (changes + delta[None, :])).to(dtype))
                tlx.fence_async_shared()
                tlx.barrier_wait(q_full[stage], phase)
            tlx.named_barrier_wait(_CHANGES, 256)
            dk = tlx.async_dot(dss[0], q[stage], dk)
            dq = tl.zeros((QUERIES, WIDTH), tl.float32)
            dq = tlx.async_dot(tlx.local_trans(dss[0]), k[0], dq)
            dv = tlx.async_dot_wait(2, dv)
            release(do_empty[do_stage])
            if ME == 1:
                tlx.named_barrier_arrive(_READ, 256)
            dk = tlx.async_dot_wait(1, dk)
            release(q_empty[stage])
            dq = tlx.async_dot_wait(0, dq)
            if WIDTH == COLUMNS:
                _add(dq, dqs[ME], dq_desc, batch, head, row, TO, length_q, end_q, PACKED)
            else:
                halves = tl.permute(tl.reshape(dq, (QUERIES, 2, COLUMNS)), (0, 2, 1))
                one, other = tl.split(halves)
                _add(one, dqs[ME], dq_desc, batch, head, row, TO, length_q, end_q, PACKED)
                _add(
                    other, dqs[ME], dq_desc, batch, head, row, TO + COLUMNS, length_q, end_q, PACKED
                )

    # The other consumer has read these keys and values for the last time.
    tlx.named_barrier_wait(_WEIGHTS, 256)
    tlx.local_store(k[0], (dk * scale).to(dtype))
    tlx.local_store(v[0], dv.to(dtype))
    tlx.fence_async_shared()
    _put(dk_desc, k[0], batch, kv_head, column, TO, length_k, end_k, PACKED)
    _put(dv_desc, v[0], batch, kv_head, column, TO, length_k, end_k, PACKED)
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _add(
    values, buffer, desc, batch, head, row, column, length, end, PACKED: tl.constexpr
):  # fmt: skip
    """Add to rows of one head through a buffer; those past the sequence's end are dropped."""
    tlx.async_descriptor_store_wait(0)  # the store before has read the buffer
    tlx.local_store(buffer, values)
    tlx.fence_async_shared()
    store_rows(desc, buffer, batch, head, row, column, length, end, PACKED, "add")
