"""Allocations that share memory: which, where in it, and the memory itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, reached
from remora.errors import UnsupportedByTarget
from remora.ir.build import Builder, i32
from remora.tlx.lower.layouts import (
    Layout,
    LinearShared,
    MemDesc,
    SwizzledShared,
    element_type,
)
from remora.tlx.lower.lifetimes import keep_to_the_end
from remora.tlx.lower.tensor_layouts import TensorMatrix, TensorScales, tensor_default
from remora.tlx.storage import (
    Placement,
    Plan,
    Tree,
    check_group,
    check_size,
    joined,
    plan,
    renamed,
)
from remora.tlx.types import LANES


@dataclass(eq=False)
class SharedStorage:
    """Memory that several allocations share.

    root: the ``storage_alias_spec``, or the first of the allocations. members: they, in program
    order. where: who says how they lie. alignment: in bytes, of the memory.
    """

    root: CustomOp
    members: list[CustomOp]
    tree: Tree | None = None
    where: str = ""
    alignment: int = 16
    layouts: dict[CustomOp, Layout] = field(default_factory=dict)
    _blocks: list[SSAValue] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        """Who lies where."""
        return plan([(self._bytes(m), m.attributes["num"]) for m in self.members], self.tree)

    def placement(self, member: CustomOp) -> Placement:
        """Where the buffers of an allocation lie."""
        return self.plan.placements[self.members.index(member)]

    def count(self, member: CustomOp) -> int:
        """How many buffers of an allocation's kind its block holds."""
        return self.plan.blocks[self.placement(member).block] // self._bytes(member)

    def check(self) -> None:
        """Check that the memory is as large as the author said."""
        if self.root.name == "tlx.storage_alias_spec":
            limit = self.root.attributes["bytes"]
        else:
            limit = self._bytes(self.root) * self.root.attributes["num"]
        sizes = [
            (f"{m.attributes['num']}x{m.attributes['shape']} {m.attributes['dtype']} at {m.where}",
             self._bytes(m) * m.attributes["num"])
            for m in self.members
        ]  # fmt: skip
        check_size(limit, self.plan.needed, sizes, self.where or self.members[-1].where)

    def adopt(self, member: CustomOp, layout: Layout) -> None:
        """Make the memory fit for the layout of an allocation."""
        self.layouts[member] = layout
        if isinstance(layout, TensorMatrix | TensorScales):
            return
        if isinstance(layout, LinearShared) and layout.paddings:
            raise UnsupportedByTarget(
                "tlx.local_alloc: an allocation with a padded layout shares no memory",
                where=member.where,
                hint="leave layout or reuse out",
            )
        self.alignment = max(self.alignment, layout.alignment)

    def allocate(self, at: CustomOp, builder: Builder) -> None:
        """Allocate the memory, at an operation: one block for all that overlaps."""
        if not self.members:
            return
        if in_tensor_memory(self.root):
            self._allocate_columns(at, builder)
            return
        unit = min(map(self._bytes, self.members))
        for size in self.plan.blocks:
            kind = MemDesc((unit,), element_type("int8"), SwizzledShared.plain((0,)), size // unit)
            self._blocks.append(
                builder.value("ttg.local_alloc", [], kind.type, {"alignment": i32(self.alignment)})
            )

    def _allocate_columns(self, at: CustomOp, builder: Builder) -> None:
        """Blocks of tensor memory, each of the kind of its largest member with the most rows."""
        for block, size in enumerate(self.plan.blocks):
            own = [m for m in self.members if self.placement(m).block == block]
            largest = max(own, key=lambda m: (min(m.attributes["shape"][0], LANES), self._bytes(m)))
            a, one = largest.attributes, self._bytes(largest)
            layout = self.layouts[largest]
            kind = MemDesc(a["shape"], element_type(a["dtype"]), layout, size // one)
            self._blocks.append(builder.value("ttng.tmem_alloc", [], kind.type))
            keep_to_the_end(at.op, self._blocks[-1])

    def block_of(self, member: CustomOp) -> SSAValue:
        """The memory in which an allocation lies."""
        return self._blocks[self.placement(member).block]

    def _bytes(self, op: CustomOp) -> int:
        a = op.attributes
        layout = self.layouts.get(op)
        if layout is None and in_tensor_memory(op):
            layout = tensor_default(a["shape"], a["dtype"], a.get("layout"))
        return MemDesc(a["shape"], element_type(a["dtype"]), layout).bytes


def in_tensor_memory(op: CustomOp) -> bool:
    """Whether an allocation, or a ``storage_alias_spec``, is one of tensor memory."""
    return bool(op.attributes.get("storage") == "tmem")


def allocator(op: CustomOp) -> str:
    """The operation that allocates what an allocation has for itself."""
    return "ttng.tmem_alloc" if in_tensor_memory(op) else "ttg.local_alloc"


def storages(ops: Sequence[CustomOp]) -> dict[CustomOp, SharedStorage]:
    """The storage of each allocation that shares its memory, and of each ``storage_alias_spec``."""
    origins: dict[SSAValue, CustomOp] = {}
    found: dict[CustomOp, SharedStorage] = {}
    for op in ops:
        if op.name == "tlx.storage_alias_spec":
            found[op] = SharedStorage(op, [])
        if op.name in ("tlx.storage_alias_spec", "tlx.local_alloc"):
            for value in reached(op.results[0]):
                origins.setdefault(value, op)
        if op.name == "tlx.local_alloc" and op.operands:
            other = origins[op.operands[0]]
            storage = found.setdefault(other, SharedStorage(other, [other]))
            if other in storage.members and storage.tree is not None:
                index = storage.members.index(other)
                storage.tree = joined(storage.tree, index, len(storage.members))
            storage.members.append(op)
            found[op] = storage
        if op.name == "tlx.set_buffer_overlap":
            storage = found[origins[op.operands[0]]]
            group = [origins[v] for v in op.operands[1:]]
            check_group(storage.tree, storage.members, group, op.where)
            names = [storage.members.index(m) for m in group]
            storage.tree, storage.where = renamed(op.attributes["tree"], names), op.where
    for storage in set(found.values()):
        if storage.members:
            storage.check()
    return found
