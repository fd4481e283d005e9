"""Block-scaled products: PTX of each format, scales of each place, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import RELEASE, build, instructions, line_of
from tlx.scaled_kernels import in_parts, packed, paired, quantized, scaled, turned
from tlx.test_refused import refused
from tlx.test_tensor_memory import descriptors

import remora
import remora.tlx as tlx
from remora import errors

T38 = pytest.mark.skipif(RELEASE < (3, 8), reason="Triton 3.7 lacks what this compares")

# Format, element type, type of scales, block, columns; kind of the product, and how PTX names
# the block before version 8.8.
CASES = [
    ("e4m3", "fp8e4nv", tl.uint8, 32, 128, "mxf8f6f4", "1X"),
    ("e5m2", "fp8e5", tl.uint8, 32, 256, "mxf8f6f4", "1X"),
    ("e4m3", "fp8e4nv", tl.uint8, 32, 64, "mxf8f6f4", "1X"),
    ("e2m1", "u8", tl.uint8, 32, 128, "mxf4", "2X"),
    ("e2m1", "u8", tl.float8e4nv, 16, 128, "mxf4nvf4", "4X"),
    ("e2m1", "u8", tl.uint8, 16, 256, "mxf4nvf4", "4X"),
]


@pytest.mark.parametrize(("format_", "dtype", "scales", "block", "n", "kind", "old"), CASES)
def test_products(
    format_: str, dtype: str, scales: Any, block: int, n: int, kind: str, old: str
) -> None:
    copied = n <= 128  # by the kernel, or by the product
    step, packed = (256, 2) if format_ == "e2m1" else (128, 1)
    named = {tl.uint8: "u8", tl.float8e4nv: "fp8e4nv"}[scales]
    blocks = step // block // 4
    kernel = build(
        scaled, "cuda:100",
        a_desc=f"tensordesc<{dtype}[128,{step // packed}]>",
        b_desc=f"tensordesc<{dtype}[{n},{step // packed}]>",
        a_scale_desc=f"tensordesc<{named}[1,1,{blocks},2,256]>",
        b_scale_desc=f"tensordesc<{named}[1,{-(-n // 128)},{blocks},2,256]>",
        c_ptr="*fp32", K="i32", FORMAT=format_, B_FORMAT=format_, BM=128, BN=n, BK=step,
        BLOCK=block, COPIED=copied, SCALES=scales,
    )  # fmt: skip
    text = kernel.asm["ptx"]
    products = instructions(text, rf"tcgen05\.mma\.cta_group::1\.kind::{kind}\.block_scale\S*")
    depth = 32 if packed == 1 else 64  # of one instruction
    assert len(products) == step // depth
    assert all(p.endswith((f"block{block}", f"scale_vec::{old}")) for p in products)
    # 512 bytes of scales a copy: 128 rows by 4.
    copies = instructions(text, r"tcgen05\.cp\.cta_group::1\.warpx4\.32x128b")
    assert len(copies) == blocks * (1 + -(-n // 128))
    assert text.index("tcgen05.cp") < text.index("tcgen05.mma.")


@T38
@pytest.mark.parametrize(("a_format", "b_format"), [("e2m1", "e5m2"), ("e4m3", "e2m1")])
def test_e2m1_beside_fp8(a_format: str, b_format: str) -> None:
    """It lies in 8 bytes of 16, where TMA puts it, and is read as fp8 is."""
    dtypes = {"e4m3": ("fp8e4nv", 256), "e5m2": ("fp8e5", 256), "e2m1": ("u8", 128)}
    boxes = [f"tensordesc<{d}[128,{n}]>" for d, n in (dtypes[a_format], dtypes[b_format])]
    kernel = build(
        scaled, "cuda:100", a_desc=boxes[0], b_desc=boxes[1], c_ptr="*fp32", K="i32",
        **dict.fromkeys(("a_scale_desc", "b_scale_desc"), "tensordesc<u8[1,1,2,2,256]>"),
        FORMAT=a_format, B_FORMAT=b_format, BM=128, BN=128, BK=256, BLOCK=32, COPIED=False,
        SCALES=tl.uint8,
    )  # fmt: skip
    text = kernel.asm["ptx"]
    products = re.findall(r"tcgen05\.mma\S+kind::mxf8f6f4\S+ \[[^]]*\], \S+, \S+, (%r\d+),", text)
    assert len(products) == 256 // 32
    # The first one's descriptor: A's format from bit 7 on, B's from bit 10 on.
    (own,) = re.findall(rf"mov\.b32\s+{products[0]}, (\d+);", text)
    codes = {"e4m3": 0, "e5m2": 1, "e2m1": 5}
    assert (int(own) >> 7 & 7, int(own) >> 10 & 7) == (codes[a_format], codes[b_format])
    # Two stages of 128 x 256, of both a byte for an element.
    assert kernel.metadata.shared >= 2 * 2 * 128 * 256
    padded = [x["fp4_padded"] for x in kernel.metadata.tensordesc_meta]
    assert padded[:2] == [a_format == "e2m1", b_format == "e2m1"]


@T38
def test_parts_of_scales_are_where_the_whole_has_them() -> None:
    given = {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "a_scale_ptr": "*u8", "b_scale_ptr": "*u8",
             "c_ptr": "*fp32", "N": 256}  # fmt: skip
    found = []
    for parts in (1, 2):
        text = build(in_parts, "cuda:100", **given, PARTS=parts).asm["ptx"]
        places = re.findall(r"tcgen05\.mma\S+ \[[^]]*\], .*?\[ (%r\d+) .*?\[ (%r\d+) ", text)
        assert len(places) == 8  # of 32 along K
        # In 8 columns of A's and 16 of B's: 128 rows by 4 scales are in 4.
        starts = dict(re.findall(r"add\.s32\s+(%r\d+), %r\d+, (\d+);", text))
        found.append([tuple(int(starts.get(place, 0)) for place in pair) for pair in places])
        first = found[-1][0]
        found[-1] = [(x - first[0], y - first[1]) for x, y in found[-1]]
    assert found[0] == found[1] == [(0, 0)] * 4 + [(4, 8)] * 4


@T38
def test_scales_of_fewer_columns_than_128_are_as_stored() -> None:
    given = {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "a_scale_ptr": "*u8", "b_scale_ptr": "*u8",
             "c_ptr": "*fp32", "N": 64, "PARTS": 2}  # fmt: skip
    text = build(in_parts, "cuda:100", **given).asm["ptx"]
    assert len(instructions(text, r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4")) == 8


def test_scales_of_a_shape_whose_bytes_lie_alike() -> None:
    tiles = {"x_desc": "[128,256]", "y_desc": "[256,128]"}
    kernel = build(
        turned, "cuda:100", c_ptr="*fp32",
        **{name: f"tensordesc<fp8e4nv{shape}>" for name, shape in tiles.items()},
        **dict.fromkeys(("x_scale_desc", "y_scale_desc"), "tensordesc<u8[1,1,2,2,256]>"),
    )  # fmt: skip
    text = kernel.asm["ptx"]
    assert len(instructions(text, r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4")) == 8
    assert len(instructions(text, r"tcgen05\.cp\.cta_group::1\.warpx4")) == 4
    assert len(instructions(text, r"mbarrier\.init")) == 2  # and the product's own


def copies(shape: tuple[int, int], length: int) -> list[tuple[int, int]]:
    """Of each copy its first column, and where its descriptor begins, less those of the first."""
    text = build(
        packed, "cuda:100", p="*u8", q="*u8", SHAPE=shape, LENGTH=length, LOADED=False
    ).asm["ptx"]
    columns = dict(re.findall(r"add\.s32\s+(%r\d+), %r\d+, (\d+);", text))
    starts = dict(re.findall(r"add\.s64\s+(%rd\d+), %rd\d+, (\d+);", text))
    found = re.findall(r"tcgen05\.cp\S+warpx4\.32x128b \[ (%r\d+) \+ 0 \], (%rd\d+);", text)
    return [(int(columns.get(c, 0)), int(starts.get(d, 0))) for c, d in found]


@T38
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_copies_of_fewer_scales_are_those_of_a_smaller_buffer(groups: int) -> None:
    """32 rows of 16 bytes are 128 rows by 4: in 4 columns, once for each warp."""
    fewer = copies((32 * groups, 16), 16 * groups)
    whole = copies((32 * groups, 16), 4 * groups)
    assert [a - fewer[0][0] for a, _ in fewer] == [a - whole[0][0] for a, _ in whole]
    assert [b - fewer[0][1] for _, b in fewer] == [b - whole[0][1] for _, b in whole]
    assert len(fewer) == groups


@pytest.mark.parametrize(("shape", "length"), [
    ((128, 4), 4), ((32, 32), 4), ((16, 16), 4), ((16, 32), 16), ((256, 16), 16),
])  # fmt: skip
def test_scales_that_are_not_in_the_unit_s_order(shape: tuple[int, int], length: int) -> None:
    error = refused(
        errors.WrongShape, packed, "cuda:100", p="*u8", q="*u8", SHAPE=shape, LENGTH=length,
        LOADED=False,
    )  # fmt: skip
    assert line_of(packed, "# copied") in error.where
    assert "(32 n, 16)" in error.hint


def test_scales_are_not_loaded() -> None:
    error = refused(
        errors.UnsupportedByTarget, packed, "cuda:100", p="*u8", q="*u8", SHAPE=(32, 16),
        LENGTH=4, LOADED=True,
    )  # fmt: skip
    assert line_of(packed, "# loaded") in error.where


def of_two(
    formats: str, n: int, k: int, block: int, pair: bool, stored: bool | str, place: str = "shared"
) -> str:
    """PTX of a product by two CTAs, or by one as stock Triton writes it."""
    a_format, b_format = formats.split() * 2 if " " not in formats else formats.split()
    dtypes = {"e4m3": "fp8e4nv", "e5m2": "fp8e5", "e2m1": "u8"}
    a_depth, b_depth = (k // 2 if f == "e2m1" else k for f in (a_format, b_format))
    blocks = k // block // 4
    with remora.use(tlx.in_clusters((2, 1, 1))):
        kernel = build(
            paired, "cuda:100", a_desc=f"tensordesc<{dtypes[a_format]}[128,{a_depth}]>",
            b_desc=f"tensordesc<{dtypes[b_format]}[{n // 2 if pair else n},{b_depth}]>",
            a_scale_desc=f"tensordesc<u8[1,{blocks},2,256]>",
            b_scale_desc=f"tensordesc<u8[{-(-n // 128)},{blocks},2,256]>",
            c_ptr="*fp32", FORMAT=a_format, B_FORMAT=b_format, N=n, K=k, BLOCK=block, PAIR=pair,
            STORED=stored, PLACE=place,
        )  # fmt: skip
    assert kernel.asm["cubin"]
    text: str = kernel.asm["ptx"]
    return text


def products_of(text: str) -> list[tuple[int, int, int]]:
    """Of each product its own descriptor, and the columns of its scales less those of the first.

    Registers that name a constant, or a sum with one, are taken for it.
    """
    known = {
        name: int(constant)
        for name, constant in re.findall(
            r"(?:mov\.b32|add\.s32)\s+(%r\d+), (?:%r\d+, )?(-?\d+);", text
        )
    }
    found = []
    for own, *scales in re.findall(
        r"tcgen05\.mma\S+ \[[^]]*\], (?:\[[^]]*\]|\S+), \S+, (\S+), \[([^]]*)\], \[([^]]*)\]", text
    ):
        columns = []
        for scale in scales:
            register, _, more = scale.strip().partition(" + ")
            columns.append(known.get(register, 0) + int(more))
        found.append((known[own] if own in known else int(own), *columns))
    first = found[0]
    return [(own, a - first[1], b - first[2]) for own, a, b in found]


@T38
@pytest.mark.parametrize(("formats", "n", "k", "block", "place"), [
    ("e4m3", 256, 256, 32, "shared"), ("e5m2", 128, 128, 32, "shared"),
    ("e4m3", 64, 256, 32, "tensor"), ("e2m1", 256, 256, 32, "shared"),
    ("e2m1", 128, 256, 16, "shared"), ("e2m1 e5m2", 128, 256, 32, "shared"),
    ("e4m3 e2m1", 64, 256, 32, "shared"), ("e5m2 e4m3", 128, 256, 32, "tensor"),
    ("e4m3 e2m1", 128, 256, 32, "tensor"),
])  # fmt: skip
def test_two_ctas_read_as_stock_triton_reads_one(
    formats: str, n: int, k: int, block: int, place: str
) -> None:
    ours = of_two(formats, n, k, block, True, False, place)
    stock = of_two(formats, n, k, block, False, False, place)
    assert "cta_group::1" not in ours
    # Twice as many rows: bits 24 to 28 of the descriptor count 16.
    wanted = [(own + (8 << 24), a, b) for own, a, b in products_of(stock)]
    assert products_of(ours) == wanted
    # The CTA's A, and its half of B as one CTA reads a B of that many columns.
    half = of_two(formats, n // 2, k, block, False, False, place)
    assert [row[:2] for row in descriptors(ours)] == [row[:2] for row in descriptors(half)]
    # Each CTA's scales, of all of N.
    copies = instructions(ours, r"tcgen05\.cp\.cta_group::2\.32x128b\.warpx4")
    assert len(copies) == len(instructions(stock, r"tcgen05\.cp\.cta_group::1\.warpx4\.32x128b"))
    assert ours.index("tcgen05.cp") < ours.index("tcgen05.mma.")


@T38
@pytest.mark.parametrize("n", [128, 256])
def test_scales_that_a_kernel_of_two_ctas_copies(n: int) -> None:
    """Where the product would copy them, and stock Triton does for one CTA."""
    ours = of_two("e4m3", n, 256, 32, True, "copied")
    stock = of_two("e4m3", n, 256, 32, False, "copied")
    assert "cta_group::1" not in ours
    assert products_of(ours) == [(own + (8 << 24), a, b) for own, a, b in products_of(stock)]
    copies = instructions(ours, r"tcgen05\.cp\.cta_group::2\.32x128b\.warpx4")
    assert len(copies) == len(instructions(stock, r"tcgen05\.cp\.cta_group::1\.warpx4\.32x128b"))
    # B's before the product's own, of A's, in the order in which the unit works.
    assert len(re.findall(r"elect\.sync", ours)) >= 2


@T38
def test_two_ctas_with_scales_that_are_in_tensor_memory() -> None:
    text = of_two("e4m3", 256, 128, 32, True, True)
    assert len(instructions(text, r"tcgen05\.cp\.cta_group::2")) == 1  # A's
    assert len(instructions(text, r"tcgen05\.mma\.cta_group::2\.kind::mxf8f6f4")) == 4


@pytest.mark.parametrize(
    ("where", "dtype"),
    [(tlx.storage_kind.smem, tl.float8e4nv), (tlx.storage_kind.tmem, tl.float8e5)],
)
def test_what_the_kernel_converts(where: Any, dtype: Any) -> None:
    kernel = build(
        quantized, "cuda:100", x_ptr="*fp32", y_ptr=f"*{dtype}", c_ptr="*fp32",
        bytes_ptr=f"*{dtype}", scales_ptr="*u8", DTYPE=dtype, WHERE=where, STORED=False,
    )  # fmt: skip
    text = kernel.asm["ptx"]
    # 128 rows by 4 scales: one register for each warp's 32 lanes, four times.
    assert len(instructions(text, r"tcgen05\.st\.sync\.aligned\.32x32b\.x4\.b32")) == 2
    operands = instructions(text, r"block_scale\S* \[[^\]]*\], (\S)")
    assert set(operands) == {"[" if where is tlx.storage_kind.tmem else "%"}


@triton.jit
def wrong(p, WHAT: tl.constexpr):
    FP4: tl.constexpr = WHAT == "short rows" or WHAT == "fp4 in tensor memory"
    DTYPE: tl.constexpr = tl.uint8 if FP4 else tl.float8e4nv
    WHERE: tl.constexpr = (
        tlx.storage_kind.tmem if WHAT == "fp4 in tensor memory" else tlx.storage_kind.smem
    )
    a = tlx.local_alloc((128, 128), DTYPE, 1, WHERE)
    b = tlx.local_alloc((128, 128), tl.float8e4nv if WHAT == "short rows" else DTYPE, 1)
    N: tl.constexpr = 64 if WHAT == "acc" else 128
    acc = tlx.local_alloc((128, N), tl.float32, 1, tlx.storage_kind.tmem)
    s = tlx.local_alloc((128, 4), tl.uint8, 1, tlx.storage_kind.tmem)
    t = tlx.local_alloc((1, 1, 1, 2, 256), tl.uint8, 1)
    if WHAT == "blocks":
        short = tlx.local_alloc((128, 8), tl.uint8, 1, tlx.storage_kind.tmem)
        tlx.async_dot_scaled(a[0], b[0], acc[0], short[0], "e4m3", s[0], "e4m3")  # blocks
    if WHAT == "rows":
        few = tlx.local_alloc((1, 1, 1, 2, 128), tl.uint8, 1)
        tlx.async_dot_scaled(a[0], b[0], acc[0], s[0], "e4m3", few[0], "e4m3")  # rows
    if WHAT == "stored":
        half = tlx.local_alloc((64, 8), tl.uint8, 1, tlx.storage_kind.tmem)
        tlx.local_store(half[0], tl.full((64, 8), 127, tl.uint8))  # stored
        few = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
        part = tlx.subslice(b[0], 0, 64)
        tlx.async_dot_scaled(a[0], part, few[0], s[0], "e4m3", half[0], "e4m3", use_acc=False)
    if WHAT == "flat":
        flat = tlx.local_alloc((128, 2), tl.uint8, 1, tlx.storage_kind.tmem)
        tlx.async_dot_scaled(a[0], b[0], acc[0], flat[0], "e4m3", s[0], "e4m3")  # flat
    if WHAT == "dtype":
        wide = tlx.local_alloc((1, 1, 1, 2, 256), tl.int16, 1)
        tlx.async_dot_scaled(a[0], b[0], acc[0], wide[0], "e4m3", s[0], "e4m3")  # dtype
    if WHAT == "format":
        tlx.async_dot_scaled(a[0], b[0], acc[0], s[0], "e3m2", s[0], "e4m3")  # format
    if WHAT == "other":
        tlx.async_dot_scaled(a[0], b[0], acc[0], s[0], "e5m2", s[0], "e4m3")  # other
    if WHAT == "short rows":
        half = tlx.local_alloc((128, 32), tl.uint8, 1)[0]
        tlx.async_dot_scaled(half, b[0], acc[0], s[0], "e2m1", s[0], "e4m3")  # short rows
    if WHAT == "fp4 in tensor memory":
        tlx.async_dot_scaled(a[0], b[0], acc[0], s[0], "e2m1", s[0], "e2m1")  # fp4 in tensor memory
    if WHAT == "pair":
        half = tlx.subslice(b[0], 0, 64)
        tlx.async_dot_scaled(a[0], half, acc[0], s[0], "e4m3", s[0], "e4m3", two_ctas=True)  # pair
    if WHAT == "part":
        tlx.subslice(s[0], 2, 2)  # part
    if WHAT == "acc":
        tlx.async_dot_scaled(a[0], b[0], acc[0], s[0], "e4m3", s[0], "e4m3")  # acc
    if WHAT == "sum":
        tlx.async_dot_scaled(a[0], b[0], b[0], s[0], "e4m3", s[0], "e4m3")  # sum
    if WHAT == "target":
        tlx.async_dot_scaled(a[0], b[0], t[0], t[0], "e4m3", t[0], "e4m3")


@pytest.mark.parametrize(("what", "kind"), [
    ("blocks", errors.WrongShape),
    ("rows", errors.WrongShape),
    ("flat", errors.WrongShape),
    ("stored", errors.WrongShape),
    ("dtype", errors.WrongDtype),
    ("format", errors.WrongType),
    ("other", errors.WrongDtype),
    ("short rows", errors.WrongShape),
    ("part", errors.WrongShape),
    ("acc", errors.WrongShape),
    ("sum", errors.WrongType),
])  # fmt: skip
def test_refused(what: str, kind: type[errors.RemoraError]) -> None:
    error = refused(kind, wrong, "cuda:100", p="*fp32", WHAT=what)
    assert line_of(wrong, f"# {what}") in error.where
    assert error.hint


def test_refused_over_several_lines() -> None:
    for what, kind in (
        ("fp4 in tensor memory", errors.WrongType),
        ("pair", errors.UnsupportedByTarget),
    ):
        assert refused(kind, wrong, "cuda:100", p="*fp32", WHAT=what).hint


def test_a_message_says_how_many_scales_there_have_to_be() -> None:
    error = refused(errors.WrongShape, wrong, "cuda:100", p="*fp32", WHAT="blocks")
    assert "128 rows of 128 elements, of e4m3 and e4m3, are (128, 4) for blocks of 32" in error.what
