"""Buffer loads, stores and atomics: ``amdg``'s own operations."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import Attribute, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import UnsupportedByTarget, WrongShape
from remora.ir.alignment import element_bytes
from remora.ir.build import Builder, attribute, i32
from remora.tlx.buffer_ops import (
    buffer_atomic_add,
    buffer_load,
    buffer_load_to_local,
    buffer_store,
)
from remora.tlx.lower.hints import uniform_pointer
from remora.tlx.lower.hip import DIRECT, direct_bytes, is_direct, known_bytes
from remora.tlx.lower.layouts import order_of, with_encoding
from remora.tlx.lower.mfma import named
from remora.tlx.lower.padding import written_in_a_row
from remora.tlx.lower.shared import carrying_load, erase_load, masked_load, segments, token

#: mlir::triton::CacheModifier
_CACHE = {"": 1, ".ca": 2, ".cg": 3, ".wb": 4, ".cs": 5, ".wt": 6, ".cv": 7}
#: mlir::triton::RMWOp
_ADD = {"i": 4, "f": 5}


class _Place:
    """Where elements are: offsets, mask and other in one layout.

    The one that was required of the offsets, or the one that stock Triton gave the load that
    carries them.
    """

    def __init__(
        self, op: CustomOp, builder: Builder, offsets: SSAValue, layout: str | None = None
    ) -> None:
        load = carrying_load(op)
        pointer, mask, other = masked_load(load)
        required = named(offsets)
        of: Any = (required or pointer).type
        self.layout, self._builder = str(of.encoding), builder
        if required is None and layout:
            self.layout = layout
        self.offsets = required or self.here(offsets)
        self.mask = None if mask is None else self.here(mask)
        self.other = None if other is None else self.here(other)

    def here(self, value: SSAValue) -> SSAValue:
        """A tensor in the layout."""
        kind: Any = value.type
        wanted = with_encoding(kind, self.layout)
        if kind == wanted:
            return value
        required = named(value)
        if required is not None and required.type == wanted:
            return required
        return self._builder.value("ttg.convert_layout", [value], wanted)

    def of(self, kind: TensorType[Any]) -> Attribute:
        """A tensor type in the layout."""
        return with_encoding(kind, self.layout)


def _base(pointer: SSAValue, builder: Builder, lowering: Lowering, least: int = 1) -> SSAValue:
    """A pointer that stock Triton's ``canonicalize_pointers`` does not see.

    It splits those of tensors of less than 2 GiB (``tt.pointer_range``) into a base and an
    offset, everything that they are used by included, and knows no buffer operations. A scalar
    is the same in all lanes: LLVM drops the instruction that says so. least: bytes to which it
    is aligned, for what the operation does.
    """
    return uniform_pointer(pointer, builder, lowering, least)


def _fixed(value: SSAValue, kind: Attribute, builder: Builder) -> SSAValue:
    """A value as ``kind``, from an operation that stays in its layout.

    Stock ``remove_layout_conversions`` takes what is behind a conversion for computed anew in
    the layout of its use, which may be narrower, but for operations that it knows. This one ends
    its search.
    """
    ends = {"allow_reorder": UnitAttr(), "efficient_layout": UnitAttr()}
    value = builder.value("tt.reshape", [value], value.type, ends)
    return value if value.type == kind else builder.value("ttg.convert_layout", [value], kind)


def _given(*values: SSAValue | None) -> list[SSAValue]:
    return [v for v in values if v is not None]


def _present(*values: SSAValue | None) -> list[int]:
    return [int(v is not None) for v in values]


@buffer_load.lowering("hip")
def lower_load(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``amdg.buffer_load``."""
    load = carrying_load(op)
    place = _Place(op, builder, op.operands[2])
    kind: Any = op.results[0].type
    value = builder.value(
        "amdg.buffer_load",
        [_base(op.operands[1], builder, lowering), *_given(place.offsets, place.mask, place.other)],
        place.of(kind),
        {
            "contiguity": i32(op.attributes["contiguity"]),
            "operandSegmentSizes": segments(1, 1, 0, *_present(place.mask, place.other)),
        },
    )  # fmt: skip
    erase_load(op, load)
    return _fixed(value, kind, builder)


@buffer_store.lowering("hip")
def lower_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``amdg.buffer_store``."""
    load = carrying_load(op)
    _, base, offsets, value = op.operands
    place = _Place(op, builder, offsets)
    builder.op(
        "amdg.buffer_store",
        [place.here(value), _base(base, builder, lowering), *_given(place.offsets, place.mask)], [],
        {
            "cache": i32(_CACHE[op.attributes["cache"]]),
            "contiguity": i32(op.attributes["contiguity"]),
            "operandSegmentSizes": segments(1, 1, 1, 0, *_present(place.mask)),
        },
    )  # fmt: skip
    erase_load(op, load)


@buffer_atomic_add.lowering("hip")
def lower_add(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``amdg.buffer_atomic_rmw``."""
    load = carrying_load(op)
    _, base, offsets, value = op.operands
    kind: Any = op.results[0].type
    _, mask, _ = masked_load(load)
    if kind.element_type.bitwidth == 16 and mask is not None:
        contiguous = (order_of(mask.type) or (len(kind.get_shape()) - 1,))[0]
        if lowering.analysis.alignment.of(mask).constancy[contiguous] < 2:
            raise WrongShape(
                f"tlx.buffer_atomic_add: two elements of {kind.element_type} are added at once, "
                "and the mask is not shown to be one for both",
                where=op.where,
                hint="a bound that 2 divides, or tl.atomic_add(ptr + offsets, value, mask)",
            )
    place = _Place(op, builder, offsets)
    before = builder.value(
        "amdg.buffer_atomic_rmw",
        [
            # Two elements of 16 bits are added at once, which are aligned.
            _base(base, builder, lowering, 4), place.offsets, place.here(value),
            *_given(place.mask),
        ],
        place.of(kind),
        {
            "atomic_rmw_op": i32(_ADD[op.attributes["kind"]]),
            "sem": i32(op.attributes["sem"]),
            "scope": i32(op.attributes["scope"]),
            "operandSegmentSizes": segments(1, 1, 1, 0, *_present(place.mask)),
        },
    )  # fmt: skip
    erase_load(op, load)
    return _fixed(before, kind, builder)


@buffer_load_to_local.lowering("hip")
def lower_copy(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``amdg.buffer_load_to_local``."""
    load = carrying_load(op)
    _, buffer, base, offsets = op.operands
    contiguous = lowering.analysis.layout_of(buffer).order[0]
    if not is_direct(op, lowering.analysis):
        known = known_bytes(op, lowering.analysis, contiguous)
        there = DIRECT.get(str(lowering.target.arch), ())
        widths = " or ".join(map(str, sorted(there)))
        more = (
            ""
            if known >= max(there, default=0)
            else ("say what is known with tl.multiple_of, tl.max_contiguous or contiguity=, or ")
        )
        raise UnsupportedByTarget(
            f"tlx.buffer_load_to_local: a lane would copy {known} bytes, as far as can be shown; "
            f"{lowering.target} copies {widths or 'nothing'} straight to LDS",
            where=op.where,
            hint=f"{more}use tlx.async_load, which copies through registers where it has to",
        )
    size = element_bytes(load.operands[0].type)
    vector = direct_bytes(op, lowering.analysis, contiguous) // size
    memdesc = lowering.analysis.described(buffer)
    warps = lowering.num_warps_at(op.op)
    # Stock Triton fits only other copies to what each warp can write.
    in_a_row = written_in_a_row(memdesc.layout, memdesc.whole, vector, warps)
    place = _Place(op, builder, offsets, in_a_row if memdesc.whole == memdesc.shape else None)
    widest = max(op.attributes["contiguity"], 1)
    builder.op(
        "amdg.buffer_load_to_local",
        [buffer, _base(base, builder, lowering), *_given(place.offsets, place.mask, place.other)],
        [attribute("!ttg.async.token")],
        {
            "contiguity": i32(min(widest, 16 // size)),
            "operandSegmentSizes": segments(1, 1, 1, *_present(place.mask, place.other), 0),
        },
    )  # fmt: skip
    erase_load(op, load)
    return token(builder)
