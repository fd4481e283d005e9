"""Runs kernels with the operations' reference meaning, inside Triton's interpreter.

The interpreter keeps bf16 and fp8 as integers of the same width; references
see them as numbers (``ml_dtypes``). What is asynchronous is an effect that
happens later, at the last moment that the program allows; what waits makes the
effects happen. An access to memory that an effect in flight reads or writes is a
race, and an error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from triton.language import core as tl

from remora.dsl.values import Handle, HandleType
from remora.errors import PluginError, ReferenceRace

if TYPE_CHECKING:
    from remora.dsl.op import Call

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Effect:
    """Something asynchronous that is in flight.

    run: makes it happen. reads, writes: the memory that it touches. what, where:
    the operation, and the kernel's line.
    """

    run: Callable[[], None]
    reads: tuple[Array, ...]
    writes: tuple[Array, ...]
    what: str
    where: str


class Machine:
    """One program of a launch under the reference meaning.

    state: what plugins keep for the program, by name.
    call: the use of the operation that is running, for errors.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.state: dict[str, Any] = {}
        self._open: dict[str, list[Effect]] = {}
        self._groups: dict[str, deque[list[Effect]]] = {}

    def later(
        self,
        queue: str,
        run: Callable[[], None],
        *,
        reads: Sequence[Array] = (),
        writes: Sequence[Array] = (),
        in_order: bool = False,
    ) -> None:
        """An asynchronous effect; it joins the open group of ``queue``.

        Args:
            run: makes it happen, at a wait.
            reads, writes: the memory that it touches until then.
            in_order: it comes after what is in ``queue``, and does not race with that.

        Raises:
            ReferenceRace: see ``touch``.
        """
        self.touch(reads=reads, writes=writes, besides=queue if in_order else "")
        effect = Effect(run, tuple(reads), tuple(writes), self.call.op.__name__, self.call.where)
        self._open.setdefault(queue, []).append(effect)

    def touch(
        self, *, reads: Sequence[Array] = (), writes: Sequence[Array] = (), besides: str = ""
    ) -> None:
        """Say that memory is read or written now.

        besides: a queue whose effects do not count.

        Raises:
            ReferenceRace: an effect in flight writes it, or reads what is written.
        """
        for effect in self._in_flight(besides):
            for ours, theirs, ours_do, theirs_do in (
                (writes, effect.writes, "written", "writes"),
                (writes, effect.reads, "written", "reads"),
                (reads, effect.writes, "read", "writes"),
            ):
                if any(_share_memory(a, b) for a in ours for b in theirs):
                    self.call.fail(
                        ReferenceRace,
                        f"memory is {ours_do} that {effect.what} at {effect.where} still "
                        f"{theirs_do}",
                        hint=f"wait for the {effect.what} first",
                    )

    def _in_flight(self, besides: str) -> Iterator[Effect]:
        for queue, effects in self._open.items():
            if queue != besides:
                yield from effects
        for queue, groups in self._groups.items():
            for effects in groups if queue != besides else ():
                yield from effects

    def close_group(self, queue: str) -> None:
        """Close the open group of ``queue`` (an empty one counts too)."""
        self._groups.setdefault(queue, deque()).append(self._open.pop(queue, []))

    def wait(self, queue: str, pending: int) -> None:
        """Block until at most ``pending`` closed groups of ``queue`` are in flight."""
        while len(self._groups.setdefault(queue, deque())) > pending:
            self.happen(queue)

    def happen(self, queue: str) -> bool:
        """Make the first closed group of ``queue`` happen; False where there is none."""
        groups = self._groups.get(queue)
        for effect in groups.popleft() if groups else ():
            effect.run()
        return groups is not None


def _share_memory(a: Array, b: Array) -> bool:
    """Whether two arrays have an element in common; parts of one matrix may lie between others."""
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


_local = threading.local()


def machine(call: Call) -> Machine:
    """The machine of the program that the interpreter is running."""
    from triton.runtime.interpreter import interpreter_builder

    program = interpreter_builder.grid_idx  # a new tuple for each program
    if getattr(_local, "program", None) is not program:
        _local.program, _local.machine = program, Machine(call)
    current: Machine = _local.machine
    current.call = call
    return current


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy type of numbers of a Triton element type."""
    import ml_dtypes

    special = {
        tl.bfloat16: ml_dtypes.bfloat16,
        tl.float8e4nv: ml_dtypes.float8_e4m3fn,
        tl.float8e5: ml_dtypes.float8_e5m2,
        tl.float8e4b8: ml_dtypes.float8_e4m3fnuz,
        tl.float8e5b16: ml_dtypes.float8_e5m2fnuz,
    }
    if dtype.is_ptr():
        return np.dtype(np.uint64)
    if dtype in special:
        return np.dtype(special[dtype])
    return np.dtype(
        {"int1": "bool", "fp16": "float16", "fp32": "float32", "fp64": "float64"}.get(
            dtype.name, dtype.name
        )
    )


def to_numpy(value: Any) -> Any:
    """A tensor's numbers, without a copy; a handle's object."""
    if isinstance(value, Handle):
        return value.carried
    array = value.handle.data
    wanted = numpy_dtype(value.dtype)
    if array.dtype != wanted and wanted.itemsize == array.dtype.itemsize:
        array = array.view(wanted)
    return array if value.type.is_block() else array.reshape(())


def from_numpy(array: Any, kind: Any) -> Any:
    """A tensor of a type from numbers (no copy where the element type is the same)."""
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    if isinstance(kind, HandleType):
        return kind.value_class(array, kind)
    scalar = kind.scalar
    array = np.asarray(array)
    wanted = numpy_dtype(scalar)
    if array.dtype != wanted:
        array = array.astype(wanted)
    stored = _get_np_dtype(scalar)
    if array.dtype != stored:
        array = array.view(stored)
    if not kind.is_block():
        array = array.reshape((1,))
    return tl.tensor(TensorHandle(array, scalar), kind)


def run_reference(
    call: Call, operands: Sequence[Any], results: Sequence[Any], attributes: dict[str, Any]
) -> Any:
    """Run the reference meaning of a call and wrap its results."""
    function = call.op.references
    if function is None:
        raise PluginError(
            f"the operation {call.op.name} has no reference meaning",
            where=call.where,
            hint=f"attach one with @{call.op.__name__}.reference",
        )
    returned = function(machine(call), *map(to_numpy, operands), **attributes)
    values = returned if len(results) > 1 else ((returned,) if results else ())
    if not isinstance(values, tuple) or len(values) != len(results):
        raise PluginError(
            f"the reference meaning of {call.op.name} returned {returned!r}",
            where=call.where,
            hint=f"return a tuple of its {len(results)} results",
        )
    wrapped = tuple(from_numpy(v, k) for v, k in zip(values, results, strict=True))
    if not wrapped:
        return None
    return wrapped[0] if len(wrapped) == 1 else wrapped
