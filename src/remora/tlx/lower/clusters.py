"""Lowerings for clusters: other CTAs' shared memory, by ``mapa``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import ConflictingLayouts, UnsupportedByTarget, WrongShape
from remora.ir.build import Builder, attribute, inherent, op_name
from remora.tlx.clusters import (
    async_remote_shmem_copy,
    async_remote_shmem_store,
    cluster_barrier,
    cluster_cta_rank,
    cluster_size_1d,
    fence_mbarrier_init_cluster,
    remote_shmem_store,
)
from remora.tlx.lower.arrivals import computed, mapped, root_of
from remora.tlx.lower.assembly import barrier, execute, execute_once, intrinsic, shared_address
from remora.tlx.lower.layouts import MemDesc
from remora.tlx.lower.offsets import (
    Arithmetic,
    byte_offsets,
    contiguous,
    coordinates_of,
    slice_starts,
)
from remora.tlx_plugin import FROM_HOPPER_ON, MARK

#: Operations that reach another CTA's memory.
REMOTE = {
    "tlx.async_remote_shmem_copy",
    "tlx.async_remote_shmem_store",
    "tlx.remote_shmem_store",
    "tlx.remote_view",
}


@cluster_cta_rank.lowering(*FROM_HOPPER_ON)
def lower_rank(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``%cluster_ctarank``."""
    return computed(builder, "mov.u32 $0, %cluster_ctarank;", [])


@cluster_size_1d.lowering(*FROM_HOPPER_ON)
def lower_size(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``%cluster_nctarank``."""
    return computed(builder, "mov.u32 $0, %cluster_nctarank;", [])


@cluster_barrier.lowering(*FROM_HOPPER_ON)
def lower_barrier(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``barrier.cluster``: all threads of the cluster arrive, and wait.

    Raises:
        UnsupportedByTarget: the kernel has tasks, whose warps would not arrive.
    """
    if _has_tasks(lowering):
        meetings = lowering.analysis.meetings
        if op.op not in meetings:
            raise UnsupportedByTarget(
                "tlx.cluster_barrier: in a kernel with tasks not all warps come here, and the "
                "barrier is one of all threads of the cluster",
                where=op.where,
                hint="meet before the tasks begin, or once in each task, where the tasks have a "
                "multiple of 4 warps together; or arrive at barriers: "
                "tlx.barrier_arrive(bar, remote_cta_rank=...)",
            )
        if number := meetings[op.op]:
            execute(builder, f"{MARK}{32 * lowering.num_warps} threads, {number}")
    _meet(builder)


@fence_mbarrier_init_cluster.lowering(*FROM_HOPPER_ON)
def lower_init_fence(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``fence.mbarrier_init``."""
    execute(builder, "fence.mbarrier_init.release.cluster;")


def _has_tasks(lowering: Lowering) -> bool:
    return any(op_name(op) == "ttg.warp_specialize" for op in lowering.module.walk())


def meetings(lowering: Lowering) -> dict[Operation, int]:
    """The ``cluster_barrier`` of a kernel with tasks that all warps of it come to.

    Those that stand before the first task are numbered from 1: the warps of tasks, which wait
    for work by then, have to come too (``remora.tlx.lower.assembled``). Those that stand in
    tasks, as many in each, are 0.
    """
    places = [op.op for op in lowering.ops if op.name == "tlx.cluster_barrier"]
    sets = [op for op in lowering.module.walk() if op_name(op) == "ttg.warp_specialize"]
    found: dict[Operation, int] = {}
    for place in places:
        block = place.parent
        if block is not None and _is_entry(block) and not _after_tasks(place):
            found[place] = len(found) + 1
    most = max((_warps(tasks) for tasks in sets), default=0)
    for tasks in sets:
        bodies = [tasks.regions[0], *tasks.regions[1].blocks[0].first_op.regions]  # type: ignore
        own = [[p for p in places if p.parent is body.blocks[0]] for body in bodies]
        # Warps come in groups of 4: those that no task has never come.
        whole = (lowering.num_warps + _warps(tasks)) % 4 == 0 and _warps(tasks) == most
        if whole and len({len(o) for o in own}) == 1:
            found.update((p, 0) for o in own for p in o)
    return found


def _warps(tasks: Operation) -> int:
    """Those of the partitions."""
    warps: Any = inherent(tasks, "partitionNumWarps")
    return sum(warps.get_values())


def _after_tasks(op: Operation) -> bool:
    """Whether tasks may have run when an operation of the entry's first block does."""
    before = op.prev_op
    while before is not None:
        if any(op_name(inner) == "ttg.warp_specialize" for inner in before.walk()):
            return True
        before = before.prev_op
    return False


def _meet(builder: Builder, order: str = "") -> None:
    intrinsic(builder, f"llvm.nvvm.barrier.cluster.arrive{order}.aligned")
    intrinsic(builder, "llvm.nvvm.barrier.cluster.wait.aligned")


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


@remote_shmem_store.lowering(*FROM_HOPPER_ON)
def lower_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``st.shared::cluster``, 16 bytes at a time where the layouts let it."""
    store = _Store(op, builder, lowering)
    store.write("st.shared::cluster{vec}.{type} [{address}], {data};")
    if lowering.analysis.has_products:  # the matrix unit of the other CTA may read it
        execute(builder, "fence.proxy.async;")


@async_remote_shmem_store.lowering(*FROM_HOPPER_ON)
def lower_async_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``st.async``: each piece once, as the other CTA's barrier counts its bytes."""
    store = _Store(op, builder, lowering)
    if store.pieces.elements * store.memdesc.bits < 32:
        raise WrongShape(
            "tlx.async_remote_shmem_store: the buffer has less than 4 bytes in a row",
            where=op.where,
            hint="the machine moves 4 bytes at least: use tlx.remote_shmem_store",
        )
    rank, bar = op.operands[2:]
    lowering.analysis.reached.append(bar)
    theirs = mapped(builder, shared_address(builder, bar), rank)
    instruction = (
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vec}.{type} "
        "[{address}], {data}, [{others[0]}];"
    )
    once = store.holds_pieces()
    if once is None:
        store.write(instruction, [theirs])
    else:
        store.write("@{others[1]} " + instruction, [theirs, once])


class _Store:
    """A tensor on its way into a buffer of another CTA, in pieces.

    The conversion to LLVM makes a tensor a struct of the elements that a thread holds; casts
    to that struct keep the tensor in the layout of the pieces and give its registers.
    """

    def __init__(self, op: CustomOp, builder: Builder, lowering: Lowering) -> None:
        self.builder = builder
        self.value, self.buffer, self.rank = op.operands[:3]
        self.memdesc: MemDesc = lowering.analysis.described(self.buffer)
        assert self.memdesc.layout is not None
        self.layout = self.memdesc.layout
        self.num_warps = lowering.num_warps_at(op.op)
        self.pieces = Pieces.of(
            self.memdesc.shape, self.layout.order, contiguous(self.layout, self.memdesc.bits),
            self.num_warps,
        )  # fmt: skip
        lowering.analysis.reached.append(self.buffer)

    def holds_pieces(self) -> SSAValue | None:
        """An i1: whether this thread holds pieces and not copies; None where all do."""
        pieces, builder = self.pieces, self.builder
        conditions = []
        for used, all_, number in (
            (pieces.lanes, 32, lambda: computed(builder, "mov.u32 $0, %laneid;", [])),
            (pieces.warps, self.num_warps,
             lambda: builder.value("ttg.warp_id", [], attribute("i32"))),
        ):  # fmt: skip
            if used < all_:
                conditions.append(
                    builder.value(
                        "arith.cmpi", [number(), builder.constant(used)], attribute("i1"),
                        {"predicate": attribute("6 : i64")},  # unsigned less than
                    )
                )  # fmt: skip
        if len(conditions) < 2:
            return conditions[0] if conditions else None
        return builder.value("arith.andi", conditions, attribute("i1"))

    def write(self, instruction: str, others: Sequence[SSAValue] = ()) -> None:
        """Write each piece at its place in the other CTA.

        instruction: with ``{vec}``, ``{type}``, ``{address}``, ``{data}`` and ``{others[0]}``,
            ... for what is the same for all pieces.
        """
        builder, elements = self.builder, self.pieces.elements
        values, addresses = self._registers(self.value, self.memdesc.element), self._addresses()
        bits = min(elements * self.memdesc.bits, 64 if self.memdesc.bits == 64 else 32)
        count = elements * self.memdesc.bits // bits
        data = [f"${i}" for i in range(count)]
        text = instruction.format(
            vec=f".v{count}" if count > 1 else "", type=f"b{bits}", address=f"${count}",
            data="{" + ", ".join(data) + "}" if count > 1 else data[0],
            others=[f"${count + 1 + i}" for i in range(len(others))],
        )  # fmt: skip
        for first in range(0, len(values), elements):
            piece = values[first : first + elements]
            step = elements // count
            words = [self._word(piece[i : i + step], bits) for i in range(0, elements, step)]
            execute(builder, text, [*words, addresses[first], *others])

    def _addresses(self) -> list[SSAValue]:
        """Where in the other CTA each element goes that this thread holds."""
        builder, memdesc, layout = self.builder, self.memdesc, self.pieces.layout
        rank = len(memdesc.shape)
        base = mapped(builder, shared_address(builder, self.buffer, rank), self.rank)
        coordinates = coordinates_of(builder, memdesc.shape, layout)
        kind = coordinates[0].type
        add = Arithmetic(builder, kind)
        if memdesc.allocated:
            for dim, start in enumerate(slice_starts(builder, self.buffer, rank)):
                start = builder.value("tt.splat", [start], kind)
                coordinates[dim] = add("addi", coordinates[dim], start)
        offsets = byte_offsets(builder, coordinates, memdesc.whole, self.layout, memdesc.bits)
        addresses = add("addi", builder.value("tt.splat", [base], kind), offsets)
        return self._registers(addresses, attribute("i32"))

    def _registers(self, tensor: SSAValue, element: Attribute) -> list[SSAValue]:
        """The elements of a tensor that a thread holds, piece by piece."""
        builder = self.builder
        text = "x".join(map(str, self.memdesc.shape))
        kind = attribute(f"tensor<{text}x{element}, {self.pieces.layout}>")
        if tensor.type != kind:
            tensor = builder.value("ttg.convert_layout", [tensor], kind)
        held = math.prod(self.memdesc.shape) // (self.pieces.lanes * self.pieces.warps)
        register = attribute("i8" if str(element).startswith("f8") else str(element))
        struct = attribute(f"!llvm.struct<({', '.join([str(register)] * held)})>")
        cast = builder.value("builtin.unrealized_conversion_cast", [tensor], struct)
        return [
            builder.value(
                "llvm.extractvalue", [cast], register, {"position": attribute(f"array<i64: {i}>")}
            )
            for i in range(held)
        ]

    def _word(self, elements: Sequence[SSAValue], bits: int) -> SSAValue:
        """Elements as one integer of that many bits, at least 16 as no register is narrower."""
        builder = self.builder
        word = elements[0]
        if len(elements) > 1:
            kind = attribute(f"vector<{len(elements)}x{word.type}>")
            vector = builder.value("llvm.mlir.undef", [], kind)
            for index, element in enumerate(elements):
                vector = builder.value(
                    "llvm.insertelement", [vector, element, builder.constant(index)], kind
                )
            word = vector
        integer = attribute(f"i{bits}")
        if word.type != integer:
            word = builder.value("llvm.bitcast", [word], integer)
        return builder.value("llvm.zext", [word], attribute("i16")) if bits == 8 else word


@async_remote_shmem_copy.lowering(*FROM_HOPPER_ON)
def lower_copy(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``cp.async.bulk``, by one thread when all of the task have written."""
    to, buffer, rank, bar = op.operands
    kinds: list[MemDesc] = [lowering.analysis.described(v) for v in (to, buffer)]
    if kinds[0].layout != kinds[1].layout or any(k.whole != k.shape for k in kinds):
        raise ConflictingLayouts(
            f"tlx.async_remote_shmem_copy: bytes are copied, and the buffers have the layouts "
            f"{kinds[0].layout} and {kinds[1].layout}, or are slices",
            where=op.where,
            hint="copy whole buffers of one allocation",
        )
    lowering.analysis.reached.extend((to, buffer, bar))
    dims = len(kinds[0].shape)
    barrier(builder)
    execute_once(
        builder,
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
        "[$0], [$1], $2, [$3];",
        [
            mapped(builder, shared_address(builder, to, dims), rank),
            shared_address(builder, buffer, dims),
            builder.constant(kinds[1].bytes),
            mapped(builder, shared_address(builder, bar), rank),
        ],
    )


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
        # Barriers are what the others have to see, and the fence above says so of them: without
        # .relaxed each thread would wait until the whole GPU sees all that it wrote.
        _meet(builder, ".relaxed")
    for value in lowering.analysis.reached:
        _keep(value)


def _keep(value: SSAValue) -> None:
    """Keep memory that others reach to the end, where the compiler would use it again."""
    allocation = root_of(value)
    if allocation is None or any(
        op_name(use.operation) == "ttg.local_dealloc" for use in allocation.results[0].uses
    ):
        return
    block = allocation.parent
    if block is None or not _is_entry(block):
        return
    for other in block.parent.blocks:
        if other.last_op is not None and not other.last_op.successors:
            Builder.before(other.last_op).op("ttg.local_dealloc", [allocation.results[0]])


def is_remote(op: CustomOp) -> bool:
    """Whether an operation reaches another CTA's memory."""
    return op.name in REMOTE or any(op.attributes.get(a) for a in ("remote", "pair"))


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
