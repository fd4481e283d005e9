"""Attention, forward, for Hopper: a producer and two or three consumers, each with its own warps.

The consumers share a tile of queries, 64 rows each. A consumer's products and its softmax
overlap (while the matrix units add one block of values, the softmax of the next block is
worked out), and with PINGPONG the consumers take turns in issuing products, so that the
softmax of one runs beside the products of another (FlashAttention-3, arXiv 2407.08608).
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx

#: Rows of a consumer: what one wgmma has.
ROWS = tl.constexpr(64)

# The hardware's named barriers that say whose turn the matrix units are, one for each
# consumer; Triton's own begin at 0.
_TURN = tl.constexpr(8)

# Where rows of packed sequences end, in a descriptor: see ``attention.ragged``.
_END = tl.constexpr(1 << 30)

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def attention_forward(
    q0_desc, q1_desc, k0_desc, k1_desc, v0_desc, v1_desc, o0_desc, o1_desc, sums,
    begins_q, begins_k, scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
    GROUP: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr, CONSUMERS: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, REGISTERS: tl.constexpr,
    PINGPONG: tl.constexpr, OWN_O: tl.constexpr, HEADS_AT_ONCE: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """``O = softmax(scale * Q @ K.T) @ V`` for each head, over the keys that a query may see.

    The head dimension is DIM0 + DIM1, each a power of two, DIM1 0 where one is enough; the
    descriptors end in 0 and 1 for the two parts. They are of (batch, heads, length, dimension)
    in blocks of (1, 1, rows, part), 64 rows (q, o) and BLOCK_N rows (k, v); with PACKED as
    ``attention.ragged`` makes them, and the sequences begin at begins_q and begins_k (i32,
    BATCH + 1). k and v have HEADS // GROUP heads. sums: fp32, (BATCH, HEADS, LENGTH_Q), or
    (HEADS, TOTAL_Q) with PACKED: the logarithm of each row's sum, -inf where a row sees no key.
    scale: times log2(e), not negative.

    Query i sees key j where i + d - left <= j <= i + d + right, if LEFT, RIGHT; d is 0, or with
    LOWER what the keys are more than the queries. TAIL: whether some length is no multiple of
    BLOCK_N. HEADS_AT_ONCE: heads that are worked on together, longest rows first; 0: one after
    the other. Grid: any number of programs. OWN_O: whether the result has buffers of its own.
    """
    SIZE: tl.constexpr = tlx.size_of(tlx.dtype_of(q0_desc))
    SECOND: tl.constexpr = DIM1 if DIM1 > 0 else 16  # a buffer has some extent
    q0 = tlx.local_alloc((ROWS, DIM0), tlx.dtype_of(q0_desc), CONSUMERS)
    k0 = tlx.local_alloc((BLOCK_N, DIM0), tlx.dtype_of(k0_desc), STAGES)
    v0 = tlx.local_alloc((BLOCK_N, DIM0), tlx.dtype_of(v0_desc), STAGES)
    q1, k1, v1 = q0, k0, v0
    if DIM1 > 0:
        q1 = tlx.local_alloc((ROWS, SECOND), tlx.dtype_of(q0_desc), CONSUMERS)
        k1 = tlx.local_alloc((BLOCK_N, SECOND), tlx.dtype_of(k0_desc), STAGES)
        v1 = tlx.local_alloc((BLOCK_N, SECOND), tlx.dtype_of(v0_desc), STAGES)
    o0, o1 = q0, q1
    if OWN_O:
        o0 = tlx.local_alloc((ROWS, DIM0), tlx.dtype_of(o0_desc), CONSUMERS)
        if DIM1 > 0:
            o1 = tlx.local_alloc((ROWS, SECOND), tlx.dtype_of(o0_desc), CONSUMERS)
    q_full, q_empty = tlx.alloc_barriers(CONSUMERS, 1), tlx.alloc_barriers(CONSUMERS, 1)
    k_full, k_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, CONSUMERS)
    v_full, v_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, CONSUMERS)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                q0, q1, k0, k1, v0, v1, o0, o1, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                o0_desc, o1_desc, sums, begins_q, begins_k,
                scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right, 0,
                DIM0, DIM1, CONSUMERS, BLOCK_N, STAGES, PINGPONG, OWN_O, HEADS_AT_ONCE,
                LEFT, RIGHT, TAIL, LOWER, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=REGISTERS, replicate=CONSUMERS - 1):
            _consume(
                q0, q1, k0, k1, v0, v1, o0, o1, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                o0_desc, o1_desc, sums, begins_q, begins_k,
                scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
                tlx.async_task_replica_id() + 1,
                DIM0, DIM1, CONSUMERS, BLOCK_N, STAGES, PINGPONG, OWN_O, HEADS_AT_ONCE,
                LEFT, RIGHT, TAIL, LOWER, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24 if CONSUMERS > 2 else 40):
            at = 0
            BLOCK_M: tl.constexpr = ROWS * CONSUMERS
            blocks = tl.cdiv(LENGTH_Q, BLOCK_M)
            for turn in range(_turns(blocks * BATCH * HEADS)):
                batch, head, row = _tile(turn, blocks, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE)
                length_q, length_k, end_q, end_k = _extents(
                    begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED
                )
                first, steps = _blocks(
                    row, length_q, length_k, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT, LOWER
                )
                for part in tl.static_range(CONSUMERS):
                    tlx.barrier_wait(q_empty[part], (turn & 1) ^ 1)
                    tlx.barrier_expect_bytes(q_full[part], ROWS * (DIM0 + DIM1) * SIZE)
                    _copy(
                        q0_desc, q1_desc, q0[part], q1[part], batch, head, row + part * ROWS,
                        length_q, end_q, q_full[part], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                for step in range(steps):
                    stage = at % STAGES
                    phase = ((at // STAGES) & 1) ^ 1
                    column = first + step * BLOCK_N
                    tlx.barrier_wait(k_empty[stage], phase)
                    tlx.barrier_expect_bytes(k_full[stage], BLOCK_N * (DIM0 + DIM1) * SIZE)
                    _copy(
                        k0_desc, k1_desc, k0[stage], k1[stage], batch, head // GROUP, column,
                        length_k, end_k, k_full[stage], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                    tlx.barrier_wait(v_empty[stage], phase)
                    tlx.barrier_expect_bytes(v_full[stage], BLOCK_N * (DIM0 + DIM1) * SIZE)
                    _copy(
                        v0_desc, v1_desc, v0[stage], v1[stage], batch, head // GROUP, column,
                        length_k, end_k, v_full[stage], DIM0, DIM1, PACKED,
                    )  # fmt: skip
                    at += 1


@triton.jit
def _turns(tiles):
    """How many of the tiles are this program's."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    rounds = tiles // programs
    last = program if rounds % 2 == 0 else programs - 1 - program
    return rounds + (last < tiles % programs).to(tl.int32)


@triton.jit
def _tile(
    turn, blocks, BATCH, HEADS, BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr
):  # fmt: skip
    """Batch, head and first row of a program's tile.

    Tiles are dealt out in rounds, every other one backwards: where they come longest first
    each program gets as much as the next.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    index = turn * programs + (program if turn % 2 == 0 else programs - 1 - program)
    if HEADS_AT_ONCE > 0:
        group = index // (HEADS_AT_ONCE * blocks)
        within = index % (HEADS_AT_ONCE * blocks)
        heads = tl.minimum(BATCH * HEADS - group * HEADS_AT_ONCE, HEADS_AT_ONCE)
        both = group * HEADS_AT_ONCE + within % heads
        block = blocks - 1 - within // heads
    else:
        both = index // blocks
        block = index % blocks
    return both // HEADS, both % HEADS, block * BLOCK_M


@triton.jit
def _extents(begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED: tl.constexpr):
    """A sequence's numbers of queries and keys, and where they end among the packed ones."""
    length_q, length_k, end_q, end_k = LENGTH_Q, LENGTH_K, LENGTH_Q, LENGTH_K
    if PACKED:
        end_q, end_k = tl.load(begins_q + batch + 1), tl.load(begins_k + batch + 1)
        length_q = end_q - tl.load(begins_q + batch)
        length_k = end_k - tl.load(begins_k + batch)
    return length_q, length_k, end_q, end_k


@triton.jit
def _blocks(
    row, length_q, length_k, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, LOWER: tl.constexpr,
):  # fmt: skip
    """The first key, and the number of blocks of keys, for a tile of queries; at least one."""
    shift = length_k - length_q if LOWER else 0
    begin = tl.maximum(row + shift - left, 0) // BLOCK_N * BLOCK_N if LEFT else 0
    end = length_k
    if RIGHT:
        last = tl.minimum(row + BLOCK_M, length_q) - 1
        end = tl.minimum(end, last + shift + right + 1)
    return begin, tl.maximum(tl.cdiv(end - begin, BLOCK_N), 1)


@triton.jit
def _copy(
    desc0, desc1, buffer0, buffer1, batch, head, row, length, end, full,
    DIM0: tl.constexpr, DIM1: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Rows of one head into a buffer; those past the sequence's end are zero."""
    if PACKED:
        at = _END - length + row
        tlx.async_descriptor_load(desc0, buffer0, [_END, end, head, at, 0], full)
        if DIM1 > 0:
            tlx.async_descriptor_load(desc1, buffer1, [_END, end, head, at, DIM0], full)
    else:
        tlx.async_descriptor_load(desc0, buffer0, [batch, head, row, 0], full)
        if DIM1 > 0:
            tlx.async_descriptor_load(desc1, buffer1, [batch, head, row, DIM0], full)


@triton.jit
def _scores(q0, q1, k0, k1, DIM1: tl.constexpr):
    """Start ``Q @ K.T``."""
    scores = tlx.async_dot(q0, tlx.local_trans(k0))
    if DIM1 > 0:
        scores = tlx.async_dot(q1, tlx.local_trans(k1), scores)
    return scores


@triton.jit
def _masked(
    scores, row, column, length_k, shift, left, right,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Scores with -inf where the queries from ``row`` may not see the keys from ``column``."""
    ROWS_: tl.constexpr = scores.shape[0]
    COLUMNS: tl.constexpr = scores.shape[1]
    if LEFT or RIGHT or TAIL:
        hidden = False
        if TAIL:
            hidden = hidden | (column + COLUMNS > length_k)
        if RIGHT:
            hidden = hidden | (column + COLUMNS - 1 > row + shift + right)
        if LEFT:
            hidden = hidden | (column < row + ROWS_ - 1 + shift - left)
        if hidden:
            columns = column + tl.arange(0, COLUMNS)
            keys = tl.full((ROWS_,), length_k, tl.int32)
            rows = row + shift + tl.arange(0, ROWS_)
            if RIGHT:
                keys = tl.minimum(keys, rows + right + 1)
            scores = tl.where(columns[None, :] < keys[:, None], scores, float("-inf"))
            if LEFT:
                scores = tl.where(
                    columns[None, :] >= (rows - left)[:, None], scores, float("-inf")
                )
    return scores


@triton.jit
def _weights(scores, highest, scale, MASKED: tl.constexpr):
    """exp2 of scaled scores, less each row's highest so far; that, and what it shrinks others by."""
    higher = tl.maximum(highest, tl.max(scores, 1) * scale)
    base = higher
    if MASKED:
        base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.math.exp2(scores * scale - base[:, None])
    return weights, higher, tl.math.exp2(highest - base)


@triton.jit
def _consume(
    q0, q1, k0, k1, v0, v1, o0, o1, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    o0_desc, o1_desc, sums, begins_q, begins_k,
    scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
    ME: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr, CONSUMERS: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PINGPONG: tl.constexpr, OWN_O: tl.constexpr,
    HEADS_AT_ONCE: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """64 rows of each of the program's tiles of queries."""
    BLOCK_M: tl.constexpr = ROWS * CONSUMERS
    MASKED: tl.constexpr = LEFT or RIGHT or TAIL
    NEXT: tl.constexpr = _TURN + (ME + 1) % CONSUMERS
    qa, qb = q0[ME], q1[ME]
    if PINGPONG and ME == CONSUMERS - 1:
        tlx.named_barrier_arrive(NEXT, 256)  # the first turn
    at = 0
    blocks = tl.cdiv(LENGTH_Q, BLOCK_M)
    for turn in range(_turns(blocks * BATCH * HEADS)):
        batch, head, row = _tile(turn, blocks, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE)
        length_q, length_k, end_q, _ = _extents(
            begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED
        )
        first, steps = _blocks(
            row, length_q, length_k, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT, LOWER
        )
        shift = length_k - length_q if LOWER else 0
        row += ME * ROWS
        acc0 = tl.zeros((ROWS, DIM0), tl.float32)
        acc1 = tl.zeros((ROWS, DIM1 if DIM1 > 0 else 16), tl.float32)

        tlx.barrier_wait(q_full[ME], turn & 1)
        tlx.barrier_wait(k_full[at % STAGES], (at // STAGES) & 1)
        scores = _scores(qa, qb, k0[at % STAGES], k1[at % STAGES], DIM1)
        scores = tlx.async_dot_wait(0, scores)
        tlx.barrier_arrive(k_empty[at % STAGES])
        scores = _masked(
            scores, row, first, length_k, shift, left, right, LEFT, RIGHT, TAIL
        )  # fmt: skip
        highest = tl.full((ROWS,), float("-inf"), tl.float32)
        weights, highest, _ = _weights(scores, highest, scale, MASKED)
        total = tl.sum(weights, 1)
        weights16 = weights.to(tlx.dtype_of(o0_desc))
        at += 1
        tlx.barrier_wait(k_full[at % STAGES], (at // STAGES) & 1, pred=steps > 1)

        for step in range(1, steps):
            stage, before, after = at % STAGES, (at - 1) % STAGES, at + 1
            if PINGPONG:
                tlx.named_barrier_wait(_TURN + ME, 256)
            scores = _scores(qa, qb, k0[stage], k1[stage], DIM1)
            tlx.barrier_wait(v_full[before], ((at - 1) // STAGES) & 1)
            acc0 = tlx.async_dot(weights16, v0[before], acc0)
            if DIM1 > 0:
                acc1 = tlx.async_dot(weights16, v1[before], acc1)
            if PINGPONG:
                tlx.named_barrier_arrive(NEXT, 256)
            scores = tlx.async_dot_wait(1 if DIM1 == 0 else 2, scores)
            tlx.barrier_arrive(k_empty[stage])
            scores = _masked(
                scores, row, first + step * BLOCK_N, length_k, shift, left, right,
                LEFT, RIGHT, TAIL,
            )  # fmt: skip
            weights, highest, shrink = _weights(scores, highest, scale, MASKED)
            total = total * shrink + tl.sum(weights, 1)
            # Before the wait for the products: ptxas leaves what is before a wait's loop there,
            # and would else work out the weights after the products, not beside them.
            tlx.barrier_wait(
                k_full[after % STAGES], (after // STAGES) & 1, pred=step + 1 < steps
            )
            acc0 = tlx.async_dot_wait(0, acc0)
            if DIM1 > 0:
                acc1 = tlx.async_dot_wait(0, acc1) * shrink[:, None]
            tlx.barrier_arrive(v_empty[before])
            acc0 = acc0 * shrink[:, None]
            weights16 = weights.to(tlx.dtype_of(o0_desc))
            at = after

        if OWN_O:
            tlx.barrier_arrive(q_empty[ME])
        before = (at - 1) % STAGES
        tlx.barrier_wait(v_full[before], ((at - 1) // STAGES) & 1)
        acc0 = tlx.async_dot(weights16, v0[before], acc0)
        if DIM1 > 0:
            acc1 = tlx.async_dot(weights16, v1[before], acc1)
        inverse = 1.0 / total
        if MASKED:
            inverse = tl.where(total == 0.0, 0.0, inverse)
        acc0 = tlx.async_dot_wait(0, acc0)
        if DIM1 > 0:
            acc1 = tlx.async_dot_wait(0, acc1) * inverse[:, None]
        tlx.barrier_arrive(v_empty[before])
        acc0 = acc0 * inverse[:, None]

        rows = row + tl.arange(0, ROWS)
        at_sums = (batch * HEADS + head).to(tl.int64) * LENGTH_Q
        if PACKED:
            at_sums = head.to(tl.int64) * TOTAL_Q + end_q - length_q
        tl.store(
            sums + at_sums + rows, (highest + tl.math.log2(total)) * _LN2, mask=rows < length_q
        )
        tlx.async_descriptor_store_wait(0)  # the tile before has been read
        tlx.local_store(o0[ME], acc0.to(tlx.dtype_of(o0_desc)))
        if DIM1 > 0:
            tlx.local_store(o1[ME], acc1.to(tlx.dtype_of(o0_desc)))
        tlx.fence_async_shared()
        _store(
            o0_desc, o1_desc, o0[ME], o1[ME], batch, head, row, length_q, end_q,
            DIM0, DIM1, PACKED,
        )  # fmt: skip
        if not OWN_O:
            tlx.async_descriptor_store_wait(0)
            tlx.barrier_arrive(q_empty[ME])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _store(
    desc0, desc1, buffer0, buffer1, batch, head, row, length, end,
    DIM0: tl.constexpr, DIM1: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Rows of one head from a buffer; those past the sequence's end are dropped."""
    if PACKED:
        at = _END - length + row
        tlx.async_descriptor_store(desc0, buffer0, [_END, end, head, at, 0])
        if DIM1 > 0:
            tlx.async_descriptor_store(desc1, buffer1, [_END, end, head, at, DIM0])
    else:
        tlx.async_descriptor_store(desc0, buffer0, [batch, head, row, 0])
        if DIM1 > 0:
            tlx.async_descriptor_store(desc1, buffer1, [batch, head, row, DIM0])
