"""Layouts that the author names: the attributes they become, and uses that cannot read them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, line_of
from tlx.test_refused import refused

import remora.tlx as tlx
from remora import errors

OF_A_GLOBAL = tlx.swizzled_layout(2, 3, 3)


@triton.jit
def named(p, q, LAYOUT: tl.constexpr, M: tl.constexpr = 64, N: tl.constexpr = 64):
    buf = tlx.local_alloc((M, N), tlx.dtype_of(p), 2, layout=LAYOUT)  # named
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tlx.local_store(buf[1], tl.load(p + at))
    tl.store(q + at, tlx.local_load(buf[1]))


@triton.jit
def made_in_the_kernel(p, q, WHAT: tl.constexpr, M: tl.constexpr = 64, N: tl.constexpr = 64):
    if WHAT == "swizzled":
        chosen: tl.constexpr = tlx.swizzled_shared_layout_encoding.make_default(rank=2)
    if WHAT == "permuted":
        chosen: tl.constexpr = tlx.swizzled_shared_layout_encoding.make_default(2).make_permute(
            (1, 0)
        )
    if WHAT == "nv_mma":
        chosen: tl.constexpr = tlx.nv_mma_shared_layout_encoding.make_default(
            [M, N], tlx.dtype_of(p)
        )
    if WHAT == "global":
        chosen: tl.constexpr = OF_A_GLOBAL
    if WHAT == "swizzled_layout":
        chosen: tl.constexpr = tlx.swizzled_layout(3, 3, 3)
    if WHAT == "padded":
        chosen: tl.constexpr = tlx.padded_shared_layout_encoding.with_identity_for(
            [[N, 8]], [M, N], [1, 0]
        )
    buf = tlx.local_alloc((M, N), tlx.dtype_of(p), 2, layout=chosen)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tlx.local_store(buf[1], tl.load(p + at))
    tl.store(q + at, tlx.local_load(buf[1]))


FORMS = {
    "swizzled": "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>",
    "permuted": "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0, 1]}>",
    "nv_mma": "nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>",
    "global": "swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 4, order = [1, 0]}>",
    "swizzled_layout": "swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>",
    "padded": "padded_shared<[64:+8]",
}


@pytest.mark.parametrize("what", FORMS)
def test_made_in_the_kernel(what: str) -> None:
    text = build(made_in_the_kernel, "cuda:90", p="*fp16", q="*fp16", WHAT=what).asm["ttgir"]
    assert f"#ttg.{FORMS[what]}" in text


IDENTITY = [[0, 1 << i] for i in range(6)] + [[1 << i, 0] for i in range(6)]


@pytest.mark.parametrize(("layout", "form"), [
    (tlx.swizzled_shared_layout_encoding(4, 2, 4, [1, 0], [1, 1], [1, 1], [1, 1], [1, 1]),
     "swizzled_shared<{vec = 4, perPhase = 2, maxPhase = 4, order = [1, 0]}>"),
    (tlx.nv_mma_shared_layout_encoding(
        [64, 64], [0, 1], tl.float16, [1, 1], [1, 1], [1, 1], False, True),
     "nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>"),
    (tlx.nv_mma_shared_layout_encoding(
        [64, 64], [1, 0], tl.float16, [1, 1], [1, 1], [1, 1], False, False),
     "nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 16}>"),
    (tlx.shared_linear_layout_encoding(IDENTITY), "shared_linear<{offset = [[0, 1]"),
    (tlx.padded_shared_layout_encoding.with_bases([(64, 8)], IDENTITY, [64, 64]),
     "padded_shared<[64:+8]"),
])  # fmt: skip
def test_given_as_a_constant(layout: Any, form: str) -> None:
    text = build(named, "cuda:90", p="*fp16", q="*fp16", LAYOUT=layout).asm["ttgir"]
    assert f"#ttg.{form}" in text


def test_a_linear_layout_is_the_swizzle_that_it_is_made_from() -> None:
    """MLIR gives the same addresses for both: the shuffles and stores are the same."""
    atom = tlx.nv_mma_shared_layout_encoding.make_default([64, 64], tl.float16)
    codes = [
        re.sub(r"\.loc.*|//.*", "", build(
            named, "cuda:90", p="*fp16", q="*fp16", LAYOUT=one, M=m, N=n,
        ).asm["ptx"].partition(".visible")[2].partition(".section")[0])
        for m, n in ((64, 64), (32, 128), (128, 32))
        for one in (atom.tile_to_shape([m, n]), tlx.nv_mma_shared_layout_encoding.make_default(
            [m, n], tl.float16)) if n >= 64
    ]  # fmt: skip
    assert codes[0] == codes[1]
    assert codes[2] == codes[3]


def test_layouts_are_values() -> None:
    make = tlx.nv_mma_shared_layout_encoding.make_default
    assert make([64, 64], tl.float16) == make((64, 64), tl.float16)
    assert make([64, 64], tl.float16) != make([64, 32], tl.float16)
    assert hash(make([64, 64], tl.float16)) == hash(make((64, 64), tl.float16))
    assert make([64, 32], tl.float16).make_permute([1, 0]).order == (0, 1)
    assert tlx.tensor_memory_layout_encoding.make_default([128, 64]).blockN == 64
    assert tlx.tensor_memory_scales_layout_encoding.make_default().CTASplitM == 1


@pytest.mark.parametrize(("layout", "kind"), [
    (tlx.swizzled_shared_layout_encoding.make_default(1), errors.WrongShape),
    (tlx.nv_mma_shared_layout_encoding.make_default([64, 64], tl.float32), errors.WrongShape),
    (tlx.shared_linear_layout_encoding(IDENTITY[:-1]), errors.WrongShape),
    (tlx.shared_linear_layout_encoding([*IDENTITY[:-1], [0, 1]]), errors.WrongShape),
    (tlx.padded_shared_layout_encoding.with_identity_for([[64, 8]], [32, 64]), errors.WrongShape),
    (tlx.swizzled_layout(3, 1, 1), errors.WrongShape),
    (tlx.tensor_memory_layout_encoding.make_default([64, 64]), errors.UnsupportedByTarget),
    (tlx.layout(((32, 4), (8,)), ((8, 256), (1,))), errors.WrongType),
    (3, errors.WrongType),
])  # fmt: skip
def test_layouts_that_do_not_fit(layout: Any, kind: type[errors.RemoraError]) -> None:
    error = refused(kind, named, "cuda:90", p="*fp16", q="*fp16", LAYOUT=layout)
    assert line_of(named, "# named") in error.where


@triton.jit
def multiplied(p, r, LAYOUT: tl.constexpr, D: tl.constexpr = 64):
    a = tlx.local_alloc((D, D), tlx.dtype_of(p), 1, layout=LAYOUT)  # allocated
    b = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    tlx.local_store(a[0], tl.load(p + at))
    tlx.local_store(b[0], tl.load(p + at))
    acc = tlx.async_dot(a[0], tlx.local_trans(b[0]))  # multiplied
    tl.store(r + at, tlx.async_dot_wait(0, acc))


@pytest.mark.parametrize("layout", [
    tlx.nv_mma_shared_layout_encoding.make_default([64, 64], tl.float16),
    tlx.nv_mma_shared_layout_encoding.make_default([64, 64], tl.float16).make_permute((1, 0)),
    tlx.nv_mma_shared_layout_encoding.make_default([64, 16], tl.float16),
])  # fmt: skip
def test_what_the_matrix_unit_reads(layout: Any) -> None:
    assert "wgmma" in build(multiplied, "cuda:90", p="*fp16", r="*fp32", LAYOUT=layout).asm["ptx"]


def test_what_a_use_cannot_read_names_both() -> None:
    layout = tlx.swizzled_layout(3, 3, 3)
    error = refused(
        errors.ConflictingLayouts, multiplied, "cuda:90", p="*fp16", r="*fp32", LAYOUT=layout
    )
    assert line_of(multiplied, "# allocated") in error.where
    assert line_of(multiplied, "# multiplied") in error.where
    assert "swizzled_shared" in error.what
    assert "nvmma_shared" in error.what


# --- of tensors ----------------------------------------------------------------------------------


@triton.jit
def registers(p, q, WHAT: tl.constexpr, D: tl.constexpr = 64):
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    x = tl.load(p + at)
    wide: tl.constexpr = tlx.layout(shape=((32, 4), (2, 16)), stride=((2, 64 * 16), (1, 64)))
    if WHAT == "require":
        x = tlx.require_layout(x, wide, pin=True)
        x = tlx.release_layout(x * 2)
    if WHAT == "load":
        buf = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
        tlx.local_store(buf[0], x)
        x = tlx.local_load(buf[0], layout=wide)
    if WHAT == "zeros":
        x += tlx.zeros((D, D), tlx.dtype_of(p), wide)
    if WHAT == "mfma":
        mma = tlx.amd_mfma_layout(3, [32, 32, 8], warps_per_cta=[2, 2])
        x = tlx.require_layout(x, tlx.dot_operand_layout(0, mma, 4))
        y = tlx.require_layout(tl.sum(x, 1), tlx.slice_layout(mma, 1))
        x += y[:, None]
    if WHAT == "a shared layout":
        x = tlx.require_layout(x, tlx.swizzled_layout(3, 3, 3))  # a shared layout
    if WHAT == "too many threads":
        x = tlx.require_layout(  # too many threads
            x, tlx.layout(((32, 8), (16,)), ((2, 64 * 8), (64,)))
        )
    if WHAT == "same":
        a = tlx.local_alloc((D, D), tlx.dtype_of(p), 2)
        b = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
        tlx.assert_same_layout(a[0], b[0])
        tlx.assert_same_layout(x, x)
    if WHAT == "not the same":
        a = tlx.local_alloc((D, D), tlx.dtype_of(p), 2)
        tlx.assert_same_layout(a[0], tlx.local_trans(a[1]))  # not the same
    tl.store(q + at, x)


@pytest.mark.parametrize(("what", "target"), [
    ("require", "cuda:90"), ("load", "cuda:90"), ("zeros", "cuda:90"), ("same", "cuda:90"),
    ("mfma", "hip:gfx942"),
])  # fmt: skip
def test_layouts_of_tensors(what: str, target: str) -> None:
    text = build(registers, target, p="*fp16", q="*fp16", WHAT=what).asm["ttgir"]
    assert "remora:" not in text


@pytest.mark.parametrize(("what", "kind"), [
    ("a shared layout", errors.WrongType),
    ("too many threads", errors.WrongShape),
    ("not the same", errors.ConflictingLayouts),
])  # fmt: skip
def test_layouts_of_tensors_that_do_not_fit(what: str, kind: type[errors.RemoraError]) -> None:
    error = refused(kind, registers, "cuda:90", p="*fp16", q="*fp16", WHAT=what)
    assert line_of(registers, f"# {what}") in error.where


def test_amd_s_layouts_are_amd_s() -> None:
    refused(errors.UnsupportedByTarget, registers, "cuda:90", p="*fp16", q="*fp16", WHAT="mfma")
