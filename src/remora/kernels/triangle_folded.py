"""The triangle multiplicative update's kernels for Hopper, of bf16.

The layer norms are in the weights (:mod:`remora.kernels.triangle_folding`), and products read what
is not normalised. Two kernels, :func:`project` and :func:`finish`, are products of which one is
the other's gate; between them is ``triangle_hopper.pair_products``, and what they hand to each
other is as there. The consumers work out each row's mean and variance from shared memory while the
matrix units have its first products.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import halves_of
from remora.kernels.triangle_hopper import CHANNELS, DEPTH, PAIRS, copy_weights, gated, put
from remora.kernels.warp_group import release, row_moments


@triton.jit
def _turns(tiles, CLUSTER: tl.constexpr):
    """How many of the tiles are a program's: as many as of the others of its cluster."""
    clusters = tl.num_programs(0) // CLUSTER
    return tl.cdiv(tl.cdiv(tiles, CLUSTER) - tl.program_id(0) // CLUSTER, clusters)


@triton.jit
def _release(empty, CLUSTER: tl.constexpr):
    """Tell those who copy into a block of weights that it is free."""
    if CLUSTER == 1:
        release(empty)  # only products read it
    else:
        for i in tl.static_range(CLUSTER):
            tlx.barrier_arrive(empty, 1, i)


@triton.jit
def _copy_rows(
    desc, rows, full, empty, row, first, turn, ME: tl.constexpr, PIECES: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Copy a consumer's pairs, from ``first`` on, each piece when the last one is done with.

    Of a row of (rows, pairs, channels), or BY_COLUMN of (channels, pairs).
    """
    for piece in range(PIECES):
        mine = ME * PIECES + piece
        tlx.barrier_wait(empty[mine], (turn & 1) ^ 1)
        tlx.barrier_expect_bytes(full[mine], PAIRS * DEPTH * tlx.size_of(tlx.dtype_of(desc)))
        if BY_COLUMN:
            tlx.async_descriptor_load(desc, rows[mine], [piece * DEPTH, first], full[mine])
        else:
            tlx.async_descriptor_load(desc, rows[mine], [row, first, piece * DEPTH], full[mine])


@triton.jit
def _add_pieces(
    acc, rows, rows_full, rows_empty, blocks, full, empty, step, turn, arrive, measure,
    mean, squares, ME: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, BY_COLUMN: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """``acc + rows @ weights.T`` over all pieces; with ``arrive`` the rows are done with then.

    With ``measure`` the rows' mean and the sum of the squares of what differs from it, too.
    """
    for piece in tl.static_range(PIECES):
        stage = step % STAGES
        mine = ME * PIECES + piece
        tlx.barrier_wait(full[stage], 0 if RESIDENT else (step // STAGES) & 1)
        tlx.barrier_wait(rows_full[mine], turn & 1)
        some = tlx.local_trans(rows[mine]) if BY_COLUMN else rows[mine]
        acc = tlx.async_dot(some, tlx.local_trans(blocks[stage]), acc)
        if measure:
            m, q = row_moments(some)
            m -= mean
            mean += m * (1 / (piece + 1))
            squares += q + m * m * (piece * DEPTH / (piece + 1))
        # The product before this one is done then.
        acc = tlx.async_dot_wait(1, acc)
        if piece > 0:
            if not RESIDENT:
                _release(empty[(step - 1) % STAGES], CLUSTER)
            if arrive:
                tlx.barrier_arrive(rows_empty[mine - 1])
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    if not RESIDENT:
        _release(empty[(step - 1) % STAGES], CLUSTER)
    if arrive:
        tlx.barrier_arrive(rows_empty[ME * PIECES + PIECES - 1])
    return acc, step, mean, squares


@triton.jit
def _normalised(
    acc, mean, squares, eps, terms, first, end, COUNT, EXTENT: tl.constexpr
):  # fmt: skip
    """A product of EXTENT channels with folded weights, as if of normalised rows.

    first, end: of the weights' rows among the COUNT of all.
    """
    variance = squares / EXTENT
    scale = tl.math.rsqrt(variance + eps)
    # Where all are the same only the shift is left: not what rounding made of it.
    scale = tl.where(variance == 0, variance * scale, scale)
    rows = first + tl.arange(0, acc.shape[1])
    some = rows < end
    sums = tl.load(terms + rows, some, 0.0)
    shifts = tl.load(terms + COUNT + rows, some, 0.0)
    return (acc - mean[:, None] * sums[None, :]) * scale[:, None] + shifts[None, :]


@tlx.jit(do_not_specialize=["B", "N"])
def project(
    x_desc, mask, w_desc, terms, out_desc,
    B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
    PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    RESULTS: tl.constexpr, MASKED: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, channel-major; y: the norm of x.

    x_desc: (B * N, N, PIECES * DEPTH) in blocks of (1, PAIRS, DEPTH); ROW: N, up to a multiple of
    PAIRS. mask (B, N, N), read if MASKED. w_desc: (2 * CHUNKS * CHANNELS, PIECES * DEPTH),
    CHANNELS rows of P, then those of G, in blocks of (2 * CHANNELS // CLUSTER, DEPTH); terms: of
    ``fold_norms``, COUNT of each kind. out_desc: (CHUNKS * CHANNELS, B * ROW * ROW) in blocks of
    (CHANNELS // 2, PAIRS), zeros past N. STAGES: blocks of weights in shared memory; RESIDENT:
    those are all; RESULTS: buffers of results of each consumer, 1 or 2. Grid: programs, any number
    of clusters of CLUSTER, of which each copies its share of the weights to all.
    """
    x = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(x_desc), 2 * PIECES)
    blocks = tlx.local_alloc((2 * CHANNELS, DEPTH), tlx.dtype_of(w_desc), STAGES)
    results = tlx.local_alloc((CHANNELS // 2, PAIRS), tlx.dtype_of(out_desc), 2 * RESULTS)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2 * CLUSTER)
    x_full, x_empty = tlx.alloc_barriers(2 * PIECES, 1), tlx.alloc_barriers(2 * PIECES, 1)
    # Two consumers, PAIRS each; B * ROW * ROW is a multiple of 2 * PAIRS.
    turns = _turns(B * ROW * (ROW // PAIRS) // 2, CLUSTER)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _project(
                mask, x, x_full, x_empty, blocks, full, empty, results, terms, out_desc, turns,
                B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps, 0,
                PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, MASKED, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _project(
                mask, x, x_full, x_empty, blocks, full, empty, results, terms, out_desc, turns,
                B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps, 1,
                PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, MASKED, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            copy_weights(
                w_desc, w_desc, blocks, full, empty, turns, 2 * CHANNELS,
                CHUNKS, PIECES, 0, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            for turn in range(turns):
                for me in tl.static_range(2):
                    tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + me
                    row = tile // (ROW // PAIRS)
                    _copy_rows(
                        x_desc, x, x_full, x_empty, row // ROW * N + row % ROW,
                        tile % (ROW // PAIRS) * PAIRS, turn, me, PIECES, False,
                    )  # fmt: skip


@triton.jit
def _project(
    mask, x, x_full, x_empty, blocks, full, empty, results, terms, out_desc, turns,
    B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, RESULTS: tl.constexpr, MASKED: tl.constexpr,
    CLUSTER: tl.constexpr,
):  # fmt: skip
    EXTENT: tl.constexpr = PIECES * DEPTH
    ALL: tl.constexpr = CHUNKS * CHANNELS
    step = 0
    for turn in range(turns):
        tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + ME
        row = tile // (ROW // PAIRS)
        pairs = tile % (ROW // PAIRS) * PAIRS + tl.arange(0, PAIRS)
        b, i = (row // ROW).to(tl.int64), (row % ROW).to(tl.int64)
        inside = pairs < tl.where((i < N) & (b < B), N, 0)
        factor = tl.where(inside, 1.0, 0.0)
        if MASKED:
            at = mask + b * stride_mb + i * stride_mi + pairs.to(tl.int64) * stride_mk
            factor = tl.load(at, inside, 0.0).to(tl.float32)
        if RESIDENT:
            step = 0
        mean, squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
        for chunk in range(CHUNKS):
            both = tl.zeros((PAIRS, 2 * CHANNELS), tl.float32)
            both, step, mean, squares = _add_pieces(
                both, x, x_full, x_empty, blocks, full, empty, step, turn, chunk == CHUNKS - 1,
                chunk == 0, mean, squares, ME, PIECES, STAGES, RESIDENT, False, CLUSTER,
            )  # fmt: skip
            p, g = halves_of(both)
            ps, gs = halves_of(p), halves_of(g)
            for half in tl.static_range(2):
                p, g = ps[half], gs[half]
                channel = chunk * CHANNELS + half * (CHANNELS // 2)
                p = _normalised(p, mean, squares, eps, terms, channel, ALL, COUNT, EXTENT)
                g = _normalised(
                    g, mean, squares, eps, terms + ALL, channel, ALL, COUNT, EXTENT
                )  # fmt: skip
                p = tl.where(inside[:, None], gated(p, g) * factor[:, None], 0.0)
                mine = ME * RESULTS + half * (RESULTS - 1)
                put(out_desc, results, mine, RESULTS, p, (channel,), tile * PAIRS, True)
    tlx.async_descriptor_store_wait(0)


@tlx.jit(do_not_specialize=["B", "N"])
def finish(
    x_desc, products, p_desc, g_desc, g_terms, p_terms, out_desc,
    B, N, ROW, C, COUNT, eps,
    PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, RESULTS: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, z the layer norm of the products, y that of x.

    x_desc as of ``project``; products: (H_PIECES * DEPTH, B * ROW * ROW) in blocks of (DEPTH,
    PAIRS). p_desc: (C, H_PIECES * DEPTH), g_desc: (C, PIECES * DEPTH), in blocks of (CHANNELS //
    CLUSTER, DEPTH). g_terms, p_terms: the terms of ``fold_norms``, COUNT of each kind, from G's and
    from P's on. out_desc: (B * N, N, C), in blocks of (1, PAIRS, CHANNELS // 2). Grid: programs,
    any number of clusters of CLUSTER.
    """
    x = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(x_desc), 2 * PIECES)
    z = tlx.local_alloc((DEPTH, PAIRS), tlx.dtype_of(p_desc), 2 * H_PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(p_desc), STAGES)
    results = tlx.local_alloc((PAIRS, CHANNELS // 2), tlx.dtype_of(out_desc), 2 * RESULTS)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2 * CLUSTER)
    x_full, x_empty = tlx.alloc_barriers(2 * PIECES, 1), tlx.alloc_barriers(2 * PIECES, 1)
    z_full, z_empty = tlx.alloc_barriers(2 * H_PIECES, 1), tlx.alloc_barriers(2 * H_PIECES, 1)
    turns = _turns(tl.cdiv(B * N * (ROW // PAIRS), 2), CLUSTER)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results, g_terms,
                p_terms, out_desc, turns, N, ROW, C, COUNT, eps, 0,
                PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=224):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results, g_terms,
                p_terms, out_desc, turns, N, ROW, C, COUNT, eps, 1,
                PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            copy_weights(
                p_desc, g_desc, blocks, full, empty, turns, CHANNELS,
                CHUNKS, H_PIECES, PIECES, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            for turn in range(turns):
                for me in tl.static_range(2):  # which are done with first
                    _, _, pair = _pairs_of(turn, me, N, ROW)
                    _copy_rows(products, z, z_full, z_empty, 0, pair, turn, me, H_PIECES, True)
                for me in tl.static_range(2):
                    row, first, _ = _pairs_of(turn, me, N, ROW)
                    _copy_rows(x_desc, x, x_full, x_empty, row, first, turn, me, PIECES, False)


@triton.jit
def _pairs_of(turn, me, N, ROW):
    """A consumer's row among B * N, its first pair there, and that pair among B * ROW * ROW."""
    tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + me
    row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
    return row, first, (row // N * ROW + row % N) * ROW + first


@triton.jit
def _finish(
    x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results, g_terms,
    p_terms, out_desc, turns, N, ROW, C, COUNT, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, RESULTS: tl.constexpr,
    CLUSTER: tl.constexpr,
):  # fmt: skip
    EXTENT: tl.constexpr = PIECES * DEPTH
    H: tl.constexpr = H_PIECES * DEPTH
    step = 0
    for turn in range(turns):
        row, first, _ = _pairs_of(turn, ME, N, ROW)
        if RESIDENT:
            step = 0
        mean, squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
        z_mean, z_squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
        for chunk in range(CHUNKS):
            last = chunk == CHUNKS - 1
            p = tl.zeros((PAIRS, CHANNELS), tl.float32)
            p, step, z_mean, z_squares = _add_pieces(
                p, z, z_full, z_empty, blocks, full, empty, step, turn, last, chunk == 0,
                z_mean, z_squares, ME, H_PIECES, STAGES, RESIDENT, True, CLUSTER,
            )  # fmt: skip
            g = tl.zeros((PAIRS, CHANNELS), tl.float32)
            g, step, mean, squares = _add_pieces(
                g, x, x_full, x_empty, blocks, full, empty, step, turn, last, chunk == 0,
                mean, squares, ME, PIECES, STAGES, RESIDENT, False, CLUSTER,
            )  # fmt: skip
            ps, gs = halves_of(p), halves_of(g)
            at = (row, first)  # pairs past N, and rows past B * N, are dropped
            for half in tl.static_range(2):
                p, g = ps[half], gs[half]
                channel = chunk * CHANNELS + half * (CHANNELS // 2)
                p = _normalised(p, z_mean, z_squares, eps, p_terms, channel, C, COUNT, H)
                g = _normalised(g, mean, squares, eps, g_terms, channel, C, COUNT, EXTENT)
                mine = ME * RESULTS + half * (RESULTS - 1)
                put(out_desc, results, mine, RESULTS, gated(p, g), at, channel, False)
    tlx.async_descriptor_store_wait(0)
