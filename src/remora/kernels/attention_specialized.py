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
from remora.kernels.attention_plain import EXTENTS, LN2
from remora.kernels.warp_group import any_in_warp, release, rounded, wait
from remora.pipeline import attach

#: Rows of a consumer: what one wgmma has.
ROWS = tl.constexpr(64)

# The hardware's named barriers that say whose turn the matrix units are, one for each
# consumer; Triton's own begin at 0.
_TURN = tl.constexpr(8)

# Where rows of packed sequences end, in a descriptor: see ``attention._descriptor``.
_END = tl.constexpr(1 << 30)


# Its schedule is measured as it is written.
@attach(tlx.products_in_flight)
@triton.jit(do_not_specialize=["BATCH", *EXTENTS])
def attention_forward(
    q0_desc, q1_desc, k0_desc, k1_desc, v0_desc, v1_desc, o0_desc, o1_desc, sums, tickets,
    begins_q, begins_k, scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
    GROUP: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr, OUT0: tl.constexpr,
    OUT1: tl.constexpr, CONSUMERS: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, Q_STAGES: tl.constexpr, O_PARTS: tl.constexpr,
    REGISTERS: tl.constexpr, PINGPONG: tl.constexpr, LAZY: tl.constexpr,
    RELEASE: tl.constexpr, INTEGERS: tl.constexpr, LEAN: tl.constexpr, NESTED: tl.constexpr,
    PAIRS: tl.constexpr, SUMS: tl.constexpr, HEADS_AT_ONCE: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """``O = softmax(scale * Q @ K.T) @ V`` for each head, over the keys that a query may see.

    The head dimension is DIM0 + DIM1 (q, k) and OUT0 + OUT1 (v, o), each a power of two, the
    second 0 where one is enough; the descriptors end in 0 and 1 for the two parts. They are of
    (batch, heads, length, dimension) in blocks of (1, 1, rows, part), 64 rows (q, o) and BLOCK_N
    rows (k, v), of o only OUT0 // O_PARTS columns; with PACKED as ``attention._descriptor``
    makes them, and the sequences begin at begins_q and begins_k (i32, BATCH + 1). k and v have
    HEADS // GROUP heads. sums: fp32, (BATCH, HEADS, LENGTH_Q), or (HEADS, TOTAL_Q) with PACKED:
    the logarithm of each row's sum, -inf where a row sees no key. scale: times log2(e), positive.

    Query i sees key j where i + d - left <= j <= i + d + right, if LEFT, RIGHT; d is 0, or with
    LOWER what the keys are more than the queries. TAIL: whether some length is no multiple of
    BLOCK_N. HEADS_AT_ONCE: heads that are worked on together, longest rows first; 0: one after
    the other. tickets: i32, one zero, from which programs draw tiles; None: each has every n-th.
    Grid: any number of programs. Q_STAGES: buffers of queries, for 1 or 2 tiles. LAZY: what is
    accumulated is made relative to a row's highest score only where that has grown by more than
    8, in base 2 (FlashAttention-4 does so). RELEASE: see ``warp_group.release``. INTEGERS: see
    ``_maximum``. LEAN: consumers hear from the producer where a tile is, and do not work it out of
    its number, and wait as ``warp_group.wait`` says: fewer registers and instructions. NESTED:
    consumers have a loop over the steps of a tile in that over tiles, and what is done between
    tiles is code of its own: fewer instructions a step, but more code. PAIRS: see
    ``warp_group.rounded``. SUMS: see ``_sums``.
    """
    SIZE: tl.constexpr = tlx.size_of(tlx.dtype_of(q0_desc))
    q0 = tlx.local_alloc((ROWS, DIM0), tlx.dtype_of(q0_desc), CONSUMERS * Q_STAGES)
    k0 = tlx.local_alloc((BLOCK_N, DIM0), tlx.dtype_of(k0_desc), STAGES)
    v0 = tlx.local_alloc((BLOCK_N, OUT0), tlx.dtype_of(v0_desc), STAGES)
    o0 = tlx.local_alloc((ROWS, OUT0 // O_PARTS), tlx.dtype_of(o0_desc), CONSUMERS)
    q1, k1, v1, o1 = q0, k0, v0, o0
    if DIM1 > 0:
        q1 = tlx.local_alloc((ROWS, DIM1), tlx.dtype_of(q0_desc), CONSUMERS * Q_STAGES)
        k1 = tlx.local_alloc((BLOCK_N, DIM1), tlx.dtype_of(k0_desc), STAGES)
    if OUT1 > 0:
        v1 = tlx.local_alloc((BLOCK_N, OUT1), tlx.dtype_of(v0_desc), STAGES)
        o1 = tlx.local_alloc((ROWS, OUT1), tlx.dtype_of(o0_desc), CONSUMERS)
    q_full = tlx.alloc_barriers(CONSUMERS * Q_STAGES, 1)
    q_empty = tlx.alloc_barriers(CONSUMERS * Q_STAGES, 1)
    k_full, k_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, CONSUMERS)
    v_full, v_empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, CONSUMERS)
    # Tiles, from the producer to the consumers: their numbers, or batch, head and first row.
    numbers = tlx.local_alloc((1,), tl.int32, 6)
    drawn, read = tlx.alloc_barriers(2, 1), tlx.alloc_barriers(2, CONSUMERS)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                q0, q1, k0, k1, v0, v1, o0, o1, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                numbers, drawn, read, o0_desc, o1_desc, sums, begins_q, begins_k,
                scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right, 0,
                DIM0, DIM1, OUT0, OUT1, CONSUMERS, BLOCK_N, STAGES, Q_STAGES, O_PARTS, PINGPONG,
                LAZY, RELEASE, INTEGERS, LEAN, NESTED, PAIRS, SUMS, HEADS_AT_ONCE,
                LEFT, RIGHT, TAIL, LOWER, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=REGISTERS, replicate=CONSUMERS - 1):
            _consume(
                q0, q1, k0, k1, v0, v1, o0, o1, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                numbers, drawn, read, o0_desc, o1_desc, sums, begins_q, begins_k,
                scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
                tlx.async_task_replica_id() + 1,
                DIM0, DIM1, OUT0, OUT1, CONSUMERS, BLOCK_N, STAGES, Q_STAGES, O_PARTS, PINGPONG,
                LAZY, RELEASE, INTEGERS, LEAN, NESTED, PAIRS, SUMS, HEADS_AT_ONCE,
                LEFT, RIGHT, TAIL, LOWER, PACKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24 if CONSUMERS > 2 else 40):
            at, turn = 0, 0
            BLOCK_M: tl.constexpr = ROWS * CONSUMERS
            blocks = tl.cdiv(LENGTH_Q, BLOCK_M)
            tiles = blocks * BATCH * HEADS
            number = _draw(
                tl.program_id(0), tickets, begins_q, blocks, tiles, BATCH, HEADS,
                BLOCK_M, HEADS_AT_ONCE, PACKED,
            )  # fmt: skip
            above = _above(LENGTH_Q, BLOCK_M, RIGHT, PACKED)
            tile = _announce(
                number, numbers, drawn, read, 0, blocks, above, BATCH, HEADS,
                BLOCK_M, HEADS_AT_ONCE, LEAN,
            )  # fmt: skip
            while number < tiles:
                batch, head, row = _place(
                    tile, blocks, above, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE, LEAN
                )
                if not LEAN:
                    number, tile = _follow(
                        number, tickets, numbers, drawn, read, turn + 1, begins_q, blocks, above,
                        tiles, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE, PACKED, LEAN,
                    )  # fmt: skip
                length_q, length_k, end_q, end_k = _extents(
                    begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED
                )
                first, steps = _blocks(
                    row, length_q, length_k, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT, LOWER
                )
                for part in tl.static_range(CONSUMERS):
                    place = turn % Q_STAGES * CONSUMERS + part
                    tlx.barrier_wait(q_empty[place], (turn // Q_STAGES & 1) ^ 1)
                    tlx.barrier_expect_bytes(q_full[place], ROWS * (DIM0 + DIM1) * SIZE)
                    _copy(
                        q0_desc, q1_desc, q0[place], q1[place], batch, head, row + part * ROWS,
                        length_q, end_q, q_full[place], DIM0, DIM1, PACKED,
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
                    tlx.barrier_expect_bytes(v_full[stage], BLOCK_N * (OUT0 + OUT1) * SIZE)
                    _copy(
                        v0_desc, v1_desc, v0[stage], v1[stage], batch, head // GROUP, column,
                        length_k, end_k, v_full[stage], OUT0, OUT1, PACKED,
                    )  # fmt: skip
                    at += 1
                    if LEAN:
                        if step == 0:  # there is something to work on, and a ticket takes a while
                            number, tile = _follow(
                                number, tickets, numbers, drawn, read, turn + 1, begins_q, blocks,
                                above, tiles, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE, PACKED, LEAN,
                            )  # fmt: skip
                turn += 1


@triton.jit
def _draw(
    number, tickets, begins_q, blocks, tiles, BATCH, HEADS,
    BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A tile's number, or that of the next one that has queries."""
    if PACKED:
        while _has_none(number, begins_q, blocks, tiles, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE):
            if tickets is not None:
                number = _ticket(tickets)
            else:
                number += tl.num_programs(0)
    return number


@triton.jit
def _has_none(
    number, begins_q, blocks, tiles, BATCH, HEADS,
    BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Whether there is such a tile, and it lies past its sequence's end."""
    batch, _, row = _tile(
        tl.minimum(number, tiles - 1), blocks, 0, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE
    )
    length = tl.load(begins_q + batch + 1) - tl.load(begins_q + batch)
    return (number < tiles) & (row >= length)


@triton.jit
def _ticket(tickets):
    """The next tile that no program has, after the first of each."""
    return tl.atomic_add(tickets, 1, sem="relaxed") + tl.num_programs(0)


@triton.jit
def _follow(
    number, tickets, numbers, drawn, read, turn, begins_q, blocks, above, tiles, BATCH, HEADS,
    BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, PACKED: tl.constexpr, LEAN: tl.constexpr,
):  # fmt: skip
    """The number of the tile after a program's, and what the consumers are told of it."""
    number += tl.num_programs(0)
    if tickets is not None:
        number = _ticket(tickets)
    number = _draw(
        number, tickets, begins_q, blocks, tiles, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE, PACKED
    )
    tile = _announce(
        number, numbers, drawn, read, turn, blocks, above, BATCH, HEADS,
        BLOCK_M, HEADS_AT_ONCE, LEAN,
    )  # fmt: skip
    return number, tile


@triton.jit
def _announce(
    number, numbers, drawn, read, turn, blocks, above, BATCH, HEADS,
    BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, LEAN: tl.constexpr,
):  # fmt: skip
    """Tell the consumers of a tile: its number, three times, or if LEAN its place."""
    tile = (number, number, number)
    if LEAN:
        tile = _tile(number, blocks, above, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE)
    tlx.barrier_wait(read[turn % 2], (turn // 2 & 1) ^ 1)
    for i in tl.static_range(3 if LEAN else 1):
        tlx.local_store(numbers[turn % 2 * 3 + i], tl.full((1,), tile[i], tl.int32))
    tlx.barrier_arrive(drawn[turn % 2])
    return tile


@triton.jit
def _hear(numbers, drawn, read, turn, LEAN: tl.constexpr):
    """What the producer tells of a tile."""
    at = turn % 2 * 3
    tlx.barrier_wait(drawn[turn % 2], turn // 2 & 1)
    first = tl.sum(tlx.local_load(numbers[at]), 0)
    tile = (first, first, first)
    if LEAN:
        head = tl.sum(tlx.local_load(numbers[at + 1]), 0)
        tile = (first, head, tl.sum(tlx.local_load(numbers[at + 2]), 0))
    tlx.barrier_arrive(read[turn % 2])
    return tile


@triton.jit
def _place(
    tile, blocks, above, BATCH, HEADS,
    BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, LEAN: tl.constexpr,
):  # fmt: skip
    """Batch, head and first row of a tile, of which the producer has told."""
    if not LEAN:
        tile = _tile(tile[0], blocks, above, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE)
    return tile


@triton.jit
def _above(LENGTH_Q, BLOCK_M: tl.constexpr, RIGHT: tl.constexpr, PACKED: tl.constexpr):
    """How many rows of a head's first tile lie before the first query, a multiple of ROWS.

    With a limit on the right the tile that is not full had better be the one with the fewest keys.
    """
    above = 0
    if RIGHT and not PACKED:
        above = (tl.cdiv(LENGTH_Q, BLOCK_M) * BLOCK_M - LENGTH_Q) // ROWS * ROWS
    return above


@triton.jit
def _tile(
    number, blocks, above, BATCH, HEADS, BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr
):  # fmt: skip
    """Batch, head and first row of a tile; past the last one a batch that there is not."""
    if HEADS_AT_ONCE > 0:
        group = number // (HEADS_AT_ONCE * blocks)
        within = number % (HEADS_AT_ONCE * blocks)
        heads = tl.maximum(tl.minimum(BATCH * HEADS - group * HEADS_AT_ONCE, HEADS_AT_ONCE), 1)
        both = group * HEADS_AT_ONCE + within % heads
        block = blocks - 1 - within // heads
    else:
        both = number // blocks
        block = number % blocks
    batch = tl.where(number < blocks * BATCH * HEADS, both // HEADS, BATCH)
    return batch, both % HEADS, block * BLOCK_M - above


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
                scores = tl.where(columns[None, :] >= (rows - left)[:, None], scores, float("-inf"))
    return scores


@triton.jit
def _wait(bar, phase, LEAN: tl.constexpr):
    if LEAN:
        wait(bar, phase)
    else:
        tlx.barrier_wait(bar, phase)


@triton.jit
def _release(bar, RELEASE: tl.constexpr):
    if RELEASE:
        release(bar)
    else:
        tlx.barrier_arrive(bar)


@triton.jit
def _maximum(scores, INTEGERS: tl.constexpr):
    """Each row's highest score.

    The hardware has a maximum of three integers, and none of three floating-point numbers. That of
    their bits is the same wherever it is not negative.
    """
    if INTEGERS:
        bits = tl.max(scores.to(tl.int32, bitcast=True), 1)
        most = bits.to(tl.float32, bitcast=True)
        if any_in_warp(bits < 0):
            most = tl.max(scores, 1)
    else:
        most = tl.max(scores, 1)
    return most


@triton.jit
def _highest(scores, highest, scale, LAZY: tl.constexpr, INTEGERS: tl.constexpr):
    """What each row's weights are relative to, and whether that has changed for the warp."""
    higher = tl.maximum(highest, _maximum(scores, INTEGERS) * scale)
    grown = True
    if LAZY:
        grown = any_in_warp(higher > highest + 8.0)
        higher = tl.where(grown, higher, highest)
    return higher, grown


@triton.jit
def _weights(scores, highest, scale, MASKED: tl.constexpr):
    """exp2 of scaled scores, relative to each row's highest."""
    return tl.math.exp2(scores * scale - _base(highest, MASKED)[:, None])


@triton.jit
def _base(highest, MASKED: tl.constexpr):
    """What exponents are relative to: 0 in a row that has seen no key."""
    base = highest
    if MASKED:
        base = tl.where(highest == float("-inf"), 0.0, highest)
    return base


@triton.jit
def _begin(
    tile, blocks, above, begins_q, begins_k, BATCH, HEADS, LENGTH_Q, LENGTH_K, left, right,
    ME: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEADS_AT_ONCE: tl.constexpr,
    LEAN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, LOWER: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """A consumer's first row of a tile, the keys, the rows' shift, the first key, the steps."""
    batch, _, row = _place(tile, blocks, above, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE, LEAN)
    length_q, length_k, _, _ = _extents(begins_q, begins_k, batch, LENGTH_Q, LENGTH_K, PACKED)
    first, steps = _blocks(
        row, length_q, length_k, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT, LOWER
    )
    shift = length_k - length_q if LOWER else 0
    return row + ME * ROWS, length_k, shift, first, steps


@triton.jit
def _step(
    q0, q1, k0, k1, v0, v1, k_full, k_empty, v_full, v_empty, at, weights16, acc0, acc1, highest,
    row, column, length_k, shift, left, right, scale, q_empty, is_first, is_last,
    ME: tl.constexpr, DIM1: tl.constexpr, OUT1: tl.constexpr, CONSUMERS: tl.constexpr,
    STAGES: tl.constexpr, PINGPONG: tl.constexpr, LAZY: tl.constexpr, RELEASE: tl.constexpr,
    INTEGERS: tl.constexpr, LEAN: tl.constexpr, SUMS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Add the values of the program's step ``at``, and work out the weights of the next one.

    is_first, is_last: whether that is a tile's first one, and its last one with ``q_empty`` to be
    told. Returns the sums, the weights and their sums, what these are relative to, and whether
    that is another than ``highest``.
    """
    stage, before, phase = (at + 1) % STAGES, at % STAGES, ((at + 1) // STAGES) & 1
    _wait(k_full[stage], phase, LEAN)
    if PINGPONG:
        tlx.named_barrier_wait(_TURN + ME, 256)
    scores = _scores(q0, q1, k0[stage], k1[stage], DIM1)
    acc0 = tlx.async_dot(weights16, v0[before], acc0)
    if OUT1 > 0:
        acc1 = tlx.async_dot(weights16, v1[before], acc1)
    if PINGPONG:
        tlx.named_barrier_arrive(_TURN + (ME + 1) % CONSUMERS, 256)
    scores = tlx.async_dot_wait(1 if OUT1 == 0 else 2, scores)
    _release(k_empty[stage], RELEASE)
    if is_last:
        _release(q_empty, RELEASE)
    scores = _masked(scores, row, column, length_k, shift, left, right, LEFT, RIGHT, TAIL)
    if is_first:
        highest = tl.full((ROWS,), float("-inf"), tl.float32)
    higher, grown = _highest(scores, highest, scale, LAZY, INTEGERS)
    weights = _weights(scores, higher, scale, LEFT or RIGHT or TAIL)
    sum_ = _sums(weights, SUMS)
    # Before the wait for the products: ptxas leaves what is before a wait's loop there,
    # and would else work out the weights after the products, not beside them.
    _wait(v_full[stage], phase, LEAN)
    acc0 = tlx.async_dot_wait(0, acc0)
    if OUT1 > 0:
        acc1 = tlx.async_dot_wait(0, acc1)
    _release(v_empty[before], RELEASE)
    return acc0, acc1, weights, sum_, higher, grown


@triton.jit
def _sums(weights, SUMS: tl.constexpr):
    """Each row's sum of weights, with SUMS in eight parts: no thread asks another."""
    if SUMS:
        sums = tl.sum(tl.reshape(weights, (weights.shape[0], weights.shape[1] // 8, 8)), 1)
    else:
        sums = tl.sum(weights, 1)
    return sums


@triton.jit
def _added(
    acc0, acc1, total, sum_, highest, higher, grown,
    OUT1: tl.constexpr, MASKED: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """What has been summed, if ``grown`` made relative to ``higher``; with a step's weights."""
    if grown:
        shrink = tl.math.exp2(highest - _base(higher, MASKED))
        acc0 = acc0 * shrink[:, None]
        if OUT1 > 0:
            acc1 = acc1 * shrink[:, None]
        total = total * shrink[:, None] if SUMS else total * shrink
    return acc0, acc1, total + sum_


@triton.jit
def _in_16_bits(weights, dtype: tl.constexpr, PAIRS: tl.constexpr):
    return rounded(weights, dtype) if PAIRS else weights.to(dtype)


@triton.jit
def _consume(
    q0, q1, k0, k1, v0, v1, o0, o1, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    numbers, drawn, read, o0_desc, o1_desc, sums, begins_q, begins_k,
    scale, BATCH, HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right,
    ME: tl.constexpr, DIM0: tl.constexpr, DIM1: tl.constexpr, OUT0: tl.constexpr,
    OUT1: tl.constexpr, CONSUMERS: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, Q_STAGES: tl.constexpr, O_PARTS: tl.constexpr,
    PINGPONG: tl.constexpr, LAZY: tl.constexpr, RELEASE: tl.constexpr, INTEGERS: tl.constexpr,
    LEAN: tl.constexpr, NESTED: tl.constexpr, PAIRS: tl.constexpr, SUMS: tl.constexpr,
    HEADS_AT_ONCE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr,
    LOWER: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """64 rows of each of the program's tiles of queries.

    The first scores of a tile are worked out beside the last values of the tile before, and the
    results of that are stored in between.
    """
    dtype: tl.constexpr = tlx.dtype_of(o0_desc)
    BLOCK_M: tl.constexpr = ROWS * CONSUMERS
    MASKED: tl.constexpr = LEFT or RIGHT or TAIL
    if PINGPONG and ME == CONSUMERS - 1:
        tlx.named_barrier_arrive(_TURN, 256)  # the first turn
    blocks = tl.cdiv(LENGTH_Q, BLOCK_M)
    above = _above(LENGTH_Q, BLOCK_M, RIGHT, PACKED)
    tiles = BATCH if LEAN else blocks * BATCH * HEADS
    tile = _hear(numbers, drawn, read, 0, LEAN)
    if tile[0] < tiles:
        turn, at, step = 0, 0, 0
        row, length_k, shift, first, steps = _begin(
            tile, blocks, above, begins_q, begins_k, BATCH, HEADS, LENGTH_Q, LENGTH_K, left, right,
            ME, BLOCK_M, BLOCK_N, HEADS_AT_ONCE, LEAN, LEFT, RIGHT, LOWER, PACKED,
        )  # fmt: skip
        acc0 = tl.zeros((ROWS, OUT0), tl.float32)
        acc1 = tl.zeros((ROWS, OUT1 if OUT1 > 0 else 16), tl.float32)
        tlx.barrier_wait(q_full[ME], 0)
        tlx.barrier_wait(k_full[0], 0)
        scores = _scores(q0[ME], q1[ME], k0[0], k1[0], DIM1)
        scores = tlx.async_dot_wait(0, scores)
        tlx.barrier_arrive(k_empty[0])
        scores = _masked(scores, row, first, length_k, shift, left, right, LEFT, RIGHT, TAIL)
        lowest = tl.full((ROWS,), float("-inf"), tl.float32)
        highest, grown = _highest(scores, lowest, scale, LAZY, INTEGERS)
        weights = _weights(scores, highest, scale, MASKED)
        total = _sums(weights, SUMS)
        weights16 = _in_16_bits(weights, dtype, PAIRS)
        tlx.barrier_wait(v_full[0], 0)
        more, following = steps > 0, tile
        if not NESTED:
            if steps == 1:
                tlx.barrier_arrive(q_empty[ME])
                following = _hear(numbers, drawn, read, 1, LEAN)
                more = following[0] < tiles

        # Each time the weights of one step are there, and those of the next are worked out.
        while more:
            if NESTED:
                place = turn % Q_STAGES * CONSUMERS + ME
                for i in range(1, steps):
                    acc0, acc1, weights, sum_, higher, grown = _step(
                        q0[place], q1[place], k0, k1, v0, v1, k_full, k_empty, v_full, v_empty, at,
                        weights16, acc0, acc1, highest, row, first + i * BLOCK_N, length_k, shift,
                        left, right, scale, q_empty[place], False, False, ME, DIM1, OUT1, CONSUMERS,
                        STAGES, PINGPONG, LAZY, RELEASE, INTEGERS, LEAN, SUMS, LEFT, RIGHT, TAIL,
                    )  # fmt: skip
                    acc0, acc1, total = _added(
                        acc0, acc1, total, sum_, highest, higher, grown, OUT1, MASKED, SUMS
                    )
                    highest = higher
                    weights16 = _in_16_bits(weights, dtype, PAIRS)
                    at += 1
                _release(q_empty[place], RELEASE)
                following = _hear(numbers, drawn, read, turn + 1, LEAN)
                more = following[0] < tiles
            if not NESTED or more:
                before_this = tile
                begins = True if NESTED else step + 1 == steps
                step += 1
                if begins:
                    turn += 1
                    step = 0
                    tile = following
                    row, length_k, shift, first, steps = _begin(
                        tile, blocks, above, begins_q, begins_k, BATCH, HEADS, LENGTH_Q, LENGTH_K,
                        left, right, ME, BLOCK_M, BLOCK_N, HEADS_AT_ONCE, LEAN, LEFT, RIGHT, LOWER,
                        PACKED,
                    )  # fmt: skip
                place = turn % Q_STAGES * CONSUMERS + ME
                if begins:
                    _wait(q_full[place], turn // Q_STAGES & 1, LEAN)
                ends = False if NESTED else step + 1 == steps
                acc0, acc1, weights, sum_, higher, grown = _step(
                    q0[place], q1[place], k0, k1, v0, v1, k_full, k_empty, v_full, v_empty, at,
                    weights16, acc0, acc1, highest, row, first + step * BLOCK_N, length_k, shift,
                    left, right, scale, q_empty[place], begins, ends, ME, DIM1, OUT1, CONSUMERS,
                    STAGES, PINGPONG, LAZY, RELEASE, INTEGERS, LEAN, SUMS, LEFT, RIGHT, TAIL,
                )  # fmt: skip
                if begins:
                    _finish(
                        acc0, acc1, highest, total, o0[ME], o1[ME], o0_desc, o1_desc, sums,
                        begins_q, before_this, blocks, above, BATCH, HEADS, LENGTH_Q, TOTAL_Q,
                        ME, BLOCK_M, HEADS_AT_ONCE, LEAN, SUMS, OUT0, OUT1, O_PARTS, RIGHT, MASKED,
                        PACKED,
                    )  # fmt: skip
                    acc0 = tl.zeros((ROWS, OUT0), tl.float32)
                    acc1 = tl.zeros((ROWS, OUT1 if OUT1 > 0 else 16), tl.float32)
                    total = sum_
                else:
                    acc0, acc1, total = _added(
                        acc0, acc1, total, sum_, highest, higher, grown, OUT1, MASKED, SUMS
                    )
                highest = higher
                weights16 = _in_16_bits(weights, dtype, PAIRS)
                at += 1
                if not NESTED:
                    if ends:
                        following = _hear(numbers, drawn, read, turn + 1, LEAN)
                        more = following[0] < tiles

        before = at % STAGES
        acc0 = tlx.async_dot(weights16, v0[before], acc0)
        if OUT1 > 0:
            acc1 = tlx.async_dot(weights16, v1[before], acc1)
            acc1 = tlx.async_dot_wait(0, acc1)
        acc0 = tlx.async_dot_wait(0, acc0)
        _finish(
            acc0, acc1, highest, total, o0[ME], o1[ME], o0_desc, o1_desc, sums,
            begins_q, tile, blocks, above, BATCH, HEADS, LENGTH_Q, TOTAL_Q,
            ME, BLOCK_M, HEADS_AT_ONCE, LEAN, SUMS, OUT0, OUT1, O_PARTS, RIGHT, MASKED, PACKED,
        )  # fmt: skip
        tlx.async_descriptor_store_wait(0)


@triton.jit
def _finish(
    acc0, acc1, highest, total, o0, o1, o0_desc, o1_desc, sums,
    begins_q, tile, blocks, above, BATCH, HEADS, LENGTH_Q, TOTAL_Q,
    ME: tl.constexpr, BLOCK_M: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, LEAN: tl.constexpr,
    SUMS: tl.constexpr, OUT0: tl.constexpr, OUT1: tl.constexpr, O_PARTS: tl.constexpr,
    RIGHT: tl.constexpr, MASKED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Store 64 rows of the result, and the logarithms of their sums."""
    batch, head, row = _place(tile, blocks, above, BATCH, HEADS, BLOCK_M, HEADS_AT_ONCE, LEAN)
    row += ME * ROWS
    if RIGHT and not PACKED:
        row = tl.where(row < 0, LENGTH_Q, row)  # a store must not begin before its tensor
    length_q, end_q = LENGTH_Q, LENGTH_Q
    if PACKED:
        end_q = tl.load(begins_q + batch + 1)
        length_q = end_q - tl.load(begins_q + batch)
    if SUMS:
        total = tl.sum(total, 1)
    inverse = 1.0 / total
    if MASKED:
        inverse = tl.where(total == 0.0, 0.0, inverse)
    rows = row + tl.arange(0, ROWS)
    at = (batch * HEADS + head).to(tl.int64) * LENGTH_Q
    if PACKED:
        at = head.to(tl.int64) * TOTAL_Q + end_q - length_q
    tl.store(sums + at + rows, (highest + tl.math.log2(total)) * LN2, mask=rows < length_q)
    acc0 = acc0 * inverse[:, None]
    if O_PARTS == 1:
        _store(acc0, o0, o0_desc, batch, head, row, 0, length_q, end_q, PACKED)
    else:
        halves = tl.permute(tl.reshape(acc0, (ROWS, 2, OUT0 // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        _store(left, o0, o0_desc, batch, head, row, 0, length_q, end_q, PACKED)
        _store(right, o0, o0_desc, batch, head, row, OUT0 // 2, length_q, end_q, PACKED)
    if OUT1 > 0:
        _store(
            acc1 * inverse[:, None], o1, o1_desc, batch, head, row, OUT0, length_q, end_q, PACKED
        )  # fmt: skip


@triton.jit
def _store(
    values, buffer, desc, batch, head, row, column, length, end, PACKED: tl.constexpr
):  # fmt: skip
    """Rows of one head through a buffer; those past the sequence's end are dropped."""
    tlx.async_descriptor_store_wait(0)  # the store before has read the buffer
    tlx.local_store(buffer, values.to(tlx.dtype_of(desc)))
    tlx.fence_async_shared()
    if PACKED:
        tlx.async_descriptor_store(desc, buffer, [_END, end, head, _END - length + row, column])
    else:
        tlx.async_descriptor_store(desc, buffer, [batch, head, row, column])
