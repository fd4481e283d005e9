"""The triangle multiplicative update's kernels for Hopper whose products gate each other.

The layer norms are in the weights (:mod:`remora.kernels.triangle_folding`), and of 16 bits products
read what is not normalised. Two kernels, :func:`project` and :func:`finish`, are products of which
one is the other's gate; between them is ``triangle_hopper.pair_products``.

A program's tile is two blocks of PAIRS. Products are (channels, pairs): of GROUP channels with the
pairs of both blocks. Two consumers have every other group, so that one works out gates while the
other multiplies; groups' weights come in the order in which they are multiplied. Pairs are measured
by a task of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import halves_of, top_and_bottom
from remora.kernels.triangle_hopper import put
from remora.kernels.warp_group import add_moments, release, wait

#: Pairs of a block, and depth of one of weights.
PAIRS = tl.constexpr(64)
DEPTH = tl.constexpr(64)

#: Channels of one product.
GROUP = tl.constexpr(64)

#: Registers of each thread of the second consumer, and of the task that measures pairs.
_CONSUMER, _MEASURER = tl.constexpr(208), tl.constexpr(72)


@triton.jit
def _turns(tiles, CLUSTER: tl.constexpr):
    """How many of the tiles are a program's: as many as of the others of its cluster."""
    clusters = tl.num_programs(0) // CLUSTER
    return tl.cdiv(tl.cdiv(tiles, CLUSTER) - tl.program_id(0) // CLUSTER, clusters)


@triton.jit
def _block_of(turn, half):
    """The number of a block of PAIRS."""
    return (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + half


@triton.jit
def _copy_pairs(
    desc, buffers, full, empty, turn, places, PIECES: tl.constexpr, TILES: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Copy a tile, when the one before is done with.

    places: of both blocks the row of (rows, pairs, channels) and the first pair there; or, of
    (channels, pairs) if BY_COLUMN, that pair.
    """
    for piece in range(PIECES):
        mine = turn % TILES * PIECES + piece
        tlx.barrier_wait(empty[mine], (turn // TILES & 1) ^ 1)
        tlx.barrier_expect_bytes(full[mine], 2 * PAIRS * DEPTH * 2)
        for half in tl.static_range(2):
            if BY_COLUMN:
                part = tlx.local_slice(buffers[mine], (0, half * PAIRS), (DEPTH, PAIRS))
                at = [piece * DEPTH, places[half][2]]
            else:
                part = tlx.local_slice(buffers[mine], (half * PAIRS, 0), (PAIRS, DEPTH))
                at = [places[half][0], places[half][1], piece * DEPTH]
            tlx.async_descriptor_load(desc, part, at, full[mine])


@triton.jit
def _copy_weights(
    p_desc, g_desc, blocks, full, empty, turns, ROWS: tl.constexpr,
    CHUNKS: tl.constexpr, P_PIECES: tl.constexpr, G_PIECES: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """Copy the weights, block by block of ROWS, for each tile again; once if all are RESIDENT."""
    step = 0
    for chunk in range(CHUNKS if RESIDENT else turns * CHUNKS):
        channel = chunk % CHUNKS * ROWS
        for piece in range(P_PIECES + G_PIECES):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], ROWS * DEPTH * tlx.size_of(tlx.dtype_of(p_desc)))
            if piece < P_PIECES:
                _copy_block(
                    p_desc, blocks[stage], full[stage], channel, piece * DEPTH, ROWS, CLUSTER
                )  # fmt: skip
            else:
                _copy_block(
                    g_desc, blocks[stage], full[stage], channel, (piece - P_PIECES) * DEPTH,
                    ROWS, CLUSTER,
                )  # fmt: skip
            step += 1


@triton.jit
def _copy_block(desc, block, full, row, depth, ROWS: tl.constexpr, CLUSTER: tl.constexpr):
    """Copy a block of weights; of a cluster each program copies its share to all."""
    if CLUSTER == 1:
        tlx.async_descriptor_load(desc, block, [row, depth], full)
    else:
        tl.static_assert(CLUSTER == 2)
        rank = tlx.cluster_cta_rank()
        SHARE: tl.constexpr = ROWS // CLUSTER
        for i in tl.static_range(CLUSTER):
            if rank == i:  # a slice begins at a constant
                part = tlx.local_slice(block, (i * SHARE, 0), (SHARE, DEPTH))
                tlx.async_descriptor_load(
                    desc, part, [row + i * SHARE, depth], full, multicast_targets=(0, 1)
                )  # fmt: skip


@triton.jit
def _measure_pairs(
    buffers, full, empty, at, phase, eps, PIECES: tl.constexpr, BY_COLUMN: tl.constexpr
):
    """1 / deviation of both blocks' pairs: twice (PAIRS,)."""
    mean, other_mean = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
    squares, other_squares = mean, mean
    for piece in tl.static_range(PIECES):
        buffer = buffers[at + piece]
        wait(full[at + piece], phase)
        if BY_COLUMN:
            one = tlx.local_trans(tlx.local_slice(buffer, (0, 0), (DEPTH, PAIRS)))
            other = tlx.local_trans(tlx.local_slice(buffer, (0, PAIRS), (DEPTH, PAIRS)))
        else:
            one = tlx.local_slice(buffer, (0, 0), (PAIRS, DEPTH))
            other = tlx.local_slice(buffer, (PAIRS, 0), (PAIRS, DEPTH))
        mean, squares = add_moments(mean, squares, one, piece * DEPTH)
        other_mean, other_squares = add_moments(other_mean, other_squares, other, piece * DEPTH)
        tlx.barrier_arrive(empty[at + piece])
    EXTENT: tl.constexpr = PIECES * DEPTH
    return _scale(squares / EXTENT, eps), _scale(other_squares / EXTENT, eps)


@triton.jit
def _scale(variance, eps):
    scale = tl.math.rsqrt(variance + eps)
    # Where all are the same only the shift is left: not what rounding made of it.
    return tl.where(variance == 0, variance * scale, scale)


@triton.jit
def _add_pieces(
    acc, blocks, full, empty, number, group, pairs, pairs_full, pairs_empty, at, pairs_phase,
    arrive, other, FIRST: tl.constexpr, PIECES: tl.constexpr, BLOCKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, BY_COLUMN: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """``acc + weights @ pairs.T`` over PIECES, of the group's BLOCKS of weights from FIRST on.

    Weights, and with ``arrive`` pairs, are done with then: see ``_done``. other: the barrier of the
    consumer whose turn it is while the last product is in flight; None: it stays this one's.
    """
    for piece in tl.static_range(PIECES):
        stage, phase = _place(number, group, FIRST + piece, BLOCKS, STAGES, RESIDENT)
        wait(full[stage], phase)
        wait(pairs_full[at + piece], pairs_phase)
        some = pairs[at + piece] if BY_COLUMN else tlx.local_trans(pairs[at + piece])
        acc = tlx.async_dot(blocks[stage], some, acc)
        acc = tlx.async_dot_wait(1, acc)
        if piece > 0:
            _done(
                empty, number, group, pairs_empty[at + piece - 1], arrive, FIRST + piece - 1,
                BLOCKS, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
    if other is not None:
        release(other)
    acc = tlx.async_dot_wait(0, acc)
    _done(
        empty, number, group, pairs_empty[at + PIECES - 1], arrive, FIRST + PIECES - 1,
        BLOCKS, STAGES, RESIDENT, CLUSTER,
    )  # fmt: skip
    return acc


@triton.jit
def _done(
    empty, number, group, pairs_empty, arrive, piece: tl.constexpr, BLOCKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """Say that a block of weights, and with ``arrive`` the pairs it was multiplied with, are free.

    To all who copy into them: only products read weights.
    """
    if not RESIDENT:
        stage, _ = _place(number, group, piece, BLOCKS, STAGES, RESIDENT)
        if CLUSTER == 1:
            release(empty[stage])
        else:
            for i in tl.static_range(CLUSTER):
                release(empty[stage], i)
    if arrive:
        release(pairs_empty)


@triton.jit
def _multiply(
    count, go, blocks, full, empty, number, group, z, z_full, z_empty, z_at,
    x, x_full, x_empty, at, phase, last, ME: tl.constexpr,
    P_PIECES: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    OUTPUT: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """What is gated, and its gates, when it is the consumer's turn; the other's is next.

    With OUTPUT the first is of products z, else of x too, and z is x.
    """
    BOTH: tl.constexpr = P_PIECES + PIECES
    _begin(go, count, ME)
    z_last = last if OUTPUT else False
    p = tl.zeros((GROUP, 2 * PAIRS), tl.float32)
    p = _add_pieces(
        p, blocks, full, empty, number, group, z, z_full, z_empty, z_at, phase, z_last, None,
        0, P_PIECES, BOTH, STAGES, RESIDENT, OUTPUT, CLUSTER,
    )  # fmt: skip
    g = tl.zeros((GROUP, 2 * PAIRS), tl.float32)
    g = _add_pieces(
        g, blocks, full, empty, number, group, x, x_full, x_empty, at, phase, last, go[1 - ME],
        P_PIECES, PIECES, BOTH, STAGES, RESIDENT, False, CLUSTER,
    )  # fmt: skip
    return p, g


@triton.jit
def _normalised(
    acc, measured, at, terms, MEASURED: tl.constexpr, UNITS: tl.constexpr
):  # fmt: skip
    """A product with folded weights, as if of normalised pairs, which it is if not MEASURED.

    terms: as of ``_terms``; measured: the pairs' scales, in a buffer.
    """
    shifts, units = terms
    if MEASURED:
        acc *= tlx.local_load(measured[at])[None, :]
    acc += shifts[:, None]
    return acc * units[:, None] if UNITS else acc


@triton.jit
def gated(p, g):
    """``p / (1 + 2 ** g)``; ``/`` would make more of the reciprocal."""
    return p * tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + tl.math.exp2(g)], tl.float32, is_pure=True,
        pack=1,
    )  # fmt: skip


@triton.jit
def _terms(terms, first, end, COUNT):
    """Shifts and units of a group's weights; first, end: rows among the COUNT."""
    rows = first + tl.arange(0, GROUP)
    some = rows < end
    return tl.load(terms + rows, some, 0.0), tl.load(terms + COUNT + rows, some, 0.0)


@tlx.jit(do_not_specialize=["B", "N"])
def project(
    x_desc, mask, w_desc, terms, kept, out_desc,
    B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
    PIECES: tl.constexpr, GROUPS: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    TILES: tl.constexpr, CLUSTER: tl.constexpr, MASKED: tl.constexpr, FULL: tl.constexpr,
    MEASURED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, channel-major; y: the norm of x.

    x_desc: (B * N, N, PIECES * DEPTH) in blocks of (1, PAIRS, DEPTH); ROW: N, up to a multiple of
    PAIRS; FULL: it is N. mask (B, N, N), read if MASKED. w_desc: (2 * GROUPS * GROUP, PIECES *
    DEPTH), GROUP rows of P, then those of G, in blocks of (2 * GROUP // CLUSTER, DEPTH); terms: of
    ``fold_norms``, COUNT of each kind. kept: fp32, (B * ROW * ROW,): 1 / deviation of each pair,
    for ``finish``. out_desc: (GROUPS * GROUP, B * ROW * ROW) in blocks of
    (GROUP, PAIRS), zeros past N. STAGES: blocks of weights in shared memory; RESIDENT: those
    are all; TILES: tiles there, 1 or 2. Grid: programs, any number of clusters of CLUSTER, of which
    each copies its share of the weights to all.
    """
    x = tlx.local_alloc((2 * PAIRS, DEPTH), tlx.dtype_of(x_desc), TILES * PIECES)
    blocks = tlx.local_alloc((2 * GROUP, DEPTH), tlx.dtype_of(w_desc), STAGES)
    results = tlx.local_alloc((GROUP, PAIRS), tlx.dtype_of(out_desc), 4)
    # Mask and scale of both blocks' pairs.
    measured = tlx.local_alloc((PAIRS,), tl.float32, 4)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, CLUSTER)
    x_full = tlx.alloc_barriers(TILES * PIECES, 1)
    x_empty = tlx.alloc_barriers(TILES * PIECES, 3 if MEASURED else 2)
    known, used = tlx.alloc_barriers(1, 1), tlx.alloc_barriers(1, 2)
    go = tlx.alloc_barriers(2, 1)
    # B * ROW * ROW is a multiple of 2 * PAIRS.
    turns = _turns(B * ROW * (ROW // PAIRS) // 2, CLUSTER)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _project(
                x, x_full, x_empty, blocks, full, empty, measured, known, used, go, results, terms,
                out_desc, turns, B, N, ROW, COUNT, 0,
                PIECES, GROUPS, STAGES, RESIDENT, TILES, CLUSTER, FULL, MEASURED, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=_CONSUMER):
            _project(
                x, x_full, x_empty, blocks, full, empty, measured, known, used, go, results, terms,
                out_desc, turns, B, N, ROW, COUNT, 1,
                PIECES, GROUPS, STAGES, RESIDENT, TILES, CLUSTER, FULL, MEASURED, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=_MEASURER):
            for turn in range(turns):
                masks = (
                    _mask_of(turn, 0, mask, B, N, ROW, stride_mb, stride_mi, stride_mk, MASKED),
                    _mask_of(turn, 1, mask, B, N, ROW, stride_mb, stride_mi, stride_mk, MASKED),
                )
                scales = ()
                if MEASURED:
                    scales = _measure_pairs(
                        x, x_full, x_empty, turn % TILES * PIECES, turn // TILES & 1, eps, PIECES,
                        False,
                    )  # fmt: skip
                tlx.barrier_wait(used[0], (turn & 1) ^ 1)
                for half in tl.static_range(2):
                    tlx.local_store(measured[half], masks[half])
                    if MEASURED:
                        tlx.local_store(measured[2 + half], scales[half])
                tlx.barrier_arrive(known[0])
                if MEASURED:
                    _keep(kept, scales, turn, B, ROW)
        with tlx.async_task(num_warps=1, num_regs=24):
            _copy_weights(
                w_desc, w_desc, blocks, full, empty, turns, 2 * GROUP,
                GROUPS, PIECES, 0, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            for turn in range(turns):
                places = _rows_of(turn, N, ROW)
                _copy_pairs(x_desc, x, x_full, x_empty, turn, places, PIECES, TILES, False)


@triton.jit
def _rows_of(turn, N, ROW):
    """Of both blocks the row among B * N, and the first pair there."""
    block, other = _block_of(turn, 0), _block_of(turn, 1)
    return _row_of(block, N, ROW), _row_of(other, N, ROW)


@triton.jit
def _row_of(block, N, ROW):
    row = block // (ROW // PAIRS)
    return row // ROW * N + row % ROW, block % (ROW // PAIRS) * PAIRS


@triton.jit
def _keep(kept, scales, turn, B, ROW):
    """Store the scales of both blocks' pairs."""
    for half in tl.static_range(2):
        at = _block_of(turn, half).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
        tl.store(kept + at, scales[half], at < B.to(tl.int64) * ROW * ROW)


@triton.jit
def _mask_of(
    turn, half, mask, B, N, ROW, stride_mb, stride_mi, stride_mk, MASKED: tl.constexpr
):  # fmt: skip
    """The mask of a block's pairs, zero past N."""
    block, pairs = _block_of(turn, half), tl.arange(0, PAIRS)
    inside = _inside(block, pairs, B, N, ROW)
    factor = tl.where(inside, 1.0, 0.0)
    if MASKED:
        row = block // (ROW // PAIRS)
        b, i = (row // ROW).to(tl.int64), (row % ROW).to(tl.int64)
        k = (block % (ROW // PAIRS) * PAIRS + pairs).to(tl.int64)
        at = mask + b * stride_mb + i * stride_mi + k * stride_mk
        factor = tl.load(at, inside, 0.0).to(tl.float32)
    return factor


@triton.jit
def _inside(block, pairs, B, N, ROW):
    """Whether a block's pairs are there: its row, and they in it."""
    row = block // (ROW // PAIRS)
    end = tl.where((row % ROW < N) & (row < B * ROW), N, 0)
    return block % (ROW // PAIRS) * PAIRS + pairs < end


@triton.jit
def _project(
    x, x_full, x_empty, blocks, full, empty, measured, known, used, go, results, terms,
    out_desc, turns, B, N, ROW, COUNT, ME: tl.constexpr, PIECES: tl.constexpr,
    GROUPS: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr, TILES: tl.constexpr,
    CLUSTER: tl.constexpr, FULL: tl.constexpr, MEASURED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    ALL: tl.constexpr = GROUPS * GROUP
    for turn in range(turns):
        at, phase = turn % TILES * PIECES, turn // TILES & 1
        for step in range(GROUPS // 2):
            group = step * 2 + ME
            number, last = turn * GROUPS + group, step == GROUPS // 2 - 1
            channel = group * GROUP
            p_terms = _terms(terms, channel, ALL, COUNT)
            g_terms = _terms(terms + ALL, channel, ALL, COUNT)
            _begin(go, turn * (GROUPS // 2) + step, ME)
            both = tl.zeros((2 * GROUP, 2 * PAIRS), tl.float32)
            both = _add_pieces(
                both, blocks, full, empty, number, group, x, x_full, x_empty, at, phase, last,
                go[1 - ME], 0, PIECES, PIECES, STAGES, RESIDENT, False, CLUSTER,
            )  # fmt: skip
            if step == 0:
                wait(known[0], turn & 1)
            p, g = top_and_bottom(both)
            ps, gs = halves_of(p), halves_of(g)
            for half in tl.static_range(2):
                # Units of what is not MEASURED stay with it.
                p = _normalised(ps[half], measured, 2 + half, p_terms, MEASURED, UNITS and MEASURED)
                g = _normalised(gs[half], measured, 2 + half, g_terms, MEASURED, UNITS)
                p = gated(p, g) * tlx.local_load(measured[half])[None, :]
                if not FULL:
                    inside = _inside(_block_of(turn, half), tl.arange(0, PAIRS), B, N, ROW)
                    p = tl.where(inside[None, :], p, 0.0)
                pair = _block_of(turn, half) * PAIRS
                put(out_desc, results, ME * 2 + half, 2, p, (channel,), pair, False)
            if last:
                tlx.barrier_arrive(used[0])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _place(
    number, group, piece: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr,
):  # fmt: skip
    """Where a block of a group's weights is, and the phase in which it is there.

    number: of the group, from the first tile on.
    """
    step = number * BLOCKS + piece
    stage, phase = step % STAGES, step // STAGES & 1
    if RESIDENT:
        stage, phase = group * BLOCKS + piece, 0
    elif STAGES == BLOCKS:
        # The minimum is 0, which the compiler does not see: it would work out the addresses of all
        # buffers before the loop, and spill them.
        stage, phase = tl.minimum(number, 0) + piece, number & 1
    return stage, phase


@triton.jit
def _begin(go, number, ME: tl.constexpr):
    """Wait until the other consumer has issued all products of the group before.

    Its waits are over then, too: a wait for weights cannot take an earlier group's for its own.
    """
    wait(go[ME], number & 1 if ME else (number & 1) ^ 1)


@tlx.jit(do_not_specialize=["B", "N"])
def finish(
    x_desc, products, p_desc, g_desc, g_terms, p_terms, kept, out_desc,
    B, N, ROW, C, COUNT, eps,
    PIECES: tl.constexpr, H_PIECES: tl.constexpr, GROUPS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, TILES: tl.constexpr, CLUSTER: tl.constexpr, MEASURED: tl.constexpr,
    UNITS: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, z the layer norm of the products, y that of x.

    x_desc and kept as of ``project``; products: (H_PIECES * DEPTH, B * ROW * ROW) in blocks of
    (DEPTH, PAIRS). p_desc: (C, H_PIECES * DEPTH), g_desc: (C, PIECES * DEPTH), in blocks of (GROUP
    // CLUSTER, DEPTH). g_terms, p_terms: the terms of ``fold_norms``, COUNT of each kind, from G's
    and from P's on. out_desc: (B * N, N, C), in blocks of (1, PAIRS, GROUP). GROUPS: of C, up to
    an even number. Grid: programs, any number of clusters of CLUSTER.
    """
    x = tlx.local_alloc((2 * PAIRS, DEPTH), tlx.dtype_of(x_desc), TILES * PIECES)
    z = tlx.local_alloc((DEPTH, 2 * PAIRS), tlx.dtype_of(p_desc), TILES * H_PIECES)
    blocks = tlx.local_alloc((GROUP, DEPTH), tlx.dtype_of(p_desc), STAGES)
    # Results of 4 bytes are handed over in twice as many parts.
    PART: tl.constexpr = PAIRS if MEASURED else PAIRS // 2
    results = tlx.local_alloc((PART, GROUP), tlx.dtype_of(out_desc), 4)
    # Scales of both blocks' pairs: of x, then of the products.
    measured = tlx.local_alloc((PAIRS,), tl.float32, 4 if MEASURED else 1)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, CLUSTER)
    x_full = tlx.alloc_barriers(TILES * PIECES, 1)
    x_empty = tlx.alloc_barriers(TILES * PIECES, 2)
    z_full = tlx.alloc_barriers(TILES * H_PIECES, 1)
    z_empty = tlx.alloc_barriers(TILES * H_PIECES, 3 if MEASURED else 2)
    known, used = tlx.alloc_barriers(1, 1), tlx.alloc_barriers(1, 2)
    go = tlx.alloc_barriers(2, 1)
    turns = _turns(tl.cdiv(B * N * (ROW // PAIRS), 2), CLUSTER)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, measured, known, used,
                go, results, g_terms, p_terms, out_desc, turns, N, ROW, C, COUNT, 0,
                PIECES, H_PIECES, GROUPS, STAGES, RESIDENT, TILES, CLUSTER, MEASURED, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=_CONSUMER):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, measured, known, used,
                go, results, g_terms, p_terms, out_desc, turns, N, ROW, C, COUNT, 1,
                PIECES, H_PIECES, GROUPS, STAGES, RESIDENT, TILES, CLUSTER, MEASURED, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=_MEASURER):
            if MEASURED:
                for turn in range(turns):
                    of_x = (_kept(kept, turn, 0, B, N, ROW), _kept(kept, turn, 1, B, N, ROW))
                    scales = _measure_pairs(
                        z, z_full, z_empty, turn % TILES * H_PIECES, turn // TILES & 1, eps,
                        H_PIECES, True,
                    )  # fmt: skip
                    tlx.barrier_wait(used[0], (turn & 1) ^ 1)
                    for half in tl.static_range(2):
                        tlx.local_store(measured[half], of_x[half])
                        tlx.local_store(measured[2 + half], scales[half])
                    tlx.barrier_arrive(known[0])
        with tlx.async_task(num_warps=1, num_regs=24):
            _copy_weights(
                p_desc, g_desc, blocks, full, empty, turns, GROUP,
                GROUPS, H_PIECES, PIECES, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            for turn in range(turns):
                places = _places_of(turn, N, ROW)
                # Products are done with first.
                _copy_pairs(products, z, z_full, z_empty, turn, places, H_PIECES, TILES, True)
                _copy_pairs(x_desc, x, x_full, x_empty, turn, places, PIECES, TILES, False)


@triton.jit
def _places_of(turn, N, ROW):
    """``_pairs_of`` both blocks."""
    block, other = _block_of(turn, 0), _block_of(turn, 1)
    return _pairs_of(block, N, ROW), _pairs_of(other, N, ROW)


@triton.jit
def _pairs_of(block, N, ROW):
    """A block's row among B * N, its first pair there, and that pair among B * ROW * ROW."""
    row, first = block // (ROW // PAIRS), block % (ROW // PAIRS) * PAIRS
    return row, first, (row // N * ROW + row % N) * ROW + first


@triton.jit
def _kept(kept, turn, half, B, N, ROW):
    """The scales of a block's pairs as ``project`` stored them."""
    row, _, pair = _pairs_of(_block_of(turn, half), N, ROW)
    there = tl.arange(0, PAIRS) < tl.where(row < B * N, PAIRS, 0)
    return tl.load(kept + pair.to(tl.int64) + tl.arange(0, PAIRS), there, 0.0)


@triton.jit
def _finish(
    x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, measured, known, used, go,
    results, g_terms, p_terms, out_desc, turns, N, ROW, C, COUNT, ME: tl.constexpr,
    PIECES: tl.constexpr, H_PIECES: tl.constexpr, GROUPS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, TILES: tl.constexpr, CLUSTER: tl.constexpr, MEASURED: tl.constexpr,
    UNITS: tl.constexpr,
):  # fmt: skip
    for turn in range(turns):
        at, z_at, phase = turn % TILES * PIECES, turn % TILES * H_PIECES, turn // TILES & 1
        for step in range(GROUPS // 2):
            group = step * 2 + ME
            number, last = turn * GROUPS + group, step == GROUPS // 2 - 1
            channel = group * GROUP
            of_p, of_g = _terms(p_terms, channel, C, COUNT), _terms(g_terms, channel, C, COUNT)
            p, g = _multiply(
                turn * (GROUPS // 2) + step, go, blocks, full, empty, number, group,
                z, z_full, z_empty, z_at, x, x_full, x_empty, at, phase, last,
                ME, H_PIECES, PIECES, STAGES, RESIDENT, True, CLUSTER,
            )  # fmt: skip
            if MEASURED:
                if step == 0:
                    wait(known[0], turn & 1)
            ps, gs = halves_of(p), halves_of(g)
            for half in tl.static_range(2):
                g = _normalised(gs[half], measured, half, of_g, MEASURED, UNITS)
                p = _normalised(ps[half], measured, 2 + half, of_p, MEASURED, UNITS)
                row, pair, _ = _pairs_of(_block_of(turn, half), N, ROW)
                # Pairs past N, and rows past B * N, are dropped.
                _put(out_desc, results, ME * 2, half, gated(p, g), row, pair, channel, MEASURED)
            if MEASURED:
                if last:
                    tlx.barrier_arrive(used[0])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _put(
    desc, results, first: tl.constexpr, half: tl.constexpr, values, row, pair, channel,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Hand over a block's results, WHOLE or by halves."""
    if WHOLE:
        put(desc, results, first + half, 2, values, (row, pair), channel, True)
    else:
        left, right = halves_of(values)
        put(desc, results, first, 2, left, (row, pair), channel, True)
        put(desc, results, first + 1, 2, right, (row, pair + PAIRS // 2), channel, True)
