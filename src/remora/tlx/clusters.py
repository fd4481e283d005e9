"""Clusters: CTAs that reach each other's shared memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine
from remora.errors import UnsupportedByTarget, WrongDtype, WrongShape
from remora.tlx.buffers import LOWERED_IN, view
from remora.tlx.launch import reference_cluster

_TARGETS = ("cuda:90", "cuda:100", "cuda:103")


def _require_clusters(call: Call) -> None:
    call.require_target(
        *_TARGETS,
        reason="clusters of CTAs are Hopper's and later NVIDIA GPUs'",
        instead="let each CTA work alone, or meet in global memory",
    )


def _place() -> tuple[int, int]:
    """Under the reference meaning: the rank of the running program in its cluster, and the size."""
    from triton.runtime.interpreter import interpreter_builder

    size = reference_cluster.get()
    x, y, z = (p % n for p, n in zip(interpreter_builder.grid_idx, size, strict=True))
    return x + size[0] * (y + size[1] * z), math.prod(size)


@op("tlx.cluster_cta_rank", lowered_in=LOWERED_IN)
def cluster_cta_rank(call: Call) -> Any:
    """The number of this CTA in its cluster, an int32: 0 to the cluster's size less 1."""
    _require_clusters(call)
    return call.emit([], [tl.int32])


@cluster_cta_rank.reference
def _rank(machine: Machine) -> int:
    return _place()[0]


@op("tlx.cluster_size_1d", lowered_in=LOWERED_IN)
def cluster_size_1d(call: Call) -> Any:
    """CTAs of a cluster, along all axes of the grid, an int32."""
    _require_clusters(call)
    return call.emit([], [tl.int32])


@cluster_size_1d.reference
def _size(machine: Machine) -> int:
    return _place()[1]


@op("tlx.cluster_barrier", lowered_in=LOWERED_IN)
def cluster_barrier(call: Call) -> None:
    """Wait until all threads of all CTAs of the cluster are here.

    What they wrote before, to shared or global memory, is seen after.
    """
    _require_clusters(call)
    call.emit()


@cluster_barrier.reference
def _meet(machine: Machine) -> None:
    if _place()[1] > 1:
        machine.call.fail(
            UnsupportedByTarget,
            f"a cluster of {_place()[1]} CTAs cannot meet: under the reference meaning CTAs run "
            "one after the other",
            hint="run it on a GPU, or with clusters of one CTA",
        )


def own_rank(machine: Machine, rank: Any) -> None:
    """Refuse another CTA's memory under the reference meaning."""
    if int(rank) != _place()[0]:
        machine.call.fail(
            UnsupportedByTarget,
            f"CTA {_place()[0]} cannot reach CTA {int(rank)}: under the reference meaning CTAs run "
            "one after the other",
            hint="run it on a GPU, or with clusters of one CTA",
        )


def rank_of(call: Call, name: str, value: Any) -> Any:
    """Check the rank of a CTA: an integer, from 0 to 7 where it is constant."""
    constant = tl._unwrap_if_constexpr(value)
    if isinstance(constant, int) and not 0 <= constant < 8:
        call.fail(
            WrongShape,
            f"{name} has to be the rank of a CTA of the cluster, it is {constant}",
            hint="ranks are 0 to tlx.cluster_size_1d() - 1",
        )
    return call.integer(name, value)


def _stored(call: Call, dst: Any, src: Any) -> tuple[Any, Any]:
    _require_clusters(call)
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
    own_rank(machine, rank)
    machine.touch(writes=[buffer])
    buffer[...] = value
