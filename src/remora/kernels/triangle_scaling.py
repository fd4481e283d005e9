"""fp32 weights as fp16, scaled by powers of two so that nothing overflows or vanishes.

fp16 has the 10 bits of tf32's mantissa, at half the bytes and twice the speed, but not its
range. A layer norm bounds what it gives: a row of it has a norm of at most sqrt(extent), so
a projection is at most ``sqrt(extent) * |w * weight| + sum |w * bias|`` (Cauchy and Schwarz).
"""

from __future__ import annotations

import triton
import triton.language as tl

#: The bounds that the scaled weights keep to: of a norm's results, and of a projection's.
NORM_BITS = tl.constexpr(8)
PROJECTION_BITS = tl.constexpr(10)


@triton.jit
def power(bound, BITS: tl.constexpr):
    """The power of two that takes ``bound`` to 2**(BITS - 1) or more and at most 2**BITS.

    1 where the bound is zero or not finite: there is nothing to save.
    """
    fits = (bound > 0) & (bound < float("inf"))
    exponent = tl.math.floor(tl.math.log2(tl.where(fits, bound, 1.0))) + 1
    return tl.math.exp2(tl.where(fits, tl.minimum(tl.maximum(-(exponent - BITS), -126), 126), 0.0))


@triton.jit
def _scale_rows(
    rows, weight, bias, scaled, units, row, first, EXTENT, EXTENT_POWER: tl.constexpr
):  # fmt: skip
    columns = tl.arange(0, EXTENT_POWER)
    some = columns < EXTENT
    w = tl.load(weight + columns, some, 0.0)
    b = tl.load(bias + columns, some, 0.0)
    root = tl.math.sqrt(EXTENT.to(tl.float32))
    by_column = power(root * tl.abs(w) + tl.abs(b), NORM_BITS)
    at = row.to(tl.int64) * EXTENT + columns
    values = tl.load(rows + at, some, 0.0)
    w *= values
    bound = root * tl.math.sqrt(tl.sum(w * w, 0)) + tl.sum(tl.abs(values * b), 0)
    by_row = power(bound, PROJECTION_BITS)
    tl.store(scaled + at, (values / by_column * by_row).to(tl.float16), some)
    tl.store(units + first + row, 1 / by_row)


@triton.jit
def scale_weights(
    p_in, g_in, p_out, g_out, weight_in, bias_in, weight_out, bias_out,
    p_in_16, g_in_16, p_out_16, g_out_16, norms, units, C, H,
    C_POWER: tl.constexpr, H_POWER: tl.constexpr,
):  # fmt: skip
    """Everything that the kernels need of the weights of one update.

    p_in, g_in: (2H, C); p_out: (C, H); g_out: (C, C), fp32, contiguous, and in fp16
    where the names say so. norms: the scaled weight_in, bias_in (C), weight_out,
    bias_out (H), one after the other. units: 1 / scale of each row of p_in, g_in, g_out
    and p_out. Grid: 4H + 2C + 2 programs.
    """
    row = tl.program_id(0)
    if row < 2 * H:
        _scale_rows(p_in, weight_in, bias_in, p_in_16, units, row, 0, C, C_POWER)
    elif row < 4 * H:
        _scale_rows(g_in, weight_in, bias_in, g_in_16, units, row - 2 * H, 2 * H, C, C_POWER)
    elif row < 4 * H + C:
        _scale_rows(g_out, weight_in, bias_in, g_out_16, units, row - 4 * H, 4 * H, C, C_POWER)
    elif row < 4 * H + 2 * C:
        row -= 4 * H + C
        _scale_rows(p_out, weight_out, bias_out, p_out_16, units, row, 4 * H + C, H, H_POWER)
    elif row == 4 * H + 2 * C:
        _scale_norm(weight_in, bias_in, norms, C, C_POWER)
    else:
        _scale_norm(weight_out, bias_out, norms + 2 * C, H, H_POWER)


@triton.jit
def _scale_norm(weight, bias, scaled, EXTENT, EXTENT_POWER: tl.constexpr):
    columns = tl.arange(0, EXTENT_POWER)
    some = columns < EXTENT
    w = tl.load(weight + columns, some, 0.0)
    b = tl.load(bias + columns, some, 0.0)
    by = power(tl.math.sqrt(EXTENT.to(tl.float32)) * tl.abs(w) + tl.abs(b), NORM_BITS)
    tl.store(scaled + columns, w * by, some)
    tl.store(scaled + EXTENT + columns, b * by, some)
