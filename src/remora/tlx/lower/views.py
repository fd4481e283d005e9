"""What a view makes of a buffer's type, what it asks of the layout behind it, and its lowering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import WrongShape, WrongType
from remora.ir.build import Builder, attribute
from remora.tlx.lower.layouts import (
    MemDesc,
    NvmmaShared,
    SharedLayout,
    SwizzledShared,
    element_type,
    shared_layout,
)
from remora.tlx.lower.tensor_layouts import TensorMatrix, TensorScales, tensor_default
from remora.tlx.storage import Placement
from remora.tlx.views import local_reinterpret, local_slice, local_trans, subslice


class View(NamedTuple):
    """How types go forward through a view, and layouts backward.

    forward: the view's type from its source's (whose layout may not be known yet).
    backward: the source's layout that gives the view a layout; None if there is none.
    """

    forward: Callable[[CustomOp, MemDesc], MemDesc]
    backward: Callable[[CustomOp, MemDesc, Any], SharedLayout | None]


def _unchanged(op: CustomOp, source: MemDesc, layout: SharedLayout) -> SharedLayout:
    return layout


def _viewed(op: CustomOp, source: MemDesc) -> MemDesc:
    if source.num:
        return replace(source, num=0)
    return MemDesc((1,), source.element, source.layout and SwizzledShared.plain((0,)))


def _permuted(op: CustomOp, source: MemDesc) -> MemDesc:
    dims = op.attributes["dims"]

    def permute(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape[d] for d in dims)

    layout = source.layout
    assert not isinstance(layout, TensorMatrix | TensorScales)
    return replace(
        source,
        shape=permute(source.shape),
        allocated=source.allocated and permute(source.allocated),
        layout=layout and layout.permuted(dims),
    )


def _permuted_back(op: CustomOp, source: MemDesc, layout: SharedLayout) -> SharedLayout:
    dims = op.attributes["dims"]
    return layout.permuted(tuple(dims.index(d) for d in range(len(dims))))


def _sliced(op: CustomOp, source: MemDesc) -> MemDesc:
    if isinstance(source.layout, TensorScales):  # read anew, as of its own
        return replace(source, shape=op.attributes["shape"])
    return replace(source, shape=op.attributes["shape"], allocated=source.whole)


def _reinterpreted(op: CustomOp, source: MemDesc) -> MemDesc:
    a = op.attributes
    to = MemDesc(a["shape"], element_type(a["dtype"]))
    if isinstance(source.layout, TensorMatrix | TensorScales):
        to = replace(to, layout=tensor_default(to.shape, a["dtype"], a["layout"]))
    if a["num"]:
        to = replace(to, num=source.num * source.bytes // to.bytes)
    if isinstance(source.layout, TensorMatrix | TensorScales) and not source.num:
        to = replace(to, allocated=_reread(source, to))
        return replace(to, layout=tensor_default(to.whole, a["dtype"], a["layout"]))
    if isinstance(source.layout, TensorMatrix | TensorScales):
        return to
    if a["layout"]:
        return replace(to, layout=shared_layout(a["layout"]))
    if source.layout is None:
        return to
    return replace(to, layout=relaid(source.layout, source, to))


def _reread(source: MemDesc, to: MemDesc) -> tuple[int, ...] | None:
    """The shape of the whole matrix in tensor memory of which a reading is a part, if it is one."""
    whole = replace(source, shape=source.whole)
    shape = (to.shape[0], to.shape[1] * whole.bytes // to.bytes)
    return shape if shape != to.shape else None


def _reinterpreted_back(op: CustomOp, source: MemDesc, layout: SharedLayout) -> SharedLayout | None:
    return relaid(layout, _reinterpreted(op, replace(source, layout=None)), source)


def keeps_elements(op: CustomOp, source: MemDesc) -> bool:
    """Whether a view leaves each element whole and where it is."""
    if op.name != "tlx.local_reinterpret":
        return True
    to = _reinterpreted(op, replace(source, layout=None))
    return to.shape == source.shape and to.bits == source.bits


def relaid(layout: SharedLayout, at: MemDesc, to: MemDesc) -> SharedLayout | None:
    """The layout with which ``to`` has its rows' bytes where ``at`` has them with ``layout``."""
    if at.shape == to.shape and at.bits == to.bits:
        return layout
    if isinstance(layout, NvmmaShared) and layout.padded:
        return None
    row_major = tuple(range(len(at.shape) - 1, -1, -1))
    if layout.order != row_major:
        return None
    if layout == SwizzledShared.plain(row_major):
        return SwizzledShared.plain(tuple(range(len(to.shape) - 1, -1, -1)))
    if isinstance(layout, NvmmaShared) and not layout.swizzling:
        return replace(layout, bits=to.bits, rank=len(to.shape))  # rows, one after the other
    row = at.shape[-1] * at.bits // 8
    if len(at.shape) != len(to.shape) or row != to.shape[-1] * to.bits // 8:
        return None
    if isinstance(layout, NvmmaShared):
        # Rows that are wider than the swizzle lie in panels of all rows.
        same_rows = at.shape[0] == to.shape[0]
        ok = row <= layout.swizzling or same_rows
        return replace(layout, bits=to.bits) if ok else None
    if isinstance(layout, SwizzledShared) and layout.vec * at.bits % to.bits == 0:
        # The phase goes by the row in its buffer: it starts anew in each.
        phases = layout.per_phase * layout.max_phase
        if at.shape[:-1] == to.shape[:-1] or at.shape[-2] % phases == to.shape[-2] % phases == 0:
            return replace(layout, vec=layout.vec * at.bits // to.bits)
    return None


#: Operations whose result is a view of the buffer that their first operand is.
VIEWS: dict[str, View] = {
    "tlx.local_view": View(_viewed, _unchanged),
    "tlx.local_trans": View(_permuted, _permuted_back),
    "tlx.local_slice": View(_sliced, _unchanged),
    "tlx.subslice": View(_sliced, _unchanged),
    "tlx.local_reinterpret": View(_reinterpreted, _reinterpreted_back),
}

SLICES = {"tlx.local_slice", "tlx.subslice"}


def _integers(values: tuple[int, ...]) -> Attribute:
    return DenseArrayBase.from_list(IntegerType(32), values)


@local_trans.lowering("cuda", "hip")
def lower_trans(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.memdesc_trans``."""
    kind = lowering.analysis.view_type(op.results[0])
    order = {"order": _integers(op.attributes["dims"])}
    return builder.value("ttg.memdesc_trans", op.operands, kind, order)


def cut_tile(op: CustomOp, memdesc: MemDesc) -> tuple[int, int] | None:
    """Rows and columns in which the swizzle is whole, where a slice cuts it; else None.

    memdesc: of the slice.
    """
    layout = memdesc.layout
    if not isinstance(layout, NvmmaShared):
        return None
    tile = [8, 8]
    tile[layout.order[0]] = max(layout.swizzling, 16) * 8 // memdesc.bits
    offset, shape = op.attributes["offset"], op.attributes["shape"]
    for d in range(2):
        if shape[d] != memdesc.whole[d] and (offset[d] % tile[d] or shape[d] % tile[d]):
            return tile[0], tile[1]
    return None


def lower_slice(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.memdesc_subslice``, where the part is whole in the swizzle."""
    memdesc: MemDesc = lowering.analysis.described(op.results[0])
    offset, shape = op.attributes["offset"], op.attributes["shape"]
    if tile := cut_tile(op, memdesc):
        raise WrongShape(
            f"{op.name}: {shape} at {offset} cuts the swizzle of {memdesc.whole}, which is whole "
            f"in {tile[0]} by {tile[1]} elements",
            where=op.where,
            hint="make the part's extents and offset multiples of that",
        )
    buffer, extents = op.operands[0], list(lowering.analysis.source_of(op).shape)
    places = iter(op.operands[1:])
    for dim in (d for d, begin in enumerate(offset) if begin is None):
        place = next(places)
        while extents[dim] > shape[dim]:
            extents[dim] //= 2
            buffer = _half(builder, buffer, place, dim, replace(memdesc, shape=tuple(extents)))
    return builder.value(
        "ttg.memdesc_subslice", [buffer], memdesc.type,
        {"offsets": _integers(tuple(begin or 0 for begin in offset))},
    )  # fmt: skip


def _half(builder: Builder, buffer: SSAValue, place: SSAValue, dim: int, part: MemDesc) -> SSAValue:
    """The half of a buffer along a dimension that holds a place that is known at run time.

    ``ttg.memdesc_subslice`` takes constants only: a branch for each bit of the place. What
    analyses of shared memory see are parts of the buffer.
    """
    extent = builder.constant(part.shape[dim])
    bit = builder.value("arith.andi", [place, extent], place.type)
    nonzero = {"predicate": IntegerAttr(1, 64)}
    upper = builder.value("arith.cmpi", [bit, builder.constant(0)], attribute("i1"), nonzero)
    regions = []
    for begin in (part.shape[dim], 0):
        offsets = tuple(begin if d == dim else 0 for d in range(len(part.shape)))
        block = Block()
        inner = Builder(InsertPoint.at_end(block), builder.location)
        half = inner.value(
            "ttg.memdesc_subslice", [buffer], part.type, {"offsets": _integers(offsets)}
        )
        inner.op("scf.yield", [half])
        regions.append(Region(block))
    return builder.op("scf.if", [upper], [part.type], None, regions).results[0]


local_slice.lowering("cuda", "hip")(lower_slice)
subslice.lowering("cuda", "hip")(lower_slice)


@local_reinterpret.lowering("cuda", "hip")
def lower_reinterpret(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.memdesc_reinterpret``."""
    source: MemDesc = lowering.analysis.source_of(op)
    to: MemDesc = lowering.analysis.described(op.results[0])
    if source.allocated not in (None, source.shape):
        raise WrongType(
            "tlx.local_reinterpret: a slice has no bytes in a row to reinterpret",
            where=op.where,
            hint="reinterpret the whole buffer, and slice what comes of it",
        )
    if to.num:
        return builder.value("ttg.memdesc_reinterpret", op.operands, to.type)
    placement: Placement | None = lowering.analysis.placement_of(op)
    offset = placement.offset if placement else 0
    # Some releases reinterpret all of a buffer, or nothing: as many as it holds, one is taken.
    count, rest = divmod(source.bytes * max(source.num, 1), to.bytes)
    if rest or offset % to.bytes:
        raise WrongShape(
            f"tlx.local_reinterpret: {to.bytes} bytes do not begin at a multiple of themselves in "
            "what they are part of",
            where=op.where,
            hint="reinterpret one buffer of it: tlx.local_view(buffers, i)",
        )
    if count == 1:
        return builder.value("ttg.memdesc_reinterpret", op.operands, to.type)
    several = builder.value("ttg.memdesc_reinterpret", op.operands, replace(to, num=count).type)
    index = builder.constant(offset // to.bytes)
    return builder.value("ttg.memdesc_index", [several, index], to.type)
