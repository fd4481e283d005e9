"""Tensor memory and its products with the reference meaning; run by ``test_meaning.py``."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes  # noqa: F401  registers NumPy's names for bf16 and fp8
import pytest
import torch
import triton
import triton.language as tl
from tlx import tensor_cases as cases
from triton.runtime.errors import InterpreterError

import remora.tlx as tlx
from remora import errors

assert triton.knobs.runtime.interpret


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("what", ["whole", "parts", "over", "read"])
def test_round_trips(rows: int, what: str) -> None:
    p = torch.randn(rows, 64)
    q = torch.empty_like(p)
    cases.round_trip[(1,)](p, q, rows, 64, what)
    torch.testing.assert_close(q, cases.expected_round_trip(p, what))


def test_groups() -> None:
    p = torch.randn(128, 64)
    q = torch.empty_like(p)
    cases.grouped[(1,)](p, q, 128, 64)
    torch.testing.assert_close(q[:, :32], p[:, :32].half().float())
    torch.testing.assert_close(q[:, 33:], p[:, 33:])
    # The column that the statistics took.
    torch.testing.assert_close(q[:, 32], p.max(1).values)


@pytest.mark.parametrize("case", cases.PRODUCTS, ids=str)
def test_products(case: Any) -> None:
    m, n, k, dtype, total, what = case
    spread = 60 if dtype == "i8" else 1  # past what fp16 holds, in sums
    a = (spread * torch.randn(m, k)).to(cases.TORCH[dtype])
    b = (spread * torch.randn(k, n)).to(cases.TORCH[dtype])
    r = torch.randn(m, n)
    expected = cases.expected_product(a, b, r.clone(), what)
    cases.product[(1,)](a, b, r, 3, m, n, k, cases.SUMS[total], what)
    loose = dtype == "fp32" or total == "fp16"
    torch.testing.assert_close(r, expected, atol=5e-2 if loose else 1e-4, rtol=1e-3)


@triton.jit
def scales(p, q, WHAT: tl.constexpr):
    at = tl.arange(0, 512)
    packed = tlx.local_alloc((512,), tl.uint8, 1)[0]
    tlx.local_store(packed, tl.load(p + at))
    to = tlx.local_alloc((128, 4), tl.uint8, 1, tlx.storage_kind.tmem)[0]
    tlx.tmem_copy(packed, to)
    done = tlx.alloc_barriers(1)
    tlx.tcgen05_commit(done[0])
    if WHAT != "early":
        tlx.barrier_wait(done[0], 0)
    x = tlx.local_load(to)  # early
    tl.store(q + tl.arange(0, 128)[:, None] * 4 + tl.arange(0, 4)[None, :], x)


def test_scales_lie_in_fours_of_32_rows() -> None:
    p = torch.arange(512, dtype=torch.int32).to(torch.uint8)
    q = torch.zeros(128, 4, dtype=torch.uint8)
    scales[(1,)](p, q, "")
    # PTX ISA, scale factors: row r of 128 is byte 4 of group r / 32 in line r % 32.
    expected = p.reshape(32, 4, 4).permute(1, 0, 2).reshape(128, 4)
    assert torch.equal(q, expected)


@triton.jit
def wrong(p, r, n, WHAT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    a = tlx.local_alloc((64, 64), tl.float16, 2)
    bars = tlx.alloc_barriers(2, arrive_count=1)
    tlx.local_store(a[0], tl.load(p + at))
    tlx.local_store(a[1], tl.load(p + at))
    acc = tlx.local_alloc((64, 64), tl.float32, 1, tlx.storage_kind.tmem)
    tlx.async_dot(a[0], a[1], acc[0], use_acc=False, mBarriers=[bars[0]])
    if WHAT == "operand written":
        tlx.local_store(a[1], tl.load(p + at))  # operand written
    if WHAT == "no arrival":
        tlx.barrier_wait(bars[1], 0)  # no arrival
    if WHAT != "read early":
        tlx.barrier_wait(bars[0], 0)
    tl.store(r + at, tlx.local_load(acc[0]))  # read early


@pytest.mark.parametrize(("what", "error"), [
    ("operand written", errors.ReferenceRace),
    ("read early", errors.ReferenceRace),
    ("no arrival", errors.WaitNeverEnds),
])  # fmt: skip
def test_races_and_waits(what: str, error: Any) -> None:
    p, r = torch.randn(64, 64).half(), torch.zeros(64, 64)
    with pytest.raises(InterpreterError) as caught:
        wrong[(1,)](p, r, 1, what)
    found = error.of(caught.value)
    assert found is not None
    lines, first = inspect.getsourcelines(wrong.fn)
    line = next(i for i, text in enumerate(lines) if f"# {what}" in text)
    assert found.where.endswith(f":{first + line}")


def test_scales_are_in_flight_until_a_commit_is_waited_for() -> None:
    with pytest.raises(InterpreterError) as caught:
        scales[(1,)](torch.zeros(512, dtype=torch.uint8), torch.zeros(128, 4, dtype=torch.uint8),
                     "early")  # fmt: skip
    assert errors.ReferenceRace.of(caught.value) is not None
