"""Views of buffers and memory that several share, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]


@pytest.mark.parametrize("shape", [(32, 64), (64, 128), (16, 16)])
@pytest.mark.parametrize("what", [
    "transposed", "columns", "part of a transposed part", "stored through", "bytes", "one row",
    "first half", "elements of a row", "gathered", "scattered",
])  # fmt: skip
def test_reads(what: str, shape: tuple[int, int]) -> None:
    from tlx import view_cases

    view_cases.check_reads(what, "cuda", *shape)


@pytest.mark.parametrize(("dtype", "k"), [
    ("float16", 64), ("float16", 16), ("bfloat16", 32), ("float32", 32), ("float8_e5m2", 128),
    ("float8_e4m3fn", 32),
])  # fmt: skip
def test_buffers_as_one(dtype: str, k: int) -> None:
    from tlx import view_cases

    view_cases.check_joined("cuda", getattr(torch, dtype), k)


@pytest.mark.parametrize(("dtype", "k"), [
    ("float16", 64), ("float16", 128), ("bfloat16", 256), ("float32", 32), ("float32", 128),
    ("float8_e5m2", 128), ("float8_e4m3fn", 256),
])  # fmt: skip
def test_products_of_parts(dtype: str, k: int) -> None:
    from tlx import view_cases

    view_cases.check_parts("cuda", getattr(torch, dtype), k)


@pytest.mark.parametrize("what", ["another", "group"])
def test_over_each_other(what: str) -> None:
    from tlx import view_cases

    view_cases.check_over_each_other(what, "cuda")


def test_same_bytes() -> None:
    from tlx import view_cases

    view_cases.check_same_bytes("cuda")


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(("dtype", "m", "n", "d", "warps"), [
    ("float16", 64, 128, 128, 4), ("bfloat16", 128, 64, 64, 4), ("float16", 128, 128, 64, 8),
    ("float16", 64, 64, 256, 4),
])  # fmt: skip
def test_attention(dtype: str, m: int, n: int, d: int, warps: int, pipelined: bool) -> None:
    from tlx import view_cases

    view_cases.check_attention(
        "cuda", getattr(torch, dtype), m, n, d, pipelined=pipelined, warps=warps
    )


def test_votes_and_the_thread() -> None:
    import triton
    import triton.language as tl

    import remora.tlx as tlx

    @triton.jit
    def kernel(p, ballots, largest, threads):
        at = tl.arange(0, 128)
        x = tl.load(p + at)
        tl.store(ballots + at, tlx.vote_ballot_sync(0xFFFFFFFF, x > 0))
        tl.store(largest + at, tlx.warp_redux(x, "max"))
        if tlx.warp_any(x > 100):
            tl.store(threads, tlx.thread_id(0) + 1000)
        tl.atomic_max(threads + 1, tlx.thread_id(0))

    x: Any = torch.randn(128, device="cuda")
    ballots = torch.zeros(128, dtype=torch.int32, device="cuda")
    largest, threads = torch.zeros_like(x), torch.zeros(2, dtype=torch.int32, device="cuda")
    kernel[(1,)](x, ballots, largest, threads)
    weights = 1 << torch.arange(32, device="cuda")
    expected = ((x > 0).view(4, 32) * weights).sum(1).to(torch.int32)
    assert torch.equal(ballots.view(4, 32), expected[:, None].expand(4, 32))
    assert torch.equal(largest.view(4, 32), x.view(4, 32).max(1).values[:, None].expand(4, 32))
    assert threads[0] == 0
