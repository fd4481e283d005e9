"""The triangle multiplicative update's kernels for Hopper.

Two kernels: :func:`gated_products`, which makes the projections of a normalised
tensor (first and last step of the update), and :func:`pair_products`, the batched
product between them. Intermediates are channel-major, (channel, pair): so the batched
product reads and writes plain matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import tile_of
from remora.kernels.triangle_stock import sigmoid

#: Pairs of one consumer; channels of a block of weights, and its depth.
PAIRS = tl.constexpr(64)
CHANNELS = tl.constexpr(128)
DEPTH = tl.constexpr(64)


@triton.jit
def _unit(at, EXTENT: tl.constexpr):
    return tl.load(at) * tl.load(at + EXTENT)


@triton.jit
def _normalise(
    buffers, first: tl.constexpr, at, step, inside, weight, bias, unit, eps,
    PIECES: tl.constexpr, SCALED: tl.constexpr, BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """The layer norm of rows, into PIECES buffers of DEPTH columns, BY_COLUMN or by row.

    at: (PAIRS, DEPTH) pointers to the first piece; step: from one piece to the next; inside:
    where there is anything, else zero.
    unit: with SCALED columns are multiplied by both its rows, (2, columns), before all else.
    The sums are of differences to the row's first element, which is never more than
    sqrt(columns) standard deviations from the mean: nothing cancels.
    """
    EXTENT: tl.constexpr = PIECES * DEPTH
    total = tl.zeros((PAIRS,), tl.float32)
    squares = tl.zeros((PAIRS,), tl.float32)
    columns = tl.arange(0, DEPTH)
    shift = total
    for piece in tl.static_range(PIECES):
        x = tl.load(at + piece * step, inside, 0.0, eviction_policy="evict_last")
        x = x.to(tl.float32)
        if SCALED:
            x *= _unit(unit + piece * DEPTH + columns, EXTENT)[None, :]
        if piece == 0:
            shift = tl.sum(tl.where(columns[None, :] == 0, x, 0.0), 1)
        x -= shift[:, None]
        total += tl.sum(x, 1)
        squares += tl.sum(x * x, 1)
    mean = total / EXTENT
    scale = tl.math.rsqrt(tl.maximum(squares / EXTENT - mean * mean, 0.0) + eps)
    mean += shift
    for piece in tl.static_range(PIECES):
        # Read again, from the L2 cache: the registers would not hold a row of 384 in fp32.
        x = tl.load(at + piece * step, inside, 0.0, eviction_policy="evict_first")
        x = x.to(tl.float32)
        if SCALED:
            x *= _unit(unit + piece * DEPTH + columns, EXTENT)[None, :]
        w = tl.load(weight + piece * DEPTH + columns).to(tl.float32)
        b = tl.load(bias + piece * DEPTH + columns).to(tl.float32)
        x = (x - mean[:, None]) * scale[:, None] * w[None, :] + b[None, :]
        buffer = buffers[first + piece]
        view = tlx.local_trans(buffer) if BY_COLUMN else buffer
        tlx.local_store(view, x.to(tlx.dtype_of(buffer)))
    tlx.fence_async_shared()


@triton.jit
def _fill(desc, blocks, full, empty, channel, piece: tl.constexpr, step, STAGES: tl.constexpr):
    """Copy one block of weights, when its buffer is free; the next step."""
    stage = step % STAGES
    tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
    tlx.barrier_expect_bytes(full[stage], CHANNELS * DEPTH * tlx.size_of(tlx.dtype_of(desc)))
    tlx.async_descriptor_load(desc, blocks[stage], [channel, piece * DEPTH], full[stage])
    return step + 1


@triton.jit
def _produce(
    p_desc, g_desc, blocks, full, empty, tiles,
    CHUNKS: tl.constexpr, P_PIECES: tl.constexpr, G_PIECES: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr,
):  # fmt: skip
    """Copy the weights, block by block, for each tile again; once if all are RESIDENT."""
    step = 0
    chunks = CHUNKS if RESIDENT else tiles * CHUNKS + CHUNKS // 2
    for chunk in range(chunks):
        channel = chunk % CHUNKS * CHANNELS
        for piece in tl.static_range(P_PIECES):
            step = _fill(p_desc, blocks, full, empty, channel, piece, step, STAGES)
        for piece in tl.static_range(G_PIECES):
            step = _fill(g_desc, blocks, full, empty, channel, piece, step, STAGES)


@triton.jit
def _skip(full, empty, BLOCKS: tl.constexpr, step, STAGES: tl.constexpr):
    """Let blocks pass that are the other consumer's alone."""
    for _ in range(BLOCKS):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        tlx.barrier_arrive(empty[stage])
        step += 1
    return step


@triton.jit
def _add_pieces(
    acc, rows, first: tl.constexpr, blocks, full, empty, step,
    PIECES: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr, BY_COLUMN: tl.constexpr,
    HELD: tl.constexpr,
):  # fmt: skip
    """``acc + rows @ weights.T``; the last product is in flight, and its block held.

    HELD: 1 if so is the block before the first one, else 0.
    """
    for piece in range(PIECES):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], 0 if RESIDENT else (step // STAGES) & 1)
        some = rows[first + piece]
        some = tlx.local_trans(some) if BY_COLUMN else some
        acc = tlx.async_dot(some, tlx.local_trans(blocks[stage]), acc)
        acc = tlx.async_dot_wait(1, acc)
        if piece + HELD > 0 and not RESIDENT:
            tlx.barrier_arrive(empty[(step - 1) % STAGES])
        step += 1
    return acc, step


@triton.jit
def _gated(
    left, l_first: tl.constexpr, right, r_first: tl.constexpr, blocks, full, empty, step,
    P_PIECES: tl.constexpr, G_PIECES: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    L_BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """A chunk of channels: ``left @ P.T`` and ``right @ G.T``, (PAIRS, CHANNELS) each."""
    p = tl.zeros((PAIRS, CHANNELS), tl.float32)
    g = tl.zeros((PAIRS, CHANNELS), tl.float32)
    p, step = _add_pieces(
        p, left, l_first, blocks, full, empty, step, P_PIECES, STAGES, RESIDENT, L_BY_COLUMN, 0
    )  # fmt: skip
    g, step = _add_pieces(
        g, right, r_first, blocks, full, empty, step, G_PIECES, STAGES, RESIDENT, False, 1
    )  # fmt: skip
    p = tlx.async_dot_wait(0, p)
    g = tlx.async_dot_wait(0, g)
    if not RESIDENT:
        tlx.barrier_arrive(empty[(step - 1) % STAGES])
    return p, g, step


@triton.jit(do_not_specialize=("B", "N"))
def project(
    x, mask, weight, bias, p_desc, g_desc, g_unit, out_desc,
    B, N, ROW, stride_xb, stride_xi, stride_xk, stride_mb, stride_mi, stride_mk, eps,
    PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    MASKED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, y the layer norm of x, channel-major.

    x: (B, N, N, PIECES * DEPTH), the last stride 1; mask (B, N, N), read if MASKED.
    p_desc, g_desc: (CHUNKS * CHANNELS, PIECES * DEPTH) in blocks of (CHANNELS, DEPTH);
    g_unit: with SCALED what each gate's logits are multiplied by. out_desc:
    (CHUNKS * CHANNELS, B * ROW * ROW) in blocks of (CHANNELS // 2, PAIRS); ROW: N, up to a
    multiple of PAIRS; zeros past N. Grid: programs, any number.
    """
    y = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(p_desc), 2 * PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(p_desc), STAGES)
    results = tlx.local_alloc((CHANNELS // 2, PAIRS), tlx.dtype_of(out_desc), 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    # Two consumers, PAIRS each; B * ROW * ROW is a multiple of 2 * PAIRS.
    all_tiles = B * ROW * (ROW // PAIRS) // 2
    tiles = tl.cdiv(all_tiles - tl.program_id(0), tl.num_programs(0))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _project(
                x, mask, weight, bias, y, blocks, results, full, empty, g_unit, out_desc, tiles,
                N, ROW, stride_xb, stride_xi, stride_xk, stride_mb, stride_mi, stride_mk, eps,
                0, PIECES, CHUNKS, STAGES, RESIDENT, MASKED, SCALED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _project(
                x, mask, weight, bias, y, blocks, results, full, empty, g_unit, out_desc, tiles,
                N, ROW, stride_xb, stride_xi, stride_xk, stride_mb, stride_mi, stride_mk, eps,
                1, PIECES, CHUNKS, STAGES, RESIDENT, MASKED, SCALED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                p_desc, g_desc, blocks, full, empty, tiles,
                CHUNKS, PIECES, PIECES, STAGES, RESIDENT,
            )  # fmt: skip


@triton.jit
def _project(
    x, mask, weight, bias, y, blocks, results, full, empty, g_unit, out_desc, tiles,
    N, ROW, stride_xb, stride_xi, stride_xk, stride_mb, stride_mi, stride_mk, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, MASKED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    buffer = results[ME]
    # The consumers are half a tile apart, so that one multiplies while the other normalises.
    LAG: tl.constexpr = 0 if RESIDENT else CHUNKS // 2
    step = 0
    if ME == 1:
        step = _skip(full, empty, LAG * 2 * PIECES, step, STAGES)
    for turn in range(tiles):
        tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + ME
        row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
        b, i = (row // ROW).to(tl.int64), (row % ROW).to(tl.int64)
        pairs = first + tl.arange(0, PAIRS)
        inside = pairs < tl.where(i < N, N, 0)
        at = x + b * stride_xb + i * stride_xi
        at = at + pairs.to(tl.int64)[:, None] * stride_xk + tl.arange(0, DEPTH)[None, :]
        _normalise(
            y, ME * PIECES, at, DEPTH, inside[:, None], weight, bias, g_unit, eps,
            PIECES, False, False,
        )  # fmt: skip
        factor = tl.where(inside, 1.0, 0.0)
        if MASKED:
            at_mask = mask + b * stride_mb + i * stride_mi + pairs.to(tl.int64) * stride_mk
            factor = tl.load(at_mask, inside, 0.0).to(tl.float32)
        if RESIDENT:
            step = 0
        for part in range(CHUNKS):
            channel = (part + LAG * ME) % CHUNKS * CHANNELS
            p, g, step = _gated(
                y, ME * PIECES, y, ME * PIECES, blocks, full, empty, step,
                PIECES, PIECES, STAGES, RESIDENT, False,
            )  # fmt: skip
            if SCALED:
                g *= tl.load(g_unit + channel + tl.arange(0, CHANNELS))[None, :]
            p = p * sigmoid(g) * factor[:, None]
            p = tl.where(inside[:, None], p, 0.0)
            left, right = _halves(p)
            _put(out_desc, buffer, tlx.local_trans(buffer), left, channel, tile * PAIRS)
            channel += CHANNELS // 2
            _put(out_desc, buffer, tlx.local_trans(buffer), right, channel, tile * PAIRS)
    if ME == 0:
        step = _skip(full, empty, LAG * 2 * PIECES, step, STAGES)
    tlx.async_descriptor_store_wait(0)


@triton.jit(do_not_specialize=("B", "N"))
def finish(
    x, product, weight_in, bias_in, weight_out, bias_out, p_desc, g_desc, unit, g_unit, p_unit,
    out, out_desc, B, N, ROW, C, stride_xb, stride_xi, stride_xk, eps,
    PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, SCALED: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, y the layer norm of x, z that of the product.

    x as of ``project``; product: (H_PIECES * DEPTH, B * ROW * ROW). p_desc: (C,
    H_PIECES * DEPTH), g_desc: (C, PIECES * DEPTH), in blocks of (CHANNELS, DEPTH).
    With SCALED: unit (2, H_PIECES * DEPTH): what the product's channels are
    multiplied by; g_unit and p_unit (C): the logits and the results. out: (B, N, N, C),
    contiguous; out_desc: the same, flat, in blocks of (PAIRS, CHANNELS // 2), used if
    DESCRIBED: N is a multiple of PAIRS. Grid: programs, any number.
    """
    y = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(p_desc), 2 * PIECES)
    z = tlx.local_alloc((DEPTH, PAIRS), tlx.dtype_of(p_desc), 2 * H_PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(p_desc), STAGES)
    results = tlx.local_alloc((PAIRS, CHANNELS // 2), tlx.dtype_of(out_desc), 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    all_tiles = tl.cdiv(B * N * (ROW // PAIRS), 2)
    tiles = tl.cdiv(all_tiles - tl.program_id(0), tl.num_programs(0))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _finish(
                x, product, weight_in, bias_in, weight_out, bias_out, y, z, blocks, results,
                full, empty, unit, g_unit, p_unit, out, out_desc, tiles, B, N, ROW, C,
                stride_xb, stride_xi, stride_xk, eps,
                0, PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, SCALED, DESCRIBED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _finish(
                x, product, weight_in, bias_in, weight_out, bias_out, y, z, blocks, results,
                full, empty, unit, g_unit, p_unit, out, out_desc, tiles, B, N, ROW, C,
                stride_xb, stride_xi, stride_xk, eps,
                1, PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, SCALED, DESCRIBED,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                p_desc, g_desc, blocks, full, empty, tiles,
                CHUNKS, H_PIECES, PIECES, STAGES, RESIDENT,
            )  # fmt: skip


@triton.jit
def _finish(
    x, product, weight_in, bias_in, weight_out, bias_out, y, z, blocks, results, full, empty,
    unit, g_unit, p_unit, out, out_desc, tiles, B, N, ROW, C,
    stride_xb, stride_xi, stride_xk, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, SCALED: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    buffer = results[ME]
    LAG: tl.constexpr = 0 if RESIDENT else CHUNKS // 2
    HALF: tl.constexpr = CHANNELS // 2
    step = 0
    if ME == 1:
        step = _skip(full, empty, LAG * (H_PIECES + PIECES), step, STAGES)
    for turn in range(tiles):
        tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + ME
        row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
        b, i = (row // N).to(tl.int64), (row % N).to(tl.int64)
        pairs = first + tl.arange(0, PAIRS)
        inside = pairs < tl.where(b < B, N, 0)
        depth = tl.arange(0, DEPTH)
        apart = tl.cast(B, tl.int64) * ROW * ROW
        at = product + (b * ROW + i) * ROW + pairs[:, None]
        at = at + depth[None, :] * apart
        _normalise(
            z, ME * H_PIECES, at, DEPTH * apart, b < B, weight_out, bias_out, unit, eps,
            H_PIECES, SCALED, True,
        )  # fmt: skip
        at = x + b * stride_xb + i * stride_xi
        at = at + pairs.to(tl.int64)[:, None] * stride_xk + depth[None, :]
        _normalise(
            y,
            ME * PIECES,
            at,
            DEPTH,
            inside[:, None],
            weight_in,
            bias_in,
            unit,
            eps,
            PIECES,
            False,
            False,
        )
        if RESIDENT:
            step = 0
        for part in range(CHUNKS):
            channel = (part + LAG * ME) % CHUNKS * CHANNELS
            p, g, step = _gated(
                z, ME * H_PIECES, y, ME * PIECES, blocks, full, empty, step,
                H_PIECES, PIECES, STAGES, RESIDENT, True,
            )  # fmt: skip
            channels = channel + tl.arange(0, CHANNELS)
            if SCALED:
                some = channels < C
                g *= tl.load(g_unit + channels, some, 0.0)[None, :]
                p *= tl.load(p_unit + channels, some, 0.0)[None, :]
            p = p * sigmoid(g)
            if DESCRIBED:
                left, right = _halves(p)
                at_pair = row * N + first
                _put(out_desc, buffer, buffer, left, at_pair, channel)
                if channel + HALF < C:
                    _put(out_desc, buffer, buffer, right, at_pair, channel + HALF)
            else:
                at = out + ((b * N + i) * N + pairs)[:, None] * C + channels[None, :]
                some = inside[:, None] & (channels < C)[None, :]
                tl.store(at, p.to(tlx.dtype_of(out_desc)), some)
    if ME == 0:
        step = _skip(full, empty, LAG * (H_PIECES + PIECES), step, STAGES)
    if DESCRIBED:
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
    buffer = c_buffers[PART]
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
            at = batch * ROW + row
            left, right = _halves(acc)
            if PARTS == 2:
                _put_columns(c_desc, buffer, left, at, column, ROW)
                _put_columns(c_desc, buffer, right, at, column + BLOCK_N // 2, ROW)
            else:
                first, second = _halves(left)
                third, fourth = _halves(right)
                _put_columns(c_desc, buffer, first, at, column, ROW)
                _put_columns(c_desc, buffer, second, at, column + BLOCK_N // 4, ROW)
                _put_columns(c_desc, buffer, third, at, column + BLOCK_N // 2, ROW)
                _put_columns(c_desc, buffer, fourth, at, column + BLOCK_N // 4 * 3, ROW)
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _halves(x):
    """The left and the right half of the columns."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def _put_columns(desc, buffer, values, row, column, ROW):
    if column < ROW:
        _put(desc, buffer, buffer, values, row, column)


@triton.jit
def _put(desc, buffer, view, values, row, column):
    """Hand values to the copy engine, through a view of a buffer."""
    tlx.async_descriptor_store_wait(0)  # the store before has read the buffer
    tlx.local_store(view, values.to(tlx.dtype_of(desc)))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(desc, buffer, [row, column])
