"""Layer norms as part of the products that follow them.

``norm(x) @ W.T = (x @ F.T) * scale + shifts``: of x's rows ``scale = 1 / sqrt(variance + eps)``, of
W's ``shifts = W @ bias``; F is ``W * weight``, of each row its mean less, in 16 bits. So products
read x itself, and its means have no part in them, since the sum of each row of F is zero: what
rounding leaves of it is taken from small numbers, which can take it. (Where x is normalised
already, by a kernel of its own, rows are as they are.) In fp16 each row of F is scaled by a power
of two, so that neither it nor what comes of it is too large or small.
"""

from __future__ import annotations

import triton
import triton.language as tl

from remora.kernels.triangle_scaling import PROJECTION_BITS, power

#: What gates are multiplied by: -log2(e), for ``exp2``.
GATE = tl.constexpr(-1.4426950408889634)

#: Numbers of which the smallest takes a share of what rounding leaves.
_GROUP = tl.constexpr(16)


@triton.jit
def _balance(values, some, COUNT, kind):
    """Rows of rounded numbers, with the same taken from the smallest of each so that the sum of
    all is nearer to zero. COUNT: rows that have any."""
    size = tl.where(some, tl.abs(values), float("inf"))
    smallest = tl.argmin(size, 1)
    here = tl.arange(0, values.shape[1])[None, :] == smallest[:, None]
    left = tl.sum(values) / COUNT
    return tl.where(here & some, (values - left).to(kind).to(tl.float32), values)


@triton.jit
def _fold(
    rows, weight, bias, folded, to, terms, at, COUNT, row, FACTOR: tl.constexpr, EXTENT,
    EXTENT_POWER: tl.constexpr, UNITS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """A row's product with FACTOR and the norm's weight, and what goes with it."""
    GROUPS: tl.constexpr = max(EXTENT_POWER // _GROUP, 1)
    kind = folded.dtype.element_ty
    columns = tl.reshape(tl.arange(0, EXTENT_POWER), (GROUPS, EXTENT_POWER // GROUPS))
    some = columns < EXTENT
    values = tl.load(rows + row.to(tl.int64) * EXTENT + columns, some, 0.0).to(tl.float32) * FACTOR
    shift = tl.sum(values * tl.load(bias + columns, some, 0.0).to(tl.float32))
    values *= tl.load(weight + columns, some, 0.0).to(tl.float32)
    if CENTRED:
        values = tl.where(some, values - tl.sum(values) / EXTENT, 0.0)
    if UNITS:
        root = tl.math.sqrt(EXTENT.to(tl.float32))
        by = power(root * tl.math.sqrt(tl.sum(values * values)) + tl.abs(shift), PROJECTION_BITS)
        values *= by
        shift *= by
        tl.store(terms + COUNT + at, 1 / by)
    tl.store(terms + at, shift)
    values = values.to(kind).to(tl.float32)
    if CENTRED:
        values = _balance(values, some, tl.cdiv(EXTENT, EXTENT_POWER // GROUPS), kind)
    values = tl.reshape(values, (1, EXTENT_POWER))
    some = tl.reshape(some, (1, EXTENT_POWER))
    columns = tl.reshape(columns, (1, EXTENT_POWER))
    if CENTRED:
        for _ in tl.static_range(2):  # what is left is rounding's of the one before
            values = _balance(values, some, 1, kind)
    tl.store(folded + to.to(tl.int64) * EXTENT + columns, values.to(kind), some)


@triton.jit
def fold_norms(
    p_in, g_in, p_out, g_out, weight_in, bias_in, weight_out, bias_out,
    both_in, folded_p_out, folded_g_out, terms, C, H,
    GROUP: tl.constexpr, C_POWER: tl.constexpr, H_POWER: tl.constexpr, UNITS: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """Everything that the kernels need of the weights of one update.

    p_in, g_in: (2H, C); p_out: (C, H); g_out: (C, C), contiguous. Of 16 bits: both_in (4H, C),
    GROUP rows of p_in, then those of g_in, and so on, and the others. terms: fp32, (2, 4H + 2C):
    shifts of the rows of p_in, g_in, g_out and p_out, and with UNITS 1 / scale of each, by which
    the shifts are multiplied. CENTRED: rows add up to zero. What belongs to gates is multiplied by
    GATE. Grid: 4H + 2C programs.
    """
    row = tl.program_id(0)
    count = 4 * H + 2 * C
    if row < 2 * H:
        to = row // GROUP * 2 * GROUP + row % GROUP
        _fold(
            p_in, weight_in, bias_in, both_in, to, terms, row, count, row, 1.0, C, C_POWER, UNITS,
            CENTRED,
        )  # fmt: skip
    elif row < 4 * H:
        mine = row - 2 * H
        to = (mine // GROUP * 2 + 1) * GROUP + mine % GROUP
        _fold(
            g_in, weight_in, bias_in, both_in, to, terms, row, count, mine, GATE, C, C_POWER, UNITS,
            CENTRED,
        )  # fmt: skip
    elif row < 4 * H + C:
        mine = row - 4 * H
        _fold(
            g_out, weight_in, bias_in, folded_g_out, mine, terms, row, count, mine, GATE,
            C, C_POWER, UNITS, CENTRED,
        )  # fmt: skip
    else:
        mine = row - 4 * H - C
        _fold(
            p_out, weight_out, bias_out, folded_p_out, mine, terms, row, count, mine, 1.0,
            H, H_POWER, UNITS, CENTRED,
        )  # fmt: skip
