"""The reference meaning of barriers, descriptors and bulk copies; see ``meaning.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

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


# --- copies by descriptors ------------------------------------------------------------------------

DTYPES = {
    torch.float16: 0, torch.bfloat16: 0, torch.float32: 0, torch.float8_e4m3fn: 0,
    torch.float8_e5m2: 0, torch.int8: 1, torch.uint8: 1, torch.int16: 1, torch.int32: 1,
    torch.int64: 1,
}  # fmt: skip


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    if DTYPES[dtype]:
        return torch.randint(0, 100, shape).to(dtype)
    return torch.randn(shape).to(dtype)


@triton.jit
def moved(desc, out, first, second, to, B: tl.constexpr, C: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((B, C), tlx.dtype_of(desc), 2)
    tlx.barrier_expect_bytes(bars[0], 2 * B * C * tlx.dtype_of(desc).primitive_bitwidth // 8)
    tlx.async_descriptor_prefetch_tensor(desc, [first, second])
    tlx.async_descriptor_load(desc, buf[0], [first, second], bars[0])
    tlx.async_descriptor_load(desc, buf[1], [0, 0], bars[0], pred=first > -99)
    tlx.barrier_wait(bars[0], 0)
    tlx.async_descriptor_store(out, buf[0], [to, second])
    tlx.async_descriptor_store_wait(0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("at", [(0, 0), (8, 16), (-4, 16), (24, 48), (100, 0)])
def test_what_is_outside_of_the_tensor_is_zero_and_dropped(
    dtype: torch.dtype, at: tuple[int, int]
) -> None:
    a = values((30, 64), dtype)
    b = torch.full_like(a.view(torch.uint8), 0x3A).view(dtype)
    expected = b.clone()
    to = max(at[0], 0)
    loaded = torch.zeros((16, 32)).to(dtype)
    rows, columns = (slice(max(o, 0), o + e) for o, e in zip(at, (16, 32), strict=True))
    part = a[rows, columns]
    loaded[to - at[0] :, : part.shape[1]][: part.shape[0]] = part
    kept = expected[to : to + 16, columns]
    kept[...] = loaded[: kept.shape[0], : kept.shape[1]]
    box = [16, 32]
    source, target = (TensorDescriptor.from_tensor(x, box) for x in (a, b))
    moved[(1,)](source, target, *at, to, *box)
    assert (b.view(torch.uint8) == expected.view(torch.uint8)).all()


@triton.jit
def without_first(desc, out, M: tl.constexpr, N: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((M, N), tlx.dtype_of(desc), 1)
    tlx.barrier_expect_bytes(bars[0], M * N * 4)
    tlx.async_descriptor_load(desc, buf[0], [1, 8, 0], bars[0])
    tlx.barrier_wait(bars[0], 0)
    tlx.async_descriptor_store(out, buf[0], [0, 4, 0])
    tlx.async_descriptor_store(out, buf[0], [1, 0, 0], store_reduce="add")
    tlx.async_descriptor_store_wait(0)


def test_a_buffer_may_leave_out_first_dimensions_of_1() -> None:
    a, b = values((2, 16, 16), torch.float32), torch.ones(2, 16, 16)
    box = [1, 8, 16]
    source, target = (TensorDescriptor.from_tensor(x, box) for x in (a, b))
    without_first[(1,)](source, target, 8, 16)
    assert (b[0, 4:12] == a[1, 8:]).all()
    assert (b[1, :8] == a[1, 8:] + 1).all()


@triton.jit
def padded(p, q, n, m, B: tl.constexpr, PAD: tl.constexpr, PLACE: tl.constexpr):
    if PLACE:
        places = tlx.allocate_tensor_descriptor(2)
        tlx.make_tensor_descriptor(places[1], p, [n, m], [m, 1], [B, B], PAD)
        desc = tlx.reinterpret_tensor_descriptor(places[1], [B, B], tlx.dtype_of(p))
    else:
        desc = tlx.make_tensor_descriptor(None, p, [n, m], [m, 1], [B, B], PAD)
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((B, B), tlx.dtype_of(p), 1)
    tlx.barrier_expect_bytes(bars[0], B * B * 4)
    tlx.async_descriptor_load(desc, buf[0], [8, 0], bars[0])
    tlx.barrier_wait(bars[0], 0)
    tl.store(q + tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :], tlx.local_load(buf[0]))


@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_padding_of_a_descriptor_made_in_the_kernel(padding: str, place: bool) -> None:
    a, b = values((12, 16), torch.float32), torch.zeros(16, 16)
    padded[(1,)](a, b, 12, 16, 16, padding, place)
    assert (b[:4] == a[8:]).all()
    assert (b[4:].isnan() if padding == "nan" else b[4:] == 0).all()


@triton.jit
def reduced(desc, p, KIND: tl.constexpr):
    buf = tlx.local_alloc((16, 16), tlx.dtype_of(p), 1)
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tlx.local_store(buf[0], tl.load(p + at))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(desc, buf[0], [0, 0], store_reduce=KIND)
    tlx.async_descriptor_store_wait(0, False)


REDUCTIONS = {
    "add": torch.add, "min": torch.minimum, "max": torch.maximum, "and": torch.bitwise_and,
    "or": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(kind: str) -> None:
    a, b = values((16, 16), torch.int32), values((16, 16), torch.int32).T.contiguous()
    expected = REDUCTIONS[kind](a, b)
    reduced[(1,)](TensorDescriptor.from_tensor(a, [16, 16]), b, kind)
    assert (a == expected).all()


@triton.jit
def mistakes(desc, q, WHAT: tl.constexpr):
    bars = tlx.alloc_barriers(2)
    buf = tlx.local_alloc((16, 16), tl.float32, 2)
    tlx.barrier_expect_bytes(bars[0], 1024)
    tlx.async_descriptor_load(desc, buf[0], [0, 0], bars[0])
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    if WHAT == "read before the wait":
        tl.store(q + at, tlx.local_load(buf[0]))
    if WHAT == "wait for another barrier":
        tlx.barrier_wait(bars[1], 0)
    if WHAT == "two copies, bytes of one":
        tlx.async_descriptor_load(desc, buf[1], [0, 0], bars[0])
        tlx.barrier_wait(bars[0], 0)
        tl.store(q + at, tlx.local_load(buf[1]))
    tlx.barrier_wait(bars[0], 0)
    tlx.async_descriptor_store(desc, buf[0], [0, 0])
    if WHAT == "written before the store is done":
        tlx.local_store(buf[0], tl.load(q + at))
    tlx.async_descriptor_store_wait(0)
    if WHAT == "a store before its tensor":
        tlx.async_descriptor_store(desc, buf[0], [tl.program_id(0) - 1, 0])
    if WHAT == "a place without a descriptor":
        tlx.reinterpret_tensor_descriptor(
            tlx.allocate_tensor_descriptor(1)[0], [16, 16], tl.float32
        )


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("read before the wait", errors.ReferenceRace, "async_descriptor_load"),
        ("wait for another barrier", errors.WaitNeverEnds, "lacks 1 of 1 arrivals"),
        ("two copies, bytes of one", errors.ReferenceRace, "async_descriptor_load"),
        ("written before the store is done", errors.ReferenceRace, "async_descriptor_store"),
        ("a store before its tensor", errors.WrongShape, "begins at -1"),
        ("a place without a descriptor", errors.WaitNeverEnds, "no tensor descriptor was made"),
    ],
)
def test_mistakes(what: str, kind: type[errors.RemoraError], says: str) -> None:
    a = values((16, 16), torch.float32)
    run = lambda: mistakes[(1,)](TensorDescriptor.from_tensor(a, [16, 16]), a, what)  # noqa: E731
    assert says in fails(kind, run).what


# --- bulk copies ---------------------------------------------------------------------------------


@triton.jit
def bulk(p, q, n, B: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 2)
    tlx.barrier_expect_bytes(bars[0], B * 2 + 32)
    tlx.async_load(p, buf[0], bulk=True, barrier=bars[0])
    tlx.async_load(p + B, buf[1], bulk=True, bulk_size=n * 2, barrier=bars[0])
    tlx.barrier_wait(bars[0], 0)
    tlx.async_store(q, buf[0], B * 2)
    tlx.async_store(q + B, buf[1], n * 2)
    tlx.async_descriptor_store_wait(0)


def test_bulk_copies() -> None:
    p, q = values((256,), torch.float16), torch.zeros(256, dtype=torch.float16)
    bulk[(1,)](p, q, 16, 128)
    assert (q[:144] == p[:144]).all()
    assert (q[144:] == 0).all()
