"""The triangle multiplicative update's kernels for Hopper, on rows that are normalised already.

Three kernels, whose warps have tasks of their own: :func:`project` and :func:`finish`, two products
of which one is the other's gate (of bf16 those of :mod:`remora.kernels.triangle_folded`),
and :func:`pair_products`, the batched product between them.
Intermediates are channel-major, (channel, pair): so the batched product reads and writes plain
matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import halves_of, tile_of

#: Pairs of one consumer; channels of a block of weights, and its depth.
PAIRS = tl.constexpr(64)
CHANNELS = tl.constexpr(128)
DEPTH = tl.constexpr(64)

_NEGATIVE_LOG2_E = tl.constexpr(-1.4426950408889634)


@triton.jit
def gated(p, g):
    """``p / (1 + 2 ** g)``; ``/`` would make more of the reciprocal."""
    return p * tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + tl.math.exp2(g)], tl.float32, is_pure=True,
        pack=1,
    )  # fmt: skip


@triton.jit
def copy_weights(
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
def _copy_rows(
    desc, rows, full, empty, first, turn, ME: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Copy a consumer's rows from ``first`` on, each piece when the last one is done with."""
    for piece in range(PIECES):
        mine = ME * PIECES + piece
        tlx.barrier_wait(empty[mine], (turn & 1) ^ 1)
        tlx.barrier_expect_bytes(full[mine], PAIRS * DEPTH * tlx.size_of(tlx.dtype_of(desc)))
        tlx.async_descriptor_load(desc, rows[mine], [first, piece * DEPTH], full[mine])


@triton.jit
def _add_pieces(
    acc, rows, rows_full, rows_empty, blocks, full, empty, step, turn, arrive,
    ME: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    COPIED: tl.constexpr,
):  # fmt: skip
    """``acc + rows @ weights.T`` over all pieces.

    The rows are COPIED, by row, and with ``arrive`` done with afterwards; or the consumer's own,
    by column.
    """
    for piece in range(PIECES):
        stage = step % STAGES
        mine = ME * PIECES + piece
        tlx.barrier_wait(full[stage], 0 if RESIDENT else (step // STAGES) & 1)
        if COPIED:
            tlx.barrier_wait(rows_full[mine], turn & 1)
        some = rows[mine] if COPIED else tlx.local_trans(rows[mine])
        acc = tlx.async_dot(some, tlx.local_trans(blocks[stage]), acc)
        # The product before this one is done then.
        acc = tlx.async_dot_wait(1, acc)
        if piece > 0:
            if not RESIDENT:
                tlx.barrier_arrive(empty[(step - 1) % STAGES])
            if COPIED:
                if arrive:
                    tlx.barrier_arrive(rows_empty[mine - 1])
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    if not RESIDENT:
        tlx.barrier_arrive(empty[(step - 1) % STAGES])
    if COPIED:
        if arrive:
            tlx.barrier_arrive(rows_empty[ME * PIECES + PIECES - 1])
    return acc, step


@triton.jit(do_not_specialize=("B", "N"))
def project(
    y_desc, mask, p_desc, g_desc, g_unit, out_desc,
    B, N, ROW, stride_mb, stride_mi, stride_mk,
    PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    RESULTS: tl.constexpr, MASKED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, channel-major.

    y_desc: (B * ROW * ROW, PIECES * DEPTH) in blocks of (PAIRS, DEPTH); ROW: N, up to a
    multiple of PAIRS; what is past N may be anything. mask (B, N, N), read if MASKED.
    p_desc, g_desc: (CHUNKS * CHANNELS, PIECES * DEPTH) in blocks of (CHANNELS, DEPTH);
    g_unit: with SCALED what each gate's logits are multiplied by. out_desc:
    (CHUNKS * CHANNELS, B * ROW * ROW) in blocks of (CHANNELS // 2, PAIRS), zeros past N.
    STAGES: blocks of weights in shared memory; RESIDENT: those are all; RESULTS: buffers of
    results of each consumer, 1 or 2. Grid: programs, any
    number.
    """
    y = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(y_desc), 2 * PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(p_desc), STAGES)
    results = tlx.local_alloc((CHANNELS // 2, PAIRS), tlx.dtype_of(out_desc), 2 * RESULTS)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    y_full, y_empty = tlx.alloc_barriers(2 * PIECES, 1), tlx.alloc_barriers(2 * PIECES, 1)
    # Two consumers, PAIRS each; B * ROW * ROW is a multiple of 2 * PAIRS.
    all_tiles = B * ROW * (ROW // PAIRS) // 2
    tiles = tl.cdiv(all_tiles - tl.program_id(0), tl.num_programs(0))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _project(
                mask, y, y_full, y_empty, blocks, full, empty, results, g_unit, out_desc, tiles,
                N, ROW, stride_mb, stride_mi, stride_mk,
                0, PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, MASKED, SCALED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _project(
                mask, y, y_full, y_empty, blocks, full, empty, results, g_unit, out_desc, tiles,
                N, ROW, stride_mb, stride_mi, stride_mk,
                1, PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, MASKED, SCALED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            copy_weights(
                p_desc, g_desc, blocks, full, empty, tiles, CHANNELS,
                CHUNKS, PIECES, PIECES, STAGES, RESIDENT, 1,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            for turn in range(tiles):
                first = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 * PAIRS
                _copy_rows(y_desc, y, y_full, y_empty, first, turn, 0, PIECES)
                _copy_rows(y_desc, y, y_full, y_empty, first + PAIRS, turn, 1, PIECES)


@triton.jit
def _project(
    mask, y, y_full, y_empty, blocks, full, empty, results, g_unit, out_desc, tiles,
    N, ROW, stride_mb, stride_mi, stride_mk,
    ME: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, RESULTS: tl.constexpr, MASKED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    first, second = ME * RESULTS, ME * RESULTS + RESULTS - 1
    step = 0
    for turn in range(tiles):
        tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + ME
        row = tile // (ROW // PAIRS)
        pairs = tile % (ROW // PAIRS) * PAIRS + tl.arange(0, PAIRS)
        b, i = (row // ROW).to(tl.int64), (row % ROW).to(tl.int64)
        inside = pairs < tl.where(i < N, N, 0)
        factor = tl.where(inside, 1.0, 0.0)
        if MASKED:
            at = mask + b * stride_mb + i * stride_mi + pairs.to(tl.int64) * stride_mk
            factor = tl.load(at, inside, 0.0).to(tl.float32)
        if RESIDENT:
            step = 0
        for chunk in range(CHUNKS):
            p = tl.zeros((PAIRS, CHANNELS), tl.float32)
            p, step = _add_pieces(
                p, y, y_full, y_empty, blocks, full, empty, step, turn, False,
                ME, PIECES, STAGES, RESIDENT, True,
            )  # fmt: skip
            g = tl.zeros((PAIRS, CHANNELS), tl.float32)
            g, step = _add_pieces(
                g, y, y_full, y_empty, blocks, full, empty, step, turn, chunk == CHUNKS - 1,
                ME, PIECES, STAGES, RESIDENT, True,
            )  # fmt: skip
            channel = chunk * CHANNELS
            if SCALED:
                g *= tl.load(g_unit + channel + tl.arange(0, CHANNELS))[None, :]
            p = gated(p, g * _NEGATIVE_LOG2_E) * factor[:, None]
            left, right = halves_of(tl.where(inside[:, None], p, 0.0))
            put(out_desc, results, first, RESULTS, left, (channel,), tile * PAIRS, True)
            channel += CHANNELS // 2
            put(out_desc, results, second, RESULTS, right, (channel,), tile * PAIRS, True)
    tlx.async_descriptor_store_wait(0)


@triton.jit(do_not_specialize=("B", "N"))
def finish(
    y_desc, products, weight, bias, p_desc, g_desc, unit, g_unit, p_unit, out_desc,
    B, N, ROW, C, eps,
    PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, RESULTS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, z the layer norm of the products.

    y_desc as of ``project``; products: (H_PIECES * DEPTH, B * ROW * ROW). p_desc: (C,
    H_PIECES * DEPTH), g_desc: (C, PIECES * DEPTH), in blocks of (CHANNELS, DEPTH). With
    SCALED: unit (2, H_PIECES * DEPTH): what the products' channels are multiplied by; g_unit
    and p_unit (C): the logits and the results. out_desc: (B * N, N, C), in blocks of
    (1, PAIRS, CHANNELS // 2), with SCALED CHANNELS // 4. Grid: programs, any number.
    """
    PART: tl.constexpr = CHANNELS // 4 if SCALED else CHANNELS // 2
    y = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(y_desc), 2 * PIECES)
    z = tlx.local_alloc((DEPTH, PAIRS), tlx.dtype_of(p_desc), 2 * H_PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(p_desc), STAGES)
    results = tlx.local_alloc((PAIRS, PART), tlx.dtype_of(out_desc), 2 * RESULTS)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    y_full, y_empty = tlx.alloc_barriers(2 * PIECES, 1), tlx.alloc_barriers(2 * PIECES, 1)
    all_tiles = tl.cdiv(B * N * (ROW // PAIRS), 2)
    tiles = tl.cdiv(all_tiles - tl.program_id(0), tl.num_programs(0))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _finish(
                y, y_full, y_empty, z, blocks, full, empty, results, products,
                weight, bias, unit, g_unit, p_unit, out_desc, tiles, B, N, ROW, C, eps,
                0, PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, SCALED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=224):
            _finish(
                y, y_full, y_empty, z, blocks, full, empty, results, products,
                weight, bias, unit, g_unit, p_unit, out_desc, tiles, B, N, ROW, C, eps,
                1, PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, SCALED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            copy_weights(
                p_desc, g_desc, blocks, full, empty, tiles, CHANNELS,
                CHUNKS, H_PIECES, PIECES, STAGES, RESIDENT, 1,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            for turn in range(tiles):
                ahead = (tl.program_id(0) + (turn + 1) * tl.num_programs(0)) * 2 * PAIRS
                _prefetch(products, ahead, B, N, ROW, H_PIECES)
                for me in tl.static_range(2):
                    tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + me
                    row = tile // (ROW // PAIRS)
                    first = (row // N * ROW + row % N) * ROW + tile % (ROW // PAIRS) * PAIRS
                    _copy_rows(y_desc, y, y_full, y_empty, first, turn, me, PIECES)


@triton.jit
def _prefetch(products, pair, B, N, ROW, PIECES: tl.constexpr):
    """Have the products of two consumers' pairs brought to the L2 cache, from a pair on."""
    LINE: tl.constexpr = 128 // tlx.size_of(tlx.dtype_of(products))
    row = pair // ROW
    at = products + tl.cast(row // N * ROW + row % N, tl.int64) * ROW + pair % ROW
    # The second consumer's pairs may be in the next row: a hint that comes to nothing then.
    lines = (tl.arange(0, 2 * PAIRS // LINE) * LINE)[None, :]
    plane = tl.cast(B, tl.int64) * ROW * ROW
    # A few channels at a time: the task has few registers.
    at = at + tl.arange(0, 32)[:, None] * plane + lines
    for _ in range(PIECES * DEPTH // 32):
        tlx.prefetch(at, "L2", (row < B * N) & (lines >= 0))
        at += 32 * plane


@triton.jit
def _normalise(
    products, apart, there, z, weight, bias, unit, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The layer norm of a consumer's products, ``apart`` from channel to channel, into buffers.

    The sums are of differences to the first channel's products, which are never more than
    sqrt(channels) standard deviations from the mean: nothing cancels.
    """
    EXTENT: tl.constexpr = PIECES * DEPTH
    depth = tl.arange(0, DEPTH)
    pairs = tl.arange(0, PAIRS)
    at = products + depth[:, None] * apart + pairs[None, :]
    parts = ()
    for piece in tl.static_range(PIECES):
        parts += (tl.load(at + piece * DEPTH * apart, there, 0.0),)  # type: ignore[assignment]
    shift = tl.load(products + pairs, there, 0.0).to(tl.float32)
    if SCALED:
        shift *= tl.load(unit) * tl.load(unit + EXTENT)
    totals = tl.zeros((DEPTH, PAIRS), tl.float32)
    squares = tl.zeros((DEPTH, PAIRS), tl.float32)
    for piece in tl.static_range(PIECES):
        x = _unscaled(parts[piece], unit, piece, EXTENT, SCALED) - shift[None, :]
        totals += x
        squares += x * x
    mean = tl.sum(totals, 0) / EXTENT
    variance = tl.maximum(tl.sum(squares, 0) / EXTENT - mean * mean, 0.0)
    scale = tl.math.rsqrt(variance + eps)
    mean += shift
    for piece in tl.static_range(PIECES):
        w = tl.load(weight + piece * DEPTH + depth).to(tl.float32)
        b = tl.load(bias + piece * DEPTH + depth).to(tl.float32)
        x = _unscaled(parts[piece], unit, piece, EXTENT, SCALED)
        x = (x - mean[None, :]) * scale[None, :] * w[:, None] + b[:, None]
        buffer = z[ME * PIECES + piece]
        tlx.local_store(buffer, x.to(tlx.dtype_of(buffer)))
    tlx.fence_async_shared()


@triton.jit
def _unscaled(x, unit, piece: tl.constexpr, EXTENT: tl.constexpr, SCALED: tl.constexpr):
    """Some channels of the products as they are without the weights' scales, in fp32."""
    x = x.to(tl.float32)
    if SCALED:
        at = unit + piece * DEPTH + tl.arange(0, DEPTH)
        x *= (tl.load(at) * tl.load(at + EXTENT))[:, None]
    return x


@triton.jit
def _finish(
    y, y_full, y_empty, z, blocks, full, empty, results, products,
    weight, bias, unit, g_unit, p_unit, out_desc, tiles, B, N, ROW, C, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, RESULTS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    one, other = ME * RESULTS, ME * RESULTS + RESULTS - 1
    step = 0
    for turn in range(tiles):
        tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + ME
        row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
        apart = tl.cast(B, tl.int64) * ROW * ROW
        mine = products + tl.cast(row // N * ROW + row % N, tl.int64) * ROW + first
        _normalise(
            mine, apart, row < B * N, z, weight, bias, unit, eps, ME, H_PIECES, SCALED
        )  # fmt: skip
        if RESIDENT:
            step = 0
        for chunk in range(CHUNKS):
            last = chunk == CHUNKS - 1
            p = tl.zeros((PAIRS, CHANNELS), tl.float32)
            p, step = _add_pieces(
                p, z, full, empty, blocks, full, empty, step, turn, last,
                ME, H_PIECES, STAGES, RESIDENT, False,
            )  # fmt: skip
            g = tl.zeros((PAIRS, CHANNELS), tl.float32)
            g, step = _add_pieces(
                g, y, y_full, y_empty, blocks, full, empty, step, turn, last,
                ME, PIECES, STAGES, RESIDENT, True,
            )  # fmt: skip
            channel = chunk * CHANNELS
            channels = channel + tl.arange(0, CHANNELS)
            if SCALED:
                g *= tl.load(g_unit + channels, channels < C, 0.0)[None, :]
                p *= tl.load(p_unit + channels, channels < C, 0.0)[None, :]
            p = gated(p, g * _NEGATIVE_LOG2_E)
            at = (row, first)  # pairs past N, and rows past B * N, are dropped
            left, right = halves_of(p)
            if SCALED:
                _put_quarters(out_desc, results, one, other, RESULTS, left, at, channel)
                channel += CHANNELS // 2
                _put_quarters(out_desc, results, one, other, RESULTS, right, at, channel)
            else:
                put(out_desc, results, one, RESULTS, left, at, channel, False)
                channel += CHANNELS // 2
                put(out_desc, results, other, RESULTS, right, at, channel, False)
    tlx.async_descriptor_store_wait(0)


@triton.jit(do_not_specialize=("BATCHES",))
def pair_products(
    a_desc, b_desc, c_desc, BATCHES, ROW,
    BLOCK_N: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr, INCOMING: tl.constexpr,
):  # fmt: skip
    """``A @ B.T`` for each of BATCHES pairs of matrices; ``A.T @ B`` if INCOMING.

    a_desc, b_desc: the A's, then the B's, of ROW x ROW, one below the other; in blocks
    of (64, 64) and (BLOCK_N, 64), (64, BLOCK_N) if INCOMING. c_desc: the products, in
    blocks of (64, BLOCK_N // PARTS), PARTS 2 or 4. ROW: a multiple of 64.
    Grid: programs, any number.
    """
    B_SHAPE: tl.constexpr = (64, BLOCK_N) if INCOMING else (BLOCK_N, 64)
    a_buffers = tlx.local_alloc((64, 64), tlx.dtype_of(a_desc), STAGES * 2)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = tlx.local_alloc((64, BLOCK_N // PARTS), tlx.dtype_of(c_desc), 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _multiply_pairs(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
                0, BLOCK_N, PARTS, STAGES, INCOMING,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _multiply_pairs(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
                1, BLOCK_N, PARTS, STAGES, INCOMING,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _copy_pairs(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, BATCHES, ROW,
                BLOCK_N, STAGES, INCOMING,
            )  # fmt: skip


@triton.jit
def _tile(tile, ROW, BLOCK_N: tl.constexpr):
    """The batch of a tile, its first row and its first column."""
    tiles = tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    tile_m, tile_n = tile_of(tile % tiles, ROW, ROW, 128, BLOCK_N, 8)
    return tile // tiles, tile_m * 128, tile_n * BLOCK_N


@triton.jit
def _copy_pairs(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, BATCHES, ROW,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, INCOMING: tl.constexpr,
):  # fmt: skip
    step = 0
    tiles = BATCHES * tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        batch, row, column = _tile(tile, ROW, BLOCK_N)
        a_first, b_first = batch * ROW, (BATCHES + batch) * ROW
        for k in range(0, ROW, 64):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(
                full[stage], (128 + BLOCK_N) * 64 * tlx.size_of(tlx.dtype_of(a_desc))
            )
            for part in tl.static_range(2):
                buffer = a_buffers[stage * 2 + part]
                if INCOMING:
                    at = [a_first + k, row + part * 64]
                else:
                    at = [a_first + row + part * 64, k]
                tlx.async_descriptor_load(a_desc, buffer, at, full[stage])
            at = [b_first + k, column] if INCOMING else [b_first + column, k]
            tlx.async_descriptor_load(b_desc, b_buffers[stage], at, full[stage])
            step += 1


@triton.jit
def _multiply_pairs(
    c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
    PART: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    INCOMING: tl.constexpr,
):  # fmt: skip
    """Half of the rows of each of the program's tiles."""
    tl.assume(ROW > 0)
    step = 0
    tiles = BATCHES * tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        batch, row, column = _tile(tile, ROW, BLOCK_N)
        row += PART * 64
        acc = tl.zeros((64, BLOCK_N), tl.float32)
        before = step % STAGES
        for k in range(0, ROW, 64):
            stage = step % STAGES
            tlx.barrier_wait(full[stage], (step // STAGES) & 1)
            a, b = a_buffers[stage * 2 + PART], b_buffers[stage]
            if INCOMING:
                a = tlx.local_trans(a)
            else:
                b = tlx.local_trans(b)
            acc = tlx.async_dot_wait(1, tlx.async_dot(a, b, acc))
            if k > 0:
                tlx.barrier_arrive(empty[before])
            before = stage
            step += 1
        acc = tlx.async_dot_wait(0, acc)
        tlx.barrier_arrive(empty[before])
        if row < ROW:  # else the rows are the next batch's
            at = (batch * ROW + row,)
            left, right = halves_of(acc)
            if PARTS == 2:
                put(c_desc, c_buffers, PART, 1, left, at, column, False)
                put(c_desc, c_buffers, PART, 1, right, at, column + BLOCK_N // 2, False)
            else:
                _put_quarters(c_desc, c_buffers, PART, PART, 1, left, at, column)
                _put_quarters(c_desc, c_buffers, PART, PART, 1, right, at, column + BLOCK_N // 2)
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _put_quarters(
    desc, buffers, one: tl.constexpr, other: tl.constexpr, COUNT: tl.constexpr, half, at, column
):  # fmt: skip
    left, right = halves_of(half)
    put(desc, buffers, one, COUNT, left, at, column, False)
    put(desc, buffers, other, COUNT, right, at, column + half.shape[1] // 2, False)


@triton.jit
def put(
    desc, buffers, mine: tl.constexpr, COUNT: tl.constexpr, values, at, column,
    BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Hand values to the copy engine, through one of the COUNT buffers that take turns.

    They go to ``(*at, column)``; what is past the tensor's end is dropped.
    """
    tlx.async_descriptor_store_wait(COUNT - 1)  # the store from this buffer has read it
    buffer = buffers[mine]
    view = tlx.local_trans(buffer) if BY_COLUMN else buffer
    tlx.local_store(view, values.to(tlx.dtype_of(desc)))
    tlx.fence_async_shared()
    at += (column,)
    tlx.async_descriptor_store(desc, buffer, at)
