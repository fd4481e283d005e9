"""Runs kernels with the operations' reference meaning, inside Triton's interpreter.

The interpreter keeps bf16 and fp8 as integers of the same width; references
see them as numbers (``ml_dtypes``). What is asynchronous is an effect that
happens later, at the last moment that the program allows; what waits makes the
effects happen. Programs of a cluster and tasks run at the same time (``strands``).
Two accesses to the same memory of which one writes, and which nothing orders, are a
race, and an error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from triton.language import core as tl

from remora.dsl.strands import Clock, Strand, Team, current, join
from remora.dsl.values import Handle, HandleType
from remora.errors import PluginError, ReferenceRace, WaitNeverEnds

if TYPE_CHECKING:
    from remora.dsl.op import Call

Array = np.ndarray[Any, Any]
T = TypeVar("T")


@dataclass(eq=False)
class Effect:
    """Something asynchronous that is in flight.

    run: makes it happen. clock: what it comes after, and itself.
    """

    run: Callable[[], None]
    clock: Clock


@dataclass(eq=False)
class Queue:
    """Effects that happen in order, in groups. count: how many there have been."""

    groups: deque[list[Effect]] = field(default_factory=deque)
    opened: list[Effect] = field(default_factory=list)
    count: int = 0

    def happen(self) -> Clock:
        """Make the first closed group happen, if there is one; returns what is known of it."""
        known: Clock = {}
        for effect in self.groups.popleft() if self.groups else ():
            effect.run()
            join(known, effect.clock)
        return known


@dataclass(eq=False)
class _Access:
    """Memory that a strand, or an effect of a queue, touched.

    who, time: in clocks that know of it. what, where: the operation, and the kernel's line.
    """

    memory: Array
    writes: bool
    who: Hashable
    time: int
    what: str
    where: str

    def is_of(self, memory: Array) -> bool:
        """Whether it touched just this memory."""
        ours, theirs = self.memory.__array_interface__, memory.__array_interface__
        return all(ours[key] == theirs[key] for key in ("data", "shape", "strides", "typestr"))


class Program:
    """One program of a launch. state: what plugins keep for it, by name.

    made: what stands for memory that each program of a cluster has in the same place, by that
    place.
    """

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.made: dict[Hashable, Any] = {}
        self.places: dict[int, Hashable] = {}  # of what was made, by its identity


class Machine:
    """What the operations of one strand see: a program of a launch, or a task of one.

    call: the use of the operation that is running, for errors.
    """

    def __init__(self, program: Program, strand: Strand, team: Team) -> None:
        self.call: Call = None  # type: ignore[assignment]  # set with each use
        self.program, self.strand, self.team = program, strand, team
        self._queues: dict[str, Queue] = {}
        self._path: tuple[int, ...] = ()
        self._made = self._sets = 0

    @property
    def state(self) -> dict[str, Any]:
        """What plugins keep for the program, by name."""
        return self.program.state

    # --- what is asynchronous ---

    def queue(self, queue: str | Queue) -> Queue:
        """The strand's queue of that name."""
        if isinstance(queue, Queue):
            return queue
        return self._queues.setdefault(queue, Queue())

    def later(
        self,
        queue: str | Queue,
        run: Callable[[], None],
        *,
        reads: Sequence[Array] = (),
        writes: Sequence[Array] = (),
        in_order: bool = False,
    ) -> Effect:
        """An asynchronous effect; it joins the open group of ``queue``.

        Args:
            queue: the strand's, by name, or one that strands share.
            run: makes it happen, at a wait.
            reads, writes: the memory that it touches until then.
            in_order: it comes after what is in ``queue``, and does not race with that.

        Raises:
            ReferenceRace: see ``touch``.
        """
        line = self.queue(queue)
        clock = dict(self.strand.clock)
        if in_order:
            clock[line] = line.count
        line.count += 1
        self._enter(clock, line, line.count, reads, writes)
        clock[line] = line.count
        effect = Effect(run, clock)
        line.opened.append(effect)
        return effect

    def touch(self, *, reads: Sequence[Array] = (), writes: Sequence[Array] = ()) -> None:
        """Say that memory is read or written now.

        Raises:
            ReferenceRace: an effect in flight, or another strand, writes it, or reads what is
                written, and nothing orders the two.
        """
        strand = self.strand
        self._enter(strand.clock, strand, strand.clock[strand], reads, writes)

    def _enter(
        self, clock: Clock, who: Hashable, time: int, reads: Sequence[Array],
        writes: Sequence[Array],
    ) -> None:  # fmt: skip
        """Check an access against those before it, and keep it for those after it."""
        known: dict[int, tuple[Array, list[_Access]]] = self.team.state.setdefault("memory", {})
        alone = self.team.is_alone
        what, where = self.call.op.__name__, ""
        for memory, does_write in [*((m, False) for m in reads), *((m, True) for m in writes)]:
            root = memory
            while isinstance(root.base, np.ndarray):
                root = root.base
            # The entry holds the memory, so that its identity stays its own.
            _, before = known.setdefault(id(root), (root, []))
            kept = []
            for access in before:
                ordered = clock.get(access.who, 0) >= access.time
                itself = access.who is who and access.time == time
                if not (ordered or itself) and (does_write or access.writes):
                    self._check(access, memory, does_write)
                # What is ordered before this one, which whoever comes later has to come after.
                covered = does_write or (access.who is who and not access.writes)
                if not ordered or not (alone or (covered and access.is_of(memory))):
                    kept.append(access)
            if not alone or who is not self.strand:
                where = where or self.call.where
                kept.append(_Access(memory, does_write, who, time, what, where))
            before[:] = kept

    def _check(self, access: _Access, memory: Array, does_write: bool) -> None:
        if not _share_memory(memory, access.memory):
            return
        ours = "written" if does_write else "read"
        if isinstance(access.who, Queue):
            self.call.fail(
                ReferenceRace,
                f"memory is {ours} that {access.what} at {access.where} still "
                f"{'writes' if access.writes else 'reads'}",
                hint=f"wait for the {access.what} first",
            )
        theirs = getattr(access.who, "name", "")
        self.call.fail(
            ReferenceRace,
            f"memory is {ours} by {self.strand.name} that {access.what} at {access.where}, in "
            f"{theirs}, {'writes' if access.writes else 'reads'}, and nothing orders the two",
            hint="have that one arrive at a barrier when it is done, and wait for it here",
        )

    def close_group(self, queue: str | Queue) -> None:
        """Close the open group of ``queue`` (an empty one counts too)."""
        line = self.queue(queue)
        line.groups.append(line.opened)
        line.opened = []

    def wait(self, queue: str, pending: int) -> None:
        """Block until at most ``pending`` closed groups of ``queue`` are in flight."""
        line = self.queue(queue)
        while len(line.groups) > pending:
            self.strand.acquire(line.happen())

    # --- what others bring about ---

    def block(self, ready: Callable[[], bool], lacks: Callable[[], str]) -> None:
        """Let other strands go on until ``ready()``.

        Args:
            ready: has no effect, and does not wait.
            lacks: what is waited for, for messages: "waits for ...".

        Raises:
            WaitNeverEnds: none can go on.
        """
        if ready():
            return
        if self.team.is_alone:
            self.call.fail(
                WaitNeverEnds,
                f"the wait never ends: the program {lacks()}",
                hint="no other task is there, and no other program of a cluster: what a wait "
                "waits for has to come before it",
            )
        call = self.call
        self.team.wait(self.strand, ready, lacks, call.where)
        self.call = call

    def give_way(self) -> None:
        """Let another strand go on, after what one may wait for."""
        if not self.team.is_alone:
            call = self.call
            self.team.wait(self.strand, lambda: True, str, call.where)
            self.call = call

    def fork(self, tasks: Sequence[tuple[str, Callable[[], None]]]) -> None:
        """Run tasks of the program at the same time, and wait for all of them.

        tasks: a name, for messages, and what each does.

        Raises:
            WaitNeverEnds: none can go on. What one of them raises.
        """
        call, self._sets = self.call, self._sets + 1
        known = self.strand.release()
        bodies = []
        for number, (name, body) in enumerate(tasks):
            strand = Strand(f"{self.strand.name}, {name}", self.strand.place, known)
            strand.machine = Machine(self.program, strand, self.team)
            strand.machine.call = call
            strand.machine._path = (*self._path, self._sets, number)
            bodies.append((strand, body))
        self.team.run(self.strand, bodies)
        self.call = call

    # --- memory that each program of a cluster has in the same place ---

    def make(self, thing: T) -> T:
        """Say that something stands for memory that other programs have in the same place."""
        place = (*self._path, self._made)
        self._made += 1
        self.program.made[place] = thing
        self.program.places[id(thing)] = place
        return thing

    def elsewhere(self, thing: T, program: Any) -> T:
        """What another program of the cluster has in the place of something that was made.

        program: its place in the grid. Blocks until it is there.
        """
        if program == self.strand.place:
            return thing
        place = self.program.places[id(thing)]
        programs: dict[Any, Program] = self.team.state["programs"]
        made = programs[program].made
        if place not in made:
            self.block(
                lambda: place in made, lambda: f"waits for program {program} to allocate the same"
            )
        found: T = made[place]
        return found

    def array_elsewhere(self, array: Array, program: Any) -> Array:
        """``elsewhere`` of a part of an array that was made."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        return np.ndarray(
            array.shape, array.dtype, self.elsewhere(root, program), start, array.strides
        )


def _share_memory(a: Array, b: Array) -> bool:
    """Whether two arrays have an element in common; parts of one matrix may lie between others."""
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


_local = threading.local()


def machine(call: Call) -> Machine:
    """The machine of the program, or the task, that the interpreter is running."""
    strand = current()
    if strand is not None:
        found: Machine = strand.machine
    else:
        from triton.runtime.interpreter import interpreter_builder

        place = interpreter_builder.grid_idx  # a new tuple for each program
        if getattr(_local, "place", None) is not place:
            strand = Strand(f"program {place}", place)
            _local.place, _local.machine = place, Machine(Program(), strand, Team(strand))
        found = _local.machine
    found.call = call
    return found


def run_together(places: Sequence[Any], run: Callable[[], None]) -> None:
    """Run programs of a launch at the same time, in the thread that the interpreter runs in.

    Args:
        places: of the programs, in the grid. run: runs the one whose place is the interpreter's.

    Raises:
        WaitNeverEnds: none can go on. What one of them raises.
    """
    first = Strand("the cluster", places[0])
    team = Team(first)
    programs: dict[Any, Program] = {place: Program() for place in places}
    team.state["programs"] = programs
    bodies = []
    for place, program in programs.items():
        strand = Strand(f"program {place}", place)
        strand.is_program = True
        strand.machine = Machine(program, strand, team)
        bodies.append((strand, run))
    team.run(first, bodies)


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
