"""What TLX's lowerings need to know of a whole module.

Which layout each allocation gets, from its uses; which values hold products
(they live in the matrix unit's layout); which of those are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from remora.dsl.lowering import (
    CustomOp,
    Lowering,
    analysis,
    branches_to,
    carried_by,
    carried_to,
    reached,
    selects_whole,
)
from remora.errors import AccumulatorInFlight, ConflictingLayouts
from remora.ir.alignment import Alignment
from remora.ir.build import Builder, i32, op_name, set_type
from remora.ir.locations import source_line
from remora.tlx.lower.boxes import Box, encode_descriptors
from remora.tlx.lower.in_flight import chained
from remora.tlx.lower.layouts import (
    Layout,
    MemDesc,
    NvmmaShared,
    SharedLayout,
    SwizzledShared,
    can_read,
    mfma_vector,
    order_of,
    shared_layout,
    wgmma_accumulator,
    with_encoding,
)
from remora.tlx.lower.layouts import element_type as mlir_element
from remora.tlx.lower.lifetimes import Buffer, Lifetimes, comes_after, span_of
from remora.tlx.lower.padding import padded
from remora.tlx.lower.sharing import SharedStorage, in_tensor_memory, storages
from remora.tlx.lower.stages import check_stages
from remora.tlx.lower.tensor_layouts import (
    TensorMatrix,
    tensor_default,
    tensor_layout,
)
from remora.tlx.lower.views import SLICES, VIEWS, cut_tile, keeps_elements
from remora.tlx.lower.waits import mark
from remora.tlx.storage import Placement

_CONTROL_FLOW = ("scf.for", "scf.while", "scf.condition", "scf.yield", "cf.br", "cf.cond_br")

_ASYNCHRONOUS = (
    "tlx.async_load",
    "tlx.buffer_load_to_local",
    "tlx.async_load_commit_group",
    "tlx.async_load_wait_group",
    "tlx.async_dot",
    "tlx.async_dot_wait",
    "tlx.tensor_dot",
    "tlx.tensor_dot_scaled",
    "tlx.tcgen05_commit",
    "tlx.tmem_copy",
    "tlx.barrier_expect_bytes",
    "tlx.barrier_wait",
    "tlx.barrier_arrive",
    "tlx.named_barrier_wait",
    "tlx.named_barrier_arrive",
    "tlx.async_descriptor_load",
    "tlx.async_descriptor_store",
    "tlx.async_descriptor_store_wait",
    "tlx.warp_pipeline_stage",
)


#: Copies whose groups those of stock pipelining would join; stages that it would move.
_BY_HAND = (
    "tlx.async_load",
    "tlx.buffer_load_to_local",
    "tlx.async_load_commit_group",
    "tlx.async_load_wait_group",
    "tlx.warp_pipeline_stage",
)

#: Copies into a buffer, in groups that ``async_load_wait_group`` waits for.
COPIES = ("tlx.async_load", "tlx.buffer_load_to_local")

#: Asynchronous products; but for the first their sums are in tensor memory.
_PRODUCTS = ("tlx.async_dot", "tlx.tensor_dot", "tlx.tensor_dot_scaled")

#: Copies out of a buffer, in groups that ``async_descriptor_store_wait`` waits for.
_STORES = ("tlx.async_descriptor_store", "tlx.async_store")

#: Bytes of gfx950's shared memory.
LDS_BYTES = 160 << 10

#: What stock Triton pipelines, in a loop whose own body has it.
_PIPELINED = (
    "tt.load",
    "tt.descriptor_load",
    "tt.descriptor_gather",
    "tt.dot",
    "tt.dot_scaled",
    "tlx.async_dot",
    "tlx.async_dot_wait",
    "tlx.tensor_dot",
    "tlx.tensor_dot_scaled",
)


def loaded_by(value: SSAValue) -> Operation | None:
    """A ``tt.load`` behind a value, through layout conversions and control flow."""

    def behind(current: SSAValue) -> Iterator[SSAValue]:
        yield from came_from(current)
        owner = current.owner
        if isinstance(owner, Operation) and op_name(owner) == "ttg.convert_layout":
            yield owner.operands[0]

    for current in reached(value, behind):
        owner = current.owner
        if isinstance(owner, Operation) and op_name(owner) == "tt.load":
            return owner
    return None


class Use(NamedTuple):
    """One use of an allocation, directly or through views.

    op: the operation. operand: its index among the operands. views: those between the allocation
    and the operand, the allocation's first.
    """

    op: CustomOp
    operand: int
    views: tuple[CustomOp, ...]


#: Operations that allocate shared memory: ``shape``, ``dtype`` and ``num`` are attributes.
ALLOCATIONS = {"tlx.local_alloc", "tlx.alloc_barriers", "tlx.alloc_warp_barrier"}


#: Operations that write the buffer that their second operand is: in the order of the tensor that
#: the first one is; from a descriptor, row-major.
WRITES = {
    "tlx.async_load",
    "tlx.buffer_load_to_local",
    "tlx.local_store",
    "tlx.async_descriptor_load",
}

#: What a use wants of the layout of what its operand is: ``wish(analysis, use, shape, bits,
#: order)``; None where any will do. The shape is the one that the layout is laid over: of a
#: slice, that of the buffer it is a part of. The order is the written one.
WISHES: dict[str, Callable[..., Layout | None]] = {}

#: Those that can do with any layout: what they want is only the fastest.
PREFERENCES: set[str] = set()


def wants(name: str, *, only_prefers: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Register the wish of an operation, by its name."""

    def register(wish: Callable[..., Any]) -> Callable[..., Any]:
        WISHES[name] = wish
        if only_prefers:
            PREFERENCES.add(name)
        return wish

    return register


class Wish(NamedTuple):
    """The layout that a use wants, mapped back through the views.

    place: the view that is to have it, where what is behind it cannot; None: the allocation.
    """

    layout: Layout
    use: Use
    place: CustomOp | None

    def __str__(self) -> str:
        return f"{self.use.op.where}{through(self.use.views)}"

    @property
    def is_strict(self) -> bool:
        """Whether no other layout will do."""
        return self.use.op.name not in PREFERENCES

    @property
    def gives_way(self) -> bool:
        """Whether it is one of a copy with a descriptor: that gets the swizzle of the buffer."""
        return self.use.op.name in ("tlx.async_descriptor_load", "tlx.async_descriptor_store")

    def is_swizzle_of(self, other: Wish) -> bool:
        """Whether the layouts differ by nothing but the swizzle, and what it pads."""
        mine, theirs = self.layout, other.layout
        if not isinstance(mine, NvmmaShared) or not isinstance(theirs, NvmmaShared):
            return False
        return replace(mine, swizzling=theirs.swizzling, padded=theirs.padded) == theirs


_REUSE = (
    "where the two never hold the same data, allocate the second with "
    "tlx.local_alloc(..., reuse=...): it has a layout of its own"
)


def _check_named(where: str, layout: Layout, wishes: Sequence[Wish]) -> None:
    """Check that uses can read a buffer with the layout that the author names."""
    for wish in wishes:
        if not wish.is_strict or wish.place or can_read(wish.layout, layout):
            continue
        raise ConflictingLayouts(
            f"the layout that is named, {layout}, is not what a use reads: {wish.layout}",
            where=f"named at {where}; used at {wish}",
            hint="leave layout out: it follows from the uses",
        )


def through(views: Sequence[CustomOp]) -> str:
    """The views of a use in words, without those that only pick a buffer."""
    named = [v for v in views if v.name != "tlx.local_view"]
    words = (f"{v.name.partition('.')[2]} at {v.where}" for v in named)
    return f" (through {', '.join(words)})" if named else ""


@wants("tlx.async_dot")
def _product_operand(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> SharedLayout:
    # K has to be contiguous unless elements are of 16 bits.
    transposed = order == (0, 1) if bits == 16 else use.operand == 1
    return NvmmaShared.of(shape, bits, transposed)


@wants("tlx.local_load", only_prefers=True)
def _loaded(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> SharedLayout | None:
    operand = analysis.multiplied_as(use.op.results[0]) if len(shape) == 2 else None
    if operand is None:
        return None
    if analysis.may_be_padded(use):
        inner_is_k = order[0] == (1 if operand == 0 else 0)
        layout = padded(shape, bits, order, inner_is_k)
        if layout is not None:
            return layout
    together = use.op.attributes.get("kpack", 1)
    return analysis.operand_layout(shape, bits, operand, order, together)


@analysis("tlx")
class TlxAnalysis:
    """See the module. Made before the first operation is lowered."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.alignment = Alignment()
        #: Buffers and barriers, lowered, that other CTAs reach.
        self.reached: list[SSAValue] = []
        #: Products that are waited for at once.
        self.chained = chained(lowering)
        self._by_part = {p: op for op in lowering.ops for p in op.parts}
        if any(Box.of(v.type) for op in lowering.ops for v in (*op.operands, *op.results)):
            encode_descriptors(lowering.module)
        self._allocation: dict[SSAValue, list[CustomOp]] = {}
        self._views: dict[SSAValue, tuple[CustomOp, ...]] = {}
        self.layouts: dict[CustomOp, Layout] = {}
        # Views with a layout of their own, and who wants it.
        self._laid_anew: dict[CustomOp, Wish] = {}
        self._uses: dict[CustomOp, list[Use]] = {}
        #: Allocations, with views, that an operand stands for.
        self._sources: dict[tuple[CustomOp, int], list[tuple[CustomOp, tuple[CustomOp, ...]]]] = {}
        self._storages = storages(lowering.ops)
        for op in lowering.ops:
            if op.name in ALLOCATIONS:
                self._uses[op] = list(self._follow(op))
        for allocation in self._uses:
            self._choose(allocation)
        for allocation, storage in self._storages.items():
            if allocation in self._uses:
                layout = self._root(allocation).layout
                assert layout is not None
                storage.adopt(allocation, layout)
        for storage in set(self._storages.values()):
            if any(map(in_tensor_memory, storage.members)):
                storage.check()  # again: sums of 16 bits take the columns of 32
        # Products: the type before, so that it can be converted back at a use.
        self._before: dict[SSAValue, Attribute] = {}
        #: What a wait has to hand on besides its operand: values whose flight it ends.
        self.handed_on: dict[CustomOp, dict[SSAValue, None]] = {}
        self._converted: set[Operation] = set()  # the conversions that ``finish`` makes
        for op in lowering.ops:
            if op.name == "tlx.async_dot":
                self._spread(op)
        self._follow_in_flight()
        check_stages(lowering)
        self._stop_pipelining()
        self._extend_lives()

    @property
    def has_products(self) -> bool:
        """Whether the module holds an asynchronous product."""
        return any(op.name in _PRODUCTS for op in self.lowering.ops)

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
            self._views.setdefault(value, views)
            work.extend((v, views) for v in carried_to(value))
            for use in value.uses:
                custom = self._by_part.get(use.operation)
                if custom is None:
                    continue
                self._sources.setdefault((custom, use.index), []).append((allocation, views))
                if custom.name in VIEWS and use.index == 0:
                    work.extend((r, (*views, custom)) for r in custom.results)
                else:
                    yield Use(custom, use.index, views)

    def others(self, use: Use) -> list[Use]:
        """All uses of the allocation that this one is of, itself among them."""
        return next(uses for uses in self._uses.values() if use in uses)

    def memdesc_of(self, allocation: CustomOp) -> Attribute:
        """The type of an allocation."""
        return self._root(allocation).type

    def one_of(self, allocation: CustomOp) -> Attribute:
        """The type of one buffer of an allocation."""
        return replace(self._root(allocation), num=0).type

    @cached_property
    def meetings(self) -> dict[Operation, int]:
        """See ``remora.tlx.lower.clusters.meetings``; asked first while none is lowered."""
        from remora.tlx.lower.clusters import meetings

        return meetings(self.lowering)

    def view_type(self, value: SSAValue) -> Attribute:
        """The type of a view of what ``value`` stands for."""
        return self.described(value).type

    def layout_of(self, value: SSAValue) -> SharedLayout:
        """The layout of the buffer that a value stands for."""
        return self.described(value).shared

    def described(self, value: SSAValue) -> MemDesc:
        """What the type of the buffer is that a value stands for, or will be."""
        if value not in self._views:  # a select that became a branch
            known = (self.described(v) for v in self._views)
            return next(memdesc for memdesc in known if memdesc.type == value.type)
        return self._seen_through(self._allocation[value][0], self._views[value])[-1]

    def source_of(self, view: CustomOp) -> MemDesc:
        """What the buffer is that a view is taken of."""
        allocation, views = self._sources[view, 0][0]
        return self._seen_through(allocation, views)[-1]

    def storage_of(self, op: CustomOp) -> SharedStorage | None:
        """The memory that an allocation shares with others, or that a ``storage_alias_spec`` is."""
        return self._storages.get(op)

    def placement_of(self, view: CustomOp) -> Placement | None:
        """Where the allocation lies of which a view is taken; None: in memory of its own."""
        if not self.source_of(view).num:
            return None
        places = {
            storage.placement(allocation) if (storage := self.storage_of(allocation)) else None
            for allocation, _ in self._sources[view, 0]
        }
        if len(places) > 1:
            raise ConflictingLayouts(
                "a loop or a branch gives one variable allocations that lie differently in the "
                "memory that they share",
                where=view.where,
                hint="take a buffer of each, with tlx.local_view, before they meet",
            )
        return places.pop()

    def _root(self, allocation: CustomOp) -> MemDesc:
        a = allocation.attributes
        layout, storage = self.layouts.get(allocation), self.storage_of(allocation)
        if layout is None and in_tensor_memory(allocation):
            layout = tensor_default(a["shape"], a["dtype"], a.get("layout"))
        num = storage.count(allocation) if storage else a["num"]
        return MemDesc(a["shape"], mlir_element(a["dtype"]), layout, num)

    def _seen_through(
        self,
        allocation: CustomOp,
        views: Sequence[CustomOp],
        layout: Layout | None = None,
    ) -> list[MemDesc]:
        """The allocation (with ``layout``, or its own), and what each view makes of it."""
        root = self._root(allocation)
        seen = [replace(root, layout=layout) if layout else root]
        for op in views:
            memdesc = VIEWS[op.name].forward(op, seen[-1])
            if op in self._laid_anew:
                memdesc = replace(memdesc, layout=self._laid_anew[op].layout)
            seen.append(memdesc)
        return seen

    def _choose_in_tensor_memory(self, allocation: CustomOp) -> None:
        """The layouts that the uses want of an allocation, and of what reads it as another type."""
        wishes: list[Wish] = []
        for use in self._uses[allocation]:
            readings = [i for i, v in enumerate(use.views) if v.name == "tlx.local_reinterpret"]
            count = readings[-1] + 1 if readings else 0
            read = self._seen_through(allocation, use.views[:count])[-1]
            wish = WISHES.get(use.op.name)
            layout = wish and wish(self, use, read.whole, read.bits, TensorMatrix.order)
            if layout is not None:
                wishes.append(Wish(layout, use, use.views[count - 1] if count else None))
        for place in dict.fromkeys(w.place for w in wishes):
            said = (place or allocation).attributes.get("layout")
            own = [w for w in wishes if w.place is place]
            best = self._agreed(allocation, own)
            if said:
                own = [w._replace(place=None) for w in own]
                _check_named((place or allocation).where, tensor_layout(said), own)
            elif place is None:
                self.layouts[allocation] = best.layout
            else:
                self._laid_anew[place] = best

    def _choose(self, allocation: CustomOp) -> None:
        """The layout that the uses want; also lays views anew, where only they are used."""
        if in_tensor_memory(allocation):
            self._choose_in_tensor_memory(allocation)
            return
        order = self._written_order(allocation)
        named = allocation.attributes.get("layout")
        wishes = [w for use in self._uses[allocation] if (w := self._wish(allocation, use, order))]
        layout: Layout = shared_layout(named) if named else SwizzledShared.plain(order)
        for place in dict.fromkeys(w.place for w in wishes):
            best = self._agreed(allocation, [w for w in wishes if w.place is place])
            if place is None and named:
                _check_named(allocation.where, layout, wishes)
            elif place is None:
                layout = best.layout
            elif best.is_strict:
                self._lay_anew(allocation, place, best)
        self.layouts[allocation] = layout
        if not named:
            self._fit_slices(allocation)
        for use in self._uses[allocation]:
            if any(m.layout is None for m in self._seen_through(allocation, use.views)):
                raise ConflictingLayouts(
                    f"the bytes of a buffer with {layout} are in no order in which they can be "
                    "read with another shape",
                    where=f"allocated at {allocation.where}; used at {Wish(layout, use, None)}",
                    hint=_REUSE,
                )

    def _fit_slices(self, allocation: CustomOp) -> None:
        """Narrow a swizzle that slices would cut."""
        layout = self.layouts[allocation]
        while (
            isinstance(layout, NvmmaShared)
            and not layout.padded
            and layout.swizzling > 32
            and self._cuts(allocation)
        ):
            layout = replace(layout, swizzling=layout.swizzling // 2)
            self.layouts[allocation] = layout

    def _cuts(self, allocation: CustomOp) -> bool:
        """Whether a slice of an allocation cuts its swizzle."""
        for use in self._uses[allocation]:
            seen = self._seen_through(allocation, use.views)
            for view, memdesc in zip(use.views, seen[1:], strict=True):
                if view.name in SLICES and cut_tile(view, memdesc):
                    return True
        return False

    @staticmethod
    def _agreed(allocation: CustomOp, wishes: Sequence[Wish]) -> Wish:
        """The wish that is granted; wishes that are only preferences give way."""
        strict = [w for w in wishes if w.is_strict]
        best = next((w for w in strict if not w.gives_way), (strict or wishes)[0])
        for other in wishes:
            if other.gives_way and best.is_swizzle_of(other):
                continue
            if other.layout != best.layout and (other.is_strict or not best.is_strict):
                raise ConflictingLayouts(
                    "two uses of one buffer want layouts that disagree: "
                    f"{best.layout} and {other.layout}",
                    where=f"allocated at {allocation.where}; used at {best} and at {other}",
                    hint="give each use a buffer of its own",
                )
        return best

    def _lay_anew(self, allocation: CustomOp, view: CustomOp, wish: Wish) -> None:
        """Give a view a layout that its source cannot have: if all that is used is the view."""
        for use in self._uses[allocation]:
            if view not in use.views:
                raise ConflictingLayouts(
                    f"a use wants {wish.layout}, and another one the same bytes with another "
                    "shape or element type",
                    where=f"allocated at {allocation.where}; used at {wish} and at "
                    f"{Wish(wish.layout, use, None)}",
                    hint=_REUSE,
                )
        self._laid_anew[view] = wish

    def _written_order(self, allocation: CustomOp) -> tuple[int, ...]:
        """The order in which global memory fills the buffer; row-major where nothing says."""
        rank = len(allocation.attributes["shape"])
        default = tuple(range(rank - 1, -1, -1))
        orders = set()
        for use in self._uses[allocation]:
            seen = self._seen_through(allocation, use.views)
            if not all(map(keeps_elements, use.views, seen)):
                return default
            if use.operand == 1 and use.op.name in WRITES:
                load = loaded_by(use.op.operands[0])
                order = order_of(load.results[0].type) if load is not None else None
                if use.op.name == "tlx.async_descriptor_load":
                    order = tuple(reversed(range(len(seen[-1].shape))))
                orders.add(self._order_behind(use, seen, order) or default)
        return orders.pop() if len(orders) == 1 else default

    def _order_behind(
        self, use: Use, seen: Sequence[MemDesc], order: tuple[int, ...] | None
    ) -> tuple[int, ...] | None:
        """The order of an allocation, from that of what a use's operand is."""
        layout: SharedLayout | None = SwizzledShared.plain(order) if order else None
        for view, source in reversed(list(zip(use.views, seen, strict=False))):
            if layout is not None:
                layout = VIEWS[view.name].backward(view, source, layout)
        return layout.order if layout else None

    def _wish(self, allocation: CustomOp, use: Use, order: tuple[int, ...]) -> Wish | None:
        """The layout that a use wants of the allocation, or None where any will do."""
        wish = WISHES.get(use.op.name)
        if wish is None:
            return None
        seen = self._seen_through(allocation, use.views, SwizzledShared.plain(order))
        operand = seen[-1]
        written = operand.layout.order if operand.layout else None
        if written is None:
            written = tuple(range(len(operand.shape) - 1, -1, -1))
        layout = wish(self, use, operand.whole, operand.bits, written)
        if layout is None:
            return None
        for view, source in reversed(list(zip(use.views, seen, strict=False))):
            if view.attributes.get("layout"):
                named = shared_layout(view.attributes["layout"])
                _check_named(view.where, named, [Wish(layout, use, None)])
                return None
            behind = VIEWS[view.name].backward(view, source, layout)
            if behind is None:
                return Wish(layout, use, view)
            layout = behind
        return Wish(layout, use, None)

    def may_be_padded(self, use: Use) -> bool:
        """Whether all that touches the buffer of a use can do with padding.

        On gfx950, where only whole loads straight to LDS write it, nothing lies over it, and all
        buffers fit with the widest padding.
        """
        from remora.tlx.lower.hip import direct_bytes

        if self.lowering.target.arch != "gfx950" or self._is_tight:
            return False
        (allocation, *others) = self._allocation[use.op.operands[use.operand]]
        uses = self._uses[allocation]
        bits = mlir_element(allocation.attributes["dtype"]).bitwidth  # type: ignore[attr-defined]
        if others or bits != 16 or self.storage_of(allocation):
            return False
        for each in uses:
            if any(v.name not in ("tlx.local_view", "tlx.local_trans") for v in each.views):
                return False
            if each.op.name == "tlx.local_load":
                continue
            load = loaded_by(each.op.operands[0]) if each.op.name in COPIES else None
            order = order_of(load.results[0].type) if load is not None else None
            if order is None or direct_bytes(each.op, self, order[0]) != 16:
                return False
        return True

    @cached_property
    def _is_tight(self) -> bool:
        """Whether buffers that live together, with the widest padding, exceed shared memory."""
        lives = []
        for allocation, uses in self._uses.items():
            if allocation.name == "tlx.local_alloc":
                size = self._root(allocation).bytes * max(allocation.attributes["num"], 1)
                lives.append((size, *span_of(allocation, [use.op for use in uses])))
        peak = max(
            (sum(size for size, begin, end in lives if begin <= at <= end) for _, at, _ in lives),
            default=0,
        )
        return peak * 17 // 16 > LDS_BYTES

    def operand_layout(
        self,
        shape: tuple[int, ...],
        width: int,
        operand: int,
        order: tuple[int, ...],
        together: int = 1,
    ) -> SharedLayout | None:
        """The layout for a ``tl.dot`` operand that is loaded from the buffer.

        together: operands of that many MFMA that a lane loads at once (the option ``kpack``).
        """
        target = self.lowering.target
        k_contiguous = order[0] == (1 if operand == 0 else 0)
        if target.backend == "cuda":
            # Eight rows of 16 bytes each are one matrix of ldmatrix.
            return SwizzledShared.for_operand(shape, width, max(128 // width, 1), order, 32)
        if not k_contiguous and target.arch != "gfx950":
            return SwizzledShared.plain(order)
        banks = 64 if target.arch == "gfx950" else 32
        vector = mfma_vector(target, width) * together
        return SwizzledShared.for_operand(shape, width, vector, order, banks)

    def multiplied_as(self, value: SSAValue) -> int | None:
        """0 or 1 where the value is that operand of a ``tl.dot``, through conversions."""

        def onward(current: SSAValue) -> Iterator[SSAValue]:
            yield from carried_to(current)
            for use in current.uses:
                if op_name(use.operation) == "ttg.convert_layout":
                    yield from use.operation.results

        for current in reached(value, onward):
            for use in current.uses:
                if op_name(use.operation) == "tt.dot" and use.index < 2:
                    return use.index
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
            element = self.described(op.operands[0]).element
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

    def _follow_in_flight(self) -> None:
        """Refuse what reads a product in flight; find what waits have to hand on.

        A wait that covers a product ends its flight for all that comes after, also where it
        was asked for another one.
        """
        work: list[SSAValue] = [
            op.results[0]
            for op in self.lowering.ops
            if op.name == "tlx.async_dot" or self._waits_in_vain(op)
        ]
        seen: set[SSAValue] = set()
        while work:
            value = work.pop()
            if value in seen:
                continue
            seen.add(value)
            waits = [w for w in self._product_waits if self._covers(w, value)]
            for use in list(value.uses):
                op = use.operation
                wait = next((w for w in waits if comes_after(op, w.op)), None)
                if wait is not None:
                    self.handed_on.setdefault(wait, {}).setdefault(value)
                    continue
                custom = self._by_part.get(op)
                if custom is not None and self._continues(custom, use.index):
                    continue
                if custom is not None or not joins(op, use.index):
                    raise AccumulatorInFlight(
                        "a result of tlx.async_dot is read before it was waited for",
                        where=source_line(op.location),
                        hint="put acc = tlx.async_dot_wait(0, acc) before it, and use what the "
                        "wait returns: each product goes through a wait of its own",
                    )
                work.extend(carried_by(op, use.index))

    @property
    def _product_waits(self) -> list[CustomOp]:
        return [op for op in self.lowering.ops if op.name == "tlx.async_dot_wait"]

    def _waits_in_vain(self, op: CustomOp) -> bool:
        """Whether a product is one of those that a wait for it leaves in flight."""
        if op.name != "tlx.async_dot_wait" or not op.attributes["pendings"]:
            return False
        products = [p for p in self.lowering.ops if p.name == "tlx.async_dot"]
        product = next((p for p in products if p.results[0] is op.operands[0]), None)
        if product is None or product.op.parent is not op.op.parent:
            return False
        since = [p for p in products if comes_after(p.op, product.op)]
        since = [p for p in since if not comes_after(p.op, op.op)]
        same_block = all(p.op.parent is op.op.parent for p in since)
        return same_block and len(since) < op.attributes["pendings"]

    def _covers(self, wait: CustomOp, value: SSAValue) -> bool:
        """Whether a wait surely ends the flight of a value, of its operand or another."""
        owner = value.owner
        since = [
            p
            for p in self.lowering.ops
            if p.name == "tlx.async_dot"
            and comes_after(wait.op, p.op)
            and (_begins(owner, p.op) if isinstance(owner, Block) else comes_after(p.op, owner))
        ]
        known = _begins(owner, wait.op) if isinstance(owner, Block) else comes_after(wait.op, owner)
        return known and len(since) >= wait.attributes["pendings"]

    def replaced(self, old: SSAValue, new: SSAValue) -> None:
        """See ``remora.dsl.lowering.Analysis``."""
        if old in self._allocation:
            self._allocation[new] = self._allocation.pop(old)
            self._views[new] = self._views.pop(old)
        if old in self._before:
            self._before[new] = self._before.pop(old)
        for values in self.handed_on.values():
            if old in values:
                values[new] = values.pop(old)

    def hand_on(self, wait: Operation) -> None:
        """Let all that comes after a wait use what it returns of its further operands."""
        for old, new in zip(wait.operands, wait.results, strict=True):
            self._before[new] = self._before[old]
            for use in list(old.uses):
                if comes_after(use.operation, wait):
                    use.operation.operands[use.index] = new

    def finish(self) -> None:
        """Convert layouts where products meet the rest of the program; let clusters meet."""
        from remora.tlx.lower import clusters, mfma

        clusters.finish(self.lowering)
        mfma.finish(self.lowering)
        for value, before in self._before.items():
            self._convert_sources(value)
            self._convert_uses(value, before)

    def _convert_uses(self, value: SSAValue, before: Attribute) -> None:
        for use in list(value.uses):
            op = use.operation
            lowered = op_name(op).startswith("ttng.") or op in self._converted
            if lowered or joins(op, use.index):
                continue
            convert = Builder.before(op).op("ttg.convert_layout", [value], [before])
            self._converted.add(convert)
            op.operands[use.index] = convert.results[0]

    def _convert_sources(self, value: SSAValue) -> None:
        for op, index in joined_into(value):
            source = op.operands[index]
            if source.type == value.type:
                continue
            convert = Builder.before(op).op("ttg.convert_layout", [source], [value.type])
            self._converted.add(convert)
            op.operands[index] = convert.results[0]

    # --- lives of buffers ---------------------------------------------------------------

    def _extend_lives(self) -> None:
        from remora.tlx.lower import cuda, hip

        lowering, on_hip = self.lowering, self.lowering.target.backend == "hip"

        def drain(builder: Builder) -> None:
            if on_hip:
                mark(builder, 0)
            else:
                cuda.wait_for_all_copies(builder, self.has_products)

        def in_flight(copy: CustomOp) -> bool:
            return copy.name in COPIES and (not on_hip or hip.is_direct(copy, self))

        Lifetimes(lowering.ops, drain).extend(
            Buffer(
                allocation,
                [use.op for use in uses],
                [use.op for use in uses if in_flight(use.op)],
                [use.op for use in uses if use.op.name == "tlx.async_dot"],
                [use.op for use in uses if _may_be_left(use.op)],
                [use.op for use in uses if use.op.name in _STORES],
            )
            for allocation, uses in self._uses.items()
        )

    # --- loops --------------------------------------------------------------------------

    def _stop_pipelining(self) -> None:
        """Mark loops that the author pipelines by hand.

        Stock software pipelining would move TLX's copies, products and waits,
        and groups of its own would make the author's counts wrong: it has to
        stay away from those, whatever the loop says. Loops without anything to
        pipeline but stores of descriptors are left to it: a mark would have
        each of those stores wait for the one before.
        """
        pipelined: dict[Operation, bool] = {}  # each loop is looked through once
        for op in self.lowering.ops:
            parent = op.op.parent_op()
            counts = op.name in _ASYNCHRONOUS
            while parent is not None:
                if op_name(parent) == "scf.for":
                    if parent not in pipelined:
                        pipelined[parent] = self._is_pipelined(parent)
                    said = "tt.num_stages" in parent.attributes
                    stays_away = op.name in _BY_HAND or pipelined[parent]
                    if (counts or not said) and stays_away:
                        parent.attributes["tt.num_stages"] = i32(0)
                parent = parent.parent_op()

    def _is_pipelined(self, loop: Operation) -> bool:
        """Whether stock Triton would pipeline a loop: its own body, not loops in it."""
        for op in loop.walk():
            custom = self._by_part.get(op)
            if op_name(op) in _PIPELINED or (custom and custom.name in _PIPELINED):
                holder = op.parent_op()
                while holder is not None and op_name(holder) != "scf.for":
                    holder = holder.parent_op()
                if holder is loop:
                    return True
        return False


def _may_be_left(op: CustomOp) -> bool:
    """Whether what completes on a barrier may be something that nobody waits for.

    A predicate is there to leave such copies out; tasks wait for what others do.
    """
    always = op.name in (*_PRODUCTS[1:], "tlx.bulk_load", "tlx.tmem_copy") or (
        op.name == "tlx.async_descriptor_load" and len(op.operands) == 3 + op.attributes["rank"]
    )
    holder = op.op.parent_op()
    while always and holder is not None:
        always = op_name(holder) != "ttg.warp_specialize"
        holder = holder.parent_op()
    return always


def _begins(block: Block, op: Operation) -> bool:
    """Whether a block holds an operation, at any depth."""
    holder: Operation | None = op
    while holder is not None and holder.parent is not block:
        holder = holder.parent_op()
    return holder is not None


def joins(op: Operation, index: int) -> bool:
    """Whether an operand goes on as it is: into a loop, a branch, a select of whole values."""
    return op_name(op) in _CONTROL_FLOW or (selects_whole(op) and index >= 1)


def joined_into(value: SSAValue) -> Iterator[tuple[Operation, int]]:
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


def came_from(value: SSAValue) -> Iterator[SSAValue]:
    """What becomes ``value`` by control flow alone, one step back."""
    return (op.operands[index] for op, index in joined_into(value))


def _terminator(op: Operation, region: int, index: int) -> Iterator[tuple[Operation, int]]:
    last = op.regions[region].blocks[0].last_op
    if last is not None:
        yield last, index
