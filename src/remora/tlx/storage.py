"""Several allocations over the same bytes: who lies where."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, Handle, HandleType, op
from remora.dsl.reference import Machine
from remora.errors import StorageTooSmall, UnsupportedByTarget, WrongShape, WrongType
from remora.tlx.targets import require_tensor_memory
from remora.tlx.types import LANES, buffered_tensor, storage_kind

LOWERED_IN = "remora.tlx.lower"

#: A group as constants: the kind, the group size, and its elements: groups, or indices of buffers.
Tree = tuple[str, int, tuple[Any, ...]]


class reuse_group_type(enum.Enum):
    """How the elements of a group lie: over the same bytes, or one after the other."""

    shared = "shared"
    distinct = "distinct"


class reuse_group(tl.base_value):
    """Buffers that lie over each other (shared), or beside each other (distinct), index by index.

    Args:
        args: allocations, and groups.
        group_type: see ``reuse_group_type``.
        group_size: so many consecutive buffers of each element count as one.
    """

    def __init__(
        self,
        *args: Any,
        group_type: Any = reuse_group_type.shared,
        group_size: Any = 1,
        _semantic: Any = None,
        _generator: Any = None,
    ) -> None:
        self.args = tuple(map(tl._unwrap_if_constexpr, args))
        self.group_type = tl._unwrap_if_constexpr(group_type)
        self.group_size = tl._unwrap_if_constexpr(group_size)
        if not self.args:
            raise WrongType("a reuse_group has no element", hint="give it allocations or groups")
        for arg in self.args:
            if not isinstance(arg, (reuse_group, buffered_tensor)):
                raise WrongType(
                    f"an element of a reuse_group is no allocation and no group: {arg!r}",
                    hint="give what tlx.local_alloc(..., reuse=spec) returned",
                )
        if not isinstance(self.group_type, reuse_group_type):
            raise WrongType(
                f"group_type has to be a tlx.reuse_group_type, it is {self.group_type!r}",
                hint="tlx.reuse_group_type.shared or .distinct",
            )
        size = self.group_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise WrongShape(f"group_size has to be at least 1, it is {size!r}", hint="1 is one")
        types = tuple(arg.type for arg in self.args)
        self.type = reuse_group_ir_type(types, self.group_type, size)

    def _flatten_ir(self, handles: list[Any]) -> None:
        for arg in self.args:
            arg._flatten_ir(handles)

    def _set_name(self, builder: Any, name: str) -> None:
        """Nothing bears the name: its elements have their own."""

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        return f"reuse_group({inner}, {self.group_type.value}, group_size={self.group_size})"

    def tree(self, buffers: list[Any]) -> Tree:
        """The group as constants; collects its buffers."""
        elements: list[Any] = []
        for arg in self.args:
            if isinstance(arg, reuse_group):
                elements.append(arg.tree(buffers))
            else:
                elements.append(len(buffers))
                buffers.append(arg)
        return self.group_type.value, self.group_size, tuple(elements)


@dataclass(frozen=True)
class reuse_group_ir_type(tl.base_type):
    """The type of a group: those of its elements, and how they lie."""

    elements: tuple[Any, ...]
    group_kind: reuse_group_type
    group_size: int

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        for element in self.elements:
            element._flatten_ir_types(builder, out)

    def _unflatten_ir(self, handles: list[Any], cursor: int) -> tuple[reuse_group, int]:
        args = []
        for element in self.elements:
            arg, cursor = element._unflatten_ir(handles, cursor)
            args.append(arg)
        group = reuse_group(*args, group_type=self.group_kind, group_size=self.group_size)
        return group, cursor

    def mangle(self) -> str:
        """A name for functions that take such a group."""
        inner = "_".join(element.mangle() for element in self.elements)
        return f"G{self.group_kind.value}{self.group_size}_{inner}_"


class storage_alias_spec_value(Handle):
    """Memory that several allocations lie over."""

    type: StorageType

    @property
    def storage(self) -> storage_kind:
        """Where the memory is."""
        return self.type.storage

    @property
    def buffer_size_bytes(self) -> int | None:
        """What the author gave: bytes in all."""
        return self.type.bytes

    def set_buffer_overlap(
        self, overlap_def: Any, _semantic: Any = None, _generator: Any = None
    ) -> Any:
        """See ``set_buffer_overlap``, the operation."""
        return set_buffer_overlap(self, overlap_def, _semantic=_semantic, _generator=_generator)


@dataclass(frozen=True)
class StorageType(HandleType):
    """The type of memory that several allocations lie over.

    bytes: as many as there may be; None: as many as it takes. A column of tensor memory
    counts as 512.
    storage: shared memory, or tensor memory.
    """

    bytes: int | None
    storage: storage_kind = storage_kind.smem
    noun: ClassVar[str] = "a storage_alias_spec"
    source: ClassVar[str] = "tlx.storage_alias_spec gives one"
    value_class: ClassVar[type[Handle]] = storage_alias_spec_value

    def __str__(self) -> str:
        where = " in tensor memory" * (self.storage is storage_kind.tmem)
        return f"a storage_alias_spec{f' of {self.bytes} bytes' if self.bytes else ''}{where}"

    def mangle(self) -> str:
        """See ``HandleType``."""
        return f"Storage{self.bytes or ''}{self.storage.value}"


@op("tlx.storage_alias_spec", lowered_in=LOWERED_IN)
def storage_alias_spec(
    call: Call, storage: Any = storage_kind.smem, buffer_size_bytes: Any = None
) -> Any:
    """Memory for several allocations, made with ``local_alloc(..., reuse=spec)``.

    Args:
        storage: ``storage_kind.smem`` or ``storage_kind.tmem``.
        buffer_size_bytes: constant: bytes in all, 512 for a column of tensor memory; None: as
            many as the allocations take.

    All allocations begin at the first byte, unless ``spec.set_buffer_overlap`` says otherwise.
    """
    storage = tl._unwrap_if_constexpr(storage)
    if storage is storage_kind.tmem:
        require_tensor_memory(call)
    elif storage is not storage_kind.smem:
        call.fail(
            UnsupportedByTarget if isinstance(storage, storage_kind) else WrongType,
            f"storage has to be tlx.storage_kind.smem or tmem, it is {storage!r}",
            hint="use tlx.storage_kind.smem",
        )
    size = tl._unwrap_if_constexpr(buffer_size_bytes)
    if size is not None:
        size = call.constant("buffer_size_bytes", size)
        if size < 1:
            call.fail(
                WrongShape,
                f"buffer_size_bytes has to be at least 1, it is {size}",
                hint="leave it out: the allocations say how many it takes",
            )
    return call.emit([], [StorageType(size, storage)], bytes=size, storage=storage.value)


@op("tlx.set_buffer_overlap", lowered_in=LOWERED_IN)
def set_buffer_overlap(call: Call, spec: Any, overlap_def: Any) -> Any:
    """Say how the allocations of a ``storage_alias_spec`` lie over each other.

    Args:
        spec: the ``storage_alias_spec``.
        overlap_def: a ``reuse_group`` of its allocations.
    """
    storage = call.handle("spec", spec, StorageType)
    group = tl._unwrap_if_constexpr(overlap_def)
    if not isinstance(group, reuse_group):
        call.fail(
            WrongType,
            f"overlap_def has to be a tlx.reuse_group, it is {group!r}",
            hint="tlx.reuse_group(a, b, group_type=tlx.reuse_group_type.shared)",
        )
    buffers: list[Any] = []
    tree = group.tree(buffers)
    for i, buffer in enumerate(buffers):
        if not buffer.type.num:
            call.fail(
                WrongType,
                f"element {i} of the group has to be an allocation, it is {buffer.type}",
                hint="give what tlx.local_alloc(..., reuse=spec) returned",
            )
        if any(buffer is other for other in buffers[:i]):
            call.fail(
                WrongType,
                f"{buffer.type} is in the group twice",
                hint="each allocation lies in one place",
            )
    return call.emit([storage, *buffers], [], tree=tree)


# --- who lies where ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Where the buffers of an allocation lie in a block of memory, in bytes.

    block: which block. offset: of the first buffer. stride: from one group of ``group``
    consecutive buffers to the next.
    """

    block: int
    offset: int
    stride: int
    group: int

    def start(self, index: int, size: int) -> int:
        """Where a buffer of ``size`` bytes begins."""
        return index // self.group * self.stride + self.offset + index % self.group * size


@dataclass(frozen=True)
class Plan:
    """Blocks of memory, and the place of each allocation in them.

    blocks: bytes of each. needed: bytes in all, as the author counts them.
    """

    placements: tuple[Placement, ...]
    blocks: tuple[int, ...]
    needed: int


def plan(members: Sequence[tuple[int, int]], tree: Tree | None) -> Plan:
    """Place allocations.

    Args:
        members: for each, the bytes of a buffer (a power of two) and how many buffers it has.
        tree: how they overlap; None: all begin at the first byte, and so do the buffers of
            those that it leaves out.

    What does not overlap gets a block of its own: a block is a multiple of its largest buffer.
    """
    if tree is None:
        tree = ("shared", 1, tuple(("shared", num, (i,)) for i, (_, num) in enumerate(members)))
    elif left := set(range(len(members))) - set(leaves(tree)):
        tree = ("shared", 1, (tree, *sorted(left)))
    group: dict[int, int] = {}
    at: dict[int, int] = {}
    _extent(tree, 1, 0, members, group, at)
    spans = sorted((at[i], at[i] + group[i] * members[i][0], i) for i in at)
    blocks: list[int] = []
    placements: dict[int, Placement] = {}
    needed = 0
    while spans:
        start, end, first = spans.pop(0)
        own = {first: start}
        while spans and spans[0][0] < end:
            start, stop, i = spans.pop(0)
            own[i], end = start, max(end, stop)
        largest = max(members[i][0] for i in own)
        base = own[first] // largest * largest
        stride = -(-(end - base) // largest) * largest
        for i, start in own.items():
            placements[i] = Placement(len(blocks), start - base, stride, group[i])
        count = max(-(-members[i][1] // group[i]) for i in own)
        blocks.append(stride * count)
        needed += (end - own[first]) * count
    return Plan(tuple(placements[i] for i in range(len(members))), tuple(blocks), needed)


def _extent(
    node: Any,
    multiple: int,
    start: int,
    members: Sequence[tuple[int, int]],
    group: dict[int, int],
    at: dict[int, int],
) -> int:
    """Place what a node holds from ``start`` on; returns its bytes."""
    if isinstance(node, int):
        group[node], at[node] = multiple, start
        return multiple * members[node][0]
    kind, size, elements = node
    multiple *= size
    if kind == "shared":
        return max(_extent(e, multiple, start, members, group, at) for e in elements)
    # The largest first: nothing has to be skipped to align what follows.
    end = start
    for element in sorted(elements, key=lambda e: -_largest(e, members)):
        end += _extent(element, multiple, end, members, group, at)
    return end - start


def _largest(node: Any, members: Sequence[tuple[int, int]]) -> int:
    if isinstance(node, int):
        return members[node][0]
    return max(_largest(e, members) for e in node[2])


def leaves(node: Any) -> list[int]:
    """The allocations of a group, as indices."""
    return [node] if isinstance(node, int) else [i for e in node[2] for i in leaves(e)]


def joined(node: Any, old: int, new: int) -> Any:
    """A tree in which an allocation lies over another one, buffer by buffer."""
    if isinstance(node, int):
        return ("shared", 1, (old, new)) if node == old else node
    kind, size, elements = node
    return kind, size, tuple(joined(e, old, new) for e in elements)


def check_size(
    limit: int | None, needed: int, sizes: Sequence[tuple[str, int]], where: str
) -> None:
    """Check that a storage holds its allocations.

    Args:
        limit: its bytes, if the author gave them. needed: bytes that it takes.
        sizes: each allocation, and its bytes.

    Raises:
        StorageTooSmall: with each allocation's bytes.
    """
    if limit is None or needed <= limit:
        return
    rows = "".join(f"\n    {size:>9,} bytes  {name}" for name, size in sizes)
    raise StorageTooSmall(
        f"the allocations of a storage_alias_spec take {needed:,} bytes, it has {limit:,}{rows}",
        where=where,
        hint="make buffer_size_bytes larger, or leave it out; what is shared in a reuse_group "
        "takes the bytes of the largest",
    )


# --- the reference meaning -----------------------------------------------------------------------


class Storage:
    """Memory of several allocations under the reference meaning: poisoned until it is written.

    limit: its bytes, if the author gave them. lanes: those of the memory; each has its bytes in
    a row.
    """

    def __init__(self, limit: int | None, lanes: int) -> None:
        self.limit, self.lanes = limit, lanes
        self.tree: Tree | None = None
        self.members: list[Any] = []
        self.blocks: list[np.ndarray[Any, Any]] = []

    def add(self, machine: Machine, member: Any, over: Any = None) -> None:
        """Put an allocation over the memory, or over another allocation's."""
        if over is not None and self.tree is not None:
            self.tree = joined(self.tree, self.members.index(over), len(self.members))
        self.members.append(member)
        member.storage = self
        self.lay(machine)

    def lay(self, machine: Machine) -> None:
        """Place the allocations; what the memory held stays where no place changes."""
        laid = plan([(m.size, m.num) for m in self.members], self.tree)
        sizes = [(str(m), m.size * m.num) for m in self.members]
        check_size(self.limit, laid.needed, sizes, machine.call.where)
        shapes = [(self.lanes, size // self.lanes) for size in laid.blocks]
        old, self.blocks = self.blocks, [np.full(shape, 0xFF, np.uint8) for shape in shapes]
        for new, before in zip(self.blocks, old, strict=False):
            kept = min(new.shape[1], before.shape[1])
            new[:, :kept] = before[:, :kept]
        for block in self.blocks:
            machine.make(block)
        for member, placement in zip(self.members, laid.placements, strict=True):
            member.lie(self.blocks[placement.block].reshape(-1), placement)


@storage_alias_spec.reference
def _spec(machine: Machine, bytes: int | None, storage: str) -> Storage:
    return Storage(bytes, LANES if storage == "tmem" else 1)


@set_buffer_overlap.reference
def _overlap(machine: Machine, storage: Storage, *buffers: Any, tree: Tree) -> None:
    check_group(storage.tree, storage.members, buffers, machine.call.where)
    storage.tree = renamed(tree, [storage.members.index(b) for b in buffers])
    storage.lay(machine)


def check_group(known: Tree | None, members: Sequence[Any], group: Any, where: str) -> None:
    """Check that a group is the first one of a storage, and holds allocations of it."""
    if known is not None:
        raise WrongType(
            "tlx.set_buffer_overlap: the storage has a reuse_group already",
            where=where,
            hint="put both into one",
        )
    if any(b not in members for b in group):
        raise WrongType(
            "tlx.set_buffer_overlap: a reuse_group holds an allocation of another storage",
            where=where,
            hint="allocate each with tlx.local_alloc(..., reuse=spec)",
        )


def renamed(node: Any, names: Sequence[int]) -> Any:
    """A tree with other indices."""
    if isinstance(node, int):
        return names[node]
    kind, size, elements = node
    return kind, size, tuple(renamed(e, names) for e in elements)
