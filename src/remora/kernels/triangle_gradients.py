"""The kernels of the triangle update's gradients, in plain Triton: any target, any sizes.

A program's pairs are neighbours in one of the B * N rows of pairs. What has hidden channels is
(channels, pairs), what has x's (pairs, channels).
"""

from __future__ import annotations

import triton
import triton.language as tl

from remora.kernels.triangle_stock import rounded, sigmoid


@triton.jit
def _pairs_of(tile, N, PAIRS: tl.constexpr):
    """A tile's row among B * N, as its batch and what it is there; its pairs; which there are."""
    tiles = tl.cdiv(N, PAIRS)
    row = tile // tiles
    pairs = tile % tiles * PAIRS + tl.arange(0, PAIRS)
    return (row // N).to(tl.int64), (row % N).to(tl.int64), pairs, pairs < N


@triton.jit
def _scaled(x, unit, channels, H, SCALED: tl.constexpr):
    """Products in fp32, without the scales of the weights that they were made with."""
    x = x.to(tl.float32)
    if SCALED:
        u = tl.load(unit + channels, channels < H, 0.0)
        x *= (u * tl.load(unit + H + channels, channels < H, 0.0))[None, :]
    return x


@triton.jit
def normalise_hidden(
    products, unit, weight, bias, z, stats, N, H, stride_b, stride_i, stride_k, stride_c,
    stride_zk, stride_zc, M, eps,
    PAIRS: tl.constexpr, H_POWER: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The layer norm of products, (H, B, N, N) of any strides.

    It goes into z, (M, H) of any strides: M is B * N * N. stats: (2, M), fp32: each pair's mean and
    1 / deviation. unit: with SCALED what the channels are multiplied by before, in two factors of
    H. H_POWER: a power of two, at least H. Grid: B * N * cdiv(N, PAIRS) programs.
    """
    b, i, pairs, there = _pairs_of(tl.program_id(0), N, PAIRS)
    channels = tl.arange(0, H_POWER)
    some = there[:, None] & (channels < H)[None, :]
    at = products + b * stride_b + i * stride_i + pairs[:, None] * stride_k
    x = tl.load(at + channels.to(tl.int64)[None, :] * stride_c, some, 0.0)
    x = _scaled(x, unit, channels, H, SCALED)
    mean = tl.sum(x, 1) / H
    x = tl.where(some, x - mean[:, None], 0.0)
    scale = tl.math.rsqrt(tl.sum(x * x, 1) / H + eps)
    x *= scale[:, None]
    at = stats + (b * N + i) * N + pairs
    tl.store(at, mean, there)
    tl.store(at + M, scale, there)
    w = tl.load(weight + channels, channels < H, 0.0).to(tl.float32)
    v = tl.load(bias + channels, channels < H, 0.0).to(tl.float32)
    at = z + ((b * N + i) * N + pairs[:, None]) * stride_zk
    at += channels.to(tl.int64)[None, :] * stride_zc
    tl.store(at, rounded(x * w[None, :] + v[None, :], z.dtype.element_ty), some)


@triton.jit
def _add(acc, x, weights, channels, columns, COUNT, K, WIDE: tl.constexpr):
    """``acc + x @ weights.T`` for some channels and some columns."""
    some = (columns < K)[:, None] & (channels < COUNT)[None, :]
    w = tl.load(weights + channels[None, :] * K + columns[:, None], some, 0.0)
    if WIDE:  # Triton's interpreter multiplies the bits of bf16
        x, w = x.to(tl.float32), w.to(tl.float32)
    return tl.dot(x, w, acc)


@triton.jit
def gate_gradients(
    y, z, p, g, d, mask, of_p, of_g, N, COUNT, C, H, stride_zk, stride_zc,
    stride_db, stride_di, stride_dk, stride_dc, stride_mb, stride_mi, stride_mk,
    stride_p, stride_g, first_p, first_g,
    PAIRS: tl.constexpr, CHANNELS: tl.constexpr, PIECE: tl.constexpr, OUTPUT: tl.constexpr,
    MASKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Of ``mask * (y @ P.T) * sigmoid(y @ G.T)``, whose gradient is d: those of both products.

    With OUTPUT of ``(z @ P.T) * sigmoid(y @ G.T)``. y: (M, C), M being B * N * N; p, g: (COUNT,
    C), with OUTPUT p (COUNT, H), all contiguous; z: (M, H), d: (B, N, N, COUNT) and mask, read if
    MASKED: (B, N, N), of any strides. of_p, of_g: (M, COUNT), written from columns first_p and
    first_g on, rows stride_p and stride_g apart.
    WIDE: products of fp32. Grid: B * N * cdiv(N, PAIRS) * cdiv(COUNT, CHANNELS) programs.
    """
    chunks = tl.cdiv(COUNT, CHANNELS)
    b, i, pairs, there = _pairs_of(tl.program_id(0) // chunks, N, PAIRS)
    channels = tl.program_id(0) % chunks * CHANNELS + tl.arange(0, CHANNELS)
    row = (b * N + i) * N
    acc_p = tl.zeros((PAIRS, CHANNELS), tl.float32)
    acc_g = tl.zeros((PAIRS, CHANNELS), tl.float32)
    for first in range(0, C, PIECE):
        columns = first + tl.arange(0, PIECE)
        at = y + row * C + pairs[:, None] * C + columns[None, :]
        x = tl.load(at, there[:, None] & (columns < C)[None, :], 0.0)
        acc_g = _add(acc_g, x, g, channels, columns, COUNT, C, WIDE)
        if not OUTPUT:
            acc_p = _add(acc_p, x, p, channels, columns, COUNT, C, WIDE)
    if OUTPUT:
        for first in range(0, H, PIECE):
            columns = first + tl.arange(0, PIECE)
            at = z + (row + pairs[:, None]) * stride_zk
            at += columns.to(tl.int64)[None, :] * stride_zc
            x = tl.load(at, there[:, None] & (columns < H)[None, :], 0.0)
            acc_p = _add(acc_p, x, p, channels, columns, COUNT, H, WIDE)
    some = there[:, None] & (channels < COUNT)[None, :]
    at = d + b * stride_db + i * stride_di + pairs[:, None] * stride_dk
    found = tl.load(at + channels.to(tl.int64)[None, :] * stride_dc, some, 0.0).to(tl.float32)
    if MASKED:
        at = mask + b * stride_mb + i * stride_mi + pairs.to(tl.int64) * stride_mk
        found *= tl.load(at, there, 0.0).to(tl.float32)[:, None]
    gate = sigmoid(acc_g)
    found *= gate
    at = of_p + row * stride_p + first_p + pairs[:, None] * stride_p + channels[None, :]
    tl.store(at, rounded(found, of_p.dtype.element_ty), some)
    found *= acc_p * (1.0 - gate)
    at = of_g + row * stride_g + first_g + pairs[:, None] * stride_g + channels[None, :]
    tl.store(at, rounded(found, of_g.dtype.element_ty), some)


@triton.jit(do_not_specialize=("B",))
def norm_gradient(
    grad, x, stats, weight, unit, of_x, sums, B, N, K, M, stride_gk, stride_gc,
    stride_xb, stride_xi, stride_xk, stride_xc, stride_ob, stride_oi, stride_ok, stride_oc,
    PAIRS: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, SCALED: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """Of a layer norm, whose gradient is grad, (M, K) of any strides: the gradient of x.

    M is B * N * N. x and of_x: (B, N, N, K), of any strides; of_x may be grad. stats: (2, M): means
    and 1 / deviations. unit: with SCALED what x's channels are multiplied by first, (2, K). sums:
    (programs, 2, K): each program's part of the gradients of weight and bias. PIECES of PIECE
    channels, at least K. TURNED: neighbours in memory are pairs, not channels. Grid: programs, any
    number.
    """
    # Where pairs are from warp to warp they are added up once, at the end.
    nothing = tl.zeros((1 if TURNED else PAIRS, PIECE), tl.float32)
    of_weight = _times(nothing, PIECES)
    of_bias = of_weight
    tiles = B * N * tl.cdiv(N, PAIRS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=3):
        b, i, pairs, inside = _pairs_of(tile, N, PAIRS)
        at_x = x + b * stride_xb + i * stride_xi + pairs.to(tl.int64)[:, None] * stride_xk
        at_d = grad + (b * N + i) * N * stride_gk + pairs[:, None] * stride_gk
        at = stats + (b * N + i) * N + pairs
        mean = tl.load(at, inside, 0.0)[:, None]
        scale = tl.load(at + M, inside, 0.0)[:, None]
        total = tl.zeros((PAIRS, PIECE), tl.float32)
        along = tl.zeros((PAIRS, PIECE), tl.float32)
        values, ds, more_weight, more_bias = (), (), (), ()
        for piece in tl.static_range(PIECES):
            columns, some = _columns(piece, inside, K, PIECE)
            channels = columns.to(tl.int64)[None, :]
            found = _scaled(
                tl.load(at_x + channels * stride_xc, some, 0.0), unit, columns, K, SCALED
            )
            # What is past K counts nowhere: d is zero there.
            found = (found - mean) * scale
            d = tl.load(at_d + channels * stride_gc, some, 0.0).to(tl.float32)
            if TURNED:
                more_weight += (of_weight[piece] + tl.sum(d * found, 0, True),)  # type: ignore[assignment]
                more_bias += (of_bias[piece] + tl.sum(d, 0, True),)  # type: ignore[assignment]
            else:
                more_weight += (of_weight[piece] + d * found,)  # type: ignore[assignment]
                more_bias += (of_bias[piece] + d,)  # type: ignore[assignment]
            d *= tl.load(weight + columns, columns < K, 0.0).to(tl.float32)[None, :]
            total += d
            along += d * found
            values += (found,)  # type: ignore[assignment]
            ds += (d,)  # type: ignore[assignment]
        of_weight, of_bias = more_weight, more_bias
        base = (tl.sum(total, 1) / K)[:, None]
        slope = (tl.sum(along, 1) / K)[:, None]
        at_o = of_x + b * stride_ob + i * stride_oi + pairs.to(tl.int64)[:, None] * stride_ok
        for piece in tl.static_range(PIECES):
            columns, some = _columns(piece, inside, K, PIECE)
            result = (ds[piece] - base - values[piece] * slope) * scale
            channels = columns.to(tl.int64)[None, :]
            if TURNED:  # an operand of products
                result = rounded(result, of_x.dtype.element_ty)
            tl.store(at_o + channels * stride_oc, result.to(of_x.dtype.element_ty), some)
    for piece in tl.static_range(PIECES):
        columns = piece * PIECE + tl.arange(0, PIECE)
        at_sum = sums + tl.program_id(0) * 2 * K + columns
        tl.store(at_sum, tl.sum(of_weight[piece], 0), columns < K)
        tl.store(at_sum + K, tl.sum(of_bias[piece], 0), columns < K)


@triton.jit
def _times(x, COUNT: tl.constexpr):
    """A tuple of COUNT times x."""
    result = ()
    for _ in tl.static_range(COUNT):
        result += (x,)  # type: ignore[assignment]
    return result


@triton.jit
def _columns(piece: tl.constexpr, inside, K, PIECE: tl.constexpr):
    """A piece's channels, and which of a tile there are."""
    columns = piece * PIECE + tl.arange(0, PIECE)
    return columns, inside[:, None] & (columns < K)[None, :]


@triton.jit
def unscale(ab, unit, out, PLANE, SIZE: tl.constexpr):
    """``ab * unit``: (channels, PLANE) by (channels,). Grid: channels * cdiv(PLANE, SIZE)."""
    tiles = tl.cdiv(PLANE, SIZE)
    channel = (tl.program_id(0) // tiles).to(tl.int64)
    places = tl.program_id(0) % tiles * SIZE + tl.arange(0, SIZE)
    at = channel * PLANE + places
    values = tl.load(ab + at, places < PLANE, 0.0).to(tl.float32) * tl.load(unit + channel)
    tl.store(out + at, values, places < PLANE)


@triton.jit
def stack(p_in, g_in, g_out, p_out, stacked, C, H, SIZE: tl.constexpr):
    """What pairs are multiplied with, one after the other: (2H, C), (2H, C), (C, C), (C, H).

    Grid: cdiv((4 * H + C) * C + C * H, SIZE) programs.
    """
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    first, second, third = 2 * H * C, 4 * H * C, (4 * H + C) * C
    end = third + C * H
    values = tl.load(p_in + at, at < first, 0.0)
    some = (at >= first) & (at < second)
    values = tl.where(some, tl.load(g_in + at - first, some, 0.0), values)
    some = (at >= second) & (at < third)
    values = tl.where(some, tl.load(g_out + at - second, some, 0.0), values)
    some = (at >= third) & (at < end)
    values = tl.where(some, tl.load(p_out + at - third, some, 0.0), values)
    tl.store(stacked + at, rounded(values, stacked.dtype.element_ty), at < end)


@triton.jit
def _add_sums(
    sums, of_weight, of_bias, part, K, PROGRAMS, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """A part of the gradients of a norm's weight and bias, (K,), of (PROGRAMS, 2, K) sums."""
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < 2 * K
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, PROGRAMS, ROWS):
        rows = first + tl.arange(0, ROWS)
        some = (rows < PROGRAMS)[:, None] & there[None, :]
        total += tl.load(sums + rows[:, None] * 2 * K + columns[None, :], some, 0.0)
    result = tl.sum(total, 0).to(of_weight.dtype.element_ty)
    tl.store(of_weight + columns, result, columns < K)
    tl.store(of_bias + columns - K, result, there & (columns >= K))


@triton.jit
def gather(
    sums_in, of_w_in, of_b_in, sums_out, of_w_out, of_b_out, stacked, of_p_in, of_g_in, of_g_out,
    other, of_p_out, C, H, PROGRAMS,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """The gradients of all weights, rounded, from fp32.

    sums_in, sums_out: of ``norm_gradient``, of C and H channels; stacked: (4H + C, C), as ``stack``
    has weights, with TURNED (C, 4H + C); other: (C, H). Grid: cdiv(2 * C, COLUMNS) + cdiv(2 * H,
    COLUMNS) + cdiv((4H + C) * C, SIZE) + cdiv(C * H, SIZE) programs, in this order.
    """
    part = tl.program_id(0)
    of_in, of_out = tl.cdiv(2 * C, COLUMNS), tl.cdiv(2 * H, COLUMNS)
    end = of_in + of_out + tl.cdiv((4 * H + C) * C, SIZE)
    if part < of_in:
        _add_sums(sums_in, of_w_in, of_b_in, part, C, PROGRAMS, ROWS, COLUMNS)
    elif part < of_in + of_out:
        _add_sums(sums_out, of_w_out, of_b_out, part - of_in, H, PROGRAMS, ROWS, COLUMNS)
    elif part < end:
        at = (part - of_in - of_out) * SIZE + tl.arange(0, SIZE)
        first, last = 2 * H * C, (4 * H + C) * C
        place = at % C * (4 * H + C) + at // C if TURNED else at
        values = tl.load(stacked + place, at < last, 0.0).to(of_p_in.dtype.element_ty)
        tl.store(of_p_in + at, values, at < first)
        tl.store(of_g_in + at - first, values, (at >= first) & (at < 2 * first))
        tl.store(of_g_out + at - 2 * first, values, (at >= 2 * first) & (at < last))
    else:
        at = (part - end) * SIZE + tl.arange(0, SIZE)
        values = tl.load(other + at, at < C * H, 0.0).to(of_p_out.dtype.element_ty)
        tl.store(of_p_out + at, values, at < C * H)
