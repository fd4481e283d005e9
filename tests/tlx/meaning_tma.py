"""The reference meaning of barriers, descriptors and bulk copies; see ``meaning.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import remora.tlx as tlx
from remora import errors

assert triton.knobs.runtime.interpret


def fails(kind: type[errors.RemoraError], run: Any) -> errors.RemoraError:
    """The catalogue's error that a launch ends with."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps it or not
        run()
    error = kind.of(caught.value)
    assert error is not None, caught.value
    assert __file__ in error.where
    return error


# --- barriers ------------------------------------------------------------------------------------


@triton.jit
def phases(q, N: tl.constexpr):
    bars = tlx.alloc_barriers(2, arrive_count=3)
    warps = tlx.alloc_warp_barrier(1, num_warps=4)
    passed = 0
    for i in range(N):
        tlx.barrier_wait(bars[1], (i & 1) ^ 1)  # the phase before: passes at once
        tlx.barrier_arrive(bars[1], 2)
        tlx.barrier_expect_bytes(bars[1], 0)
        tlx.barrier_wait(bars[1], i & 1)
        tlx.barrier_arrive(warps[0])
        tlx.barrier_wait(warps[0], i & 1)
        tlx.barrier_wait(bars[0], 0, pred=i < 0)
        tlx.barrier_expect_bytes(bars[0], 16, pred=False)
        passed += 1
    tl.store(q, passed)
    tlx.named_barrier_wait(9, 128)
    tlx.fence("gpu")
    tlx.fence_async_shared()


def test_a_phase_completes_when_all_have_arrived() -> None:
    q = torch.zeros(1, dtype=torch.int32)
    phases[(1,)](q, 5)
    assert q.item() == 5


@triton.jit
def waits(WHAT: tl.constexpr):
    bars = tlx.alloc_barriers(1, arrive_count=2)
    if WHAT == "nobody arrives":
        tlx.barrier_wait(bars[0], 0)
    if WHAT == "one arrives":
        tlx.barrier_arrive(bars[0])
        tlx.barrier_wait(bars[0], 0)
    if WHAT == "bytes lack":
        tlx.barrier_expect_bytes(bars[0], 64)
        tlx.barrier_arrive(bars[0])
        tlx.barrier_wait(bars[0], 0)
    if WHAT == "the phase after":
        tlx.barrier_arrive(bars[0], 2)
        tlx.barrier_wait(bars[0], 1)
    if WHAT == "a named barrier":
        tlx.named_barrier_wait(9, 256)


@pytest.mark.parametrize(
    ("what", "lacks"),
    [
        ("nobody arrives", "lacks 2 of 2 arrivals and 0 bytes"),
        ("one arrives", "lacks 1 of 2 arrivals"),
        ("bytes lack", "lacks 0 of 2 arrivals and 64 bytes"),
        ("the phase after", "completed 1 phases"),
        ("a named barrier", "128 of 256 threads"),
    ],
)
def test_a_wait_that_never_ends_is_an_error(what: str, lacks: str) -> None:
    error = fails(errors.WaitNeverEnds, lambda: waits[(1,)](what))
    assert lacks in error.what
