"""Asynchronous products, and ``tl.dot`` on buffers: instructions, layouts, lives of buffers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, instructions, waits

import remora
import remora.tlx as tlx
from remora.errors import AccumulatorInFlight


@triton.jit
def product(
    p, q, r, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ACC: tl.constexpr = tl.float32,
    A_COLUMNS: tl.constexpr = False, B_COLUMNS: tl.constexpr = False,
    IN_REGISTERS: tl.constexpr = False, COPIED: tl.constexpr = True,
):  # fmt: skip
    a = tlx.local_alloc((M, K), tlx.dtype_of(p), 1)
    b = tlx.local_alloc((K, N), tlx.dtype_of(q), 1)
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    a_at = p + (k[None, :] * M + m if A_COLUMNS else m * K + k[None, :])
    b_at = q + (n * K + k[:, None] if B_COLUMNS else k[:, None] * N + n)
    av, bv = tlx.local_view(a, 0), tlx.local_view(b, 0)
    if COPIED:
        tlx.async_load(a_at, av)
        tlx.async_load(b_at, bv)
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(0)
    else:
        tlx.local_store(av, tl.load(a_at))
        tlx.local_store(bv, tl.load(b_at))
    acc = tl.zeros((M, N), ACC)
    if IN_REGISTERS:
        acc = tlx.async_dot(tl.load(a_at), bv, acc)
    else:
        acc = tlx.async_dot(av, bv, acc)
    acc = tlx.async_dot_wait(0, acc)
    tl.store(r + m * N + n, acc)


def wgmma(compiled: Any) -> set[str]:
    """Shape and types of the matrix instructions."""
    return set(instructions(compiled.asm["ptx"], r"wgmma\.mma_async\.sync\.aligned\.(m\S+) "))


@pytest.mark.parametrize(("a", "b", "acc", "expected"), [
    ("fp16", "fp16", tl.float32, "m64n64k16.f32.f16.f16"),
    ("fp16", "fp16", tl.float16, "m64n64k16.f16.f16.f16"),
    ("bf16", "bf16", tl.float32, "m64n64k16.f32.bf16.bf16"),
    ("fp32", "fp32", tl.float32, "m64n64k8.f32.tf32.tf32"),
    ("fp8e4nv", "fp8e4nv", tl.float32, "m64n64k32.f32.e4m3.e4m3"),
    ("fp8e5", "fp8e5", tl.float32, "m64n64k32.f32.e5m2.e5m2"),
    ("fp8e4nv", "fp8e5", tl.float32, "m64n64k32.f32.e4m3.e5m2"),
    ("fp8e5", "fp8e4nv", tl.float32, "m64n64k32.f32.e5m2.e4m3"),
    ("i8", "i8", tl.int32, "m64n64k32.s32.s8.s8"),
])  # fmt: skip
def test_every_dtype(a: str, b: str, acc: Any, expected: str) -> None:
    result = "*i32" if acc is tl.int32 else f"*{acc}"
    compiled = build(
        product, "cuda:90", p=f"*{a}", q=f"*{b}", r=result, M=64, N=64, K=64, ACC=acc,
        B_COLUMNS=True,
    )  # fmt: skip
    assert wgmma(compiled) == {expected}
    assert compiled.asm["ptx"].count("wgmma.wait_group") == 1


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp8e4nv", "i8"])
@pytest.mark.parametrize("a_columns", [False, True])
@pytest.mark.parametrize("b_columns", [False, True])
def test_either_order_of_either_operand(dtype: str, a_columns: bool, b_columns: bool) -> None:
    acc, result = (tl.int32, "*i32") if dtype == "i8" else (tl.float32, "*fp32")
    compiled = build(
        product, "cuda:90", p=f"*{dtype}", q=f"*{dtype}", r=result, M=64, N=128, K=64, ACC=acc,
        A_COLUMNS=a_columns, B_COLUMNS=b_columns,
    )  # fmt: skip
    assert wgmma(compiled)
    # What is not of 16 bits is multiplied with K contiguous: the other order is turned
    # on its way, 4 bytes at a time or through registers.
    copied = 2 if dtype in ("fp16", "fp32") else int(not a_columns) + int(b_columns)
    assert ("cp.async.c" in compiled.asm["ptx"].replace("cp.async.commit", "")) == (copied > 0)


@pytest.mark.parametrize(("shape", "warps", "expected"), [
    ((64, 8, 64), 4, "m64n8k16"),
    ((64, 8, 64), 8, "m64n8k16"),
    ((64, 16, 16), 8, "m64n8k16"),
    ((64, 256, 16), 4, "m64n256k16"),
    ((128, 256, 32), 8, "m64n256k16"),
    ((256, 64, 32), 8, "m64n64k16"),
    ((64, 64, 32), 16, "m64n16k16"),
])  # fmt: skip
def test_shapes(shape: tuple[int, int, int], warps: int, expected: str) -> None:
    m, n, k = shape
    compiled = build(
        product, "cuda:90", p="*fp16", q="*fp16", r="*fp32", M=m, N=n, K=k,
        options={"num_warps": warps},
    )  # fmt: skip
    assert wgmma(compiled) == {f"{expected}.f32.f16.f16"}


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp8e5", "i8"])
def test_a_in_registers(dtype: str) -> None:
    acc, result = (tl.int32, "*i32") if dtype == "i8" else (tl.float32, "*fp32")
    compiled = build(
        product, "cuda:90", p=f"*{dtype}", q=f"*{dtype}", r=result, M=64, N=64, K=64, ACC=acc,
        IN_REGISTERS=True, B_COLUMNS=True,
    )  # fmt: skip
    # A is four registers in braces, B a descriptor.
    found = re.search(r"wgmma\.mma_async\S+ \{[^}]*\}, \{[^}]*\}, %rd", compiled.asm["ptx"])
    assert found
    assert "#ttg.dot_op<{opIdx = 0, parent = #mma" in compiled.asm["ttgir"]


def test_the_matrix_unit_sees_what_threads_wrote() -> None:
    for copied in (True, False):
        text = build(
            product, "cuda:90", p="*fp16", q="*fp16", r="*fp32", M=64, N=64, K=64, COPIED=copied
        ).asm["ptx"]
        found = instructions(
            text, r"cp\.async\.wait_group 0|st\.shared|fence\.proxy\.async|bar\.sync|wgmma\.fence"
        )
        before = found[: found.index("wgmma.fence")]
        assert before[-2:] == ["fence.proxy.async", "bar.sync"]
        assert before[-3] == ("cp.async.wait_group 0" if copied else "st.shared")


# --- accumulators --------------------------------------------------------------------------------


@triton.jit
def accumulators(p, q, r, n, WHAT: tl.constexpr, D: tl.constexpr = 64):
    a = tlx.local_alloc((D, D), tlx.dtype_of(p), 2)
    b = tlx.local_alloc((D, D), tlx.dtype_of(q), 2)
    rows, columns = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    av, bv = tlx.local_view(a, 0), tlx.local_view(b, 0)
    tlx.local_store(av, tl.load(p + rows * D + columns))
    tlx.local_store(bv, tl.load(q + rows * D + columns))
    out = r + rows * D + columns
    acc = tl.zeros((D, D), tl.float32)
    if WHAT == "loop":
        for i in range(n):
            acc = tlx.async_dot(tlx.local_view(a, i % 2), tlx.local_view(b, i % 2), acc)
            acc = tlx.async_dot_wait(1, acc)
        acc = tlx.async_dot_wait(0, acc)
    if WHAT == "run-time use_acc":
        for i in range(n):
            acc = tlx.async_dot(av, bv, acc, use_acc=i > 0)
        acc = tlx.async_dot_wait(0, acc)
    if WHAT == "no acc":
        acc = tlx.async_dot_wait(0, tlx.async_dot(av, bv))
    if WHAT == "use_acc False":
        acc = tlx.async_dot_wait(0, tlx.async_dot(av, bv, acc, use_acc=False))
    if WHAT == "while":
        i = 0
        while i < n:
            acc = tlx.async_dot(av, bv, acc)
            acc = tlx.async_dot_wait(0, acc)
            i += 1
    if WHAT == "branches":
        if n > 3:
            acc = tlx.async_dot(av, bv, acc)
        else:
            acc = tlx.async_dot(av, bv, acc, use_acc=False)
        acc = tlx.async_dot_wait(0, acc)
    if WHAT == "one branch":
        if n > 3:
            acc = tlx.async_dot_wait(0, tlx.async_dot(av, bv, acc))
    if WHAT == "early return":
        acc = tlx.async_dot_wait(0, tlx.async_dot(av, bv, acc))
        if n > 3:
            acc = acc * 2
            if n > 7:
                return
        else:
            acc = tlx.async_dot_wait(0, tlx.async_dot(av, bv, acc))
    if WHAT == "element-wise select":
        acc = tlx.async_dot_wait(0, tlx.async_dot(av, bv, acc))
        acc = tl.where(rows >= columns, acc, float("-inf"))
        acc = acc - tl.max(acc, 1)[:, None]
    if WHAT == "two in flight":
        first = tlx.async_dot(av, bv, acc)
        second = tlx.async_dot(tlx.local_view(a, 1), bv, acc)
        first = tlx.async_dot_wait(1, first)
        tl.store(r + D * D + rows * D + columns, first)
        acc = tlx.async_dot_wait(0, second)
    if WHAT == "covered by a wait for another":
        first = tlx.async_dot(av, bv, acc)
        second = tlx.async_dot(tlx.local_view(a, 1), bv, acc)
        second = tlx.async_dot_wait(1, second)
        tl.store(r + D * D + rows * D + columns, first)
        acc = tlx.async_dot_wait(0, second)
    if WHAT == "what the wait returns is not used":
        acc = tlx.async_dot(av, bv, acc)
        tlx.async_dot_wait(0, acc)
    if WHAT == "carried past a wait for another":
        other = tlx.async_dot_wait(0, tlx.async_dot(av, bv))
        for i in range(n):
            acc = tlx.async_dot(av, tlx.local_view(b, i % 2), acc)
            other = tlx.async_dot(bv, tlx.local_view(b, i % 2), other)
            other = tlx.async_dot_wait(0, other)
        acc += other
    if WHAT == "read one iteration later":
        last = tlx.async_dot(av, bv)
        for i in range(n):
            now = tlx.async_dot(av, tlx.local_view(b, i % 2))
            now = tlx.async_dot_wait(1, now)
            acc += last
            last = now
        last = tlx.async_dot_wait(0, last)
        acc += last
    if WHAT == "chained":
        first = tlx.async_dot_wait(0, tlx.async_dot(av, bv))
        acc = tlx.async_dot_wait(0, tlx.async_dot(first.to(tl.float16), bv))
    if WHAT == "nested loops":
        for i in range(n):
            for j in range(n):
                acc = tlx.async_dot(av, tlx.local_view(b, j % 2), acc)
                acc = tlx.async_dot_wait(1, acc)
            acc = tlx.async_dot_wait(0, acc)
            tl.store(out + i, acc)
            acc = tl.zeros((D, D), tl.float32)
    tl.store(out, acc)


DOTS = {"p": "*fp16", "q": "*fp16", "r": "*fp32", "n": "i32"}


@pytest.mark.parametrize(("what", "counts"), [
    ("loop", ["1", "0"]),
    ("run-time use_acc", ["0"]),
    ("no acc", ["0"]),
    ("use_acc False", ["0"]),
    ("while", ["0"]),
    ("branches", ["0"]),
    ("one branch", ["0"]),
    ("early return", ["0", "0"]),
    ("element-wise select", ["0"]),
    ("two in flight", ["1", "0"]),
    ("covered by a wait for another", ["1", "0"]),
    ("what the wait returns is not used", ["0"]),
    ("carried past a wait for another", ["0", "0"]),
    ("read one iteration later", ["1", "0"]),
    ("chained", ["0", "0"]),
    ("nested loops", ["1", "0"]),
])  # fmt: skip
def test_accumulators_go_everywhere_and_waits_stay(what: str, counts: list[str]) -> None:
    compiled = build(accumulators, "cuda:90", WHAT=what, **DOTS)
    assert instructions(compiled.asm["ptx"], r"wgmma\.wait_group\S* (\d+)") == counts


def in_loops(ttgir: str) -> str:
    """The text of a module's loops."""
    return "\n".join(re.findall(r"scf\.for .*?\n    \}", ttgir, re.DOTALL))


def test_an_accumulator_keeps_its_layout_around_a_loop() -> None:
    loops = in_loops(build(accumulators, "cuda:90", WHAT="loop", **DOTS).asm["ttgir"])
    assert "warp_group_dot" in loops
    assert "convert_layout" not in loops


# --- lives of buffers ----------------------------------------------------------------------------


@triton.jit
def buffer_after_product(p, q, r, D: tl.constexpr, LATE: tl.constexpr):
    a = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
    b = tlx.local_alloc((D, D), tlx.dtype_of(q), 1)
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    av, bv = tlx.local_view(a, 0), tlx.local_view(b, 0)
    tlx.local_store(av, tl.load(p + at))
    tlx.local_store(bv, tl.load(q + at))
    acc = tlx.async_dot(av, bv)
    if not LATE:
        acc = tlx.async_dot_wait(0, acc)
    c = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
    tlx.local_store(tlx.local_view(c, 0), tl.load(p + D * D + at))
    if LATE:
        acc = tlx.async_dot_wait(0, acc)
    tl.store(r + tl.arange(0, D), tl.sum(acc, 1))
    tl.store(p + at, tlx.local_load(tlx.local_view(c, 0)))


@pytest.mark.parametrize(("late", "bytes"), [(False, 16384), (True, 24576)])
def test_memory_is_used_again_only_when_no_product_reads_it(late: bool, bytes: int) -> None:
    compiled = build(
        buffer_after_product, "cuda:90", p="*fp16", q="*fp16", r="*fp32", D=64, LATE=late
    )
    assert compiled.metadata.shared == bytes


@triton.jit
def buffer_in_a_loop(p, q, r, n, D: tl.constexpr, WAIT: tl.constexpr):
    a = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    tlx.local_store(tlx.local_view(a, 0), tl.load(p + at))
    acc = tl.zeros((D, D), tl.float32)
    for i in range(n):
        b = tlx.local_alloc((D, D), tlx.dtype_of(q), 1)
        tlx.local_store(tlx.local_view(b, 0), tl.load(q + at + i))
        acc = tlx.async_dot(tlx.local_view(a, 0), tlx.local_view(b, 0), acc)
        if WAIT:
            acc = tlx.async_dot_wait(0, acc)
        c = tlx.local_alloc((D, D), tlx.dtype_of(q), 1)
        tlx.local_store(tlx.local_view(c, 0), tl.load(q + at - i))
        tl.store(q + at, tlx.local_load(tlx.local_view(c, 0)))
    acc = tlx.async_dot_wait(0, acc)
    tl.store(r + at, acc)


@pytest.mark.parametrize(("wait", "bytes"), [(True, 16384), (False, 24576)])
def test_a_buffer_of_a_loop_outlives_a_product_in_flight(wait: bool, bytes: int) -> None:
    compiled = build(
        buffer_in_a_loop, "cuda:90", p="*fp16", q="*fp16", r="*fp32", n="i32", D=64, WAIT=wait
    )
    assert compiled.metadata.shared == bytes


# --- beside stock Triton -------------------------------------------------------------------------


@triton.jit
def both_loops(p, q, r, n, D: tl.constexpr, TLX_FIRST: tl.constexpr):
    rows, columns = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    at = rows * D + columns
    acc = tl.zeros((D, D), tl.float32)
    if TLX_FIRST:
        buf = tlx.local_alloc((D, D), tlx.dtype_of(p), 2)
        for i in range(n):
            view = tlx.local_view(buf, i % 2)
            tlx.async_load(p + at + i * D, view)
            tlx.async_load_commit_group()
            tlx.async_load_wait_group(1)
            acc += tlx.local_load(view)
        tlx.async_load_wait_group(0)
    for i in tl.range(0, n, num_stages=3):
        acc = tl.dot(tl.load(p + at + i * D * D), tl.load(q + at + i * D * D), acc)
    tl.store(r + at, acc)


def test_a_stock_loop_is_pipelined_beside_a_tlx_loop_that_is_not() -> None:
    given = {"p": "*fp16", "q": "*fp16", "r": "*fp32", "n": "i32", "D": 64}
    both = build(both_loops, "cuda:90", TLX_FIRST=True, **given)
    stock = build(both_loops, "cuda:90", TLX_FIRST=False, **given)
    assert waits(stock) == [2, 0]  # the stock loop is pipelined
    assert waits(both) == [1, 0, 2, 0]


@triton.jit
def mixed_loop(p, q, r, n, D: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    buf = tlx.local_alloc((D, D), tlx.dtype_of(p), 3)
    acc = tl.zeros((D, D), tl.float32)
    for i in tl.static_range(2):
        tlx.async_load(p + at + i * D * D, tlx.local_view(buf, i))
        tlx.async_load_commit_group()
    for i in tl.range(0, n, num_stages=STAGES):
        tlx.async_load_wait_group(1)
        a = tlx.local_load(tlx.local_view(buf, i % 3))
        acc = tl.dot(a, tl.load(q + at + i * D * D), acc)
        tlx.async_load(p + at + (i + 2) * D * D, tlx.local_view(buf, (i + 2) % 3))
        tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    tl.store(r + at, acc)


@pytest.mark.parametrize("stages", [None, 1, 3])
def test_no_group_of_the_compiler_s_makes_the_author_s_count_wrong(stages: int | None) -> None:
    compiled = build(
        mixed_loop, "cuda:90", p="*fp16", q="*fp16", r="*fp32", n="i32", D=64, STAGES=stages
    )
    assert waits(compiled) == [1, 0]
    assert compiled.asm["ptx"].count("cp.async.commit_group") == 3


@triton.jit
def dots_from_buffers(p, q, r, n, D: tl.constexpr):
    a = tlx.local_alloc((D, D), tlx.dtype_of(p), 2)
    b = tlx.local_alloc((D, D), tlx.dtype_of(q), 2)
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    acc = tl.zeros((D, D), tl.float32)
    for i in range(n):
        av, bv = tlx.local_view(a, i % 2), tlx.local_view(b, i % 2)
        tlx.local_store(av, tl.load(p + at + i * D * D))
        tlx.local_store(bv, tl.load(q + at + i * D * D))
        acc = tl.dot(tlx.local_load(av), tlx.local_load(bv), acc)
    tl.store(r + at, acc)


@pytest.mark.parametrize(("target", "dtype", "instruction"), [
    ("hip:gfx942", "fp16", "v_mfma_f32_32x32x8_f16|v_mfma_f32_16x16x16_f16"),
    ("hip:gfx942", "bf16", "v_mfma_f32_32x32x8_bf16|v_mfma_f32_16x16x16_bf16"),
    ("hip:gfx942", "fp32", "v_mfma_f32_32x32x2_f32|v_mfma_f32_16x16x4_f32|xf32"),
    ("hip:gfx950", "fp16", "v_mfma_f32_32x32x16_f16|v_mfma_f32_16x16x32_f16"),
    ("hip:gfx950", "fp8e4nv", "v_mfma_\\w*f8"),
    ("hip:gfx942", "fp8e4b8", "v_mfma_\\w*fp8"),
    ("cuda:80", "fp16", r"mma\.sync\.aligned\.m16n8k16"),
    ("cuda:80", "bf16", r"mma\.sync\.aligned\.m16n8k16"),
])  # fmt: skip
def test_dots_from_buffers(target: str, dtype: str, instruction: str) -> None:
    compiled = build(
        dots_from_buffers, target, p=f"*{dtype}", q=f"*{dtype}", r="*fp32", n="i32", D=64
    )
    text = compiled.asm.get("amdgcn") or compiled.asm["ptx"]
    assert re.search(instruction, text)
    if target.startswith("hip"):
        assert "ds_read" in text
        assert "ds_write" in text
    else:
        assert "ldmatrix" in text
    assert "convert_layout" not in in_loops(compiled.asm["ttgir"])


def test_a_product_that_is_read_in_a_select_is_in_flight() -> None:
    @triton.jit
    def kernel(p, q, r, D: tl.constexpr):
        a = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
        rows, columns = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
        acc = tlx.async_dot(tlx.local_view(a, 0), tlx.local_view(a, 0))
        tl.store(r + rows * D + columns, tl.where(rows > columns, acc, 0.0))

    with pytest.raises(AccumulatorInFlight):
        build(kernel, "cuda:90", p="*fp16", q="*fp16", r="*fp32", D=64)


@triton.jit
def attention_loop(q, k, v, o, n, S: tl.constexpr, IN_REGISTERS: tl.constexpr):
    """Scores and weighted sums in a loop; the weights in registers, or through a buffer."""
    at = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    buffers = tlx.local_alloc((S, S), tl.float16, 4)
    qs, ks, vs, ws = buffers[0], buffers[1], buffers[2], buffers[3]
    tlx.local_store(qs, tl.load(q + at))
    acc = tl.zeros((S, S), tl.float32)
    for i in range(n):
        tlx.local_store(ks, tl.load(k + i * S * S + at))
        tlx.local_store(vs, tl.load(v + i * S * S + at))
        tlx.fence_async_shared()
        scores = tlx.async_dot(qs, tlx.local_trans(ks), tl.zeros((S, S), tl.float32))
        weights = tl.math.exp2(tlx.async_dot_wait(0, scores)).to(tl.float16)
        if IN_REGISTERS:
            acc = tlx.async_dot(weights, vs, acc)
        else:
            tlx.local_store(ws, weights)
            tlx.fence_async_shared()
            acc = tlx.async_dot(ws, vs, acc)
        acc = tlx.async_dot_wait(0, acc)
    tl.store(o + at, acc.to(tl.float16))


@pytest.mark.parametrize(("in_registers", "pipeline", "num_warps", "count"), [
    (True, None, 4, 4), (False, None, 4, 2), (True, "products_in_flight", 4, 2),
    (False, "wait_for_each_product", 4, 4), (True, None, 8, 2),
])  # fmt: skip
def test_waits_in_attentions_loops(
    in_registers: bool, pipeline: str | None, num_warps: int, count: int
) -> None:
    """Both products are waited for at once where one reads registers of one warp group."""
    given = dict.fromkeys("qkvo", "*fp16") | {"n": "i32", "S": 64, "IN_REGISTERS": in_registers}
    used = [getattr(tlx, pipeline)] if pipeline else []
    with remora.use(*used):
        compiled = build(attention_loop, "cuda:90", options={"num_warps": num_warps}, **given)
    assert len(re.findall(r"ttng\.warp_group_dot_wait", compiled.asm["ttgir"])) == count
    assert "products-in-flight" not in compiled.asm["ttgir"]
