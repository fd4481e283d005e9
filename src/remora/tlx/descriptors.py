"""Copies by the tensor memory accelerator (TMA): boxes of a tensor that a descriptor describes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, Handle, HandleType, describe, op
from remora.dsl.reference import Machine, numpy_dtype
from remora.errors import WrongDtype, WrongShape, WrongType
from remora.tlx.barriers import Barrier, barrier, predicate, require_copy_engine
from remora.tlx.buffers import LOWERED_IN, view
from remora.tlx.ranks import first_of_pair, program_of, rank_of
from remora.tlx.targets import require_pair
from remora.tlx.types import bits

#: The reference machine's queue of stores.
STORES = "tma store"

EVICTIONS = ("", "evict_first", "evict_last")
_CACHES = ("", ".ca", ".cg", ".cs", ".cv", ".wb", ".wt")

# What a reduction does to which elements (PTX ISA, cp.reduce.async.bulk.tensor; on an H200
# the exclusive or of 64-bit elements is an illegal instruction).
_BITS = (tl.int32, tl.uint32)
_INTEGERS = (tl.int32, tl.uint32, tl.int64, tl.uint64)
_HALVES = (tl.float16, tl.bfloat16)
REDUCTIONS = {
    "add": (tl.int32, tl.uint32, tl.uint64, *_HALVES, tl.float32),
    "min": (*_INTEGERS, *_HALVES),
    "max": (*_INTEGERS, *_HALVES),
    "and": _BITS,
    "or": _BITS,
    "xor": _BITS,
}


@dataclass(frozen=True)
class _DescriptorType(HandleType):
    """Triton's own tensor descriptor, as an operand."""

    noun: ClassVar[str] = "a tensor descriptor"
    value_class: ClassVar[type[Handle]] = Handle


def descriptor(call: Call, name: str, value: Any) -> Any:
    """Check that an argument is a tensor descriptor whose boxes TMA can copy.

    Raises:
        WrongType: it is none. WrongShape, WrongDtype: it breaks a rule of the hardware.
    """
    value = tl._unwrap_if_constexpr(value)
    if not isinstance(value, tl.tensor_descriptor_base):
        call.fail(
            WrongType,
            f"{name} has to be a tensor descriptor, it is {describe(value)}",
            hint="pass a TensorDescriptor to the kernel, or make one with "
            "tlx.make_tensor_descriptor",
        )
    check_box(call, name, block_shape(value), value.dtype)
    return value


def block_shape(desc: Any) -> tuple[int, ...]:
    """The shape of a descriptor's boxes."""
    return tuple(int(tl._unwrap_if_constexpr(d)) for d in desc.block_shape)


def check_box(call: Call, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Check the hardware's rules for a box (CUDA driver API, cuTensorMapEncodeTiled)."""
    if not 1 <= len(shape) <= 5:
        call.fail(
            WrongShape,
            f"{name} has boxes of {len(shape)} dimensions: TMA copies 1 to 5",
            hint="reshape the tensor",
        )
    if bits(dtype) not in (8, 16, 32, 64):
        call.fail(
            WrongDtype,
            f"{name} is of {dtype}: TMA copies elements of 1, 2, 4 or 8 bytes",
            hint="convert the tensor, or view it as tl.uint8",
        )
    row = shape[-1] * bits(dtype) // 8
    if row % 16:
        call.fail(
            WrongShape,
            f"{name} has boxes of {shape} {dtype}, {row} bytes in the last dimension: TMA copies "
            "multiples of 16 bytes",
            hint=f"at least {128 // bits(dtype)} elements in the last dimension",
        )


def operand(call: Call, desc: Any) -> Handle:
    """A descriptor as an operand."""
    return Handle(desc.handle, _DescriptorType())


def _offsets(call: Call, desc: Any, offsets: Any) -> list[Any]:
    """Check where a box begins: an integer for each dimension, in elements."""
    offsets = tl._unwrap_if_constexpr(offsets)
    if isinstance(offsets, tl.tuple):
        offsets = offsets.values
    if not isinstance(offsets, (list, tuple)):
        call.fail(
            WrongType,
            f"offsets has to be a list of integers, it is {describe(offsets)}",
            hint="one for each dimension of the descriptor: [row, column]",
        )
    rank = len(desc.block_shape)
    if len(offsets) != rank:
        call.fail(
            WrongShape,
            f"there are {len(offsets)} offsets for a descriptor of {rank} dimensions",
            hint="one for each dimension of the descriptor",
        )
    last = tl._unwrap_if_constexpr(offsets[-1])
    if isinstance(last, int):
        _check_aligned(call, last, bits(desc.dtype) // 8)
    return [call.integer(f"offsets[{i}]", v) for i, v in enumerate(offsets)]


def _check_aligned(call: Call, offset: int, size: int) -> None:
    """Check the last offset, in elements of ``size`` bytes: others are an illegal instruction."""
    if offset * size % 16:
        call.fail(
            WrongShape,
            f"the last offset is {offset}, {offset * size} bytes: TMA copies begin at multiples "
            "of 16 bytes",
            hint=f"a multiple of {16 // size}",
        )


def _box(call: Call, name: str, desc: Any, value: Any) -> Any:
    """Check that an argument is a buffer of the shape and dtype of a descriptor's boxes."""
    buffer = view(call, name, value)
    shape = block_shape(desc)
    front = len(shape) - len(buffer.shape)
    # The first dimensions of a box may be left out where they are 1.
    if front < 0 or buffer.shape != shape[front:] or prod(shape[:front]) != 1:
        call.fail(
            WrongShape,
            f"{name} is of shape {buffer.shape}, a box of the descriptor of {shape}",
            hint="a copy fills a whole buffer: allocate it with the descriptor's block shape",
        )
    both_integers = buffer.dtype.is_int() and desc.dtype.is_int()
    if buffer.dtype != desc.dtype and not (
        both_integers and bits(buffer.dtype) == bits(desc.dtype)
    ):
        call.fail(
            WrongDtype,
            f"{name} is of {buffer.dtype}, the descriptor of {desc.dtype}",
            hint="allocate the buffer with tlx.dtype_of(descriptor)",
        )
    return buffer


def _one_of(call: Call, name: str, value: Any, allowed: Sequence[str]) -> str:
    text: str = call.constant(name, value, str)
    if text not in allowed:
        call.fail(
            WrongType,
            f"{name} has to be one of {', '.join(map(repr, allowed))}, it is {text!r}",
            hint=f"leave {name} out",
        )
    return text


@op("tlx.async_descriptor_load", lowered_in=LOWERED_IN)
def async_descriptor_load(
    call: Call,
    desc: Any,
    result: Any,
    offsets: Any,
    barrier: Any,
    pred: Any = None,
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    multicast_targets: Any = None,
    two_ctas: Any = False,
) -> None:
    """Copy a box of a tensor into a buffer, asynchronously.

    Args:
        desc: a tensor descriptor: a kernel's argument, or made in the kernel.
        result: one buffer of the shape and dtype of the descriptor's boxes, of which it may
            leave out first dimensions of 1.
        offsets: where the box begins, in elements: an integer for each dimension, the last
            a multiple of 16 bytes (others are an illegal instruction). What is outside of
            the tensor becomes zero, or NaN where the descriptor says so.
        barrier: one barrier; its phase gets the box's bytes (``barrier_expect_bytes``).
        pred: a boolean; False: nothing is copied.
        cache_modifier: no effect: the copy does not go through the first-level cache.
        eviction_policy: "", "evict_first" or "evict_last", of the second-level cache.
        multicast_targets: ranks of the CTAs of the cluster that get the box, each in its own
            buffer and at its own barrier in the place of these; this CTA only if it is among
            them. None or []: this CTA.
        two_ctas: Blackwell's, constant: the box's bytes are counted at the barrier of the first
            CTA of a pair of even rank and the next, for each of the two CTAs' copies.
    """
    require_copy_engine(call, "tlx.async_load copies from pointers, with groups and waits")
    desc = descriptor(call, "desc", desc)
    buffer = _box(call, "result", desc, result)
    where = _offsets(call, desc, offsets)
    bar = _barrier(call, barrier)
    _one_of(call, "cache_modifier", cache_modifier, _CACHES)
    eviction = _one_of(call, "eviction_policy", eviction_policy, EVICTIONS)
    targets = _targets(call, multicast_targets)
    attributes: dict[str, Any] = {"targets": len(targets), "remote": True} if targets else {}
    if call.constant("two_ctas", two_ctas, bool):
        require_pair(call)
        attributes |= {"pair": True}
    when = predicate(call, pred)
    if when is not None:
        call.emit(
            [operand(call, desc), buffer, bar, *where, *targets, *when],
            rank=len(where), evict=eviction, **attributes,
        )  # fmt: skip


def _barrier(call: Call, value: Any) -> Any:
    return barrier(call, "barrier", value)


def _targets(call: Call, multicast_targets: Any) -> list[Any]:
    """The ranks of the CTAs that get a box."""
    targets = tl._unwrap_if_constexpr(multicast_targets)
    if isinstance(targets, tl.tuple):
        targets = targets.values
    if targets is not None and not isinstance(targets, (list, tuple)):
        call.fail(
            WrongType,
            f"multicast_targets has to be a list of ranks, it is {describe(targets)}",
            hint="multicast_targets=[0, 1]",
        )
    return [rank_of(call, f"multicast_targets[{i}]", t) for i, t in enumerate(targets or ())]


@op("tlx.async_descriptor_store", lowered_in=LOWERED_IN)
def async_descriptor_store(
    call: Call,
    desc: Any,
    source: Any,
    offsets: Any,
    eviction_policy: Any = "",
    store_reduce: Any = "",
) -> None:
    """Copy a buffer into a box of a tensor, asynchronously; a group of its own.

    Args:
        desc: a tensor descriptor.
        source: one buffer of the shape and dtype of the descriptor's boxes. After
            ``local_store`` into it comes ``fence_async_shared``. It may be written
            again after ``async_descriptor_store_wait``.
        offsets: as of ``async_descriptor_load``, and none negative: a store that begins before
            its tensor is an illegal instruction. What is past its end is dropped.
        eviction_policy: as of ``async_descriptor_load``.
        store_reduce: "", or what the tensor's elements are combined with the buffer's
            by, atomically: "add", "min", "max", "and", "or", "xor".
    """
    require_copy_engine(call, "tl.store, or desc.store, what tlx.local_load reads")
    desc = descriptor(call, "desc", desc)
    buffer = _box(call, "source", desc, source)
    where = _offsets(call, desc, offsets)
    for offset in map(tl._unwrap_if_constexpr, tl._unwrap_if_constexpr(offsets)):
        if isinstance(offset, int):
            _check_begin(call, offset)
    eviction = _one_of(call, "eviction_policy", eviction_policy, EVICTIONS)
    reduce = _one_of(call, "store_reduce", store_reduce, ("", *REDUCTIONS))
    if reduce and desc.dtype not in REDUCTIONS[reduce]:
        call.fail(
            WrongDtype,
            f"there is no reduction {reduce!r} of {desc.dtype}",
            hint="it takes " + ", ".join(map(str, REDUCTIONS[reduce])),
        )
    call.emit([operand(call, desc), buffer, *where], rank=len(where), evict=eviction, reduce=reduce)


def _check_begin(call: Call, offset: int) -> None:
    if offset < 0:
        call.fail(
            WrongShape,
            f"a store begins at {offset}: the hardware has no negative offsets for stores",
            hint="only loads may begin before their tensor",
        )


@op("tlx.async_descriptor_store_wait", lowered_in=LOWERED_IN)
def async_descriptor_store_wait(call: Call, pendings: Any, read_only: Any = True) -> None:
    """Wait until at most ``pendings`` stores of this task are in flight.

    Args:
        pendings: constant, at least 0. It reaches the machine as it is written.
        read_only: constant. True: until their buffers have been read, and may be
            written again; False: until what they wrote is there, too.
    """
    count = call.constant("pendings", pendings)
    if count < 0:
        call.fail(
            WrongShape, f"pendings has to be at least 0, it is {count}", hint="0 waits for all"
        )
    require_copy_engine(call, "leave the wait out: tl.store needs none")
    call.emit(
        [], pendings=count, read_only=bool(call.constant("read_only", read_only, (bool, int)))
    )


@op("tlx.async_descriptor_prefetch_tensor", lowered_in=LOWERED_IN)
def async_descriptor_prefetch_tensor(
    call: Call, desc: Any, offsets: Any, pred: Any = None, eviction_policy: Any = ""
) -> None:
    """Bring a box of a tensor into the second-level cache: a hint, nothing waits for it.

    Args:
        desc, offsets, pred, eviction_policy: as of ``async_descriptor_load``.
    """
    require_copy_engine(call, "leave the prefetch out")
    desc = descriptor(call, "desc", desc)
    where = _offsets(call, desc, offsets)
    eviction = _one_of(call, "eviction_policy", eviction_policy, EVICTIONS)
    when = predicate(call, pred)
    if when is not None:
        call.emit(
            [operand(call, desc), *where, *when],
            shape=block_shape(desc), bits=bits(desc.dtype), evict=eviction,
        )  # fmt: skip


@op("tlx.prefetch", lowered_in=LOWERED_IN)
def prefetch(
    call: Call, pointer: Any, level: Any = "L2", mask: Any = None, tensormap: Any = False
) -> None:
    """Bring what pointers point to into a cache, or a descriptor itself: a hint.

    Args:
        pointer: a pointer, a tensor of pointers, or with ``tensormap`` a descriptor.
        level: "L1" or "L2".
        mask: booleans that broadcast to the pointers' shape; False: no prefetch.
        tensormap: constant; whether ``pointer`` is a tensor descriptor.
    """
    if call.constant("tensormap", tensormap, bool):
        require_copy_engine(call, "leave the prefetch out")
        call.emit([operand(call, descriptor(call, "pointer", pointer))], level="tensormap")
        return
    level = _one_of(call, "level", level, ("L1", "L2"))
    call.require_target(
        "cuda", reason="prefetches into a cache are NVIDIA's", instead="leave the prefetch out"
    )
    pointer = tl._unwrap_if_constexpr(pointer)
    if not isinstance(pointer, tl.tensor) or not pointer.dtype.is_ptr():
        call.fail(
            WrongType,
            f"pointer has to be a pointer or a tensor of them, it is {describe(pointer)}",
            hint="a tensor descriptor is prefetched with tensormap=True",
        )
    operands = [pointer]
    mask = tl._unwrap_if_constexpr(mask)
    if mask is not None:
        mask = call.tensor("mask", mask, dtypes=(tl.int1,))
        if mask.shape != pointer.shape:
            if not pointer.type.is_block():
                call.fail(
                    WrongShape,
                    f"mask is of shape {tuple(mask.shape)}, pointer is one pointer",
                    hint="give a scalar boolean",
                )
            mask = call.semantic.broadcast_impl_shape(mask, list(pointer.shape))
        operands.append(mask)
    call.emit(operands, level=level)


# --- the reference meaning -----------------------------------------------------------------------


def _pointers(desc: Any, offsets: Sequence[Any]) -> tuple[Any, Any]:
    """The addresses of a box's elements, and which of them are inside of the tensor."""
    size = bits(desc.base.dtype.element_ty) // 8
    shape = [int(d) for d in desc.block_shape]
    at = np.full(shape, int(desc.base.data.item()), np.int64)
    inside = np.ones(shape, bool)
    for dim, (extent, first) in enumerate(zip(shape, offsets, strict=True)):
        index = (int(first) + np.arange(extent)).reshape(
            [-1 if d == dim else 1 for d in range(len(shape))]
        )
        at = at + index * int(desc.strides[dim].data.item()) * size
        inside = inside & (index >= 0) & (index < int(desc.shape[dim].data.item()))
    return at.astype(np.uint64), inside


def _raw(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Integers of the same width: what the interpreter loads and stores."""
    return np.dtype(f"uint{8 * kind.itemsize}")


def read_box(desc: Any, offsets: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The elements of a box; padding outside of the tensor."""
    from triton._C.libtriton import interpreter

    kind = numpy_dtype(desc.base.dtype.element_ty)
    at, inside = _pointers(desc, offsets)
    padding = np.full(at.shape, np.nan if "NAN" in str(desc.padding).upper() else 0, kind)
    raw = _raw(kind)
    loaded: np.ndarray[Any, Any] = interpreter.load(at, inside, padding.view(raw), raw)
    return loaded.reshape(at.shape).view(kind)


def write_box(desc: Any, offsets: Sequence[Any], values: np.ndarray[Any, Any]) -> None:
    """Write the elements of a box that are inside of the tensor."""
    from triton._C.libtriton import interpreter

    at, inside = _pointers(desc, offsets)
    raw = _raw(values.dtype)
    interpreter.store(at, np.ascontiguousarray(values).view(raw), inside)


@async_descriptor_load.reference
def _load(
    machine: Machine,
    desc: Any,
    buffer: Any,
    bar: Barrier,
    *rest: Any,
    rank: int,
    evict: str,
    targets: int = 0,
    remote: bool = False,
    pair: bool = False,
) -> None:
    offsets, ranks, pred = rest[:rank], rest[rank : rank + targets], rest[rank + targets :]
    _check_aligned(machine.call, int(offsets[-1]), buffer.itemsize)
    if pred and not pred[0]:
        return
    programs = [program_of(machine, r) for r in ranks] or [machine.strand.place]
    for program in programs:
        to = machine.array_elsewhere(buffer, program)
        counts = machine.elsewhere(bar, first_of_pair(machine, program) if pair else program)
        counts.later(machine, functools.partial(_bring, desc, offsets, to), to.nbytes, writes=[to])


def _bring(desc: Any, offsets: Any, to: Any) -> None:
    to[...] = read_box(desc, offsets).view(to.dtype).reshape(to.shape)


@async_descriptor_store.reference
def _store(
    machine: Machine, desc: Any, buffer: Any, *offsets: Any, rank: int, evict: str, reduce: str
) -> None:
    _check_aligned(machine.call, int(offsets[-1]), buffer.itemsize)
    for offset in offsets:
        _check_begin(machine.call, int(offset))
    combine = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip

    def copy() -> None:
        values = buffer.reshape(desc.block_shape)
        if reduce:
            old = read_box(desc, offsets)
            values = combine[reduce](old, values.view(old.dtype)).astype(old.dtype)
        write_box(desc, offsets, values)

    machine.later(STORES, copy, reads=[buffer])
    machine.close_group(STORES)


@async_descriptor_store_wait.reference
def _store_wait(machine: Machine, pendings: int, read_only: bool) -> None:
    machine.wait(STORES, pendings)


@async_descriptor_prefetch_tensor.reference
@prefetch.reference
def _hint(machine: Machine, *operands: Any, **attributes: Any) -> None:
    """A cache holds nothing that memory does not."""
