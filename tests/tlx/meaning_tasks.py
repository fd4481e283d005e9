"""Tasks under the reference meaning, which run against each other: run by ``test_meaning.py``."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import remora.tlx as tlx
from remora import errors

assert triton.knobs.runtime.interpret


def fails(kind: type[errors.RemoraError], line: str, run: Any) -> errors.RemoraError:
    """The catalogue's error that a launch ends with, at a line of this file with a comment."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps it
        run()
    error = kind.of(caught.value)
    assert error is not None, caught.value
    assert threading.active_count() == 1  # nothing is left behind
    with open(__file__) as source:
        number = int(error.where.rpartition(":")[2])
        assert f"# {line}" in source.readlines()[number - 1]
    return error


@triton.jit
def ring(
    x, y, COUNT: tl.constexpr, B: tl.constexpr, STAGES: tl.constexpr, COPIES: tl.constexpr,
    WHAT: tl.constexpr,
):  # fmt: skip
    """A task stores blocks, others read and store their multiples: more blocks than buffers."""
    buffers = tlx.local_alloc((B,), tl.float32, STAGES)
    full = tlx.alloc_barriers(STAGES, 1)
    empty = tlx.alloc_barriers(STAGES, COPIES)
    at, phase = tl.arange(0, B), 0
    with tlx.async_tasks():
        with tlx.async_task("default"):
            phase = 1
            for i in range(COUNT):
                stage = i % STAGES
                if WHAT != "no wait for room":
                    tlx.barrier_wait(empty[stage], phase)  # waits for room
                tlx.local_store(buffers[stage], tl.load(x + i * B + at))  # stores
                if WHAT != "no arrival":
                    tlx.barrier_arrive(full[stage])
                phase ^= stage == STAGES - 1
        with tlx.async_task(num_warps=4, replicate=COPIES):
            copy = tlx.async_task_replica_id()
            for i in range(COUNT):
                stage = i % STAGES
                if WHAT != "no wait for data":
                    tlx.barrier_wait(full[stage], phase)  # waits for data
                value = tlx.local_load(buffers[stage])  # reads
                if WHAT == "early":
                    tlx.barrier_arrive(empty[stage])
                    value = tlx.local_load(buffers[stage])  # reads late
                tl.store(y + (copy * COUNT + i) * B + at, value * (copy + 1))
                if WHAT != "early":
                    if WHAT != "no release":
                        tlx.barrier_arrive(empty[stage])
                phase ^= stage == STAGES - 1


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_ring_of_buffers(stages: int, copies: int) -> None:
    x, y = torch.randn(7, 16), torch.zeros(copies, 7, 16)
    ring[(2,)](x, y, 7, 16, stages, copies, "")
    for copy in range(copies):
        assert torch.equal(y[copy], x * (copy + 1))


@pytest.mark.parametrize(("what", "line"), [
    ("no wait for room", "stores"), ("no wait for data", "reads"), ("early", "stores"),
])  # fmt: skip
def test_races(what: str, line: str) -> None:
    """Found whichever task comes first: nothing orders the two accesses."""
    x, y = torch.randn(7, 16), torch.zeros(2, 7, 16)
    error = fails(errors.ReferenceRace, line, lambda: ring[(1,)](x, y, 7, 16, 2, 2, what))
    assert "nothing orders the two" in error.what
    assert "the task at line" in error.what


@pytest.mark.parametrize(("what", "line"), [
    ("no arrival", "waits for room"), ("no release", "waits for room"),
])  # fmt: skip
def test_deadlocks(what: str, line: str) -> None:
    x, y = torch.randn(7, 16), torch.zeros(2, 7, 16)
    error = fails(errors.WaitNeverEnds, line, lambda: ring[(1,)](x, y, 7, 16, 2, 2, what))
    assert "nobody can go on" in error.what
    # Each with its barrier: all three wait, for room and for data.
    rows = error.what.splitlines()[1:]
    assert len(rows) == 3
    assert [row.partition("copy ")[2][:1] for row in rows] == ["", "0", "1"]
    lacking = "lacks 2 of 2 arrivals and 0 bytes"
    assert "waits for phase 0 of the barrier" in rows[0]
    assert lacking in rows[0]
    assert "lacks 1 of 1 arrivals" in rows[1]


@triton.jit
def scopes(y, N: tl.constexpr, ALSO: tl.constexpr):
    value = 1
    done = tlx.alloc_barriers(1, 1)
    for i in tl.range(0, N):
        value += i
        with tlx.async_tasks(), tlx.async_task("default"):
            value *= 10
            tl.store(y + 3 * i, value)
        with tlx.async_tasks(warp_specialize=True):
            OFFSET: tl.constexpr = 1
            if ALSO:
                with tlx.async_task("default"):
                    value = value + 100
                    tl.store(y + 3 * i + OFFSET, value)
                    tlx.barrier_arrive(done[0])
            with tlx.async_task(num_warps=2):
                if ALSO:
                    tlx.barrier_wait(done[0], i & 1)
                tl.store(y + 3 * i + 2, value + tlx.num_warps())
        value += 1


@pytest.mark.parametrize("also", [False, True])
def test_names_are_a_tasks_own(also: bool) -> None:
    y = torch.zeros(3, 3, dtype=torch.int32)
    scopes[(1,)](y, 3, also)
    value = 1
    for i in range(3):
        value += i
        assert y[i].tolist() == [10 * value, (value + 100) * also, value + 2]
        value += 1


@tlx.jit
def named(y, ROUNDS: tl.constexpr):
    """Two tasks that take turns, by named barriers."""
    turns = tlx.local_alloc((1,), tl.int32, 1)[0]
    tlx.local_store(turns, tl.zeros((1,), tl.int32))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for _ in range(ROUNDS):
                tlx.named_barrier_wait(9, 384)
                tlx.local_store(turns, tlx.local_load(turns) * 2)
                tlx.named_barrier_arrive(10, 384)
        with tlx.async_task(num_warps=4):
            for _ in range(ROUNDS):
                tlx.local_store(turns, tlx.local_load(turns) + 1)
                tlx.named_barrier_arrive(9, 384)
                tlx.named_barrier_wait(10, 384)
    tl.store(y + tl.arange(0, 1), tlx.local_load(turns))


def test_named_barriers_count_the_threads_of_the_launch() -> None:
    y = torch.zeros(1, dtype=torch.int32)
    named[(1,)](y, 5, num_warps=8)
    assert y.item() == 62  # 2 (1 + 2 (1 + ...))
    with pytest.raises(Exception, match="256 of 384 threads") as caught:
        named[(1,)](y, 5, num_warps=4)
    assert errors.WaitNeverEnds.of(caught.value) is not None


@triton.jit
def broken(y):
    bars = tlx.alloc_barriers(1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.barrier_wait(bars[0], 0)
        with tlx.async_task(num_warps=1):
            tlx.barrier_wait(bars[1], 0)  # no such barrier


def test_an_error_in_a_task_ends_all() -> None:
    fails(errors.BufferIndexError, "no such barrier", lambda: broken[(1,)](torch.zeros(1)))


@triton.jit
def misplaced(x, WHAT: tl.constexpr):
    if WHAT == "tasks in a task":
        with tlx.async_tasks(), tlx.async_task("default"):
            with tlx.async_tasks(), tlx.async_task("default"):  # tasks in a task
                tl.store(x, 1)
    if WHAT == "alone":
        with tlx.async_task("default"):  # alone
            tl.store(x, 1)
    if WHAT == "between":
        with tlx.async_tasks():
            with tlx.async_task("default"):
                tl.store(x, 1)
            with tlx.warp_pipeline_stage("s"):  # between
                tl.store(x, 2)


@pytest.mark.parametrize(("what", "kind"), [
    ("tasks in a task", errors.UnsupportedByTarget), ("alone", errors.WrongType),
    ("between", errors.WrongType),
])  # fmt: skip
def test_misplaced(what: str, kind: type[errors.RemoraError]) -> None:
    x = torch.zeros(1)
    fails(kind, what, lambda: misplaced[(1,)](x, what))
    assert x.item() == 0
