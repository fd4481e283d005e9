"""Words for AMD's instruction scheduler and register allocator: they change no value."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import UnsupportedByTarget, WrongDtype, WrongShape, WrongType
from remora.host import features
from remora.tlx.storage import LOWERED_IN
from remora.tlx.types import bits

Array = np.ndarray[Any, Any]

_CLASSES = ("agpr", "vgpr")


def on_amd(call: Call, instead: str, reason: str = "it is AMD's") -> None:
    """Refuse targets that are not AMD's, and releases whose stock passes lack what it takes."""
    call.require_target("hip", reason=reason, instead=instead)
    if not call.interpreted and not features().copies_to_lds:
        call.fail(
            UnsupportedByTarget,
            f"Triton {features().version} has it not for AMD",
            hint=f"Triton 3.8 or later; or {instead}",
        )


def _within(call: Call, name: str, value: Any, least: int, most: int) -> int:
    number: int = call.constant(name, value)
    if not least <= number <= most:
        call.fail(
            WrongShape,
            f"{name} has to be {least} to {most}, it is {number}",
            hint="see LLVM's AMDGPU usage guide, the intrinsics of scheduling",
        )
    return number


@op("tlx.amd_sched_barrier", lowered_in=LOWERED_IN)
def amd_sched_barrier(call: Call, mask: Any = 0) -> Any:
    """No instruction moves past this place but those that ``mask`` names: ``s_sched_barrier``.

    mask: constant; bits of ``llvm.amdgcn.sched.barrier``: 1 without memory and effects, 2 VALU,
    4 SALU, 8 MFMA, 0x10 global memory (0x20 its reads, 0x40 its writes), 0x80 LDS (0x100 its
    reads, 0x200 its writes), 0x400 transcendentals, 0x800 copies to LDS.

    No barrier for warps, no fence.
    """
    on_amd(call, "leave it out: ptxas schedules")
    call.emit(mask=_within(call, "mask", mask, 0, 0xFFF))


@op("tlx.amd_sched_group_barrier", lowered_in=LOWERED_IN)
def amd_sched_group_barrier(call: Call, mask: Any, size: Any, sync_id: Any = 0) -> Any:
    """Here stand ``size`` instructions that ``mask`` names: ``llvm.amdgcn.sched.group.barrier``.

    Args:
        mask: constant, as of ``amd_sched_barrier``.
        size: constant, at least 1.
        sync_id: constant: barriers of one number are put in order among each other.
    """
    on_amd(call, "leave it out: ptxas schedules")
    call.emit(
        mask=_within(call, "mask", mask, 1, 0xFFF),
        size=_within(call, "size", size, 1, 1 << 20),
        sync_id=_within(call, "sync_id", sync_id, 0, 1 << 20),
    )


@op("tlx.amd_iglp_opt", lowered_in=LOWERED_IN)
def amd_iglp_opt(call: Call, variant: Any) -> Any:
    """A scheduling strategy for the code around: ``llvm.amdgcn.iglp.opt``.

    variant: constant: 0 small GEMM, 1 GEMM of one warp, 2 exponentials beside MFMA, 3 the same,
    simple.
    """
    on_amd(call, "leave it out: ptxas schedules")
    call.emit(variant=_within(call, "variant", variant, 0, 3))


@op("tlx.amd_setprio", lowered_in=LOWERED_IN)
def amd_setprio(call: Call, priority: Any) -> Any:
    """The priority of the warp from here on: ``s_setprio``; constant, 0 to 3, the highest."""
    on_amd(call, "leave it out")
    call.emit(priority=_within(call, "priority", priority, 0, 3))


@amd_sched_barrier.reference
@amd_sched_group_barrier.reference
@amd_iglp_opt.reference
@amd_setprio.reference
def _nothing(machine: Machine, **said: int) -> None:
    """A hint."""


def register_class(call: Call, name: str, value: Any) -> str:
    """A register class: accumulation registers or vector registers."""
    kind: str = call.constant(name, value, str)
    if kind not in _CLASSES:
        call.fail(WrongType, f"{name} is {kind!r}", hint='"agpr" or "vgpr"')
    return kind


@op("tlx.amd_register_resident", lowered_in=LOWERED_IN)
def amd_register_resident(
    call: Call, value: Any, register_class: Any = "agpr", registers_per_group: Any = 1
) -> Any:
    """``value``, in registers of a class from here on.

    Args:
        value: a tensor.
        register_class: constant: ``"agpr"`` (accumulation) or ``"vgpr"``.
        registers_per_group: constant, a power of two: registers that are allocated together;
            no effect here.

    The compiler may move it again after the next operation that computes with it.
    """
    on_amd(call, "leave it out: registers are of one class")
    group = call.constant("registers_per_group", registers_per_group)
    if group < 1 or group & (group - 1):
        call.fail(
            WrongShape, f"registers_per_group is {group}", hint="give a power of two: 1, 2, 4, ..."
        )
    return _anchored(call, value, register_class)


@op("tlx.amd_register_class_anchor", lowered_in=LOWERED_IN)
def amd_register_class_anchor(call: Call, value: Any, register_class: Any = "vgpr") -> Any:
    """``value``, in registers of a class at this place. Arguments: ``amd_register_resident``."""
    on_amd(call, "leave it out: registers are of one class")
    return _anchored(call, value, register_class)


def _anchored(call: Call, value: Any, given: Any) -> Any:
    kind = register_class(call, "register_class", given)
    tensor = call.tensor("value", value)
    if tensor.dtype.is_ptr():
        call.fail(WrongDtype, "value is a tensor of pointers", hint="give numbers")
    return call.emit([tensor], [tensor.type], register_class=kind)


@op("tlx.assume_uniform", lowered_in=LOWERED_IN)
def assume_uniform(call: Call, value: Any) -> Any:
    """``value``, which is the same in all lanes of a warp: it lives in a scalar register.

    value: a scalar: a pointer, or a number of 16, 32 or 64 bits. A pointer that was loaded is a
    base for buffer operations only so. Nothing checks it: of other values the first lane's is
    taken.

    On targets without scalar registers, and under the reference meaning, ``value`` itself.
    """
    value = tl._unwrap_if_constexpr(value)
    if not isinstance(value, tl.tensor) or value.type.is_block():
        call.fail(
            WrongType,
            f"value has to be a scalar, it is {describe(value)}",
            hint="a pointer or a number that all lanes have",
        )
    if not value.dtype.is_ptr() and bits(value.dtype) < 16:
        call.fail(
            WrongDtype,
            f"value is of {value.dtype}",
            hint="widen it to 16 bits at least: value.to(tl.int32)",
        )
    if call.interpreted or call.target.backend != "hip":
        return value
    on_amd(call, "leave it out")
    return call.emit([value], [value.type])


@op("tlx.rematerialized_range")
def rematerialized_range(
    call: Call, start: Any, end: Any, identity: Any, placement: Any = None
) -> Any:
    """``tl.arange(start, end)``, which is to be computed again where it is used.

    Args:
        start, end: constants.
        identity: constant: ranges of different numbers are not merged.
        placement: a value after which it is to be computed; no effect here.
    """
    first, last = call.constant("start", start), call.constant("end", end)
    call.constant("identity", identity)
    if last <= first:
        call.fail(WrongShape, f"the range ends at {last}, it starts at {first}", hint="end > start")
    if (last - first) & (last - first - 1):
        call.fail(
            WrongShape,
            f"the range has {last - first} numbers",
            hint="a power of two, and a mask where fewer are used",
        )
    return call.semantic.arange(first, last)


@amd_register_resident.reference
@amd_register_class_anchor.reference
def _same(machine: Machine, value: Array, register_class: str) -> Array:
    return value
