"""Barriers and fences: their instructions in PTX, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, instructions, line_of

import remora.tlx as tlx
from remora import errors

_BARRIERS = r"mbarrier\.\w[^;]*|bar\.(?:sync|arrive)[^;]*|fence\.\w[^;]*"


def found(compiled: Any, pattern: str = _BARRIERS) -> list[str]:
    return instructions(compiled.asm["ptx"], pattern)


@triton.jit
def every_word(p, n, number, threads):
    bars = tlx.alloc_barriers(3, arrive_count=2)
    tlx.barrier_expect_bytes(bars[0], 8192)
    tlx.barrier_expect_bytes(tlx.local_view(bars, 1), size=0, pred=n > 2)
    tlx.barrier_arrive(bars[0])
    tlx.barrier_arrive(bar=bars[n], arrive_count=2)
    tlx.barrier_wait(bars[0], 0)
    tlx.barrier_wait(bar=bars[n], phase=n & 1, pred=n == 1)
    tlx.barrier_wait(bars[2], True, False)
    tlx.named_barrier_arrive(9, 256)
    tlx.named_barrier_wait(10, threads)
    tlx.named_barrier_wait(bar=number, arrive_count=threads)
    tlx.fence("gpu")
    tlx.fence(scope="sys")
    tlx.fence("async_shared")
    tlx.fence_async_shared()


def test_the_instructions_of_every_word() -> None:
    compiled = build(every_word, "cuda:90", p="*fp16", n="i32", number="i32", threads="i32")
    words = [text for text in found(compiled) if not text.startswith("bar.sync 0")]
    starts = [
        *["mbarrier.init.shared::cta.b64 ["] * 3,
        *["mbarrier.arrive.expect_tx.shared::cta.b64 _"] * 2,
        *["mbarrier.arrive.shared::cta.b64 _"] * 2,
        *["mbarrier.try_wait.parity.shared::cta.b64 complete"] * 2,  # False waits for nothing
        "bar.arrive 9, 256",
        "bar.sync 10, %r",
        "bar.sync %r",
        "fence.acq_rel.gpu",
        "fence.acq_rel.sys",
        *["fence.proxy.async.shared::cta"] * 2,
    ]
    assert [w[: len(s)] for w, s in zip(words, starts, strict=True)] == starts
    assert [w.endswith("], 2") for w in words[:3]] == [True] * 3
    assert [w.rpartition(" ")[2] for w in words[3:5]] == ["8192", "0"]
    assert words[6].endswith("], 2")


@triton.jit
def a_task_arrives(p, n, WARP: tl.constexpr, B: tl.constexpr):
    if WARP:
        bars = tlx.alloc_warp_barrier(2, num_warps=4, num_arrivals=3)
    else:
        bars = tlx.alloc_barriers(2)
    buf = tlx.local_alloc((B,), tl.float32, 1)
    at = tl.arange(0, B)
    tlx.local_store(buf[0], tl.load(p + at))
    for i in range(n):
        tlx.barrier_wait(bars[0], i & 1)
        x = tlx.local_load(buf[0])
        tlx.barrier_arrive(bars[1])
        tl.store(p + at, x)


def test_a_task_arrives_once_after_all_of_its_warps() -> None:
    compiled = build(a_task_arrives, "cuda:90", p="*fp32", n="i32", WARP=False, B=128)
    text = found(compiled, r"@%p\d+ mbarrier\.arrive|mbarrier\.arrive|bar\.sync|ldmatrix")
    load = text.index("ldmatrix")
    assert text[load + 1] == "bar.sync"
    assert text[load + 2].startswith("@%p")  # one thread
    assert len([t for t in text if "mbarrier.arrive" in t]) == 1


def test_each_thread_arrives_at_a_warp_barrier() -> None:
    compiled = build(a_task_arrives, "cuda:90", p="*fp32", n="i32", WARP=True, B=128)
    text = found(compiled, r"@%p\d+ mbarrier\.arrive|mbarrier\.\w+[^;]*|bar\.sync|ldmatrix")
    assert [t.rpartition(" ")[2] for t in text if "init" in t] == ["384", "384"]
    load = text.index("ldmatrix")
    assert text[load + 1].startswith("mbarrier.arrive.shared::cta.b64 _")
    # The memory of the barriers is theirs to the end.
    assert "ttg.local_dealloc" in compiled.asm["ttgir"]


@triton.jit
def one_after_the_other(p, n, EARLY: tl.constexpr):
    if EARLY:
        if n == 7:
            return
    first = tlx.alloc_barriers(1, 2)
    tlx.barrier_arrive(first[0])
    tlx.barrier_wait(first[0], 1)
    if EARLY:
        if n == 8:
            return
    second = tlx.alloc_barriers(1, 3)
    tlx.barrier_arrive(second[0])
    tlx.barrier_wait(second[0], 1)
    buffer = tlx.local_alloc((128,), tl.float32, 1)
    tlx.local_store(buffer[0], tl.load(p + tl.arange(0, 128)))
    tl.store(p + 128 + tl.arange(0, 128), tlx.local_load(buffer[0]))


@pytest.mark.parametrize("early", [True, False])
def test_where_a_barrier_was_nothing_else_is(early: bool) -> None:
    compiled = build(one_after_the_other, "cuda:90", p="*fp32", n="i32", EARLY=early)
    made = re.findall(r"mbarrier\.init\S+ \[(%r\d+|\w+)\], (\d+);", compiled.asm["ptx"])
    assert sorted(count for _, count in made) == ["2", "3"]
    assert made[0][0] != made[1][0]
    assert compiled.metadata.shared >= 128 * 4 + 2 * 8


@triton.jit
def loops(p, n, NUM: tl.constexpr):
    bars = tlx.alloc_barriers(NUM)
    bar = bars[0]
    phase = 0
    for i in tl.range(0, n, num_stages=3):
        tlx.barrier_expect_bytes(bar, 16)
        if i % 3 == 0:
            tlx.barrier_wait(bar, phase)
        else:
            tlx.barrier_arrive(bar)
        bar = bars[i % NUM]
        phase ^= 1
    tl.store(p, phase)


@pytest.mark.parametrize("num", [1, 4])
def test_barriers_as_variables_of_loops(num: int) -> None:
    compiled = build(loops, "cuda:90", p="*i32", n="i32", NUM=num)
    text = found(compiled, r"mbarrier\.\w+")
    assert text[:num] == ["mbarrier.init"] * num
    assert sorted(text[num:]) == ["mbarrier.arrive", "mbarrier.arrive", "mbarrier.try_wait"]


@triton.jit
def callee(bars, i):
    tlx.barrier_arrive(bars[i])


@triton.jit
def through_functions(p, n):
    bars = tlx.alloc_barriers(2)
    both = (bars, tlx.alloc_warp_barrier(2))
    callee(both[0], n)
    callee(both[1], n)


def test_barriers_go_into_functions_and_tuples() -> None:
    compiled = build(through_functions, "cuda:90", p="*i32", n="i32")
    assert len(found(compiled, r"mbarrier\.arrive\.shared")) == 2


# --- refused -------------------------------------------------------------------------------------


@triton.jit
def refused(p, n, N: tl.constexpr, WHAT: tl.constexpr):
    bars = tlx.alloc_barriers(2)
    buf = tlx.local_alloc((64,), tl.float16, 2)
    if WHAT == "no barriers":
        tlx.alloc_barriers(0)  # no barriers
    if WHAT == "no arrivals":
        tlx.alloc_barriers(1, arrive_count=N - 5)  # no arrivals
    if WHAT == "no arrivals of warps":
        tlx.alloc_warp_barrier(1, num_warps=4, num_arrivals=0)  # no arrivals of warps
    if WHAT == "run-time arrivals":
        tlx.alloc_barriers(1, n)  # run-time arrivals
    if WHAT == "phase 2":
        tlx.barrier_wait(bars[0], 2)  # phase 2
    if WHAT == "phase -1":
        tlx.barrier_wait(bars[0], N - 6)  # phase -1
    if WHAT == "phase 0.0":
        tlx.barrier_wait(bars[0], 0.0)  # phase 0.0
    if WHAT == "all barriers":
        tlx.barrier_wait(bars, 0)  # all barriers
    if WHAT == "a buffer":
        tlx.barrier_wait(buf[0], 0)  # a buffer
    if WHAT == "arrive 0 times":
        tlx.barrier_arrive(bars[0], 0)  # arrive 0 times
    if WHAT == "arrive too often":
        tlx.barrier_arrive(bars[0], 2)  # arrive too often
    if WHAT == "negative bytes":
        tlx.barrier_expect_bytes(bars[0], -16)  # negative bytes
    if WHAT == "too many bytes":
        tlx.barrier_expect_bytes(bars[0], 1 << 20)  # too many bytes
    if WHAT == "a tensor for a predicate":
        tlx.barrier_wait(bars[0], 0, tl.arange(0, 16) > 0)  # a tensor for a predicate
    if WHAT == "barrier 16":
        tlx.named_barrier_wait(16, 128)  # barrier 16
    if WHAT == "33 threads":
        tlx.named_barrier_arrive(9, 33)  # 33 threads
    if WHAT == "another scope":
        tlx.fence("cta")  # another scope
    if WHAT == "load a barrier":
        tlx.local_load(bars[0])  # load a barrier
    if WHAT == "third barrier":
        bars[2]  # third barrier
    if WHAT == "a barrier of a barrier":
        bars[0][0]  # a barrier of a barrier


REFUSED = {
    "no barriers": errors.WrongShape,
    "no arrivals": errors.WrongShape,
    "no arrivals of warps": errors.WrongShape,
    "run-time arrivals": errors.NotConstant,
    "phase 2": errors.WrongShape,
    "phase -1": errors.WrongShape,
    "phase 0.0": errors.WrongType,
    "all barriers": errors.WrongType,
    "a buffer": errors.WrongType,
    "arrive 0 times": errors.WrongShape,
    "arrive too often": errors.WrongShape,
    "negative bytes": errors.WrongShape,
    "too many bytes": errors.WrongShape,
    "a tensor for a predicate": errors.WrongType,
    "barrier 16": errors.WrongShape,
    "33 threads": errors.WrongShape,
    "another scope": errors.WrongType,
    "load a barrier": errors.WrongType,
    "third barrier": errors.BufferIndexError,
    "a barrier of a barrier": errors.WrongType,
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    with pytest.raises(triton.CompilationError) as caught:
        build(refused, "cuda:90", p="*fp16", n="i32", N=5, WHAT=what)
    error = REFUSED[what].of(caught.value)
    assert error is not None
    assert line_of(refused, f"# {what}") in error.where
    assert error.hint


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942", "hip:gfx950"])
def test_targets_without_them(target: str) -> None:
    with pytest.raises(triton.CompilationError) as caught:
        build(refused, target, p="*fp16", n="i32", N=5, WHAT="")
    error = errors.UnsupportedByTarget.of(caught.value)
    assert error is not None
    assert target in error.what
