"""The triangle multiplicative update's kernels in plain Triton: any target, any sizes.

The same three steps, with the same intermediates, as in
:mod:`remora.kernels.triangle_hopper`: channel-major, rows padded to a multiple of
PAIRS. WIDE: products of fp32, for Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from remora.kernels.tiles import tile_of


@triton.jit
def _piece(at, first, stride, extent, inside, unit, PIECE: tl.constexpr, SCALED: tl.constexpr):
    """Columns ``first`` to ``first + PIECE`` of rows, in fp32, and which there are."""
    columns = first + tl.arange(0, PIECE)
    some = inside[:, None] & (columns < extent)[None, :]
    x = tl.load(at[:, None] + columns.to(tl.int64)[None, :] * stride, some, 0.0).to(tl.float32)
    if SCALED:  # see triangle_scaling: what each channel of the product is multiplied by
        u = tl.load(unit + columns, columns < extent, 0.0)
        v = tl.load(unit + extent + columns, columns < extent, 0.0)
        x *= (u * v)[None, :]
    return x, some, columns


@triton.jit
def _statistics(at, stride, extent, inside, unit, eps, PIECE: tl.constexpr, SCALED: tl.constexpr):
    """Mean and 1 / sqrt(variance + eps) of rows, from differences to a row's first element."""
    total = tl.zeros((at.shape[0],), tl.float32)
    squares = tl.zeros((at.shape[0],), tl.float32)
    shift = total
    for first in range(0, extent, PIECE):
        x, some, columns = _piece(at, first, stride, extent, inside, unit, PIECE, SCALED)
        shift = tl.where(first == 0, tl.sum(tl.where((columns == 0)[None, :], x, 0.0), 1), shift)
        x = tl.where(some, x - shift[:, None], 0.0)
        total += tl.sum(x, 1)
        squares += tl.sum(x * x, 1)
    mean = total / extent
    variance = tl.maximum(squares / extent - mean * mean, 0.0)
    return mean + shift, tl.math.rsqrt(variance + eps)


@triton.jit
def _normalised(
    at, first, stride, extent, inside, mean, scale, weight, bias, unit,
    PIECE: tl.constexpr, SCALED: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """A piece of rows' layer norm; zeros past the extent."""
    x, some, columns = _piece(at, first, stride, extent, inside, unit, PIECE, SCALED)
    w = tl.load(weight + columns, columns < extent, 0.0).to(tl.float32)
    b = tl.load(bias + columns, columns < extent, 0.0).to(tl.float32)
    x = (x - mean[:, None]) * scale[:, None] * w[None, :] + b[None, :]
    return tl.where(some, x, 0.0).to(TYPE)


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
    at = weights + channels[:, None] * extent + columns[None, :]
    w = tl.load(at, (channels < count)[:, None] & (columns < extent)[None, :], 0.0)
    return _dot(x, tl.trans(w), acc, WIDE)


@triton.jit
def sigmoid(x):
    """Of fp32."""
    return 1.0 / (1.0 + tl.math.exp2(x * -1.4426950408889634))  # log2(e)


@triton.jit
def project_stock(
    x, mask, weight, bias, p, g, g_unit, out,
    B, N, ROW, C, COUNT, stride_xb, stride_xi, stride_xk, stride_xc,
    stride_mb, stride_mi, stride_mk, eps,
    PAIRS: tl.constexpr, CHANNELS: tl.constexpr, PIECE: tl.constexpr,
    MASKED: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, y the layer norm of x, channel-major.

    x: (B, N, N, C); mask: (B, N, N), read if MASKED; p, g: (COUNT, C), contiguous;
    g_unit: with SCALED what each gate's logits are multiplied by; out: (COUNT, B, ROW,
    ROW), zeros past N. Grid: (COUNT / CHANNELS, B * ROW * ROW / PAIRS).
    """
    tile = tl.program_id(1)
    row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
    b, i = (row // ROW).to(tl.int64), (row % ROW).to(tl.int64)
    pairs = first + tl.arange(0, PAIRS)
    inside = pairs < tl.where(i < N, N, 0)
    at = x + b * stride_xb + i * stride_xi + pairs.to(tl.int64) * stride_xk
    mean, scale = _statistics(at, stride_xc, C, inside, g_unit, eps, PIECE, False)
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    acc_p = tl.zeros((PAIRS, CHANNELS), tl.float32)
    acc_g = tl.zeros((PAIRS, CHANNELS), tl.float32)
    for at_column in range(0, C, PIECE):
        y = _normalised(
            at, at_column, stride_xc, C, inside, mean, scale, weight, bias, g_unit,
            PIECE, False, out.dtype.element_ty,
        )  # fmt: skip
        acc_p = _add(acc_p, y, p, channels, at_column, COUNT, C, PIECE, WIDE)
        acc_g = _add(acc_g, y, g, channels, at_column, COUNT, C, PIECE, WIDE)
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

    ab: the A's, then the B's, of ROW x ROW, a multiple of DEPTH. Grid: (tiles, BATCHES).
    """
    tile_m, tile_n = tile_of(tl.program_id(0), ROW, ROW, BLOCK, BLOCK, 8)
    batch = tl.program_id(1).to(tl.int64)
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
def finish_stock(
    x, product, weight_in, bias_in, weight_out, bias_out, p, g, unit, g_unit, p_unit, out,
    B, N, ROW, C, H, stride_xb, stride_xi, stride_xk, stride_xc, eps,
    PAIRS: tl.constexpr, CHANNELS: tl.constexpr, PIECE: tl.constexpr, SCALED: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, y the layer norm of x, z that of the product.

    x: (B, N, N, C); product: (H, B, ROW, ROW); p: (C, H), g: (C, C), contiguous; out:
    (B, N, N, C), contiguous. With SCALED: unit (2, H): what the product's
    channels are multiplied by, g_unit and p_unit: the logits and the results. Grid:
    (C / CHANNELS, B * N * ROW / PAIRS).
    """
    tile = tl.program_id(1)
    row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
    b, i = (row // N).to(tl.int64), (row % N).to(tl.int64)
    pairs = first + tl.arange(0, PAIRS)
    inside = pairs < N
    plane = tl.cast(B, tl.int64) * ROW * ROW
    channels = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    TYPE: tl.constexpr = p.dtype.element_ty

    at = product + (b * ROW + i) * ROW + pairs
    mean, scale = _statistics(at, plane, H, inside, unit, eps, PIECE, SCALED)
    acc_p = tl.zeros((PAIRS, CHANNELS), tl.float32)
    for at_column in range(0, H, PIECE):
        z = _normalised(
            at, at_column, plane, H, inside, mean, scale, weight_out, bias_out, unit,
            PIECE, SCALED, TYPE,
        )  # fmt: skip
        acc_p = _add(acc_p, z, p, channels, at_column, C, H, PIECE, WIDE)

    at = x + b * stride_xb + i * stride_xi + pairs.to(tl.int64) * stride_xk
    mean, scale = _statistics(at, stride_xc, C, inside, unit, eps, PIECE, False)
    acc_g = tl.zeros((PAIRS, CHANNELS), tl.float32)
    for at_column in range(0, C, PIECE):
        y = _normalised(
            at, at_column, stride_xc, C, inside, mean, scale, weight_in, bias_in, unit,
            PIECE, False, TYPE,
        )  # fmt: skip
        acc_g = _add(acc_g, y, g, channels, at_column, C, C, PIECE, WIDE)

    if SCALED:
        acc_g *= tl.load(g_unit + channels, channels < C, 0.0)[None, :]
        acc_p *= tl.load(p_unit + channels, channels < C, 0.0)[None, :]
    result = acc_p * sigmoid(acc_g)
    at_out = out + ((b * N + i) * N + pairs)[:, None] * C + channels[None, :]
    tl.store(at_out, result.to(out.dtype.element_ty), inside[:, None] & (channels < C)[None, :])
