"""The words of TLX on a GPU: small kernels, each with numbers that torch gives too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import remora.tlx as tlx

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9,
        reason="needs a GPU with barriers in shared memory",
    ),
]

DEVICE = "cuda"
_LONGEST = 60.0  # seconds: compiling takes one or two


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends the process when a kernel hangs, which nothing else does."""

    def give_up() -> None:
        capture: Any = request.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=False)
        print(f"\n{request.node.nodeid} hangs", file=sys.stderr, flush=True)
        os._exit(70)

    timer = threading.Timer(_LONGEST, give_up)
    timer.start()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        timer.cancel()


def integers(*shape: int, dtype: Any = None, most: int = 100) -> Any:
    """Integers under ``most``, of any type."""
    return torch.randint(0, most, shape, device=DEVICE).to(dtype or torch.int32)


def empty(*shape: int, dtype: Any = None) -> Any:
    return torch.full(shape, -1, dtype=dtype or torch.int32, device=DEVICE)


def equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=0, atol=0)


# --- tasks ---------------------------------------------------------------------------------------


@triton.jit
def workers(x, y, n, S: tl.constexpr, W: tl.constexpr, C: tl.constexpr, R: tl.constexpr):
    at = tl.arange(0, S)
    inside = at < n  # a tensor of scalars alone: each task computes it again
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(y + at, tl.load(x + at, mask=inside, other=0) * 2)
        with tlx.async_task(num_warps=W, replicate=C, num_regs=R):
            copy = tlx.async_task_replica_id()
            tl.store(y + (copy + 1) * S + at, tl.load(x + at, mask=inside, other=0) + copy)
    tl.store(y + (C + 1) * S + at, tl.load(y + at) + 1)


@pytest.mark.parametrize(("warps", "copies", "registers"), [
    (1, 1, None), (1, 3, 24), (2, 2, None), (4, 2, 232), (8, 1, 104), (4, 7, None),
])  # fmt: skip
def test_tasks(warps: int, copies: int, registers: int | None) -> None:
    x, y = integers(256), empty(copies + 2, 256)
    workers[(3,)](x, y, 200, 256, warps, copies, registers)
    x[200:] = 0
    equal(y[0], x * 2)
    for copy in range(copies):
        equal(y[1 + copy], x + copy)
    equal(y[-1], x * 2 + 1)


@triton.jit
def regions(y, rounds, S: tl.constexpr):
    at = tl.arange(0, S)
    for i in range(rounds):
        with tlx.async_tasks():
            with tlx.async_task("default"):
                tl.store(y + 2 * i * S + at, at + i)
            with tlx.async_task(num_warps=4):
                tl.store(y + (2 * i + 1) * S + at, at * i)
    with tlx.async_tasks():
        with tlx.async_task(num_warps=1):
            tl.store(y + 2 * rounds * S + at, at + tl.program_id(0))
    with tlx.async_tasks(), tlx.async_task("default"):
        tl.store(y + (2 * rounds + 1) * S + at, 7)


def test_regions_in_loops_and_one_after_the_other() -> None:
    y, at = empty(8, 128), torch.arange(128, device=DEVICE)
    regions[(1,)](y, 3, 128)
    for i in range(3):
        equal(y[2 * i], at + i)
        equal(y[2 * i + 1], at * i)
    equal(y[6], at)
    equal(y[7], torch.full_like(at, 7))


@triton.jit
def copies_of_the_default(x, y, S: tl.constexpr):
    at = tl.arange(0, S)
    with tlx.async_tasks():
        with tlx.async_task("default", replicate=2, num_regs=120):
            copy = tlx.async_task_replica_id()
            tl.store(y + copy * S + at, tl.load(x + at) + copy)
        with tlx.async_task(num_warps=1, replicate=2, num_regs=96):
            copy = tlx.async_task_replica_id()
            tl.store(y + (2 + copy) * S + at, tl.load(x + at) * copy)


def test_copies_of_the_default_task() -> None:
    x, y = integers(512), empty(4, 512)
    copies_of_the_default[(1,)](x, y, 512)
    equal(y, torch.stack([x, x + 1, x * 0, x]))


# --- barriers ------------------------------------------------------------------------------------


@triton.jit
def ping_pong(
    y, rounds, S: tl.constexpr, STAGES: tl.constexpr, W: tl.constexpr, WARP: tl.constexpr
):
    """The program's warps fill a ring of buffers, a task empties it."""
    buffers = tlx.local_alloc((S,), tl.int32, STAGES)
    if WARP:
        full = tlx.alloc_warp_barrier(STAGES, num_warps=4)
        free = tlx.alloc_warp_barrier(STAGES, num_warps=W)
    else:
        full = tlx.alloc_barriers(STAGES)
        free = tlx.alloc_barriers(num_barriers=STAGES, arrive_count=1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(rounds):
                stage, phase = i % STAGES, (i // STAGES) & 1
                tlx.barrier_wait(free[stage], phase ^ 1)
                tlx.local_store(buffers[stage], tl.arange(0, S) + i * 1000)
                tlx.barrier_arrive(full[stage])
        with tlx.async_task(num_warps=W):
            for i in range(rounds):
                stage, phase = i % STAGES, (i // STAGES) & 1
                tlx.barrier_wait(bar=full[stage], phase=phase)
                value = tlx.local_load(buffers[stage])
                tlx.barrier_arrive(bar=free[stage])
                tl.store(y + i * S + tl.arange(0, S), value)


@pytest.mark.parametrize(("stages", "warps", "of_threads"), [
    (1, 1, False), (2, 4, False), (3, 8, False), (1, 4, True), (2, 2, True),
])  # fmt: skip
def test_a_ring_of_buffers(stages: int, warps: int, of_threads: bool) -> None:
    y = empty(20, 512)
    ping_pong[(2,)](y, 20, 512, stages, warps, of_threads)
    expected = torch.arange(512)[None, :] + 1000 * torch.arange(20)[:, None]
    equal(y, expected.to(DEVICE))


@triton.jit
def arrivals(y, S: tl.constexpr):
    buffers = tlx.local_alloc((S,), tl.int32, 3)
    bars = tlx.alloc_barriers(2, arrive_count=4)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.local_store(buffers[0], tl.arange(0, S))
            tlx.barrier_arrive(bars[0])
            tlx.barrier_wait(bars[1], 0, pred=False)  # it never completes
            tlx.barrier_wait(bars[0], 0)
            total = tlx.local_load(buffers[0]) + tlx.local_load(buffers[1])
            tl.store(y + tl.arange(0, S), total + tlx.local_load(buffers[2]))
        with tlx.async_task(num_warps=2):
            tlx.local_store(buffers[1], tl.arange(0, S) * 2)
            tlx.barrier_arrive(bars[0], 2)
        with tlx.async_task(num_warps=1):
            tlx.local_store(buffers[2], tl.arange(0, S) * 4)
            tlx.barrier_arrive(bar=bars[0], arrive_count=1)


def test_a_barrier_of_several_tasks() -> None:
    y = empty(256)
    arrivals[(1,)](y, 256)
    equal(y, torch.arange(256, device=DEVICE) * 7)


@triton.jit
def in_turn(y, number, rounds, S: tl.constexpr, FIXED: tl.constexpr):
    buffer = tlx.local_alloc((S,), tl.int32, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(rounds):
                tlx.local_store(buffer[0], tl.arange(0, S) + i)
                tlx.named_barrier_arrive(14 if FIXED else number, 256)
                tlx.named_barrier_wait(15 if FIXED else number + 1, 256)
        with tlx.async_task(num_warps=4):
            for i in range(rounds):
                tlx.named_barrier_wait(14 if FIXED else number, 256)
                tl.store(y + i * S + tl.arange(0, S), tlx.local_load(buffer[0]))
                tlx.named_barrier_arrive(15 if FIXED else number + 1, 256)


@pytest.mark.parametrize("fixed", [True, False])
def test_named_barriers(fixed: bool) -> None:
    y = empty(9, 256)
    in_turn[(1,)](y, 10, 9, 256, fixed)
    equal(y, (torch.arange(256)[None, :] + torch.arange(9)[:, None]).to(DEVICE))


# --- copies --------------------------------------------------------------------------------------


@triton.jit
def gathered(x, y, n, other, S: tl.constexpr, OTHER: tl.constexpr, ONE: tl.constexpr):
    buffers = tlx.local_alloc((S,), tlx.dtype_of(x), 2)
    at = tl.arange(0, S)
    if OTHER:
        first = tlx.async_load(x + at, buffers[0], mask=at < n, other=other)
    else:
        first = tlx.async_load(x + at, buffers[0], mask=at < n)
    first = tlx.async_load_commit_group([first])
    second = tlx.async_load_commit_group([tlx.async_load(x + at * ONE + S, buffers[1])])
    token = tlx.async_load_wait_group(1, [first])
    tl.store(y + at, tlx.local_load(buffers[0], token))
    tlx.async_load_wait_group(0, [second])
    tl.store(y + S + at, tlx.local_load(buffers[1]))


@pytest.mark.parametrize(("dtype", "other", "step"), [
    ("int8", False, 1), ("float16", True, 1), ("float32", False, 1), ("int64", False, 2),
    ("bfloat16", False, 2),
])  # fmt: skip
def test_copies_in_groups(dtype: str, other: bool, step: int) -> None:
    kind = getattr(torch, dtype)
    x, y = integers(256 * 3, dtype=kind), empty(2, 256, dtype=kind)
    gathered[(1,)](x, y, 100, 5, 256, other, step)
    first = x[:256].clone()
    first[100:] = 5 if other else 0
    equal(y, torch.stack([first, x[256 : 256 * (1 + step) : step]]))


@triton.jit
def in_bulk(x, y, size, S: tl.constexpr, SIZED: tl.constexpr):
    buffer = tlx.local_alloc((S,), tlx.dtype_of(x), 1)
    bar = tlx.alloc_barriers(1)
    tlx.local_store(buffer[0], tl.full((S,), 3, tlx.dtype_of(x)))
    tlx.fence("async_shared")
    if SIZED:
        tlx.barrier_expect_bytes(bar[0], S)
        tlx.async_load(x, buffer[0], bulk=True, bulk_size=size, barrier=bar[0])
    else:
        tlx.barrier_expect_bytes(bar[0], S * tlx.size_of(tlx.dtype_of(x)))
        tlx.async_load(x, buffer[0], bulk=True, barrier=bar[0])
    tlx.barrier_wait(bar[0], 0)
    tlx.async_store(y, buffer[0], S * tlx.size_of(tlx.dtype_of(x)))
    tlx.async_descriptor_store_wait(0)


@pytest.mark.parametrize(
    ("dtype", "sized"), [("uint8", False), ("float32", False), ("int16", True)]
)
def test_bulk_copies(dtype: str, sized: bool) -> None:
    kind = getattr(torch, dtype)
    x, y = integers(512, dtype=kind), torch.zeros(512, dtype=kind, device=DEVICE)
    in_bulk[(1,)](x, y, 512, 512, sized)
    if sized:  # half of the buffer
        x[256:] = 3
    equal(y, x)


# --- tensor descriptors --------------------------------------------------------------------------


@triton.jit
def by_descriptor(x, y, B0: tl.constexpr, B1: tl.constexpr):
    """A tile: TMA in, through registers, TMA out."""
    tile = tlx.local_alloc((B0, B1), tlx.dtype_of(x), 2)
    bar = tlx.alloc_barriers(1)
    row, column = tl.program_id(0) * B0, tl.program_id(1) * B1
    tlx.async_descriptor_prefetch_tensor(x, [row, column])
    tlx.barrier_expect_bytes(bar[0], B0 * B1 * tlx.size_of(tlx.dtype_of(x)))
    tlx.async_descriptor_load(x, tile[0], [row, column], bar[0], eviction_policy="evict_first")
    tlx.barrier_wait(bar[0], 0)
    tlx.local_store(tile[1], tlx.local_load(tile[0]))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(y, tile[1], [row, column], eviction_policy="evict_last")
    tlx.async_descriptor_store_wait(0)


@triton.jit
def by_descriptor_made_here(x, y, M, N, B0: tl.constexpr, B1: tl.constexpr, PLACED: tl.constexpr):
    if PLACED:
        places = tlx.allocate_tensor_descriptor(num=2)
        for i in tl.static_range(2):
            tlx.make_tensor_descriptor(places[i], y if i else x, [M, N], [N, 1], [B0, B1])
        given = tlx.reinterpret_tensor_descriptor(places[0], [B0, B1], tlx.dtype_of(x))
        wanted = tlx.reinterpret_tensor_descriptor(places[1], [B0, B1], tlx.dtype_of(y))
    else:
        given = tl.make_tensor_descriptor(x, [M, N], [N, 1], [B0, B1])
        wanted = tl.make_tensor_descriptor(y, [M, N], [N, 1], [B0, B1])
    tlx.prefetch(given, tensormap=True)
    by_descriptor(given, wanted, B0, B1)


def _allocate(size: int, alignment: int, stream: int | None) -> Any:
    return torch.empty(size, dtype=torch.int8, device=DEVICE)


@pytest.mark.parametrize(("dtype", "block"), [
    ("float16", (32, 64)), ("int8", (16, 32)), ("float32", (64, 8)), ("bfloat16", (8, 128)),
    ("int32", (1, 256)), ("int64", (16, 16)), ("uint8", (64, 256)),
])  # fmt: skip
@pytest.mark.parametrize("made", ["by the host", "in the kernel", "in a place"])
def test_tiles_by_descriptors(dtype: str, block: tuple[int, int], made: str) -> None:
    if made != "by the host" and dtype not in ("float16", "int8", "int32"):
        pytest.skip("the layout is the same as of the host's")
    kind = getattr(torch, dtype)
    x = integers(70, 272, dtype=kind)  # tiles stick out on both sides
    y = torch.zeros_like(x)
    grid = (triton.cdiv(70, block[0]), triton.cdiv(272, block[1]))
    if made == "by the host":
        given, wanted = (TensorDescriptor.from_tensor(t, list(block)) for t in (x, y))
        by_descriptor[grid](given, wanted, *block)
    else:
        triton.set_allocator(_allocate)
        by_descriptor_made_here[grid](x, y, 70, 272, *block, made == "in a place")
    equal(y, x)


@triton.jit
def rest_of_a_box(x, y, B0: tl.constexpr, B1: tl.constexpr):
    tile = tlx.local_alloc((B0, B1), tlx.dtype_of(x), 1)
    bar = tlx.alloc_barriers(1)
    tlx.barrier_expect_bytes(bar[0], B0 * B1 * 2)
    tlx.async_descriptor_load(x, tile[0], [-8, 40], bar[0])
    tlx.barrier_wait(bar[0], 0)
    at = tl.arange(0, B0)[:, None] * B1 + tl.arange(0, B1)[None, :]
    tl.store(y + at, tlx.local_load(tile[0]))


def test_outside_of_a_tensor_is_zero() -> None:
    x, y = integers(20, 64, dtype=torch.float16), empty(32, 64, dtype=torch.float16)
    rest_of_a_box[(1,)](TensorDescriptor.from_tensor(x, [32, 64]), y, 32, 64)
    expected = torch.zeros_like(y)
    expected[8:28, :24] = x[:, 40:]
    equal(y, expected)


@triton.jit
def reduced(x, y, B0: tl.constexpr, B1: tl.constexpr, KIND: tl.constexpr):
    tile = tlx.local_alloc((B0, B1), tlx.dtype_of(y), 1)
    at = tl.arange(0, B0)[:, None] * B1 + tl.arange(0, B1)[None, :]
    tlx.local_store(tile[0], tl.load(x + at))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(y, tile[0], [0, 0], store_reduce=KIND)
    tlx.async_descriptor_store_wait(0, read_only=False)


@pytest.mark.parametrize(("kind", "dtype"), [
    ("add", "float32"), ("add", "float16"), ("add", "int32"), ("min", "int32"), ("max", "bfloat16"),
    ("and", "int32"), ("or", "int32"), ("xor", "int32"),
])  # fmt: skip
def test_reductions_in_global_memory(kind: str, dtype: str) -> None:
    element = getattr(torch, dtype)
    x, y = integers(32, 64, dtype=element), integers(32, 64, dtype=element)
    meaning = {
        "add": torch.add, "min": torch.minimum, "max": torch.maximum, "and": torch.bitwise_and,
        "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    }  # fmt: skip
    expected = meaning[kind](x, y)
    reduced[(1,)](x, TensorDescriptor.from_tensor(y, [32, 64]), 32, 64, kind)
    equal(y, expected)


@triton.jit
def ring_by_descriptor(x, y, tiles, B0: tl.constexpr, B1: tl.constexpr, STAGES: tl.constexpr):
    """A task copies tiles in, the program's warps add one, another task copies them out."""
    given = tlx.local_alloc((B0, B1), tlx.dtype_of(x), STAGES)
    done = tlx.local_alloc((B0, B1), tlx.dtype_of(x), STAGES)
    full, free = tlx.alloc_barriers(STAGES), tlx.alloc_barriers(STAGES)
    ready, stored = tlx.alloc_barriers(STAGES), tlx.alloc_barriers(STAGES)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(tiles):
                stage, phase = i % STAGES, (i // STAGES) & 1
                tlx.barrier_wait(full[stage], phase)
                value = tlx.local_load(given[stage])
                tlx.barrier_arrive(free[stage])
                tlx.barrier_wait(stored[stage], phase ^ 1)
                tlx.local_store(done[stage], value + 1)
                tlx.fence_async_shared()
                tlx.barrier_arrive(ready[stage])
        with tlx.async_task(num_warps=1, num_regs=24):
            for i in range(tiles):
                stage, phase = i % STAGES, (i // STAGES) & 1
                tlx.barrier_wait(free[stage], phase ^ 1)
                tlx.barrier_expect_bytes(full[stage], B0 * B1 * 2)
                tlx.async_descriptor_load(x, given[stage], [i * B0, 0], full[stage])
        with tlx.async_task(num_warps=1, num_regs=24):
            for i in range(tiles):
                stage, phase = i % STAGES, (i // STAGES) & 1
                tlx.barrier_wait(ready[stage], phase)
                tlx.async_descriptor_store(y, done[stage], [i * B0, 0])
                tlx.async_descriptor_store_wait(0)
                tlx.barrier_arrive(stored[stage])


@pytest.mark.parametrize("stages", [1, 3])
def test_a_ring_filled_and_emptied_by_descriptors(stages: int) -> None:
    x, y = integers(32 * 10, 64, dtype=torch.float16), empty(32 * 10, 64, dtype=torch.float16)
    given, wanted = (TensorDescriptor.from_tensor(t, [32, 64]) for t in (x, y))
    ring_by_descriptor[(1,)](given, wanted, 10, 32, 64, stages)
    equal(y, x + 1)


# --- memory --------------------------------------------------------------------------------------


@triton.jit
def elements(x, y, S: tl.constexpr):
    row = tlx.local_alloc((S,), tl.float32, 2)
    tlx.local_store(row[1], tl.load(x + tl.arange(0, S)))
    total = tl.zeros((1,), tl.float32)
    for i in range(S):
        total += tlx.local_load(row[1][i]) * i
    tl.store(y + tl.arange(0, 1), total)


def test_elements_of_a_row() -> None:
    x, y = integers(64, dtype=torch.float32), empty(1, dtype=torch.float32)
    elements[(1,)](x, y, 64)
    equal(y, (x * torch.arange(64, device=DEVICE)).sum()[None])


@triton.jit
def rows_as_one(x, y, ROWS: tl.constexpr, S: tl.constexpr):
    """Rows of an allocation, which TMA fills at once."""
    rows = tlx.local_alloc((1, S), tl.int16, ROWS)
    bar = tlx.alloc_barriers(1)
    tlx.barrier_expect_bytes(bar[0], ROWS * S * 2)
    whole = tlx.local_reinterpret(rows, tl.int16, [1, ROWS * S])
    tlx.async_descriptor_load(x, whole, [0, 0], bar[0])
    tlx.barrier_wait(bar[0], 0)
    for i in range(ROWS):
        at = i * S + tl.arange(0, S)
        tl.store(y + at[None, :], tlx.local_load(rows[i]) + i)


def test_rows_that_one_copy_fills() -> None:
    x, y = integers(1, 2048, dtype=torch.int16), empty(16, 128, dtype=torch.int16)
    rows_as_one[(1,)](TensorDescriptor.from_tensor(x, [1, 2048]), y, 16, 128)
    equal(y, x.reshape(16, 128) + torch.arange(16, device=DEVICE)[:, None])


@triton.jit
def overlapping(y, S: tl.constexpr):
    spec = tlx.storage_alias_spec(storage=tlx.storage_kind.smem)
    a = tlx.local_alloc((S, S), tl.float32, 2, tlx.storage_kind.smem, reuse=spec)
    b = tlx.local_alloc((S, S), tl.float16, 2, tlx.storage_kind.smem, reuse=spec)
    c = tlx.local_alloc((S, S), tl.float16, 2, tlx.storage_kind.smem, reuse=spec)
    spec.set_buffer_overlap(
        tlx.reuse_group(
            a,
            tlx.reuse_group(b, c, group_type=tlx.reuse_group_type.distinct),
            group_type=tlx.reuse_group_type.shared,
        )
    )
    at = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    tlx.local_store(a[0], at.to(tl.float32))
    tlx.local_store(a[1], at.to(tl.float32) + 1)
    tl.store(y + at, tlx.local_load(a[0]) + tlx.local_load(a[1]))
    for i in tl.static_range(2):
        tlx.local_store(b[i], tl.full((S, S), i, tl.float16))
        tlx.local_store(c[i], tl.full((S, S), i + 2, tl.float16))
    for i in tl.static_range(2):
        tl.store(y + (2 * i + 1) * S * S + at, tlx.local_load(b[i]))
        tl.store(y + (2 * i + 2) * S * S + at, tlx.local_load(c[i]))


def test_memory_that_several_share() -> None:
    y = empty(5, 32, 32, dtype=torch.float32)
    overlapping[(1,)](y, 32)
    at = torch.arange(32 * 32, device=DEVICE).reshape(32, 32)
    equal(y[0], at * 2 + 1)
    for i, number in enumerate((0, 2, 1, 3)):
        equal(y[1 + i], torch.full_like(y[0], number))


# --- products ------------------------------------------------------------------------------------


@triton.jit
def product(
    x, y, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    REGISTERS: tl.constexpr, BY_COLUMN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    b = tlx.local_alloc((K, N), tlx.dtype_of(y), 1)
    columns = y + (k[:, None] + n[None, :] * K if BY_COLUMN else k[:, None] * N + n[None, :])
    tlx.async_load(columns, b[0])
    if REGISTERS:
        a = tl.load(x + m[:, None] * K + k[None, :])
    else:
        held = tlx.local_alloc((M, K), tlx.dtype_of(x), 1)
        tlx.async_load(x + m[:, None] * K + k[None, :], held[0])
        a = held[0]
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    acc = tlx.async_dot(a, b[0], out_dtype=OUT)
    acc = tlx.async_dot(a, b[0], acc, out_dtype=OUT)
    acc = tlx.async_dot_wait(0, acc)
    tl.store(z + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize(("dtype", "shape", "registers", "by_column", "warps"), [
    ("float16", (64, 32, 64), True, False, 4), ("float16", (128, 64, 32), False, True, 8),
    ("bfloat16", (64, 16, 128), True, True, 4), ("bfloat16", (64, 128, 16), False, False, 4),
    ("float32", (64, 32, 32), True, True, 4), ("float32", (64, 32, 32), False, True, 4),
    ("float8_e4m3fn", (64, 32, 64), True, True, 4), ("float8_e5m2", (64, 32, 64), False, True, 4),
    ("int8", (64, 32, 64), True, True, 4), ("int8", (128, 16, 32), False, True, 4),
])  # fmt: skip
def test_products(
    dtype: str, shape: tuple[int, int, int], registers: bool, by_column: bool, warps: int
) -> None:
    m, n, k = shape
    kind = getattr(torch, dtype)
    x, y = integers(m, k, most=4).to(kind), integers(n, k, most=4).to(kind)
    z = empty(m, n, dtype=torch.int32 if dtype == "int8" else torch.float32)
    b = y if by_column else y.T.contiguous()
    out = tl.int32 if dtype == "int8" else tl.float32
    product[(1,)](x, b, z, m, n, k, registers, by_column, out, num_warps=warps)
    equal(z, 2 * (x.double() @ y.double().T))


@triton.jit
def products_of_tasks(x, y, z, D: tl.constexpr, COPIES: tl.constexpr):
    """A task copies, the others multiply: each its own rows."""
    a, b = tlx.local_alloc((64, D), tl.float16, COPIES), tlx.local_alloc((D, D), tl.float16, 1)
    full = tlx.alloc_barriers(1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.barrier_expect_bytes(full[0], 2 * (64 * COPIES + D) * D)
            tlx.async_descriptor_load(y, b[0], [0, 0], full[0])
            for i in tl.static_range(COPIES):
                tlx.async_descriptor_load(x, a[i], [i * 64, 0], full[0])
        with tlx.async_task(num_warps=4, num_regs=152, replicate=COPIES):
            row = tlx.async_task_replica_id()
            tlx.barrier_wait(full[0], 0)
            acc = tl.zeros((64, D), tl.float32)
            for i in tl.static_range(0, D, 16):
                left = tlx.local_slice(a[row], [0, i], [64, 16])
                acc = tlx.async_dot(left, tlx.local_slice(b[0], [i, 0], [16, D]), acc)
            acc = tlx.async_dot_wait(0, acc)
            at = (row * 64 + tl.arange(0, 64)[:, None]) * D + tl.arange(0, D)[None, :]
            tl.store(z + at, acc)


@pytest.mark.parametrize("copies", [1, 2])
def test_products_of_tasks(copies: int) -> None:
    x, y = (integers(r, 64, dtype=torch.float16, most=9) for r in (64 * copies, 64))
    z = empty(64 * copies, 64, dtype=torch.float32)
    given = [TensorDescriptor.from_tensor(t, [64, 64]) for t in (x, y)]
    products_of_tasks[(1,)](*given, z, 64, copies)
    equal(z, x.float() @ y.float())


# --- small words ---------------------------------------------------------------------------------


@triton.jit
def of_threads(x, y, time, S: tl.constexpr):
    start = tlx.clock64()
    thread = tlx.thread_id(0)
    tlx.fence("gpu")
    ballot = tlx.vote_ballot_sync(0xFFFFFFFF, thread < 11)
    value = tl.load(x + tl.arange(0, S))
    tl.store(y + tl.arange(0, S), tlx.warp_redux(value, "max"))
    tl.store(y + S + tl.arange(0, S), tlx.warp_redux(value, "min"))
    if thread == 0:
        tl.store(y + 2 * S, ballot)
        tl.store(y + 2 * S + 1, tlx.num_warps())
    tlx.fence(scope="sys")
    tl.store(time, tlx.clock64() - start)


def test_threads_and_warps() -> None:
    x, y = integers(32, dtype=torch.float32), empty(66, dtype=torch.float32)
    time = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    of_threads[(1,)](x, y, time, 32, num_warps=1)
    equal(y[:32], x.max().expand(32))
    equal(y[32:64], x.min().expand(32))
    assert y[64:].tolist() == [2**11 - 1, 1]
    assert 0 < time.item() < 10**9


# --- clusters ------------------------------------------------------------------------------------


@tlx.jit
def tasks_of_two_ctas(x, y, S: tl.constexpr):
    """The producer of one CTA waits until the consumer of the other one has made room."""
    buffer = tlx.local_alloc((S,), tl.int32, 1)
    free, full = tlx.alloc_barriers(1), tlx.alloc_barriers(1)
    rank = tlx.cluster_cta_rank()
    at = tl.program_id(0) * S + tl.arange(0, S)
    tlx.cluster_barrier()
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.barrier_arrive(free[0], remote_cta_rank=rank ^ 1)
            tlx.barrier_wait(full[0], 0)
            tl.store(y + at, tlx.local_load(buffer[0]) + 1)
        with tlx.async_task(num_warps=4):
            tlx.barrier_wait(free[0], 0)
            tlx.local_store(buffer[0], tl.load(x + at))
            tlx.barrier_arrive(full[0])


def test_tasks_of_two_ctas() -> None:
    x, y = integers(8, 256), empty(8, 256)
    tasks_of_two_ctas[(8,)](x, y, 256, ctas_per_cga=(2, 1, 1))
    equal(y, x + 1)


@tlx.jit
def exchanged(x, y, S: tl.constexpr):
    """Each CTA's buffer goes into the other one's."""
    buffers = tlx.local_alloc((S,), tlx.dtype_of(x), 2)
    bar = tlx.alloc_barriers(1)
    at = tl.program_id(0) * S + tl.arange(0, S)
    tlx.barrier_expect_bytes(bar[0], S * tlx.size_of(tlx.dtype_of(x)))
    tlx.local_store(buffers[0], tl.load(x + at))
    tlx.fence_async_shared()
    tlx.async_remote_shmem_copy(buffers[1], buffers[0], tlx.cluster_cta_rank() ^ 1, bar[0])
    tlx.barrier_wait(bar[0], 0)
    tl.store(y + at, tlx.local_load(buffers[1]))


def test_buffers_that_are_exchanged() -> None:
    x, y = integers(8, 1024, dtype=torch.float16), empty(8, 1024, dtype=torch.float16)
    exchanged[(8,)](x, y, 1024, ctas_per_cga=(2, 1, 1))
    equal(y, x.reshape(4, 2, 1024).flip(1).reshape(8, 1024))


@tlx.jit
def tasks_that_meet(x, y, S: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    rank = tlx.cluster_cta_rank()
    at = tl.program_id(0) * S + tl.arange(0, S)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.cluster_barrier()
            if rank == 0:
                tlx.barrier_arrive(bars[0], remote_cta_rank=1)
        with tlx.async_task(num_warps=4):
            value = tl.load(x + at)
            tlx.cluster_barrier()
            if rank == 1:
                tlx.barrier_wait(bars[0], 0)
            tl.store(y + at, value)


def test_tasks_that_meet() -> None:
    x, y = integers(8, 256), empty(8, 256)
    tasks_that_meet[(8,)](x, y, 256, ctas_per_cga=(2, 1, 1))
    equal(y, x)


@tlx.jit
def sizes(y):
    tl.store(y + tl.program_id(0), tlx.cluster_size_1d())


def test_a_cluster_of_three() -> None:
    y = empty(12)
    sizes[(12,)](y, ctas_per_cga=(3, 1, 1))
    equal(y, torch.full_like(y, 3))
