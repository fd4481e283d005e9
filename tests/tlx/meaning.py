"""The reference meaning: run by ``test_meaning.py`` with TRITON_INTERPRET=1.

Not collected by itself: Triton reads the variable as it is imported.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  registers NumPy's names for bf16 and fp8
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import remora.tlx as tlx
from remora import errors
from remora.kernels import matmul

assert triton.knobs.runtime.interpret

DTYPES = {
    "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
    "float64": torch.float64, "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2, "int8": torch.int8, "int16": torch.int16,
    "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8,
}  # fmt: skip


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if "int" in dtype:
        low = 0 if dtype.startswith("u") else -100
        return torch.randint(low, 100, shape, generator=generator).to(DTYPES[dtype])
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(DTYPES[dtype])


def bits(x: torch.Tensor) -> Any:
    return x.contiguous().view(torch.uint8).numpy()


# --- buffers -------------------------------------------------------------------------------------


@triton.jit
def round_trip(p, q, M: tl.constexpr, N: tl.constexpr, NUM: tl.constexpr):
    buf = tlx.local_alloc((M, N), tlx.dtype_of(p), NUM)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    for i in range(NUM):
        tlx.local_store(tlx.local_view(buf, i), tl.load(p + i * M * N + at))
    for i in tl.static_range(NUM):
        tl.store(q + i * M * N + at, tlx.local_load(tlx.local_view(buf, i)))


EXTENTS = st.sampled_from((1, 2, 4, 8, 16, 32))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(DTYPES)), EXTENTS, EXTENTS, st.integers(1, 4))
def test_what_is_stored_is_loaded(dtype: str, m: int, n: int, num: int) -> None:
    p = random((num, m, n), dtype)
    q = torch.zeros_like(p)
    round_trip[(1,)](p, q, m, n, num)
    assert (bits(p) == bits(q)).all()


@triton.jit
def masked_copy(
    p, q, rows, columns, M: tl.constexpr, N: tl.constexpr, OTHER: tl.constexpr, KIND: tl.constexpr
):
    buf = tlx.local_alloc((M, N), tlx.dtype_of(p), 2)
    m, n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    view = tlx.local_view(buf, 1)
    at = p + m * N + n
    if KIND == 0:
        token = tlx.async_load(at, view)
    elif KIND == 1:
        token = tlx.async_load(at, view, mask=(m < rows) & (n < columns))
    elif KIND == 2:
        token = tlx.async_load(at, view, mask=(m < rows) & (n < columns), other=OTHER)
    else:
        token = tlx.async_load(at, view, mask=n < columns, other=OTHER)
    token = tlx.async_load_commit_group([token])
    token = tlx.async_load_wait_group(0, [token])
    tl.store(q + m * N + n, tlx.local_load(view, token))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["float16", "bfloat16", "float32", "float8_e5m2", "int8", "int32"]),
    EXTENTS, EXTENTS, st.integers(0, 33), st.integers(0, 33), st.sampled_from((0, 1, -3)),
    st.integers(0, 3),
)  # fmt: skip
def test_a_copy_is_what_numpy_says(
    dtype: str, m: int, n: int, rows: int, columns: int, other: int, kind: int
) -> None:
    p = random((m, n), dtype)
    q = torch.zeros_like(p)
    masked_copy[(1,)](p, q, rows, columns, m, n, other, kind)
    inside = np.ones((m, n), bool)
    if kind:
        inside = (np.arange(m)[:, None] < (rows if kind < 3 else m)) & (np.arange(n) < columns)
    outside = torch.full((m, n), other if kind > 1 else 0).to(p.dtype)
    expected = np.where(
        inside, p.view(torch.uint8 if p.itemsize == 1 else p.dtype).float().numpy(),
        outside.view(torch.uint8 if p.itemsize == 1 else p.dtype).float().numpy(),
    )  # fmt: skip
    found = q.view(torch.uint8 if q.itemsize == 1 else q.dtype).float().numpy()
    assert (found == expected).all()


# --- what no wait has made ready -----------------------------------------------------------------


@triton.jit
def unready(p, q, B: tl.constexpr, WHAT: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 2)
    at = tl.arange(0, B)
    view = tlx.local_view(buf, 0)
    if WHAT != "no store":
        tlx.async_load(p + at, view)
    if WHAT == "no wait":
        tlx.async_load_commit_group()
    if WHAT == "no commit":
        tlx.async_load_wait_group(0)
    if WHAT == "wait for another":
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(1)
    if WHAT == "waited for":
        tlx.async_load_commit_group()
        tlx.async_load(p + at, tlx.local_view(buf, 1))
        tlx.async_load_commit_group()
        tlx.async_load_wait_group(1)
    tl.store(q + at, tlx.local_load(view))


@pytest.mark.parametrize("what", ["no wait", "no commit", "wait for another"])
def test_what_was_not_waited_for_is_a_race(what: str) -> None:
    p, q = random((64,), "float32"), torch.zeros(64)
    with pytest.raises(Exception, match="ReferenceRace") as caught:
        unready[(1,)](p, q, 64, what)
    race = errors.ReferenceRace.of(caught.value)
    assert race is not None
    assert "memory is read that async_load at" in race.what
    assert "meaning.py" in race.where
    assert not q.any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn", "int8"])
def test_what_was_not_stored_is_poison(dtype: str) -> None:
    p = random((64,), dtype)
    q = torch.zeros_like(p)
    unready[(1,)](p, q, 64, "no store")
    if dtype == "int8":
        assert (q == -1).all()
    else:
        assert q.float().isnan().all()


def test_each_program_begins_anew() -> None:
    p, q = random((64,), "float32"), torch.zeros(64)
    for what in ("no wait", "wait for another"):
        with pytest.raises(Exception, match="ReferenceRace"):
            unready[(3,)](p, q, 64, what)
    unready[(3,)](p, q, 64, "waited for")
    assert (p == q).all()


@triton.jit
def overwritten(p, q, D: tl.constexpr, WHAT: tl.constexpr):
    a = tlx.local_alloc((D, D), tlx.dtype_of(p), 2)
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    view = tlx.local_view(a, 0)
    tlx.local_store(view, tl.load(p + at))
    acc = tlx.async_dot(view, view, tl.zeros((D, D), tl.float32))
    if WHAT == "copy":
        tlx.async_load(p + at, view)
    if WHAT == "store":
        tlx.local_store(view, tl.load(p + at))
    if WHAT == "another":
        tlx.async_load(p + at, tlx.local_view(a, 1))
        tlx.async_load_commit_group()
    if WHAT == "read":
        tl.store(p + at, tlx.local_load(view))
    acc = tlx.async_dot_wait(0, acc)
    if WHAT == "after":
        tlx.local_store(view, tl.load(p + at))
    tl.store(q + at, acc)


@pytest.mark.parametrize("what", ["copy", "store", "another", "read", "after"])
def test_a_buffer_that_a_product_still_reads(what: str) -> None:
    """Writing it is a race; writing another one, reading it, and writing it later are not."""
    p, q = random((64, 64), "float16"), torch.zeros(64, 64)
    if what in ("copy", "store"):
        with pytest.raises(Exception, match="ReferenceRace") as caught:
            overwritten[(1,)](p, q, 64, what)
        race = errors.ReferenceRace.of(caught.value)
        assert race is not None
        assert "memory is written that async_dot at" in race.what
    else:
        overwritten[(1,)](p, q, 64, what)
        torch.testing.assert_close(q, p.float() @ p.float(), rtol=1e-5, atol=1e-4)


@triton.jit
def product(p, q, r, D: tl.constexpr, WAIT: tl.constexpr, USE: tl.constexpr, ACC: tl.constexpr):
    a = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
    b = tlx.local_alloc((D, D), tlx.dtype_of(p), 1)
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    av, bv = tlx.local_view(a, 0), tlx.local_view(b, 0)
    tlx.local_store(av, tl.load(p + at))
    tlx.local_store(bv, tl.load(q + at))
    acc = tlx.async_dot(av, bv, tl.full((D, D), 1, ACC), use_acc=USE)
    second = tlx.async_dot(tl.load(p + at), bv, acc)
    acc = tlx.async_dot_wait(WAIT, acc)
    tl.store(r + at, acc)
    second = tlx.async_dot_wait(0, second)
    tl.store(r + D * D + at, second)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("use", [False, True])
def test_products(dtype: str, use: bool) -> None:
    p, q = random((64, 64), dtype), random((64, 64), dtype, 1)
    integers = dtype == "int8"
    r = torch.zeros((2, 64, 64), dtype=torch.int32 if integers else torch.float32)
    product[(1,)](p, q, r, 64, 1, use, tl.int32 if integers else tl.float32)
    once = p.double() @ q.double()
    torch.testing.assert_close(r[0].double(), once + use, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(r[1].double(), 2 * once + use, rtol=1e-5, atol=1e-3)


def test_a_product_that_was_not_waited_for_is_poison() -> None:
    p = random((64, 64), "float16")
    r = torch.zeros((2, 64, 64))
    product[(1,)](p, p, r, 64, 2, True, tl.float32)
    assert r[0].isnan().all()
    assert not r[1].isnan().any()


# --- bad input -----------------------------------------------------------------------------------


@triton.jit
def wrong(p, q, n, B: tl.constexpr, WHAT: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 2)
    at = tl.arange(0, B)
    view = tlx.local_view(buf, 0)
    if WHAT == "index too large":
        view = tlx.local_view(buf, n)  # index too large
    if WHAT == "index negative":
        view = tlx.local_view(buf, -n)  # index negative
    if WHAT == "index constant":
        view = tlx.local_view(buf, 2)  # index constant
    if WHAT == "index a float":
        view = tlx.local_view(buf, 0.5)  # index a float
    if WHAT == "shape":
        tlx.local_store(view, tl.load(p + tl.arange(0, 2 * B)))  # shape
    if WHAT == "dtype":
        tlx.local_store(view, at)  # dtype
    if WHAT == "token":
        tlx.local_load(view, view)  # token
    if WHAT == "allocation":
        tlx.local_load(buf)  # allocation
    if WHAT == "mask":
        tlx.async_load(p + at, view, mask=tl.arange(0, 2 * B) < n)  # mask
    if WHAT == "K":
        flat = tlx.local_view(tlx.local_alloc((64, 8), tl.float16, 1), 0)
        tall = tlx.local_view(tlx.local_alloc((8, 64), tl.float16, 1), 0)
        tlx.async_dot(flat, tall)  # K
    tlx.local_store(view, tl.load(p + at))
    tl.store(q + at, tlx.local_load(view))


@pytest.mark.parametrize(("what", "kind"), [
    ("index too large", errors.BufferIndexError),
    ("index negative", errors.BufferIndexError),
    ("index constant", errors.BufferIndexError),
    ("index a float", errors.WrongType),
    ("shape", errors.WrongShape),
    ("dtype", errors.WrongDtype),
    ("token", errors.WrongType),
    ("allocation", errors.WrongType),
    ("mask", errors.WrongShape),
    ("K", errors.WrongShape),
])  # fmt: skip
def test_bad_input(what: str, kind: type[errors.RemoraError]) -> None:
    p, q = random((64,), "float16"), torch.zeros(64, dtype=torch.float16)
    with pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps what it meets
        wrong[(1,)](p, q, 7, 32, what)
    error = kind.of(caught.value)
    assert error is not None, caught.value
    assert error.hint
    file, line = error.where.partition(",")[0].rsplit(":", 1)
    assert file == __file__
    with open(__file__) as source:
        assert f"# {what}" in source.readlines()[int(line) - 1]
    wrong[(1,)](p, q, 1, 32, "")
    assert (p[:32] == q[:32]).all()


def test_outside_a_kernel() -> None:
    p = random((64,), "float16")
    wrong[(1,)](p, p.clone(), 1, 32, "")  # also after a launch
    with pytest.raises(errors.NeedsCompiler, match="outside a kernel"):
        tlx.local_alloc((32,), tl.float16, 1)


# --- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "shape"), [
    ("float16", (1, 1, 1)),
    ("float16", (65, 33, 17)),
    ("float16", (64, 64, 200)),
    ("bfloat16", (37, 129, 70)),
    ("float32", (70, 70, 40)),
    ("float8_e4m3fn", (33, 65, 131)),
    ("float8_e5m2", (65, 31, 129)),
    ("int8", (67, 35, 257)),
])  # fmt: skip
@pytest.mark.parametrize("columns", [False, True])
def test_the_product_of_the_kernels(dtype: str, shape: tuple[int, int, int], columns: bool) -> None:
    m, n, k = shape
    a, b = random((m, k), dtype), random((k, n), dtype, 1)
    if columns:
        b = b.t().contiguous().t()
    out = torch.int32 if dtype == "int8" else torch.float32
    c = matmul(a, b, out_dtype=out)
    expected = a.double() @ b.double()
    if dtype == "int8":
        assert (c.double() == expected).all()
    else:
        error = (c.double() - expected).norm() / expected.norm()
        assert error < (2e-3 if dtype == "float32" else 1e-5)
