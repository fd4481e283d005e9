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
    """Several things in shared memory, or one of them: ``x[i]`` is ``tlx.local_view(x, i)``."""

    type: Any

    def __getitem__(self, i: Any, _semantic: Any = None, _generator: Any = None) -> Any:
        from remora.tlx.buffers import local_view

        return local_view(self, i, _semantic=_semantic, _generator=_generator)


class buffered_tensor(Allocation):
    """Buffers in shared memory: an allocation, or one of its buffers."""

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
    """

    shape: tuple[int, ...]
    dtype: Any
    num: int
    noun: ClassVar[str] = "a buffer"
    source: ClassVar[str] = "tlx.local_alloc gives buffers, tlx.local_view one of them"
    value_class: ClassVar[type[Handle]] = buffered_tensor

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return math.prod(self.shape) * max(self.num, 1) * bits(self.dtype) // 8

    @property
    def scalar(self) -> Any:
        """The element type, under the name that Triton's types use."""
        return self.dtype

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        return (
            f"a buffer of {size} {self.dtype}"
            if not self.num
            else (f"an allocation of {self.num} buffers of {size} {self.dtype}")
        )

    def mangle(self) -> str:
        """See ``HandleType``."""
        return f"B{self.num}_{'x'.join(map(str, self.shape))}_{self.dtype}"


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
