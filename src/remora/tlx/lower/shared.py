"""Lowerings that every target shares: buffers, views, loads and stores."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import LanguageError
from remora.ir.build import Builder, attribute, boolean, erase, inherent, op_name
from remora.tlx.buffers import local_alloc, local_load, local_store, local_view
from remora.tlx.storage import Placement, set_buffer_overlap, storage_alias_spec
from remora.tlx.tasks import async_task_replica_id


@local_alloc.lowering("cuda", "hip")
def lower_alloc(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.local_alloc`` without a source, or a part of one that several share."""
    kind = lowering.analysis.memdesc_of(op)
    shared = lowering.analysis.storage_of(op)
    if shared is None:
        return builder.value("ttg.local_alloc", [], kind)
    if shared.root is op:
        shared.allocate(builder)
    return builder.value("ttg.memdesc_reinterpret", [shared.block_of(op)], kind)


@storage_alias_spec.lowering("cuda", "hip")
def lower_spec(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """The memory that the allocations share; the handle itself stands for nothing."""
    lowering.analysis.storage_of(op).allocate(builder)
    return builder.constant(0, 64)


@set_buffer_overlap.lowering("cuda", "hip")
def lower_overlap(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """Nothing: the analysis has placed the allocations."""


@local_view.lowering("cuda", "hip")
def lower_view(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.memdesc_index``."""
    buffers, index = op.operands
    placement = lowering.analysis.placement_of(op)
    if placement is not None:
        index = _placed(index, placement, lowering.analysis.source_of(op).bytes, builder)
    kind = lowering.analysis.view_type(op.results[0])
    return builder.value("ttg.memdesc_index", [buffers, index], kind)


def _placed(index: SSAValue, placement: Placement, size: int, builder: Builder) -> SSAValue:
    """The index of a buffer of ``size`` bytes among all that fit into its block."""

    def number(name: str, left: SSAValue, right: int) -> SSAValue:
        return builder.value(f"arith.{name}", [left, builder.constant(right)], left.type)

    if placement.stride != placement.group * size:
        within = number("remsi", index, placement.group)
        group = number("divsi", index, placement.group)
        index = number("muli", group, placement.stride // size)
        index = builder.value("arith.addi", [index, within], index.type)
    return number("addi", index, placement.offset // size) if placement.offset else index


@local_store.lowering("cuda", "hip")
def lower_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttg.local_store``."""
    builder.op("ttg.local_store", op.operands)


@local_load.lowering("cuda", "hip")
def lower_load(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.local_load``; a conversion to an operand's layout folds into it later."""
    return builder.value("ttg.local_load", op.operands, op.results[0].type)


@async_task_replica_id.lowering("cuda")
def lower_replica_id(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """Within a task it has been replaced before."""
    raise LanguageError(
        "tlx.async_task_replica_id: there are replicas in a task only",
        where=op.where,
        hint="use it within `with tlx.async_task(...):`, or in a function that a task alone calls",
    )


def token(builder: Builder) -> SSAValue:
    """A token: the order is the program's, so that it need not stand for anything."""
    return builder.constant(0, 64)


def masked_load(load: Operation) -> tuple[SSAValue, SSAValue | None, SSAValue | None]:
    """Pointer, mask and other of a ``tt.load``."""
    sizes: Any = inherent(load, "operandSegmentSizes")
    _, has_mask, has_other = sizes.get_values()
    operands = list(load.operands)
    mask = operands[1] if has_mask else None
    return operands[0], mask, operands[-1] if has_other else None


def segments(*sizes: int) -> Attribute:
    """``operandSegmentSizes``."""
    return DenseArrayBase.from_list(IntegerType(32), sizes)


def load_now(op: CustomOp, load: Operation, builder: Builder) -> None:
    """An ``async_load`` through registers: load, then store to the buffer."""
    pointer, mask, other = masked_load(load)
    operands = [v for v in (pointer, mask, other) if v is not None]
    kind: Any = load.results[0].type
    policy = {k: v for k, v in load.properties.items() if k != "operandSegmentSizes"}
    policy["isVolatile"] = boolean(op.attributes["is_volatile"])
    if mask is not None and other is None:
        zero = "0" if isinstance(kind.element_type, IntegerType) else "0.000000e+00"
        dense = attribute(f"dense<{zero}> : {kind}")
        operands.append(builder.value("arith.constant", [], kind, {"value": dense}))
    has_mask = int(mask is not None)
    value = builder.value(
        "tt.load", operands, kind,
        {**policy, "operandSegmentSizes": segments(1, has_mask, has_mask)},
    )  # fmt: skip
    builder.op("ttg.local_store", [value, op.operands[1]])


def erase_load(op: CustomOp, load: Operation) -> None:
    """Take out the load that carried an ``async_load``, and its conversions."""
    chain = [load]
    owner = op.op.operands[0].owner
    while isinstance(owner, Operation) and op_name(owner) == "ttg.convert_layout":
        chain.insert(-1, owner)
        owner = owner.operands[0].owner
    op.op.operands[0] = op.op.operands[1]  # let go of it
    for dead in chain:
        if not any(r.uses for r in dead.results):
            erase(dead)
