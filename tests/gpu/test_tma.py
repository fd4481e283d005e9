"""Barriers, copies by descriptors and bulk copies on a GPU, against PyTorch."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import remora.tlx as tlx  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9,
        reason="needs a GPU of compute capability 9.0: torch sees none",
    ),
]


def values(shape: tuple[int, ...], dtype: Any) -> Any:
    torch.manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda").to(dtype)
    return torch.randint(0, 100, shape, device="cuda").to(dtype)


def same(a: Any, b: Any) -> bool:
    return bool((a.contiguous().view(torch.uint8) == b.contiguous().view(torch.uint8)).all())


# --- barriers ------------------------------------------------------------------------------------


@triton.jit
def phases(q, n, B: tl.constexpr):
    bars = tlx.alloc_barriers(2, arrive_count=3)
    warps = tlx.alloc_warp_barrier(1, num_warps=4, num_arrivals=2)
    buf = tlx.local_alloc((B,), tl.int32, 1)
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.int32)
    for i in range(n):
        tlx.local_store(buf[0], at + i)
        tlx.barrier_wait(bars[1], (i & 1) ^ 1)
        tlx.barrier_arrive(bars[1], 2)
        tlx.barrier_expect_bytes(bars[1], 0)
        tlx.barrier_wait(bars[1], i & 1)
        tlx.barrier_arrive(warps[0])
        tlx.barrier_arrive(warps[0])
        tlx.barrier_wait(warps[0], i & 1, i >= 0)
        tlx.barrier_wait(bars[0], 0, pred=i < 0)
        tlx.named_barrier_wait(9 + (i & 1), 128)
        total += tlx.local_load(buf[0])
        tlx.fence("gpu")
    tl.store(q + at, total)


def test_phases_of_barriers() -> None:
    q = torch.empty(128, dtype=torch.int32, device="cuda")
    phases[(4,)](q, 7, 128)
    assert q.tolist() == [7 * i + 21 for i in range(128)]


# --- boxes ---------------------------------------------------------------------------------------


@triton.jit
def moved(desc, out, at, to, SHAPE: tl.constexpr, BYTES: tl.constexpr, RANK: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc(SHAPE, tlx.dtype_of(desc), 2)
    view = buf[1]
    where, there = (at,), (to,)
    if RANK == 2:
        where, there = (at, 16), (to, 16)
    elif RANK == 3:
        where, there = (1, at, 16), (1, to, 16)
    elif RANK == 5:
        where, there = (0, at, 0, 1, 16), (0, to, 0, 1, 16)
    tlx.async_descriptor_prefetch_tensor(desc, where)
    tlx.prefetch(desc, tensormap=True)
    tlx.barrier_expect_bytes(bars[0], BYTES)
    tlx.async_descriptor_load(desc, view, where, bars[0], eviction_policy="evict_first")
    tlx.barrier_wait(bars[0], 0)
    tlx.local_store(view, tlx.local_load(view))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(out, view, there)
    tlx.async_descriptor_store_wait(0)


BOXES = [
    ("float16", (64, 64)), ("float16", (8, 8)), ("float16", (4, 64)), ("float16", (64, 32)),
    ("float16", (512, 64)), ("float16", (16, 512)), ("bfloat16", (128, 128)),
    ("float32", (64, 32)), ("float32", (8, 4)), ("float64", (16, 16)), ("int8", (64, 128)),
    ("uint8", (16, 16)), ("int16", (32, 64)), ("int32", (16, 32)), ("int64", (8, 2)),
    ("float8_e4m3fn", (64, 64)), ("float8_e5m2", (64, 256)),
    ("float16", (64,)), ("float16", (1024,)), ("int8", (512,)),
    ("float16", (2, 16, 64)), ("bfloat16", (1, 4, 32)), ("float16", (1, 2, 2, 4, 64)),
]  # fmt: skip


def rows_of(a: Any, axis: int, at: int, whole: list[slice]) -> Any:
    """What a copy from ``at`` along an axis loads: zeros outside of ``a``."""
    rows = torch.arange(at, at + whole[axis].stop - whole[axis].start, device=a.device)
    inside = (rows >= 0) & (rows < a.shape[axis])
    across = [*whole]
    across[axis] = slice(None)
    raw = a.view(torch.uint8) if a.element_size() == 1 else a
    loaded = raw[tuple(across)].index_select(axis, rows.clamp(0, a.shape[axis] - 1))
    shape = [-1 if d == axis else 1 for d in range(a.dim())]
    return torch.where(inside.view(shape), loaded, 0).view(a.dtype)


@pytest.mark.parametrize("at", [0, 5, -3, 60], ids=lambda v: f"at{v}")
@pytest.mark.parametrize(("dtype", "box"), BOXES, ids=lambda v: str(v).replace(" ", ""))
def test_boxes_of_every_kind(dtype: str, box: tuple[int, ...], at: int) -> None:
    kind = getattr(torch, dtype)
    rank = len(box)
    if rank == 1:
        at = at // 16 * 16  # a copy begins at a multiple of 16 bytes
    shape = {1: (1050,), 2: (70, 544), 3: (3, 70, 96), 5: (2, 70, 3, 6, 96)}[rank]
    a = values(shape, kind)
    b = torch.full((prod(shape) * a.element_size(),), 0x3A, dtype=torch.uint8, device="cuda")
    b = b.view(kind).view(shape)
    expected = b.clone()
    # A store may end outside, and not begin before (CUDA C++ Programming Guide, tensor copies).
    to = max(at, 0)
    there = {1: (to,), 2: (to, 16), 3: (1, to, 16), 5: (0, to, 0, 1, 16)}[rank]
    axis = {1: 0, 2: 0, 3: 1, 5: 1}[rank]
    whole = [slice(o, o + e) for o, e in zip(there, box, strict=True)]
    written = expected[tuple(whole)]
    loaded = rows_of(a, axis, at, whole)
    written.copy_(loaded[tuple(slice(0, n) for n in written.shape)])
    source, target = (TensorDescriptor.from_tensor(x, list(box)) for x in (a, b))
    moved[(1,)](source, target, at, to, box, prod(box) * a.element_size(), rank)
    assert same(b, expected)


@triton.jit
def reduced(desc, p, KIND: tl.constexpr, B: tl.constexpr):
    buf = tlx.local_alloc((B, B), tlx.dtype_of(p), 1)
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tlx.local_store(buf[0], tl.load(p + at))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(desc, buf[0], [0, 0], store_reduce=KIND)
    tlx.async_descriptor_store_wait(0, read_only=False)


REDUCTIONS = {
    "add": torch.add, "min": torch.minimum, "max": torch.maximum, "and": torch.bitwise_and,
    "or": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(kind: str, dtype: str) -> None:
    element = getattr(tl, {"float16": "float16", "bfloat16": "bfloat16"}.get(dtype, dtype))
    from remora.tlx.descriptors import REDUCTIONS as allowed

    if element not in allowed[kind]:
        pytest.skip(f"the hardware has no {kind} of {dtype}")
    a = values((32, 32), getattr(torch, dtype))
    b = a.T.contiguous()
    expected = REDUCTIONS[kind](a, b)
    reduced[(1,)](TensorDescriptor.from_tensor(a, [32, 32]), b, kind, 32)
    torch.testing.assert_close(a, expected)


@triton.jit
def sliced(desc, q, CUT: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((64, 64), tlx.dtype_of(desc), 1)
    tlx.barrier_expect_bytes(bars[0], 64 * 64 * 2)
    tlx.async_descriptor_load(desc, buf[0], [0, 0], bars[0])
    tlx.barrier_wait(bars[0], 0)
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, CUT)[None, :]
    for i in tl.static_range(64 // CUT):
        part = tlx.local_slice(buf[0], [0, i * CUT], [64, CUT])
        tl.store(q + at + i * CUT, tlx.local_load(part))


@pytest.mark.parametrize("cut", [64, 32, 16])
def test_slices_of_what_was_copied(cut: int) -> None:
    a = values((64, 64), torch.float16)
    q = torch.empty_like(a)
    sliced[(1,)](TensorDescriptor.from_tensor(a, [64, 64]), q, cut)
    assert same(a, q)


# --- descriptors made in the kernel --------------------------------------------------------------


@triton.jit
def made(p, q, n, m, B: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr, PLACE: tl.constexpr):
    row = tl.program_id(0) * B
    if PLACE:
        places = tlx.allocate_tensor_descriptor(2)
        out = tlx.make_tensor_descriptor(places[0], q, [n, m], [m, 1], [B, C])
        tlx.make_tensor_descriptor(places[1], p, [n, m], [m, 1], [B, C], PAD)
        desc = tlx.reinterpret_tensor_descriptor(places[1], [B, C], tlx.dtype_of(p))
    else:
        out = tlx.make_tensor_descriptor(None, q, [n, m], [m, 1], [B, C])
        desc = tlx.make_tensor_descriptor(None, p, [n - 3, m], [m, 1], [B, C], PAD)
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((B, C), tlx.dtype_of(p), 1)
    tlx.barrier_expect_bytes(bars[0], B * C * 2)
    tlx.async_descriptor_load(desc, buf[0], [row, 0], bars[0])
    tlx.barrier_wait(bars[0], 0)
    tlx.async_descriptor_store(out, buf[0], [row, 0])
    tlx.async_descriptor_store_wait(0)


@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_made_in_the_kernel(padding: str, place: bool) -> None:
    triton.set_allocator(
        lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda")
    )
    a = values((67, 64), torch.float16)
    q = torch.zeros_like(a)
    made[(3,)](a, q, 67, 64, 32, 64, padding, place)
    rows = 67 if place else 64
    assert same(q[:rows], a[:rows])
    assert (q[rows:].isnan() if padding == "nan" else q[rows:] == 0).all()


# --- bulk copies ---------------------------------------------------------------------------------


@triton.jit
def bulk(p, q, n, B: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 2)
    at = tl.program_id(0) * 2 * B
    for i in range(3):
        tlx.barrier_expect_bytes(bars[0], B * 2 + 32)
        tlx.async_load(p + at, buf[0], bulk=True, barrier=bars[0])
        tlx.async_load(p + at + B, buf[1], bulk=True, bulk_size=n * 2, barrier=bars[0])
        tlx.barrier_wait(bars[0], i & 1)
        tlx.local_store(buf[0], tlx.local_load(buf[0]) * 2)
        tlx.fence_async_shared()
        tlx.async_store(q + at, buf[0], B * 2)
        tlx.async_store(q + at + B, buf[1], n * 2)
        tlx.async_descriptor_store_wait(0)


def test_bulk_copies() -> None:
    p = values((8 * 512,), torch.float16)
    q = torch.zeros_like(p)
    bulk[(8,)](p, q, 16, 256)
    p, q = p.view(8, 512), q.view(8, 512)
    assert same(q[:, :256], p[:, :256] * 2)
    assert same(q[:, 256:272], p[:, 256:272])
    assert (q[:, 272:] == 0).all()


# --- products ------------------------------------------------------------------------------------


@triton.jit
def pipelined(
    a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    S: tl.constexpr, PAST: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    a = tlx.local_alloc((BM, BK), tlx.dtype_of(a_desc), S)
    b = tlx.local_alloc(b_desc.block_shape, tlx.dtype_of(b_desc), S)
    full = tlx.alloc_barriers(S)
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    size: tl.constexpr = (BM + BN) * BK * tlx.dtype_of(a_desc).primitive_bitwidth // 8
    for i in tl.static_range(S - 1):
        tlx.barrier_expect_bytes(full[i], size)
        tlx.async_descriptor_load(a_desc, a[i], [row, i * BK], full[i])
        at = [column, i * BK] if BT else [i * BK, column]
        tlx.async_descriptor_load(b_desc, b[i], at, full[i])
    acc = tl.zeros((BM, BN), tl.float32)
    steps = tl.cdiv(K, BK)
    for k in range(steps):
        s = k % S
        tlx.barrier_wait(full[s], (k // S) & 1)
        y = tlx.local_trans(b[s]) if BT else b[s]
        acc = tlx.async_dot(a[s], y, acc)
        acc = tlx.async_dot_wait(0, acc)
        j = k + S - 1
        t = j % S
        where = [column, j * BK] if BT else [j * BK, column]
        if PAST:  # copies past the end are left in flight
            tlx.barrier_expect_bytes(full[t], size)
            tlx.async_descriptor_load(a_desc, a[t], [row, j * BK], full[t])
            tlx.async_descriptor_load(b_desc, b[t], where, full[t])
        else:
            tlx.barrier_expect_bytes(full[t], size, j < steps)
            tlx.async_descriptor_load(a_desc, a[t], [row, j * BK], full[t], pred=j < steps)
            tlx.async_descriptor_load(b_desc, b[t], where, full[t], pred=j < steps)
    c_desc.store([row, column], acc.to(tlx.dtype_of(c_desc)))


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(
    ("dtype", "transposed"),
    [("float16", False), ("float16", True), ("bfloat16", True), ("float8_e4m3fn", True)],
)
def test_pipelined_product(dtype: str, transposed: bool, past: bool) -> None:
    kind = getattr(torch, dtype)
    m, n, k, bm, bn, bk = 256, 384, 480, 128, 128, 64
    a = values((m, k), kind)
    b = values((n, k) if transposed else (k, n), kind)
    c = torch.empty((m, n), dtype=torch.float16, device="cuda")
    pipelined[(m // bm, n // bn)](
        TensorDescriptor.from_tensor(a, [bm, bk]),
        TensorDescriptor.from_tensor(b, [bn, bk] if transposed else [bk, bn]),
        TensorDescriptor.from_tensor(c, [bm, bn]), k, bm, bn, bk, 3, past, transposed,
    )  # fmt: skip
    expected = a.double() @ (b.double().T if transposed else b.double())
    # Hopper's matrix units add products of fp8 in less than fp32 (3.2e-3 on an H200).
    bound = 3e-3 if kind.itemsize == 2 else 5e-3
    assert (c.double() - expected).norm() <= bound * expected.norm()


@triton.jit
def specialised(
    a_desc, b_desc, c_desc, tiles, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    S: tl.constexpr,
):  # fmt: skip
    a = tlx.local_alloc((BM, BK), tlx.dtype_of(a_desc), S)
    b = tlx.local_alloc((BK, BN), tlx.dtype_of(b_desc), S)
    empty = tlx.alloc_barriers(S)
    warps_empty = tlx.alloc_warp_barrier(S, num_warps=4)
    full = tlx.alloc_barriers(S)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            step = 0
            for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
                acc = tl.zeros((BM, BN), tl.float32)
                for _ in range(tl.cdiv(K, BK)):
                    s = step % S
                    tlx.barrier_wait(full[s], (step // S) & 1)
                    acc = tlx.async_dot(a[s], b[s], acc)
                    acc = tlx.async_dot_wait(0, acc)
                    tlx.barrier_arrive(empty[s])
                    tlx.barrier_arrive(warps_empty[s])
                    step += 1
                c_desc.store([t * BM, 0], acc.to(tlx.dtype_of(c_desc)))
        with tlx.async_task(num_warps=1):
            step = 0
            for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
                for k in range(tl.cdiv(K, BK)):
                    s = step % S
                    tlx.barrier_wait(empty[s], ((step // S) & 1) ^ 1)
                    tlx.barrier_wait(warps_empty[s], ((step // S) & 1) ^ 1)
                    tlx.barrier_expect_bytes(full[s], (BM + BN) * BK * 2)
                    tlx.async_descriptor_load(a_desc, a[s], [t * BM, k * BK], full[s])
                    tlx.async_descriptor_load(b_desc, b[s], [k * BK, 0], full[s])
                    tlx.async_descriptor_prefetch_tensor(b_desc, [k * BK, 0])
                    step += 1


def test_a_task_of_one_warp_copies_for_a_task_that_multiplies() -> None:
    m, n, k, bm, bk = 1024, 128, 480, 64, 64
    a, b = values((m, k), torch.float16), values((k, n), torch.float16)
    c = torch.empty((m, n), dtype=torch.float16, device="cuda")
    specialised[(5,)](
        TensorDescriptor.from_tensor(a, [bm, bk]), TensorDescriptor.from_tensor(b, [bk, n]),
        TensorDescriptor.from_tensor(c, [bm, n]), m // bm, k, bm, n, bk, 3,
    )  # fmt: skip
    expected = a.double() @ b.double()
    assert (c.double() - expected).norm() <= 1e-3 * expected.norm()
