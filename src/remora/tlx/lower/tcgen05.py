"""Lowerings for Blackwell's matrix unit: ``ttng.tc_gen5_*``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.ir.build import Builder
from remora.tlx.lower import pairs
from remora.tlx.lower.analysis import TlxAnalysis, Use, wants
from remora.tlx.lower.layouts import Layout, LinearShared, MemDesc, NvmmaShared, memdesc
from remora.tlx.lower.shared import segments
from remora.tlx.lower.tensor_layouts import TensorMatrix, scales_order
from remora.tlx.tcgen05 import tcgen05_commit, tensor_dot, tmem_copy, whole_rows
from remora.tlx_plugin import BLACKWELL


@wants("tlx.tensor_dot")
def _matrix(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> Layout | None:
    if use.operand > 2:
        return None  # a barrier
    if use.operand == 2:
        # A sum has a column for each of its columns.
        halved = use.op.attributes["pair"] and shape[0] == 64
        return replace(TensorMatrix.of(shape, 32 // bits), halved=halved)
    if analysis.described(use.op.operands[use.operand]).in_tensor_memory:
        return TensorMatrix.of(shape)
    # K has to be contiguous where elements are of 32 bits.
    transposed = order == (0, 1) if bits < 32 else use.operand == 1
    return NvmmaShared.of(shape, bits, transposed)


@wants("tlx.tmem_copy")
def _copied(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> Layout | None:
    if use.operand == 1:
        return None
    if use.op.attributes["scales"]:
        return NvmmaShared(0, False, bits, len(shape))
    return NvmmaShared.of(shape, bits, False)


def flags(op: CustomOp, builder: Builder, first: int) -> tuple[SSAValue, SSAValue, list[SSAValue]]:
    """use_acc, pred and the barriers of a product whose barriers begin at operand ``first``."""
    a = op.attributes
    end = first + a["barriers"]
    rest = op.operands[end:]
    if a["use_acc"] is None:
        use_acc, *rest = rest
    else:
        use_acc = builder.constant(int(a["use_acc"]), 1)
    pred = rest[0] if a["pred"] else builder.constant(1, 1)
    return use_acc, pred, op.operands[first:end]


@tensor_dot.lowering(*BLACKWELL)
def lower_product(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.tc_gen5_mma``; of two CTAs, the instructions."""
    use_acc, pred, bars = flags(op, builder, 3)
    pairs.check(lowering)
    if op.attributes["pair"]:
        pairs.lower_product(op, builder, lowering, use_acc, pred, bars)
        return
    always = [builder.constant(1, 1) for _ in bars]
    properties: dict[str, Any] = {
        "operandSegmentSizes": segments(1, 1, 1, 0, 1, 1, len(bars), len(bars))
    }
    if op.attributes["is_async"]:
        properties["is_async"] = UnitAttr()
    operands = [*op.operands[:3], use_acc, pred, *bars, *always]
    builder.op("ttng.tc_gen5_mma", operands, [], properties)


@tcgen05_commit.lowering(*BLACKWELL)
def lower_commit(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.tc_gen5_commit``; of two CTAs, the instruction."""
    if op.attributes["pair"]:
        pairs.lower_commit(op, builder, lowering)
        return
    operands = [op.operands[0], builder.constant(1, 1)]
    builder.op("ttng.tc_gen5_commit", operands, [], {"operandSegmentSizes": segments(1, 1, 0)})


@tmem_copy.lowering(*BLACKWELL)
def lower_copy(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.tmem_copy``; in a kernel of pairs, the instructions."""
    source, to = op.operands
    if scales := op.attributes["scales"]:
        kind: MemDesc = lowering.analysis.described(to)
        whole = replace(kind, shape=whole_rows(kind.shape))
        if whole.shape[1] != scales:  # the first columns
            whole = replace(kind, shape=(kind.shape[0], scales))
            to = scales_part(builder, to, kind, whole, 0)
        elif whole.shape != kind.shape:
            to = builder.value("ttg.memdesc_reinterpret", [to], whole.type)
        if pairs.are_used(lowering):
            pairs.lower_copy(op, builder, lowering, to, whole.shape)
            return
        source = ordered_scales(builder, source, whole)
    builder.op("ttng.tmem_copy", [source, to])


def scales_part(
    builder: Builder, scales: SSAValue, whole: MemDesc, part: MemDesc, offset: int
) -> SSAValue:
    """Scales from number ``offset`` of each row on.

    Four of each row are next to each other: the part is one of as many as there are.
    """
    several = replace(part.as_columns, num=whole.shape[1] // part.shape[1])
    matrices = builder.value("ttg.memdesc_reinterpret", [scales], several.type)
    number = builder.constant(offset // part.shape[1])
    one = builder.value("ttg.memdesc_index", [matrices, number], part.as_columns.type)
    return builder.value("ttg.memdesc_reinterpret", [one], part.type)


def ordered_scales(builder: Builder, source: SSAValue, kind: MemDesc) -> SSAValue:
    """The bytes of a buffer in shared memory as scales, in the order of the matrix unit."""
    layout = LinearShared(scales_order(kind.shape), (), 128)
    return builder.value(
        "ttg.memdesc_reinterpret", [source], memdesc(kind.shape, kind.element, layout)
    )
