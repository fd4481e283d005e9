"""Lowerings of tensor descriptors that are made in a kernel."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.host import features
from remora.ir.build import Builder, attribute, i32
from remora.tlx.device_descriptors import (
    SIZE,
    allocate_tensor_descriptor,
    descriptor_place,
    make_tensor_descriptor,
    reinterpret_tensor_descriptor,
)
from remora.tlx.lower.boxes import Box
from remora.tlx.lower.shared import segments
from remora.tlx_plugin import FROM_HOPPER_ON

_POINTER = attribute("!tt.ptr<i8>")
_I64 = attribute("i64")

# The hardware's numbers of element types and of swizzles.
_ELEMENTS = {
    "i8": 0, "si8": 0, "ui8": 0, "f8E4M3FN": 0, "f8E5M2": 0, "i16": 1, "si16": 1, "ui16": 1,
    "i32": 2, "ui32": 2, "si32": 3, "i64": 4, "ui64": 4, "si64": 5,
    "f16": 6, "f32": 7, "f64": 9, "bf16": 10,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


@allocate_tensor_descriptor.lowering(*FROM_HOPPER_ON)
def lower_allocate(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.global_scratch_alloc``; the handle is the address."""
    attributes: dict[str, Attribute] = {
        "alignment": i32(SIZE),
        "nbytes": i32(SIZE * op.attributes["num"]),
    }
    if not features().calls_carry_tensors:  # a release with scratch memories of several kinds
        attributes["backend"] = StringAttr("default")
    pointer = builder.value("ttg.global_scratch_alloc", [], _POINTER, attributes)
    return builder.value("tt.ptr_to_int", [pointer], _I64)


@descriptor_place.lowering(*FROM_HOPPER_ON)
def lower_place(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """The address of a place among others."""
    first, index = op.operands
    wide = builder.value("arith.extsi", [index], _I64)
    offset = builder.value("arith.muli", [wide, builder.constant(SIZE, 64)], _I64)
    return builder.value("arith.addi", [first, offset], _I64)


@make_tensor_descriptor.lowering(*FROM_HOPPER_ON)
def lower_make(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttng.tensormap_create``, as stock Triton makes one in a place of its own."""
    kind = op.results[0].type
    box = Box.of(kind)
    assert box is not None
    rank, layout = len(box.shape), box.layout
    place, base, *sizes = op.operands
    shape, strides = sizes[:rank], sizes[rank:]
    pointer = builder.value("tt.int_to_ptr", [place], _POINTER)
    width = builder.constant(box.bits // 8, 64)
    operands = [
        pointer, base,
        *(builder.constant(n) for n in reversed(layout.piece(box.shape))),
        *reversed(shape),
        *(builder.value("arith.muli", [s, width], _I64) for s in reversed(strides[:-1])),
        *(builder.constant(1) for _ in range(rank)),
    ]  # fmt: skip
    builder.op(
        "ttng.tensormap_create", operands, [],
        {
            "elem_type": i32(_ELEMENTS[box.element]),
            "fill_mode": i32(int(op.attributes["nan"])),
            "interleave_layout": i32(0),
            "swizzle_mode": i32(_SWIZZLES[layout.swizzling]),
            "operandSegmentSizes": segments(1, 1, rank, rank, rank - 1, rank),
        },
    )  # fmt: skip
    return _descriptor_at(pointer, kind, builder)


@reinterpret_tensor_descriptor.lowering(*FROM_HOPPER_ON)
def lower_reinterpret(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttng.reinterpret_tensor_descriptor``, after a fence: others may have made it."""
    pointer = builder.value("tt.int_to_ptr", [op.operands[0]], _POINTER)
    return _descriptor_at(pointer, op.results[0].type, builder)


def _descriptor_at(pointer: SSAValue, kind: Attribute, builder: Builder) -> SSAValue:
    builder.op("ttng.tensormap_fenceproxy_acquire", [pointer])
    return builder.value("ttng.reinterpret_tensor_descriptor", [pointer], kind)
