"""Buffers in shared memory: allocation, views, and registers to and from them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, Handle, op
from remora.dsl.reference import Machine, numpy_dtype
from remora.errors import (
    BufferIndexError,
    StorageTooSmall,
    UnsupportedByTarget,
    WrongDtype,
    WrongShape,
    WrongType,
)
from remora.tlx.layouts import register_text, shared_text
from remora.tlx.storage import LOWERED_IN, Placement, Storage, StorageType
from remora.tlx.tensor_memory import check_matrix, require_groups, tensor_text
from remora.tlx.types import (
    COLUMN_BYTES,
    LANES,
    BarrierType,
    BufferType,
    TokenType,
    are_scales,
    bits,
    columns,
    storage_kind,
)

DTYPES = {
    str(t): t
    for t in (
        tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64,
        tl.float16, tl.bfloat16, tl.float32, tl.float64,
        tl.float8e4nv, tl.float8e5, tl.float8e4b8, tl.float8e5b16,
    )
}  # fmt: skip


def view(call: Call, name: str, value: Any, *, tensor_memory: bool = False) -> Any:
    """Check that an argument is one buffer, not an allocation of several.

    tensor_memory: whether it may be in tensor memory.
    """
    buffer: Any = call.handle(name, value, BufferType)
    if buffer.type.num:
        call.fail(
            WrongType,
            f"{name} has to be one buffer, it is {buffer.type}",
            hint="take one with tlx.local_view(buffers, i)",
        )
    if buffer.type.in_tensor_memory and not tensor_memory:
        call.fail(
            WrongType,
            f"{name} has to be in shared memory, it is {buffer.type}",
            hint="tlx.local_load, tlx.local_store, tlx.tmem_copy and tlx.async_dot reach tensor "
            "memory",
        )
    return buffer


def element_dtype(call: Call, dtype: Any) -> Any:
    """Check that an argument is an element type of buffers."""
    dtype = tl._unwrap_if_constexpr(dtype)
    if not isinstance(dtype, tl.dtype) or str(dtype) not in DTYPES:
        call.fail(
            WrongDtype,
            f"dtype has to be an element type, it is {dtype!r}",
            hint="one of " + ", ".join(DTYPES),
        )
    return dtype


@op("tlx.local_alloc", lowered_in=LOWERED_IN)
def local_alloc(
    call: Call,
    shape: Any,
    dtype: Any,
    num: Any,
    storage: Any = storage_kind.smem,
    layout: Any = None,
    reuse: Any = None,
) -> Any:
    """``num`` buffers of a shape in shared memory, or in Blackwell's tensor memory.

    Args:
        shape: constant, every extent a power of two. In tensor memory (M, N), M 64 or 128:
            a row in a lane, N elements of it in columns of 4 bytes, of which there are 512.
        dtype: the element type.
        num: how many, constant, at least 1.
        storage: ``storage_kind.smem`` or ``storage_kind.tmem``.
        layout: of one buffer in its memory; None: it follows from the uses.
        reuse: a ``storage_alias_spec``, or an allocation over whose memory this one is to lie,
            from its first byte on; each name has a layout of its own.

    Returns:
        a ``buffered_tensor``; its contents are undefined.
    """
    extents = call.shape("shape", shape)
    dtype = element_dtype(call, dtype)
    if call.num_ctas > 1:
        call.fail(
            UnsupportedByTarget,
            f"buffers of a program of {call.num_ctas} CTAs are not implemented yet",
            hint="launch with num_ctas=1",
        )
    count = call.constant("num", num)
    if count < 1:
        call.fail(WrongShape, f"num has to be at least 1, it is {count}", hint="num=1")
    if any(extent & (extent - 1) for extent in extents):
        call.fail(
            WrongShape,
            f"the extents of a buffer have to be powers of two, not {extents}",
            hint="round up, and mask what is too much",
        )
    storage = tl._unwrap_if_constexpr(storage)
    if not isinstance(storage, storage_kind):
        call.fail(
            WrongType,
            f"storage has to be a tlx.storage_kind, it is {storage!r}",
            hint="use tlx.storage_kind.smem",
        )
    if storage is storage_kind.smemCluster:
        call.fail(
            UnsupportedByTarget,
            f"buffers in {storage.name} are not to be had on {call.target}",
            hint="use tlx.storage_kind.smem",
        )
    kind = BufferType(extents, dtype, count, storage)
    named: dict[str, Any] = {}
    if kind.in_tensor_memory:
        check_matrix(call, kind)
        named["storage"] = storage.value
        text = tensor_text(call, layout, kind)
    else:
        text = shared_text(call, layout, extents, dtype)
    if text:
        named["layout"] = text
    return call.emit(
        _reused(call, reuse, kind), [kind], shape=extents, dtype=str(dtype), num=count, **named
    )


def _reused(call: Call, reuse: Any, kind: BufferType) -> list[Any]:
    """The memory that an allocation is to lie over, if any."""
    if tl._unwrap_if_constexpr(reuse) is None:
        return []
    other = call.handle("reuse", reuse, StorageType, BufferType)
    if isinstance(other.type, BufferType) and not other.type.num:
        call.fail(
            WrongType,
            f"reuse has to be an allocation, it is {other.type}",
            hint="give what tlx.local_alloc or tlx.storage_alias_spec returned",
        )
    if other.type.storage is not kind.storage:  # type: ignore[attr-defined]
        call.fail(
            WrongType,
            f"the allocation is to be in {kind.storage.name}, what it reuses is {other.type}",
            hint="one memory: give both the same storage",
        )
    if isinstance(other.type, BufferType) and kind.bytes > other.type.bytes:
        call.fail(
            StorageTooSmall,
            f"{kind} takes {kind.bytes:,} bytes, {other.type} has {other.type.bytes:,}",
            hint="allocate the larger one first, or both over a tlx.storage_alias_spec",
        )
    return [other]


class Buffers:
    """An allocation under the reference meaning: poisoned until it is written.

    lanes: as of ``Storage``.
    """

    lanes = 1

    def __init__(self, shape: tuple[int, ...], dtype: Any, num: int) -> None:
        self.kind = numpy_dtype(dtype)
        self.shape, self.num = shape, num
        self.size = self._bytes(dtype)
        self.storage: Storage | None = None
        # All ones: NaN in every floating-point type, -1 in integers.
        self.lie(np.full(num * self.size, 0xFF, np.uint8), Placement(0, 0, self.size, 1))

    def _bytes(self, dtype: Any) -> int:
        """Bytes of one buffer."""
        return math.prod(self.shape) * self.kind.itemsize

    def lie(self, memory: np.ndarray[Any, Any], placement: Placement) -> None:
        """Lie over memory, from now on."""
        self._memory, self._placement = memory, placement

    def memories(self) -> list[np.ndarray[Any, Any]]:
        """The arrays that it lies in."""
        return [self._memory]

    @property
    def is_contiguous(self) -> bool:
        """Whether the buffers lie one after the other."""
        return self.num == 1 or self._placement.stride == self._placement.group * self.size

    @property
    def raw(self) -> np.ndarray[Any, Any]:
        """The bytes of buffers that lie one after the other."""
        return self._memory[self._placement.offset :][: self.num * self.size]

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        start = self._placement.start(index, self.size)
        array: np.ndarray[Any, Any] = self._memory[start : start + self.size].view(self.kind)
        return array.reshape(self.shape)

    def __str__(self) -> str:
        return f"{self.num} buffers of {'x'.join(map(str, self.shape))} {self.kind}"


class TensorBuffers(Buffers):
    """An allocation in tensor memory: a row of a matrix is in one lane.

    Scales lie in memory of their own, which nothing else reads.
    """

    lanes = LANES

    def _bytes(self, dtype: Any) -> int:
        self._scales: np.ndarray[Any, Any] | None = None
        if are_scales(dtype):
            self._scales = np.full((self.num, *self.shape), 0xFF, np.uint8)
        return columns(self.shape, bits(dtype), are_scales(dtype)) * COLUMN_BYTES

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        if self._scales is not None:
            scales: np.ndarray[Any, Any] = self._scales[index].view(self.kind)
            return scales
        start = self._placement.start(index, self.size) // LANES
        rows, length = self.shape
        lanes = self._memory.reshape(LANES, -1)[:rows, start:][:, : length * self.kind.itemsize]
        return lanes.view(self.kind)

    def memories(self) -> list[np.ndarray[Any, Any]]:
        """See ``Buffers``."""
        return super().memories() if self._scales is None else [self._scales]

    def reread(self, shape: tuple[int, ...], dtype: Any, num: int) -> Any:
        """The same columns as other buffers, or as one (``num`` is 0)."""
        read = TensorBuffers(shape, dtype, max(num, 1))
        read.lie(self._memory, replace(self._placement, stride=read.size, group=1))
        return read if num else read[0]


@local_alloc.reference
def _alloc(
    machine: Machine,
    reuse: Any = None,
    *,
    shape: tuple[int, ...],
    dtype: str,
    num: int,
    layout: str | None = None,
    storage: str = "smem",
) -> Buffers:
    made = TensorBuffers if storage == "tmem" else Buffers
    buffers = made(shape, DTYPES[dtype], num)
    for memory in buffers.memories():
        machine.make(memory)
    if reuse is None:
        return buffers
    if isinstance(reuse, Storage):
        reuse.add(machine, buffers)
        return buffers
    if reuse.storage is None:
        Storage(reuse.num * reuse.size, reuse.lanes).add(machine, reuse)
    reuse.storage.add(machine, buffers, over=reuse)
    return buffers


@op("tlx.local_view", lowered_in=LOWERED_IN)
def local_view(call: Call, buffers: Any, i: Any) -> Any:
    """One buffer, or one barrier, of an allocation; ``buffers[i]`` is the same.

    Args:
        buffers: what ``local_alloc`` or ``alloc_barriers`` gave; or one buffer of one dimension,
            of which the view is an element, of shape (1,).
        i: an integer, at compile time or run time, at least 0 and under ``num``.
    """
    allocation = call.handle("buffers", buffers, BufferType, BarrierType)
    kind: Any = allocation.type
    if isinstance(kind, BufferType) and not kind.num and len(kind.shape) == 1:
        kind = replace(kind, shape=(1,), num=kind.shape[0])
    if not kind.num:
        call.fail(
            WrongType,
            f"buffers has to be an allocation, it is {kind}",
            hint=f"give the allocation: {kind.source}",
        )
    i = tl._unwrap_if_constexpr(i)
    if isinstance(i, int) and not 0 <= i < kind.num:
        call.fail(
            BufferIndexError,
            f"there is no buffer {i} in {kind}",
            hint=f"the indices are 0 to {kind.num - 1}",
        )
    index = call.integer("the buffer's index", i)
    return call.emit([allocation, index], [replace(kind, num=0)])


@local_view.reference
def _view(machine: Machine, buffers: Any, index: Any) -> Any:
    if not 0 <= int(index) < len(buffers):
        machine.call.fail(
            BufferIndexError,
            f"there is no buffer {int(index)} among {len(buffers)}",
            hint=f"the indices are 0 to {len(buffers) - 1}; i % num stays among them",
        )
    index = int(index)
    return buffers[index : index + 1] if isinstance(buffers, np.ndarray) else buffers[index]


@op("tlx.local_store", lowered_in=LOWERED_IN)
def local_store(call: Call, dst: Any, src: Any) -> Any:
    """Store a tensor into a buffer of its shape and dtype."""
    buffer = view(call, "dst", dst, tensor_memory=True)
    require_groups(call, buffer)
    value = call.tensor("src", src, shape=buffer.shape)
    if value.dtype != buffer.dtype:
        call.fail(
            WrongDtype,
            f"src is of {value.dtype}, the buffer of {buffer.dtype}",
            hint="src.to(tlx.dtype_of(dst)) converts it",
        )
    return call.emit([value, buffer])


@local_store.reference
def _store(machine: Machine, value: Any, buffer: Any) -> None:
    machine.touch(writes=[buffer])
    buffer[...] = value


@op("tlx.local_load", lowered_in=LOWERED_IN)
def local_load(
    call: Call,
    src: Any,
    token: Any = None,
    layout: Any = None,
    relaxed: Any = False,
    rematerialize_coordinates: Any = False,
    rematerialize_coordinates_group: Any = None,
) -> Any:
    """Load a buffer into registers.

    Args:
        src: one buffer.
        token: of a copy or a wait; only says what the load comes after.
        layout: of the tensor; None: it follows from the uses.
        relaxed: constant. True: the author's waits keep apart what copies write and what this
            load reads, in both directions: on CDNA the compiler may leave out barriers there.
        rematerialize_coordinates, rematerialize_coordinates_group: no effect here.

    Returns:
        a tensor of the buffer's shape and dtype.
    """
    buffer = view(call, "src", src, tensor_memory=True)
    require_groups(call, buffer)
    if tl._unwrap_if_constexpr(token) is not None:
        call.handle("token", token, TokenType)
    text = register_text(call, layout, buffer.shape)
    named: dict[str, Any] = {"layout": text} if text else {}
    if call.constant("relaxed", relaxed, bool):
        named["relaxed"] = True
    if not call.interpreted and getattr(call.semantic.builder.options, "kpack", 1) > 1:
        named["kpack"] = call.semantic.builder.options.kpack
    return call.emit([buffer], [tl.block_type(buffer.dtype, list(buffer.shape))], **named)


@local_load.reference
def _load(machine: Machine, buffer: Any, relaxed: bool = False) -> np.ndarray[Any, Any]:
    machine.touch(reads=[buffer])
    copy: np.ndarray[Any, Any] = buffer.copy()
    return copy


@op("tlx.dtype_of")
def dtype_of(call: Call, value: Any) -> Any:
    """The element type of a pointer, a tensor (of pointers), a descriptor or a buffer."""
    value = tl._unwrap_if_constexpr(value)
    if isinstance(value, tl.tensor_descriptor_base):
        return value.dtype
    if isinstance(value, Handle) and isinstance(value.type, BufferType):
        return value.type.dtype
    if not isinstance(value, tl.tensor):
        call.fail(
            WrongType,
            f"{value!r} has no element type",
            hint="give a pointer, a tensor, a descriptor or a buffer",
        )
    scalar = value.type.scalar
    return scalar.element_ty if scalar.is_ptr() else scalar
