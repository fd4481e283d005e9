"""Buffers in Blackwell's tensor memory: what they may be."""

from __future__ import annotations

from typing import Any

from triton.language import core as tl

from remora.dsl import Call, describe
from remora.errors import OutOfTensorMemory, WrongDtype, WrongShape, WrongType
from remora.tlx.layouts import tensor_memory_layout_encoding, tensor_memory_scales_layout_encoding
from remora.tlx.targets import require_tensor_memory
from remora.tlx.types import COLUMN_BYTES, BufferType, are_scales, bits

#: Columns of tensor memory (PTX ISA, "Tensor Memory Addressing").
COLUMNS = 512

_DTYPES = (
    tl.float32, tl.float16, tl.bfloat16, tl.float8e4nv, tl.float8e5, tl.int32, tl.uint32,
    tl.int8, tl.uint8,
)  # fmt: skip


def check_matrix(call: Call, kind: BufferType) -> None:
    """Check that a kind of buffers can be in tensor memory."""
    require_tensor_memory(call)
    if kind.dtype not in _DTYPES:
        call.fail(
            WrongDtype,
            f"tensor memory holds no {kind.dtype}",
            hint="one of " + ", ".join(map(str, _DTYPES)),
        )
    if len(kind.shape) != 2:
        call.fail(
            WrongShape,
            f"a buffer in tensor memory is a matrix, not of shape {kind.shape}",
            hint="(M, N), M 64 or 128",
        )
    if not are_scales(kind.dtype):
        check_rows(call, kind)
    taken = kind.bytes // COLUMN_BYTES
    if taken > COLUMNS:
        call.fail(
            OutOfTensorMemory,
            f"{kind} takes {taken} columns of tensor memory, there are {COLUMNS}",
            hint="fewer buffers (num), or fewer columns in each",
        )


def check_rows(call: Call, kind: BufferType) -> None:
    """Check the rows of a matrix in tensor memory, and that a row fills its columns."""
    rows, length = kind.shape
    if rows not in (64, 128):
        call.fail(
            WrongShape,
            f"a matrix in tensor memory has 64 or 128 rows, not {rows}",
            hint="several buffers of 128 rows hold a larger one",
        )
    if length * bits(kind.dtype) < 32:
        call.fail(
            WrongShape,
            f"{length} {kind.dtype} do not fill a column of tensor memory, which has 4 bytes",
            hint="use fp32, or more columns",
        )


def check_part(call: Call, whole: BufferType, part: BufferType) -> None:
    """Check that a part of a matrix in tensor memory has all of its rows, and whole columns."""
    if are_scales(whole.dtype) and part.shape[1] % 4:
        call.fail(
            WrongShape,
            f"a part of {part.shape[1]} scales of a row is none of {whole}",
            hint="take a multiple of 4: four scales of a row are in one column",
        )
    if part.shape[0] != whole.shape[0]:
        call.fail(
            WrongShape,
            f"a part of {part.shape[0]} of the {whole.shape[0]} rows is none of {whole}",
            hint="take all rows: a row is in a lane of tensor memory",
        )
    if not are_scales(whole.dtype):
        check_rows(call, part)


def check_reading(call: Call, source: BufferType, result: BufferType) -> None:
    """Check that a matrix in tensor memory can be read as another one."""
    check_matrix(call, result)
    if are_scales(source.dtype) != are_scales(result.dtype):
        call.fail(
            WrongDtype,
            f"{source} is not read as {result.dtype}: scales have a layout of their own",
            hint="allocate one with tlx.local_alloc(..., reuse=...)",
        )
    if result.shape[0] != source.shape[0]:
        call.fail(
            WrongShape,
            f"{source} is not read with {result.shape[0]} rows",
            hint="rows stay rows: a row is in a lane of tensor memory",
        )


def require_groups(call: Call, buffer: Any) -> None:
    """Check that whole groups of 4 warps reach a buffer in tensor memory: each has its lanes."""
    if buffer.type.in_tensor_memory and call.num_warps % 4:
        call.fail(
            WrongShape,
            f"a group of 4 warps reaches tensor memory, each warp a quarter of the lanes: here "
            f"are {call.num_warps}",
            hint="num_warps=4 or a multiple, of the task or of the launch",
        )


def tensor_text(call: Call, layout: Any, kind: BufferType) -> str | None:
    """The MLIR text of a layout of tensor memory that was given; None where none was."""
    layout = tl._unwrap_if_constexpr(layout)
    if layout is None:
        return None
    if isinstance(layout, tensor_memory_scales_layout_encoding):
        if not are_scales(kind.dtype):
            call.fail(
                WrongDtype,
                f"the layout is of scales, the buffer of {kind.dtype}",
                hint="scales are int8 or uint8",
            )
    elif not isinstance(layout, tensor_memory_layout_encoding):
        call.fail(
            WrongType,
            f"layout has to be a layout of tensor memory, it is {describe(layout)}",
            hint="leave layout out: it follows from the uses",
        )
    try:
        return layout.text(kind.shape)
    except WrongShape as error:
        call.fail(WrongShape, f"layout: {error.what}", hint=error.hint or "")
