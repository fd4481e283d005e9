"""Hints for AMD's scheduler and register allocator: intrinsics, and empty inline assembly."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IntegerAttr, IntegerType, StringAttr, TensorType
from xdsl.ir import Attribute, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.host import features
from remora.ir.build import Builder, attribute, boolean, i32
from remora.tlx.hints import (
    amd_iglp_opt,
    amd_register_class_anchor,
    amd_register_resident,
    amd_sched_barrier,
    amd_sched_group_barrier,
    amd_setprio,
    assume_uniform,
)

#: The bits of a mask, the lowest first (LLVM, AMDGPU usage guide).
_NAMES = (
    "non_mem_non_sideeffect", "valu", "salu", "mfma_wmma", "all_vmem", "vmem_read", "vmem_write",
    "all_ds", "ds_read", "ds_write", "transcendental", "ldsdma",
)  # fmt: skip


def scheduling_mask(mask: int) -> Attribute:
    """The attribute for the instructions that a mask names."""
    if not features().scheduling_masks:
        return i32(mask)
    names = [name for bit, name in enumerate(_NAMES) if mask >> bit & 1]
    return attribute(f"#rocdl<sched_group_mask {'|'.join(names) or 'none'}>")


@amd_sched_barrier.lowering("hip")
def lower_barrier(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``rocdl.sched.barrier``."""
    builder.op("rocdl.sched.barrier", [], [], {"mask": scheduling_mask(op.attributes["mask"])})


@amd_sched_group_barrier.lowering("hip")
def lower_group_barrier(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``rocdl.sched.group.barrier``."""
    builder.op(
        "rocdl.sched.group.barrier", [], [],
        {
            "mask": scheduling_mask(op.attributes["mask"]),
            "size": i32(op.attributes["size"]),
            "groupId": i32(op.attributes["sync_id"]),
        },
    )  # fmt: skip


@amd_iglp_opt.lowering("hip")
def lower_iglp(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``rocdl.iglp.opt``."""
    builder.op("rocdl.iglp.opt", [], [], {"variant": i32(op.attributes["variant"])})


@amd_setprio.lowering("hip")
def lower_priority(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``rocdl.s.setprio``."""
    priority = IntegerAttr(op.attributes["priority"], IntegerType(16))
    builder.op("rocdl.s.setprio", [], [], {"priority": priority})


@amd_register_resident.lowering("hip")
@amd_register_class_anchor.lowering("hip")
def lower_anchor(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """No instruction, whose operand and result are one register of the class."""
    return anchored(op.operands[0], op.attributes["register_class"], builder)


def anchored(value: SSAValue, register_class: str, builder: Builder) -> SSAValue:
    """A value, after having been in a register of a class."""
    kind: Any = value.type
    element: Any = kind.element_type if isinstance(kind, TensorType) else kind
    return builder.value(
        "tt.elementwise_inline_asm", [value], kind,
        {
            "asm_string": StringAttr(""),
            "constraints": StringAttr(f"={register_class[0]},0"),
            "packed_element": i32(max(32 // element.bitwidth, 1)),
            "pure": boolean(True),
        },
    )  # fmt: skip


def uniform_pointer(
    pointer: SSAValue, builder: Builder, lowering: Lowering, least: int = 1
) -> SSAValue:
    """A pointer in a scalar register; what is known of its alignment, and ``least``, is known."""
    bits = builder.value("tt.ptr_to_int", [pointer], attribute("i64"))
    bits = builder.value("rocdl.readfirstlane", [bits], bits.type)
    divisor = max(lowering.analysis.alignment.of(pointer).divisibility[0], least)
    known = {"tt.divisibility": i32(divisor)} if divisor > 1 else None
    return builder.value("tt.int_to_ptr", [bits], pointer.type, known)


@assume_uniform.lowering("hip")
def lower_uniform(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``rocdl.readfirstlane``; of pointers and floats on their bits."""
    (value,) = op.operands
    kind: Any = value.type
    if str(kind).startswith("!tt.ptr"):
        return uniform_pointer(value, builder, lowering)
    width: int = kind.bitwidth
    integer = IntegerType(width)
    bits = value if kind == integer else builder.value("arith.bitcast", [value], integer)
    if width < 32:
        bits = builder.value("arith.extui", [bits], IntegerType(32))
    bits = builder.value("rocdl.readfirstlane", [bits], bits.type)
    if width < 32:
        bits = builder.value("arith.trunci", [bits], integer)
    return bits if kind == integer else builder.value("arith.bitcast", [bits], kind)
