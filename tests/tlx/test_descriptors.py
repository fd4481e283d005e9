"""Copies by tensor descriptors: what reaches PTX, the launcher's metadata, refusals."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, instructions, line_of

import remora.tlx as tlx
from remora import errors


def copies(compiled: Any) -> list[str]:
    return instructions(compiled.asm["ptx"], r"cp\.(?:reduce\.)?async\.bulk\.tensor\S+")


@triton.jit
def round_trip(desc, out, n, SHAPE: tl.constexpr, BYTES: tl.constexpr, RANK: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc(SHAPE, tlx.dtype_of(desc), 2)
    view = buf[1]
    tlx.barrier_expect_bytes(bars[0], BYTES)
    if RANK == 1:
        tlx.async_descriptor_load(desc, view, [n], bars[0])
    elif RANK == 2:
        tlx.async_descriptor_load(desc, view, [n, 16], bars[0])
    elif RANK == 3:
        tlx.async_descriptor_load(desc, view, (0, n, 16), bars[0])
    else:
        tlx.async_descriptor_load(desc, view, [0, n, 0, 0, 16], bars[0])
    tlx.barrier_wait(bars[0], 0)
    tlx.local_store(view, tlx.local_load(view))
    tlx.fence_async_shared()
    if RANK == 1:
        tlx.async_descriptor_store(out, view, [n])
    elif RANK == 2:
        tlx.async_descriptor_store(out, view, [n, 16])
    elif RANK == 3:
        tlx.async_descriptor_store(out, view, (0, n, 16))
    else:
        tlx.async_descriptor_store(out, view, [0, n, 0, 0, 16])
    tlx.async_descriptor_store_wait(0)


@triton.jit
def stock_copy(desc, out, n, RANK: tl.constexpr):
    if RANK == 1:
        out.store([n], desc.load([n]))
    elif RANK == 2:
        out.store([n, 16], desc.load([n, 16]))
    elif RANK == 3:
        out.store((0, n, 16), desc.load((0, n, 16)))
    else:
        out.store([0, n, 0, 0, 16], desc.load([0, n, 0, 0, 16]))


BOXES = [
    ("fp16", (64, 64)), ("fp16", (8, 8)), ("fp16", (4, 64)), ("fp16", (1, 16)), ("fp16", (64, 32)),
    ("fp16", (512, 64)), ("fp16", (16, 512)), ("bf16", (128, 128)), ("fp32", (64, 32)),
    ("fp32", (8, 4)), ("fp64", (16, 16)), ("i8", (64, 128)), ("u8", (16, 16)), ("i16", (32, 64)),
    ("u16", (32, 64)), ("i32", (16, 32)), ("u32", (16, 32)), ("i64", (8, 2)), ("u64", (16, 16)),
    ("fp8e4nv", (64, 64)), ("fp8e5", (64, 256)),
    ("fp16", (64,)), ("fp16", (1024,)), ("fp32", (4,)), ("i8", (512,)),
    ("fp16", (2, 16, 64)), ("bf16", (1, 4, 32)), ("fp16", (2, 4, 64)),
    ("fp16", (1, 2, 2, 4, 64)), ("fp32", (1, 1, 1, 1, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape"), BOXES, ids=lambda v: str(v).replace(" ", ""))
def test_boxes_of_every_kind_are_copied_as_stock_triton_copies_them(
    dtype: str, shape: tuple[int, ...]
) -> None:
    size = int(re.findall(r"\d+", dtype)[0]) if not dtype.startswith("fp8") else 8
    kind = f"tensordesc<{dtype}[{', '.join(map(str, shape))}]>"
    compiled = build(
        round_trip, "cuda:90", desc=kind, out=kind, n="i32",
        SHAPE=shape, BYTES=prod(shape) * size // 8, RANK=len(shape),
    )  # fmt: skip
    stock = build(stock_copy, "cuda:90", desc=kind, out=kind, n="i32", RANK=len(shape))
    assert compiled.metadata.tensordesc_meta == stock.metadata.tensordesc_meta
    assert copies(compiled) == copies(stock)
    rank = len(shape)
    assert set(copies(compiled)) == {
        f"cp.async.bulk.tensor.{rank}d.shared::cta.global.mbarrier::complete_tx::bytes"
        if f"{rank}d.shared::cta" in compiled.asm["ptx"]
        else f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes",
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group",
    }


@triton.jit
def without_first(desc, n, M: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((M, 64), tlx.dtype_of(desc), 2)
    for i in range(n):
        tlx.async_descriptor_load(desc, buf[1], [i, 0, 0, 0], bars[0])
        tlx.barrier_wait(bars[0], i & 1)
        tlx.async_descriptor_store(desc, buf[1], [n, i, 0, 0])
        tlx.async_descriptor_store_wait(0)


@pytest.mark.parametrize("rows", [2, 64])
def test_a_buffer_may_leave_out_first_dimensions_of_1(rows: int) -> None:
    kind = f"tensordesc<fp16[1, 1, {rows}, 64]>"
    compiled = build(without_first, "cuda:90", desc=kind, n="i32", M=rows)
    assert [c[:28] for c in copies(compiled)] == [
        "cp.async.bulk.tensor.4d.shar", "cp.async.bulk.tensor.4d.glob"
    ]  # fmt: skip
    (meta,) = compiled.metadata.tensordesc_meta
    assert meta["block_size"] == [1, 1, rows, 64]
    assert meta["swizzle"] == (3 if rows == 64 else 0)


@triton.jit
def options(desc, out, n, EVICT: tl.constexpr, REDUCE: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((64, 32), tlx.dtype_of(desc), 1)
    tlx.barrier_expect_bytes(bars[0], 8192, n > 0)
    tlx.async_descriptor_load(
        desc, buf[0], [n, 0], bars[0], pred=n > 0, cache_modifier="", eviction_policy=EVICT,
        multicast_targets=[], two_ctas=False,
    )  # fmt: skip
    tlx.async_descriptor_load(desc, buf[0], [n, 0], bars[0], False)
    tlx.barrier_wait(bars[0], 0, n > 0)
    tlx.async_descriptor_store(out, buf[0], [n, 0], EVICT, REDUCE)
    tlx.async_descriptor_store(desc=out, source=buf[0], offsets=[n, 0], store_reduce=REDUCE)
    tlx.async_descriptor_store_wait(1)
    tlx.async_descriptor_store_wait(pendings=0, read_only=False)


@pytest.mark.parametrize("reduce", ["", "add", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize("evict", ["", "evict_first", "evict_last"])
def test_options_of_copies(evict: str, reduce: str) -> None:
    kind = "tensordesc<i32[64, 32]>"
    compiled = build(options, "cuda:90", desc=kind, out=kind, n="i32", EVICT=evict, REDUCE=reduce)
    text = compiled.asm["ptx"]
    load, *stores = copies(compiled)
    assert load.startswith("cp.async.bulk.tensor.2d.shared")
    operation = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{reduce}.bulk_group"
    plain = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
    assert [s.replace(".L2::cache_hint", "") for s in stores] == [
        operation if reduce else plain
    ] * 2
    assert ("L2::cache_hint" in load) == bool(evict)
    assert ("L2::cache_hint" in stores[0]) == (bool(evict) and not reduce)
    assert "L2::cache_hint" not in stores[1]
    waits = instructions(text, r"cp\.async\.bulk\.wait_group\S*\s+\d+")
    assert waits[0] == "cp.async.bulk.wait_group.read 1"
    assert "cp.async.bulk.wait_group 0" in waits
    assert text.count("cp.async.bulk.commit_group") == 2


@triton.jit
def chosen(first, second, p, n, B: tl.constexpr):
    bars = tlx.alloc_barriers(2)
    buf = tlx.local_alloc((B, B), tlx.dtype_of(first), 3)
    desc = first
    for i in range(n):
        if i % 2 == 0:
            tlx.async_descriptor_load(desc, buf[0], [i, 0], bars[0])
        else:
            tlx.async_descriptor_load(desc, buf[i % 3], [0, i], bars[1])
        tlx.barrier_wait(bars[i % 2], (i // 2) & 1)
        x = desc.load([i, i])
        second.store([i, 0], x + tlx.local_load(buf[0]))
        tlx.fence_async_shared()
        tlx.async_descriptor_store(second, buf[0], [0, i])
        tlx.async_descriptor_store_wait(0)
        if i == 5:
            desc = second


def test_a_descriptor_in_branches_and_loops_beside_loads_and_stores_of_stock_triton() -> None:
    kind = "tensordesc<fp16[64, 64]>"
    compiled = build(chosen, "cuda:90", first=kind, second=kind, p="*fp16", n="i32", B=64)
    assert len({str(m) for m in compiled.metadata.tensordesc_meta}) == 1
    assert len(copies(compiled)) == 5


@triton.jit
def sliced(desc, q, n, CUT: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((64, 64), tlx.dtype_of(desc), 1)
    d = desc
    for i in range(n):
        tlx.async_descriptor_load(d, buf[0], [i, 0], bars[0])
        tlx.barrier_wait(bars[0], i & 1)
    part = tlx.local_slice(buf[0], [0, 0], [64, CUT])
    x = tlx.local_load(part)
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, CUT)[None, :]
    tl.store(q + at, x)


@pytest.mark.parametrize(("cut", "swizzle"), [(64, 3), (32, 2), (16, 1)])
def test_a_descriptor_has_the_layout_of_a_buffer_that_slices_narrow(cut: int, swizzle: int) -> None:
    kind = "tensordesc<fp16[64, 64]>"
    compiled = build(sliced, "cuda:90", desc=kind, q="*fp16", n="i32", CUT=cut)
    (meta,) = compiled.metadata.tensordesc_meta
    assert meta["swizzle"] == swizzle
    assert meta["block_size"] == [64, 64 >> (3 - swizzle)]
    assert "unrealized_conversion_cast" not in compiled.asm["ttgir"]


@triton.jit
def two_layouts(desc, q, n):
    bars = tlx.alloc_barriers(1)
    whole = tlx.local_alloc((64, 64), tlx.dtype_of(desc), 1)
    cut = tlx.local_alloc((64, 64), tlx.dtype_of(desc), 1)
    tlx.async_descriptor_load(desc, whole[0], [0, 0], bars[0])
    tlx.async_descriptor_load(desc, cut[0], [0, 0], bars[0])  # the second buffer
    tlx.barrier_wait(bars[0], 0)
    x = tlx.local_load(tlx.local_slice(cut[0], [0, 0], [64, 32]))
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 32)[None, :]
    tl.store(q + at, x)
    tl.store(q + tl.arange(0, 64), tl.sum(tlx.local_load(whole[0]), 0))


def test_one_descriptor_for_buffers_of_two_layouts_is_refused() -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  the pass wraps it
        build(two_layouts, "cuda:90", desc="tensordesc<fp16[64, 64]>", q="*fp16", n="i32")
    error = errors.ConflictingLayouts.of(caught.value)
    assert error is not None
    assert line_of(two_layouts, "# the second buffer") in error.where


@triton.jit
def product(a_desc, b_desc, q, n, BT: tl.constexpr):
    a = tlx.local_alloc((64, 64), tlx.dtype_of(a_desc), 2)
    b = tlx.local_alloc(b_desc.block_shape, tlx.dtype_of(b_desc), 2)
    bars = tlx.alloc_barriers(2)
    acc = tl.zeros((64, 128), tl.float32)
    for i in range(n):
        s = i % 2
        tlx.async_descriptor_load(a_desc, a[s], [0, i * 64], bars[s])
        tlx.async_descriptor_load(b_desc, b[s], [i * 64, 0], bars[s])
        tlx.barrier_wait(bars[s], (i // 2) & 1)
        y = tlx.local_trans(b[s]) if BT else b[s]
        acc = tlx.async_dot(a[s], y, acc)
        acc = tlx.async_dot_wait(0, acc)
    at = tl.arange(0, 64)[:, None] * 128 + tl.arange(0, 128)[None, :]
    tl.store(q + at, acc)


@pytest.mark.parametrize(
    ("dtype", "transposed"), [("fp16", False), ("bf16", True), ("fp8e5", True)]
)
def test_products_read_what_was_copied_without_a_fence(dtype: str, transposed: bool) -> None:
    shape = "[128, 64]" if transposed else "[64, 128]"
    compiled = build(
        product, "cuda:90", a_desc=f"tensordesc<{dtype}[64, 64]>",
        b_desc=f"tensordesc<{dtype}{shape}>", q="*fp32", n="i32", BT=transposed,
    )  # fmt: skip
    text = compiled.asm["ptx"]
    assert "wgmma.mma_async" in text
    assert "fence.proxy" not in text
    assert (
        "convert_layout" not in compiled.asm["ttgir"].partition("scf.for")[2].partition("yield")[0]
    )


def test_a_copy_cannot_give_an_operand_of_8_bits_the_other_order() -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        build(
            product, "cuda:90", a_desc="tensordesc<fp8e5[64, 64]>",
            b_desc="tensordesc<fp8e5[64, 128]>", q="*fp32", n="i32", BT=False,
        )  # fmt: skip
    error = errors.ConflictingLayouts.of(caught.value)
    assert error is not None
    assert line_of(product, "async_descriptor_load(b_desc") in error.where


# --- memory that copies in flight touch ----------------------------------------------------------


@triton.jit
def left_in_flight(desc, p, n, WAIT: tl.constexpr, PRED: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    first = tlx.local_alloc((64, 64), tl.float16, 1)
    x = tl.zeros((64, 64), tl.float16)
    for i in range(n):
        tlx.barrier_wait(bars[0], i & 1)
        x += tlx.local_load(first[0])
        if PRED:
            tlx.async_descriptor_load(desc, first[0], [i, 0], bars[0], pred=i < n - 1)
        else:
            tlx.async_descriptor_load(desc, first[0], [i, 0], bars[0])
    if WAIT:
        tlx.barrier_wait(bars[0], 0)
    second = tlx.local_alloc((64, 64), tl.float16, 1)
    tlx.local_store(second[0], x)
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(p + at, tlx.local_load(tlx.local_trans(second[0])))


@pytest.mark.parametrize(
    ("wait", "pred", "buffers"), [(False, False, 2), (True, False, 1), (False, True, 1)]
)
def test_memory_is_used_again_only_when_no_load_is_in_flight(
    wait: bool, pred: bool, buffers: int
) -> None:
    compiled = build(
        left_in_flight, "cuda:90", desc="tensordesc<fp16[64, 64]>", p="*fp16", n="i32",
        WAIT=wait, PRED=pred,
    )  # fmt: skip
    assert compiled.metadata.shared // 8192 == buffers


@triton.jit
def stored(desc, p, WHEN: tl.constexpr):
    first = tlx.local_alloc((64, 64), tl.float16, 1)
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tlx.local_store(first[0], tl.load(p + at))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(desc, first[0], [0, 0])
    if WHEN == "before":
        tlx.async_descriptor_store_wait(0)
    second = tlx.local_alloc((64, 64), tl.float16, 1)
    tlx.local_store(second[0], tl.load(p + at + 4096))
    tl.store(p + at, tlx.local_load(tlx.local_trans(second[0])))
    if WHEN == "after":
        tlx.async_descriptor_store_wait(0)


@pytest.mark.parametrize(("when", "buffers"), [("before", 1), ("after", 2), ("never", 2)])
def test_memory_is_used_again_only_when_no_store_is_in_flight(when: str, buffers: int) -> None:
    compiled = build(stored, "cuda:90", desc="tensordesc<fp16[64, 64]>", p="*fp16", WHEN=when)
    assert compiled.metadata.shared == 8192 * buffers


# --- stores of stock Triton in loops -------------------------------------------------------------


@triton.jit
def stores_in_a_loop(desc, out, n):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((64, 64), tl.float16, 1)
    for i in range(n):
        tlx.barrier_wait(bars[0], i & 1)
        out.store([i, 0], tlx.local_load(buf[0]))


def test_stores_of_stock_triton_are_pipelined() -> None:
    kind = "tensordesc<fp16[64, 64]>"
    compiled = build(stores_in_a_loop, "cuda:90", desc=kind, out=kind, n="i32")
    body = compiled.asm["ttgir"].partition("scf.for")[2]
    assert body.index("async_tma_store_wait") < body.index("async_tma_copy_local_to_global")


# --- hints, and descriptors made in the kernel ---------------------------------------------------


@triton.jit
def hints(desc, p, n, B: tl.constexpr):
    tlx.async_descriptor_prefetch_tensor(desc, [n, 64])
    tlx.async_descriptor_prefetch_tensor(desc, [n, 64], n > 3, eviction_policy="evict_last")
    tlx.prefetch(desc, tensormap=True)
    at = tl.arange(0, B)
    tlx.prefetch(p + at, mask=at < n)
    tlx.prefetch(p + at, level="L1", mask=n > 3)
    tlx.prefetch(p)


@pytest.mark.parametrize(("block", "pieces"), [("[64, 64]", 1), ("[512, 128]", 4)])
def test_hints(block: str, pieces: int) -> None:
    compiled = build(hints, "cuda:90", desc=f"tensordesc<fp16{block}>", p="*fp16", n="i32", B=128)
    found = instructions(
        compiled.asm["ptx"], r"@\w+ (?:cp\.async\.bulk\.)?prefetch\S+|\tprefetch\S+"
    )
    box = "@once cp.async.bulk.prefetch.tensor.2d.L2.global.tile"
    assert found == [
        *[box] * pieces, *[f"{box}.L2::cache_hint"] * pieces, "@once prefetch.tensormap",
        "@p prefetch.global.L2", "@p prefetch.global.L1", "@once prefetch.global.L2",
    ]  # fmt: skip


@triton.jit
def made(p, q, n, m, B: tl.constexpr, C: tl.constexpr, PLACE: tl.constexpr, PAD: tl.constexpr):
    if PLACE:
        places = tlx.allocate_tensor_descriptor(3)
        d = tlx.make_tensor_descriptor(places[n], p, [n, m], [m, 1], [B, C], PAD)
        e = tlx.reinterpret_tensor_descriptor(places[1], [B, C], tlx.dtype_of(p))
    else:
        d = tlx.make_tensor_descriptor(
            None, p, [n, m], [m, 1], block_shape=[B, C], padding_option=PAD
        )
        e = d
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((B, C), tlx.dtype_of(p), 1)
    tlx.async_descriptor_load(d, buf[0], [0, 0], bars[0])
    tlx.async_descriptor_load(e, buf[0], [d.shape[0], 0], bars[0])
    tlx.barrier_wait(bars[0], 0)
    tl.store(q + tl.arange(0, B)[:, None] * C + tl.arange(0, C)[None, :], tlx.local_load(buf[0]))


@pytest.mark.parametrize("shape", [(64, 64), (4, 32), (512, 32), (16, 512)])
@pytest.mark.parametrize(
    "dtype",
    ["fp16", "bf16", "fp32", "fp64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "fp8e5"],
)
def test_a_descriptor_in_a_place_is_made_as_stock_triton_makes_one(
    dtype: str, shape: tuple[int, int]
) -> None:
    given = {"p": f"*{dtype}", "q": f"*{dtype}", "n": "i32", "m": "i32", "B": shape[0],
             "C": shape[1], "PAD": "nan" if "f" in dtype else "zero"}  # fmt: skip
    ours = build(made, "cuda:90", PLACE=True, **given)
    stock = build(made, "cuda:90", PLACE=False, **given)
    pattern = r"tensormap\.replace\.tile\.[\w.]+:*[\w.]*"
    assert instructions(ours.asm["ptx"], pattern) == instructions(stock.asm["ptx"], pattern)
    created = r"tensormap_create .*?(\{.*?\})"
    assert re.findall(created, ours.asm["ttgir"]) == re.findall(created, stock.asm["ttgir"])
    boxes = r"tensormap_create %\S+, %\S+, (\[.*?\])"
    assert re.findall(boxes, ours.asm["ttgir"]) == re.findall(boxes, stock.asm["ttgir"])
    assert ours.metadata.global_scratch_size == 3 * 128
    assert ours.asm["ptx"].count("fence.proxy.tensormap::generic.acquire.gpu") == 2


# --- refused -------------------------------------------------------------------------------------


@triton.jit
def refused(desc, narrow, i8, p, n, N: tl.constexpr, WHAT: tl.constexpr):
    bars = tlx.alloc_barriers(2)
    buf = tlx.local_alloc((64, 64), tl.float16, 2)
    small = tlx.local_alloc((64, 32), tl.float16, 1)
    wide = tlx.local_alloc((64, 64), tl.float32, 1)
    line = tlx.local_alloc((64,), tl.float16, 1)
    bytes = tlx.local_alloc((64, 64), tl.int8, 1)
    if WHAT == "a pointer for a descriptor":
        tlx.async_descriptor_load(p, buf[0], [0, 0], bars[0])  # a pointer for a descriptor
    if WHAT == "three offsets":
        tlx.async_descriptor_load(desc, buf[0], [0, 0, 0], bars[0])  # three offsets
    if WHAT == "one offset":
        tlx.async_descriptor_store(desc, buf[0], n)  # one offset
    if WHAT == "a float offset":
        tlx.async_descriptor_load(desc, buf[0], [0.0, 0], bars[0])  # a float offset
    if WHAT == "a small buffer":
        tlx.async_descriptor_load(desc, small[0], [0, 0], bars[0])  # a small buffer
    if WHAT == "12 bytes on":
        tlx.async_descriptor_load(desc, buf[0], [0, 6], bars[0])  # 12 bytes on
    if WHAT == "a store at -8":
        tlx.async_descriptor_store(desc, buf[0], [n, 3 - N - 6])  # a store at -8
    if WHAT == "another dtype":
        tlx.async_descriptor_store(desc, wide[0], [0, 0])  # another dtype
    if WHAT == "all buffers":
        tlx.async_descriptor_load(desc, buf, [0, 0], bars[0])  # all buffers
    if WHAT == "all barriers":
        tlx.async_descriptor_load(desc, buf[0], [0, 0], bars)  # all barriers
    if WHAT == "no barrier":
        tlx.async_descriptor_load(desc, buf[0], [0, 0], None)  # no barrier
    if WHAT == "8 bytes":
        tlx.async_descriptor_load(narrow, buf[0], [0, 0], bars[0])  # 8 bytes
    if WHAT == "policy":
        tlx.async_descriptor_load(desc, buf[0], [0, 0], bars[0], eviction_policy="no")  # policy
    if WHAT == "reduction":
        tlx.async_descriptor_store(desc, buf[0], [0, 0], store_reduce="mul")  # reduction
    if WHAT == "bits of fp16":
        tlx.async_descriptor_store(desc, buf[0], [0, 0], store_reduce="and")  # bits of fp16
    if WHAT == "sum of i8":
        tlx.async_descriptor_store(i8, bytes[0], [0, 0], "", "add")  # sum of i8
    if WHAT == "two CTAs":
        tlx.async_descriptor_load(desc, buf[0], [0, 0], bars[0], two_ctas=True)  # two CTAs
    if WHAT == "negative pendings":
        tlx.async_descriptor_store_wait(-1)  # negative pendings
    if WHAT == "level 3":
        tlx.prefetch(p, level="L3")  # level 3
    if WHAT == "prefetch a number":
        tlx.prefetch(n)  # prefetch a number
    if WHAT == "six dimensions":
        tlx.make_tensor_descriptor(  # six dimensions
            None, p, [1, 1, 1, 1, 1, n], [n, n, n, n, n, 1], [1, 1, 1, 1, 1, 64]
        )
    if WHAT == "last stride":
        tlx.make_tensor_descriptor(None, p, [n, n], [1, n], [64, 64])  # last stride
    if WHAT == "two strides of one":
        tlx.make_tensor_descriptor(None, p, [n, n], [1], [64, 64])  # two strides of one
    if WHAT == "rows of 20 bytes":
        tlx.make_tensor_descriptor(None, p, [n, 10], [10, 1], [64, 64])  # rows of 20 bytes
    if WHAT == "padding":
        tlx.make_tensor_descriptor(None, p, [n, n], [n, 1], [64, 64], "one")  # padding
    if WHAT == "made too narrow":
        tlx.make_tensor_descriptor(None, p, [n, n], [n, 1], [64, 4])  # made too narrow
    if WHAT == "no places":
        tlx.allocate_tensor_descriptor(0)  # no places
    if WHAT == "fourth place":
        tlx.allocate_tensor_descriptor(3)[3]  # fourth place
    if WHAT == "bulk of two dimensions":
        tlx.async_load(p, buf[0], bulk=True, barrier=bars[0])  # bulk of two dimensions
    if WHAT == "bulk without a barrier":
        tlx.async_load(p, line[0], bulk=True)  # bulk without a barrier
    if WHAT == "bulk with a mask":
        tlx.async_load(p, line[0], n > 1, bulk=True, barrier=bars[0])  # bulk with a mask
    if WHAT == "bulk of pointers":
        at = p + tl.arange(0, 64)
        tlx.async_load(at, line[0], bulk=True, barrier=bars[0])  # bulk of pointers
    if WHAT == "bulk of 24 bytes":
        tlx.async_load(p, line[0], bulk=True, bulk_size=24, barrier=bars[0])  # bulk of 24 bytes
    if WHAT == "bulk of too much":
        tlx.async_store(p, line[0], 256)  # bulk of too much
    if WHAT == "a barrier without bulk":
        tlx.async_load(p + tl.arange(0, 64), line[0], barrier=bars[0])  # a barrier without bulk


REFUSED = {
    "a pointer for a descriptor": errors.WrongType, "three offsets": errors.WrongShape,
    "one offset": errors.WrongType, "a float offset": errors.WrongType,
    "a small buffer": errors.WrongShape, "another dtype": errors.WrongDtype,
    "all buffers": errors.WrongType, "all barriers": errors.WrongType,
    "12 bytes on": errors.WrongShape, "a store at -8": errors.WrongShape,
    "no barrier": errors.WrongType, "8 bytes": errors.WrongShape, "policy": errors.WrongType,
    "reduction": errors.WrongType, "bits of fp16": errors.WrongDtype,
    "sum of i8": errors.WrongDtype, "two CTAs": errors.UnsupportedByTarget,
    "negative pendings": errors.WrongShape, "level 3": errors.WrongType,
    "prefetch a number": errors.WrongType, "six dimensions": errors.WrongShape,
    "last stride": errors.WrongShape, "two strides of one": errors.WrongShape,
    "padding": errors.WrongType, "rows of 20 bytes": errors.WrongShape,
    "made too narrow": errors.WrongShape,
    "no places": errors.WrongShape, "fourth place": errors.BufferIndexError,
    "bulk of two dimensions": errors.WrongShape, "bulk without a barrier": errors.WrongType,
    "bulk with a mask": errors.WrongType, "bulk of pointers": errors.WrongType,
    "bulk of 24 bytes": errors.WrongShape, "bulk of too much": errors.WrongShape,
    "a barrier without bulk": errors.WrongType,
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    with pytest.raises(triton.CompilationError) as caught:
        build(
            refused, "cuda:90", desc="tensordesc<fp16[64, 64]>", narrow="tensordesc<fp16[64, 4]>",
            i8="tensordesc<i8[64, 64]>", p="*fp16", n="i32", N=5, WHAT=what,
        )  # fmt: skip
    error = REFUSED[what].of(caught.value)
    assert error is not None
    assert line_of(refused, f"# {what}") in error.where
    assert error.hint


# --- bulk copies ---------------------------------------------------------------------------------


@triton.jit
def bulk(p, q, n, B: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 2)
    tlx.barrier_expect_bytes(bars[0], B * 2)
    tlx.async_load(p, buf[0], bulk=True, barrier=bars[0])
    tlx.async_load(p + n, buf[1], bulk=True, bulk_size=n * 16, barrier=bars[0])
    tlx.barrier_wait(bars[0], 0)
    tlx.async_store(q, buf[0], B)
    tlx.async_store(q + n, buf[1], n)
    tlx.async_descriptor_store_wait(0)


def test_bulk_copies_are_made_by_one_thread_when_all_are_ready() -> None:
    compiled = build(bulk, "cuda:90", p="*fp16", q="*fp16", n="i32", B=512)
    found = instructions(
        compiled.asm["ptx"],
        r"bar\.sync|@once cp\.async\.bulk[\w.:]+|cp\.async\.bulk\.(?:commit|wait)[\w.]+",
    )
    load = "@once cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    store = "@once cp.async.bulk.global.shared::cta.bulk_group"
    for index, text in enumerate(found):
        if text.startswith("@once"):
            assert found[index - 1] == "bar.sync"
    copies = [t for t in found if "bar" not in t[:4]]
    commit = "cp.async.bulk.commit_group"
    assert copies == [
        load, load, store, commit, store, commit, "cp.async.bulk.wait_group.read"
    ]  # fmt: skip
