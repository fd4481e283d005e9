"""Clusters under the reference meaning: run by ``test_meaning.py`` with TRITON_INTERPRET=1."""

from __future__ import annotations

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
def alone(x, y, B: tl.constexpr, WHAT: tl.constexpr):
    rank = tlx.cluster_cta_rank()
    bars = tlx.alloc_barriers(2, 1)
    buffer = tlx.local_view(tlx.local_alloc((B,), tl.float32, 1), 0)
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at)
    if WHAT == "barrier":
        tlx.cluster_barrier()  # barrier
    other = rank
    if WHAT != "own":
        other = rank ^ 1
    if WHAT == "store":
        tlx.remote_shmem_store(buffer, value, other)  # store
    if WHAT == "arrive":
        tlx.barrier_arrive(bars[0], 1, other)  # arrive
    if WHAT == "view":
        tlx.remote_view(bars[0], other)  # view
    if WHAT == "asynchronous":
        tlx.async_remote_shmem_store(buffer, value, other, bars[0])  # asynchronous
    if WHAT == "own":
        tlx.barrier_expect_bytes(bars[1], 4 * B)
        tlx.async_remote_shmem_store(buffer, value, other, bars[1])
        tlx.barrier_wait(bars[1], 0)
        tlx.barrier_arrive(tlx.remote_view(bars[0], other))
        tlx.barrier_wait(bars[0], 0)
        tlx.barrier_arrive(bars[0], 1, other)
        tlx.barrier_wait(bars[0], 1)
        tlx.remote_shmem_store(buffer, tlx.local_load(buffer) + 1, other)
        tl.store(y + at, tlx.local_load(buffer))


def test_a_cta_that_reaches_itself() -> None:
    x, y = torch.arange(64.0), torch.zeros(64)
    alone[(4,)](x, y, 16, "own", ctas_per_cga=(2, 1, 1))
    assert (y == x + 1).all()
    alone[(4,)](x, y, 16, "barrier")  # a cluster of one


@pytest.mark.parametrize("what", ["barrier", "store", "arrive", "view", "asynchronous"])
def test_what_takes_another_cta_is_refused(what: str) -> None:
    x, y = torch.arange(64.0), torch.zeros(64)
    with pytest.raises(Exception, match="one after the other") as caught:
        alone[(4,)](x, y, 16, what, ctas_per_cga=(2, 1, 1))
    error = errors.UnsupportedByTarget.of(caught.value)
    assert error is not None
    assert "one after the other" in error.what
    file, line = error.where.partition(",")[0].rsplit(":", 1)
    assert file == __file__
    with open(__file__) as source:
        assert f"# {what}" in source.readlines()[int(line) - 1]


def test_bad_launches() -> None:
    with pytest.raises(errors.KernelArgumentError, match="3 CTAs along axis 0"):
        places[(3,)](torch.zeros(6), ctas_per_cga=(2, 1, 1))
    with pytest.raises(errors.KernelArgumentError, match="not the size"):
        places[(16,)](torch.zeros(6), ctas_per_cga=(16, 1, 1))
