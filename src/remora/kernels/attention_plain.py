"""Attention, forward and backward, for any device: pointers and ``tl.dot``, one program a tile.

On CDNA and on the CPU (with the reference meaning) it is what runs; on Hopper the kernels of
``attention_specialized`` do where they can. Forward and backward are those of FlashAttention-2
(arXiv 2307.08691): nothing of the size of the scores is stored, and the backward kernels work
them out again from the logarithms of the rows' sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _sequence(begins, batch, LENGTH, PACKED: tl.constexpr):
    """Where a sequence begins among the packed ones, and its length."""
    begin, length = 0, LENGTH
    if PACKED:
        begin = tl.load(begins + batch)
        length = tl.load(begins + batch + 1) - begin
    return begin, length


@triton.jit
def _matrix(pointer, batch, head, begin, stride_b, stride_h, stride_n, PACKED: tl.constexpr):
    """The first element of a head's rows."""
    at = head.to(tl.int64) * stride_h
    if PACKED:
        at += begin.to(tl.int64) * stride_n
    else:
        at += batch.to(tl.int64) * stride_b
    return pointer + at


@triton.jit
def _rows(matrix, first, length, stride_n, stride_d, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Pointers of rows of a matrix, and which there are."""
    PADDED: tl.constexpr = triton.next_power_of_2(DIM)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, PADDED)
    at = matrix + tl.cast(first, tl.int64) * stride_n
    at = at + rows[:, None] * stride_n + columns[None, :] * stride_d
    there = (first + rows < length)[:, None]
    if PADDED != DIM:
        there = there & (columns < DIM)[None, :]
    return at, there


@triton.jit
def _allowed(
    queries, keys, length_q, length_k, shift, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr
):  # fmt: skip
    """Whether queries (a column) see keys (a row)."""
    seen = (queries < length_q) & (keys < length_k)
    if RIGHT:
        seen = seen & (keys <= queries + shift + right)
    if LEFT:
        seen = seen & (keys >= queries + shift - left)
    return seen


@triton.jit
def _keys_of(
    row, length_q, length_k, shift, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """The range of keys that queries from ``row`` see; it begins at a whole block."""
    begin, end = 0, length_k
    if LEFT:
        begin = tl.maximum(row + shift - left, 0) // BLOCK_N * BLOCK_N
    if RIGHT:
        end = tl.minimum(end, tl.minimum(row + BLOCK_M, length_q) + shift + right)
    return begin, end


# Not worth a kernel each: nothing depends on what divides them.
EXTENTS = ["HEADS", "LENGTH_Q", "LENGTH_K", "TOTAL_Q", "left", "right"]


@triton.jit(do_not_specialize=EXTENTS)
def attention_plain(
    q, k, v, o, sums, begins_q, begins_k, scale,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on, stride_od,
    HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, LOWER: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """``O = softmax(scale * Q @ K.T) @ V`` for each head, over the keys that a query may see.

    q, o: (batch, HEADS, LENGTH_Q, DIM), k, v: (batch, HEADS // GROUP, LENGTH_K, DIM), of any
    strides, multiples of batch left out with PACKED, where the sequences begin at begins_q and
    begins_k. scale: times log2(e), not negative. Grid: (blocks of queries, HEADS, batch). The
    rest is as of ``attention_specialized.attention_forward``.
    """
    batch, head = tl.program_id(2), tl.program_id(1)
    begin_q, length_q = _sequence(begins_q, batch, LENGTH_Q, PACKED)
    begin_k, length_k = _sequence(begins_k, batch, LENGTH_K, PACKED)
    shift = length_k - length_q if LOWER else 0
    # The longest rows first, where they differ.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if RIGHT else tl.program_id(0)
    row = block * BLOCK_M
    if row < length_q:
        kv_head = head // GROUP
        qs = _matrix(q, batch, head, begin_q, stride_qb, stride_qh, stride_qn, PACKED)
        ks = _matrix(k, batch, kv_head, begin_k, stride_kb, stride_kh, stride_kn, PACKED)
        vs = _matrix(v, batch, kv_head, begin_k, stride_vb, stride_vh, stride_vn, PACKED)
        os = _matrix(o, batch, head, begin_q, stride_ob, stride_oh, stride_on, PACKED)
        at, there = _rows(qs, row, length_q, stride_qn, stride_qd, BLOCK_M, DIM)
        queries = tl.load(at, mask=there, other=0.0)
        rows = row + tl.arange(0, BLOCK_M)
        acc = tl.zeros((BLOCK_M, triton.next_power_of_2(DIM)), tl.float32)
        highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        begin, end = _keys_of(
            row, length_q, length_k, shift, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT
        )
        for column in range(begin, end, BLOCK_N):
            at_k, there_k = _rows(ks, column, length_k, stride_kn, stride_kd, BLOCK_N, DIM)
            keys = tl.load(at_k, mask=there_k, other=0.0)
            scores = tl.dot(queries, tl.trans(keys)) * scale
            columns = column + tl.arange(0, BLOCK_N)
            seen = _allowed(
                rows[:, None], columns[None, :], length_q, length_k, shift, left, right,
                LEFT, RIGHT,
            )  # fmt: skip
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.math.exp2(scores - base[:, None])
            shrink = tl.math.exp2(highest - base)
            total = total * shrink + tl.sum(weights, 1)
            at_v, there_v = _rows(vs, column, length_k, stride_vn, stride_vd, BLOCK_N, DIM)
            values = tl.load(at_v, mask=there_v, other=0.0)
            acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None])
            highest = higher
        none = total == 0.0
        total = tl.where(none, 1.0, total)
        at, there = _rows(os, row, length_q, stride_on, stride_od, BLOCK_M, DIM)
        tl.store(at, (acc / total[:, None]).to(o.dtype.element_ty), mask=there)
        logarithms = tl.where(none, float("-inf"), (highest + tl.math.log2(total)) * LN2)
        at_sums = (batch * HEADS + head).to(tl.int64) * LENGTH_Q
        if PACKED:
            at_sums = head.to(tl.int64) * TOTAL_Q + begin_q
        tl.store(sums + at_sums + rows, logarithms, mask=rows < length_q)


@triton.jit(do_not_specialize=["HEADS", "LENGTH_Q", "TOTAL_Q"])
def attention_deltas(
    o, do, deltas, begins_q,
    stride_ob, stride_oh, stride_on, stride_od, stride_db, stride_dh, stride_dn, stride_dd,
    HEADS, LENGTH_Q, TOTAL_Q, DIM: tl.constexpr, BLOCK_M: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The sum of ``O * dO`` over each row: (batch, HEADS, LENGTH_Q), as ``sums``."""
    batch, head = tl.program_id(2), tl.program_id(1)
    begin, length = _sequence(begins_q, batch, LENGTH_Q, PACKED)
    row = tl.program_id(0) * BLOCK_M
    os = _matrix(o, batch, head, begin, stride_ob, stride_oh, stride_on, PACKED)
    dos = _matrix(do, batch, head, begin, stride_db, stride_dh, stride_dn, PACKED)
    at, there = _rows(os, row, length, stride_on, stride_od, BLOCK_M, DIM)
    results = tl.load(at, mask=there, other=0.0).to(tl.float32)
    at, there = _rows(dos, row, length, stride_dn, stride_dd, BLOCK_M, DIM)
    gradients = tl.load(at, mask=there, other=0.0).to(tl.float32)
    rows = row + tl.arange(0, BLOCK_M)
    at_deltas = (batch * HEADS + head).to(tl.int64) * LENGTH_Q
    if PACKED:
        at_deltas = head.to(tl.int64) * TOTAL_Q + begin
    tl.store(deltas + at_deltas + rows, tl.sum(results * gradients, 1), mask=rows < length)


@triton.jit
def _gradients(
    queries, keys, values, gradients, logarithms, delta, seen, scale
):  # fmt: skip
    """The weights, and the gradients of the scores before they are scaled; (queries, keys)."""
    scores = tl.dot(queries, tl.trans(keys)) * (scale * LOG2E)
    weights = tl.where(seen, tl.math.exp2(scores - logarithms[:, None] * LOG2E), 0.0)
    changes = tl.dot(gradients, tl.trans(values))
    return weights, weights * (changes - delta[:, None])


@triton.jit(do_not_specialize=EXTENTS)
def attention_backward_keys(
    q, k, v, do, dk, dv, sums, deltas, begins_q, begins_k, scale,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_db, stride_dh, stride_dn, stride_dd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, LOWER: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values: dk, dv, of k's shape.

    do: the gradient of the result. sums, deltas: what ``attention_plain`` and
    ``attention_deltas`` gave. HEADS: of the queries. scale: as the user gave it. Grid: (blocks
    of keys, HEADS // GROUP, batch).
    """
    batch, kv_head = tl.program_id(2), tl.program_id(1)
    begin_q, length_q = _sequence(begins_q, batch, LENGTH_Q, PACKED)
    begin_k, length_k = _sequence(begins_k, batch, LENGTH_K, PACKED)
    shift = length_k - length_q if LOWER else 0
    column = tl.program_id(0) * BLOCK_N
    PADDED: tl.constexpr = triton.next_power_of_2(DIM)
    if column < length_k:
        ks = _matrix(k, batch, kv_head, begin_k, stride_kb, stride_kh, stride_kn, PACKED)
        vs = _matrix(v, batch, kv_head, begin_k, stride_vb, stride_vh, stride_vn, PACKED)
        at, there = _rows(ks, column, length_k, stride_kn, stride_kd, BLOCK_N, DIM)
        keys = tl.load(at, mask=there, other=0.0)
        at, there = _rows(vs, column, length_k, stride_vn, stride_vd, BLOCK_N, DIM)
        values = tl.load(at, mask=there, other=0.0)
        columns = column + tl.arange(0, BLOCK_N)
        # The queries that see any of these keys.
        first, last = 0, length_q
        if RIGHT:
            first = tl.maximum(column - shift - right, 0) // BLOCK_M * BLOCK_M
        if LEFT:
            last = tl.minimum(last, tl.minimum(column + BLOCK_N, length_k) - shift + left)
        dks = tl.zeros((BLOCK_N, PADDED), tl.float32)
        dvs = tl.zeros((BLOCK_N, PADDED), tl.float32)
        for within in range(GROUP):
            head = kv_head * GROUP + within
            qs = _matrix(q, batch, head, begin_q, stride_qb, stride_qh, stride_qn, PACKED)
            dos = _matrix(do, batch, head, begin_q, stride_db, stride_dh, stride_dn, PACKED)
            at_sums = (batch * HEADS + head).to(tl.int64) * LENGTH_Q
            if PACKED:
                at_sums = head.to(tl.int64) * TOTAL_Q + begin_q
            for row in range(first, last, BLOCK_M):
                at_q, there_q = _rows(qs, row, length_q, stride_qn, stride_qd, BLOCK_M, DIM)
                queries = tl.load(at_q, mask=there_q, other=0.0)
                at_do, there_do = _rows(dos, row, length_q, stride_dn, stride_dd, BLOCK_M, DIM)
                gradients = tl.load(at_do, mask=there_do, other=0.0)
                rows = row + tl.arange(0, BLOCK_M)
                logarithms = tl.load(sums + at_sums + rows, mask=rows < length_q, other=0.0)
                delta = tl.load(deltas + at_sums + rows, mask=rows < length_q, other=0.0)
                seen = _allowed(
                    rows[:, None], columns[None, :], length_q, length_k, shift, left, right,
                    LEFT, RIGHT,
                )  # fmt: skip
                weights, changes = _gradients(
                    queries, keys, values, gradients, logarithms, delta, seen, scale
                )
                dvs = tl.dot(tl.trans(weights.to(gradients.dtype)), gradients, dvs)
                dks = tl.dot(tl.trans(changes.to(queries.dtype)), queries, dks)
        dk_rows = _matrix(dk, batch, kv_head, begin_k, stride_dkb, stride_dkh, stride_dkn, PACKED)
        at, there = _rows(dk_rows, column, length_k, stride_dkn, stride_dkd, BLOCK_N, DIM)
        tl.store(at, (dks * scale).to(dk.dtype.element_ty), mask=there)
        dv_rows = _matrix(dv, batch, kv_head, begin_k, stride_dvb, stride_dvh, stride_dvn, PACKED)
        at, there = _rows(dv_rows, column, length_k, stride_dvn, stride_dvd, BLOCK_N, DIM)
        tl.store(at, dvs.to(dv.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=EXTENTS)
def attention_backward_queries(
    q, k, v, do, dq, sums, deltas, begins_q, begins_k, scale,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_db, stride_dh, stride_dn, stride_dd,
    stride_dqb, stride_dqh, stride_dqn, stride_dqd,
    HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, LOWER: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries: dq, of q's shape. Grid: (blocks of queries, HEADS, batch)."""
    batch, head = tl.program_id(2), tl.program_id(1)
    kv_head = head // GROUP
    begin_q, length_q = _sequence(begins_q, batch, LENGTH_Q, PACKED)
    begin_k, length_k = _sequence(begins_k, batch, LENGTH_K, PACKED)
    shift = length_k - length_q if LOWER else 0
    row = tl.program_id(0) * BLOCK_M
    if row < length_q:
        qs = _matrix(q, batch, head, begin_q, stride_qb, stride_qh, stride_qn, PACKED)
        dos = _matrix(do, batch, head, begin_q, stride_db, stride_dh, stride_dn, PACKED)
        ks = _matrix(k, batch, kv_head, begin_k, stride_kb, stride_kh, stride_kn, PACKED)
        vs = _matrix(v, batch, kv_head, begin_k, stride_vb, stride_vh, stride_vn, PACKED)
        at, there = _rows(qs, row, length_q, stride_qn, stride_qd, BLOCK_M, DIM)
        queries = tl.load(at, mask=there, other=0.0)
        at, there = _rows(dos, row, length_q, stride_dn, stride_dd, BLOCK_M, DIM)
        gradients = tl.load(at, mask=there, other=0.0)
        rows = row + tl.arange(0, BLOCK_M)
        at_sums = (batch * HEADS + head).to(tl.int64) * LENGTH_Q
        if PACKED:
            at_sums = head.to(tl.int64) * TOTAL_Q + begin_q
        logarithms = tl.load(sums + at_sums + rows, mask=rows < length_q, other=0.0)
        delta = tl.load(deltas + at_sums + rows, mask=rows < length_q, other=0.0)
        dqs = tl.zeros((BLOCK_M, triton.next_power_of_2(DIM)), tl.float32)
        begin, end = _keys_of(
            row, length_q, length_k, shift, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT
        )
        for column in range(begin, end, BLOCK_N):
            at_k, there_k = _rows(ks, column, length_k, stride_kn, stride_kd, BLOCK_N, DIM)
            keys = tl.load(at_k, mask=there_k, other=0.0)
            at_v, there_v = _rows(vs, column, length_k, stride_vn, stride_vd, BLOCK_N, DIM)
            values = tl.load(at_v, mask=there_v, other=0.0)
            columns = column + tl.arange(0, BLOCK_N)
            seen = _allowed(
                rows[:, None], columns[None, :], length_q, length_k, shift, left, right,
                LEFT, RIGHT,
            )  # fmt: skip
            _, changes = _gradients(
                queries, keys, values, gradients, logarithms, delta, seen, scale
            )
            dqs = tl.dot(changes.to(keys.dtype), keys, dqs)
        dq_rows = _matrix(dq, batch, head, begin_q, stride_dqb, stride_dqh, stride_dqn, PACKED)
        at, there = _rows(dq_rows, row, length_q, stride_dqn, stride_dqd, BLOCK_M, DIM)
        tl.store(at, (dqs * scale).to(dq.dtype.element_ty), mask=there)
