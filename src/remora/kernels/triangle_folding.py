"""Layer norms as part of the products that follow them.

``norm(x) @ W.T = (x @ F.T - mean * sums) * scale + shifts``, with ``F = W * weight`` in 16 bits,
the sums of its rows, ``shifts = W @ bias``, and of each row the mean and ``scale =
1 / sqrt(variance + eps)``. So products read x itself. The sums are those of what was rounded: but
for the rounding of fp32 the mean's part goes, whatever the mean is. In fp16 each row of F is scaled
by a power of two, so that neither it nor what comes of it is too large or small.
"""

from __future__ import annotations

import triton
import triton.language as tl

from remora.kernels.triangle_scaling import PROJECTION_BITS, power

#: What gates are multiplied by: -log2(e), for ``exp2``.
GATE = tl.constexpr(-1.4426950408889634)


@triton.jit
def _fold(
    rows, weight, bias, folded, to, terms, at, COUNT, row, FACTOR: tl.constexpr, EXTENT,
    EXTENT_POWER: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """A row's product with FACTOR and the norm's weight, and what goes with it."""
    columns = tl.arange(0, EXTENT_POWER)
    some = columns < EXTENT
    values = tl.load(rows + row.to(tl.int64) * EXTENT + columns, some, 0.0).to(tl.float32) * FACTOR
    shift = tl.sum(values * tl.load(bias + columns, some, 0.0).to(tl.float32), 0)
    values *= tl.load(weight + columns, some, 0.0).to(tl.float32)
    if UNITS:
        root = tl.math.sqrt(EXTENT.to(tl.float32))
        by = power(root * tl.math.sqrt(tl.sum(values * values, 0)) + tl.abs(shift), PROJECTION_BITS)
        values *= by
        shift *= by
        tl.store(terms + 2 * COUNT + at, 1 / by)
    values = values.to(folded.dtype.element_ty)
    tl.store(folded + to.to(tl.int64) * EXTENT + columns, values, some)
    tl.store(terms + at, tl.sum(values.to(tl.float32), 0))
    tl.store(terms + COUNT + at, shift)


@triton.jit
def fold_norms(
    p_in, g_in, p_out, g_out, weight_in, bias_in, weight_out, bias_out,
    both_in, folded_p_out, folded_g_out, terms, C, H,
    GROUP: tl.constexpr, C_POWER: tl.constexpr, H_POWER: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Everything that the kernels need of the weights of one update.

    p_in, g_in: (2H, C); p_out: (C, H); g_out: (C, C), contiguous. Of 16 bits: both_in (4H, C),
    GROUP rows of p_in, then those of g_in, and so on, and the others. terms: fp32, (3, 4H + 2C):
    sums and shifts of the rows of p_in, g_in, g_out and p_out, and with UNITS 1 / scale of each,
    by which the sums and shifts are multiplied. What belongs to gates is multiplied
    by GATE. Grid: 4H + 2C programs.
    """
    row = tl.program_id(0)
    count = 4 * H + 2 * C
    if row < 2 * H:
        to = row // GROUP * 2 * GROUP + row % GROUP
        _fold(
            p_in, weight_in, bias_in, both_in, to, terms, row, count, row, 1.0, C, C_POWER, UNITS
        )  # fmt: skip
    elif row < 4 * H:
        mine = row - 2 * H
        to = (mine // GROUP * 2 + 1) * GROUP + mine % GROUP
        _fold(
            g_in, weight_in, bias_in, both_in, to, terms, row, count, mine, GATE, C, C_POWER, UNITS
        )  # fmt: skip
    elif row < 4 * H + C:
        mine = row - 4 * H
        _fold(
            g_out, weight_in, bias_in, folded_g_out, mine, terms, row, count, mine, GATE,
            C, C_POWER, UNITS,
        )  # fmt: skip
    else:
        mine = row - 4 * H - C
        _fold(
            p_out, weight_out, bias_out, folded_p_out, mine, terms, row, count, mine, 1.0,
            H, H_POWER, UNITS,
        )  # fmt: skip
