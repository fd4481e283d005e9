"""Where the elements of a buffer lie: addresses computed by the layouts' own formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue

from remora.errors import UnsupportedByTarget
from remora.host import features
from remora.ir.build import Builder, attribute, i32
from remora.tlx.lower.assembly import shared_address
from remora.tlx.lower.layouts import (
    LinearShared,
    MemDesc,
    NvmmaShared,
    SharedLayout,
    SwizzledShared,
)


def slice_starts(builder: Builder, buffer: SSAValue, rank: int) -> list[SSAValue]:
    """Where a part of a buffer begins in it, along each dimension."""
    struct = attribute(f"!llvm.struct<(ptr<3>{', i32' * rank})>")
    descriptor = builder.value("builtin.unrealized_conversion_cast", [buffer], struct)
    return [
        builder.value(
            "llvm.extractvalue", [descriptor], attribute("i32"),
            {"position": attribute(f"array<i64: {1 + dim}>")},
        )
        for dim in range(rank)
    ]  # fmt: skip


def coordinates_of(builder: Builder, shape: tuple[int, ...], layout: str) -> list[SSAValue]:
    """For each dimension a tensor of the shape with each element's coordinate."""
    found = []
    for dim, extent in enumerate(shape):
        others = [d for d in range(len(shape)) if d != dim]
        # Dimensions are added from the first on; each slice is of the layout with it.
        layouts = [layout]
        for other in reversed(others):
            layouts.append(f"#ttg.slice<{{dim = {other}, parent = {layouts[-1]}}}>")
        extents = [extent]
        value = builder.value(
            "tt.make_range", [], attribute(f"tensor<{extent}xi32, {layouts.pop()}>"),
            {"start": i32(0), "end": i32(extent)},
        )  # fmt: skip
        for other in others:
            extents.insert(other, 1)
            text = "x".join(map(str, extents))
            value = builder.value(
                "tt.expand_dims", [value], attribute(f"tensor<{text}xi32, {layouts.pop()}>"),
                {"axis": i32(other)},
            )  # fmt: skip
        whole = attribute(f"tensor<{'x'.join(map(str, shape))}xi32, {layout}>")
        found.append(builder.value("tt.broadcast", [value], whole) if others else value)
    return found


class Arithmetic:
    """On integers, or on tensors of them."""

    def __init__(self, builder: Builder, kind: Attribute) -> None:
        self.builder = builder
        self.kind = kind

    def __call__(self, name: str, left: SSAValue, right: int | SSAValue) -> SSAValue:
        if isinstance(right, int):
            text = f"dense<{right}>" if isinstance(self.kind, TensorType) else str(right)
            constant = {"value": attribute(f"{text} : {self.kind}")}
            right = self.builder.value("arith.constant", [], self.kind, constant)
        return self.builder.value(f"arith.{name}", [left, right], self.kind)


def byte_offsets(
    builder: Builder, coordinates: list[SSAValue], shape: tuple[int, ...], layout: SharedLayout,
    bits: int,
) -> SSAValue:  # fmt: skip
    """Where elements of a buffer lie, in bytes from its start: a tensor of i32.

    coordinates: of the elements, a tensor for each dimension. shape: of the buffer.

    Raises:
        UnsupportedByTarget: the layout is not what this release of Triton takes it for.
    """
    by_columns = isinstance(layout, NvmmaShared) and layout.transposed and not layout.swizzling
    if by_columns and not features().transposes_unswizzled:
        raise UnsupportedByTarget(
            "a store into another CTA's buffer of rows without a swizzle, by columns: Triton "
            f"{features().version} lays it out by rows",
            hint="use Triton 3.8 or newer, or make the buffer's first dimension larger",
        )
    calculate = Arithmetic(builder, coordinates[0].type)
    size = max(bits // 8, 1)
    if isinstance(layout, LinearShared):
        offset = _linear(calculate, coordinates, layout)
    else:
        offset = _swizzled(calculate, coordinates, shape, layout, size)
    return calculate("muli", offset, size)


def _swizzled(
    calculate: Arithmetic, coordinates: list[SSAValue], shape: tuple[int, ...],
    layout: NvmmaShared | SwizzledShared, size: int,
) -> SSAValue:  # fmt: skip
    order = layout.order
    inner = coordinates[order[0]]
    if len(shape) == 1:
        return inner
    vec, per_phase, max_phase, width = 1, 1, 1, shape[order[0]]
    if isinstance(layout, SwizzledShared):
        vec, per_phase, max_phase = layout.vec, layout.per_phase, layout.max_phase
    elif layout.swizzling:
        # Columns of tiles as wide as a swizzled row, one after the other.
        vec, width = 16 // size, layout.swizzling // size
        per_phase, max_phase = 128 // layout.swizzling, layout.swizzling // 16
    column = calculate("remui", inner, width)
    row = rows = coordinates[order[1]]
    stride = shape[order[1]]
    for dim in order[2:]:
        rows = calculate("addi", rows, calculate("muli", coordinates[dim], stride))
        stride *= shape[dim]
    if max_phase > 1:
        swizzled = row if isinstance(layout, SwizzledShared) else rows
        phase = calculate("remui", calculate("divui", swizzled, per_phase), max_phase)
        column = calculate("xori", column, calculate("muli", phase, vec))
    offset = calculate("addi", calculate("muli", rows, width), column)
    if width < shape[order[0]]:
        tile = calculate("divui", inner, width)
        offset = calculate("addi", offset, calculate("muli", tile, width * stride))
    return offset


def _linear(calculate: Arithmetic, coordinates: list[SSAValue], layout: LinearShared) -> SSAValue:
    """Each bit of a coordinate steps to an offset; the steps are joined by exclusive or."""
    offset = calculate("muli", coordinates[0], 0)
    for dim, bit, step in inverse(layout.offsets):
        digit = calculate("andi", calculate("shrui", coordinates[dim], bit), 1)
        offset = calculate("xori", offset, calculate("muli", digit, step))
    padded = offset
    for interval, padding in layout.paddings:
        many = calculate("divui", offset, interval)
        padded = calculate("addi", padded, calculate("muli", many, padding))
    return padded


def inverse(bases: tuple[tuple[int, ...], ...]) -> Iterator[tuple[int, int, int]]:
    """Of the map from an offset's bits to steps along dimensions: (dimension, bit, offset)."""
    rank = len(bases[0])
    # Gauss-Jordan over bits: rows (step as one number, offset) become single bits.
    widths = [max(basis[d] for basis in bases).bit_length() for d in range(rank)]
    starts = [sum(widths[:d]) for d in range(rank)]
    rows = [(sum(n << s for n, s in zip(b, starts, strict=True)), 1 << i) for i, b in
            enumerate(bases)]  # fmt: skip
    for dim in range(rank):
        for bit in range(widths[dim]):
            place = 1 << starts[dim] + bit
            pivot = next(r for r in rows if r[0] & place and r[0] & (place - 1) == 0)
            rows = [
                (r[0] ^ pivot[0], r[1] ^ pivot[1]) if r is not pivot and r[0] & place else r
                for r in rows
            ]
    for step, offset in rows:
        dim = next(d for d in reversed(range(rank)) if step >> starts[d])
        yield dim, (step >> starts[dim]).bit_length() - 1, offset


def contiguous(layout: SharedLayout, bits: int) -> int:
    """Elements that the layout keeps together and in order: at most 16 bytes."""
    most = 128 // bits
    if isinstance(layout, LinearShared):
        steps = {(dim, bit): step for dim, bit, step in inverse(layout.offsets)}
        run = min([most, *(interval for interval, _ in layout.paddings)])
        inner = {(layout.order[0], bit): 1 << bit for bit in range(run.bit_length() - 1)}
        while any(steps.get(k) != v for k, v in inner.items()) or any(
            step % run for k, step in steps.items() if k not in inner
        ):
            run //= 2
            inner.popitem()
        return run
    if isinstance(layout, SwizzledShared) and layout.max_phase > 1:
        return min(most, layout.vec)
    return most


def piece_address(
    builder: Builder, buffer: SSAValue, memdesc: MemDesc, start: Sequence[int]
) -> SSAValue:
    """The address in shared memory of the element of a buffer at constant coordinates, an i32."""
    rank = len(memdesc.shape)
    address = shared_address(builder, buffer, rank)
    if not any(start) and memdesc.allocated is None:
        return address
    calculate = Arithmetic(builder, address.type)
    coordinates = [builder.constant(s) for s in start]
    if memdesc.allocated is not None:
        starts = slice_starts(builder, buffer, rank)
        coordinates = [calculate("addi", c, s) for c, s in zip(coordinates, starts, strict=True)]
    offset = byte_offsets(builder, coordinates, memdesc.whole, memdesc.shared, memdesc.bits)
    return calculate("addi", address, offset)
