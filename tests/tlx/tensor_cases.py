"""Kernels with tensor memory, compiled by ``test_tensor_memory.py`` and run by ``meaning_*``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import remora.tlx as tlx


@triton.jit
def round_trip(p, q, M: tl.constexpr, N: tl.constexpr, WHAT: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    buffers = tlx.local_alloc((M, N), tl.float32, 2, tlx.storage_kind.tmem)
    one = buffers[1]
    tlx.local_store(one, tl.load(p + at))
    x = tlx.local_load(one)
    if WHAT == "whole":
        tl.store(q + at, x)
    elif WHAT == "parts":
        half = tl.arange(0, M)[:, None] * N + tl.arange(0, N // 2)[None, :]
        left = tlx.local_load(tlx.subslice(one, 0, N // 2))
        right = tlx.local_load(tlx.local_slice(one, [0, N // 2], [M, N // 2]))
        tl.store(q + half, right)
        tl.store(q + half + N // 2, left)
    elif WHAT == "over":
        # Four of 16 bits over two of 32; a column each of sums over the same.
        halves = tlx.local_alloc((M, N), tl.float16, 4, tlx.storage_kind.tmem, reuse=buffers)
        sums = tlx.local_alloc((M, 1), tl.float32, 2 * N, tlx.storage_kind.tmem, reuse=buffers)
        tlx.local_store(halves[2], x.to(tl.float16))
        tlx.local_store(sums[N + N // 2], tl.sum(x, 1)[:, None])
        tl.store(q + at, tlx.local_load(halves[2]) + tlx.local_load(sums[N + N // 2]))
    else:
        # The first columns, and a part, as another type.
        first = tlx.local_reinterpret(one, tl.float16, [M, N])
        second = tlx.local_reinterpret(tlx.subslice(one, N // 2, N // 2), tl.float16, [M, N])
        tlx.local_store(first, x.to(tl.float16))
        tlx.local_store(second, (2 * x).to(tl.float16))
        tl.store(q + at, tlx.local_load(first).to(tl.float32) + tlx.local_load(second))


def expected_round_trip(p: Any, what: str) -> Any:
    n = p.shape[1] // 2
    rounded = p.half().float()
    return {
        "whole": p,
        "parts": torch.cat([p[:, n:], p[:, :n]], 1),
        "over": rounded + p.sum(1, keepdim=True),
        "read": 3 * rounded,
    }[what]


@triton.jit
def grouped(p, q, M: tl.constexpr, N: tl.constexpr):
    """P in half of the columns of S, statistics in the other half; beside both nothing."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    memory = tlx.storage_alias_spec(tlx.storage_kind.tmem)
    s = tlx.local_alloc((M, N), tl.float32, 2, tlx.storage_kind.tmem, reuse=memory)
    parts = tlx.local_alloc((M, N // 2), tl.float16, 4, tlx.storage_kind.tmem, reuse=memory)
    m = tlx.local_alloc((M, 1), tl.float32, 2, tlx.storage_kind.tmem, reuse=memory)
    beside: tl.constexpr = tlx.reuse_group_type.distinct
    memory.set_buffer_overlap(
        tlx.reuse_group(
            s, tlx.reuse_group(tlx.reuse_group(parts, group_size=2), m, group_type=beside)
        )
    )
    x = tl.load(p + at)
    tlx.local_store(s[1], x)
    tlx.local_store(m[1], tl.max(x, 1)[:, None])
    half = tl.arange(0, M)[:, None] * N + tl.arange(0, N // 2)[None, :]
    tlx.local_store(parts[3], tl.load(p + half).to(tl.float16))
    # parts[3] is the second of the two over s[1]: its columns N / 4 to N / 2; m[1] is column N / 2.
    y = tlx.local_load(tlx.subslice(s[1], N // 2, N // 2))
    tl.store(q + half, tlx.local_load(parts[3]).to(tl.float32))
    tl.store(q + half + N // 2, y)


@triton.jit
def product(
    p, q, r, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SUM: tl.constexpr,
    WHAT: tl.constexpr,
):  # fmt: skip
    left = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    right = tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :]
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tlx.local_alloc((M, K), tlx.dtype_of(p), 1)[0]
    bars = tlx.alloc_barriers(2)
    tlx.local_store(a, tl.load(p + left))
    if WHAT == "transposed":
        columns = tlx.local_alloc((N, K), tlx.dtype_of(q), 1)[0]
        tlx.local_store(columns, tl.trans(tl.load(q + right)))
        b = tlx.local_trans(columns)
    else:
        b = tlx.local_alloc((K, N), tlx.dtype_of(q), 1)[0]
        tlx.local_store(b, tl.load(q + right))
    sums = tlx.local_alloc((M, N), SUM, 1, tlx.storage_kind.tmem)
    acc = sums[0]
    tlx.fence_async_shared()
    if WHAT == "at once":
        tlx.async_dot(a, b, acc, use_acc=False)
    elif WHAT == "tensor memory":
        t = tlx.local_alloc((M, K), tlx.dtype_of(p), 1, tlx.storage_kind.tmem)[0]
        tlx.local_store(t, tl.load(p + left))
        tlx.async_dot(t, b, acc, use_acc=False, mBarriers=[bars[0]])
        tlx.barrier_wait(bars[0], 0)
    elif WHAT == "twice":
        tlx.async_dot(a, b, acc, use_acc=n > 9, force_async=True)
        tlx.async_dot(a, b, acc, pred=n > 9, mBarriers=[bars[1]])
        tlx.async_dot(a, b, acc, pred=n > 0, force_async=True)
        tlx.tcgen05_commit(bars[0])
        tlx.barrier_wait(bars[0], 0)
    elif WHAT == "parts":
        half = tl.arange(0, K)[:, None] * N + tl.arange(0, N // 2)[None, :]
        narrow = tlx.local_alloc((K, N // 2), tlx.dtype_of(q), 1)[0]
        tlx.local_store(narrow, tl.load(q + half))
        tlx.fence_async_shared()
        tlx.async_dot(a, narrow, tlx.subslice(acc, N // 2, N // 2), False, mBarriers=[bars[1]])
        tlx.async_dot(a, narrow, tlx.subslice(acc, 0, N // 2), False, mBarriers=[bars[0], bars[1]])
        tlx.barrier_wait(bars[0], 0)
    elif WHAT == "copied":
        begin = tlx.local_alloc((M, N), SUM, 1)[0]
        tlx.local_store(begin, tl.load(r + at).to(SUM))
        tlx.fence_async_shared()
        tlx.tmem_copy(begin, acc)
        tlx.async_dot(a, b, acc, mBarriers=[bars[0]])
        tlx.barrier_wait(bars[0], 0)
    else:
        tlx.async_dot(a, b, acc, use_acc=False, mBarriers=[bars[0]])
        tlx.barrier_wait(bars[0], 0)
    tl.store(r + at, tlx.local_load(acc).to(tl.float32))


#: M, N, K, operands, sums, what is special.
PRODUCTS = [
    (128, 128, 64, "fp16", "fp32", "plain"),
    (128, 64, 64, "fp16", "fp32", "transposed"),
    (64, 64, 64, "bf16", "fp32", "at once"),
    (128, 64, 128, "fp16", "fp32", "tensor memory"),
    (64, 32, 64, "bf16", "fp32", "tensor memory"),
    (128, 64, 64, "fp8e5", "fp32", "tensor memory"),
    (128, 64, 64, "fp16", "fp32", "twice"),
    (128, 64, 64, "fp16", "fp16", "plain"),
    (64, 64, 64, "fp16", "fp16", "plain"),
    (128, 32, 64, "fp32", "fp32", "transposed"),
    (128, 64, 64, "fp8e4nv", "fp32", "plain"),
    (128, 64, 64, "fp8e5", "fp32", "transposed"),
    (128, 128, 64, "fp16", "fp32", "parts"),
    (64, 64, 64, "fp16", "fp32", "parts"),
    (128, 64, 64, "fp16", "fp32", "copied"),
    (128, 64, 64, "i8", "i32", "plain"),
    (64, 64, 64, "i8", "i32", "twice"),
]

TORCH = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
    "i8": torch.int8,
}  # fmt: skip
SUMS = {"fp32": tl.float32, "fp16": tl.float16, "i32": tl.int32}


def expected_product(a: Any, b: Any, before: Any, what: str) -> Any:
    c = a.float() @ b.float()
    if what == "parts":
        half = c[:, : c.shape[1] // 2]
        return torch.cat([half, half], 1)
    return {"twice": 2 * c, "copied": before + c}.get(what, c)
