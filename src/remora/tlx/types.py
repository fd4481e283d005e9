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
        if not self.type.num:
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


def bits(dtype: Any) -> int:
    """The width of an element type."""
    width: int = dtype.primitive_bitwidth
    return width
