"""AMD's words and kernels with the reference meaning; run by ``test_meaning.py``."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tlx.view_cases import parts_at_run_time

import remora.tlx as tlx
from remora import errors
from remora.kernels.attention_cdna import attention_cdna
from remora.kernels.gemm_cdna import gemm_direct, gemm_staged

assert triton.knobs.runtime.interpret


@triton.jit
def memory(p, q, r, n, B: tl.constexpr, OTHER: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tlx.buffer_load(p, at, mask=at < n, other=OTHER)
    buffer = tlx.local_alloc((B,), tlx.dtype_of(p), 1)[0]
    tlx.buffer_load_to_local(buffer, p, at, mask=at < n)
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    old = tlx.buffer_atomic_add(r, at, x, mask=at < n)
    tlx.buffer_store(x + tlx.local_load(buffer, relaxed=True) + old, q, at)


def test_buffer_operations() -> None:
    p, r = torch.randn(256), torch.randn(256)
    q, before = torch.empty(256), r.clone()
    memory[(2,)](p, q, r, 200, B=128, OTHER=7.0)
    there = torch.arange(256) < 200
    loaded = torch.where(there, p, 7.0)
    old = torch.where(there, before, q - loaded)  # undefined where the mask is false
    torch.testing.assert_close(q, loaded + torch.where(there, p, 0.0) + old)
    torch.testing.assert_close(r, before + torch.where(there, p, 0.0))


@pytest.mark.parametrize("copy", [False, True])
def test_parts_at_places_that_are_known_at_run_time(copy: bool) -> None:
    p, q, r = torch.randn(64, 128).half(), torch.randn(128, 32).half(), torch.empty(64, 32)
    parts_at_run_time[(1,)](p, q, r, 4, 128, 32, 32, copy)
    torch.testing.assert_close(r, p.float() @ q.float(), atol=1e-3, rtol=1e-3)
    with pytest.raises(Exception, match="no part of") as caught:
        parts_at_run_time[(1,)](p, q, r, 5, 128, 32, 32, copy)
    error = errors.WrongShape.of(caught.value)
    assert error is not None
    assert "offset (128, 0)" in error.what


@triton.jit
def hints(p, q, B: tl.constexpr):
    x = tl.load(p + tlx.rematerialized_range(0, B, 3))
    tlx.amd_sched_barrier(7)
    tlx.amd_sched_group_barrier(8, 1)
    tlx.amd_iglp_opt(0)
    tlx.amd_setprio(1)
    x = tlx.amd_register_class_anchor(tlx.amd_register_resident(x))
    tl.store(tlx.assume_uniform(q) + tl.arange(0, B), x)


def test_hints_change_nothing() -> None:
    p, q = torch.randn(64), torch.empty(64)
    hints[(1,)](p, q, B=64)
    assert torch.equal(p, q)


@triton.jit
def fragments(p, q, r, D: tl.constexpr):
    at = tl.arange(0, D)
    square = at[:, None] * D + at[None, :]
    a, b = tl.load(p + square), tl.load(q + square)
    acc = tl.full((D, D), 100.0, tl.float32)
    for band in tl.static_range(2):
        a_band = tlx.extract_slice(a, [D, D // 2], [0, band * D // 2])
        b_band = tlx.extract_slice(b, [D // 2, D], [band * D // 2, 0])
        acc = tlx.amd_scheduled_mfma(a_band, b_band, acc, "persistent", initialize=band == 0)
    acc, b = tlx.amd_mfma_commit(acc, b)
    tl.store(r + square, acc + b)


def test_products_in_parts() -> None:
    p, q, r = torch.randn(32, 32), torch.randn(32, 32), torch.empty(32, 32)
    fragments[(1,)](p, q, r, D=32)
    torch.testing.assert_close(r, p @ q + q, atol=1e-4, rtol=1e-4)


@triton.jit
def _body(x, y, by, at):
    tl.store(at, x)
    return x + by, y * 2


@triton.jit
def predicated(p, q, r, s, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(p + at)
    x, y = tlx.warp_predicate((at >= 8) & (at % 3 == 0), (x, x), _body, args=(1.0, s + at))
    tl.store(q + at, x)
    tl.store(r + at, y)


def test_a_predicated_body() -> None:
    p = torch.randn(32)
    q, r, s = (torch.full((32,), math.nan) for _ in range(3))
    predicated[(1,)](p, q, r, s, N=32)
    at = torch.arange(32)
    holds = (at >= 8) & (at % 3 == 0)
    torch.testing.assert_close(q, torch.where(holds, p + 1, p))
    torch.testing.assert_close(r, torch.where(holds, p * 2, p))
    assert torch.equal(s.isnan(), ~holds)
    torch.testing.assert_close(s[holds], p[holds])


@triton.jit
def too_early(p, q, n, B: tl.constexpr):
    at = tl.arange(0, B)
    buffers = tlx.local_alloc((B,), tl.float32, 2)
    for i in range(n):
        with tlx.warp_pipeline_stage("move", priority=1):
            tlx.buffer_load_to_local(buffers[i % 2], p + i * B, at)
            tlx.async_load_commit_group()
        tlx.async_load_wait_group(1)
        with tlx.warp_pipeline_stage("use"):
            tl.store(q + i * B + at, tlx.local_load(buffers[i % 2]))  # too early


def test_a_copy_that_is_read_too_early() -> None:
    with pytest.raises(Exception, match="still writes") as caught:
        too_early[(1,)](torch.randn(256), torch.empty(256), 2, B=128)
    assert errors.ReferenceRace.of(caught.value) is not None


@pytest.mark.parametrize(("kernel", "stages"), [
    (gemm_direct, 3), (gemm_direct, 4), (gemm_staged, 2), (gemm_staged, 3),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(100, 72, 8), (70, 60, 200)])
def test_matrix_products(kernel: Any, stages: int, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.full((m, n), math.nan)
    kernel[(triton.cdiv(m, 64) * triton.cdiv(n, 64),)](
        a, b, c, m, n, k, 0, *a.stride(), 0, *b.stride(), 0, *c.stride(), None, None, (),
        BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=2, STAGES=stages, ACC=tl.float32,
        EPILOGUE=None, INDEX=tl.int32,
    )  # fmt: skip
    torch.testing.assert_close(c, a @ b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("length_q", "length_k", "causal", "stages", "direct"), [
    (64, 96, False, 3, True), (70, 50, False, 4, True), (96, 96, True, 3, True),
    (40, 230, True, 3, False), (100, 40, True, 3, True), (33, 7, False, 3, False),
])  # fmt: skip
def test_attention(length_q: int, length_k: int, causal: bool, stages: int, direct: bool) -> None:
    torch.manual_seed(0)
    q, o = torch.randn(2, 4, length_q, 32), torch.full((2, 4, length_q, 32), math.nan)
    k, v = torch.randn(2, 2, length_k, 32), torch.randn(2, 2, length_k, 32)
    sums = torch.full((2, 4, length_q), math.nan)
    scale = 1 / math.sqrt(32)
    attention_cdna[(triton.cdiv(length_q, 32), 8)](
        q, k, v, o, sums, scale * math.log2(math.e), *q.stride(), *k.stride(), *v.stride(),
        *o.stride(), 4, length_q, length_k, length_k - length_q if causal else length_k,
        GROUP=2, DIM=32, BLOCK_M=32, BLOCK_N=64, STAGES=stages, DIRECT=direct, num_warps=4,
    )  # fmt: skip
    scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) * scale
    if causal:
        rows, columns = torch.arange(length_q)[:, None], torch.arange(length_k)[None, :]
        scores = scores.masked_fill(columns > rows + length_k - length_q, -math.inf)
    seen = ~scores.isinf().all(-1)
    expected = (torch.softmax(scores, -1) @ v.repeat_interleave(2, 1)).nan_to_num(0.0)
    torch.testing.assert_close(o, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sums[seen], scores.logsumexp(-1)[seen], atol=1e-4, rtol=1e-4)
    assert (sums[~seen] == -math.inf).all()
