"""Views of buffers: other shapes, orders and element types of the same memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine, numpy_dtype
from remora.errors import NotConstant, WrongDtype, WrongShape, WrongType
from remora.tlx.buffers import DTYPES, LOWERED_IN, Buffers, TensorBuffers, element_dtype, view
from remora.tlx.layouts import shared_text
from remora.tlx.storage import Placement
from remora.tlx.tensor_memory import check_part, check_reading, tensor_text
from remora.tlx.types import BufferType, bits

Array = np.ndarray[Any, Any]


@op("tlx.local_trans", lowered_in=LOWERED_IN)
def local_trans(call: Call, input: Any, dims: Any = (1, 0)) -> Any:
    """A buffer with its dimensions permuted; nothing moves.

    Args:
        input: one buffer.
        dims: constant: dimension ``j`` of the view is dimension ``dims[j]`` of the buffer.
    """
    buffer = view(call, "input", input)
    given = tl._unwrap_if_constexpr(dims)
    if not isinstance(given, (tuple, list, tl.tuple)):
        call.fail(WrongType, f"dims has to be a tuple, it is {given!r}", hint="dims=(1, 0)")
    order = tuple(call.constant(f"dims[{i}]", d) for i, d in enumerate(given))
    if sorted(order) != list(range(len(buffer.shape))):
        call.fail(
            WrongShape,
            f"dims has to be a permutation of the {len(buffer.shape)} dimensions of "
            f"{buffer.type}, it is {order}",
            hint="dims=(1, 0) transposes a matrix",
        )
    shape = tuple(buffer.shape[d] for d in order)
    return call.emit([buffer], [replace(buffer.type, shape=shape)], dims=order)


@local_trans.reference
def _trans(machine: Machine, buffer: Array, dims: tuple[int, ...]) -> Array:
    return buffer.transpose(dims)


@op("tlx.local_slice", lowered_in=LOWERED_IN)
def local_slice(call: Call, buffer: Any, offset: Any, shape: Any) -> Any:
    """A part of a buffer, without a copy.

    Args:
        buffer: one buffer; in tensor memory all rows are in the part.
        offset: where the part begins, in each dimension; a multiple of its extent. Constant, but
            on AMD, where a part that is not a multiple is another one's elements.
        shape: constant: its extents, powers of two.
    """
    given = view(call, "buffer", buffer, tensor_memory=True)
    return _slice(call, given, offset, call.shape("shape", shape))


@op("tlx.subslice", lowered_in=LOWERED_IN)
def subslice(call: Call, local_allocated_buffer: Any, offset: Any, size: Any) -> Any:
    """Part of a buffer along its last dimension.

    Args:
        local_allocated_buffer: one buffer.
        offset, size: where the part begins, and its extent, as of ``local_slice``.
    """
    buffer = view(call, "local_allocated_buffer", local_allocated_buffer, tensor_memory=True)
    kept = buffer.shape[:-1]
    start = (*(0 for _ in kept), offset)
    return _slice(call, buffer, start, (*kept, call.constant("size", size)))


def _slice(call: Call, buffer: Any, offset: Any, shape: tuple[int, ...]) -> Any:
    given = tl._unwrap_if_constexpr(offset)
    if not isinstance(given, (tuple, list, tl.tuple)):
        call.fail(WrongType, f"offset has to be a tuple, it is {given!r}", hint="offset=(0, 64)")
    at_run_time: list[Any] = []
    start = tuple(_begin(call, f"offset[{i}]", o, at_run_time) for i, o in enumerate(given))
    if not len(start) == len(shape) == len(buffer.shape):
        call.fail(
            WrongShape,
            f"offset {start} and shape {shape} have to have the {len(buffer.shape)} dimensions "
            f"of {buffer.type}",
            hint="give each dimension an offset and an extent",
        )
    for o, s, extent in zip(start, shape, buffer.shape, strict=True):
        begin = o or 0  # at run time: a multiple within the buffer
        if s <= 0 or s & (s - 1) or begin < 0 or begin % s or begin + s > extent:
            call.fail(
                WrongShape,
                f"offset {start} and shape {shape} are no part of {buffer.type}",
                hint="extents are powers of two, an offset is a multiple of its extent, and the "
                "part ends within the buffer",
            )
    return local_slice_emit(call, buffer, start, shape, at_run_time)


def _begin(call: Call, name: str, value: Any, at_run_time: list[Any]) -> int | None:
    """Where a part begins; None, and an operand, where that is known at run time only."""
    try:
        return int(call.constant(name, value))
    except NotConstant:
        if call.target.backend != "hip":
            raise
    at_run_time.append(call.integer(name, value))
    return None


def local_slice_emit(
    call: Call, buffer: Any, offset: tuple[int | None, ...], shape: tuple[int, ...],
    at_run_time: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Emit a slice that has been checked; at_run_time: what is None in ``offset``."""
    kind = replace(buffer.type, shape=shape)
    if kind.in_tensor_memory:
        check_part(call, buffer.type, kind)
    return call.emit([buffer, *at_run_time], [kind], offset=offset, shape=shape)


def _sliced(
    machine: Machine, buffer: Array, offset: tuple[int, ...], shape: tuple[int, ...]
) -> Array:
    part: Array = buffer[tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))]
    return part


local_slice.reference(_sliced)
subslice.reference(_sliced)


@op("tlx.local_reinterpret", lowered_in=LOWERED_IN)
def local_reinterpret(
    call: Call, src: Any, dtype: Any, shape: Any = None, layout: Any = None, pin: Any = True
) -> Any:
    """The same bytes, read as another element type and shape.

    Args:
        src: a buffer that is not a slice, or an allocation. In tensor memory rows stay rows: a
            part is fine, ``shape`` has as many, and each is read from its first bytes on.
        dtype: the element type.
        shape: constant; None: as it is. Of an allocation: the shape of one buffer over all of
            its memory.
        layout: None: the bytes are in the order of the source's rows. A shared layout: of the
            view; where the author names one the order of the bytes is that layout's.
        pin: no effect: a layout that is named is kept.

    The view takes the first bytes of the source, at most all of them.
    """
    buffer = call.handle("src", src, BufferType)
    kind: Any = buffer.type
    element = element_dtype(call, dtype)
    num = kind.num
    extents = kind.shape
    if tl._unwrap_if_constexpr(shape) is not None:
        extents, num = call.shape("shape", shape), 0
    elif num > 1 and bits(element) != bits(kind.dtype):
        call.fail(
            WrongDtype,
            f"{kind} is not of {element}, which has another width",
            hint="take one of them with tlx.local_view(buffers, i), or say the shape",
        )
    if any(extent & (extent - 1) for extent in extents):
        call.fail(
            WrongShape,
            f"the extents of a buffer have to be powers of two, not {extents}",
            hint="reinterpret a part: tlx.local_slice takes one",
        )
    call.constant("pin", pin, bool)
    result = replace(kind, shape=extents, dtype=element, num=num)
    if kind.in_tensor_memory:
        check_reading(call, kind, result)
        text = tensor_text(call, layout, result)
    else:
        text = shared_text(call, layout, extents, element)
    if result.bytes > kind.bytes:
        call.fail(
            WrongShape,
            f"{result} takes {result.bytes:,} bytes, {kind} has {kind.bytes:,}",
            hint="a view is at most as large as what it views",
        )
    return call.emit(
        [buffer], [result],
        shape=extents, dtype=str(element), num=num, layout=text,
        **({"storage": kind.storage.value} if kind.in_tensor_memory else {}),
    )  # fmt: skip


@local_reinterpret.reference
def _reinterpret(
    machine: Machine,
    source: Any,
    shape: tuple[int, ...],
    dtype: str,
    num: int,
    layout: Any,
    storage: str = "smem",
) -> Any:
    kind = numpy_dtype(DTYPES[dtype])
    if isinstance(source, Buffers):
        flat, whole = source.raw, source.is_contiguous
    else:
        # In tensor memory each row is in a lane of its own.
        flat, whole = source, source.flags.c_contiguous or storage == "tmem"
    if not whole:
        machine.call.fail(
            WrongType,
            "a slice, or a transposed buffer, has no bytes in a row to reinterpret",
            hint="reinterpret the whole buffer, and slice or transpose what comes of it",
        )
    if isinstance(source, TensorBuffers):
        return source.reread(shape, DTYPES[dtype], num)
    if storage == "tmem":
        lanes: Array = source.view(kind)[:, : shape[1]]
        return lanes
    size = math.prod(shape) * max(num, 1) * kind.itemsize
    raw = flat.reshape(-1).view(np.uint8)[:size]
    if not num:
        viewed: Array = raw.view(kind).reshape(shape)
        return viewed
    buffers = Buffers(shape, DTYPES[dtype], num)
    buffers.lie(raw, Placement(0, 0, buffers.size, 1))
    return buffers
