"""Clusters under the reference meaning: run by ``test_meaning.py`` with TRITON_INTERPRET=1."""

from __future__ import annotations

import threading

import pytest
import torch
import triton
import triton.language as tl

import remora.tlx as tlx
from remora import errors

assert triton.knobs.runtime.interpret


@tlx.jit
def places(out):
    program = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    tl.store(out + 2 * program, tlx.cluster_cta_rank())
    tl.store(out + 2 * program + 1, tlx.cluster_size_1d())


@pytest.mark.parametrize("size", [None, (1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 1)])
def test_ranks_and_sizes(size) -> None:
    out = torch.full((4, 8, 2), -1, dtype=torch.int32)
    places[(8, 4)](out, ctas_per_cga=size)
    x, y, _ = size or (1, 1, 1)
    for row in range(4):
        for column in range(8):
            assert out[row, column].tolist() == [column % x + x * (row % y), x * y]


@tlx.jit
def reaching(x, y, B: tl.constexpr, WHAT: tl.constexpr):
    """Each CTA has what the next one of its cluster loaded, plus 1; WHAT: how it comes there."""
    rank, size = tlx.cluster_cta_rank(), tlx.cluster_size_1d()
    bars = tlx.alloc_barriers(2, 1)
    buffers = tlx.local_alloc((B,), tl.float32, 2)
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at)
    to = (rank + size - 1) % size
    if WHAT == "store" or WHAT == "no meeting":
        tlx.remote_shmem_store(buffers[0], value, to)  # stored
        if WHAT == "store":
            tlx.cluster_barrier()
    elif WHAT == "arrive":
        tlx.remote_shmem_store(buffers[0], value, to)
        tlx.barrier_arrive(bars[0], 1, to)
        tlx.barrier_wait(bars[0], 0)
    elif WHAT == "view" or WHAT == "other view":
        tlx.remote_shmem_store(buffers[0], value, to)
        tlx.barrier_arrive(tlx.remote_view(bars[0 if WHAT == "view" else 1], to))
        tlx.barrier_wait(bars[0], 0)  # waits
    elif WHAT == "asynchronous" or WHAT == "no wait":
        tlx.barrier_expect_bytes(bars[0], 4 * B)
        tlx.async_remote_shmem_store(buffers[0], value, to, bars[0])  # stored later
        if WHAT == "asynchronous":
            tlx.barrier_wait(bars[0], 0)
    elif WHAT == "copy":
        tlx.local_store(buffers[1], value)
        tlx.barrier_expect_bytes(bars[0], 4 * B)
        tlx.async_remote_shmem_copy(buffers[0], buffers[1], to, bars[0])
        tlx.barrier_wait(bars[0], 0)
    elif WHAT == "too far":
        tlx.remote_shmem_store(buffers[0], value, to + 2)  # too far
    tl.store(y + at, tlx.local_load(buffers[0]) + 1)  # reads


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("what", ["store", "arrive", "view", "asynchronous", "copy"])
def test_memory_of_another_cta(what: str, size: tuple[int, int, int]) -> None:
    x, y = torch.arange(128.0), torch.zeros(128)
    reaching[(8,)](x, y, 16, what, ctas_per_cga=size)
    expected = x.reshape(-1, size[0], 16).roll(-1, 1).reshape(-1) + 1
    assert torch.equal(y, expected)


@pytest.mark.parametrize(("what", "line", "kind"), [
    ("no meeting", "stored", errors.ReferenceRace),
    ("no wait", "stored later", errors.ReferenceRace),
    ("other view", "waits", errors.WaitNeverEnds),
    ("too far", "too far", errors.WrongShape),
])  # fmt: skip
def test_mistakes(what: str, line: str, kind: type[errors.RemoraError]) -> None:
    x, y = torch.arange(128.0), torch.zeros(128)
    with pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps it
        reaching[(8,)](x, y, 16, what, ctas_per_cga=(2, 1, 1))
    error = kind.of(caught.value)
    assert error is not None, caught.value
    assert threading.active_count() == 1
    with open(__file__) as source:
        number = int(error.where.rpartition(":")[2])
        assert f"# {line}" in source.readlines()[number - 1]
    if kind is errors.WaitNeverEnds:
        assert [f"program ({i}, 0, 0)" in error.what for i in range(3)] == [True, True, False]
        assert error.what.count("lacks 1 of 1 arrivals") == 2


@tlx.jit
def sums(x, y, B: tl.constexpr, STEPS: tl.constexpr, MEETINGS: tl.constexpr):
    """The cluster's sum of all its CTAs' blocks, step by step, by the first one."""
    rank, size = tlx.cluster_cta_rank(), tlx.cluster_size_1d()
    parts = tlx.local_alloc((B,), tl.float32, 8)
    here, taken = tlx.alloc_barriers(1, 4), tlx.alloc_barriers(1, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(STEPS):
                at = (tl.program_id(0) * STEPS + i) * B + tl.arange(0, B)
                tlx.barrier_wait(taken[0], (i & 1) ^ 1)
                for other in tl.static_range(4):
                    if rank == other:
                        tlx.remote_shmem_store(parts[other], tl.load(x + at), 0)
                tlx.barrier_arrive(here[0], 1, 0)
            if MEETINGS > 0:
                tlx.cluster_barrier()  # meets
        with tlx.async_task(num_warps=4):
            for i in range(STEPS):
                if rank == 0:
                    tlx.barrier_wait(here[0], i & 1)
                    total = tl.zeros((B,), tl.float32)
                    for other in tl.static_range(4):
                        total += tlx.local_load(parts[other])
                    place = tl.program_id(0) // size * STEPS + i
                    tl.store(y + place * B + tl.arange(0, B), total)
                    for other in tl.static_range(4):
                        tlx.barrier_arrive(taken[0], 1, other)
            if MEETINGS > 1:
                tlx.cluster_barrier()


@pytest.mark.parametrize("meetings", [0, 2])
def test_sums_of_a_cluster(meetings: int) -> None:
    x, y = torch.randn(2, 4, 3, 16), torch.zeros(2, 3, 16)
    sums[(8,)](x, y, 16, 3, meetings, ctas_per_cga=(4, 1, 1))
    torch.testing.assert_close(y, x.sum(1))


def test_a_meeting_that_a_task_does_not_come_to() -> None:
    x, y = torch.randn(2, 4, 3, 16), torch.zeros(2, 3, 16)
    with pytest.raises(Exception, match="never ends") as caught:
        sums[(8,)](x, y, 16, 3, 1, ctas_per_cga=(4, 1, 1))
    error = errors.WaitNeverEnds.of(caught.value)
    assert error is not None
    assert error.what.count("waits at the cluster's barrier for") == 4
    assert error.what.count("has ended") == 4


def test_bad_launches() -> None:
    with pytest.raises(errors.KernelArgumentError, match="3 CTAs along axis 0"):
        places[(3,)](torch.zeros(6), ctas_per_cga=(2, 1, 1))
    with pytest.raises(errors.KernelArgumentError, match="not the size"):
        places[(16,)](torch.zeros(6), ctas_per_cga=(16, 1, 1))
