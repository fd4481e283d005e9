"""TLX's words for CDNA 3 and 4: what they become, down to the instructions."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, line_of
from tlx.test_refused import refused
from tlx.view_cases import parts_at_run_time

import remora.tlx as tlx
from remora import errors
from remora.host import features
from remora.tlx.lower.layouts import SwizzledShared
from remora.tlx.lower.padding import padded, reads

if not features().copies_to_lds:
    pytest.skip("test_cdna_before.py has what Triton 3.7 has of this", allow_module_level=True)

BOTH = ("gfx942", "gfx950")


def code(compiled: Any, pattern: str) -> list[str]:
    """What a pattern matches in the instructions, in order."""
    text = compiled.asm["amdgcn"].partition(".end_amdhsa_kernel")[0]
    return [" ".join(m.split()) for m in re.findall(rf"^\s+({pattern}.*?)$", text, re.MULTILINE)]


def counts(compiled: Any) -> list[int]:
    """The counts of the waits for global memory, in order."""
    text = " ".join(code(compiled, r"s_waitcnt [^\n]*vmcnt"))
    return [int(n) for n in re.findall(r"vmcnt\((\d+)\)", text)]


# --- copies -------------------------------------------------------------------------------------


@triton.jit
def row(p, q, n, B: tl.constexpr, OTHER: tl.constexpr = None, BUFFER_OP: tl.constexpr = False):
    at = tl.program_id(0) * B + tl.arange(0, B)
    buffer = tlx.local_alloc((B,), tlx.dtype_of(p), 1)[0]
    if BUFFER_OP:
        tlx.buffer_load_to_local(buffer, p, at, mask=at < n, other=OTHER)  # to local
    else:
        tlx.async_load(p + at, buffer, mask=at < n, other=OTHER)
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    tl.store(q + at, tlx.local_load(buffer))


@pytest.mark.parametrize(("arch", "dtype", "B", "load"), [
    ("gfx942", "fp32", 256, "global_load_lds_dword "),
    ("gfx942", "fp16", 512, "global_load_lds_dword "),
    ("gfx942", "fp32", 1024, None),
    ("gfx950", "fp32", 256, "global_load_lds_dword "),
    ("gfx950", "fp32", 512, "global_load_lds_dword "),
    ("gfx950", "fp32", 1024, "global_load_lds_dwordx4 "),
    ("gfx950", "fp16", 2048, "global_load_lds_dwordx4 "),
    ("gfx950", "i64", 512, "global_load_lds_dwordx4 "),
    ("gfx950", "i64", 256, None),
    ("gfx950", "i8", 256, None),
])  # fmt: skip
def test_copies_go_straight_to_lds_where_the_width_is_there(
    arch: str, dtype: str, B: int, load: str | None
) -> None:
    compiled = build(row, f"hip:{arch}", p=f"*{dtype}", q=f"*{dtype}", n="i32:16", B=B)
    loads = code(compiled, r"global_load_lds\w+ ")
    if load is None:
        assert not loads
        assert code(compiled, "ds_write")
    else:
        assert loads
        assert all(found.startswith(load) for found in loads)


@pytest.mark.parametrize("arch", BOTH)
@pytest.mark.parametrize("other", [None, 2.5])
def test_a_masked_copy_writes_other_or_zero(arch: str, other: float | None) -> None:
    """Where the mask is false no load runs: a store of its own writes what belongs there."""
    given = {"p": "*fp32", "q": "*fp32", "n": "i32", "B": 256, "OTHER": other}
    compiled = build(row, f"hip:{arch}", **given)
    assert code(compiled, "global_load_lds_dword ")
    assert len(code(compiled, "ds_write_b32")) == 1
    assert re.search(r"async_copy_global_to_local .* mask %\S+ other %", compiled.asm["ttgir"])
    value = "0x40200000" if other else "0"
    assert re.search(rf"v_mov_b32_e32 v\d+, {value}$", compiled.asm["amdgcn"], re.MULTILINE)


@pytest.mark.parametrize("arch", BOTH)
def test_a_masked_buffer_load_reads_out_of_bounds_and_so_writes_zeros(arch: str) -> None:
    given = {"p": "*fp32", "q": "*fp32", "n": "i32", "B": 256, "BUFFER_OP": True}
    compiled = build(row, f"hip:{arch}", **given)
    assert [load[-3:] for load in code(compiled, "buffer_load_dword ")] == ["lds"]
    assert not code(compiled, "ds_write")
    assert code(compiled, "v_cndmask_b32")
    assert counts(compiled) == [0]
    with_other = build(row, f"hip:{arch}", **given, OTHER=2.5)
    assert len(code(with_other, "ds_write_b32")) == 1


def test_a_width_that_the_target_lacks_is_refused() -> None:
    for arch, dtype, size in (("gfx950", "i8", 256), ("gfx942", "fp32", 1024)):
        given = {"p": f"*{dtype}", "q": f"*{dtype}", "n": "i32:16", "B": size, "BUFFER_OP": True}
        error = refused(errors.UnsupportedByTarget, row, f"hip:{arch}", **given)
        assert line_of(row, "# to local") in error.where
        assert f"{arch} copies 4{' or 16' * (arch == 'gfx950')} straight" in error.what


@triton.jit
def again(p, q, n, B: tl.constexpr, RELAXED: tl.constexpr = False):
    at = tl.arange(0, B)
    buffer = tlx.local_alloc((B,), tlx.dtype_of(p), 1)[0]
    for i in range(n):
        tlx.async_load(p + i * B + at, buffer)
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(0)
        tl.store(q + i * B + at, tlx.local_load(buffer, relaxed=RELAXED))


@triton.jit
def ring(p, q, n, B: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, B)
    buffers = tlx.local_alloc((B,), tlx.dtype_of(p), 4)
    for i in tl.static_range(3):
        tlx.async_load(p + i * B + at, buffers[i])
        tlx.async_load_commit_group()
    for i in tl.range(n, num_stages=STAGES):
        tlx.async_load(p + (i + 3) * B + at, buffers[(i + 3) % 4])
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(3)
        x = tlx.local_load(buffers[i % 4])
        tl.store(q + i * B + at, x)


@pytest.mark.parametrize("stages", [None, 0, 1, 3])
@pytest.mark.parametrize("program", [1, 2])
def test_the_counts_of_waits_reach_the_machine(stages: int | None, program: int) -> None:
    """One load to LDS a copy, and one store an iteration between them."""
    given = {"p": "*fp32", "q": "*fp32", "n": "i32", "B": 256, "STAGES": stages}
    compiled = build(ring, "hip:gfx950", options={"num_stages": program}, **given)
    assert re.findall(r"ttg.async_wait \{num = (\d+)", compiled.asm["ttgir"]) == ["3", "0"]
    assert counts(compiled)[-1] == 0  # the copies that the loop leaves in flight
    assert max(counts(compiled)) >= 3


def test_what_copies_leave_in_flight_keeps_the_memory() -> None:
    compiled = build(ring, "hip:gfx950", p="*fp32", q="*fp32", n="i32", B=256, STAGES=0)
    text = compiled.asm["ttgir"]
    assert text.rindex("ttg.local_dealloc") > text.rindex("ttg.async_wait {num = 0")


def test_a_relaxed_load_says_so_to_the_compiler() -> None:
    given = {"p": "*fp32", "q": "*fp32", "n": "i32", "B": 256}
    strict, relaxed = (
        build(again, "hip:gfx950", **given, RELAXED=relaxed) for relaxed in (False, True)
    )
    assert "ttg.amdg.syncedViaAsyncWait = true" in relaxed.asm["ttgir"]
    assert "syncedViaAsyncWait" not in strict.asm["ttgir"]
    assert len(code(relaxed, "s_barrier")) <= len(code(strict, "s_barrier"))


# --- products, their operands' layouts, and stages ------------------------------------------------


@triton.jit
def product(
    p, q, r, K, stride, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    STAGED: tl.constexpr = False, WHAT: tl.constexpr = "",
):  # fmt: skip
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    at_a = p + rows[:, None] * stride + depth[None, :]
    at_b = q + depth[:, None] * stride + columns[None, :]
    a_buffers = tlx.local_alloc((M, D), tlx.dtype_of(p), 3)
    b_buffers = tlx.local_alloc((D, N), tlx.dtype_of(q), 3)
    for i in tl.static_range(3):
        tlx.async_load(at_a + i * D, a_buffers[i])
        tlx.async_load(at_b + i * D * stride, b_buffers[i])
        tlx.async_load_commit_group()
    tlx.async_load_wait_group(1)
    a, b = tlx.local_load(a_buffers[0]), tlx.local_load(b_buffers[0])
    acc = tl.zeros((M, N), tl.float32)
    for i in tl.range(K):  # the loop
        if STAGED:
            with tlx.warp_pipeline_stage("multiply", priority=0):  # first stage
                acc = tl.dot(a, b, acc)
                if WHAT == "wait" or WHAT == "wait last":
                    tlx.async_load_wait_group(0)  # wait
                if WHAT == "wait":
                    acc = tl.dot(a, b, acc)
                if WHAT == "loop":
                    for j in range(K):  # loop
                        acc += j
            if WHAT != "wait first" and WHAT != "wait last":
                tlx.async_load_wait_group(0)
            if WHAT == "branch":
                if i > 3:
                    with tlx.warp_pipeline_stage("move"):  # branch
                        acc += 1
            if WHAT != "one" and WHAT != "branch":
                with tlx.warp_pipeline_stage("move", priority=1):  # second stage
                    if WHAT == "wait first" or WHAT == "two waits":
                        tlx.async_load_wait_group(0)
                    tlx.async_load(at_a, a_buffers[i % 3])
                    tlx.async_load(at_b, b_buffers[i % 3])
                    tlx.async_load_commit_group()
                    a = tlx.local_load(a_buffers[(i + 1) % 3])
                    b = tlx.local_load(b_buffers[(i + 1) % 3])
        else:
            acc = tl.dot(a, b, acc)
            tlx.async_load_wait_group(0)
            tlx.async_load(at_a, a_buffers[i % 3])
            tlx.async_load(at_b, b_buffers[i % 3])
            tlx.async_load_commit_group()
            a = tlx.local_load(a_buffers[(i + 1) % 3])
            b = tlx.local_load(b_buffers[(i + 1) % 3])
    tlx.async_load_wait_group(0)
    tl.store(r + rows[:, None] * N + columns[None, :], acc)


PRODUCT = {
    "p": "*fp16", "q": "*fp16", "r": "*fp32", "K": "i32", "stride": "i32:16",
    "M": 128, "N": 128, "D": 64,
}  # fmt: skip


def test_operands_lie_padded_and_are_carried_as_operands() -> None:
    compiled = build(product, "hip:gfx950", options={"num_warps": 8}, **PRODUCT)
    text = compiled.asm["ttgir"]
    assert len(re.findall(r"^#shared\d* = #ttg.padded_shared", text, re.MULTILINE)) == 2
    loop = re.search(r"scf\.for .*?\n    \}", text, re.DOTALL)
    assert loop is not None
    assert "convert_layout" not in loop[0]
    assert loop[0].count("ttg.local_load") == 2
    # No lane asks another one for its address, as a swizzle would make it.
    assert not code(compiled, "ds_bpermute")
    assert not code(compiled, "ds_write")
    assert code(compiled, "ds_read_b128")
    assert code(compiled, "ds_read_b64_tr_b16")


def test_operands_that_would_not_fit_with_padding_are_swizzled() -> None:
    given = {**PRODUCT, "M": 256, "N": 128}  # 3 x 48 KiB, of 160: 9 KiB of padding are too many
    assert (
        "padded_shared"
        in build(product, "hip:gfx950", options={"num_warps": 8}, **given).asm["ttgir"]
    )
    given = {**PRODUCT, "M": 256, "N": 256, "D": 32, "p": "*fp16"}
    assert (
        "padded_shared"
        in build(product, "hip:gfx950", options={"num_warps": 8}, **given).asm["ttgir"]
    )
    given = {**PRODUCT, "M": 256, "N": 256, "D": 64}
    error = refused(
        errors.OutOfSharedMemory, product, "hip:gfx950", options={"num_warps": 8}, **given
    )
    assert "98,304 bytes  3x256x64xf16  a_buffers" in error.what
    assert "196,608 bytes  in all" in error.what


@pytest.mark.parametrize(("shape", "k_contiguous"), [
    ((128, 32), True), ((128, 64), True), ((64, 64), True), ((256, 128), True),
    ((32, 256), False), ((64, 128), False), ((64, 64), False), ((16, 64), False),
])  # fmt: skip
def test_padded_operands_are_without_bank_conflicts(
    shape: tuple[int, int], k_contiguous: bool
) -> None:
    layout = padded(shape, 16, (1, 0), k_contiguous)
    assert layout is not None
    assert reads(layout, shape, 16, (1, 0), k_contiguous) == 0
    plain = SwizzledShared.plain((1, 0))
    assert reads(plain, shape, 16, (1, 0), k_contiguous) > 0
    if k_contiguous:
        swizzled = SwizzledShared.for_operand(shape, 16, 8, (1, 0), 64)
        assert reads(swizzled, shape, 16, (1, 0), k_contiguous) == 0
    # Each element has a place of its own.
    assert len(set(layout.offsets)) == len(layout.offsets) == (shape[0] * shape[1]).bit_length() - 1


@pytest.mark.parametrize("stages", [1, 2])
def test_stages_of_a_warp_pipeline(stages: int) -> None:
    compiled = build(
        product, "hip:gfx950", options={"num_warps": 8, "num_stages": stages},
        **PRODUCT, STAGED=True,
    )  # fmt: skip
    priorities = code(compiled, "s_setprio")
    assert {"s_setprio 0", "s_setprio 1"} == set(priorities)
    assert re.findall(r"ttg.async_wait \{num = (\d+)", compiled.asm["ttgir"]) == ["1", "0", "0"]
    # Two barriers of one group alone put the groups a stage apart and together again.
    plain = build(product, "hip:gfx950", options={"num_warps": 8, "num_stages": stages}, **PRODUCT)
    assert len(code(compiled, "s_barrier")) > len(code(plain, "s_barrier"))
    assert not code(plain, "s_setprio")


@pytest.mark.parametrize(("what", "line"), [
    ("one", "# the loop"), ("wait", "# wait"), ("loop", "# loop"), ("branch", "# branch"),
    ("two waits", "# second stage"),
])  # fmt: skip
def test_stages_that_cannot_be_kept_apart(what: str, line: str) -> None:
    error = refused(errors.LanguageError, product, "hip:gfx950", **PRODUCT, STAGED=True, WHAT=what)
    assert line_of(product, line) in error.where


@pytest.mark.parametrize("what", ["wait first", "wait last"])
def test_a_wait_at_an_end_of_a_stage_stands_between_the_stages(what: str) -> None:
    compiled = build(product, "hip:gfx950", **PRODUCT, STAGED=True, WHAT=what)
    assert re.findall(r"ttg.async_wait \{num = (\d+)", compiled.asm["ttgir"]) == ["1", "0", "0"]
    assert len(code(compiled, "s_setprio")) >= 2


@triton.jit
def outside(p, P: tl.constexpr):
    with tlx.warp_pipeline_stage("alone", priority=P):  # stage
        tl.store(p, 1.0)


def test_a_stage_outside_of_loops_and_of_amd() -> None:
    for kind, target, priority in (
        (errors.LanguageError, "hip:gfx950", 1),
        (errors.WrongShape, "hip:gfx950", 4),
        (errors.UnsupportedByTarget, "cuda:90", 1),
    ):
        error = refused(kind, outside, target, p="*fp32", P=priority)
        assert line_of(outside, "# stage") in error.where


# --- buffer operations and hints ------------------------------------------------------------------


@triton.jit
def through_descriptors(p, q, r, n, B: tl.constexpr, WHAT: tl.constexpr = ""):
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tlx.buffer_load(p, at, mask=at < n, other=1.0, cache=".cg")
    tlx.buffer_store(x, q, at, mask=at < n)
    old = tlx.buffer_atomic_add(r, at, x, mask=at < n, sem="relaxed", contiguity=2)  # add
    tlx.buffer_store(old, q, at + n, mask=at < n)
    if WHAT == "tensor base":
        tlx.buffer_load(p + at, at)  # tensor base
    if WHAT == "wide offsets":
        tlx.buffer_load(p, at.to(tl.int64))  # wide offsets
    if WHAT == "other without mask":
        tlx.buffer_load(p, at, other=0.0)  # other without mask
    if WHAT == "mask of a wrong shape":
        tlx.buffer_store(x, q, at, mask=tl.arange(0, 8) < n)  # mask of a wrong shape
    if WHAT == "contiguity":
        tlx.buffer_load(p, at, contiguity=3)  # contiguity
    if WHAT == "cache":
        tlx.buffer_store(x, q, at, cache=".ca")  # cache
    if WHAT == "scope":
        tlx.buffer_atomic_add(r, at, x, scope="warp", contiguity=2)  # scope
    if WHAT == "alone":
        tlx.buffer_atomic_add(r, at, x)  # alone


@pytest.mark.parametrize("arch", BOTH)
def test_buffer_operations(arch: str) -> None:
    given = {"p": "*fp32", "q": "*fp32", "r": "*fp32", "n": "i32:16", "B": 1024}
    compiled = build(through_descriptors, f"hip:{arch}", **given)
    assert len(code(compiled, "buffer_load_dwordx4")) == 1
    assert len(code(compiled, "buffer_store_dwordx4")) == 2
    assert len(code(compiled, "buffer_atomic_add_f32")) == 4
    assert not code(compiled, "global_")
    halves = build(through_descriptors, f"hip:{arch}", **{**given, **dict.fromkeys("pqr", "*fp16")})
    assert code(halves, "buffer_atomic_pk_add_f16")


@triton.jit
def from_computed_bases(p, q, r, stride, n, B: tl.constexpr):
    at = tl.arange(0, B)
    buffer = tlx.local_alloc((B,), tl.float32, 1)[0]
    first = p + tl.program_id(0).to(tl.int64) * stride
    total = tlx.buffer_load(p, at)
    for step in range(n):
        total += tlx.buffer_load(first, at)
        total += tlx.buffer_load(p + step * stride, at)
        tlx.buffer_load_to_local(buffer, first, at)
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(0)
        total += tlx.local_load(buffer)
        first += stride
    tlx.buffer_store(total, q + tl.program_id(0) * stride, at)
    tlx.buffer_atomic_add(r + stride, at, total)


@pytest.mark.parametrize("below_2_gib", [False, True])
def test_bases_of_buffer_operations_are_computed(below_2_gib: bool) -> None:
    given = {"p": "*fp32", "q": "*fp32", "r": "*fp32", "stride": "i32:16", "n": "i32", "B": 1024}
    compiled = build(from_computed_bases, "hip:gfx950", below_2_gib=below_2_gib, **given)
    loads = code(compiled, "buffer_load_dword")
    assert {load.split()[0] for load in loads} == {"buffer_load_dwordx4"}  # in the loop, too
    assert {load.split()[-1] for load in loads} == {"lds", "offen"}
    assert len(code(compiled, "buffer_store_dwordx4")) == 1
    assert len(code(compiled, "buffer_atomic_add_f32")) == 4
    # A base is uniform as it is: saying so takes no instruction.
    assert len(code(compiled, "v_readfirstlane_b32")) <= 1
    assert not code(compiled, "global_")


@triton.jit
def two_at_once(x, p, q):
    at_once: tl.constexpr = tlx.layout(((64, 4), (4,)), ((4, 256), (1,)))
    apart: tl.constexpr = tlx.layout(((64, 4), (4,)), ((1, 256), (64,)))
    at = tlx.require_layout(tl.arange(0, 1024), at_once)
    old = tlx.buffer_atomic_add(p, at, tl.load(x + at), contiguity=2)
    tl.store(tlx.require_layout(q + at, apart), tlx.require_layout(old, apart))


def test_an_atomic_stays_in_its_layout_whatever_wants_its_result() -> None:
    """16 bits are added in pairs, of pointers of which nothing is known."""
    compiled = build(two_at_once, "hip:gfx950", **dict.fromkeys("xpq", "*bf16:1"))
    assert len(code(compiled, "buffer_atomic_pk_add_bf16")) == 2


@pytest.mark.parametrize(("what", "kind"), [
    ("tensor base", errors.WrongType), ("wide offsets", errors.WrongDtype),
    ("other without mask", errors.WrongType), ("mask of a wrong shape", errors.WrongShape),
    ("contiguity", errors.WrongShape), ("cache", errors.WrongType), ("scope", errors.WrongType),
    ("alone", errors.WrongShape),
])  # fmt: skip
def test_buffer_operations_that_are_refused(what: str, kind: Any) -> None:
    given = {"p": "*fp16", "q": "*fp16", "r": "*fp16", "n": "i32:16", "B": 1024, "WHAT": what}
    error = refused(kind, through_descriptors, "hip:gfx950", **given)
    assert line_of(through_descriptors, f"# {what}") in error.where


def test_what_another_target_lacks() -> None:
    given = {"p": "*bf16", "q": "*bf16", "r": "*bf16", "n": "i32:16", "B": 1024}
    error = refused(errors.UnsupportedByTarget, through_descriptors, "hip:gfx942", **given)
    assert "adds bf16" in error.what
    assert "tl.atomic_add" in error.hint
    assert build(through_descriptors, "hip:gfx950", **given).asm["hsaco"]
    error = refused(errors.UnsupportedByTarget, through_descriptors, "cuda:90", **given)
    assert "tl.load(base + offsets" in error.hint


def test_16_bits_are_added_in_pairs_under_one_mask() -> None:
    given = {"p": "*fp16", "q": "*fp16", "r": "*fp16", "n": "i32", "B": 1024}
    error = refused(errors.WrongShape, through_descriptors, "hip:gfx950", **given)
    assert line_of(through_descriptors, "# add") in error.where


@triton.jit
def hints(p, places, q, B: tl.constexpr, WHAT: tl.constexpr = ""):
    at = tlx.rematerialized_range(0, B, identity=0)
    x = tl.load(p + at)
    tlx.amd_sched_barrier(0x7)
    tlx.amd_sched_group_barrier(0x100, 2, 0)
    tlx.amd_iglp_opt(1)
    tlx.amd_setprio(2)
    x = tlx.amd_register_resident(x, "agpr", 4)
    x = tlx.amd_register_class_anchor(x, "vgpr")
    base = tlx.assume_uniform(tl.load(places).to(tl.pointer_type(tl.float32)))
    tlx.buffer_store(tlx.buffer_load(base, at) + x, q, at)
    if WHAT == "mask":
        tlx.amd_sched_barrier(0x1000)  # mask
    if WHAT == "variant":
        tlx.amd_iglp_opt(4)  # variant
    if WHAT == "priority":
        tlx.amd_setprio(4)  # priority
    if WHAT == "class":
        tlx.amd_register_resident(x, "sgpr")  # class
    if WHAT == "group":
        tlx.amd_register_resident(x, "agpr", 3)  # group
    if WHAT == "a tensor":
        tlx.assume_uniform(x)  # a tensor
    if WHAT == "narrow":
        tlx.assume_uniform(tl.load(places).to(tl.int8))  # narrow
    if WHAT == "empty":
        tlx.rematerialized_range(8, 8, 0)  # empty
    if WHAT == "at run time":
        tlx.amd_sched_barrier(tl.load(places).to(tl.int32))  # at run time


@pytest.mark.parametrize("arch", BOTH)
def test_hints(arch: str) -> None:
    compiled = build(hints, f"hip:{arch}", p="*fp32", places="*i64", q="*fp32", B=2048)
    text = compiled.asm["llir"]
    for intrinsic in (
        r"sched\.barrier\(i32 7\)", r"sched\.group\.barrier\(i32 256, i32 2, i32 0\)",
        r"iglp\.opt\(i32 1\)", r"s\.setprio\(i16 2\)", r"readfirstlane",
    ):  # fmt: skip
        assert re.search(intrinsic, text), intrinsic
    assert re.search(r'asm "", "=a,0"', text)
    assert re.search(r'asm "", "=v,0"', text)
    assert code(compiled, "s_setprio 2")
    assert int(re.findall(r"\.agpr_count:\s+(\d+)", compiled.asm["amdgcn"])[0]) > 0
    # The loaded pointer is a scalar: no loop over its values.
    assert code(compiled, "v_readfirstlane_b32")
    assert not code(compiled, "s_cbranch_execnz")


@pytest.mark.parametrize(("what", "kind"), [
    ("mask", errors.WrongShape), ("variant", errors.WrongShape), ("priority", errors.WrongShape),
    ("class", errors.WrongType), ("group", errors.WrongShape), ("a tensor", errors.WrongType),
    ("narrow", errors.WrongDtype), ("empty", errors.WrongShape),
    ("at run time", errors.NotConstant),
])  # fmt: skip
def test_hints_that_are_refused(what: str, kind: Any) -> None:
    given = {"p": "*fp32", "places": "*i64", "q": "*fp32", "B": 2048, "WHAT": what}
    error = refused(kind, hints, "hip:gfx950", **given)
    assert line_of(hints, f"# {what}") in error.where


@pytest.mark.parametrize("arch", BOTH)
@pytest.mark.parametrize("copy", [False, True])
def test_parts_at_places_that_are_known_at_run_time(arch: str, copy: bool) -> None:
    """A bit of the place after the other chooses a half: no branches are left of it."""
    given = {"p": "*fp16", "q": "*fp16", "r": "*fp32", "steps": "i32"}
    compiled = build(parts_at_run_time, f"hip:{arch}", **given, K=128, STEP=32, N=64, COPY=copy)
    text = compiled.asm["ttgir"]
    halves = re.findall(r"= scf\.if %\S+ -> \(!ttg\.memdesc<(\d+x\d+)xf16", text)
    assert sorted(set(halves)) == ["32x64", "64x32", "64x64"]
    assert len(halves) == 6  # 128 to 32, of three parts
    # Of the loops' branches: each has a head, an end and what is left of an unrolled one.
    assert len(code(compiled, "s_cbranch")) <= 12
    assert code(compiled, "v_mfma")
    # What was stored is there before it is read.
    body = "\n".join(code(compiled, r"(?:ds_|s_barrier|buffer_load|global_load_lds)"))
    stores = [m.end() for m in re.finditer(r"ds_write|ds_store|lds", body)]
    reads_ = [m.start() for m in re.finditer(r"ds_read|ds_load", body)]
    assert "s_barrier" in body[stores[-1] : reads_[-1]]
    assert re.search(r"vgpr_spill_count:\s+0\b", compiled.asm["amdgcn"])


# --- explicit layouts, slices, predicates ---------------------------------------------------------


@triton.jit
def fragments(
    p, q, r, VERSION: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
    CLASS: tl.constexpr = None, WHAT: tl.constexpr = "",
):  # fmt: skip
    mma: tl.constexpr = tlx.amd_mfma_layout(VERSION, [16, 16, K], True, [1, 4])
    other: tl.constexpr = tlx.amd_mfma_layout(VERSION, [16, 16, K], True, [4, 1])
    as_a: tl.constexpr = tlx.dot_operand_layout(0, mma, k_width=WIDTH)
    as_b: tl.constexpr = tlx.dot_operand_layout(1, mma, k_width=WIDTH)
    rows, depth, columns = tl.arange(0, 16), tl.arange(0, 64), tl.arange(0, 128)
    a = tlx.require_layout(tl.load(p + rows[:, None] * 64 + depth[None, :]), as_a)
    b = tlx.require_layout(tl.load(q + depth[:, None] * 128 + columns[None, :]), as_b)
    b = tlx.amd_register_resident(b, "agpr")
    if WHAT == "another layout":
        acc = tlx.zeros((16, 128), tl.float32, layout=other)
        acc = tlx.amd_scheduled_mfma(a, b, acc, "persistent")  # another layout
    if WHAT == "the wrong operand":
        c = tlx.require_layout(tl.load(p + rows[:, None] * 64 + depth[None, :]), as_b)
        d = tl.load(q + depth[:, None] + rows[None, :])
        tl.store(r, tl.sum(tl.dot(c, d)))  # the wrong operand
    if WHAT == "shapes":
        acc = tlx.amd_scheduled_mfma(b, a, tl.zeros((16, 128), tl.float32), "transient")  # shapes
    if WHAT == "role":
        acc = tlx.amd_scheduled_mfma(a, b, tl.zeros((16, 128), tl.float32), "mine")  # role
    if WHAT == "sum":
        acc = tlx.amd_scheduled_mfma(a, b, tl.zeros((16, 128), tl.float16), "transient")  # sum
    if WHAT == "cut":
        c = tlx.extract_slice(a, [8, 32], [0, 0])  # cut
        tl.store(r, tl.sum(c.to(tl.float32)))
    if WHAT == "beyond":
        a = tlx.extract_slice(a, [16, 32], [0, 48])  # beyond
    left = tlx.zeros((16, 64), tl.float32, layout=mma)
    right = tlx.zeros((16, 64), tl.float32, layout=mma)
    for band in tl.static_range(2):
        a_band = tlx.extract_slice(a, [16, 32], [0, band * 32])
        b_left = tlx.extract_slice(b, [32, 64], [band * 32, 0])
        b_right = tlx.extract_slice(b, [32, 64], [band * 32, 64])
        left = tlx.amd_scheduled_mfma(  # product
            a_band, b_left, left, "transient", resident_operand=1, initialize=band == 0,
            accumulator_register_class=CLASS,
        )  # fmt: skip
        right = tlx.amd_scheduled_mfma(
            a_band, b_right, right, "transient", initialize=band == 0,
            accumulator_register_class=CLASS,
        )  # fmt: skip
    left, right, b = tlx.amd_mfma_commit((left, right), b)
    half = tl.arange(0, 64)
    at = r + rows[:, None] * 128 + half[None, :]
    tl.store(at, tlx.amd_mfma_commit(left))
    tl.store(at + 64, right)


BF16 = {"p": "*bf16", "q": "*bf16", "r": "*fp32"}


@pytest.mark.parametrize(("arch", "given", "instruction", "count"), [
    ("gfx942", {"VERSION": 3, "K": 16, "WIDTH": 4}, "v_mfma_f32_16x16x16_bf16", 8),
    ("gfx950", {"VERSION": 4, "K": 32, "WIDTH": 8}, "v_mfma_f32_16x16x32_bf16", 4),
    ("gfx950", {"VERSION": 4, "K": 32, "WIDTH": 4}, "v_mfma_f32_16x16x32_bf16", 4),
    ("gfx950", {"VERSION": 4, "K": 16, "WIDTH": 4}, "v_mfma_f32_16x16x16_bf16", 8),
])  # fmt: skip
def test_products_in_the_layouts_that_are_named(
    arch: str, given: Any, instruction: str, count: int
) -> None:
    compiled = build(fragments, f"hip:{arch}", **BF16, **given)
    assert len(code(compiled, instruction)) == len(code(compiled, "v_mfma")) == count
    text = compiled.asm["ttgir"]
    version, depth = given["VERSION"], given["K"]
    assert set(re.findall(r"#ttg.amd_mfma<\{(.*?)\}>", text)) >= {
        f"version = {version}, warpsPerCTA = [1, 4], instrShape = [16, 16, {depth}], "
        "isTransposed = true"
    }
    # Slices stay in their registers.
    assert text.count("amdg.extract_slice") == 6
    assert compiled.metadata.shared <= (16 * 64 + 64 * 128) * 2


def test_the_class_of_an_accumulator() -> None:
    given = {**BF16, "VERSION": 4, "K": 32, "WIDTH": 8}
    compiled = build(fragments, "hip:gfx950", **given, CLASS="agpr")
    if features().register_classes:
        assert compiled.asm["ttgir"].count('amdg.cd_regclass = "a"') == 4
        products = code(compiled, "v_mfma")
        assert products
        assert all(re.match(r"v_mfma\S+ a\[", found) for found in products)
    else:
        assert re.search(r'asm "", "=a,0"', compiled.asm["llir"])


@pytest.mark.parametrize(("what", "kind"), [
    ("another layout", errors.ConflictingLayouts), ("the wrong operand", errors.ConflictingLayouts),
    ("shapes", errors.WrongShape), ("role", errors.WrongType), ("sum", errors.WrongDtype),
    ("cut", errors.WrongShape), ("beyond", errors.WrongShape),
])  # fmt: skip
def test_products_and_slices_that_are_refused(what: str, kind: Any) -> None:
    given = {**BF16, "VERSION": 4, "K": 32, "WIDTH": 8, "WHAT": what}
    error = refused(kind, fragments, "hip:gfx950", **given)
    assert line_of(fragments, f"# {what}") in error.where


def test_an_instruction_that_the_matrix_cores_lack() -> None:
    for arch, version, depth, have in (
        ("gfx942", 4, 32, "version=3 with one of 32x32x8, 16x16x16"),
        ("gfx942", 3, 32, "version=3 with one of 32x32x8, 16x16x16"),
        ("gfx950", 4, 8, "version=4 with one of 32x32x8, 32x32x16, 16x16x16, 16x16x32"),
    ):
        given = {**BF16, "VERSION": version, "K": depth, "WIDTH": 4}
        error = refused(errors.UnsupportedByTarget, fragments, f"hip:{arch}", **given)
        assert f"{arch} has no MFMA of 16x16x{depth}" in error.what
        assert have in error.hint
        assert line_of(fragments, "# product") in error.where


@triton.jit
def part(p, q):
    at = tl.arange(0, 64)
    x = tl.load(p + at[:, None] * 64 + at[None, :])
    half = tl.arange(0, 32)
    tl.store(q + half[:, None] * 32 + half[None, :], tlx.extract_slice(x * 2, [32, 32], [32, 0]))


@pytest.mark.parametrize("arch", BOTH)
def test_a_slice_in_no_named_layout(arch: str) -> None:
    compiled = build(part, f"hip:{arch}", p="*fp32", q="*fp32")
    assert "ttg.memdesc_subslice" in compiled.asm["ttgir"]
    assert compiled.asm["hsaco"]


@triton.jit
def _update(x, by, at):
    tl.store(at, x)
    return x + by


@triton.jit
def _row_sums(x):
    return x + tl.sum(x, 1)[:, None]


@triton.jit
def predicated(p, q, r, N: tl.constexpr, WHAT: tl.constexpr = ""):
    at = tl.arange(0, N)
    x = tl.load(p + at)
    x = tlx.warp_predicate((at > 8) & (at < 99), x, _update, args=(3.0, r + at))
    matrix = tlx.warp_predicate(
        tlx.thread_id(0) // 64 >= 2, tl.reshape(x, (4, N // 4)), _row_sums, wave_uniform=True
    )
    few = tl.arange(0, 4)
    matrix, _ = tlx.warp_predicate(few < 2, (matrix, matrix), _both)
    if WHAT == "predicate of another shape":
        tlx.warp_predicate(few < 2, x, _update, args=(1.0, r + at))  # predicate of another shape
    if WHAT == "pointers of another shape":
        tlx.warp_predicate(at < 2, x, _store_few, args=(r + few,))
    if WHAT == "another number":
        tlx.warp_predicate(at < 2, x, _both2)  # another number
    if WHAT == "no function":
        tlx.warp_predicate(at < 2, x, 3)  # no function
    tl.store(q + at, tl.reshape(matrix, (N,)))


@triton.jit
def _both(x, y):
    return x * 2, y


@triton.jit
def _both2(x):
    return x, x


@triton.jit
def _store_few(x, at):
    tl.store(at, tl.arange(0, 4).to(tl.float32))  # pointers of another shape
    return x


@pytest.mark.parametrize("arch", BOTH)
def test_a_predicated_body_stores_where_the_predicate_holds(arch: str) -> None:
    compiled = build(predicated, f"hip:{arch}", p="*fp32", q="*fp32", r="*fp32", N=256)
    first = re.findall(r"(?:tt.store|amdg.buffer_store) .*", compiled.asm["ttgir"])[0]
    assert re.search(r", %\w+ :", first)  # its mask
    assert compiled.asm["ttgir"].count("arith.select") == 3
    assert compiled.asm["hsaco"]


@pytest.mark.parametrize(("what", "kind", "at"), [
    ("predicate of another shape", errors.WrongShape, predicated),
    ("another number", errors.WrongShape, predicated),
    ("no function", errors.WrongType, predicated),
    ("pointers of another shape", errors.WrongShape, _store_few),
])  # fmt: skip
def test_predicates_that_are_refused(what: str, kind: Any, at: Any) -> None:
    given = {"p": "*fp32", "q": "*fp32", "r": "*fp32", "N": 256, "WHAT": what}
    error = refused(kind, predicated, "hip:gfx950", **given)
    assert line_of(at, f"# {what}") in error.where
