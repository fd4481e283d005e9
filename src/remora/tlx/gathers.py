"""Elements of a buffer at places that are known when the kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine
from remora.errors import BufferIndexError, WrongDtype, WrongShape
from remora.tlx.buffers import LOWERED_IN, view

Array = np.ndarray[Any, Any]


def _places(call: Call, buffer: Any, indices: Any, axis: Any) -> tuple[Any, int]:
    given = call.tensor("indices", indices)
    if not given.dtype.is_int():
        call.fail(
            WrongDtype, f"indices are of {given.dtype}", hint="give integers: indices.to(tl.int32)"
        )
    rank, extents = len(buffer.shape), tuple(given.shape)
    dim = call.constant("axis", axis)
    if len(extents) != rank or not -rank <= dim < rank:
        call.fail(
            WrongShape,
            f"axis {dim} and indices of shape {extents} do not fit {buffer.type}",
            hint=f"indices have {rank} dimensions as the buffer has, axis is one of them",
        )
    dim %= rank
    if any(
        n > most for d, (n, most) in enumerate(zip(extents, buffer.shape, strict=True)) if d - dim
    ):
        call.fail(
            WrongShape,
            f"indices of shape {extents} go beyond {buffer.type}",
            hint=f"along all axes but {dim} they are at most as long as the buffer",
        )
    return given, dim


@op("tlx.local_gather", lowered_in=LOWERED_IN)
def local_gather(call: Call, src: Any, indices: Any, axis: Any) -> Any:
    """Elements of a buffer: ``src[indices[i, j], j]`` for ``axis`` 0 of two dimensions.

    Args:
        src: one buffer.
        indices: a tensor of integers with the buffer's dimensions, each at least 0 and under
            the buffer's extent along ``axis``.
        axis: constant: the dimension that the indices are of.

    Returns:
        a tensor of the shape of ``indices`` and the dtype of the buffer.
    """
    buffer = view(call, "src", src)
    given, dim = _places(call, buffer, indices, axis)
    return call.emit([buffer, given], [tl.block_type(buffer.dtype, list(given.shape))], axis=dim)


@op("tlx.local_scatter", lowered_in=LOWERED_IN)
def local_scatter(call: Call, dst: Any, values: Any, indices: Any, axis: Any) -> None:
    """Store into a buffer: ``dst[indices[i, j], j] = values[i, j]`` for ``axis`` 0 of two.

    Args:
        dst: one buffer.
        values: a tensor of the shape of ``indices`` and the dtype of the buffer.
        indices, axis: as of ``local_gather``. Which of two values that go to one place is
            there in the end is not said.
    """
    buffer = view(call, "dst", dst)
    given, dim = _places(call, buffer, indices, axis)
    value = call.tensor("values", values, shape=tuple(given.shape))
    if value.dtype != buffer.dtype:
        call.fail(
            WrongDtype,
            f"values are of {value.dtype}, the buffer of {buffer.dtype}",
            hint="values.to(tlx.dtype_of(dst)) converts them",
        )
    call.emit([buffer, value, given], axis=dim)


def _at(machine: Machine, buffer: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    if indices.size and not 0 <= indices.min() <= indices.max() < buffer.shape[axis]:
        machine.call.fail(
            BufferIndexError,
            f"indices from {indices.min()} to {indices.max()} are not all of the "
            f"{buffer.shape[axis]} elements along axis {axis}",
            hint="they are at least 0 and under the buffer's extent",
        )
    places: list[Array] = list(np.indices(indices.shape))
    places[axis] = indices
    return tuple(places)


@local_gather.reference
def _gather(machine: Machine, buffer: Array, indices: Array, axis: int) -> Array:
    machine.touch(reads=[buffer])
    gathered: Array = buffer[_at(machine, buffer, indices, axis)]
    return gathered


@local_scatter.reference
def _scatter(machine: Machine, buffer: Array, values: Array, indices: Array, axis: int) -> None:
    machine.touch(writes=[buffer])
    buffer[_at(machine, buffer, indices, axis)] = values
