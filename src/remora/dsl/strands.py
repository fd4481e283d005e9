"""Strands: what runs at the same time under the reference meaning, one at a time.

Programs of a cluster and tasks of a program are strands of a team. Each has a thread, of
which one at a time runs: it goes on until it waits or ends, and hands over to the next one, in
the order in which they were made, that can go on. So each run is the same as the one before. Where
none can go on, that is an error that says what each of them waits for.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from remora.errors import WaitNeverEnds

#: How far somebody has come, as somebody else knows: for each strand or queue, a time.
Clock = dict[Hashable, int]

_local = threading.local()


class Cancelled(BaseException):
    """Ends a strand whose team has failed."""


def join(clock: Clock, other: Clock) -> None:
    """Have a clock know what another one knows."""
    for who, time in other.items():
        if clock.get(who, 0) < time:
            clock[who] = time


class Strand:
    """One of what runs at the same time.

    name: for messages. place: the program's place in the grid. machine: what operations see.
    is_program: whether it is all of a program, and not a task of one.
    clock: what happened before what the strand does now; its own time counts what it has released.
    """

    def __init__(self, name: str, place: Any, clock: Clock | None = None) -> None:
        self.name, self.place = name, place
        self.clock: Clock = dict(clock or {})
        self.clock[self] = 1
        self.machine: Any = None
        self.children: Sequence[Strand] = ()
        self.ended = self.is_program = False
        # What it waits for: when it can go on, and in words; and at which line.
        self._ready: Callable[[], bool] | None = None
        self._lacks: Callable[[], str] = str
        self._where = ""
        self._baton = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._begun = True

    def release(self) -> Clock:
        """What the strand has done, for those who wait for it; what follows is not in it."""
        known = dict(self.clock)
        self.clock[self] += 1
        return known

    def acquire(self, clock: Clock) -> None:
        """What follows comes after all that a clock knows."""
        join(self.clock, clock)

    def begins_with(self, target: Callable[[], None]) -> None:
        """What the strand's thread runs when it is first handed the baton."""
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(target,), daemon=True, name=self.name
        )
        self._begun = False

    @property
    def can_go_on(self) -> bool:
        """Whether it does not wait for what has not come."""
        return not self.ended and (self._ready is None or self._ready())

    def _go(self) -> None:
        """Hand it the baton."""
        if self._begun:
            self._baton.release()
        elif self._thread is not None:
            self._begun = True
            self._thread.start()

    def describe(self) -> str:
        """What the strand is at, for messages."""
        if self.ended:
            return f"{self.name} has ended"
        return f"{self.name}, at {self._where}, {self._lacks()}"


class Team:
    """Strands that run at the same time. The first one's thread is that which made the team.

    state: what plugins keep for the team, by name.
    """

    def __init__(self, first: Strand) -> None:
        self.strands = [first]
        self.state: dict[str, Any] = {}
        self._first = first
        self._failure: BaseException | None = None

    @property
    def is_alone(self) -> bool:
        """Whether only one strand is there."""
        return len(self.strands) == 1

    def members(self) -> list[Strand]:
        """The strands that do work: without those that wait for strands of their own.

        One that ended is among them while others that began with it run.
        """
        return [s for s in self.strands if not s.children]

    def run(self, parent: Strand, bodies: Sequence[tuple[Strand, Callable[[], None]]]) -> None:
        """Run strands, and wait for all of them.

        Raises:
            WaitNeverEnds: none can go on. What one of them raises.
        """
        children = [strand for strand, _ in bodies]
        for strand, body in bodies:
            strand.begins_with(functools.partial(self._live, strand, body))
        parent.children = children
        self.strands += children
        try:
            self.wait(
                parent, lambda: all(c.ended for c in children), lambda: "waits for its tasks", ""
            )
        except BaseException:
            if parent is self._first:
                self._end_all()
            raise
        self.strands = [s for s in self.strands if s not in children]
        parent.children = ()
        for child in children:
            parent.acquire(child.clock)

    def wait(
        self, strand: Strand, ready: Callable[[], bool], lacks: Callable[[], str], where: str
    ) -> None:
        """Let others go on, once, and until ``ready()``.

        Args:
            strand: the one that is running.
            ready: has no effect, and does not wait.
            lacks: what the strand waits for, for messages: "waits for ...".
            where: the kernel's line.

        Raises:
            WaitNeverEnds: none can go on.
        """
        if self._failure is not None:
            raise Cancelled
        strand._ready, strand._lacks, strand._where = ready, lacks, where
        self._hand_over(strand)
        strand._ready = None

    def _live(self, strand: Strand, body: Callable[[], None]) -> None:
        """The thread of a strand, from its beginning to its end."""
        _local.strand = strand
        try:
            body()
        except Cancelled:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        strand.ended = True
        self._pass_on(self._first if self._failure else self._next(strand))

    def _next(self, strand: Strand) -> Strand:
        """Who goes on after a strand; the first one, to fail, where nobody can."""
        at = self.strands.index(strand) + 1
        for other in self.strands[at:] + self.strands[:at]:
            if other.can_go_on:
                return other
        self._failure = self._nobody()
        return self._first

    def _nobody(self) -> WaitNeverEnds:
        waiting = [s for s in self.members() if not s.ended]
        rows = "".join(f"\n    {s.describe()}" for s in self.members())
        return WaitNeverEnds(
            f"the wait never ends: nobody can go on{rows}",
            where=waiting[0]._where if waiting else "",
            hint="what one waits for has to be brought about by another one of these: an arrival "
            "is missing, or there is one too many, or a phase is the wrong one",
        )

    def _hand_over(self, strand: Strand) -> None:
        other = self._next(strand)
        if other is not strand:
            self._pass_on(other)
            strand._baton.acquire()
        if self._failure is not None:
            raise self._failure if strand is self._first else Cancelled

    def _pass_on(self, strand: Strand) -> None:
        from triton.runtime.interpreter import interpreter_builder

        interpreter_builder.grid_idx = strand.place
        strand._go()

    def _end_all(self) -> None:
        """End all strands but the first one, which is running."""
        if self._failure is None:  # an interrupt: another one is running still
            self._failure = Cancelled()
            return
        for strand in self.strands[1:]:
            if not strand._begun:
                strand.ended = True
            if not strand.ended:
                strand._go()
                self._first._baton.acquire()


def current() -> Strand | None:
    """The strand whose thread this is; None for one that no team began."""
    return getattr(_local, "strand", None)
