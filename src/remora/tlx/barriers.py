"""Barriers: mbarrier objects in shared memory, the machine's named barriers, and fences."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine, Queue
from remora.dsl.strands import Clock, join
from remora.errors import UnsupportedByTarget, WrongShape, WrongType
from remora.tlx.buffers import LOWERED_IN
from remora.tlx.ranks import program_of, rank_of
from remora.tlx.types import BarrierType, RemoteBarrierType
from remora.tlx_plugin import FROM_HOPPER_ON

# What an mbarrier object can count: arrivals, and bytes of a phase (PTX ISA, mbarrier).
_MOST = 2**20 - 1

_REASON = "barriers with phases and transactions are Hopper's and later NVIDIA GPUs'"
_INSTEAD = "on this target use tlx.async_load with its groups and waits"

FENCES = ("gpu", "sys", "async_shared")


def require_barriers(call: Call) -> None:
    """Refuse targets without mbarrier objects that count bytes."""
    call.require_target(*FROM_HOPPER_ON, reason=_REASON, instead=_INSTEAD)


def require_copy_engine(call: Call, instead: str) -> None:
    """Refuse targets without TMA."""
    call.require_target(
        *FROM_HOPPER_ON,
        reason="the copy engine (TMA) is Hopper's and later NVIDIA GPUs'",
        instead=instead,
    )


def barrier(call: Call, name: str, value: Any) -> Any:
    """Check that an argument is one barrier; an allocation of one stands for it."""
    from remora.tlx.buffers import local_view  # which needs barriers

    given = call.handle(name, value, BarrierType)
    if given.type.num == 1:
        return local_view(given, 0, _semantic=call.semantic, _generator=call.generator)
    if given.type.num:
        call.fail(
            WrongType,
            f"{name} has to be one barrier, it is {given.type}",
            hint="take one with tlx.local_view(barriers, i), or barriers[i]",
        )
    return given


def predicate(call: Call, value: Any) -> list[Any] | None:
    """The operands that a predicate is: none where it always holds, a scalar i1, None for never."""
    value = tl._unwrap_if_constexpr(value)
    if value is None or isinstance(value, (bool, int)):
        return [] if value is None or value else None
    if isinstance(value, tl.tensor) and not value.type.is_block() and value.dtype.is_int():
        return [value if value.dtype == tl.int1 else call.semantic.not_equal(value, 0)]
    return call.fail(
        WrongType,
        f"pred has to be a boolean, it is {describe(value)}",
        hint="give True, False or a comparison of scalars",
    )


def _count(call: Call, name: str, value: Any) -> int:
    """A constant number of arrivals or barriers: 1 to what a barrier can count."""
    count: int = call.constant(name, value)
    if not 1 <= count <= _MOST:
        call.fail(
            WrongShape,
            f"{name} has to be 1 to {_MOST}, it is {count}",
            hint=f"{name}=1",
        )
    return count


def _alloc(call: Call, num: int, arrive_count: int, is_warp_barrier: bool) -> Any:
    require_barriers(call)
    if call.num_ctas > 1:
        call.fail(
            UnsupportedByTarget,
            f"barriers of a program of {call.num_ctas} CTAs are not implemented yet",
            hint="launch with num_ctas=1",
        )
    return call.emit(
        [],
        [BarrierType(num, arrive_count, is_warp_barrier)],
        shape=(1,), dtype="int64", num=num, arrive_count=arrive_count,
    )  # fmt: skip


@op("tlx.alloc_barriers", lowered_in=LOWERED_IN)
def alloc_barriers(call: Call, num_barriers: Any, arrive_count: Any = 1) -> Any:
    """``num_barriers`` barriers, initialised: in phase 0, no arrivals.

    Args:
        num_barriers: constant, at least 1.
        arrive_count: arrivals that complete a phase, constant. A task's
            ``barrier_arrive`` is one arrival, and so is ``barrier_expect_bytes``.
    """
    return _alloc(
        call,
        _count(call, "num_barriers", num_barriers),
        _count(call, "arrive_count", arrive_count),
        is_warp_barrier=False,
    )


@op("tlx.alloc_warp_barrier", lowered_in=LOWERED_IN)
def alloc_warp_barrier(
    call: Call, num_barriers: Any, num_warps: Any = 1, num_arrivals: Any = 1
) -> Any:
    """``num_barriers`` barriers at which every thread arrives for itself.

    Args:
        num_barriers: constant, at least 1.
        num_warps: warps that arrive, constant: a phase takes 32 arrivals of each.
        num_arrivals: how often each thread arrives in a phase, constant.

    A task's ``barrier_arrive`` needs no synchronisation of its warps then.
    """
    counts = [
        _count(call, name, value)
        for name, value in (("num_warps", num_warps), ("num_arrivals", num_arrivals))
    ]
    arrivals = _count(call, "32 * num_warps * num_arrivals", 32 * counts[0] * counts[1])
    num = _count(call, "num_barriers", num_barriers)
    return _alloc(call, num, arrivals, is_warp_barrier=True)


@op("tlx.barrier_expect_bytes", lowered_in=LOWERED_IN)
def barrier_expect_bytes(call: Call, bar: Any, size: Any, pred: Any = None) -> None:
    """Arrive at a barrier, and have its phase wait for ``size`` bytes of copies too.

    Args:
        bar: one barrier.
        size: bytes, constant: 0 to 2**20 - 1.
        pred: a boolean; False: nothing happens.
    """
    given = barrier(call, "bar", bar)
    count = call.constant("size", size)
    if not 0 <= count <= _MOST:
        call.fail(
            WrongShape,
            f"size has to be 0 to {_MOST} bytes, it is {count}",
            hint="a barrier counts the bytes of the copies of one phase",
        )
    when = predicate(call, pred)
    if when is not None:
        call.emit([given, *when], size=count)


@op("tlx.barrier_wait", lowered_in=LOWERED_IN)
def barrier_wait(call: Call, bar: Any, phase: Any, pred: Any = None) -> None:
    """Wait until the phase of that parity has completed.

    Args:
        bar: one barrier.
        phase: 0 or 1, constant or not. A new barrier is in phase 0: a wait for 1
            passes, a wait for 0 passes when the first phase has completed.
        pred: a boolean; False: there is no wait.
    """
    given = barrier(call, "bar", bar)
    constant = tl._unwrap_if_constexpr(phase)
    if isinstance(constant, int):
        if constant not in (0, 1):
            call.fail(
                WrongShape,
                f"phase has to be 0 or 1, it is {constant}",
                hint="a wait is for the parity of a phase: phase & 1",
            )
        phase = int(constant)
    parity, when = call.integer("phase", phase), predicate(call, pred)
    if when is not None:
        call.emit([given, parity, *when])


@op("tlx.barrier_arrive", lowered_in=LOWERED_IN)
def barrier_arrive(
    call: Call, bar: Any, arrive_count: Any = 1, remote_cta_rank: Any = None
) -> None:
    """Arrive at a barrier: once for the task, or once for each thread of it at a warp barrier.

    Args:
        bar: one barrier.
        arrive_count: how many arrivals it counts as, constant.
        remote_cta_rank: of the CTA of the cluster whose barrier it is; None: the own one.

    What the task read and wrote before is done when the phase completes.
    """
    given: Any = call.handle("bar", bar, BarrierType, RemoteBarrierType)
    if isinstance(given.type, BarrierType):
        barrier(call, "bar", given)
    count = _count(call, "arrive_count", arrive_count)
    if count > given.type.arrive_count:
        call.fail(
            WrongShape,
            f"arrive_count is {count}, a phase of the barrier takes {given.type.arrive_count}",
            hint="an arrival cannot count for more than the phase takes",
        )
    operands, remote = [given], True
    if tl._unwrap_if_constexpr(remote_cta_rank) is not None:
        if isinstance(given.type, RemoteBarrierType):
            call.fail(
                WrongType,
                "bar is another CTA's already, and remote_cta_rank is given too",
                hint="give remote_cta_rank with a barrier of this CTA",
            )
        operands.append(rank_of(call, "remote_cta_rank", remote_cta_rank))
    elif isinstance(given.type, BarrierType):
        remote = False
    attributes: dict[str, Any] = {"remote": True} if remote else {}
    call.emit(
        operands, arrive_count=count, is_warp_barrier=given.type.is_warp_barrier, **attributes
    )


class Barrier:
    """A barrier under the reference meaning.

    phases: how many have completed. pending: arrivals that the current one lacks.
    bytes: bytes of copies that it expects still.
    queue: the copies that complete it; each is a group. commits: queues of products that an
    arrival follows, in flight. arriving, completed: what is known of the current phase, and of
    those before.
    """

    def __init__(self, count: int, where: str) -> None:
        self.count = self.pending = count
        self.where = where
        self.phases = self.bytes = 0
        self.queue = Queue()
        self.commits: deque[Queue] = deque()
        self.arriving: Clock = {}
        self.completed: Clock = {}

    def arrive(self, clock: Clock, count: int = 1) -> None:
        """Count arrivals; clock: what comes before them."""
        join(self.arriving, clock)
        self.pending -= count
        self._complete()

    def expect(self, count: int) -> None:
        """Have the phase wait for bytes too."""
        self.bytes += count

    def _complete(self) -> None:
        if self.pending <= 0 and not self.bytes:
            self.phases += 1
            self.pending = self.count
            join(self.completed, self.arriving)
            self.arriving = {}

    def later(self, machine: Machine, run: Any, size: int, **touched: Any) -> None:
        """An asynchronous copy of ``size`` bytes that completes on this barrier."""

        def copy() -> None:
            run()
            self.bytes -= size
            join(self.arriving, effect.clock)
            self._complete()

        effect = machine.later(self.queue, copy, **touched)
        machine.close_group(self.queue)

    def wait(self, machine: Machine, parity: int) -> None:
        """Make copies and products happen, in order, until the phase of that parity is complete."""
        while self.phases % 2 == parity:
            if self.queue.groups:
                self.queue.happen()
            elif self.commits:
                self.commits[0].happen()
            else:
                machine.block(
                    lambda: bool(self.phases % 2 != parity or self.queue.groups or self.commits),
                    lambda: self._lacks(parity),
                )
        machine.strand.acquire(self.completed)

    def _lacks(self, parity: int) -> str:
        return (
            f"waits for phase {parity} of the barrier of {self.where}, which has completed "
            f"{self.phases} phases; the current one lacks {self.pending} of {self.count} arrivals "
            f"and {self.bytes} bytes"
        )


@alloc_barriers.reference
@alloc_warp_barrier.reference
def _allocated(
    machine: Machine, shape: tuple[int, ...], dtype: str, num: int, arrive_count: int
) -> list[Barrier]:
    where = machine.call.where
    return [machine.make(Barrier(arrive_count, where)) for _ in range(num)]


@barrier_expect_bytes.reference
def _expect(machine: Machine, bar: Barrier, pred: Any = True, *, size: int) -> None:
    if pred:
        bar.expect(size)
        bar.arrive(machine.strand.release())
        machine.give_way()


@barrier_wait.reference
def _wait(machine: Machine, bar: Barrier, phase: Any, pred: Any = True) -> None:
    if pred:
        bar.wait(machine, int(phase))


@barrier_arrive.reference
def _arrive(
    machine: Machine,
    bar: Barrier,
    rank: Any = None,
    *,
    arrive_count: int,
    is_warp_barrier: bool,
    remote: bool = False,
) -> None:
    if rank is not None:
        bar = machine.elsewhere(bar, program_of(machine, rank))
    threads = 32 * machine.call.num_warps if is_warp_barrier else 1
    bar.arrive(machine.strand.release(), arrive_count * threads)
    machine.give_way()


# --- named barriers ----------------------------------------------------------------------------


def _named(call: Call, bar: Any, arrive_count: Any) -> None:
    call.require_target(
        "cuda", reason="named barriers are NVIDIA's", instead="tl.debug_barrier() joins all warps"
    )
    operands: list[Any] = []
    constants: dict[str, Any] = {}
    for key, name, value in (("id", "bar", bar), ("threads", "arrive_count", arrive_count)):
        value = tl._unwrap_if_constexpr(value)
        if not isinstance(value, int):
            operands.append(call.integer(name, value))
        constants[key] = value if isinstance(value, int) else None
    number, threads = constants["id"], constants["threads"]
    if number is not None and not 0 <= number <= 15:
        call.fail(
            WrongShape, f"bar has to be 0 to 15, it is {number}", hint="a CTA has 16 named barriers"
        )
    if threads is not None and (threads % 32 or not 32 <= threads <= 1024):
        call.fail(
            WrongShape,
            f"arrive_count has to be a multiple of 32 up to 1024, it is {threads}",
            hint="count the threads of all warps that wait or arrive, 32 each",
        )
    call.emit(operands, **constants)


@op("tlx.named_barrier_wait", lowered_in=LOWERED_IN)
def named_barrier_wait(call: Call, bar: Any, arrive_count: Any) -> None:
    """Arrive at a hardware barrier, and wait until ``arrive_count`` threads have.

    Args:
        bar: 0 to 15, constant or not. 0 is the compiler's, and with tasks so are those
            that follow: take them from 15 down.
        arrive_count: threads, those that only arrive and those that wait: a multiple of 32.
    """
    _named(call, bar, arrive_count)


@op("tlx.named_barrier_arrive", lowered_in=LOWERED_IN)
def named_barrier_arrive(call: Call, bar: Any, arrive_count: Any) -> None:
    """Arrive at a hardware barrier, and go on; arguments as of ``named_barrier_wait``."""
    _named(call, bar, arrive_count)


class _Named:
    """A named barrier under the reference meaning: threads that arrived; rounds that are over."""

    def __init__(self) -> None:
        self.arrived = self.rounds = 0
        self.arriving: Clock = {}
        self.completed: Clock = {}

    def arrive(self, clock: Clock, threads: int, wanted: int) -> None:
        join(self.arriving, clock)
        self.arrived += threads
        if self.arrived >= wanted:
            self.arrived -= wanted
            self.rounds += 1
            join(self.completed, self.arriving)
            self.arriving = {}


def _arrived(
    machine: Machine, operands: tuple[Any, ...], number: int | None, threads: int | None
) -> tuple[_Named, int, Callable[[], str]]:
    """Arrive at a named barrier; returns it, the round before, and what the round lacks."""
    rest = [int(v) for v in operands]
    number = rest.pop(0) if number is None else number
    wanted = rest.pop(0) if threads is None else threads
    bar: _Named = machine.state.setdefault("named barriers", {}).setdefault(number, _Named())
    before = bar.rounds
    bar.arrive(machine.strand.release(), 32 * machine.call.num_warps, wanted)
    return (
        bar,
        before,
        lambda: (
            f"waits at named barrier {number}, where {bar.arrived} of {wanted} threads have arrived"
        ),
    )


@named_barrier_wait.reference
def _named_wait(machine: Machine, *operands: Any, id: int | None, threads: int | None) -> None:
    bar, before, lacks = _arrived(machine, operands, id, threads)
    machine.block(lambda: bar.rounds > before, lacks)
    machine.strand.acquire(bar.completed)


@named_barrier_arrive.reference
def _named_arrive(machine: Machine, *operands: Any, id: int | None, threads: int | None) -> None:
    _arrived(machine, operands, id, threads)
    machine.give_way()


# --- fences ------------------------------------------------------------------------------------


@op("tlx.fence", lowered_in=LOWERED_IN)
def fence(call: Call, scope: Any) -> None:
    """Order this thread's accesses to memory before those after it.

    Args:
        scope: constant. "gpu": as all threads of the GPU see them; "sys": the host and
            other GPUs too; "async_shared": what was stored to shared memory, as ``wgmma``
            and TMA see it.
    """
    scope = call.constant("scope", scope, str)
    if scope not in FENCES:
        call.fail(
            WrongType,
            f"scope has to be one of {', '.join(FENCES)}, it is {scope!r}",
            hint='tlx.fence("gpu")',
        )
    _fence(call, scope)


@op("tlx.fence_async_shared", lowered_in=LOWERED_IN)
def fence_async_shared(call: Call) -> None:
    """``fence("async_shared")``: between ``local_store`` and a TMA store or ``async_dot``."""
    _fence(call, "async_shared")


def _fence(call: Call, scope: str) -> None:
    if scope == "async_shared":
        call.require_target(
            *FROM_HOPPER_ON,
            reason="wgmma and TMA are Hopper's and later NVIDIA GPUs'",
            instead="leave the fence out",
        )  # fmt: skip
    else:
        call.require_target(
            "cuda",
            reason="it is an instruction of NVIDIA's",
            instead='atomics order memory: tl.atomic_add(..., sem="acq_rel", scope="gpu")',
        )
    call.emit([], scope=scope)


@fence.reference
@fence_async_shared.reference
def _fenced(machine: Machine, scope: str) -> None:
    """Memory is in order here."""
