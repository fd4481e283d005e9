"""What TLX's lowerings need to know of a whole module.

Which layout each allocation gets, from its uses; which values hold products
(they live in the matrix unit's layout); which of those are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from remora.dsl.lowering import (
    CustomOp,
    Lowering,
    analysis,
    branches_to,
    carried_to,
    selects_whole,
)
from remora.errors import AccumulatorInFlight, ConflictingLayouts
from remora.ir.alignment import Alignment
from remora.ir.build import Builder, i32, op_name, set_type
from remora.ir.locations import source_line
from remora.tlx.lower.layouts import (
    NvmmaShared,
    SharedLayout,
    SwizzledShared,
    memdesc,
    mfma_vector,
    order_of,
    wgmma_accumulator,
    with_encoding,
)
from remora.tlx.lower.layouts import element_type as mlir_element
from remora.tlx.lower.lifetimes import Buffer, Lifetimes

_CONTROL_FLOW = ("scf.for", "scf.while", "scf.condition", "scf.yield", "cf.br", "cf.cond_br")

_ASYNCHRONOUS = (
    "tlx.async_load",
    "tlx.async_load_commit_group",
    "tlx.async_load_wait_group",
    "tlx.async_dot",
    "tlx.async_dot_wait",
)


def loaded_by(value: SSAValue) -> Operation | None:
    """The ``tt.load`` behind a value, through layout conversions."""
    owner = value.owner
    while isinstance(owner, Operation) and op_name(owner) == "ttg.convert_layout":
        owner = owner.operands[0].owner
    return owner if isinstance(owner, Operation) and op_name(owner) == "tt.load" else None


class Use(NamedTuple):
    """One use of an allocation, directly or through views.

    op: the operation. operand: its index among the operands. views: those between the allocation
    and the operand, the allocation's first.
    """

    op: CustomOp
    operand: int
    views: tuple[CustomOp, ...]


#: Operations whose result is a view of the buffer that their first operand is.
VIEWS = {"tlx.local_view"}

#: What a use wants of the buffer's layout: ``wish(analysis, use, shape, bits, order)``, with
#: the shape, the width and the written order of what the operand is; None where any will do.
WISHES: dict[str, Callable[..., SharedLayout | None]] = {}


def wants(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the wish of an operation, by its name."""

    def register(wish: Callable[..., Any]) -> Callable[..., Any]:
        WISHES[name] = wish
        return wish

    return register


@wants("tlx.async_dot")
def _product_operand(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> SharedLayout:
    # K has to be contiguous unless elements are of 16 bits.
    transposed = order == (0, 1) if bits == 16 else use.operand == 1
    return NvmmaShared.of(shape, bits, transposed)


@wants("tlx.local_load")
def _loaded(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> SharedLayout | None:
    operand = analysis.multiplied_as(use.op.results[0]) if len(shape) == 2 else None
    if operand is None:
        return None
    return analysis.operand_layout(shape, bits, operand, order)


@analysis("tlx")
class TlxAnalysis:
    """See the module. Made before the first operation is lowered."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.alignment = Alignment()
        self._by_part = {p: op for op in lowering.ops for p in op.parts}
        self._allocation: dict[SSAValue, list[CustomOp]] = {}
        self.layouts: dict[CustomOp, SharedLayout] = {}
        self._uses: dict[CustomOp, list[Use]] = {}
        for op in lowering.ops:
            if op.name == "tlx.local_alloc":
                self._uses[op] = list(self._follow(op))
        for allocation in self._uses:
            self.layouts[allocation] = self._choose(allocation)
        # Products: the type before, so that it can be converted back at a use.
        self._before: dict[SSAValue, Attribute] = {}
        self._in_flight: set[SSAValue] = set()
        self._converted: set[Operation] = set()  # the conversions that ``finish`` makes
        for op in lowering.ops:
            if op.name == "tlx.async_dot":
                self._spread(op)
        self._mark_in_flight()
        self._refuse_reads()
        self._stop_pipelining()
        if lowering.target.backend == "cuda":
            self._extend_lives()

    @property
    def has_products(self) -> bool:
        """Whether the module holds an asynchronous product."""
        return any(op.name == "tlx.async_dot" for op in self.lowering.ops)

    # --- buffers ------------------------------------------------------------------------

    def _follow(self, allocation: CustomOp) -> Iterator[Use]:
        """The uses of an allocation and of its views."""
        seen: set[SSAValue] = set()
        work: list[tuple[SSAValue, tuple[CustomOp, ...]]] = [(r, ()) for r in allocation.results]
        while work:
            value, views = work.pop()
            if value in seen:
                continue
            seen.add(value)
            self._allocation.setdefault(value, []).append(allocation)
            work.extend((v, views) for v in carried_to(value))
            for use in value.uses:
                custom = self._by_part.get(use.operation)
                if custom is None:
                    continue
                if custom.name in VIEWS and use.index == 0:
                    work.extend((r, (*views, custom)) for r in custom.results)
                else:
                    yield Use(custom, use.index, views)

    def memdesc_of(self, allocation: CustomOp, *, view: bool = False) -> Attribute:
        """The type of an allocation, or of one buffer of it."""
        a = allocation.attributes
        return memdesc(
            a["shape"], mlir_element(a["dtype"]), self.layouts[allocation],
            0 if view else a["num"],
        )  # fmt: skip

    def view_type(self, value: SSAValue) -> Attribute:
        """The type of a view of what ``value`` stands for."""
        return self.memdesc_of(self._allocation[value][0], view=True)

    def layout_of(self, value: SSAValue) -> SharedLayout:
        """The layout of the buffer that a value stands for."""
        return self.layouts[self._allocation[value][0]]

    def _choose(self, allocation: CustomOp) -> SharedLayout:
        wishes: list[tuple[SharedLayout, CustomOp]] = []
        order = self._written_order(allocation)
        for use in self._uses[allocation]:
            wish = self._wish(allocation, use, order)
            if wish is not None:
                wishes.append((wish, use.op))
        if not wishes:
            return SwizzledShared.plain(order)
        (layout, first), *others = wishes
        for other, second in others:
            if other != layout:
                raise ConflictingLayouts(
                    f"two uses of one buffer want layouts that disagree: {layout} and {other}",
                    where=f"allocated at {allocation.where}; used at {first.where} "
                    f"and at {second.where}",
                    hint="give each use a buffer of its own",
                )
        return layout

    def _written_order(self, allocation: CustomOp) -> tuple[int, ...]:
        """The order in which global memory fills the buffer; row-major where nothing says."""
        rank = len(allocation.attributes["shape"])
        default = tuple(range(rank - 1, -1, -1))
        orders = set()
        for use, index, _ in self._uses[allocation]:
            if index == 1 and use.name in ("tlx.async_load", "tlx.local_store"):
                load = loaded_by(use.operands[0])
                order = order_of(load.results[0].type) if load is not None else None
                orders.add(order or default)
        return orders.pop() if len(orders) == 1 else default

    def _wish(self, allocation: CustomOp, use: Use, order: tuple[int, ...]) -> SharedLayout | None:
        """The layout that a use wants, or None where any will do."""
        wish = WISHES.get(use.op.name)
        if wish is None:
            return None
        element: Any = mlir_element(allocation.attributes["dtype"])
        return wish(self, use, allocation.attributes["shape"], element.bitwidth, order)

    def operand_layout(
        self, shape: tuple[int, ...], width: int, operand: int, order: tuple[int, ...]
    ) -> SharedLayout | None:
        """The layout for a ``tl.dot`` operand that is loaded from the buffer."""
        target = self.lowering.target
        k_contiguous = order[0] == (1 if operand == 0 else 0)
        if target.backend == "cuda":
            # Eight rows of 16 bytes each are one matrix of ldmatrix.
            return SwizzledShared.for_operand(shape, width, max(128 // width, 1), order, 32)
        if not k_contiguous and target.arch != "gfx950":
            return SwizzledShared.plain(order)
        banks = 64 if target.arch == "gfx950" else 32
        return SwizzledShared.for_operand(shape, width, mfma_vector(target, width), order, banks)

    def multiplied_as(self, value: SSAValue) -> int | None:
        """0 or 1 where the value is that operand of a ``tl.dot``, through conversions."""
        seen: set[SSAValue] = set()
        work = [value]
        while work:
            current = work.pop()
            if current in seen:
                continue
            seen.add(current)
            work.extend(carried_to(current))
            for use in current.uses:
                name = op_name(use.operation)
                if name == "tt.dot" and use.index < 2:
                    return use.index
                if name == "ttg.convert_layout":
                    work.extend(use.operation.results)
        return None

    # --- products -----------------------------------------------------------------------

    def accumulator_type(self, op: CustomOp) -> TensorType[Any]:
        """The type of a product, in the matrix unit's layout."""
        result = op.results[0]
        kind: Any = self._before.get(result, result.type)
        (m, n) = kind.get_shape()
        a_type: Any = op.operands[0].type
        if isinstance(a_type, TensorType):
            element: Any = a_type.element_type
        else:
            allocation = self._allocation[op.operands[0]][0]
            element = mlir_element(allocation.attributes["dtype"])
        return with_encoding(
            kind, wgmma_accumulator(m, n, element, self.lowering.num_warps_at(op.op))
        )

    def _spread(self, op: CustomOp) -> None:
        """Give a product's layout to all that it becomes: loop variables, waits, products."""
        wanted = self.accumulator_type(op)
        work = [op.results[0]]
        while work:
            value = work.pop()
            if value in self._before:
                if value.type != wanted:
                    raise ConflictingLayouts(
                        f"one accumulator is used in two layouts: {value.type} and {wanted}",
                        where=op.where,
                        hint="give products of different operand types accumulators of their own",
                    )
                continue
            self._before[value] = value.type
            set_type(value, wanted)
            work.extend(carried_to(value))
            for use in value.uses:
                custom = self._by_part.get(use.operation)
                if custom is not None and self._continues(custom, use.index):
                    work.extend(custom.results)

    @staticmethod
    def _continues(custom: CustomOp, index: int) -> bool:
        """Whether an operation hands on the accumulator that it is given."""
        return custom.name == "tlx.async_dot_wait" or (
            custom.name == "tlx.async_dot" and index == 2
        )

    def is_product(self, value: SSAValue) -> bool:
        """Whether a value lives in the matrix unit's layout."""
        return value in self._before

    def _mark_in_flight(self) -> None:
        work = [
            op.results[0]
            for op in self.lowering.ops
            if op.name == "tlx.async_dot" or self._waits_in_vain(op)
        ]
        while work:
            value = work.pop()
            if value not in self._in_flight:
                self._in_flight.add(value)
                work.extend(carried_to(value))

    def _refuse_reads(self) -> None:
        """Refuse what reads a product that is in flight."""
        for value in self._in_flight:
            for use in value.uses:
                op = use.operation
                custom = self._by_part.get(op)
                if custom is not None and self._continues(custom, use.index):
                    continue
                if custom is None and _joins(op, use.index):
                    continue
                raise AccumulatorInFlight(
                    "a result of tlx.async_dot is read before it was waited for",
                    where=source_line(op.location),
                    hint="put acc = tlx.async_dot_wait(0, acc) before it, and use what the wait "
                    "returns: each product goes through a wait of its own",
                )

    def _waits_in_vain(self, op: CustomOp) -> bool:
        """Whether a product is one of those that a wait for it leaves in flight."""
        if op.name != "tlx.async_dot_wait" or not op.attributes["pendings"]:
            return False
        products = [p for p in self.lowering.ops if p.name == "tlx.async_dot"]
        product = next((p for p in products if p.results[0] is op.operands[0]), None)
        if product is None or product.op.parent is not op.op.parent:
            return False
        since = self.lowering.ops[self.lowering.ops.index(product) : self.lowering.ops.index(op)]
        started = [p for p in since if p.name == "tlx.async_dot"]
        same_block = all(p.op.parent is op.op.parent for p in started)
        return same_block and len(started) <= op.attributes["pendings"]

    def replaced(self, old: SSAValue, new: SSAValue) -> None:
        """See ``remora.dsl.lowering.Analysis``."""
        if old in self._allocation:
            self._allocation[new] = self._allocation.pop(old)
        if old in self._before:
            self._before[new] = self._before.pop(old)

    def finish(self) -> None:
        """Convert layouts where products meet the rest of the program; let clusters meet."""
        from remora.tlx.lower.clusters import finish

        finish(self.lowering)
        for value, before in self._before.items():
            self._convert_sources(value)
            self._convert_uses(value, before)

    def _convert_uses(self, value: SSAValue, before: Attribute) -> None:
        for use in list(value.uses):
            op = use.operation
            lowered = op_name(op).startswith("ttng.") or op in self._converted
            if lowered or _joins(op, use.index):
                continue
            convert = Builder.before(op).op("ttg.convert_layout", [value], [before])
            self._converted.add(convert)
            op.operands[use.index] = convert.results[0]

    def _convert_sources(self, value: SSAValue) -> None:
        for op, index in _joined_into(value):
            source = op.operands[index]
            if source.type == value.type:
                continue
            convert = Builder.before(op).op("ttg.convert_layout", [source], [value.type])
            self._converted.add(convert)
            op.operands[index] = convert.results[0]

    # --- lives of buffers ---------------------------------------------------------------

    def _extend_lives(self) -> None:
        from remora.tlx.lower.cuda import wait_for_all_copies

        Lifetimes(
            self.lowering.ops, lambda builder: wait_for_all_copies(builder, self.has_products)
        ).extend(
            Buffer(
                allocation,
                [use.op for use in uses],
                [use.op for use in uses if use.op.name == "tlx.async_load"],
                [use.op for use in uses if use.op.name == "tlx.async_dot"],
            )
            for allocation, uses in self._uses.items()
        )

    # --- loops --------------------------------------------------------------------------

    def _stop_pipelining(self) -> None:
        """Mark loops that the author pipelines by hand.

        Stock software pipelining would move TLX's copies, products and waits,
        and groups of its own would make the author's counts wrong: it has to
        stay away from those, whatever the loop says.
        """
        for op in self.lowering.ops:
            parent = op.op.parent_op()
            counts = op.name in _ASYNCHRONOUS and self.lowering.target.backend == "cuda"
            while parent is not None:
                said = "tt.num_stages" in parent.attributes
                if op_name(parent) == "scf.for" and (counts or not said):
                    parent.attributes["tt.num_stages"] = i32(0)
                parent = parent.parent_op()


def _joins(op: Operation, index: int) -> bool:
    """Whether an operand goes on as it is: into a loop, a branch, a select of whole values."""
    return op_name(op) in _CONTROL_FLOW or (selects_whole(op) and index >= 1)


def _joined_into(value: SSAValue) -> Iterator[tuple[Operation, int]]:
    """The operands, of loops and terminators, that become ``value``."""
    owner = value.owner
    if isinstance(value, BlockArgument):
        parent = value.block.parent_op()
        assert parent is not None
        if op_name(parent) == "tt.func":
            yield from branches_to(value)
        elif op_name(parent) == "scf.for":
            yield parent, value.index + 2
            yield from _terminator(parent, 0, value.index - 1)
        elif op_name(parent) == "scf.while":
            if parent.regions[0].blocks[0] is value.block:
                yield parent, value.index
                yield from _terminator(parent, 1, value.index)
            else:
                yield from _terminator(parent, 0, value.index + 1)
        return
    assert isinstance(owner, Operation)
    index = list(owner.results).index(value)  # type: ignore[arg-type]
    name = op_name(owner)
    if name == "scf.for":
        yield from _terminator(owner, 0, index)
    elif name == "scf.while":
        yield from _terminator(owner, 0, index + 1)
    elif name == "scf.if":
        yield from _terminator(owner, 0, index)
        yield from _terminator(owner, 1, index)
    elif selects_whole(owner):
        yield owner, 1
        yield owner, 2


def _terminator(op: Operation, region: int, index: int) -> Iterator[tuple[Operation, int]]:
    last = op.regions[region].blocks[0].last_op
    if last is not None:
        yield last, index
