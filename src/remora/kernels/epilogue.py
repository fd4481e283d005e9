"""What becomes of the sums before they are stored: scales, and the caller's function."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finished(
    acc, batch, row, column, M, N, scale_a, scale_b, args,
    EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A tile of sums, scaled and given to the caller's function.

    row, column: where the tile begins. scale_a, scale_b: None, or a pointer to fp32 and its
    strides from matrix to matrix and from row to row, or column to column. EPILOGUE: None, or
    the function that ``matmul`` describes, called with args. INDEX: type of indices.
    """
    # What is outside of the result is the last row or column again: loads need no mask.
    batch = tl.cast(batch, INDEX)
    rows = tl.minimum(row + tl.arange(0, acc.shape[0]), M - 1).to(INDEX)
    columns = tl.minimum(column + tl.arange(0, acc.shape[1]), N - 1).to(INDEX)
    if scale_a is not None:
        scales = tl.load(scale_a[0] + batch * scale_a[1] + rows * scale_a[2])
        acc = acc.to(tl.float32) * scales[:, None]
    if scale_b is not None:
        scales = tl.load(scale_b[0] + batch * scale_b[1] + columns * scale_b[2])
        acc = acc.to(tl.float32) * scales[None, :]
    if EPILOGUE is not None:
        acc = EPILOGUE(acc, (batch * M + rows)[:, None], columns[None, :], *args)
    return acc


@triton.jit
def finish(
    c_ptr, acc, batch, row, column, M, N, stride_cb, stride_cm, stride_cn, scale_a, scale_b, args,
    EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Store a tile of sums when it is ``finished``."""
    values = finished(acc, batch, row, column, M, N, scale_a, scale_b, args, EPILOGUE, INDEX)
    store(c_ptr, values, batch, row, column, M, N, stride_cb, stride_cm, stride_cn, INDEX)


@triton.jit
def store(
    c_ptr, values, batch, row, column, M, N, stride_cb, stride_cm, stride_cn, INDEX: tl.constexpr
):
    """A tile of the result, element by element; what is outside of it is left out."""
    rows = row + tl.arange(0, values.shape[0])
    columns = column + tl.arange(0, values.shape[1])
    at = tl.cast(batch, INDEX) * stride_cb + rows.to(INDEX)[:, None] * stride_cm
    at += columns.to(INDEX)[None, :] * stride_cn
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + at, values.to(c_ptr.dtype.element_ty), mask=inside)
