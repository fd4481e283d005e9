"""Blackwell's tensor memory and products: what they are compiled to, and what is refused."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import pytest
import triton
import triton.language as tl
from compiling import TARGETS
from tlx import tensor_cases as cases
from tlx.building import RELEASE, build, instructions, line_of
from tlx.test_refused import refused
from triton.backends.compiler import GPUTarget

import remora
import remora.tlx as tlx
from remora import errors
from remora.tlx.limits import TlxOutOfTensorMemory
from remora.tlx.lower.layouts import MemDesc, NvmmaShared, element_type
from remora.tlx.lower.pairs import Operand, instruction_descriptor
from remora.tlx.lower.tensor_layouts import registers_of

T38 = pytest.mark.skipif(RELEASE < (3, 8), reason="Triton 3.7 lacks what this compares")


def of(compiled: Any, pattern: str) -> list[str]:
    return instructions(compiled.asm["ptx"], pattern)


# --- buffers -------------------------------------------------------------------------------------


@T38
def test_registers_are_what_stock_triton_computes() -> None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language import _semantic
    from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout

    for rows in (64, 128):
        for length in (1, 2, 8, 64, 256, 512):
            for warps in (4, 8, 16):
                for dtype, bits in ((gl.float32, 32), (gl.float16, 16), (gl.float8e5, 8)):
                    if length * bits < 32:
                        continue
                    block = (rows, min(length, 256) if rows > 64 else length)
                    stock = _semantic._compute_tmem_reg_layout(
                        dtype, [rows, length], [rows, length],
                        TensorMemoryLayout(block, col_stride=1), warps, "32x32b",
                    )  # fmt: skip
                    assert registers_of((rows, length), bits, warps) == (
                        f"#ttg.linear<{{register = {stock.reg_bases}, lane = {stock.lane_bases}, "
                        f"warp = {stock.warp_bases}, block = []}}>"
                    )


@pytest.mark.parametrize(("rows", "what"), [
    (128, "whole"), (128, "parts"), (128, "over"), (128, "read"), (64, "parts"), (64, "read"),
])  # fmt: skip
def test_round_trips(rows: int, what: str) -> None:
    compiled = build(
        cases.round_trip, "cuda:100", p="*fp32", q="*fp32", M=rows, N=64, WHAT=what
    )  # fmt: skip
    shape = "32x32b" if rows == 128 else "16x32bx2"
    registers = 64 if rows == 128 else 32
    assert compiled.metadata.tmem_size == 128  # two of 64, and nothing for what lies over them
    stores = of(compiled, rf"tcgen05\.st\.sync\.aligned\.{shape}\.(x\d+)")
    loads = of(compiled, rf"tcgen05\.ld\.sync\.aligned\.{shape}\.(x\d+)")
    assert stores[0] == f"x{registers}"
    expected = {
        "whole": [registers], "parts": [registers // 2] * 2, "over": [registers, registers // 2, 1],
        "read": [registers, registers // 2, registers // 2],
    }[what]  # fmt: skip
    if what == "parts":
        loads = loads[-2:]
    assert loads == [f"x{n}" for n in expected]
    # What is stored is there, and what is loaded has come, before anything else goes on.
    assert len(of(compiled, r"tcgen05\.wait::(st|ld)")) >= 2


@T38
def test_groups_begin_where_the_meaning_has_them() -> None:
    compiled = build(cases.grouped, "cuda:100", p="*fp32", q="*fp32", M=128, N=64)
    assert compiled.metadata.tmem_size == 128
    ttgir = compiled.asm["ttgir"]
    found = dict(
        re.findall(r"memdesc_index %\w+\[%c(\d+)_i32\] : !ttg.memdesc<\d+x(128x\w+),", ttgir)
    )
    # In units of themselves: s[1], parts[3] after 64 + 16 columns, m[1] after 64 + 32.
    assert found == {"1": "128x64xf32", "5": "128x32xf16", "96": "128x1xf32"}


@triton.jit
def budget(p, n, NUM: tl.constexpr):
    sums = tlx.local_alloc((128, 128), tl.float32, NUM, tlx.storage_kind.tmem)
    more = tlx.local_alloc((128, 256), tl.float16, 1, tlx.storage_kind.tmem)
    x, y = tlx.local_load(sums[n]), tlx.local_load(more[0])
    tl.store(p, tl.sum(x) + tl.sum(y.to(tl.float32)))


def test_the_columns() -> None:
    assert build(budget, "cuda:100", p="*fp32", n="i32", NUM=2).metadata.tmem_size == 512
    with pytest.raises(TlxOutOfTensorMemory, match="640 columns of tensor memory") as caught:
        build(budget, "cuda:100", p="*fp32", n="i32", NUM=4)
    assert "512 columns  4x128x128xf32  sums" in caught.value.what
    assert "128 columns  1x128x256xf16  more" in caught.value.what
    assert caught.value.where.endswith(line_of(budget, "sums = ") + ")")
    assert isinstance(caught.value, triton.runtime.errors.OutOfResources)


@triton.jit
def never_waited_for(p, q, r):
    """The second matrix must not lie over the first one, which a product still writes."""
    at = tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :]
    a = tlx.local_alloc((128, 128), tl.float16, 1)[0]
    tlx.local_store(a, tl.load(p + at))
    tlx.fence_async_shared()
    first = tlx.local_alloc((128, 128), tl.float32, 1, tlx.storage_kind.tmem)
    tlx.async_dot(a, a, first[0], use_acc=False, force_async=True)
    second = tlx.local_alloc((128, 128), tl.float32, 1, tlx.storage_kind.tmem)
    tlx.local_store(second[0], tl.load(q + at))
    tl.store(r + at, tlx.local_load(second[0]))


def test_columns_stay_their_buffers() -> None:
    compiled = build(never_waited_for, "cuda:100", p="*fp16", q="*fp32", r="*fp32")
    assert compiled.metadata.tmem_size == 256


# --- products ------------------------------------------------------------------------------------

_KIND = {"fp16": "f16", "bf16": "f16", "fp32": "tf32", "i8": "i8"}


# Without those that differ from another one only in what they are made of.
@pytest.mark.parametrize("case", [*cases.PRODUCTS[:4], *cases.PRODUCTS[5:12:2],
                                  *cases.PRODUCTS[12:]], ids=str)  # fmt: skip
def test_products(case: Any) -> None:
    m, n, k, dtype, total, what = case
    if RELEASE < (3, 8) and what == "parts":
        pytest.skip("Triton 3.7 writes no part of a matrix")
    if RELEASE < (3, 8) and dtype == "i8":
        error = refused(
            errors.UnsupportedByTarget, cases.product, "cuda:100", p="*i8", q="*i8", r="*fp32",
            n="i32", M=m, N=n, K=k, SUM=cases.SUMS[total], WHAT=what,
        )  # fmt: skip
        assert "one CTA" in error.what
        return
    compiled = build(
        cases.product, "cuda:100", p=f"*{dtype}", q=f"*{dtype}", r="*fp32", n="i32",
        M=m, N=n, K=k, SUM=cases.SUMS[total], WHAT=what,
    )  # fmt: skip
    kinds = of(compiled, r"tcgen05\.mma\.cta_group::1\.kind::(\w+)")
    steps = k * {"fp32": 32, "fp16": 16, "bf16": 16}.get(dtype, 8) // 256
    times = {"twice": 3, "parts": 2}.get(what, 1)
    assert kinds == [_KIND.get(dtype, "f8f6f4")] * steps * times
    commits = len(of(compiled, r"tcgen05\.commit\S+"))
    assert commits == {"twice": 2, "parts": 3}.get(what, 1)
    if what == "tensor memory":
        assert re.search(r"tcgen05\.mma\S+ \[ %r\d+ \+ 0 \], \[ %r\d+ \+ 0 \]", compiled.asm["ptx"])
    if total == "fp16":
        assert of(compiled, r"tcgen05\.ld\S+(pack::16b)")
    if what == "copied":
        assert of(compiled, r"(tcgen05\.cp\.cta_group::1)\.")


def test_what_flows_back_in_a_loop_of_tasks() -> None:
    """A load is done before the barrier says so, also at a barrier at which each thread arrives."""

    @triton.jit
    def kernel(p, r, n):
        at = tl.arange(0, 128)[:, None] * 64 + tl.arange(0, 64)[None, :]
        a = tlx.local_alloc((128, 64), tl.float16, 1)
        b = tlx.local_alloc((64, 64), tl.float16, 1)
        acc = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
        full = tlx.alloc_barriers(1)
        empty = tlx.alloc_warp_barrier(1, num_warps=4)
        with tlx.async_tasks():
            with tlx.async_task("default"):
                for i in range(n):
                    tlx.barrier_wait(full[0], i & 1)
                    x = tlx.local_load(acc[0])
                    tlx.barrier_arrive(empty[0])
                    tl.store(r + i * 8192 + at, x)
            with tlx.async_task(num_warps=1):
                for i in range(n):
                    tlx.barrier_wait(empty[0], (i & 1) ^ 1)
                    tlx.async_dot(a[0], b[0], acc[0], use_acc=False, mBarriers=[full[0]])

    compiled = build(kernel, "cuda:100", p="*fp16", r="*fp32", n="i32")
    order = of(compiled, r"tcgen05\.ld|tcgen05\.wait::ld|mbarrier\.arrive\.shared|tcgen05\.commit")
    assert order[:3] == ["tcgen05.ld", "tcgen05.wait::ld", "mbarrier.arrive.shared"]


# --- two CTAs ------------------------------------------------------------------------------------


@triton.jit
def pair(
    p, q, r, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr,
    PLACE: tl.constexpr, PAIR: tl.constexpr, WHAT: tl.constexpr = "",
):  # fmt: skip
    H: tl.constexpr = N // 2 if PAIR else N
    a = tlx.local_alloc((M, K), tlx.dtype_of(p), 1)[0]
    bars = tlx.alloc_barriers(3)
    tlx.async_descriptor_load(p, a, [0, 0], bars[0])
    if COLUMNS:
        columns = tlx.local_alloc((H, K), tlx.dtype_of(q), 1)[0]
        tlx.async_descriptor_load(q, columns, [0, 0], bars[0])
        b = tlx.local_trans(columns)
    else:
        b = tlx.local_alloc((K, H), tlx.dtype_of(q), 1)[0]
        tlx.async_descriptor_load(q, b, [0, 0], bars[0])
    tlx.barrier_wait(bars[0], 0)
    SUM: tl.constexpr = tl.int32 if tlx.dtype_of(p) == tl.int8 else tl.float32
    acc = tlx.local_alloc((M, N), SUM, 1, tlx.storage_kind.tmem)
    if PLACE == "tensor":
        t = tlx.local_alloc((M, K), tlx.dtype_of(p), 1, tlx.storage_kind.tmem)[0]
        tlx.local_store(t, tlx.local_load(a))
        tlx.async_dot(t, b, acc[0], use_acc=n > 2, mBarriers=[bars[1]], two_ctas=PAIR)
    else:
        done = [bars[1]]
        tlx.async_dot(a, b, acc[0], n > 2, n > 1, mBarriers=done, two_ctas=PAIR)  # alone
    if PAIR:
        tlx.tcgen05_commit(bars[2], two_ctas=True)
    if WHAT == "both":
        whole = tlx.local_alloc((K, N), tlx.dtype_of(q), 1)[0]
        tlx.async_dot(a, whole, acc[0], mBarriers=[bars[1]])  # both
    tlx.barrier_wait(bars[1], 0)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(r + at, tlx.local_load(acc[0]))


def of_two(dtype: str, n: int, k: int, columns: bool, place: str, pair_: bool = True) -> Any:
    half = n // 2 if pair_ else n
    b = (half, k) if columns else (k, half)
    with remora.use(tlx.in_clusters((2, 1, 1))) if pair_ else nullcontext():
        return build(
            pair, "cuda:100", p=f"tensordesc<{dtype}[128, {k}]>",
            q=f"tensordesc<{dtype}{list(b)}>", r="*fp32", n="i32", M=128, N=n, K=k,
            COLUMNS=columns, PLACE=place, PAIR=pair_,
        )  # fmt: skip


def test_two_ctas() -> None:
    compiled = of_two("fp16", 256, 64, False, "shared")
    ptx = compiled.asm["ptx"]
    # Of the whole kernel, and the leader's alone.
    assert "cta_group::1" not in ptx
    assert of(compiled, r"tcgen05\.(mma|alloc|dealloc|relinquish_alloc_permit)\.cta_group::2")[-1:]
    assert len(of(compiled, r"tcgen05\.mma\.cta_group::2\.kind::f16")) == 4
    commits = of(
        compiled, r"tcgen05\.commit\.cta_group::2\S+multicast::cluster\.b64 \[%r\d+\], %rs\d+"
    )
    assert len(commits) == 2
    assert ".reqnctapercluster 2, 1, 1" in ptx
    # The CTAs meet before they allocate, before one reaches the other, and before the release.
    happens = r"barrier\.cluster\.arrive|tcgen05\.(?:alloc|mma|dealloc)\.|^\s*ret"
    order = [w.strip() for w in re.findall(happens, ptx, re.MULTILINE)]
    met = "barrier.cluster.arrive"
    assert order[:3] == [met, "tcgen05.alloc.", met]
    assert order[-3:] == [met, "tcgen05.dealloc.", "ret"]
    assert len(of_two("bf16", 64, 128, True, "tensor").asm["cubin"]) > 0


def descriptors(ptx: str) -> list[tuple[Any, ...]]:
    """For each instruction the descriptors of A, B and itself, with shared memory at 0."""
    body = ptx.partition(".visible .entry")[2]
    made: dict[str, tuple[str, list[str]]] = {}
    for found in re.finditer(
        r"^\s*(?:@%p\d+ )?([a-z][\w.:]*)\s+(%\w+),\s*(.*);$", body, re.MULTILINE
    ):
        made.setdefault(found[2], (found[1], re.findall(r"\{[^}]*\}|[^,\s]+", found[3])))

    def value(name: str) -> int:
        if re.match(r"-?\d+$", name):
            return int(name)
        if name == "global_smem":
            return 0
        if name.startswith("{"):
            low, high = (value(part.strip()) for part in name[1:-1].split(","))
            return low & 0xFFFFFFFF | (high & 0xFFFFFFFF) << 32
        operation, operands = made[name]
        x, *rest = [value(o) for o in operands]
        kind = operation.partition(".")[0]
        if kind == "bfe":
            return x >> rest[0] & (1 << rest[1]) - 1
        two = {"add": int.__add__, "or": int.__or__, "and": int.__and__, "shl": int.__lshift__,
               "shr": int.__rshift__}  # fmt: skip
        return two[kind](x, rest[0]) if kind in two else x

    rows, inside = [], {"left": 0, "right": 0}
    for line in body.splitlines():
        if step := re.search(r"add\.s64 (left|right), (%\w+), (\d+);", line):
            inside[step[1]] = value(step[2]) + int(step[3])
        mma = re.search(r"tcgen05\.mma\S+ \[[^]]*\], (\[[^]]*\]|%?\w+), (%?\w+), (%?\w+),", line)
        if mma:
            a, b, own = mma.groups()
            left: Any = re.findall(r"\+ (\d+)", a) if a.startswith("[") else (
                inside[a] if a in inside else value(a))  # fmt: skip
            rows.append((left, inside[b] if b in inside else value(b), value(own)))
    return [tuple(x & (1 << 64) - 1 if isinstance(x, int) else x for x in row) for row in rows]


@T38
@pytest.mark.parametrize(("dtype", "half", "k", "columns", "place"), [
    ("fp16", 128, 128, False, "shared"), ("fp16", 64, 64, True, "tensor"),
    ("fp8e5", 32, 128, False, "shared"), ("fp32", 64, 64, True, "shared"),
    ("i8", 64, 128, True, "shared"), ("i8", 128, 128, False, "shared"),
])  # fmt: skip
def test_two_ctas_read_as_stock_triton_reads_one(
    dtype: str, half: int, k: int, columns: bool, place: str
) -> None:
    """Each CTA has its A and its half of B where one CTA has all of a product of half of N."""
    ours = descriptors(of_two(dtype, 2 * half, k, columns, place).asm["ptx"])
    stock = descriptors(of_two(dtype, half, k, columns, place, pair_=False).asm["ptx"])
    assert [row[:2] for row in ours] == [row[:2] for row in stock]
    for (_, _, one), (_, _, two) in zip(stock, ours, strict=True):
        assert (one >> 24 & 31, one >> 17 & 63) == (128 >> 4, half >> 3)
        assert (two >> 24 & 31, two >> 17 & 63) == (256 >> 4, 2 * half >> 3)
        assert one & ~(31 << 24 | 63 << 17) == two & ~(31 << 24 | 63 << 17)


def test_descriptors_say_what_the_isa_says() -> None:
    """PTX ISA, tcgen05 matrix descriptor: swizzle from bit 61 on, strides in units of 16 bytes."""
    rows = MemDesc((128, 128), element_type("fp16"), NvmmaShared(128, False, 16))
    k_inside = Operand.of(rows, 1)
    assert k_inside == Operand(2 << 61 | 1 << 46 | 64 << 32, (0, 32, 64, 96, *(
        128 * 128 + n for n in (0, 32, 64, 96))), False)  # fmt: skip
    k_outside = Operand.of(rows, 0)
    assert k_outside is not None
    assert k_outside.transposed
    assert k_outside.constant >> 16 & 0x3FFF == 128 * 128 >> 4
    assert k_outside.offsets == tuple(16 * 128 * n for n in range(8))
    assert Operand.of(MemDesc((128, 8), element_type("fp16"), NvmmaShared(0, False, 16)), 1) is None
    # fp32 sums of fp16, B transposed, N = 64, M = 128.
    assert instruction_descriptor(128, 64, ["f16", "f16"], "f32", (False, True)) == 0x8110010


@triton.jit
def half_the_rows(p, q, r, WHAT: tl.constexpr):
    a = tlx.local_alloc((64, 64), tl.float16, 1)[0]
    b = tlx.local_alloc((64, 64), tl.float16, 1)[0]
    bars = tlx.alloc_barriers(2)
    tlx.async_descriptor_load(p, a, [0, 0], bars[0])
    tlx.async_descriptor_load(q, b, [0, 0], bars[0])
    tlx.barrier_wait(bars[0], 0)
    acc = tlx.local_alloc((64, 128), tl.float32, 1, tlx.storage_kind.tmem)[0]
    at = tl.arange(0, 64)[:, None] * 128 + tl.arange(0, 128)[None, :]
    tlx.local_store(acc, tl.load(r + at))
    tlx.async_dot(a, b, acc, mBarriers=[bars[1]], two_ctas=True)
    tlx.barrier_wait(bars[1], 0)
    if WHAT == "a part":
        tlx.local_load(tlx.subslice(acc, 0, 64))  # a part
    tl.store(r + at, tlx.local_load(acc))


def test_two_ctas_with_64_rows_each() -> None:
    """The last half of the columns is in the last 64 lanes (PTX ISA, tcgen05, layout B)."""
    kinds = {"p": "tensordesc<fp16[64, 64]>", "q": "tensordesc<fp16[64, 64]>", "r": "*fp32"}
    with remora.use(tlx.in_clusters((2, 1, 1))):
        compiled = build(half_the_rows, "cuda:100", **kinds, WHAT="")
        error = refused(
            errors.ConflictingLayouts, half_the_rows, "cuda:100", **kinds, WHAT="a part"
        )
    assert line_of(half_the_rows, "# a part") in error.where
    assert compiled.metadata.tmem_size == 64
    assert of(compiled, r"tcgen05\.(?:ld|st)\.sync\.aligned\.(32x32b\.x64)") == ["32x32b.x64"] * 2
    (_, _, instruction), *_ = descriptors(compiled.asm["ptx"])
    assert (instruction >> 24 & 31, instruction >> 17 & 63) == (128 >> 4, 128 >> 3)
    # Threads hold what stock Triton says of such a sum: whole rows, by halves.
    rows = re.findall(r"warp = \[\[32, 0\], \[0, 64\]\]", compiled.asm["ttgir"])
    assert rows


@triton.jit
def counted_at_the_first(p, r):
    a = tlx.local_alloc((64, 64), tl.float16, 1)[0]
    bars = tlx.alloc_barriers(1)
    if tlx.cluster_cta_rank() % 2 == 0:
        tlx.barrier_expect_bytes(bars[0], 2 * 64 * 64 * 2)
    tlx.async_descriptor_load(p, a, [0, 0], bars[0], two_ctas=True)
    if tlx.cluster_cta_rank() % 2 == 0:
        tlx.barrier_wait(bars[0], 0)
    tlx.cluster_barrier()
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(r + at, tlx.local_load(a))


def test_copies_of_two_ctas_are_counted_at_the_first() -> None:
    with remora.use(tlx.in_clusters((2, 1, 1))):
        compiled = build(
            counted_at_the_first, "cuda:100", p="tensordesc<fp16[64, 64]>", r="*fp16"
        )  # fmt: skip
    (copy,) = of(compiled, r"cp\.async\.bulk\.tensor\.2d\S+ \[\S+\], \[[^]]*\], \[%r\d+\]")
    assert ".cta_group::2 " in copy
    place = copy.split("[")[-1].rstrip("]")
    assert re.search(rf"mapa\.shared::cluster\.u32 {place},", compiled.asm["ptx"])


# --- refused -------------------------------------------------------------------------------------


@triton.jit
def wrong(p, q, r, n, WHAT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    a = tlx.local_alloc((64, 64), tl.float16, 2)
    bars = tlx.alloc_barriers(2)
    tmem: tl.constexpr = tlx.storage_kind.tmem
    acc = tlx.local_alloc((64, 64), tl.float32, 1, tmem)
    x = tl.load(p + at)
    if WHAT == "no matrix":
        tlx.local_alloc((64,), tl.float32, 1, tmem)  # no matrix
    if WHAT == "rows":
        tlx.local_alloc((32, 64), tl.float32, 1, tmem)  # rows
    if WHAT == "dtype":
        tlx.local_alloc((64, 64), tl.float64, 1, tmem)  # dtype
    if WHAT == "half a column":
        tlx.local_alloc((64, 1), tl.float16, 1, tmem)  # half a column
    if WHAT == "columns":
        tlx.local_alloc((64, 128), tl.float32, 8, tmem)  # columns
    if WHAT == "shared layout":
        tlx.local_alloc(  # shared layout
            (64, 64), tl.float32, 1, tmem,
            tlx.swizzled_shared_layout_encoding.make_default(rank=2),
        )  # fmt: skip
    if WHAT == "blocks":
        blocks: tl.constexpr = tlx.tensor_memory_layout_encoding(128, 64, 1, 1, 1)
        tlx.local_alloc((64, 64), tl.float32, 1, tmem, blocks)  # blocks
    if WHAT == "scales of fp32":
        scaled: tl.constexpr = tlx.tensor_memory_scales_layout_encoding.make_default()
        tlx.local_alloc((64, 64), tl.float32, 1, tmem, scaled)  # scales of fp32
    if WHAT == "other memory":
        tlx.local_alloc((64, 64), tl.float16, 1, tmem, reuse=a)  # other memory
    if WHAT == "transposed":
        tlx.local_trans(acc[0])  # transposed
    if WHAT == "rows of a part":
        tlx.local_slice(acc[0], [0, 0], [32, 64])  # rows of a part
    if WHAT == "rows of a reading":
        tlx.local_reinterpret(acc[0], tl.float16, [128, 64])  # rows of a reading
    if WHAT == "read as scales":
        tlx.local_reinterpret(acc[0], tl.int8, [64, 64])  # read as scales
    if WHAT == "A in registers":
        tlx.async_dot(x, a[1], acc[0])  # A in registers
    if WHAT == "B in tensor memory":
        tlx.async_dot(a[0], acc[0], acc[0])  # B in tensor memory
    if WHAT == "sum in registers":
        tlx.async_dot(a[0], a[1], tl.zeros((64, 64), tl.float32))  # sum in registers
    if WHAT == "no sum":
        tlx.async_dot(a[0], a[1])  # no sum
    if WHAT == "sum in shared memory":
        tlx.async_dot(a[0], a[1], a[0])  # sum in shared memory
    if WHAT == "shape of the sum":
        tlx.async_dot(a[0], a[1], tlx.subslice(acc[0], 0, 32))  # shape of the sum
    if WHAT == "bf16 sum":
        half = tlx.local_alloc((64, 64), tl.bfloat16, 1, tmem)
        tlx.async_dot(a[0], a[1], half[0])  # bf16 sum
    if WHAT == "integers":
        i8 = tlx.local_alloc((64, 64), tl.int8, 1)
        tlx.async_dot(i8[0], i8[0], acc[0])  # integers
    if WHAT == "signs":
        u8 = tlx.local_alloc((64, 64), tl.uint8, 1)
        tlx.async_dot(u8[0], u8[0], acc[0])  # signs
    if WHAT == "bytes of two kinds":
        i8 = tlx.local_alloc((64, 64), tl.int8, 1)
        f8 = tlx.local_alloc((64, 64), tl.float8e5, 1)
        tlx.async_dot(i8[0], f8[0], acc[0])  # bytes of two kinds
    if WHAT == "mixed":
        b16 = tlx.local_alloc((64, 64), tl.bfloat16, 1)
        tlx.async_dot(a[0], b16[0], acc[0])  # mixed
    if WHAT == "ieee":
        wide = tlx.local_alloc((64, 64), tl.float32, 1)
        tlx.async_dot(wide[0], wide[0], acc[0], input_precision="ieee")  # ieee
    if WHAT == "no barrier":
        tlx.async_dot(a[0], a[1], acc[0], mBarriers=[a[0]])  # no barrier
    if WHAT == "all barriers":
        tlx.async_dot(a[0], a[1], acc[0], mBarriers=[bars])  # all barriers
    if WHAT == "wait for registers":
        tlx.async_dot_wait(0, x)  # wait for registers
    if WHAT == "no cluster":
        wide2 = tlx.local_alloc((128, 64), tl.float16, 1)
        sums = tlx.local_alloc((128, 128), tl.float32, 1, tmem)
        tlx.async_dot(wide2[0], a[1], sums[0], two_ctas=True)  # no cluster
    if WHAT == "commit without a cluster":
        tlx.tcgen05_commit(bars[0], two_ctas=True)  # commit without a cluster
    if WHAT == "rows of two":
        t64 = tlx.local_alloc((64, 64), tl.float16, 1, tmem)
        tlx.async_dot(t64[0], tlx.subslice(a[1], 0, 32), acc[0], two_ctas=True)  # rows of two
    if WHAT == "copy from tensor memory":
        tlx.tmem_copy(acc[0], acc[0])  # copy from tensor memory
    if WHAT == "copy to shared memory":
        tlx.tmem_copy(a[0], a[1])  # copy to shared memory
    if WHAT == "copy of another width":
        tlx.tmem_copy(a[0], acc[0])  # copy of another width
    if WHAT == "two readers":
        t = tlx.local_alloc((64, 64), tl.float16, 1, tmem)  # two readers
        tlx.async_dot(a[0], a[1], t[0])
        tlx.async_dot(t[0], a[1], acc[0])
    if WHAT == "one warp":
        with tlx.async_tasks():
            with tlx.async_task("default"):
                tl.store(p, 0.0)
            with tlx.async_task(num_warps=1):
                tlx.local_load(acc[0])  # one warp
    tlx.local_store(acc[0], x.to(tl.float32))
    tl.store(r + at, tlx.local_load(acc[0]))


@pytest.mark.parametrize(("what", "error", "says"), [
    ("no matrix", errors.WrongShape, "is a matrix"),
    ("rows", errors.WrongShape, "64 or 128 rows, not 32"),
    ("dtype", errors.WrongDtype, "holds no fp64"),
    ("half a column", errors.WrongShape, "do not fill a column"),
    ("columns", errors.OutOfTensorMemory, "takes 1024 columns"),
    ("shared layout", errors.WrongType, "a layout of tensor memory"),
    ("blocks", errors.WrongShape, "blocks of 128 by 64"),
    ("scales of fp32", errors.WrongDtype, "the layout is of scales"),
    ("other memory", errors.WrongType, "what it reuses"),
    ("transposed", errors.WrongType, "has to be in shared memory"),
    ("rows of a part", errors.WrongShape, "32 of the 64 rows"),
    ("rows of a reading", errors.WrongShape, "not read with 128 rows"),
    ("read as scales", errors.WrongDtype, "scales have a layout"),
    ("A in registers", errors.WrongType, "A has to be a buffer"),
    ("B in tensor memory", errors.WrongType, "B has to be in shared memory"),
    ("sum in registers", errors.WrongType, "acc has to be a buffer in tensor memory"),
    ("no sum", errors.WrongType, "it is None"),
    ("sum in shared memory", errors.WrongType, "acc has to be in tensor memory"),
    ("shape of the sum", errors.WrongShape, r"acc of \(64, 32\)"),
    ("bf16 sum", errors.WrongDtype, "summed in fp32 or fp16"),
    ("integers", errors.WrongDtype, "products of int8 are summed in int32"),
    ("signs", errors.WrongDtype, "does not multiply"),
    ("bytes of two kinds", errors.WrongDtype, "A is of int8 and B of fp8e5"),
    ("mixed", errors.WrongDtype, "A is of fp16 and B of bf16"),
    ("ieee", errors.UnsupportedByTarget, "only as tf32"),
    ("no barrier", errors.WrongType, r"mBarriers\[0\] has to be a barrier"),
    ("all barriers", errors.WrongType, "one barrier"),
    ("wait for registers", errors.UnsupportedByTarget, "Hopper's"),
    ("no cluster", errors.UnsupportedByTarget, r"clusters are \(1, 1, 1\)"),
    ("commit without a cluster", errors.UnsupportedByTarget, "beside each other"),
    ("rows of two", errors.WrongShape, "an A of 64 rows each from shared memory"),
    ("copy from tensor memory", errors.WrongType, "src has to be in shared memory"),
    ("copy to shared memory", errors.WrongType, "dst has to be in tensor memory"),
    ("copy of another width", errors.WrongDtype, "src is of fp16, dst of fp32"),
    ("two readers", errors.ConflictingLayouts, "want layouts that disagree"),
    ("one warp", errors.WrongShape, "a group of 4 warps"),
])  # fmt: skip
def test_refused(what: str, error: Any, says: str) -> None:
    found = refused(error, wrong, "cuda:100", p="*fp16", q="*fp16", r="*fp32", n="i32", WHAT=what)
    assert re.search(says, found.what), found.what
    assert line_of(wrong, f"# {what}") in found.where
    assert found.hint


@pytest.mark.parametrize(("target", "way_out"), [
    ("cuda:90", "tlx.async_dot returns them"), ("hip:gfx950", "tl.dot"),
])  # fmt: skip
def test_other_targets(target: str, way_out: str) -> None:
    @triton.jit
    def kernel(p, WHAT: tl.constexpr):
        if WHAT == "alloc":
            tlx.local_alloc((64, 64), tl.float32, 1, tlx.storage_kind.tmem)
        if WHAT == "storage":
            tlx.storage_alias_spec(tlx.storage_kind.tmem)
        if WHAT == "copy":
            a = tlx.local_alloc((64, 64), tl.float32, 1)
            tlx.tmem_copy(a[0], a[0])
        if WHAT == "commit":
            tlx.tcgen05_commit(None)

    for what in ("alloc", "storage", "copy", "commit"):
        error = refused(errors.UnsupportedByTarget, kernel, target, p="*fp32", WHAT=what)
        assert target in error.what
        assert way_out in error.hint


@triton.jit
def not_waited_for():
    a = tlx.local_alloc((128, 64), tl.float16, 1)
    b = tlx.local_alloc((64, 32), tl.float16, 1)
    acc = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
    tlx.async_dot(a[0], b[0], acc[0], two_ctas=True)  # no barrier


def test_a_product_of_two_ctas_says_how_it_is_waited_for() -> None:
    with remora.use(tlx.in_clusters((2, 1, 1))):
        error = refused(errors.WrongType, not_waited_for, "cuda:100")
    assert line_of(not_waited_for, "# no barrier") in error.where
    assert "tcgen05_commit" in error.hint


def test_integers_where_the_unit_has_none(monkeypatch: Any) -> None:
    """Blackwell Ultra (sm_103) multiplies no int8 (PTX ISA, tcgen05.mma)."""
    monkeypatch.setitem(TARGETS, "cuda:103", GPUTarget("cuda", 103, 32))
    given = {"M": 128, "N": 64, "K": 64, "SUM": tl.int32, "WHAT": "plain"}
    error = refused(
        errors.UnsupportedByTarget, cases.product, "cuda:103", p="*i8", q="*i8", r="*fp32",
        n="i32", **given,
    )  # fmt: skip
    assert "sm_103 multiplies no int8" in error.what


def test_two_kinds_of_products_in_one_kernel() -> None:
    with remora.use(tlx.in_clusters((2, 1, 1))):
        error = refused(
            errors.UnsupportedByTarget, pair, "cuda:100", p="tensordesc<fp16[128, 64]>",
            q="tensordesc<fp16[64, 64]>", r="*fp32", n="i32", M=128, N=128, K=64, COLUMNS=False,
            PLACE="shared", PAIR=True, WHAT="both",
        )  # fmt: skip
    assert error.where.startswith(line_of(pair, "# both"))
    assert line_of(pair, "# alone") in error.what
