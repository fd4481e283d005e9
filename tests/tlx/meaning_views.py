"""Views, shared memory and small words with the reference meaning; run by ``test_meaning.py``."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  registers NumPy's names for bf16 and fp8
import pytest
import torch
import triton
import triton.language as tl
from tlx import view_cases as cases

import remora.tlx as tlx
from remora import errors

assert triton.knobs.runtime.interpret


@pytest.mark.parametrize("what", cases.READS)
def test_reads(what: str) -> None:
    cases.check_reads(what, "cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_products_of_parts(dtype: Any) -> None:
    cases.check_joined("cpu", dtype, 32)
    cases.check_parts("cpu", dtype, 64)


@pytest.mark.parametrize("what", ["another", "group"])
def test_over_each_other(what: str) -> None:
    cases.check_over_each_other(what, "cpu")


def test_same_bytes() -> None:
    cases.check_same_bytes("cpu")


@pytest.mark.parametrize("pipelined", [False, True])
def test_attention(pipelined: bool) -> None:
    cases.check_attention("cpu", torch.float16, 64, 64, 32, pipelined=pipelined)


@triton.jit
def wrong(p, q, n, WHAT: tl.constexpr, D: tl.constexpr = 32):
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    spec = tlx.storage_alias_spec(buffer_size_bytes=D * D * 4)
    a = tlx.local_alloc((D, D), tl.float16, 2, reuse=spec)
    b = tlx.local_alloc((D, D), tl.float32, 1, reuse=spec)
    if WHAT == "a slice has no bytes in a row":
        tlx.local_reinterpret(tlx.subslice(b[0], 0, 8), tl.int32)  # a slice has no bytes in a row
    if WHAT == "too small":
        spec.set_buffer_overlap(  # too small
            tlx.reuse_group(a, b, group_type=tlx.reuse_group_type.distinct)
        )
    if WHAT == "written while it is copied":
        tlx.async_load(p + at, a[0])
        tlx.local_store(tlx.local_trans(b[0]), at.to(tl.float32))  # written while it is copied
    if WHAT == "not there":
        tl.store(q + at, tlx.local_load(a[n]))  # not there


@pytest.mark.parametrize(("what", "kind"), [
    ("a slice has no bytes in a row", errors.WrongType),
    ("too small", errors.StorageTooSmall),
    ("written while it is copied", errors.ReferenceRace),
    ("not there", errors.BufferIndexError),
])  # fmt: skip
def test_wrong(what: str, kind: type[errors.RemoraError]) -> None:
    p = torch.zeros((32, 32), dtype=torch.float16)
    with pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps what it meets
        wrong[(1,)](p, p.clone(), 2, what)
    error = kind.of(caught.value)
    assert error is not None, caught.value
    with open(__file__) as source:
        lines = source.readlines()
    assert any(
        f"# {what}" in lines[int(w.rstrip(",")) - 1]
        for w in error.where.replace("; ", ":").split(":")[1:2]
    )


@triton.jit
def words(p, q, r, WHAT: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    x = tl.load(p + at)
    if WHAT == "ballot":
        tl.store(r + at, tlx.vote_ballot_sync(0xFFFFFFFF, x > 0))
    if WHAT == "redux":
        tl.store(q + at, tlx.warp_redux(x, "abs_max"))
    if WHAT == "any":
        tl.store(r, tlx.warp_any(x > 0).to(tl.int32))
    if WHAT == "thread":
        if tlx.thread_id(0) == 0:
            tl.store(r, tlx.num_warps() + tlx.size_of(tl.float16))
    if WHAT == "clock":
        before = tlx.clock64()
        tl.store(r, (tlx.clock64() - before >= 0).to(tl.int32))
    if WHAT == "round":
        y = tlx.stoch_round(x, tl.bfloat16, tl.load(r + at))
        tl.store(q + at, y.to(tl.float32))
    if WHAT == "layouts":
        buf = tlx.local_alloc((B,), tl.float32, 1, layout=tlx.swizzled_layout(0, 0, 0))
        tlx.local_store(buf[0], x + tlx.zeros((B,), tl.float32))
        y = tlx.local_load(buf[0], layout=tlx.layout(((32, 4), (1,)), ((1, 32), (1,))))
        tlx.assert_same_layout(y, x)
        tl.store(q + at, tlx.release_layout(y))


def run(what: str, x: torch.Tensor, r: torch.Tensor | None = None) -> tuple[Any, Any]:
    q = torch.zeros_like(x)
    r = torch.zeros(x.shape, dtype=torch.int32) if r is None else r
    words[(1,)](x, q, r, what, x.numel())
    return q, r


def test_votes_of_warps() -> None:
    x = torch.randn(128)
    weights = 1 << torch.arange(32, dtype=torch.int64)
    ballots = ((x > 0).view(4, 32) * weights).sum(1).to(torch.int32)
    assert torch.equal(run("ballot", x)[1].view(4, 32), ballots[:, None].expand(4, 32))
    largest = x.abs().view(4, 32).max(1).values
    assert torch.equal(run("redux", x)[0].view(4, 32), largest[:, None].expand(4, 32))
    assert run("any", x)[1][0] == 1
    assert run("any", -x.abs())[1][0] == 0


def test_the_thread() -> None:
    assert run("thread", torch.zeros(32))[1][0] == 4 + 2
    assert run("clock", torch.zeros(32))[1][0] == 1


def test_rounding_is_up_as_often_as_it_is_near() -> None:
    x = torch.full((8192,), 1 + 2**-9)  # a quarter of the way from 1 to the next bf16
    noise = torch.randint(-(2**31), 2**31, x.shape, dtype=torch.int64).to(torch.int32)
    y = run("round", x, noise)[0]
    assert set(y.tolist()) == {1.0, 1 + 2**-7}
    assert 0.2 < (y > 1).float().mean() < 0.3


def test_rounding_ends_at_the_largest_number() -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38])
    most = torch.finfo(torch.bfloat16).max
    y = run("round", x, torch.full((4,), -1, dtype=torch.int32))[0]
    assert y[[0, 1, 3]].tolist() == [most, -most, most]
    assert y[2].isnan()


def test_layouts_change_no_value() -> None:
    x = torch.randn(128)
    assert torch.equal(run("layouts", x)[0], x)
