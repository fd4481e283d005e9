"""The types of TLX's values."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from remora.dsl import Handle, HandleType


class storage_kind(enum.Enum):
    """Where a buffer is: shared memory, tensor memory, or the cluster's shared memory."""

    smem = "smem"
    tmem = "tmem"
    smemCluster = "smemCluster"


class Allocation(Handle):
    """Several things in on-chip memory, or one of them: ``x[i]`` is ``tlx.local_view(x, i)``."""

    type: Any

    def __getitem__(self, i: Any, _semantic: Any = None, _generator: Any = None) -> Any:
        from remora.tlx.buffers import local_view

        return local_view(self, i, _semantic=_semantic, _generator=_generator)


class buffered_tensor(Allocation):
    """Buffers in shared or tensor memory: an allocation, or one of its buffers."""

    type: BufferType

    def __getitem__(self, i: Any, _semantic: Any = None, _generator: Any = None) -> Any:
        if not self.type.num and len(self.type.shape) > 1:
            return Handle.__getitem__(self, i)
        return super().__getitem__(i, _semantic, _generator)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one buffer."""
        return self.type.shape

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.type.dtype


@dataclass(frozen=True)
class BufferType(HandleType):
    """Buffers of a shape and element type.

    num: how many buffers an allocation has; 0 for one of them (a view).
    storage: shared memory, or Blackwell's tensor memory.
    """

    shape: tuple[int, ...]
    dtype: Any
    num: int
    storage: storage_kind = storage_kind.smem
    noun: ClassVar[str] = "a buffer"
    source: ClassVar[str] = "tlx.local_alloc gives buffers, tlx.local_view one of them"
    value_class: ClassVar[type[Handle]] = buffered_tensor

    @property
    def in_tensor_memory(self) -> bool:
        """Whether they are in tensor memory."""
        return self.storage is storage_kind.tmem

    @property
    def bytes(self) -> int:
        """Bytes of all of them; in tensor memory, of the columns that they take."""
        if self.in_tensor_memory:
            one = columns(self.shape, bits(self.dtype), are_scales(self.dtype)) * COLUMN_BYTES
        else:
            one = math.prod(self.shape) * bits(self.dtype) // 8
        return one * max(self.num, 1)

    @property
    def scalar(self) -> Any:
        """The element type, under the name that Triton's types use."""
        return self.dtype

    def __str__(self) -> str:
        what = f"{'x'.join(map(str, self.shape))} {self.dtype}"
        what += " in tensor memory" * self.in_tensor_memory
        return f"{f'an allocation of {self.num} buffers' if self.num else 'a buffer'} of {what}"

    def mangle(self) -> str:
        """See ``HandleType``."""
        kind = "T" if self.in_tensor_memory else "B"
        return f"{kind}{self.num}_{'x'.join(map(str, self.shape))}_{self.dtype}"


class mbarrier(Allocation):
    """Barriers in shared memory: an allocation, or one of its barriers."""

    type: BarrierType


@dataclass(frozen=True)
class BarrierType(HandleType):
    """Barriers (mbarrier objects) that count arrivals and bytes, phase by phase.

    num: how many barriers an allocation has; 0 for one of them (a view).
    arrive_count: arrivals that complete a phase.
    is_warp_barrier: every thread of a task arrives for itself; else a task arrives as one.
    """

    num: int
    arrive_count: int
    is_warp_barrier: bool = False
    noun: ClassVar[str] = "a barrier"
    source: ClassVar[str] = "tlx.alloc_barriers gives barriers, tlx.local_view one of them"
    value_class: ClassVar[type[Handle]] = mbarrier

    def __str__(self) -> str:
        kind = "warp barrier" if self.is_warp_barrier else "barrier"
        return f"an allocation of {self.num} {kind}s" if self.num else f"a {kind}"

    def mangle(self) -> str:
        """See ``HandleType``."""
        return f"Bar{self.num}_{self.arrive_count}{'w' * self.is_warp_barrier}"


class remote_mbarrier(Handle):
    """A barrier in the shared memory of another CTA of the cluster."""

    type: RemoteBarrierType


@dataclass(frozen=True)
class RemoteBarrierType(HandleType):
    """A barrier of another CTA; arguments as of ``BarrierType``."""

    arrive_count: int
    is_warp_barrier: bool = False
    noun: ClassVar[str] = "another CTA's barrier"
    source: ClassVar[str] = "tlx.remote_view gives another CTA's barrier"
    value_class: ClassVar[type[Handle]] = remote_mbarrier

    def __str__(self) -> str:
        return f"another CTA's {'warp ' * self.is_warp_barrier}barrier"

    def mangle(self) -> str:
        """See ``HandleType``."""
        return f"RBar{self.arrive_count}{'w' * self.is_warp_barrier}"


class async_token(Handle):
    """Stands for an asynchronous copy, or a group of them."""


@dataclass(frozen=True)
class TokenType(HandleType):
    """The type of a token."""

    noun: ClassVar[str] = "a token"
    source: ClassVar[str] = "tlx.async_load gives a token, and so do its groups and waits"
    value_class: ClassVar[type[Handle]] = async_token

    def __str__(self) -> str:
        return "a token"

    def mangle(self) -> str:
        """See ``HandleType``."""
        return "Token"


class tensor_descriptor_ptr(Allocation):
    """Places in global memory for tensor descriptors; ``x[i]`` is one of them."""

    type: DescriptorPlacesType

    def __getitem__(self, i: Any, _semantic: Any = None, _generator: Any = None) -> Any:
        from remora.tlx.device_descriptors import descriptor_place

        return descriptor_place(self, i, _semantic=_semantic, _generator=_generator)

    @property
    def num(self) -> int:
        """How many places there are."""
        return self.type.num


@dataclass(frozen=True)
class DescriptorPlacesType(HandleType):
    """The type of places for tensor descriptors.

    num: how many.
    """

    num: int
    noun: ClassVar[str] = "a place for tensor descriptors"
    source: ClassVar[str] = "tlx.allocate_tensor_descriptor gives places"
    value_class: ClassVar[type[Handle]] = tensor_descriptor_ptr

    def __str__(self) -> str:
        return f"{self.num} places for tensor descriptors"

    def mangle(self) -> str:
        """See ``HandleType``."""
        return f"Places{self.num}"


def bits(dtype: Any) -> int:
    """The width of an element type."""
    width: int = dtype.primitive_bitwidth
    return width


#: Tensor memory (PTX ISA, "Tensor Memory"): columns of 128 lanes, 4 bytes in each.
LANES, LANE_BYTES = 128, 4
COLUMN_BYTES = LANES * LANE_BYTES


def are_scales(dtype: Any) -> bool:
    """Whether a matrix of a type in tensor memory is one of scales: those are bytes."""
    return bool(dtype.is_int()) and bits(dtype) == 8


def columns(shape: tuple[int, ...], width: int, scales: bool = False) -> int:
    """Columns of tensor memory that a matrix takes, packed; its elements are of ``width`` bits.

    Scales of block-scaled products fill a column with 32 rows by 4, once for each warp.
    """
    rows, length = shape
    if scales:
        return -(-rows // 32) * -(-length // LANE_BYTES)
    return -(-length * width // (8 * LANE_BYTES))
