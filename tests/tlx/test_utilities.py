"""Small words: what they are at compile time, and their instructions."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from tlx.building import build, instructions, line_of
from tlx.test_refused import refused

import remora.tlx as tlx
from remora import errors


@triton.jit
def constants(p, q, F: tl.constexpr):
    tl.static_assert(tlx.size_of(tlx.dtype_of(p)) == 2)
    tl.static_assert(tlx.size_of(tl.float8e5) == 1)
    tl.static_assert(tlx.get_fp8_format_name(tl.float8e5) == "e5m2")
    tl.static_assert(tlx.get_fp8_format_name(F) == "e4m3")
    tl.static_assert(tlx.num_warps() == 8)
    if tlx.is_hip():
        tl.store(q, 1)
    else:
        tl.store(q, 2)


def test_constants() -> None:
    given = {"p": "*fp16", "q": "*i32", "F": tl.float8e4nv, "options": {"num_warps": 8}}
    assert "arith.constant 2 : i32" in build(constants, "cuda:90", **given).asm["ttir"]
    assert "arith.constant 1 : i32" in build(constants, "hip:gfx942", **given).asm["ttir"]
    assert tlx.is_hip() is False


@triton.jit
def words(p, q, WHAT: tl.constexpr, B: tl.constexpr = 128):
    at = tl.arange(0, B)
    x = tl.load(p + at)
    if WHAT == "thread_id":
        if tlx.thread_id(0) == 0:
            tl.store(q, 1.0)
        tl.store(q + 1 + tlx.thread_id(axis=1), 1.0)
    if WHAT == "clock64":
        before = tlx.clock64()
        tl.store(q + at, x)
        tl.store(q + B, (tlx.clock64() - before).to(tl.float32))
    if WHAT == "vote_ballot_sync":
        tl.store(q + at, tlx.vote_ballot_sync(0xFFFFFFFF, x > 0).to(tl.float32))
        tl.store(q + B, tlx.vote_ballot_sync(1, pred=tl.load(p)).to(tl.float32))
    if WHAT == "warp_any":
        if tlx.warp_any(x > 0):
            tl.store(q + at, x)
        if tlx.warp_any(tl.load(p) > 0):
            tl.store(q + at, x)
    if WHAT == "warp_redux":
        tl.store(q + at, tlx.warp_redux(x, "abs_max"))
        tl.store(q + at, tlx.warp_redux(x, op="min"))
    if WHAT == "stoch_round":
        y = tlx.stoch_round(x, tl.bfloat16, at)  # stoch_round
        tl.store(q + at, y.to(tl.float32))
    if WHAT == "axis":
        tl.store(q, tlx.thread_id(3).to(tl.float32))  # axis
    if WHAT == "reduction":
        tl.store(q + at, tlx.warp_redux(x, "sum"))  # reduction
    if WHAT == "format":
        tl.static_assert(tlx.get_fp8_format_name(tl.float16) == "fp16")  # format


@pytest.mark.parametrize(("what", "pattern", "count"), [
    ("thread_id", r"mov\.u32 \S+, %tid\.[xy]", 2),
    ("clock64", r"mov\.u64 \S+, %clock64", 2),
    ("vote_ballot_sync", r"vote\.sync\.ballot\.b32 \S+ \S+ 0x\w+", 2),
    ("warp_redux", r"shfl\.sync\.bfly", 10),
])  # fmt: skip
def test_instructions(what: str, pattern: str, count: int) -> None:
    text = build(words, "cuda:90", p="*fp32", q="*fp32", WHAT=what).asm["ptx"]
    assembly = "\n".join(text.split("begin inline asm")[1:])
    assert len(instructions(assembly, pattern)) >= count


@triton.jit
def rounding(p, r, q, B: tl.constexpr):
    at = tl.arange(0, B)
    y = tlx.stoch_round(tl.load(p + at), tlx.dtype_of(q), tl.load(r + at))
    tl.store(q + at, y)


@pytest.mark.parametrize(
    ("dtype", "instruction", "each"),
    [("fp8e4nv", "e4m3x4", 4), ("fp8e5", "e5m2x4", 4), ("fp16", "f16x2", 2), ("bf16", "bf16x2", 2)],
)
def test_rounding_at_random(dtype: str, instruction: str, each: int) -> None:
    kernel = build(rounding, "cuda:100", p="*fp32", r="*i32", q=f"*{dtype}", B=1024)
    found = instructions(kernel.asm["ptx"], rf"cvt\.rs\.satfinite\.{instruction}\.f32 [^;]*;")
    assert len(found) == 1024 // 128 // each
    assert len(instructions(kernel.asm["ptx"], r"prmt\.b32")) >= len(found)
    # A thread may hold fewer elements than an instruction makes.
    few = build(rounding, "cuda:100", p="*fp32", r="*i32", q=f"*{dtype}", B=64)
    assert instructions(few.asm["ptx"], rf"cvt\.rs\.satfinite\.{instruction}\.f32 [^;]*;")


def test_any_of_a_warp_is_a_branch_of_all() -> None:
    text = build(words, "cuda:90", p="*fp32", q="*fp32", WHAT="warp_any").asm["ttgir"]
    assert text.count('tt.reduce"') == 1
    assert text.count("scf.if") + text.count("cf.cond_br") == 2


def test_a_thread_of_amd_s() -> None:
    assert build(words, "hip:gfx942", p="*fp32", q="*fp32", WHAT="thread_id").asm["amdgcn"]


@pytest.mark.parametrize(("what", "target", "kind"), [
    ("stoch_round", "cuda:90", errors.UnsupportedByTarget),
    ("stoch_round", "hip:gfx942", errors.UnsupportedByTarget),
    ("axis", "cuda:90", errors.WrongShape),
    ("reduction", "cuda:90", errors.WrongType),
    ("format", "cuda:90", errors.WrongDtype),
])  # fmt: skip
def test_refused(what: str, target: str, kind: type[errors.RemoraError]) -> None:
    error = refused(kind, words, target, p="*fp32", q="*fp32", WHAT=what)
    assert line_of(words, f"# {what}") in error.where


def test_amd_has_no_such_votes() -> None:
    for what in ("vote_ballot_sync", "warp_redux", "clock64"):
        refused(errors.UnsupportedByTarget, words, "hip:gfx942", p="*fp32", q="*fp32", WHAT=what)
