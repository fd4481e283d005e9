"""The triangle multiplicative update's kernels in plain Triton: any target, any sizes.

The layer norm that all start with, and the same steps, with the same intermediates, as in
:mod:`remora.kernels.triangle_hopper`: channel-major, rows padded to ROW, a multiple of PAIRS.
WIDE: products of fp32, for Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from remora.kernels.tiles import tile_of


@triton.jit
def rounded(x, kind: tl.constexpr):
    """fp32 as ``kind``; where that is fp32, as tf32's 10 bits: the matrix units would cut them off.

    Ties go away from zero.
    """
    if kind == tl.float32:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = ((bits + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
        x = tl.where((bits & 0x7F800000) == 0x7F800000, x, nearest)
    return x.to(kind)


@triton.jit(do_not_specialize=("N",))
def normalise(
    x, weight, bias, y, stats, N, ROW, C, stride_xb, stride_xi, stride_xk, stride_xc, eps,
    PAIRS: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, FULL: tl.constexpr,
    WEIGHTED: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The layer norm of x, (B, N, N, C), into y, (B, ROW, ROW, C), contiguous.

    WEIGHTED: with weight and bias. stats: with KEPT each pair's mean and 1 / deviation,
    (2, B * N * N).

    What is past N stays as it is. PIECES of PIECE channels, at least C; FULL: they are C. Grid:
    B * N * cdiv(N, PAIRS) programs.
    """
    tiles = tl.cdiv(N, PAIRS)
    row = tl.program_id(0) // tiles
    b, i = (row // N).to(tl.int64), (row % N).to(tl.int64)
    pairs = (tl.program_id(0) % tiles * PAIRS + tl.arange(0, PAIRS)).to(tl.int64)
    there = (pairs < N)[:, None]
    x += b * stride_xb + i * stride_xi
    parts = ()
    totals = tl.zeros((PAIRS, PIECE), tl.float32)
    for piece in tl.static_range(PIECES):
        columns = piece * PIECE + tl.arange(0, PIECE)
        at = pairs[:, None] * stride_xk + columns.to(tl.int64)[None, :] * stride_xc
        some = there if FULL else there & (columns < C)[None, :]
        values = tl.load(x + at, some, 0.0).to(tl.float32)
        parts += (values,)  # type: ignore[assignment]
        totals += values
    mean = tl.sum(totals, 1) / C
    squares = tl.zeros((PAIRS, PIECE), tl.float32)
    for piece in tl.static_range(PIECES):
        values = parts[piece] - mean[:, None]
        if not FULL:
            values = tl.where((piece * PIECE + tl.arange(0, PIECE) < C)[None, :], values, 0.0)
        squares += values * values
    scale = tl.math.rsqrt(tl.sum(squares, 1) / C + eps)
    if KEPT:
        at_stats = stats + row.to(tl.int64) * N + pairs
        tl.store(at_stats, mean, pairs < N)
        tl.store(at_stats + (tl.num_programs(0) // tiles).to(tl.int64) * N, scale, pairs < N)
    for piece in tl.static_range(PIECES):
        columns = piece * PIECE + tl.arange(0, PIECE)
        values = (parts[piece] - mean[:, None]) * scale[:, None]
        if WEIGHTED:
            w = tl.load(weight + columns, columns < C, 0.0).to(tl.float32)
            v = tl.load(bias + columns, columns < C, 0.0).to(tl.float32)
            values = values * w[None, :] + v[None, :]
        at = y + ((b * ROW + i) * ROW + pairs)[:, None] * C + columns[None, :]
        some = there if FULL else there & (columns < C)[None, :]
        tl.store(at, rounded(values, y.dtype.element_ty), some)


@triton.jit(do_not_specialize=("PLANE",))
def normalise_products(
    products, units, z, PLANE, eps, EXTENT: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """The layer norm without weights of products, (EXTENT, PLANE), into z of that shape.

    units: what the channels are multiplied by before, in two factors of EXTENT. Grid:
    PLANE // PAIRS programs.
    """
    channels = tl.arange(0, EXTENT)
    pairs = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    at = channels[:, None] * tl.cast(PLANE, tl.int64) + pairs[None, :]
    factor = tl.load(units + channels) * tl.load(units + EXTENT + channels)
    x = tl.load(products + at) * factor[:, None]
    x -= tl.sum(x, 0)[None, :] / EXTENT
    scale = tl.math.rsqrt(tl.sum(x * x, 0) / EXTENT + eps)
    tl.store(z + at, (x * scale[None, :]).to(z.dtype.element_ty))


@triton.jit
def _dot(a, b, acc, WIDE: tl.constexpr):
    if WIDE:  # Triton's interpreter multiplies the bits of bf16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def _add(
    acc, x, weights, channels, first, count, extent, PIECE: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """``acc + x @ weights.T`` for some channels and a piece of the columns."""
    columns = first + tl.arange(0, PIECE)
    at = weights + columns[:, None] + channels[None, :] * extent
    w = tl.load(at, (columns < extent)[:, None] & (channels < count)[None, :], 0.0)
    return _dot(x, w, acc, WIDE)


@triton.jit
def sigmoid(x):
    """Of fp32."""
    return 1.0 / (1.0 + tl.math.exp2(x * -1.4426950408889634))  # log2(e)


@triton.jit
def _rows(y, pairs, first, inside, C, PIECE: tl.constexpr):
    """A piece of rows, zeros past C."""
    columns = first + tl.arange(0, PIECE)
    some = inside[:, None] & (columns < C)[None, :]
    return tl.load(y + pairs.to(tl.int64)[:, None] * C + columns[None, :], some, 0.0)


@triton.jit(do_not_specialize=("B", "N"))
def project_stock(
    y, mask, p, g, g_unit, out, B, N, ROW, C, COUNT, stride_mb, stride_mi, stride_mk,
    PAIRS: tl.constexpr, CHANNELS: tl.constexpr, PIECE: tl.constexpr,
    MASKED: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, channel-major.

    y: (B, ROW, ROW, C); mask: (B, N, N), read if MASKED; p, g: (COUNT, C), contiguous;
    g_unit: with SCALED what each gate's logits are multiplied by; out: (COUNT, B, ROW,
    ROW), zeros past N. Grid: B * ROW * ROW / PAIRS * cdiv(COUNT, CHANNELS) programs.
    """
    chunks = tl.cdiv(COUNT, CHANNELS)
    tile = tl.program_id(0) // chunks
    row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
    b, i = (row // ROW).to(tl.int64), (row % ROW).to(tl.int64)
    pairs = first + tl.arange(0, PAIRS)
    inside = pairs < tl.where(i < N, N, 0)
    channels = tl.program_id(0) % chunks * CHANNELS + tl.arange(0, CHANNELS)
    at = y + (b * ROW + i) * ROW * C
    acc_p = tl.zeros((PAIRS, CHANNELS), tl.float32)
    acc_g = tl.zeros((PAIRS, CHANNELS), tl.float32)
    for at_column in range(0, C, PIECE):
        rows = _rows(at, pairs, at_column, inside, C, PIECE)
        acc_p = _add(acc_p, rows, p, channels, at_column, COUNT, C, PIECE, WIDE)
        acc_g = _add(acc_g, rows, g, channels, at_column, COUNT, C, PIECE, WIDE)
    if SCALED:
        acc_g *= tl.load(g_unit + channels, channels < COUNT, 0.0)[None, :]
    result = acc_p * sigmoid(acc_g)
    if MASKED:
        at_mask = mask + b * stride_mb + i * stride_mi + pairs.to(tl.int64) * stride_mk
        result *= tl.load(at_mask, inside, 0.0).to(tl.float32)[:, None]
    result = tl.where(inside[:, None], result, 0.0)
    plane = tl.cast(B, tl.int64) * ROW * ROW
    at_out = out + channels.to(tl.int64)[None, :] * plane + (b * ROW + i) * ROW + pairs[:, None]
    tl.store(at_out, result.to(out.dtype.element_ty), (channels < COUNT)[None, :])


@triton.jit
def pair_products_stock(
    ab, c, BATCHES, ROW,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, INCOMING: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``A @ B.T`` for each of BATCHES pairs of matrices; ``A.T @ B`` if INCOMING.

    ab: the A's, then the B's, of ROW x ROW, a multiple of DEPTH. Grid: tiles * BATCHES
    programs.
    """
    tiles = tl.cdiv(ROW, BLOCK) * tl.cdiv(ROW, BLOCK)
    tile_m, tile_n = tile_of(tl.program_id(0) % tiles, ROW, ROW, BLOCK, BLOCK, 8)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    rows = tile_m * BLOCK + tl.arange(0, BLOCK)
    columns = tile_n * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, DEPTH)
    a_first = ab + batch * ROW * ROW
    b_first = ab + (BATCHES + batch) * ROW * ROW
    if INCOMING:
        a_at = a_first + rows[:, None] + depth[None, :] * ROW
        b_at = b_first + depth[:, None] * ROW + columns[None, :]
    else:
        a_at = a_first + rows.to(tl.int64)[:, None] * ROW + depth[None, :]
        b_at = b_first + depth[:, None] + columns.to(tl.int64)[None, :] * ROW
    step = tl.cast(ROW, tl.int64) * DEPTH if INCOMING else DEPTH
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, ROW, DEPTH):
        a = tl.load(a_at, (rows < ROW)[:, None], 0.0)
        b = tl.load(b_at, (columns < ROW)[None, :], 0.0)
        acc = _dot(a, b, acc, WIDE)
        a_at += step
        b_at += step
    c_at = c + batch * ROW * ROW + rows.to(tl.int64)[:, None] * ROW + columns[None, :]
    inside = (rows < ROW)[:, None] & (columns < ROW)[None, :]
    tl.store(c_at, acc.to(c.dtype.element_ty), inside)


@triton.jit
def _piece(at, first, plane, H, unit, PIECE: tl.constexpr, SCALED: tl.constexpr):
    """Some channels of the products, (pairs, channels), in fp32, and which there are."""
    channels = first + tl.arange(0, PIECE)
    some = (channels < H)[None, :]
    x = tl.load(at[:, None] + channels.to(tl.int64)[None, :] * plane, some, 0.0).to(tl.float32)
    if SCALED:  # without the scales of the weights
        u = tl.load(unit + channels, channels < H, 0.0)
        v = tl.load(unit + H + channels, channels < H, 0.0)
        x *= (u * v)[None, :]
    return x, some, channels


@triton.jit(do_not_specialize=("B", "N"))
def finish_stock(
    y, products, weight, bias, p, g, unit, g_unit, p_unit, out, B, N, ROW, C, H, eps,
    PAIRS: tl.constexpr, CHANNELS: tl.constexpr, PIECE: tl.constexpr, SCALED: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, z the layer norm of the products.

    y: (B, ROW, ROW, C); products: (H, B, ROW, ROW); p: (C, H), g: (C, C), contiguous; out:
    (B, N, N, C), contiguous. With SCALED: unit (2, H): what the products' channels are
    multiplied by, g_unit and p_unit: the logits and the results. Grid: B * N * ROW / PAIRS *
    cdiv(C, CHANNELS) programs.

    The norm's sums are of differences to the first channel's products, which are never more than
    sqrt(H) standard deviations from the mean: nothing cancels.
    """
    chunks = tl.cdiv(C, CHANNELS)
    tile = tl.program_id(0) // chunks
    row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
    b, i = (row // N).to(tl.int64), (row % N).to(tl.int64)
    pairs = first + tl.arange(0, PAIRS)
    inside = pairs < N
    plane = tl.cast(B, tl.int64) * ROW * ROW
    channels = tl.program_id(0) % chunks * CHANNELS + tl.arange(0, CHANNELS)

    at = products + (b * ROW + i) * ROW + pairs
    shift = tl.load(at).to(tl.float32)
    if SCALED:
        shift *= tl.load(unit) * tl.load(unit + H)
    totals = tl.zeros((PAIRS, PIECE), tl.float32)
    squares = tl.zeros((PAIRS, PIECE), tl.float32)
    for at_channel in range(0, H, PIECE):
        x, some, hidden = _piece(at, at_channel, plane, H, unit, PIECE, SCALED)
        x = tl.where(some, x - shift[:, None], 0.0)
        totals += x
        squares += x * x
    mean = tl.sum(totals, 1) / H
    variance = tl.maximum(tl.sum(squares, 1) / H - mean * mean, 0.0)
    scale = tl.math.rsqrt(variance + eps)
    mean += shift

    acc_p = tl.zeros((PAIRS, CHANNELS), tl.float32)
    for at_channel in range(0, H, PIECE):
        x, some, hidden = _piece(at, at_channel, plane, H, unit, PIECE, SCALED)
        w = tl.load(weight + hidden, hidden < H, 0.0).to(tl.float32)
        v = tl.load(bias + hidden, hidden < H, 0.0).to(tl.float32)
        z = (x - mean[:, None]) * scale[:, None] * w[None, :] + v[None, :]
        z = tl.where(some, z, 0.0).to(p.dtype.element_ty)
        acc_p = _add(acc_p, z, p, channels, at_channel, C, H, PIECE, WIDE)

    at_rows = y + (b * ROW + i) * ROW * C
    acc_g = tl.zeros((PAIRS, CHANNELS), tl.float32)
    for at_column in range(0, C, PIECE):
        rows = _rows(at_rows, pairs, at_column, inside, C, PIECE)
        acc_g = _add(acc_g, rows, g, channels, at_column, C, C, PIECE, WIDE)

    if SCALED:
        acc_g *= tl.load(g_unit + channels, channels < C, 0.0)[None, :]
        acc_p *= tl.load(p_unit + channels, channels < C, 0.0)[None, :]
    result = acc_p * sigmoid(acc_g)
    at_out = out + ((b * N + i) * N + pairs)[:, None] * C + channels[None, :]
    tl.store(at_out, result.to(out.dtype.element_ty), inside[:, None] & (channels < C)[None, :])
