"""Attention, backward, for Hopper: a producer and two consumers, each with its own warps.

A program has a block of 128 keys, 64 for each consumer, and goes through the queries that see
any of them. It works with scores turned round, (keys, queries), so that the weights and the
gradients of the scores are operands of the sums over queries right from the registers. The
gradients of the queries are sums over keys, of both consumers' and of all programs': the
consumers hand each other theirs in shared memory, and the copy engine adds to global memory,
in fp32 (as FlashAttention-3 does, arXiv 2407.08608).
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.attention_plain import EXTENTS, LOG2E
from remora.kernels.attention_specialized import _END, _copy, _extents
from remora.kernels.warp_group import release

#: Keys of a consumer: rows of a wgmma.
KEYS = tl.constexpr(64)

# The hardware's named barrier at which both consumers meet; Triton's own begin at 0.
_MEETING = tl.constexpr(8)
# Those that say that a consumer's changes are there: of each two, for every other step.
_THERE = tl.constexpr(9)


@triton.jit(do_not_specialize=["HEADS", "LENGTH_Q", "TOTAL_Q", "PADDED_Q"])
def negatives_of(
    o, do, sums, lows, deltas, begins_q,
    stride_ob, stride_oh, stride_on, stride_od, stride_db, stride_dh, stride_dn, stride_dd,
    HEADS, LENGTH_Q, TOTAL_Q, PADDED_Q,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """What the backward kernel adds to each row of queries.

    lows, to the scores: minus the logarithm to base 2 of the row's sum; -inf for rows that see
    no key or are past the end, whose weights become zero. deltas, to the gradients of the weights:
    minus the sum of ``O * dO``. Both fp32, (batch, HEADS, PADDED_Q), where a sequence takes
    multiples of 128 rows; with PACKED (HEADS, PADDED_Q), see ``first_row``. Grid: (blocks of
    rows, HEADS, batch).
    """
    batch, head = tl.program_id(2), tl.program_id(1)
    length, begin = LENGTH_Q, 0
    at_o = batch.to(tl.int64) * stride_ob + head.to(tl.int64) * stride_oh
    at_do = batch.to(tl.int64) * stride_db + head.to(tl.int64) * stride_dh
    at_sums = (batch * HEADS + head).to(tl.int64) * LENGTH_Q
    if PACKED:
        begin = tl.load(begins_q + batch)
        length = tl.load(begins_q + batch + 1) - begin
        at_o = head.to(tl.int64) * stride_oh + begin.to(tl.int64) * stride_on
        at_do = head.to(tl.int64) * stride_dh + begin.to(tl.int64) * stride_dn
        at_sums = head.to(tl.int64) * TOTAL_Q + begin
    first = tl.program_id(0) * BLOCK_M
    if first < tl.cdiv(length, 128) * 128:
        rows = first + tl.arange(0, BLOCK_M)
        columns = tl.arange(0, triton.next_power_of_2(DIM))
        there = (rows < length)[:, None] & (columns < DIM)[None, :]
        far = rows.to(tl.int64)[:, None]
        results = tl.load(
            o + at_o + far * stride_on + columns[None, :] * stride_od, mask=there, other=0.0
        )
        gradients = tl.load(
            do + at_do + far * stride_dn + columns[None, :] * stride_dd, mask=there, other=0.0
        )
        logarithms = tl.load(sums + at_sums + rows, mask=rows < length, other=float("-inf"))
        lows_ = tl.where(logarithms == float("-inf"), float("-inf"), -logarithms * LOG2E)
        at = first_row(batch, head, HEADS, begin, PADDED_Q, PACKED) + rows
        tl.store(lows + at, lows_)
        tl.store(deltas + at, -tl.sum(results.to(tl.float32) * gradients.to(tl.float32), 1))


@triton.jit
def first_row(batch, head, HEADS, begin, PADDED_Q, PACKED: tl.constexpr):
    """Where a head's rows begin in ``lows`` and ``deltas``: at a multiple of 128."""
    if PACKED:
        at = head.to(tl.int64) * PADDED_Q + (begin + batch * 128) // 128 * 128
    else:
        at = (batch * HEADS + head).to(tl.int64) * PADDED_Q
    return at


@triton.jit(do_not_specialize=[*EXTENTS, "PADDED_Q"])
def attention_backward(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, lows, deltas,
    begins_q, begins_k, scale, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right, PADDED_Q,
    GROUP: tl.constexpr, DIM: tl.constexpr, REST: tl.constexpr, BLOCK_M: tl.constexpr,
    STAGES: tl.constexpr, REGISTERS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values.

    Descriptors as those of ``attention_forward``, all of DIM columns, a power of two (what a
    tensor lacks of it reads as zeros and is not written), of boxes of BLOCK_M rows (q, do) and 64
    rows (k, v, dk, dv); dq_desc: of fp32, zeros when it starts, that get the gradient of the
    queries over scale, in boxes of 64 rows and DIM or (BLOCK_M 64) DIM // 2 columns. REST: where
    DIM is 128, how many of the second 64 columns the tensors have, 16 or 32; 0: all. lows, deltas:
    of ``negatives_of``. scale: as the user gave it. Grid: (blocks of 128 keys, HEADS // GROUP,
    batch).
    """
    dtype: tl.constexpr = tlx.dtype_of(q_desc)
    ks = tlx.local_alloc((KEYS, DIM), dtype, 2)
    k_full = tlx.alloc_barriers(1, 1)
    qs = tlx.local_alloc((BLOCK_M, DIM), dtype, STAGES)
    dos = tlx.local_alloc((BLOCK_M, DIM), dtype, STAGES)
    q_full, q_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    do_full, do_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    low_buffers = tlx.local_alloc((BLOCK_M,), tl.float32, STAGES)
    delta_buffers = tlx.local_alloc((BLOCK_M,), tl.float32, STAGES)
    vs = tlx.local_alloc((KEYS, DIM), dtype, 2)
    dss = tlx.local_alloc((KEYS, BLOCK_M), dtype, 4)
    dqs = tlx.local_alloc((64, DIM * BLOCK_M // 128), tl.float32, 2)

    batch, kv_head = tl.program_id(2), tl.program_id(1)
    length_q, length_k, end_q, end_k = _extents(
        begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED
    )
    shift = length_k - length_q if LOWER else 0
    column = tl.program_id(0) * (2 * KEYS)
    first, blocks = queries_of(
        column, length_q, length_k, shift, left, right, 2 * KEYS, BLOCK_M, LEFT, RIGHT
    )
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _gather(
                ks, vs, qs, dos, low_buffers, delta_buffers, dss, dqs,
                k_full, q_full, q_empty, do_full, do_empty, dq_desc, dk_desc, dv_desc,
                batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
                left, right, scale, 0,
                GROUP, DIM, REST, BLOCK_M, STAGES, LEFT, RIGHT, TAIL, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=REGISTERS):
            _gather(
                ks, vs, qs, dos, low_buffers, delta_buffers, dss, dqs,
                k_full, q_full, q_empty, do_full, do_empty, dq_desc, dk_desc, dv_desc,
                batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
                left, right, scale, 1,
                GROUP, DIM, REST, BLOCK_M, STAGES, LEFT, RIGHT, TAIL, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            if blocks > 0:
                BYTES: tl.constexpr = DIM * tlx.size_of(tlx.dtype_of(q_desc))
                tlx.barrier_expect_bytes(k_full[0], 4 * KEYS * BYTES)
                for part in tl.static_range(2):
                    _copy(
                        k_desc, None, ks[part], None, batch, kv_head, column + part * KEYS,
                        length_k, end_k, k_full[0], DIM, 0, PACKED,
                    )  # fmt: skip
                    _copy(
                        v_desc, None, vs[part], None, batch, kv_head, column + part * KEYS,
                        length_k, end_k, k_full[0], DIM, 0, PACKED,
                    )  # fmt: skip
                for step in range(blocks * GROUP):
                    stage, phase = step % STAGES, ((step // STAGES) & 1) ^ 1
                    # Not ``place_of``: without the division here ptxas 12.9 had no uniform
                    # registers for the consumers' descriptors (440 instructions a step, 634).
                    head = kv_head * GROUP + step // blocks
                    row = first + step % blocks * BLOCK_M
                    rows = first_row(batch, head, HEADS, end_q - length_q, PADDED_Q, PACKED) + row
                    tlx.barrier_wait(q_empty[stage], phase)
                    tlx.barrier_expect_bytes(q_full[stage], BLOCK_M * (BYTES + 4))
                    tlx.async_load(
                        lows + rows, low_buffers[stage], bulk=True, barrier=q_full[stage]
                    )
                    _copy(
                        q_desc, None, qs[stage], None, batch, head, row, length_q, end_q,
                        q_full[stage], DIM, 0, PACKED,
                    )  # fmt: skip
                    tlx.barrier_wait(do_empty[stage], phase)
                    tlx.barrier_expect_bytes(do_full[stage], BLOCK_M * (BYTES + 4))
                    tlx.async_load(
                        deltas + rows, delta_buffers[stage], bulk=True, barrier=do_full[stage]
                    )
                    _copy(
                        do_desc, None, dos[stage], None, batch, head, row, length_q, end_q,
                        do_full[stage], DIM, 0, PACKED,
                    )  # fmt: skip


@triton.jit
def _hidden(
    scores, row, column, length_k, shift, left, right,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Scores (keys from ``column``, queries from ``row``) with -inf where none is to be."""
    KEYS_: tl.constexpr = scores.shape[0]
    QUERIES: tl.constexpr = scores.shape[1]
    if LEFT or RIGHT or TAIL:
        hidden = False
        if TAIL:
            hidden = hidden | (column + KEYS_ > length_k)
        if RIGHT:
            hidden = hidden | (column + KEYS_ - 1 > row + shift + right)
        if LEFT:
            hidden = hidden | (column < row + QUERIES - 1 + shift - left)
        if hidden:
            keys = column + tl.arange(0, KEYS_)
            queries = row + shift + tl.arange(0, QUERIES)
            if TAIL:
                scores = tl.where((keys < length_k)[:, None], scores, float("-inf"))
            if RIGHT:
                scores = tl.where(
                    (keys - right)[:, None] <= queries[None, :], scores, float("-inf")
                )
            if LEFT:
                scores = tl.where((keys + left)[:, None] >= queries[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _columns(a, b, DIM: tl.constexpr, REST: tl.constexpr):
    """Start ``a @ b.T`` of the columns that are no padding: DIM, or with REST 64 + REST."""
    if REST == 0:
        product = tlx.async_dot(a, tlx.local_trans(b))
    else:
        ROWS_A: tl.constexpr = a.shape[0]
        ROWS_B: tl.constexpr = b.shape[0]
        product = tlx.async_dot(
            tlx.local_slice(a, [0, 0], [ROWS_A, 64]),
            tlx.local_trans(tlx.local_slice(b, [0, 0], [ROWS_B, 64])),
        )
        product = tlx.async_dot(
            tlx.local_slice(a, [0, 64], [ROWS_A, REST]),
            tlx.local_trans(tlx.local_slice(b, [0, 64], [ROWS_B, REST])),
            product,
        )
    return product


@triton.jit
def _queries(
    dss, ks, half, ME: tl.constexpr, DIM: tl.constexpr, REST: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Start the consumer's part of the gradient of the queries: of 64 rows, or of its columns."""
    BY_ROWS: tl.constexpr = BLOCK_M == 128
    HALF: tl.constexpr = DIM * BLOCK_M // 128
    TO: tl.constexpr = 0 if BY_ROWS else ME * HALF
    WIDTH: tl.constexpr = REST if ME == 1 and REST > 0 else HALF
    dq = tl.zeros((64, WIDTH), tl.float32)
    for part in tl.static_range(2):
        k = tlx.local_slice(ks[part], [0, TO], [KEYS, WIDTH])
        ds = dss[half + part]
        if BY_ROWS:
            ds = tlx.local_slice(ds, [0, ME * 64], [KEYS, 64])
        dq = tlx.async_dot(tlx.local_trans(ds), k, dq)
    return dq


@triton.jit
def _add(
    dq, buffer, desc, batch, head, row, there, length, end,
    ME: tl.constexpr, BLOCK_M: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Add the consumer's part of the gradient of the queries, if it is there."""
    WIDTH: tl.constexpr = dq.shape[1]
    HALF: tl.constexpr = buffer.shape[1]
    tlx.async_descriptor_store_wait(0)  # the store before has read the buffer
    to = buffer
    if WIDTH < HALF:
        to = tlx.local_slice(buffer, [0, 0], [64, WIDTH])
    tlx.local_store(to, dq)
    tlx.fence_async_shared()
    if there:
        if BLOCK_M == 128:
            store_rows(desc, buffer, batch, head, row + ME * 64, 0, length, end, PACKED, "add")
        else:
            store_rows(desc, buffer, batch, head, row, ME * HALF, length, end, PACKED, "add")


@triton.jit
def _gather(
    ks, vs, qs, dos, low_buffers, delta_buffers, dss, dqs,
    k_full, q_full, q_empty, do_full, do_empty, dq_desc, dk_desc, dv_desc,
    batch, kv_head, column, first, blocks, length_q, length_k, end_q, end_k, shift,
    left, right, scale,
    ME: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, STAGES: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """64 keys: their gradients, and half of those of the queries, of both consumers' keys.

    The gradients of the queries are worked out one step late, beside the next step's weights:
    by then the other consumer has handed over its changes.
    """
    dtype: tl.constexpr = tlx.dtype_of(dk_desc)
    THEM: tl.constexpr = 1 - ME
    factor = scale * LOG2E
    dk = tl.zeros((KEYS, DIM), tl.float32)
    dv = tl.zeros((KEYS, DIM), tl.float32)
    steps = blocks * GROUP
    if steps > 0:
        # Before the first step come changes of zero, of which nothing is added.
        tlx.local_store(dss[2 + ME], tl.zeros((KEYS, BLOCK_M), dtype))
        tlx.fence_async_shared()
        tlx.named_barrier_arrive(_THERE + 2 * ME + 1, 256)
        tlx.barrier_wait(k_full[0], 0)
        tl.assume(steps > 0)
        head_before, row_before = kv_head * GROUP, first
        for step in range(steps):
            stage, phase = step % STAGES, (step // STAGES) & 1
            head, row = place_of(step, blocks, kv_head, first, GROUP, BLOCK_M)
            odd = step % 2
            tlx.barrier_wait(q_full[stage], phase)
            scores = _columns(ks[ME], qs[stage], DIM, REST)
            tlx.named_barrier_wait(_THERE + 2 * THEM + 1 - odd, 256)
            dq = _queries(dss, ks, 2 - 2 * odd, ME, DIM, REST, BLOCK_M)
            lows = tlx.local_load(low_buffers[stage])
            scores = tlx.async_dot_wait(2, scores)
            scores = _hidden(
                scores, row, column + ME * KEYS, length_k, shift, left, right, LEFT, RIGHT, TAIL
            )
            weights = tl.math.exp2(scores * factor + lows[None, :])
            weights16 = weights.to(dtype)
            # Before the wait for the products: ptxas leaves what is before a wait's loop there,
            # and would else work out the weights after the products, not beside them.
            tlx.barrier_wait(do_full[stage], phase)
            dq = tlx.async_dot_wait(0, dq)
            _add(
                dq, dqs[ME], dq_desc, batch, head_before, row_before, step > 0, length_q, end_q,
                ME, BLOCK_M, PACKED,
            )  # fmt: skip
            changes = _columns(vs[ME], dos[stage], DIM, REST)
            dv = tlx.async_dot(weights16, dos[stage], dv)
            deltas = tlx.local_load(delta_buffers[stage])
            changes = tlx.async_dot_wait(1, changes)
            if REST == 0:
                weights = weights16.to(tl.float32)  # registers for both would be too many
            changes16 = (weights * (changes + deltas[None, :])).to(dtype)
            dk = tlx.async_dot(changes16, qs[stage], dk)
            # Two buffers of each consumer: the other one may still read those of the step before.
            tlx.local_store(dss[2 * odd + ME], changes16)
            tlx.fence_async_shared()
            tlx.named_barrier_arrive(_THERE + 2 * ME + odd, 256)
            dv = tlx.async_dot_wait(1, dv)
            release(do_empty[stage])
            dk = tlx.async_dot_wait(0, dk)
            release(q_empty[stage])
            head_before, row_before = head, row

        odd = steps % 2
        tlx.named_barrier_wait(_THERE + 2 * THEM + 1 - odd, 256)
        dq = _queries(dss, ks, 2 - 2 * odd, ME, DIM, REST, BLOCK_M)
        dq = tlx.async_dot_wait(0, dq)
        _add(
            dq, dqs[ME], dq_desc, batch, head_before, row_before, True, length_q, end_q,
            ME, BLOCK_M, PACKED,
        )  # fmt: skip

    # The other consumer has read these keys for the last time.
    tlx.named_barrier_wait(_MEETING, 256)
    at = column + ME * KEYS
    tlx.local_store(ks[ME], (dk * scale).to(dtype))
    tlx.local_store(vs[ME], dv.to(dtype))
    tlx.fence_async_shared()
    _put(dk_desc, ks[ME], batch, kv_head, at, 0, length_k, end_k, PACKED)
    _put(dv_desc, vs[ME], batch, kv_head, at, 0, length_k, end_k, PACKED)
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _put(desc, buffer, batch, head, row, column, length, end, PACKED: tl.constexpr):
    """Rows of one head from a buffer, where the sequence has any; see ``store_rows``."""
    if PACKED:
        if row < length:
            store_rows(desc, buffer, batch, head, row, column, length, end, True)
    else:
        store_rows(desc, buffer, batch, head, row, column, length, end, False)


@triton.jit
def queries_of(
    column, length_q, length_k, shift, left, right, COUNT: tl.constexpr, BLOCK_M: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """The first query that sees any of COUNT keys from a column on, and how many blocks do."""
    first, last = 0, length_q
    if RIGHT:
        first = tl.maximum(column - shift - right, 0) // BLOCK_M * BLOCK_M
    if LEFT:
        last = tl.minimum(last, tl.minimum(column + COUNT, length_k) - shift + left)
    blocks = tl.maximum(tl.cdiv(last - first, BLOCK_M), 0)
    return first, tl.where(column < length_k, blocks, 0)


@triton.jit
def place_of(step, blocks, kv_head, first, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """A step's head and first query: blocks of one head after the other of the key head's."""
    if GROUP == 1:  # else a division
        head, block = kv_head, step
    else:
        head, block = kv_head * GROUP + step // blocks, step % blocks
    return head, first + block * BLOCK_M


@triton.jit
def store_rows(
    desc, buffer, batch, head, row, column, length, end, PACKED: tl.constexpr,
    REDUCE: tl.constexpr = "",
):  # fmt: skip
    """Rows of one head from a buffer; those past the sequence's end are dropped."""
    if PACKED:
        at = _END - length + row
        tlx.async_descriptor_store(desc, buffer, [_END, end, head, at, column], store_reduce=REDUCE)
    else:
        tlx.async_descriptor_store(desc, buffer, [batch, head, row, column], store_reduce=REDUCE)
