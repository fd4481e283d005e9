"""Lowerings that every target shares: buffers, views, loads and stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import ConflictingLayouts, PluginError, WrongType
from remora.ir.build import Builder, attribute, boolean, erase, inherent, op_name
from remora.tlx.buffers import local_alloc, local_load, local_store, local_view
from remora.tlx.layouts import assert_same_layout, require_layout
from remora.tlx.lower.analysis import loaded_by
from remora.tlx.lower.layouts import (
    MemDesc,
    NvmmaShared,
    SwizzledShared,
    shared_layout,
    with_encoding,
)
from remora.tlx.lower.sharing import allocator
from remora.tlx.storage import Placement, set_buffer_overlap, storage_alias_spec
from remora.tlx.tasks import async_task_replica_id

# What stock Triton's AMD backend calls a load that waits for copies keep apart from them.
_SYNCED = "ttg.amdg.syncedViaAsyncWait"


@local_alloc.lowering("cuda", "hip")
def lower_alloc(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.local_alloc`` without a source, or a part of one that several share."""
    kind = lowering.analysis.memdesc_of(op)
    shared = lowering.analysis.storage_of(op)
    if shared is None:
        return builder.value(allocator(op), [], kind)
    if shared.root is op:
        shared.allocate(op, builder)
    block = shared.block_of(op)
    return block if block.type == kind else builder.value("ttg.memdesc_reinterpret", [block], kind)


@storage_alias_spec.lowering("cuda", "hip")
def lower_spec(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """The memory that the allocations share; the handle itself stands for nothing."""
    lowering.analysis.storage_of(op).allocate(op, builder)
    return builder.constant(0, 64)


@set_buffer_overlap.lowering("cuda", "hip")
def lower_overlap(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """Nothing: the analysis has placed the allocations."""


@local_view.lowering("cuda", "hip")
def lower_view(
    op: CustomOp, builder: Builder, lowering: Lowering, kind: Attribute | None = None
) -> SSAValue:
    """``ttg.memdesc_index``; of type ``kind``, or of what the view is."""
    buffers, index = op.operands
    source = lowering.analysis.source_of(op)
    placement = lowering.analysis.placement_of(op)
    if not source.num:  # an element of a row: as many buffers of one element
        _check_whole(op, source)
        one: MemDesc = lowering.analysis.described(op.results[0])
        elements = replace(one, num=source.shape[0])
        buffers = builder.value("ttg.memdesc_reinterpret", [buffers], elements.type)
    if placement is not None:
        index = _placed(index, placement, source.bytes, builder)
    kind = kind or lowering.analysis.view_type(op.results[0])
    return builder.value("ttg.memdesc_index", [buffers, index], kind)


def _check_whole(op: CustomOp, source: MemDesc) -> None:
    layout = source.layout
    plain = (
        (isinstance(layout, SwizzledShared) and layout.max_phase == 1)
        or (isinstance(layout, NvmmaShared) and not layout.swizzling)
    )  # fmt: skip
    if source.allocated not in (None, source.shape) or not plain:
        raise WrongType(
            f"tlx.local_view: the elements of a slice, or of a buffer with the layout {layout}, do "
            "not follow each other",
            where=op.where,
            hint="load the buffer with tlx.local_load",
        )


def _placed(index: SSAValue, placement: Placement, size: int, builder: Builder) -> SSAValue:
    """The index of a buffer of ``size`` bytes among all that fit into its block."""

    def number(name: str, left: SSAValue, right: int) -> SSAValue:
        return builder.value(f"arith.{name}", [left, builder.constant(right)], left.type)

    if placement.group == 1 and placement.stride != size:
        index = number("muli", index, placement.stride // size)
    elif placement.stride != placement.group * size:
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
    kind: Any = op.results[0].type
    relaxed = {_SYNCED: boolean(True)} if op.attributes.get("relaxed") else None
    if text := op.attributes.get("layout"):
        loaded = builder.value("ttg.local_load", op.operands, with_encoding(kind, text), relaxed)
        return builder.value("ttg.convert_layout", [loaded], kind)
    return builder.value("ttg.local_load", op.operands, kind, relaxed)


@require_layout.lowering("cuda", "hip")
def lower_require(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """To the layout and back: the compiler decides what of it stays."""
    kind: Any = op.results[0].type
    there = with_encoding(kind, op.attributes["layout"])
    value = builder.value("ttg.convert_layout", op.operands, there)
    return builder.value("ttg.convert_layout", [value], kind)


@assert_same_layout.lowering("cuda", "hip")
def lower_assert(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """Nothing, where it holds."""
    layouts = [lowering.analysis.layout_of(v) for v in op.operands]
    if text := op.attributes.get("layout"):
        layouts.append(shared_layout(text))
    if layouts[0] != layouts[1]:
        raise ConflictingLayouts(
            f"tlx.assert_same_layout: the layouts are {layouts[0]} and {layouts[1]}",
            where=op.where,
            hint="a buffer's layout follows from its uses, where the author names none",
        )


@async_task_replica_id.lowering("cuda")
def lower_replica_id(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """In a function that a default task without others called: the first copy.

    Within tasks it has been replaced before.
    """
    return builder.constant(0)


def token(builder: Builder) -> SSAValue:
    """A token: the order is the program's, so that it need not stand for anything."""
    return builder.constant(0, 64)


def carrying_load(op: CustomOp) -> Operation:
    """The load that carries an ``async_load``."""
    load = loaded_by(op.operands[0])
    if load is None:
        raise PluginError(
            "an async_load has lost its load",
            where=op.where,
            hint="a pass before this one replaced the volatile tt.load behind it",
        )
    return load


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


def zeros_of(kind: Any, builder: Builder) -> SSAValue:
    """A tensor of zeros."""
    zero = "0" if isinstance(kind.element_type, IntegerType) else "0.000000e+00"
    dense = attribute(f"dense<{zero}> : {kind}")
    return builder.value("arith.constant", [], kind, {"value": dense})


def load_now(op: CustomOp, load: Operation, builder: Builder) -> None:
    """An ``async_load`` through registers: load, then store to the buffer."""
    pointer, mask, other = masked_load(load)
    operands = [v for v in (pointer, mask, other) if v is not None]
    kind: Any = load.results[0].type
    policy = {k: v for k, v in load.properties.items() if k != "operandSegmentSizes"}
    policy["isVolatile"] = boolean(op.attributes["is_volatile"])
    if mask is not None and other is None:
        operands.append(zeros_of(kind, builder))
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
