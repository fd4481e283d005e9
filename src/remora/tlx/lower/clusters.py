"""Lowerings for clusters: other CTAs' shared memory, by ``mapa``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import UnsupportedByTarget
from remora.ir.build import Builder, attribute, boolean, i32, op_name
from remora.tlx.clusters import (
    cluster_barrier,
    cluster_cta_rank,
    cluster_size_1d,
    remote_shmem_store,
)
from remora.tlx.lower.assembly import execute, intrinsic, shared_address
from remora.tlx.lower.layouts import LinearShared, NvmmaShared, SharedLayout, SwizzledShared

_TARGETS = ("cuda:90", "cuda:100", "cuda:103")

#: Operations that reach another CTA's memory.
REMOTE = {"tlx.remote_shmem_store"}

#: In the PTX of a kernel that reaches another CTA's memory, with its own threads, a task's
#: not counted: ``synchronise`` in ``remora.tlx.lower.assembled`` finds it.
MARK = "// remora: cluster of programs of "


def _computed(builder: Builder, instruction: str, operands: list[SSAValue]) -> SSAValue:
    """An i32 that an instruction without effects computes of i32s: ``$0`` from ``$1``, ..."""
    return builder.value(
        "tt.elementwise_inline_asm", operands, attribute("i32"),
        {
            "asm_string": StringAttr(instruction),
            "constraints": StringAttr(",".join(["=r", *("r" for _ in operands)])),
            "packed_element": i32(1),
            "pure": boolean(True),
        },
    )  # fmt: skip


@cluster_cta_rank.lowering(*_TARGETS)
def lower_rank(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``%cluster_ctarank``."""
    return _computed(builder, "mov.u32 $0, %cluster_ctarank;", [])


@cluster_size_1d.lowering(*_TARGETS)
def lower_size(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``%cluster_nctarank``."""
    return _computed(builder, "mov.u32 $0, %cluster_nctarank;", [])


@cluster_barrier.lowering(*_TARGETS)
def lower_barrier(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``barrier.cluster``: all threads of the cluster arrive, and wait.

    Raises:
        UnsupportedByTarget: the kernel has tasks, whose warps would not arrive.
    """
    if _has_tasks(lowering):
        raise UnsupportedByTarget(
            "tlx.cluster_barrier: in a kernel with tasks not all warps come here, and the barrier "
            "is one of all threads of the cluster",
            where=op.where,
            hint="let the tasks meet at barriers: tlx.barrier_arrive(bar, remote_cta_rank=...)",
        )
    _meet(builder)


def _has_tasks(lowering: Lowering) -> bool:
    return any(op_name(op) == "ttg.warp_specialize" for op in lowering.module.walk())


def _meet(builder: Builder) -> None:
    intrinsic(builder, "llvm.nvvm.barrier.cluster.arrive.aligned")
    intrinsic(builder, "llvm.nvvm.barrier.cluster.wait.aligned")


def mapped(builder: Builder, address: SSAValue, rank: SSAValue) -> SSAValue:
    """The address, in the cluster's shared memory, of what another CTA has at an address."""
    return _computed(builder, "mapa.shared::cluster.u32 $0, $1, $2;", [address, rank])


# --- a tensor into another CTA's buffer ----------------------------------------------------------


@dataclass(frozen=True)
class Pieces:
    """How a tensor is cut into pieces, each written by one thread with one instruction.

    elements: of a piece, contiguous along the first dimension of ``order``.
    lanes, warps: those that hold pieces; the others hold copies.
    """

    elements: int
    lanes: int
    warps: int
    layout: str

    @classmethod
    def of(
        cls, shape: tuple[int, ...], order: tuple[int, ...], most: int, num_warps: int
    ) -> Pieces:
        """Pieces of at most ``most`` elements, no element in two of them."""
        elements = min(most, shape[order[0]])
        left = [n // (elements if d == order[0] else 1) for d, n in enumerate(shape)]
        lanes, warps = _spread(left, order, 32), [1] * len(shape)
        for dim, count in enumerate(lanes):
            left[dim] //= count
        warps = _spread(left, order, num_warps)
        used = _product(lanes), _product(warps)
        # The rest holds copies: the highest lanes and warps, along the slowest dimension.
        lanes[order[-1]] *= 32 // used[0]
        warps[order[-1]] *= num_warps // used[1]
        size = [elements if d == order[0] else 1 for d in range(len(shape))]
        layout = (
            f"#ttg.blocked<{{sizePerThread = {size}, threadsPerWarp = {lanes}, "
            f"warpsPerCTA = {warps}, order = {list(order)}}}>"
        )
        return cls(elements, *used, layout)


def _product(numbers: list[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def _spread(left: list[int], order: tuple[int, ...], count: int) -> list[int]:
    """At most ``count`` workers over the pieces that are left, the fastest dimension first."""
    along = [1] * len(left)
    for dim in order:
        along[dim] = min(left[dim], count)
        count //= along[dim]
    return along


def _coordinates(builder: Builder, shape: tuple[int, ...], layout: str) -> list[SSAValue]:
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


class _Arithmetic:
    """Integers of a tensor's shape."""

    def __init__(self, builder: Builder, kind: Attribute) -> None:
        self.builder = builder
        self.kind = kind

    def __call__(self, name: str, left: SSAValue, right: int | SSAValue) -> SSAValue:
        if isinstance(right, int):
            dense = attribute(f"dense<{right}> : {self.kind}")
            right = self.builder.value("arith.constant", [], self.kind, {"value": dense})
        return self.builder.value(f"arith.{name}", [left, right], self.kind)


def byte_offsets(
    builder: Builder, shape: tuple[int, ...], layout: SharedLayout, bits: int, distributed: str
) -> SSAValue:
    """Where each element of a buffer lies, in bytes from its start: a tensor of i32."""
    coordinates = _coordinates(builder, shape, distributed)
    if isinstance(layout, LinearShared):
        raise UnsupportedByTarget(
            f"a buffer with the layout {layout} cannot be stored to from another CTA",
            hint="leave the buffer's layout out, or name a swizzled one",
        )
    calculate = _Arithmetic(builder, coordinates[0].type)
    order, size = layout.order, max(bits // 8, 1)
    inner = coordinates[order[0]]
    if len(shape) == 1:
        return calculate("muli", inner, size)
    vec, per_phase, max_phase, width = 1, 1, 1, shape[order[0]]
    if isinstance(layout, SwizzledShared):
        vec, per_phase, max_phase = layout.vec, layout.per_phase, layout.max_phase
    elif layout.swizzling:
        # Columns of tiles as wide as a swizzled row, one after the other.
        vec, width = 16 // size, layout.swizzling // size
        per_phase, max_phase = 128 // layout.swizzling, layout.swizzling // 16
    row = coordinates[order[1]]
    column = calculate("remui", inner, width)
    if max_phase > 1:
        phase = calculate("remui", calculate("divui", row, per_phase), max_phase)
        column = calculate("xori", column, calculate("muli", phase, vec))
    rows = row
    stride = shape[order[1]]
    for dim in order[2:]:
        rows = calculate("addi", rows, calculate("muli", coordinates[dim], stride))
        stride *= shape[dim]
    offset = calculate("addi", calculate("muli", rows, width), column)
    if width < shape[order[0]]:
        tile = calculate("divui", inner, width)
        offset = calculate("addi", offset, calculate("muli", tile, width * stride))
    return calculate("muli", offset, size)


def contiguous(layout: SharedLayout, bits: int) -> int:
    """Elements that the layout keeps together: at most 16 bytes."""
    most = 128 // bits
    if isinstance(layout, LinearShared):
        return 1
    if isinstance(layout, NvmmaShared) or layout.max_phase == 1:
        return most
    return min(most, layout.vec)


@remote_shmem_store.lowering(*_TARGETS)
def lower_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``st.shared::cluster``, 16 bytes at a time where the layouts let it."""
    value, buffer, rank = op.operands
    store = _Store(op, builder, lowering)
    target = mapped(builder, shared_address(builder, buffer, len(store.shape)), rank)
    store.write(value, target, "st.shared::cluster{vec}.{type} [{address}], {data};", [])


class _Store:
    """A tensor on its way into a buffer of another CTA."""

    def __init__(self, op: CustomOp, builder: Builder, lowering: Lowering) -> None:
        self.builder = builder
        kind: Any = op.operands[0].type
        self.element: Any = kind.element_type
        self.shape = tuple(kind.get_shape())
        self.bits: int = self.element.bitwidth
        self.layout = lowering.analysis.layout_of(op.operands[1])
        self.pieces = Pieces.of(
            self.shape, self.layout.order, contiguous(self.layout, self.bits),
            lowering.num_warps_at(op.op),
        )  # fmt: skip

    def write(
        self, value: SSAValue, base: SSAValue, instruction: str, others: list[SSAValue]
    ) -> None:
        """Write a tensor at its places from ``base`` on.

        instruction: with ``{vec}``, ``{type}``, ``{address}`` and ``{data}``, and ``{0}``, ...
            for ``others``, i32s that are the same for all elements.
        """
        builder, pieces = self.builder, self.pieces
        text = "x".join(map(str, self.shape))
        kind = attribute(f"tensor<{text}x{self.element}, {pieces.layout}>")
        value = builder.value("ttg.convert_layout", [value], kind)
        integers = attribute(f"tensor<{text}xi32, {pieces.layout}>")
        offsets = byte_offsets(builder, self.shape, self.layout, self.bits, pieces.layout)
        splat = [builder.value("tt.splat", [v], integers) for v in (base, *others)]
        address = builder.value("arith.addi", [splat[0], offsets], integers)
        builder.op(
            "tt.elementwise_inline_asm", [value, address, *splat[1:]], [integers],
            {
                "asm_string": StringAttr(self._text(instruction, len(others))),
                "constraints": StringAttr(self._constraints(len(others))),
                "packed_element": i32(pieces.elements),
                "pure": boolean(False),
            },
        )  # fmt: skip

    def _registers(self) -> tuple[int, int]:
        """Registers that hold a piece, and their width in bits."""
        bits = self.pieces.elements * self.bits
        width = 64 if self.bits == 64 else 32
        return max(bits // width, 1), width

    def _constraints(self, others: int) -> str:
        elements = self.pieces.elements
        data, width = self._registers()
        letters = ["=r"] * elements + ["l" if width == 64 else "r"] * data
        return ",".join(letters + ["r"] * (elements * (1 + others)))

    def _text(self, instruction: str, others: int) -> str:
        elements = self.pieces.elements
        count, width = self._registers()
        registers = [f"${elements + i}" for i in range(count)]
        first = elements + count
        places = [f"${first + elements * i}" for i in range(1 + others)]
        bits = elements * self.bits
        data = registers[0] if count == 1 else "{" + ", ".join(registers) + "}"
        lines = [f"mov.u32 ${i}, 0;" for i in range(elements)]
        if bits < 32:  # narrower than a register of a 32-bit piece
            lines.append(f"cvt.u16.u32 low, {registers[0]};")
            data = "low"
        lines.append(
            instruction.format(
                *places[1:], vec=f".v{count}" if count > 1 else "", type=f"b{min(bits, width)}",
                address=places[0], data=data,
            )
        )  # fmt: skip
        body = "\n\t".join(lines)
        return "{\n\t.reg .b16 low;\n\t" + body + "\n}" if bits < 32 else body


# --- the kernel as a whole -----------------------------------------------------------------------


def finish(lowering: Lowering) -> None:
    """Let the cluster's CTAs begin and end together where one reaches another's memory.

    A barrier is initialised before another CTA can arrive at it, and a CTA stays until no
    other reaches its memory (CUDA C++ Programming Guide, distributed shared memory). The
    end is put into the PTX: see ``remora.tlx.lower.assembled``.
    """
    if not any(is_remote(op) for op in lowering.ops):
        return
    tasks = _has_tasks(lowering)
    for block in _blocks_to_meet(lowering):
        initialised = [op for op in block.ops if op_name(op) == "ttng.init_barrier"]
        if tasks and not _is_entry(block):
            raise UnsupportedByTarget(
                "barriers that other CTAs arrive at are allocated in a loop or a branch, in a "
                "kernel with tasks",
                hint="allocate them at the start of the kernel",
            )
        if initialised:
            builder = Builder.after(initialised[-1])
            execute(builder, "fence.mbarrier_init.release.cluster;")
        else:
            first = block.first_op
            assert first is not None
            builder = Builder(InsertPoint.at_start(block), first.location)
        if _is_entry(block):
            execute(builder, f"{MARK}{32 * lowering.num_warps} threads")
        _meet(builder)


def is_remote(op: CustomOp) -> bool:
    """Whether an operation reaches another CTA's memory."""
    return op.name in REMOTE or bool(op.attributes.get("remote"))


def _blocks_to_meet(lowering: Lowering) -> list[Block]:
    """The entry's first block, and others that initialise barriers."""
    entries = (op for op in lowering.module.ops if _is_kernel(op))
    blocks = dict.fromkeys(entry.regions[0].blocks[0] for entry in entries)
    for op in lowering.module.walk():
        if op_name(op) == "ttng.init_barrier" and op.parent is not None:
            blocks[op.parent] = None
    return list(blocks)


def _is_kernel(op: Operation) -> bool:
    visibility: Any = op.properties.get("sym_visibility") or op.attributes.get("sym_visibility")
    return op_name(op) == "tt.func" and getattr(visibility, "data", "public") == "public"


def _is_entry(block: Block) -> bool:
    parent = block.parent_op()
    return parent is not None and _is_kernel(parent) and parent.regions[0].blocks[0] is block
