"""Allocations that share memory: who lies where, and what the kernel takes of it."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, line_of
from tlx.test_refused import refused

import remora.tlx as tlx
from remora import errors
from remora.tlx.storage import Tree, plan

KB = 1024


@pytest.mark.parametrize(("members", "tree", "blocks", "starts", "needed"), [
    # All from the first byte on.
    ([(8, 2), (4, 4), (2, 1)], None, [16], [[0, 8], [0, 4, 8, 12], [0]], 16),
    ([(4, 3), (8, 1)], None, [16], [[0, 4, 8], [0]], 12),
    # Index by index.
    ([(8, 2), (4, 2)], ("shared", 1, (0, 1)), [16], [[0, 8], [0, 8]], 16),
    # Beside each other: blocks of their own.
    ([(8, 2), (4, 2)], ("distinct", 1, (0, 1)), [16, 8], [[0, 8], [0, 4]], 24),
    # A part over b and c beside each other.
    ([(16, 2), (8, 2), (8, 2)], ("shared", 1, (0, ("distinct", 1, (1, 2)))), [32],
     [[0, 16], [0, 16], [8, 24]], 32),
    # Two of b for each a; what is beside them is smaller and stands after.
    ([(16, 2), (8, 4), (4, 2)],
     ("shared", 1, (0, ("distinct", 1, (2, ("shared", 2, (1,)))))), [32, 8],
     [[0, 16], [0, 8, 16, 24], [0, 4]], 40),
    # What the group leaves out lies under it.
    ([(8, 2), (8, 2)], ("shared", 1, (0,)), [16], [[0, 8], [0, 8]], 16),
])  # fmt: skip
def test_who_lies_where(
    members: list[tuple[int, int]], tree: Tree | None, blocks: list[int],
    starts: list[list[int]], needed: int,
) -> None:  # fmt: skip
    laid = plan(members, tree)
    assert list(laid.blocks) == blocks
    found = [
        [p.start(i, size) for i in range(num)]
        for p, (size, num) in zip(laid.placements, members, strict=True)
    ]
    assert found == starts
    assert laid.needed == needed


@triton.jit
def overlap(spec, group):
    spec.set_buffer_overlap(group)


@triton.jit
def shared(p, q, r, n, WHAT: tl.constexpr, SIZE: tl.constexpr = 0):
    i = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    j = tl.arange(0, 64)[:, None] * 32 + tl.arange(0, 32)[None, :]
    if SIZE > 0:
        spec = tlx.storage_alias_spec(storage=tlx.storage_kind.smem, buffer_size_bytes=SIZE)
    else:
        spec = tlx.storage_alias_spec()
    if WHAT == "another":
        a = tlx.local_alloc((64, 64), tlx.dtype_of(p), 2)
        b = tlx.local_alloc((64, 32), tlx.dtype_of(p), 4, reuse=a)
    else:
        a = tlx.local_alloc((64, 64), tlx.dtype_of(p), 2, tlx.storage_kind.smem, None, spec)
        b = tlx.local_alloc((64, 32), tlx.dtype_of(p), 4, reuse=spec)
    c = tlx.local_alloc((128,), tl.float32, 2, reuse=a if WHAT == "another" else spec)
    if WHAT == "distinct":
        beside: tl.constexpr = tlx.reuse_group_type.distinct
        inner = tlx.reuse_group(tlx.reuse_group(b, group_size=2), c, group_type=beside)
        spec.set_buffer_overlap(tlx.reuse_group(a, inner))  # distinct
    if WHAT == "beside":
        spec.set_buffer_overlap(tlx.reuse_group(a, b, c, group_type=tlx.reuse_group_type.distinct))
    if WHAT == "twice":
        spec.set_buffer_overlap(tlx.reuse_group(a, b, a, c))  # twice
    if WHAT == "two groups":
        spec.set_buffer_overlap(tlx.reuse_group(a, b, c))
        spec.set_buffer_overlap(tlx.reuse_group(a, b, c))  # two groups
    if WHAT == "another storage":
        other = tlx.local_alloc((64, 64), tlx.dtype_of(p), 2)
        spec.set_buffer_overlap(tlx.reuse_group(a, other))  # another storage
    if WHAT == "no group":
        spec.set_buffer_overlap(a)  # no group
    if WHAT == "a number":
        spec.set_buffer_overlap(tlx.reuse_group(a, 3))  # a number
    if WHAT == "a view":
        spec.set_buffer_overlap(tlx.reuse_group(a[0], b))  # a view
    if WHAT == "reuse of a view":
        tlx.local_alloc((64, 64), tlx.dtype_of(p), 1, reuse=a[0])  # reuse of a view
    if WHAT == "reuse of a pointer":
        tlx.local_alloc((64, 64), tlx.dtype_of(p), 1, reuse=p)  # reuse of a pointer
    if WHAT == "larger":
        tlx.local_alloc((64, 64), tlx.dtype_of(p), 4, reuse=tlx.local_alloc(  # larger
            (64, 64), tlx.dtype_of(p), 2))  # fmt: skip
    tlx.local_store(a[1], tl.load(p + i))
    tl.store(q + i, tlx.local_load(a[n]))
    tlx.local_store(b[n], tl.load(p + j))
    tl.store(q + j, tlx.local_load(b[3]))
    tlx.local_store(c[1], tl.load(r + tl.arange(0, 128)))
    tl.store(r + tl.arange(0, 128), tlx.local_load(c[n]))


SHARED = {"p": "*fp16", "q": "*fp16", "r": "*fp32", "n": "i32"}


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize(("what", "bytes"), [
    ("", 16 * KB), ("another", 16 * KB), ("distinct", 17 * KB), ("beside", 33 * KB),
])  # fmt: skip
def test_bytes_are_really_shared(what: str, bytes: int, target: str) -> None:
    assert build(shared, target, WHAT=what, **SHARED).metadata.shared == bytes


def test_a_size_that_is_enough() -> None:
    compiled = build(shared, "cuda:90", WHAT="distinct", SIZE=17 * KB, **SHARED)
    assert compiled.metadata.shared == 17 * KB


def test_a_storage_that_is_too_small_is_summed() -> None:
    error = refused(
        errors.StorageTooSmall, shared, "cuda:90", WHAT="distinct", SIZE=16 * KB, **SHARED
    )
    assert line_of(shared, "# distinct") in error.where
    for number in ("17,408 bytes, it has 16,384", "16,384 bytes  2x(64, 64) fp16", "1,024 bytes"):
        assert number in error.what


@pytest.mark.parametrize(("what", "kind"), [
    ("twice", errors.WrongType),
    ("two groups", errors.WrongType),
    ("another storage", errors.WrongType),
    ("no group", errors.WrongType),
    ("a number", errors.WrongType),
    ("a view", errors.WrongType),
    ("reuse of a view", errors.WrongType),
    ("reuse of a pointer", errors.WrongType),
    ("larger", errors.StorageTooSmall),
])  # fmt: skip
def test_refused(what: str, kind: type[errors.RemoraError]) -> None:
    error = refused(kind, shared, "cuda:90", WHAT=what, **SHARED)
    if what != "a number":  # it is no operation that refuses it: Triton names the line
        assert line_of(shared, f"# {what}") in error.where


@triton.jit
def product_then_result(p, q, r, n, D: tl.constexpr, STORAGE: tl.constexpr):
    """The result goes through the operands' memory, once they have been read."""
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    for _ in range(n):
        spec = tlx.storage_alias_spec()
        a = tlx.local_alloc((D, D), tlx.dtype_of(p), 1, reuse=spec)
        b = tlx.local_alloc((D, D), tlx.dtype_of(q), 1)
        c = tlx.local_alloc((D, D), tl.float32, 1, reuse=spec if STORAGE else a)
        tlx.local_store(a[0], tl.load(p + at))
        tlx.local_store(b[0], tl.load(q + at))
        acc = tlx.async_dot(a[0], b[0])
        acc = tlx.async_dot_wait(0, acc)
        tlx.local_store(c[0], acc)
        tl.store(r + at, tlx.local_load(tlx.local_trans(c[0])))


def test_each_name_has_a_layout_of_its_own() -> None:
    compiled = build(
        product_then_result, "cuda:90", p="*fp16", q="*fp16", r="*fp32", n="i32", D=64,
        STORAGE=True,
    )  # fmt: skip
    assert compiled.metadata.shared == 64 * 64 * (4 + 2)
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    kind: Any = errors.StorageTooSmall
    refused(
        kind, product_then_result, "cuda:90", p="*fp16", q="*fp16", r="*fp32", n="i32", D=64,
        STORAGE=False,
    )  # fmt: skip
