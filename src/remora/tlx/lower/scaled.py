"""The lowering of block-scaled products: ``ttng.tc_gen5_mma_scaled``, and of their scales."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import WrongShape
from remora.ir.build import Builder, attribute, i32
from remora.tlx.buffers import local_view
from remora.tlx.lower import pairs, shared
from remora.tlx.lower.analysis import TlxAnalysis, Use, wants
from remora.tlx.lower.layouts import Layout, MemDesc, NvmmaShared
from remora.tlx.lower.shared import segments
from remora.tlx.lower.tcgen05 import flags, ordered_scales
from remora.tlx.lower.tensor_layouts import TensorMatrix, TensorScales
from remora.tlx.scaled import FORMATS, is_mixed, tensor_dot_scaled
from remora.tlx_plugin import BLACKWELL


@wants("tlx.tensor_dot_scaled")
def _wish(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> Layout | None:
    if use.operand > 4:
        return None  # a barrier
    if use.operand == 2:
        return TensorMatrix.of(shape)
    in_tensor_memory = analysis.described(use.op.operands[use.operand]).in_tensor_memory
    if use.operand == 0 and in_tensor_memory:
        return TensorMatrix.of(shape)
    if use.operand < 2:
        # Of e2m1 K has to be contiguous; beside fp8 it takes as much memory.
        formats = use.op.attributes["formats"]
        if formats[use.operand] != "e2m1":
            return NvmmaShared.of(shape, bits, order == (0, 1))
        by_column = use.operand == 1
        if is_mixed(formats):
            return NvmmaShared(128, by_column, bits, padded=True)
        return NvmmaShared.of(shape, bits, by_column)
    if not in_tensor_memory:
        return NvmmaShared(0, False, bits, len(shape))
    if shape[0] < 128:
        _check_filled(analysis, use)
    return TensorScales()


def _check_filled(analysis: TlxAnalysis, use: Use) -> None:
    """Refuse scales of fewer rows than 128 that a product reads otherwise than they are filled.

    A store has these rows in fewer columns; a copy brings the bytes of 128 rows.
    """
    exact = use.op.attributes["exact"][use.operand - 3]
    wrong = "tlx.tmem_copy" if exact else "tlx.local_store"
    for other in analysis.others(use):
        if other.op.name == wrong and other.operand == 1:
            size = "(rows, blocks)" if exact else "(128, blocks), with as many bytes,"
            raise WrongShape(
                f"{wrong} fills scales of fewer rows than 128, which the product reads as {size}",
                where=f"{other.op.where} and {use.op.where}",
                hint="store scales of (rows, blocks); copy what has the bytes of (128, blocks)",
            )


@tensor_dot_scaled.lowering(*BLACKWELL)
def lower_product(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.tc_gen5_mma_scaled``, of scales in tensor memory."""
    use_acc, pred, bars = flags(op, builder, 5)
    pairs.check(lowering)
    if op.attributes["pair"]:
        scaling = _scaling_of_pair(op, builder, lowering, pairs.Scaling.first(bars))
        pairs.lower_product(op, builder, lowering, use_acc, pred, bars, scaling)
        return
    always = [builder.constant(1, 1) for _ in bars]
    kinds = [i32(FORMATS[name][2]) for name in op.attributes["formats"]]
    properties: dict[str, Any] = {
        "a_type": kinds[0],
        "b_type": kinds[1],
        "operandSegmentSizes": segments(1, 1, 1, 0, 1, 1, 1, 1, len(bars), len(bars)),
    }
    if op.attributes["is_async"]:
        properties["is_async"] = UnitAttr()
    total: MemDesc = lowering.analysis.described(op.operands[2])
    scales = [
        _scales(op, builder, lowering, value, rows)
        for value, rows in zip(op.operands[3:5], total.shape, strict=True)
    ]
    operands = [*op.operands[:3], *scales, use_acc, pred, *bars, *always]
    builder.op("ttng.tc_gen5_mma_scaled", operands, [], properties)


# Of the instruction descriptor of block-scaled products: A's and B's formats.
_KINDS = {"e4m3": 0, "e5m2": 1, "e2m1": 5}


def _scaling_of_pair(
    op: CustomOp, builder: Builder, lowering: Lowering, first: int
) -> pairs.Scaling:
    """The scales of a product of two CTAs; each CTA's copies are of its own shared memory.

    In tensor memory 128 rows by 4 scales are 4 columns; of each 4 scales, first all rows.
    """
    formats, block = op.attributes["formats"], op.attributes["block"]
    packed = 1 if is_mixed(formats) else FORMATS[formats[0]][1]
    a, _, total = (lowering.analysis.described(v) for v in op.operands[:3])
    m, n = total.shape
    k = a.shape[1] * FORMATS[formats[0]][1]
    kinds = [1 if packed == 2 else _KINDS[name] for name in formats]  # mxf4 has e2m1 alone
    copied = []
    for value, rows in zip(op.operands[3:5], (m, n), strict=True):
        kind: MemDesc = lowering.analysis.described(value)
        size = (max(rows, 128), math.prod(kind.shape) // max(rows, 128))
        place, source = value, None
        if not kind.in_tensor_memory:
            place = builder.value(
                "ttng.tmem_alloc", [], MemDesc(size, attribute("i8"), TensorScales()).type
            )
            source = value
            lowering.analysis.reached.append(value)
        copied.append((place, source, len(kind.shape), size))
    # All are allocated before one is used: what is written out lasts as long as all its operands.
    operands: list[SSAValue] = []
    lines: list[str] = []
    for place, source, rank, (rows, length) in copied:
        at = first + len(operands)
        operands.append(pairs.tensor_address(builder, place))
        if source is None:
            continue
        operands.append(pairs.scales_descriptor(builder, source, rank))
        lines += pairs.copies_of_scales(at, at + 1, rows, length)
    names = [first, first + (1 if copied[0][1] is None else 2)]
    each = 32 * packed // block  # scales of a row that an instruction reads
    instructions, places = [], []
    for step in range(k // (32 * packed)):
        column, which = divmod(step * each, 4)
        instructions.append(
            which << 4 | kinds[0] << 7 | kinds[1] << 10 | n >> 3 << 17
            | (block == 32) << 23 | 2 * m >> 4 << 24 | which << 29
        )  # fmt: skip
        places.append(
            ", ".join(
                f"[${name} + {column * rows // 128 * 4}]"
                for name, (*_, (rows, _)) in zip(names, copied, strict=True)
            )
        )
    kind_name = {1: "mxf8f6f4", 2: "mxf4" if block == 32 else "mxf4nvf4"}[packed]
    return pairs.Scaling(
        f"{kind_name}.block_scale.scale_vec::{each}X", instructions, places, lines, operands
    )


@local_view.lowering(*BLACKWELL)
def lower_view(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.memdesc_index``; of scales the columns of one buffer, read as scales."""
    source: MemDesc = lowering.analysis.source_of(op)
    if not isinstance(source.layout, TensorScales):
        return shared.lower_view(op, builder, lowering)
    one = shared.lower_view(op, builder, lowering, source.as_columns.type)
    kind = lowering.analysis.view_type(op.results[0])
    return builder.value("ttg.memdesc_reinterpret", [one], kind)


def _scales(
    op: CustomOp, builder: Builder, lowering: Lowering, value: SSAValue, rows: int
) -> SSAValue:
    """Scales in tensor memory, of the type by which Triton tells nvfp4; copied where they are not.

    The unit works in order: the copy is there for the product, and does not hurt the last one.
    """
    kind: MemDesc = lowering.analysis.described(value)
    count = math.prod(kind.shape)
    exact = op.attributes["exact"][0 if value is op.operands[3] else 1]
    rows = rows if exact else max(rows, 128)
    element = attribute("f8E4M3FN" if op.attributes["block"] == 16 else "i8")
    if not kind.in_tensor_memory:
        kind = MemDesc((rows, count // rows), kind.element, TensorScales())
        place = builder.value("ttng.tmem_alloc", [], kind.type)
        builder.op("ttng.tmem_copy", [ordered_scales(builder, value, kind), place])
        value = place
    read = replace(kind, shape=(rows, count // rows), element=element)
    if read == kind:
        return value
    return builder.value("ttg.memdesc_reinterpret", [value], read.type)
