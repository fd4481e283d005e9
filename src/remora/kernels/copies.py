"""Copies of operands that the copy engine or the matrix unit does not take as they lie.

Rows that are not a multiple of 16 bytes apart, and for elements that are not of 16 bits a K that
is not contiguous. A copy costs two passes over an operand's bytes; the kernels that take any
strides are several times slower than those that need it (docs/kernels.md).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def copy_rows(
    src, dst, rows, columns, src_batch, src_row, src_column, dst_batch, dst_row,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """``dst[i, r, c] = src[i, r, c]``; columns of dst are contiguous.

    Grid: tiles of BLOCK x BLOCK elements, matrix by matrix.
    """
    across = tl.cdiv(columns, BLOCK)
    tiles = tl.cdiv(rows, BLOCK) * across
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    r = (tile // across * BLOCK + tl.arange(0, BLOCK))[:, None].to(tl.int64)
    c = (tile % across * BLOCK + tl.arange(0, BLOCK))[None, :].to(tl.int64)
    inside = (r < rows) & (c < columns)
    values = tl.load(src + batch * src_batch + r * src_row + c * src_column, mask=inside)
    tl.store(dst + batch * dst_batch + r * dst_row + c, values, mask=inside)


def with_aligned_rows(x: Any) -> Any:
    """A copy of a matrix or a batch: rows are contiguous, multiples of 128 bytes apart."""
    import torch

    *batch, rows, columns = x.shape
    unit = 128 // x.element_size()
    pitch = -(-columns // unit) * unit
    made = torch.empty((*batch, rows, pitch), dtype=x.dtype, device=x.device)[..., :columns]
    # Of 32, 64 and 128 with 4 and 8 warps: 2.0 TB/s for odd rows of fp16, 4.0 for columns of fp32.
    block, warps = (32, 8) if x.stride(-1) == 1 else (64, 4)
    grid = (-(-rows // block) * -(-columns // block) * (batch[0] if batch else 1),)
    of_src, of_dst = (y.stride() if batch else (0, *y.stride()) for y in (x, made))
    copy_rows[grid](x, made, rows, columns, *of_src, *of_dst[:2], BLOCK=block, num_warps=warps)
    return made
