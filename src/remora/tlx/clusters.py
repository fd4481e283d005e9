"""Clusters: CTAs that reach each other's shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine
from remora.dsl.strands import Clock, Strand, Team, join
from remora.errors import WrongDtype, WrongShape, WrongType
from remora.tlx.barriers import Barrier
from remora.tlx.barriers import barrier as barrier_
from remora.tlx.buffers import LOWERED_IN, view
from remora.tlx.ranks import place, program_of, rank_of, require_clusters
from remora.tlx.types import BarrierType, BufferType, RemoteBarrierType


@op("tlx.cluster_cta_rank", lowered_in=LOWERED_IN)
def cluster_cta_rank(call: Call) -> Any:
    """The number of this CTA in its cluster, an int32: 0 to the cluster's size less 1."""
    require_clusters(call)
    return call.emit([], [tl.int32])


@cluster_cta_rank.reference
def _rank(machine: Machine) -> int:
    return place()[0]


@op("tlx.cluster_size_1d", lowered_in=LOWERED_IN)
def cluster_size_1d(call: Call) -> Any:
    """CTAs of a cluster, along all axes of the grid, an int32."""
    require_clusters(call)
    return call.emit([], [tl.int32])


@cluster_size_1d.reference
def _size(machine: Machine) -> int:
    return place()[1]


@op("tlx.cluster_barrier", lowered_in=LOWERED_IN)
def cluster_barrier(call: Call) -> None:
    """Wait until all threads of all CTAs of the cluster are here.

    What they wrote before, to shared or global memory, is seen after.
    """
    require_clusters(call)
    call.emit()


class _Meeting:
    """Who has come to the cluster's barrier; rounds that are over, and what is known of them."""

    def __init__(self) -> None:
        self.here: set[Strand] = set()
        self.rounds = 0
        self.arriving: Clock = {}
        self.completed: Clock = {}

    def missing(self, team: Team) -> list[Strand]:
        """Who has not come; programs that have ended need not."""
        return [s for s in team.members() if s not in self.here and not (s.is_program and s.ended)]


@cluster_barrier.reference
def _meet(machine: Machine) -> None:
    team, strand = machine.team, machine.strand
    meeting: _Meeting = team.state.setdefault("cluster barrier", _Meeting())
    before = meeting.rounds
    meeting.here.add(strand)
    join(meeting.arriving, strand.release())
    machine.block(
        lambda: meeting.rounds > before or not meeting.missing(team),
        lambda: (
            "waits at the cluster's barrier for " + ", ".join(s.name for s in meeting.missing(team))
        ),
    )
    if meeting.rounds == before:  # the first one that goes on ends the round
        meeting.rounds += 1
        meeting.here.clear()
        join(meeting.completed, meeting.arriving)
        meeting.arriving = {}
    strand.acquire(meeting.completed)


@op("tlx.fence_mbarrier_init_cluster", lowered_in=LOWERED_IN)
def fence_mbarrier_init_cluster(call: Call) -> None:
    """Let other CTAs see barriers that were initialised before; a ``cluster_barrier`` follows."""
    require_clusters(call)
    call.emit()


@fence_mbarrier_init_cluster.reference
def _initialised(machine: Machine) -> None:
    """Nothing: a barrier is initialised when it is made."""


def _stored(call: Call, dst: Any, src: Any) -> tuple[Any, Any]:
    require_clusters(call)
    buffer = view(call, "dst", dst)
    value = call.tensor("src", src, shape=buffer.shape)
    if value.dtype != buffer.dtype:
        call.fail(
            WrongDtype,
            f"src is of {value.dtype}, the buffer of {buffer.dtype}",
            hint="src.to(tlx.dtype_of(dst)) converts it",
        )
    return buffer, value


@op("tlx.remote_shmem_store", lowered_in=LOWERED_IN)
def remote_shmem_store(call: Call, dst: Any, src: Any, remote_cta_rank: Any) -> None:
    """Store a tensor into the buffer that another CTA of the cluster has in ``dst``'s place.

    Args:
        dst: one buffer of this CTA.
        src: a tensor of its shape and dtype.
        remote_cta_rank: of the CTA, constant or not.

    It is there for the other CTA after a ``cluster_barrier``, or after it waited for a
    barrier at which this CTA arrived.
    """
    buffer, value = _stored(call, dst, src)
    call.emit([value, buffer, rank_of(call, "remote_cta_rank", remote_cta_rank)])


@remote_shmem_store.reference
def _store(machine: Machine, value: Any, buffer: np.ndarray[Any, Any], rank: Any) -> None:
    there = machine.array_elsewhere(buffer, program_of(machine, rank))
    machine.touch(writes=[there])
    there[...] = value


@op("tlx.async_remote_shmem_store", lowered_in=LOWERED_IN)
def async_remote_shmem_store(
    call: Call, dst: Any, src: Any, remote_cta_rank: Any, barrier: Any
) -> None:
    """``remote_shmem_store`` that completes at the other CTA's barrier, in bytes.

    Args:
        dst, src, remote_cta_rank: as of ``remote_shmem_store``; the buffer's contiguous
            dimension has 4 bytes at least.
        barrier: one barrier of this CTA: the other CTA's in its place is told how many bytes
            have come, all of the buffer. It waits for them after ``barrier_expect_bytes``.
    """
    buffer, value = _stored(call, dst, src)
    rank = rank_of(call, "remote_cta_rank", remote_cta_rank)
    given = barrier_(call, "barrier", barrier)
    size = max(buffer.shape) * buffer.dtype.primitive_bitwidth // 8
    if size < 4:
        call.fail(
            WrongShape,
            f"a buffer of {size} bytes in its longest dimension cannot be stored asynchronously",
            hint="the machine moves 4 bytes at least: use tlx.remote_shmem_store",
        )
    call.emit([value, buffer, rank, given])


@async_remote_shmem_store.reference
def _store_later(
    machine: Machine, value: Any, buffer: np.ndarray[Any, Any], rank: Any, bar: Barrier
) -> None:
    program = program_of(machine, rank)
    there, copied = machine.array_elsewhere(buffer, program), np.array(value)

    def copy() -> None:
        there[...] = copied

    machine.elsewhere(bar, program).later(machine, copy, buffer.nbytes, writes=[there])


@op("tlx.async_remote_shmem_copy", lowered_in=LOWERED_IN)
def async_remote_shmem_copy(
    call: Call, dst: Any, src: Any, remote_cta_rank: Any, barrier: Any
) -> None:
    """Copy a buffer of this CTA into the buffer that another CTA has in ``dst``'s place.

    Args:
        dst, src: buffers of one shape and dtype, with a multiple of 16 bytes. After
            ``local_store`` into ``src`` comes ``fence_async_shared``.
        remote_cta_rank, barrier: as of ``async_remote_shmem_store``.
    """
    require_clusters(call)
    to, buffer = view(call, "dst", dst), view(call, "src", src)
    if to.type != buffer.type or buffer.type.bytes % 16:
        call.fail(
            WrongShape,
            f"dst is {to.type}, src {buffer.type}, of {buffer.type.bytes} bytes",
            hint="give buffers of one shape and dtype with a multiple of 16 bytes",
        )
    rank = rank_of(call, "remote_cta_rank", remote_cta_rank)
    call.emit([to, buffer, rank, barrier_(call, "barrier", barrier)])


@async_remote_shmem_copy.reference
def _copy_later(
    machine: Machine,
    to: np.ndarray[Any, Any],
    buffer: np.ndarray[Any, Any],
    rank: Any,
    bar: Barrier,
) -> None:
    program = program_of(machine, rank)
    there = machine.array_elsewhere(to, program)

    def copy() -> None:
        there[...] = buffer

    machine.elsewhere(bar, program).later(
        machine, copy, buffer.nbytes, reads=[buffer], writes=[there]
    )


@op("tlx.remote_view", lowered_in=LOWERED_IN)
def remote_view(call: Call, local_allocated_buffer: Any, remote_cta_rank: Any) -> Any:
    """The barrier that another CTA of the cluster has in this one's place, to arrive at.

    Args:
        local_allocated_buffer: one barrier of this CTA.
        remote_cta_rank: of the other CTA, constant or not.

    Returns:
        a barrier for ``barrier_arrive``; only its own CTA can wait for it.
    """
    given = call.handle("local_allocated_buffer", local_allocated_buffer, BarrierType, BufferType)
    if isinstance(given.type, BufferType):
        call.fail(
            WrongType,
            "a buffer of another CTA cannot be viewed, only a barrier",
            hint="tlx.remote_shmem_store(buffer, x, rank) stores into it",
        )
    kind = barrier_(call, "local_allocated_buffer", given).type
    rank = rank_of(call, "remote_cta_rank", remote_cta_rank)
    return call.emit([given, rank], [RemoteBarrierType(kind.arrive_count, kind.is_warp_barrier)])


@remote_view.reference
def _seen(machine: Machine, bar: Barrier, rank: Any) -> Barrier:
    return machine.elsewhere(bar, program_of(machine, rank))
