"""Lowerings of buffers in tensor memory: Triton's ``ttng.tmem_*`` operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import ConflictingLayouts, UnsupportedByTarget, WrongShape
from remora.host import features
from remora.ir.build import Builder, attribute, i32, inherent, op_name
from remora.tlx.buffers import local_alloc, local_load, local_store
from remora.tlx.lower import shared, views
from remora.tlx.lower.layouts import MemDesc, with_encoding
from remora.tlx.lower.lifetimes import keep_to_the_end
from remora.tlx.lower.shared import segments
from remora.tlx.lower.tcgen05 import scales_part
from remora.tlx.lower.tensor_layouts import (
    TensorMatrix,
    TensorScales,
    halves_of,
    registers_of,
    scale_registers_of,
)
from remora.tlx.views import local_reinterpret, local_slice, subslice
from remora.tlx_plugin import BLACKWELL


def _in_tensor_memory(lowering: Lowering, value: SSAValue) -> bool:
    kind: MemDesc = lowering.analysis.described(value)
    return kind.in_tensor_memory


@local_alloc.lowering(*BLACKWELL)
def lower_alloc(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttng.tmem_alloc``, or a part of one that several share; the columns stay theirs to the end.

    Stock Triton would use them again after the last use that it sees, while a product that it
    does not see the end of still reads or writes them.
    """
    matrices = shared.lower_alloc(op, builder, lowering)
    if op.attributes.get("storage") == "tmem" and lowering.analysis.storage_of(op) is None:
        keep_to_the_end(op.op, matrices)
    return matrices


def _part(builder: Builder, matrix: SSAValue, offset: int, kind: MemDesc) -> SSAValue:
    if features().subslices_any_dimension:
        attributes = {"offset": i32(offset), "dim": i32(1)}
    else:
        attributes = {"N": i32(offset)}
    return builder.value("ttng.tmem_subslice", [matrix], kind.type, attributes)


@local_slice.lowering(*BLACKWELL)
@subslice.lowering(*BLACKWELL)
def lower_slice(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttng.tmem_subslice``; in shared memory as on other targets."""
    kind: MemDesc = lowering.analysis.described(op.results[0])
    if not kind.in_tensor_memory:
        return views.lower_slice(op, builder, lowering)
    if isinstance(kind.layout, TensorScales):
        source: MemDesc = lowering.analysis.source_of(op)
        return scales_part(builder, op.operands[0], source, kind, op.attributes["offset"][1])
    _check_rows(op, kind)
    return _part(builder, op.operands[0], op.attributes["offset"][1], kind)


@local_reinterpret.lowering(*BLACKWELL)
def lower_reinterpret(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.memdesc_reinterpret``; of one matrix in tensor memory, of all that it is a part of.

    Some releases refuse to reinterpret a part: the part is taken afterwards.
    """
    source: MemDesc = lowering.analysis.source_of(op)
    if not source.in_tensor_memory or source.num:
        return views.lower_reinterpret(op, builder, lowering)
    _check_rows(op, source)
    to: MemDesc = lowering.analysis.described(op.results[0])
    if to.allocated is None:
        return builder.value("ttg.memdesc_reinterpret", op.operands, to.type)
    matrix, offset = _whole(op.operands[0])
    read = replace(to, shape=to.allocated, allocated=None)
    matrix = builder.value("ttg.memdesc_reinterpret", [matrix], read.type)
    whole = replace(source, shape=source.whole)
    return _part(builder, matrix, offset * read.shape[1] // whole.shape[1], to)


def _check_rows(op: CustomOp, kind: MemDesc) -> None:
    """Refuse views of a matrix whose rows lie in two places."""
    if isinstance(kind.layout, TensorMatrix) and kind.layout.halved:
        raise ConflictingLayouts(
            f"{op.name}: the rows of a sum of two CTAs with 64 rows each lie in two parts",
            where=op.where,
            hint="load the whole sum, or give each CTA 128 rows",
        )


def _whole(matrix: SSAValue) -> tuple[SSAValue, int]:
    """The matrix that a lowered one is a part of, and its first column there."""
    owner, offset = matrix.owner, 0
    while isinstance(owner, Operation) and op_name(owner) == "ttng.tmem_subslice":
        start: Any = inherent(owner, "offset" if features().subslices_any_dimension else "N")
        matrix, offset = owner.operands[0], offset + start.value.data
        owner = matrix.owner
    return matrix, offset


@local_load.lowering(*BLACKWELL)
def lower_load(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttng.tmem_load``, in the layout that the instruction gives."""
    if not _in_tensor_memory(lowering, op.operands[0]):
        return shared.lower_load(op, builder, lowering)
    kind: Any = op.results[0].type
    (matrix,) = op.operands
    if isinstance(lowering.analysis.described(matrix).layout, TensorScales):
        raise UnsupportedByTarget(
            f"{op.name}: scales in tensor memory are read by the matrix unit alone",
            where=op.where,
            hint="keep what is to be loaded in shared memory, or in registers",
        )
    if _is_halved(lowering, matrix):
        loaded = _whole_rows(op, builder, lowering, matrix)
    else:
        held = _held(op, kind, lowering, matrix)
        segment = {"resultSegmentSizes": segments(1, 0, 0)}
        loaded = builder.value("ttng.tmem_load", [matrix], held, segment)
    if text := op.attributes.get("layout"):
        loaded = builder.value("ttg.convert_layout", [loaded], with_encoding(kind, text))
    return builder.value("ttg.convert_layout", [loaded], kind)


@local_store.lowering(*BLACKWELL)
def lower_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.tmem_store``, in the layout that the instruction takes."""
    value, matrix = op.operands
    if not _in_tensor_memory(lowering, matrix):
        shared.lower_store(op, builder, lowering)
        return
    if _is_halved(lowering, matrix):
        held = _halved(op, builder, lowering, value)
    else:
        kind = _held(op, value.type, lowering, matrix)
        held = builder.value("ttg.convert_layout", [value], kind)
    builder.op("ttng.tmem_store", [matrix, held, builder.constant(1, 1)])


def _is_halved(lowering: Lowering, matrix: SSAValue) -> bool:
    layout = lowering.analysis.described(matrix).layout
    return isinstance(layout, TensorMatrix) and layout.halved


def _halves(op: CustomOp, kind: Any, lowering: Lowering) -> tuple[Any, list[Any]]:
    """The type of a matrix of 64 rows as it lies in 128 lanes, and those on the way from there."""
    bits, (_, length) = kind.element_type.bitwidth, kind.get_shape()
    start, ways = halves_of(length // 2, bits, lowering.num_warps_at(op.op))
    types = [
        TensorType(kind.element_type, shape, attribute(text))
        for shape, text in (((128, length // 2), start), *ways)
    ]
    return types[0], types[1:]


_EXCHANGED = {"order": attribute("array<i32: 1, 0, 2>")}


def _whole_rows(op: CustomOp, builder: Builder, lowering: Lowering, matrix: SSAValue) -> SSAValue:
    """A matrix of 64 rows, of which the last half of the columns lies below the first."""
    start, (apart, beside, one) = _halves(op, op.results[0].type, lowering)
    segment = {"resultSegmentSizes": segments(1, 0, 0)}
    loaded = builder.value("ttng.tmem_load", [matrix], start, segment)
    two = builder.value("tt.reshape", [loaded], apart)
    return builder.value("tt.reshape", [builder.value("tt.trans", [two], beside, _EXCHANGED)], one)


def _halved(op: CustomOp, builder: Builder, lowering: Lowering, value: SSAValue) -> SSAValue:
    """The other way round: as ``_whole_rows`` reads it."""
    start, (apart, beside, one) = _halves(op, value.type, lowering)
    two = builder.value("tt.reshape", [builder.value("ttg.convert_layout", [value], one)], beside)
    two = builder.value("tt.trans", [two], apart, _EXCHANGED)
    return builder.value("tt.reshape", [two], start)


def _held(op: CustomOp, kind: Any, lowering: Lowering, matrix: SSAValue) -> Any:
    """A tensor's type in the layout in which a matrix in tensor memory is read and written."""
    warps = lowering.num_warps_at(op.op)
    if isinstance(lowering.analysis.described(matrix).layout, TensorScales):
        rows = kind.get_shape()[0]
        if rows % 64:
            raise WrongShape(
                f"{op.name}: scales of {rows} rows are not in the order of a tensor",
                where=op.where,
                hint="use 64 or 128 rows, or tlx.tmem_copy from shared memory",
            )
        return with_encoding(kind, scale_registers_of(kind.get_shape(), warps))
    return with_encoding(kind, registers_of(kind.get_shape(), kind.element_type.bitwidth, warps))
