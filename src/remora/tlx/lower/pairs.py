"""Products of two CTAs: ``tcgen05.mma.cta_group::2``, written out.

Stock Triton has them where one program is divided over two CTAs, and says so in every layout.
In TLX a program is a CTA, and its layouts are of one: what the matrix unit reads is described
here instead (PTX ISA, tcgen05: matrix descriptor, instruction descriptor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, IntegerType
from xdsl.ir import Attribute, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import ConflictingLayouts, UnsupportedByTarget
from remora.ir.build import Builder, attribute
from remora.tlx.lower.arrivals import computed
from remora.tlx.lower.assembly import barrier, execute, shared_address
from remora.tlx.lower.layouts import MemDesc, NvmmaShared
from remora.tlx.lower.offsets import piece_address

_PRODUCTS = ("tlx.tensor_dot", "tlx.tensor_dot_scaled")

#: Bytes of K that one instruction multiplies.
_STEP = 32

# Of the instruction descriptor: A's and B's formats, and what is summed.
_KINDS = {
    "f16": ("f16", 0), "bf16": ("f16", 1), "f32": ("tf32", 2),
    "f8E4M3FN": ("f8f6f4", 0), "f8E5M2": ("f8f6f4", 1), "i8": ("i8", 1),
}  # fmt: skip
_SUMS = {"f16": 0, "f32": 1, "i32": 2}

# Of the matrix descriptor: how rows are swizzled.
_SWIZZLES = {128: 2, 64: 4, 32: 6}


@dataclass(frozen=True)
class Operand:
    """How the matrix unit reads a matrix in shared memory.

    constant: its descriptor but for the address. offsets: bytes from the matrix's start to what
    each instruction multiplies. transposed: whether K is not the contiguous dimension.
    """

    constant: int
    offsets: tuple[int, ...]
    transposed: bool

    @classmethod
    def of(cls, memdesc: MemDesc, k_dim: int) -> Operand | None:
        """Of a buffer whose dimension ``k_dim`` is K; None where it cannot be read."""
        layout = memdesc.layout
        if not isinstance(layout, NvmmaShared) or layout.swizzling not in _SWIZZLES:
            return None
        inner, outer = layout.order
        width = layout.swizzling
        # Rows lie in panels as wide as the swizzle, one panel after the other.
        panel = memdesc.whole[outer] * width
        size = memdesc.shape[k_dim] * memdesc.bits // 8
        steps = range(size * (2 if layout.padded else 1) // _STEP)
        leading = 0
        if inner == k_dim:
            offsets = [s * _STEP % width + s * _STEP // width * panel for s in steps]
        else:
            offsets = [s * _STEP * 8 // memdesc.bits * width for s in steps]
            if memdesc.shape[inner] * memdesc.bits // 8 > width:
                leading = panel >> 4
        eight_rows = 8 * width >> 4
        constant = leading << 16 | eight_rows << 32 | 1 << 46 | _SWIZZLES[width] << 61
        return cls(constant, tuple(offsets), inner != k_dim)


def instruction_descriptor(
    m: int, n: int, elements: Sequence[str], total: str, transposed: Sequence[bool]
) -> int:
    """What is multiplied. elements: of A and B; transposed: whether their K is not contiguous."""
    (_, a), (_, b) = (_KINDS[e] for e in elements)
    return (
        _SUMS[total] << 4 | a << 7 | b << 10 | transposed[0] << 15 | transposed[1] << 16
        | n >> 3 << 17 | m >> 4 << 24
    )  # fmt: skip


def leads(builder: Builder) -> tuple[SSAValue, SSAValue]:
    """Whether this CTA is the first of its pair, and both as a mask of the cluster's CTAs."""
    rank = computed(builder, "mov.u32 $0, %cluster_ctarank;", [])
    odd = builder.value("arith.andi", [rank, builder.constant(1)], rank.type)
    equal = {"predicate": IntegerAttr(0, 64)}
    first = builder.value("arith.cmpi", [odd, builder.constant(0)], attribute("i1"), equal)
    both = builder.value("arith.shli", [builder.constant(3), rank], rank.type)
    return first, builder.value("arith.trunci", [both], attribute("i16"))


def tensor_address(builder: Builder, matrix: SSAValue) -> SSAValue:
    """The address of a matrix in tensor memory, an i32: see ``assembly.shared_address``."""
    kind = attribute("!llvm.ptr<3>")
    pointer = builder.value("builtin.unrealized_conversion_cast", [matrix], kind)
    return builder.value("llvm.ptrtoint", [pointer], attribute("i32"))


_COMMIT = (
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
)


@dataclass(frozen=True)
class Scaling:
    """What the instructions of a block-scaled product have besides.

    kind: PTX's. instructions: for each step the instruction descriptor, without which operand
    is transposed. places: for each step, where the scales are. copies: lines before the product.
    operands: what places and copies name, from ``$first`` on.
    """

    kind: str
    instructions: Sequence[int]
    places: Sequence[str]
    copies: Sequence[str]
    operands: Sequence[SSAValue]

    @staticmethod
    def first(bars: Sequence[SSAValue]) -> int:
        """The number of the first of ``operands``, in a product with these barriers."""
        return 6 + len(bars)


def lower_product(
    op: CustomOp, builder: Builder, lowering: Lowering,
    use_acc: SSAValue, pred: SSAValue, bars: Sequence[SSAValue], scaling: Scaling | None = None,
) -> None:  # fmt: skip
    """The instructions of a product, and the arrivals at its barriers: one thread of one CTA."""
    a, b, total = op.operands[:3]
    kinds: list[MemDesc] = [lowering.analysis.described(v) for v in (a, b, total)]
    m, n = kinds[2].shape
    elements = [str(kind.element) for kind in kinds]
    first = None if kinds[0].in_tensor_memory else _read(op, "A", kinds[0], 1)
    second = _read(op, "B", kinds[1], 0)
    transposed = (first is not None and first.transposed, second.transposed)
    if scaling is None:
        kind = _KINDS[elements[0]][0]
        whole = instruction_descriptor(2 * m, n, elements[:2], elements[2], transposed)
        instructions = [str(whole)] * len(second.offsets)
    else:
        kind = scaling.kind
        turned = transposed[0] << 15 | transposed[1] << 16
        instructions = [
            f"{one | turned}, {places}"
            for one, places in zip(scaling.instructions, scaling.places, strict=True)
        ]
    left = _descriptor(builder, a, kinds[0], first) if first else tensor_address(builder, a)
    right = _descriptor(builder, b, kinds[1], second)
    lines = []
    for step, offset in enumerate(second.offsets):
        if first is None:
            where = f"[left + {step * _STEP // 4}]"
        else:
            lines.append(f"add.s64 left, $1, {first.offsets[step] >> 4};")
            where = "left"
        lines.append(f"add.s64 right, $2, {offset >> 4};")
        lines.append(
            f"@once tcgen05.mma.cta_group::2.kind::{kind} "
            f"[$0], {where}, right, {instructions[step]}, sum;"
        )
        if not step:
            lines.append("setp.eq.b32 sum, 0, 0;")
    leading, both = leads(builder)
    if lowering.num_warps_at(op.op) > 1:  # what all warps of the task stored is there
        barrier(builder)
    if first is None:
        lines = [line.replace("[left", "[$1") for line in lines]
    addresses = [shared_address(builder, bar) for bar in bars]
    lines += [f"@once {_COMMIT}[${6 + i}], $5;" for i in range(len(bars))]
    if scaling is not None:
        lines = [*scaling.copies, *lines]
        addresses += scaling.operands
    _once(
        builder, lines,
        [tensor_address(builder, total), left, right, use_acc, _first_warp(builder, leading, pred),
         both, *addresses],
        accumulates=3, predicate=4,
    )  # fmt: skip
    _reach(lowering, a, b, *bars)


def lower_commit(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """Arrivals at the barriers that both CTAs have in one place."""
    (bar,) = op.operands
    leading, both = leads(builder)
    always = builder.constant(1, 1)
    _once(
        builder, [f"@once {_COMMIT}[$0], $2;"],
        [shared_address(builder, bar), _first_warp(builder, leading, always), both], predicate=1,
    )  # fmt: skip
    _reach(lowering, bar)


def copies_of_scales(place: int, source: int, rows: int, length: int) -> list[str]:
    """The copies of scales (rows, length) to tensor memory, 128 rows by 4 each: 4 columns.

    place, source: the numbers of the operands that are its address and the matrix descriptor. Both
    CTAs copy, each from its own shared memory.
    """
    lines = []
    for row in range(rows // 128):
        for column in range(length // 4):
            chunk = row * (length // 4) + column
            lines.append(f"add.s64 left, ${source}, {chunk * 512 >> 4};")
            lines.append(
                "@once tcgen05.cp.cta_group::2.32x128b.warpx4 "
                f"[${place} + {4 * (column * (rows // 128) + row)}], left;"
            )
    return lines


#: Of the matrix descriptor of scales: 8 rows of 16 bytes follow each other, not swizzled.
_SCALES = 8 << 32 | 1 << 46


def scales_descriptor(builder: Builder, source: SSAValue, rank: int) -> SSAValue:
    """The matrix descriptor of a buffer of scales of ``rank`` dimensions, an i64."""
    return descriptor(builder, shared_address(builder, source, rank), _SCALES)


def lower_copy(
    op: CustomOp, builder: Builder, lowering: Lowering, to: SSAValue, shape: Sequence[int]
) -> None:
    """The copies of scales of a shape to tensor memory in both CTAs, by the first one."""
    source = op.operands[0]
    kind: MemDesc = lowering.analysis.described(source)
    leading, _ = leads(builder)
    if lowering.num_warps_at(op.op) > 1:
        barrier(builder)
    _once(
        builder, copies_of_scales(0, 1, shape[0], shape[1]),
        [tensor_address(builder, to), scales_descriptor(builder, source, len(kind.shape)),
         _first_warp(builder, leading, builder.constant(1, 1))],
        predicate=2,
    )  # fmt: skip
    _reach(lowering, source)


def are_used(lowering: Lowering) -> bool:
    """Whether a kernel has products of two CTAs."""
    return any(op.attributes["pair"] for op in lowering.ops if op.name in _PRODUCTS)


def check(lowering: Lowering) -> None:
    """Check that all of a kernel's work for the matrix unit is of two CTAs, where some is.

    Raises:
        UnsupportedByTarget: it is not, at the line of what is of one.
    """
    products = [op for op in lowering.ops if op.name in _PRODUCTS]
    pair = next((op for op in products if op.attributes["pair"]), None)
    copies = [
        op for op in lowering.ops if op.name == "tlx.tmem_copy" and not op.attributes["scales"]
    ]
    single = [op for op in products if not op.attributes["pair"]] + copies
    if pair is not None and single:
        word = single[0].name.replace("tensor_dot", "async_dot")
        raise UnsupportedByTarget(
            f"{word}: a kernel's work for the matrix unit is of one CTA, or of two, and "
            f"that at {pair.where} is of two",
            where=single[0].where,
            hint="two_ctas=True in all of them, or in none",
        )


def _read(op: CustomOp, name: str, memdesc: MemDesc, k_dim: int) -> Operand:
    operand = Operand.of(memdesc, k_dim)
    if operand is None:
        raise ConflictingLayouts(
            f"tlx.async_dot: two CTAs' matrix unit cannot read {name} with the layout "
            f"{memdesc.layout}",
            where=op.where,
            hint="rows of 32 bytes or more are swizzled; leave the layout out",
        )
    return operand


def _descriptor(builder: Builder, buffer: SSAValue, kind: MemDesc, operand: Operand) -> SSAValue:
    """The matrix descriptor of a buffer, an i64."""
    return descriptor(builder, piece_address(builder, buffer, kind, (0, 0)), operand.constant)


def descriptor(builder: Builder, address: SSAValue, constant: int) -> SSAValue:
    """The matrix descriptor of an address in shared memory, an i64; the rest is constant."""
    i64 = attribute("i64")
    units = builder.value("arith.shrui", [address, builder.constant(4)], address.type)
    units = builder.value("arith.andi", [units, builder.constant(0x3FFF)], address.type)
    wide = builder.value("arith.extui", [units], i64)
    rest = {"value": IntegerAttr(constant, IntegerType(64))}
    return builder.value("arith.ori", [wide, builder.value("arith.constant", [], i64, rest)], i64)


def _first_warp(builder: Builder, *predicates: SSAValue) -> SSAValue:
    """Whether all predicates hold, in the first warp of the task."""
    i1: Attribute = attribute("i1")
    warp = builder.value("ttg.warp_id", [], attribute("i32"))
    equal = {"predicate": IntegerAttr(0, 64)}
    value = builder.value("arith.cmpi", [warp, builder.constant(0)], i1, equal)
    for predicate in predicates:
        value = builder.value("arith.andi", [value, predicate], i1)
    return value


def _once(
    builder: Builder, lines: Sequence[str], operands: Sequence[SSAValue], *, predicate: int,
    accumulates: int | None = None,
) -> None:  # fmt: skip
    """Instructions of one thread; ``once`` is its predicate, ``sum`` whether to add to the sum."""
    head = [
        ".reg .pred once, sum;", ".reg .b64 left, right;", "elect.sync _|once, -1;",
        f"and.pred once, once, ${predicate};",
    ]  # fmt: skip
    if accumulates is not None:
        head.append(f"and.pred sum, ${accumulates}, ${accumulates};")
    execute(builder, "{\n\t" + "\n\t".join([*head, *lines]) + "\n}", operands)


def _reach(lowering: Lowering, *values: SSAValue) -> None:
    kinds = [(v, v.type) for v in values]
    lowering.analysis.reached.extend(v for v, t in kinds if "#ttng.tensor_memory" not in str(t))
