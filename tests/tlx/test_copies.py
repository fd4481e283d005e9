"""Copies and their waits: what reaches the machine is what the author wrote."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, instructions, waits

import remora.tlx as tlx

FP16 = {"p": "*fp16", "q": "*fp16", "n": "i32"}


@triton.jit
def in_a_row(p, q, n, B: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 6)
    at = tl.arange(0, B)
    for i in tl.static_range(6):
        tlx.async_load(p + at + i * B, tlx.local_view(buf, i))
        tlx.async_load_commit_group()
    tlx.async_load_wait_group(5)
    tlx.async_load_wait_group(4)
    tlx.async_load_wait_group(4)
    x = tlx.local_load(tlx.local_view(buf, 0))
    tlx.async_load_wait_group(3)
    if n > 3:
        tlx.async_load_wait_group(2)
        x += tlx.local_load(tlx.local_view(buf, 3))
    else:
        tlx.async_load_wait_group(1)
        x -= tlx.local_load(tlx.local_view(buf, 4))
    tlx.async_load_wait_group(0)
    tl.store(q + at, x + tlx.local_load(tlx.local_view(buf, 5)))


@triton.jit
def in_a_loop(p, q, n, B: tl.constexpr, STAGES: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 4)
    at = tl.arange(0, B)
    for i in tl.static_range(3):
        tlx.async_load(p + at + i * B, tlx.local_view(buf, i))
        tlx.async_load_commit_group()
    x = tl.zeros((B,), tl.float16)
    for i in tl.range(0, n, num_stages=STAGES):
        tlx.async_load_wait_group(2)
        x += tlx.local_load(tlx.local_view(buf, i % 4))
        tlx.async_load(p + at + (i + 3) * B, tlx.local_view(buf, (i + 3) % 4))
        tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    tl.store(q + at, x)


@triton.jit
def in_plain_loops(p, q, n, B: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 4)
    at = tl.arange(0, B)
    x = tl.zeros((B,), tl.float16)
    for i in range(n):
        for j in range(n):
            tlx.async_load(p + at + (i + j) * B, tlx.local_view(buf, j % 4))
            tlx.async_load_commit_group()
            tlx.async_load_wait_group(1)
            x += tlx.local_load(tlx.local_view(buf, (j + 3) % 4))
        tlx.async_load_wait_group(3)
    i = 0
    while i < n:
        tlx.async_load(p + at + i * B, tlx.local_view(buf, i % 4))
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(2)
        x += tlx.local_load(tlx.local_view(buf, (i + 2) % 4))
        i += 1
    tlx.async_load_wait_group(0)
    tl.store(q + at, x)


def test_waits_in_a_row_and_in_branches_are_neither_merged_nor_recounted() -> None:
    compiled = build(in_a_row, "cuda:90", B=512, **FP16)
    counts = waits(compiled)
    assert counts[:4] == [5, 4, 4, 3]
    assert sorted(counts[4:]) == [0, 1, 2]
    assert compiled.asm["ptx"].count("cp.async.commit_group") == 6


@pytest.mark.parametrize("stages", [None, 0, 1, 2, 4])
def test_waits_in_a_loop_whatever_its_stages(stages: int | None) -> None:
    compiled = build(in_a_loop, "cuda:90", B=512, STAGES=stages, **FP16)
    assert waits(compiled) == [2, 0]
    assert compiled.asm["ptx"].count("cp.async.commit_group") == 4


def test_waits_in_nested_and_in_while_loops() -> None:
    compiled = build(in_plain_loops, "cuda:90", B=512, options={"num_stages": 4}, **FP16)
    assert waits(compiled) == [1, 3, 2, 0]


def test_a_wait_comes_between_the_copy_and_the_load_with_a_barrier_after_it() -> None:
    found = instructions(
        build(in_a_loop, "cuda:90", B=512, STAGES=0, **FP16).asm["ptx"],
        r"cp\.async\.c[ag]|cp\.async\.wait_group \d|bar\.sync|ld\.shared",
    )
    first = found.index("cp.async.wait_group 2")
    assert found[first + 1] == "bar.sync"
    assert found.index("ld.shared") > first


# --- what the copy engine can do, and what goes through registers ------------------------------


@triton.jit
def copies(
    p, q, n, stride, M: tl.constexpr, N: tl.constexpr, OTHER: tl.constexpr, MASK: tl.constexpr,
    COLUMNS: tl.constexpr = False,
):  # fmt: skip
    buf = tlx.local_alloc((M, N), tlx.dtype_of(p), 1)
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    at = rows + columns * stride if COLUMNS else rows * stride + columns
    view = tlx.local_view(buf, 0)
    if MASK:
        tlx.async_load(p + at, view, mask=columns < n, other=OTHER)
    else:
        tlx.async_load(p + at, view)
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    tl.store(q + at, tlx.local_load(view))


def copied(dtype: str, **given: Any) -> list[int]:
    """Bytes of each asynchronous copy; none where data goes through registers."""
    given = {
        "n": "i32", "stride": "i32:16", "M": 64, "N": 64, "OTHER": None, "MASK": False, **given,
    }  # fmt: skip
    compiled = build(copies, "cuda:90", **{"p": f"*{dtype}", "q": f"*{dtype}", **given})
    found = re.findall(r"cp\.async\.c[ag]\.\S+\s.*?, (0x[0-9a-f]+)", compiled.asm["ptx"])
    through_registers = bool(re.search(r"ld\.global", compiled.asm["ptx"]))
    assert bool(found) != through_registers
    return sorted({int(n, 16) for n in found})


@pytest.mark.parametrize(
    "dtype", ["fp16", "bf16", "fp32", "fp64", "i8", "i32", "i64", "u16", "fp8e4nv", "fp8e5"]
)
def test_aligned_rows_go_16_bytes_at_a_time(dtype: str) -> None:
    assert copied(dtype) == [16]


def test_masks_and_zeros() -> None:
    assert copied("fp16", MASK=True, n="i32:16") == [16]
    assert copied("fp16", MASK=True, n="i32:16", OTHER=0.0) == [16]
    assert copied("fp32", MASK=True, n="i32", OTHER=0.0) == [4]


def test_what_the_copy_engine_cannot_do_goes_through_registers() -> None:
    assert copied("fp16", MASK=True, n="i32:16", OTHER=1.5) == []
    assert copied("fp16", MASK=True, n="i32") == []  # a mask may end between two elements
    assert copied("fp16", stride="i32") == []  # rows may begin anywhere
    assert copied("fp16", p="*fp16:1") == []
    assert copied("i8", stride="i32") == []
    assert copied("fp32", stride="i32") == [4]


def test_columns_that_are_contiguous() -> None:
    assert copied("fp16", COLUMNS=True) == [16]
    assert copied("fp32", COLUMNS=True) == [16]


@pytest.mark.parametrize(("dtype", "shape", "expected"), [
    ("fp16", (8, 8), []),  # fewer elements than threads: each would copy 2 bytes
    ("fp16", (16, 16), [4]),
    ("i8", (16, 16), []),
    ("i8", (16, 32), [4]),
    ("fp8e5", (1, 32), []),
    ("fp32", (1, 1), [4]),
    ("fp32", (1, 32), [4]),
    ("fp64", (1, 32), [8]),
])  # fmt: skip
def test_small_tiles(dtype: str, shape: tuple[int, int], expected: list[int]) -> None:
    assert copied(dtype, M=shape[0], N=shape[1]) == expected


@triton.jit
def hints(p, q, B: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 4)
    at = tl.arange(0, B)
    inside = tl.load(q) > 0
    tlx.async_load(p + at, tlx.local_view(buf, 0), cache_modifier=".cg")
    tlx.async_load(p + at, tlx.local_view(buf, 1), eviction_policy="evict_first")
    tlx.async_load(p + at, tlx.local_view(buf, 2), mask=inside, is_volatile=True)
    tlx.async_load(p + at, tlx.local_view(buf, 3), mask=True)
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    for i in tl.static_range(4):
        tl.store(q + at, tlx.local_load(tlx.local_view(buf, i)))


def test_hints_and_scalar_masks() -> None:
    text = build(hints, "cuda:90", p="*fp16", q="*fp16", B=1024).asm["ptx"]
    assert len(re.findall(r"cp\.async\.c[ag]\.", text)) == 4
    for target in ("cuda:80", "hip:gfx942"):
        build(hints, target, p="*fp16", q="*fp16", B=1024)


@triton.jit
def three_dimensions(p, q, B: tl.constexpr):
    buf = tlx.local_alloc((4, B, B), tlx.dtype_of(p), 2)
    x, y, z = tl.arange(0, 4)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, B)
    at = (x * B + y) * B + z[None, None, :]
    view = tlx.local_view(buf, 1)
    tlx.async_load(p + at, view)
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    tl.store(q + at, tlx.local_load(view))


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_three_dimensions(target: str) -> None:
    assert build(three_dimensions, target, p="*fp16", q="*fp16", B=16).metadata.shared == 4096


# --- memory --------------------------------------------------------------------------------------


@triton.jit
def two_buffers(p, q, B: tl.constexpr, WAIT: tl.constexpr):
    first = tlx.local_alloc((B,), tlx.dtype_of(p), 1)
    at = tl.arange(0, B)
    tlx.async_load(p + at, tlx.local_view(first, 0))
    tlx.async_load_commit_group()
    if WAIT == "before":
        tlx.async_load_wait_group(0)
    x = tlx.local_load(tlx.local_view(first, 0))
    second = tlx.local_alloc((B,), tlx.dtype_of(p), 1)
    tlx.local_store(tlx.local_view(second, 0), tl.load(q + at))
    if WAIT == "after":
        tlx.async_load_wait_group(0)
    tl.store(q + at, tlx.local_load(tlx.local_view(second, 0)) + x)


@pytest.mark.parametrize(("wait", "bytes"), [("before", 2048), ("after", 4096), ("never", 2048)])
def test_memory_is_used_again_only_when_no_copy_is_in_flight(wait: str, bytes: int) -> None:
    compiled = build(two_buffers, "cuda:90", p="*fp16", q="*fp16", B=1024, WAIT=wait)
    assert compiled.metadata.shared == bytes
    # Where the author does not wait, the copy is drained before the memory is used again.
    assert ("cp.async.wait_all" in compiled.asm["ptx"]) == (wait == "never")
    assert waits(compiled) == ([] if wait == "never" else [0])


@triton.jit
def left_in_a_loop(p, n, B: tl.constexpr):
    at = tl.arange(0, B)
    for i in range(n):
        buf = tlx.local_alloc((B,), tlx.dtype_of(p), 1)
        tlx.async_load(p + at + i, tlx.local_view(buf, 0))
        tlx.async_load_commit_group()


@triton.jit
def two_that_end_apart(p, q, B: tl.constexpr):
    first = tlx.local_alloc((B,), tlx.dtype_of(p), 1)
    second = tlx.local_alloc((B,), tlx.dtype_of(p), 1)
    at = tl.arange(0, B)
    tlx.async_load(p + at, tlx.local_view(first, 0))
    third = tlx.local_alloc((B,), tlx.dtype_of(p), 1)
    tlx.local_store(tlx.local_view(third, 0), tl.load(q + at))
    tlx.async_load(p + at, tlx.local_view(second, 0))
    tl.store(q + at, tlx.local_load(tlx.local_view(third, 0)))
    tl.store(q + at, tlx.local_load(tlx.local_view(second, 0)))


def test_copies_that_nobody_waits_for_are_drained() -> None:
    text = build(left_in_a_loop, "cuda:90", p="*fp32", n="i32", B=1024).asm["ptx"]
    assert text.count("cp.async.wait_all") == 1
    compiled = build(two_that_end_apart, "cuda:90", p="*fp32", q="*fp32", B=1024)
    assert compiled.asm["ptx"].count("cp.async.wait_all") == 1
    assert compiled.metadata.shared == 3 * 4096


@triton.jit
def returns_early(p, q, n, B: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 2)
    at = tl.arange(0, B)
    view = tlx.local_view(buf, 0)
    if n > 3:
        return
    if n > 2:
        view = tlx.local_view(buf, 1)
        tlx.async_load(p + at, view)
        if n > 9:
            return
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    tl.store(q + at, tlx.local_load(view))


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942", "hip:gfx950"])
def test_a_return_in_the_middle(target: str) -> None:
    compiled = build(returns_early, target, B=1024, **FP16)
    assert compiled.metadata.shared == 4096
