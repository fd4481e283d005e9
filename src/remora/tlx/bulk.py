"""Bulk copies: contiguous bytes between global and shared memory, by one instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import WrongShape, WrongType
from remora.tlx.barriers import Barrier, barrier, require_copy_engine
from remora.tlx.buffers import LOWERED_IN, view
from remora.tlx.descriptors import STORES
from remora.tlx.types import TokenType, bits


def _pointer(call: Call, name: str, value: Any) -> Any:
    value = tl._unwrap_if_constexpr(value)
    if not isinstance(value, tl.tensor) or value.type.is_block() or not value.dtype.is_ptr():
        call.fail(
            WrongType,
            f"{name} has to be one pointer, it is {describe(value)}",
            hint="a bulk copy is of contiguous bytes: give the pointer to the first of them",
        )
    return value


def _size(call: Call, name: str, value: Any, buffer: Any) -> Any:
    """Bytes to copy: multiples of 16 that the buffer has."""
    whole = bits(buffer.dtype) // 8 * int(np.prod(buffer.shape))
    if whole % 16:
        call.fail(
            WrongShape,
            f"the buffer has {whole} bytes: a bulk copy is of a multiple of 16",
            hint="allocate a larger buffer",
        )
    value = tl._unwrap_if_constexpr(value)
    value = whole if value is None else value
    if isinstance(value, int) and not (0 < value <= whole and value % 16 == 0):
        call.fail(
            WrongShape,
            f"{name} is {value}: a bulk copy into or out of {buffer.type} is of a multiple of 16 "
            f"bytes, up to {whole}",
            hint=f"{name}={whole} copies all of it",
        )
    return call.integer(name, value)


def check_bulk_load(
    call: Call, src: Any, result: Any, bulk_size: Any, bar: Any
) -> tuple[Any, Any, Any, Any]:
    """Check the arguments of ``async_load`` with ``bulk``; the operands."""
    require_copy_engine(call, "leave bulk out: tlx.async_load has groups and waits")
    buffer = view(call, "result", result)
    if len(buffer.shape) != 1:
        call.fail(
            WrongShape,
            f"a bulk copy fills a buffer of one dimension, this is {buffer.type}",
            hint="tlx.local_reinterpret gives a buffer another shape",
        )
    if tl._unwrap_if_constexpr(bar) is None:
        call.fail(
            WrongType,
            "a bulk copy needs a barrier",
            hint="barrier=: a wait for its phase is the wait for the copy",
        )
    given = barrier(call, "barrier", bar)
    return _pointer(call, "src", src), buffer, given, _size(call, "bulk_size", bulk_size, buffer)


@op("tlx.bulk_load", lowered_in=LOWERED_IN)
def bulk_load(call: Call, src: Any, result: Any, bulk_size: Any, barrier: Any) -> Any:
    """What ``async_load(..., bulk=True)`` is: copy bytes, which the barrier's phase gets."""
    operands = check_bulk_load(call, src, result, bulk_size, barrier)
    return call.emit(operands, [TokenType()])


@op("tlx.async_store", lowered_in=LOWERED_IN)
def async_store(call: Call, dst_global_ptr: Any, src_smem: Any, size: Any) -> None:
    """Copy the first ``size`` bytes of a buffer to global memory, asynchronously.

    Args:
        dst_global_ptr: a pointer, aligned to 16 bytes.
        src_smem: one buffer. After ``local_store`` into it comes ``fence_async_shared``.
        size: bytes, constant or not, a multiple of 16.

    It is a group of its own for ``async_descriptor_store_wait``.
    """
    require_copy_engine(call, "tl.store what tlx.local_load reads")
    buffer = view(call, "src_smem", src_smem)
    call.emit(
        [
            _pointer(call, "dst_global_ptr", dst_global_ptr),
            buffer,
            _size(call, "size", size, buffer),
        ]
    )


def _bytes(address: Any, size: int) -> tuple[Any, Any]:
    at = np.arange(size, dtype=np.uint64) + np.uint64(address.item())
    return at, np.ones(size, bool)


@bulk_load.reference
def _load(machine: Machine, src: Any, buffer: Any, bar: Barrier, size: Any) -> None:
    count = int(size)

    def copy() -> None:
        from triton._C.libtriton import interpreter

        at, all_of_them = _bytes(src, count)
        other = np.zeros(count, np.uint8)
        data = interpreter.load(at, all_of_them, other, np.dtype(np.uint8))
        buffer.view(np.uint8)[:count] = data

    bar.later(machine, copy, count, writes=[buffer])


@async_store.reference
def _store(machine: Machine, dst: Any, buffer: Any, size: Any) -> None:
    def copy() -> None:
        from triton._C.libtriton import interpreter

        at, all_of_them = _bytes(dst, int(size))
        data = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)[: int(size)]
        interpreter.store(at, np.ascontiguousarray(data), all_of_them)

    machine.later(STORES, copy, reads=[buffer])
    machine.close_group(STORES)
