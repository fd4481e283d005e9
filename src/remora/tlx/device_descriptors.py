"""Tensor descriptors that are made in a kernel, in places that tasks can share."""

from __future__ import annotations

from typing import Any

from triton.language import core as tl

from remora.dsl import Call, Handle, describe, op
from remora.dsl.reference import Machine
from remora.errors import BufferIndexError, WaitNeverEnds, WrongDtype, WrongShape, WrongType
from remora.tlx.barriers import require_copy_engine
from remora.tlx.buffers import LOWERED_IN
from remora.tlx.descriptors import block_shape, check_box, operand
from remora.tlx.types import DescriptorPlacesType, bits

PADDINGS = ("zero", "nan")

#: Bytes of a descriptor in memory.
SIZE = 128

_INSTEAD = "tlx.make_tensor_descriptor(None, ...) makes one without a place"


@op("tlx.allocate_tensor_descriptor", lowered_in=LOWERED_IN)
def allocate_tensor_descriptor(call: Call, num: Any) -> Any:
    """Places in global memory for ``num`` tensor descriptors, constant, at least 1.

    The launch needs an allocator: ``triton.set_allocator``.
    """
    require_copy_engine(call, _INSTEAD)
    count = call.constant("num", num)
    if count < 1:
        call.fail(WrongShape, f"num has to be at least 1, it is {count}", hint="num=1")
    return call.emit([], [DescriptorPlacesType(count)], num=count)


@op("tlx.descriptor_place", lowered_in=LOWERED_IN)
def descriptor_place(call: Call, places: Any, i: Any) -> Any:
    """``places[i]``: one of the places for tensor descriptors."""
    given = call.handle("places", places, DescriptorPlacesType)
    i = tl._unwrap_if_constexpr(i)
    if isinstance(i, int) and not 0 <= i < given.type.num:
        call.fail(
            BufferIndexError,
            f"there is no place {i} in {given.type}",
            hint=f"the indices are 0 to {given.type.num - 1}",
        )
    index = call.integer("the place's index", i)
    # A run-time index leaves open how many places follow.
    left = given.type.num - i if isinstance(i, int) else given.type.num
    return call.emit([given, index], [DescriptorPlacesType(left)])


@op("tlx.make_tensor_descriptor", lowered_in=LOWERED_IN)
def make_tensor_descriptor(
    call: Call,
    desc_ptr: Any,
    base: Any,
    shape: Any,
    strides: Any,
    block_shape: Any,
    padding_option: Any = "zero",
) -> Any:
    """A tensor descriptor.

    Args:
        desc_ptr: a place for it, from ``allocate_tensor_descriptor``; None: one of its own.
        base: a pointer, aligned to 16 bytes.
        shape: of the tensor, 1 to 5 integers.
        strides: in elements, the last one 1, the others multiples of 16 bytes.
        block_shape: of its boxes, constant.
        padding_option: constant: "zero" or "nan", what loads give outside of the tensor.
    """
    if tl._unwrap_if_constexpr(desc_ptr) is not None:
        desc_ptr = call.handle("desc_ptr", desc_ptr, DescriptorPlacesType)
    else:
        desc_ptr = None
    base = tl._unwrap_if_constexpr(base)
    if not isinstance(base, tl.tensor) or base.type.is_block() or not base.dtype.is_ptr():
        call.fail(
            WrongType,
            f"base has to be a pointer, it is {describe(base)}",
            hint="give the pointer to the tensor's first element",
        )
    block = call.shape("block_shape", block_shape)
    dtype = base.dtype.element_ty
    sizes, steps = _list(call, "shape", shape, block), _list(call, "strides", strides, block)
    check_box(call, "the descriptor", block, dtype)
    last = tl._unwrap_if_constexpr(steps[-1])
    if not isinstance(last, int) or last != 1:
        call.fail(
            WrongShape,
            f"the last stride has to be the constant 1, it is {describe(last)}",
            hint="TMA copies tensors whose last dimension is contiguous",
        )
    for stride in (tl._unwrap_if_constexpr(step) for step in steps[:-1]):
        if isinstance(stride, int) and stride * bits(dtype) % 128:
            call.fail(
                WrongShape,
                f"a stride of {stride} {dtype} is no multiple of 16 bytes",
                hint="TMA copies tensors whose rows begin at multiples of 16 bytes: pad them",
            )
    padding = call.constant("padding_option", padding_option, str)
    if padding not in PADDINGS:
        call.fail(
            WrongType,
            f"padding_option has to be one of {', '.join(PADDINGS)}, it is {padding!r}",
            hint="leave padding_option out",
        )
    if padding == "nan" and not dtype.is_floating():
        call.fail(WrongDtype, f"{dtype} has no NaN to pad with", hint='padding_option="zero"')
    if desc_ptr is None or call.interpreted:
        constants = [tl.constexpr(extent) for extent in block]
        made = call.semantic.make_tensor_descriptor(base, sizes, steps, constants, padding)
        if desc_ptr is not None:
            call.emit([desc_ptr, Handle(made, operand(call, made).type)])
        return made
    require_copy_engine(call, _INSTEAD)
    extents = [call.semantic.make_scalar(s, tl.int32) for s in sizes]
    strided = [call.semantic.make_scalar(tl._unwrap_if_constexpr(s), tl.int64) for s in steps]
    kind = tl.block_type(dtype, list(block))
    made = call.emit(
        [desc_ptr, base, *extents, *strided],
        [tl.tensor_descriptor_base_type(kind)],
        nan=padding == "nan",
    )
    return tl.tensor_descriptor(made.handle, extents, strided, kind)


def _list(call: Call, name: str, value: Any, block: tuple[int, ...]) -> list[Any]:
    """A list of as many values as boxes have dimensions."""
    value = tl._unwrap_if_constexpr(value)
    value = value.values if isinstance(value, tl.tuple) else value
    if not isinstance(value, (list, tuple)) or len(value) != len(block):
        call.fail(
            WrongShape,
            f"{name} has to be a list of {len(block)} integers, as block_shape is",
            hint="one for each dimension of the tensor",
        )
    for i, one in enumerate(value):
        call.integer(f"{name}[{i}]", one)
    return list(value)


@op("tlx.reinterpret_tensor_descriptor", lowered_in=LOWERED_IN)
def reinterpret_tensor_descriptor(call: Call, desc_ptr: Any, block_shape: Any, dtype: Any) -> Any:
    """The tensor descriptor that was made in a place.

    Args:
        desc_ptr: the place.
        block_shape, dtype: those that it was made with, constant.
    """
    given = call.handle("desc_ptr", desc_ptr, DescriptorPlacesType)
    block = call.shape("block_shape", block_shape)
    dtype = tl._unwrap_if_constexpr(dtype)
    if not isinstance(dtype, tl.dtype):
        call.fail(
            WrongType,
            f"dtype has to be an element type, it is {describe(dtype)}",
            hint="tlx.dtype_of(pointer) gives one",
        )
    check_box(call, "the descriptor", block, dtype)
    kind = tl.tensor_descriptor_base_type(tl.block_type(dtype, list(block)))
    if call.interpreted:
        return _read(call, given, block, dtype)
    return call.emit([given], [kind])


def _read(call: Call, given: Handle, block: tuple[int, ...], dtype: Any) -> Any:
    """The descriptor in a place, under the reference meaning."""
    places, index = given.carried
    made = places[index]
    if made is None:
        call.fail(
            WaitNeverEnds,
            "no tensor descriptor was made in that place before",
            hint="tlx.make_tensor_descriptor makes one; another task may read it after a barrier",
        )
    if block_shape(made) != block or made.dtype != dtype:
        call.fail(
            WrongShape,
            f"the descriptor was made for boxes of {block_shape(made)} {made.dtype}, not {block} "
            f"{dtype}",
            hint="give the block shape and the dtype that it was made with",
        )
    return made


@allocate_tensor_descriptor.reference
def _allocated(machine: Machine, num: int) -> tuple[list[Any], int]:
    return [None] * num, 0


@descriptor_place.reference
def _place(machine: Machine, places: tuple[list[Any], int], i: Any) -> tuple[list[Any], int]:
    slots, first = places
    if not 0 <= first + int(i) < len(slots):
        machine.call.fail(
            BufferIndexError,
            f"there is no place {int(i)} among {len(slots) - first}",
            hint=f"the indices are 0 to {len(slots) - first - 1}",
        )
    return slots, first + int(i)


@make_tensor_descriptor.reference
def _make(machine: Machine, places: tuple[list[Any], int], made: Any) -> None:
    slots, index = places
    slots[index] = made
