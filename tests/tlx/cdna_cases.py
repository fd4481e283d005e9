"""Kernels for CDNA, compiled by ``test_cdna.py`` and run on a CPU by ``meaning_cdna.py``."""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx


@triton.jit
def parts_at_run_time(
    p, q, r, steps, K: tl.constexpr, STEP: tl.constexpr, N: tl.constexpr, COPY: tl.constexpr
):
    """The product of p (64, K) and q (K, N), STEP of K at a time, from the end; AMD's.

    COPY: rows of q are copied into parts of a buffer; else they are stored there.
    """
    a = tlx.local_alloc((64, K), tlx.dtype_of(p), 1)[0]
    b = tlx.local_alloc((K, N), tlx.dtype_of(q), 1)[0]
    m, n, k = tl.arange(0, 64), tl.arange(0, N), tl.arange(0, K)
    tlx.async_load(p + m[:, None] * K + k[None, :], a)
    for i in range(steps):
        rows = q + (i * STEP + tl.arange(0, STEP))[:, None] * N + n[None, :]
        part = tlx.local_slice(b, [i * STEP, 0], [STEP, N])  # a part
        if COPY:
            tlx.async_load(rows, part)
        else:
            tlx.local_store(part, tl.load(rows))
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    acc = tl.zeros((64, N), tl.float32)
    for i in range(steps):
        at = (steps - 1 - i) * STEP
        left = tlx.subslice(a, at, STEP)
        right = tlx.local_slice(b, [at, 0], [STEP, N])
        acc = tl.dot(tlx.local_load(left), tlx.local_load(right), acc)
    tl.store(r + m[:, None] * N + n[None, :], acc)


@triton.jit
def batches(
    p, q, r, VERSION: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, NAMED: tl.constexpr
):
    """Twice two products, of (32, 64) and (64, 32); NAMED: in layouts that are written."""
    b, m, k = tl.arange(0, 2)[:, None, None], tl.arange(0, 32), tl.arange(0, 64)
    x = tl.load(p + b * 2048 + m[None, :, None] * 64 + k[None, None, :])
    y = tl.load(q + b * 2048 + k[None, :, None] * 32 + m[None, None, :])
    acc = tl.full((2, 32, 32), 7.0, tl.float32)
    if NAMED:
        mma: tl.constexpr = tlx.amd_mfma_layout(VERSION, [16, 16, K], True, [2, 2, 1])
        x = tlx.require_layout(x, tlx.dot_operand_layout(0, mma, k_width=WIDTH))
        y = tlx.require_layout(y, tlx.dot_operand_layout(1, mma, k_width=WIDTH))
        acc = tlx.zeros((2, 32, 32), tl.float32, layout=mma)
    acc = tlx.amd_scheduled_mfma(x, y, acc, "transient", initialize=True)
    acc = tlx.amd_scheduled_mfma(x, y, acc, "transient")
    acc = tlx.amd_mfma_commit(acc)
    tl.store(r + b * 1024 + m[None, :, None] * 32 + m[None, None, :], acc)
