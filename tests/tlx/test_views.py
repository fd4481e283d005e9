"""Views of buffers: what the machine reads through them, and what the layouts behind them are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, conversions_in_loops, instructions, line_of, loops_of
from tlx.test_refused import refused
from tlx.view_cases import attention

import remora.tlx as tlx
from remora import errors
from remora.tlx.lower.layouts import MemDesc, NvmmaShared, SwizzledShared, element_type
from remora.tlx.lower.views import relaid

F16, F32, I8 = (element_type(name) for name in ("fp16", "fp32", "int8"))
WIDE = NvmmaShared(128, False, 16)


@triton.jit
def transposed_product(
    p, q, r, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COPIED: tl.constexpr,
    WHICH: tl.constexpr, TWICE: tl.constexpr = False,
):  # fmt: skip
    """A @ B, of which the buffer of ``WHICH`` holds the transposed matrix."""
    TA: tl.constexpr = WHICH == "A"
    a = tlx.local_alloc((K, M) if TA else (M, K), tlx.dtype_of(p), 2)
    b = tlx.local_alloc((K, N) if WHICH == "" else (N, K), tlx.dtype_of(q), 2)
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a_at = p + (k[:, None] * M + m[None, :] if TA else m[:, None] * K + k[None, :])
    b_at = q + (n[:, None] * K + k[None, :])
    av, bv = a[1], b[1]
    if COPIED:
        tlx.async_load(a_at, av)
        tlx.async_load(b_at, bv)
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(0)
    else:
        tlx.local_store(av, tl.load(a_at))
        tlx.local_store(bv, tl.load(b_at))
    if TA:
        av = tlx.local_trans(av)
    if TWICE:
        bv = tlx.local_trans(tlx.local_trans(bv, (1, 0)), dims=[1, 0])
    bv = tlx.local_trans(bv)
    acc = tlx.async_dot_wait(0, tlx.async_dot(av, bv))
    tl.store(r + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize(("dtype", "which"), [
    ("fp16", "B"), ("fp16", "A"), ("bf16", "B"), ("fp32", "B"), ("fp8e5", "B"), ("fp8e4nv", "B"),
])  # fmt: skip
def test_a_product_reads_transposed_buffers_where_they_are(
    dtype: str, which: str, copied: bool
) -> None:
    compiled = build(
        transposed_product, "cuda:90", p=f"*{dtype}", q=f"*{dtype}", r="*fp32", M=64, N=128, K=64,
        COPIED=copied, WHICH=which,
    )  # fmt: skip
    text = compiled.asm["ttgir"]
    assert "ttg.memdesc_trans" in text
    assert "ttg.local_load" not in text
    # Both buffers as global memory fills them, rows contiguous; the views are not.
    allocated = re.findall(r"ttg.local_alloc .*memdesc<2x.*?, (#\w+),", text)
    for name in allocated:
        assert re.search(rf"{name} = #ttg.nvmma_shared<.*transposed = false", text)
    assert ("cp.async.c" in compiled.asm["ptx"].replace("cp.async.commit", "")) == copied
    assert "wgmma.mma_async" in compiled.asm["ptx"]


@triton.jit
def views(p, q, r, i, n, WHAT: tl.constexpr, M: tl.constexpr = 64, N: tl.constexpr = 128):
    buf = tlx.local_alloc((M, N), tlx.dtype_of(p), 3)
    m, c = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    v = buf[i]
    tlx.local_store(v, tl.load(p + m * N + c))
    h = tl.arange(0, N // 2)
    if WHAT == "subslice":
        x = tlx.local_load(tlx.subslice(v, N // 2, N // 2))
        tl.store(r + m * N + h[None, :], x)
    if WHAT == "slice of rows":
        x = tlx.local_load(tlx.local_slice(v, [M // 2, 0], [M // 2, N]))
        tl.store(r + tl.arange(0, M // 2)[:, None] * N + c, x)
    if WHAT == "slice of a slice":
        w = tlx.local_slice(buffer=v, offset=(M // 2, 0), shape=(M // 2, N // 2))
        x = tlx.local_load(tlx.local_slice(w, (0, N // 4), (M // 2, N // 4)))
        tl.store(r + tl.arange(0, M // 2)[:, None] * N + tl.arange(0, N // 4)[None, :], x)
    if WHAT == "store into a slice":
        x = tl.load(q + m * N + h[None, :])
        tlx.local_store(tlx.local_trans(tlx.subslice(v, 0, N // 2)), tl.trans(x))
        tl.store(r + m * N + c, tlx.local_load(v))
    if WHAT == "bits":
        x = tlx.local_load(tlx.local_reinterpret(v, tl.int16))
        tl.store(q + m * N + c, x)
    if WHAT == "bytes":
        x = tlx.local_load(tlx.local_reinterpret(v, tl.int8, (M, 2 * N)))
        tl.store(q + m * 2 * N + tl.arange(0, 2 * N)[None, :], x)
    if WHAT == "one row":
        x = tlx.local_load(tlx.local_reinterpret(v, tl.float32, (M * N // 2,)))
        tl.store(q + tl.arange(0, M * N // 2), x)
    if WHAT == "carried":
        w = tlx.local_trans(v)
        for j in range(n):
            tl.store(r + j + c.trans() * M + m.trans(), tlx.local_load(w))
            w = tlx.local_trans(buf[j % 3])
    if WHAT == "branch":
        if n > 3:
            w = tlx.subslice(v, 0, N // 2)
        else:
            w = tlx.subslice(buf[0], N // 2, N // 2)
        tl.store(r + m * N + h[None, :], tlx.local_load(w))
    if WHAT == "select":
        w = tlx.local_trans(v)
        if n > 3:
            w = tlx.local_trans(buf[0])
        tl.store(r + c.trans() * M + m.trans(), tlx.local_load(w))


VIEWS = {
    "subslice": ["memdesc_subslice"],
    "slice of rows": ["memdesc_subslice"],
    "slice of a slice": ["memdesc_subslice"],
    "store into a slice": ["memdesc_subslice", "memdesc_trans"],
    "bits": ["memdesc_reinterpret"],
    "bytes": ["memdesc_reinterpret"],
    "one row": ["memdesc_reinterpret"],
    "carried": ["memdesc_trans"],
    "branch": ["memdesc_subslice"],
    "select": ["memdesc_trans"],
}
RESULTS = {"bits": "*i16", "bytes": "*i8", "one row": "*fp32"}


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("what", VIEWS)
def test_views_of_every_kind(what: str, target: str) -> None:
    compiled = build(
        views, target, p="*fp16", q=RESULTS.get(what, "*fp16"), r="*fp16", i="i32", n="i32",
        WHAT=what,
    )  # fmt: skip
    for name in VIEWS[what]:
        assert f"ttg.{name}" in compiled.asm["ttgir"]
    assert compiled.metadata.shared == 3 * 64 * 128 * 2


@triton.jit
def sliced_operands(p, q, r, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHAT: tl.constexpr):
    """Products over parts of buffers: the matrix unit takes them from where they are."""
    a = tlx.local_alloc((M, K), tlx.dtype_of(p), 1)
    b = tlx.local_alloc((K, N), tlx.dtype_of(q), 1)
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    tlx.local_store(a[0], tl.load(p + m[:, None] * K + k[None, :]))
    tlx.local_store(b[0], tl.load(q + k[:, None] * N + n[None, :]))
    acc = tl.zeros((64 if WHAT == "rows" else M, N), tl.float32)
    if WHAT == "rows":
        acc = tlx.async_dot(tlx.local_slice(a[0], (64, 0), (64, K)), b[0], acc)
        m = tl.arange(0, 64)
    if WHAT == "K":
        for i in tl.static_range(0, K, K // 2):
            x = tlx.subslice(a[0], i, K // 2)
            y = tlx.local_slice(b[0], (i, 0), (K // 2, N))
            acc = tlx.async_dot(x, y, acc)
    acc = tlx.async_dot_wait(0, acc)
    tl.store(r + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize(("what", "k", "products", "swizzle"), [
    ("rows", 64, 4, "128"), ("K", 128, 16, "128"), ("K", 64, 8, "64"), ("K", 32, 4, "32"),
])  # fmt: skip
def test_products_of_slices(what: str, k: int, products: int, swizzle: str) -> None:
    compiled = build(
        sliced_operands, "cuda:90", p="*fp16", q="*fp16", r="*fp32", M=128, N=64, K=k, WHAT=what
    )
    found = instructions(compiled.asm["ptx"], r"wgmma\.mma_async\S+")
    assert len(found) == products
    text = compiled.asm["ttgir"]
    assert "ttg.local_load" not in text
    # A slice is whole in the swizzle: A's rows are as wide as the slices let them be.
    name = re.search(rf"local_alloc .*memdesc<1x128x{k}xf16, (#\w+)", text)
    assert name
    assert f"{name.group(1)} = #ttg.nvmma_shared<{{swizzlingByteWidth = {swizzle}" in text


# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(("dtype", "m", "n", "d", "warps"), [
    ("fp16", 64, 128, 128, 4), ("bf16", 128, 64, 64, 4), ("fp16", 128, 128, 64, 8),
    ("fp16", 64, 16, 64, 4),
])  # fmt: skip
def test_attention_stays_in_registers(
    dtype: str, m: int, n: int, d: int, warps: int, pipelined: bool
) -> None:
    compiled = build(
        attention, "cuda:90", q=f"*{dtype}", k=f"*{dtype}", v=f"*{dtype}", o="*fp32", n="i32",
        scale="fp32", M=m, N=n, D=d, PIPELINED=pipelined, options={"num_warps": warps},
    )  # fmt: skip
    text = compiled.asm["ttgir"]
    assert conversions_in_loops(text) == []
    assert "ttg.local_load" not in text
    bodies = [b for b in loops_of(compiled.asm["ptx"]) if "wgmma.mma_async" in b]
    # Nothing goes through shared memory but the copies.
    assert bodies
    assert not any(instructions(b, r"ld\.shared|st\.shared|[sl][td]matrix") for b in bodies)
    assert "ttg.memdesc_trans" in text
    loop = text[text.index("scf.for") :]
    assert loop.count("ttng.warp_group_dot ") == (3 if pipelined else 2)
    counts = instructions(compiled.asm["ptx"], r"wgmma\.wait_group\S* (\d+)")
    in_the_loop = ["1", "0"] if pipelined else ["0", "0"]
    if warps == 4:  # of one warp group: each of the two products is waited for at once
        in_the_loop = ["0", "0", "1", "0"] if pipelined else ["0"] * 4
    assert counts == (["0", *in_the_loop, "0"] if pipelined else in_the_loop)
    assert compiled.metadata.shared == 2 * d * (m + 4 * n)


def test_conversions_are_counted() -> None:
    text = build(
        views, "cuda:90", p="*fp16", q="*fp16", r="*fp16", i="i32", n="i32", WHAT="carried"
    ).asm["ttgir"]
    loop = re.sub(
        r"(scf\.for .*)", r"\1\n      %z = ttg.convert_layout %y : tensor<8xf32, #blocked>", text
    )
    assert len(conversions_in_loops(loop)) == len(conversions_in_loops(text)) + 1


# --- refused -------------------------------------------------------------------------------------


@triton.jit
def bad(p, q, i, WHAT: tl.constexpr, D: tl.constexpr = 64):
    buf = tlx.local_alloc((D, D), tlx.dtype_of(p), 2)  # allocated
    v = buf[0]
    if WHAT == "dims":
        tlx.local_trans(v, (0, 2))  # dims
    if WHAT == "dims of another rank":
        tlx.local_trans(v, (0,))  # dims of another rank
    if WHAT == "dims a number":
        tlx.local_trans(v, 1)  # dims a number
    if WHAT == "transposed allocation":
        tlx.local_trans(buf)  # transposed allocation
    if WHAT == "past the end":
        tlx.subslice(v, D, D // 2)  # past the end
    if WHAT == "not at a multiple":
        tlx.subslice(v, D // 4, D // 2)  # not at a multiple
    if WHAT == "not a power":
        tlx.local_slice(v, (0, 0), (48, D))  # not a power
    if WHAT == "one offset":
        tlx.local_slice(v, (0,), (D, D))  # one offset
    if WHAT == "offset at run time":
        tlx.subslice(v, i, D // 2)  # offset at run time
    if WHAT == "larger":
        tlx.local_reinterpret(v, tl.float32)  # larger
    if WHAT == "no element type":
        tlx.local_reinterpret(v, 16)  # no element type
    if WHAT == "many of another width":
        tlx.local_reinterpret(buf, tl.int8)  # many of another width
    if WHAT == "a slice reinterpreted":
        w = tlx.local_reinterpret(tlx.subslice(v, 0, D // 2), tl.int16)  # a slice reinterpreted
        tl.store(q, tl.max(tlx.local_load(w).to(tl.float32)))
    if WHAT == "index of one buffer":
        v[0]  # index of one buffer
    if WHAT == "a cut swizzle":
        w = tlx.local_trans(tlx.subslice(v, 0, 8))
        acc = tlx.async_dot_wait(0, tlx.async_dot(v, tlx.local_slice(w, (0, 0), (8, 8))))
        tl.store(q, tl.max(acc))
    if WHAT == "orders that disagree":
        # K has to be contiguous where elements are of 8 bits.
        other = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
        acc = tlx.async_dot(other[0], tlx.local_trans(v))
        acc = tlx.async_dot(other[0], v, acc)  # orders that disagree
        tl.store(q, tl.max(tlx.async_dot_wait(0, acc)))
    if WHAT == "other bytes":
        w = tlx.local_reinterpret(v, tl.float8e5, (D // 2, 2 * D))  # other bytes
        tl.store(q, tl.max(tlx.local_load(w).to(tl.float32)))
        acc = tlx.async_dot(v, tlx.local_trans(v))  # multiplied
        tl.store(q, tl.max(tlx.async_dot_wait(0, acc)))


@pytest.mark.parametrize(("what", "kind"), [
    ("dims", errors.WrongShape),
    ("dims of another rank", errors.WrongShape),
    ("dims a number", errors.WrongType),
    ("transposed allocation", errors.WrongType),
    ("past the end", errors.WrongShape),
    ("not at a multiple", errors.WrongShape),
    ("not a power", errors.WrongShape),
    ("one offset", errors.WrongShape),
    ("offset at run time", errors.NotConstant),
    ("larger", errors.WrongShape),
    ("no element type", errors.WrongDtype),
    ("many of another width", errors.WrongDtype),
    ("a slice reinterpreted", errors.WrongType),
    ("index of one buffer", errors.WrongType),
    ("orders that disagree", errors.ConflictingLayouts),
    ("other bytes", errors.ConflictingLayouts),
])  # fmt: skip
def test_refused(what: str, kind: type[errors.RemoraError]) -> None:
    pointer = "*fp8e5" if what in ("orders that disagree", "other bytes") else "*fp16"
    error = refused(kind, bad, "cuda:90", p=pointer, q="*fp32", i="i32", WHAT=what)
    if what != "index of one buffer":  # it is Python's own syntax: Triton names the line
        assert line_of(bad, f"# {what}") in error.where
    if kind is errors.ConflictingLayouts:
        assert line_of(bad, "# allocated") in error.where
    if what == "orders that disagree":
        assert "local_trans at" in error.where


# --- elements ------------------------------------------------------------------------------------


@triton.jit
def of_one_row(p, q, i, S: tl.constexpr, WHAT: tl.constexpr):
    row = tlx.local_alloc((S,), tl.float32, 1)
    tlx.local_store(row[0], tl.load(p + tl.arange(0, S)))
    if WHAT == "element":
        tl.store(q + tl.arange(0, 1), tlx.local_load(row[0][i]))
    elif WHAT == "too far":
        tl.store(q + tl.arange(0, 1), tlx.local_load(row[0][S]))  # too far
    elif WHAT == "of a part":
        part = tlx.local_slice(row[0], [S // 2], [S // 2])
        tl.store(q + tl.arange(0, 1), tlx.local_load(part[i]))  # of a part
    elif WHAT == "gathered":
        tl.store(q + tl.arange(0, S), tlx.local_gather(row[0], S - 1 - tl.arange(0, S), 0))
    elif WHAT == "scattered":
        tlx.local_scatter(row[0], tl.load(q + tl.arange(0, S)), S - 1 - tl.arange(0, S), 0)
        tl.store(q + tl.arange(0, S), tlx.local_load(row[0]))
    elif WHAT == "dimensions":
        tl.store(q, tlx.local_gather(row[0], tl.zeros((4, 4), tl.int32), 0))  # dimensions
    elif WHAT == "no integers":
        tl.store(q, tlx.local_gather(row[0], tl.zeros((4,), tl.float32), 0))  # no integers
    elif WHAT == "axis":
        tl.store(q, tlx.local_gather(row[0], tl.zeros((4,), tl.int32), 1))  # axis
    elif WHAT == "dtype":
        tlx.local_scatter(row[0], tl.zeros((4,), tl.int32), tl.zeros((4,), tl.int32), 0)  # dtype


@pytest.mark.parametrize(("what", "operation"), [
    ("element", "ttg.memdesc_index"), ("gathered", "ttg.local_gather"),
    ("scattered", "ttg.local_scatter"),
])  # fmt: skip
def test_elements(what: str, operation: str) -> None:
    compiled = build(of_one_row, "cuda:90", p="*fp32", q="*fp32", i="i32", S=256, WHAT=what)
    assert operation in compiled.asm["ttgir"]
    assert compiled.asm["ptx"].count("ld.shared") >= 1


@pytest.mark.parametrize(("what", "kind"), [
    ("too far", errors.BufferIndexError), ("of a part", errors.WrongType),
    ("dimensions", errors.WrongShape), ("no integers", errors.WrongDtype),
    ("axis", errors.WrongShape), ("dtype", errors.WrongDtype),
])  # fmt: skip
def test_elements_that_there_are_not(what: str, kind: type[errors.RemoraError]) -> None:
    error = refused(kind, of_one_row, "cuda:90", p="*fp32", q="*fp32", i="i32", S=256, WHAT=what)
    assert line_of(of_one_row, f"# {what}") in error.where


# --- reads of other shapes -----------------------------------------------------------------------


@pytest.mark.parametrize(("source", "to", "expected"), [
    # The same rows in other elements: the swizzle of bytes stays.
    (MemDesc((64, 64), F16, WIDE), MemDesc((64, 128), I8), NvmmaShared(128, False, 8)),
    (MemDesc((64, 64), F16, WIDE), MemDesc((32, 64), F16), WIDE),
    (MemDesc((64, 128), F16, WIDE), MemDesc((64, 64), F32), NvmmaShared(128, False, 32)),
    # Panels of all rows; rows of another width; columns that are contiguous.
    (MemDesc((64, 128), F16, WIDE), MemDesc((32, 128), F16), None),
    (MemDesc((64, 64), F16, WIDE), MemDesc((32, 128), F16), None),
    (MemDesc((64, 64), F16, NvmmaShared(128, True, 16)), MemDesc((64, 128), I8), None),
    # Without a swizzle everything is where its number is.
    (MemDesc((1, 128), F16, NvmmaShared(0, False, 16)), MemDesc((8, 32), F32),
     NvmmaShared(0, False, 32)),
    (MemDesc((64, 64), F16, SwizzledShared.plain((1, 0))), MemDesc((1024,), F32),
     SwizzledShared.plain((0,))),
    (MemDesc((64, 64), F16, SwizzledShared.plain((0, 1))), MemDesc((1024,), F32), None),
    (MemDesc((64, 64), F16, SwizzledShared(8, 1, 8, (1, 0))), MemDesc((64, 32), F32),
     SwizzledShared(4, 1, 8, (1, 0))),
    (MemDesc((64, 64), F16, SwizzledShared(8, 1, 8, (1, 0))), MemDesc((4, 64), F16),
     None),
])  # fmt: skip
def test_where_bytes_are(source: MemDesc, to: MemDesc, expected: Any) -> None:
    assert source.layout is not None
    assert relaid(source.layout, source, to) == expected
