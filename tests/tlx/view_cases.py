"""Kernels with views and shared memory, and what they are to give; on a CPU and on a GPU.

``meaning_views.py`` runs them with the reference meaning, ``tests/gpu/test_views.py`` on a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

import remora.tlx as tlx


@triton.jit
def reads(p, q, WHAT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Stores a matrix into the second of three buffers, and loads it through a view."""
    buf = tlx.local_alloc((M, N), tlx.dtype_of(p), 3)
    m, n = tl.arange(0, M), tl.arange(0, N)
    v = buf[1]
    tlx.local_store(v, tl.load(p + m[:, None] * N + n[None, :]))
    if WHAT == "transposed":
        tl.store(q + n[:, None] * M + m[None, :], tlx.local_load(tlx.local_trans(v)))
    if WHAT == "columns":
        h = tl.arange(0, N // 2)
        x = tlx.local_load(tlx.subslice(v, N // 2, N // 2))
        tl.store(q + m[:, None] * (N // 2) + h[None, :], x)
    if WHAT == "part of a transposed part":
        w = tlx.local_trans(tlx.local_slice(v, [M // 2, 0], [M // 2, N]))
        w = tlx.local_slice(w, (N // 4, 0), (N // 4, M // 4))
        k, h = tl.arange(0, N // 4), tl.arange(0, M // 4)
        tl.store(q + k[:, None] * (M // 4) + h[None, :], tlx.local_load(w))
    if WHAT == "stored through":
        h = tl.arange(0, N // 2)
        x = tl.load(p + m[:, None] * N + h[None, :])
        tlx.local_store(tlx.local_trans(tlx.subslice(v, N // 2, N // 2)), tl.trans(x))
        tl.store(q + m[:, None] * N + n[None, :], tlx.local_load(v))
    if WHAT == "bytes":
        c = tl.arange(0, 2 * N)
        x = tlx.local_load(tlx.local_reinterpret(v, tl.int8, (M, 2 * N)))
        tl.store(q + m[:, None] * 2 * N + c[None, :], x)
    if WHAT == "one row":
        r = tl.arange(0, M * N // 2)
        tl.store(q + r, tlx.local_load(tlx.local_reinterpret(v, tl.int32, (M * N // 2,))))
    if WHAT == "first half":
        w = tlx.local_reinterpret(v, tlx.dtype_of(p), [M // 2, N])
        h = tl.arange(0, M // 2)
        tl.store(q + h[:, None] * N + n[None, :], tlx.local_load(w))
    if WHAT == "elements of a row":
        row = tlx.local_alloc((M,), tlx.dtype_of(p), 2)
        tlx.local_store(row[1], tl.load(p + m))
        for i in range(M):
            tl.store(q + i + tl.arange(0, 1), tlx.local_load(row[1][i]) + tlx.local_load(row[1][2]))
    if WHAT == "gathered":
        at = m[:, None] * N + n[None, :]
        tl.store(q + at, tlx.local_gather(v, (m[:, None] + n[None, :]) % M, 0))
    if WHAT == "scattered":
        at = m[:, None] * N + n[None, :]
        places = (5 * n[None, :] + m[:, None]) % N  # 5 and N have no factor in common
        tlx.local_scatter(v, tl.load(p + at), places, axis=-1)
        tl.store(q + at, tlx.local_load(v))


def check_reads(what: str, device: str, m: int = 32, n: int = 64) -> None:
    p = torch.randn((m, n), device=device).half()
    rows = torch.arange(m, device=device)[:, None].expand(m, n)
    columns = torch.arange(n, device=device)[None, :].expand(m, n)
    expected = {
        "transposed": lambda: p.T,
        "columns": lambda: p[:, n // 2 :],
        "part of a transposed part": lambda: p[m // 2 :].T[n // 4 : n // 2, : m // 4],
        "stored through": lambda: torch.cat((p[:, : n // 2], p[:, : n // 2]), 1),
        "bytes": lambda: p.view(torch.int8),
        "one row": lambda: p.reshape(-1).view(torch.int32),
        "first half": lambda: p[: m // 2],
        "elements of a row": lambda: p.reshape(-1)[:m] + p[0, 2],
        "gathered": lambda: torch.gather(p, 0, (rows + columns) % m),
        "scattered": lambda: torch.zeros_like(p).scatter_(1, (5 * columns + rows) % n, p),
    }[what]().contiguous()
    q = torch.zeros_like(expected)
    reads[(1,)](p, q, what, m, n)
    assert torch.equal(q, expected)


READS = (
    "transposed", "columns", "part of a transposed part", "stored through", "bytes", "one row",
    "first half", "elements of a row", "gathered", "scattered",
)  # fmt: skip


@triton.jit
def joined(p, q, r, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A product whose A is two buffers, read as one, and whose B is a transposed part."""
    a = tlx.local_alloc((M // 2, K), tlx.dtype_of(p), 2)
    b = tlx.local_alloc((2 * N, K), tlx.dtype_of(q), 1)
    m, n, k = tl.arange(0, M // 2), tl.arange(0, 2 * N), tl.arange(0, K)
    for i in tl.static_range(2):
        at = p + (i * (M // 2) + m[:, None]) * K + k[None, :]
        tlx.async_load(at, a[i])
    tlx.async_load(q + n[:, None] * K + k[None, :], b[0])
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    whole = tlx.local_reinterpret(a, tlx.dtype_of(p), [M, K])
    part = tlx.local_trans(tlx.local_slice(b[0], [N, 0], [N, K]))
    acc = tlx.async_dot_wait(0, tlx.async_dot(whole, part))
    tl.store(r + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], acc)


def check_joined(device: str, dtype: Any, k: int) -> None:
    p, q = (torch.randn((128, k), device=device).to(dtype) for _ in range(2))
    r = torch.zeros((128, 64), device=device)
    joined[(1,)](p, q, r, 128, 64, k)
    expected = p.double() @ q[64:].double().T
    assert (r.double() - expected).norm() < 2e-3 * expected.norm()


@triton.jit
def parts(p, q, r, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A product in four parts of K, of buffers that hold all of it."""
    a = tlx.local_alloc((M, K), tlx.dtype_of(p), 1)
    b = tlx.local_alloc((N, K), tlx.dtype_of(q), 1)
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    tlx.async_load(p + m[:, None] * K + k[None, :], a[0])
    tlx.async_load(q + n[:, None] * K + k[None, :], b[0])
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    acc = tl.zeros((M, N), tl.float32)
    for i in tl.static_range(0, K, K // 4):
        left = tlx.subslice(a[0], i, K // 4)
        right = tlx.local_slice(tlx.local_trans(b[0]), [i, 0], [K // 4, N])
        acc = tlx.async_dot(left, right, acc)
    acc = tlx.async_dot_wait(0, acc)
    tl.store(r + m[:, None] * N + n[None, :], acc)


def check_parts(device: str, dtype: Any, k: int) -> None:
    p, q = (torch.randn(s, device=device).to(dtype) for s in ((128, k), (64, k)))
    r = torch.zeros((128, 64), device=device)
    parts[(1,)](p, q, r, 128, 64, k)
    expected = p.double() @ q.double().T
    assert (r.double() - expected).norm() < 2e-3 * expected.norm()


@triton.jit
def over_each_other(p, q, r, s, n, WHAT: tl.constexpr, D: tl.constexpr):
    """Products whose result goes through the operands' memory."""
    at = tl.arange(0, D)[:, None] * D + tl.arange(0, D)[None, :]
    if WHAT == "another":
        c = tlx.local_alloc((D, D), tl.float32, 1)
        a = tlx.local_alloc((D, D), tlx.dtype_of(p), 1, reuse=c)
        b = tlx.local_alloc((D, D), tlx.dtype_of(q), 1)
    else:
        spec = tlx.storage_alias_spec(tlx.storage_kind.smem)
        a = tlx.local_alloc((D, D), tlx.dtype_of(p), 2, reuse=spec)
        b = tlx.local_alloc((D, D), tlx.dtype_of(q), 2, reuse=spec)
        c = tlx.local_alloc((D, D), tl.float32, 2, reuse=spec)
        spec.set_buffer_overlap(
            tlx.reuse_group(
                c,
                tlx.reuse_group(a, b, group_type=tlx.reuse_group_type.distinct),
                group_type=tlx.reuse_group_type.shared,
            )
        )  # fmt: skip
    for i in range(n):
        j = i % 2 if WHAT == "group" else 0
        tlx.local_store(a[j], tl.load(p + i * D * D + at))
        tlx.local_store(b[j], tl.load(q + i * D * D + at))
        acc = tlx.async_dot_wait(0, tlx.async_dot(a[j], b[j]))
        tlx.local_store(c[j], acc)
        tl.store(r + i * D * D + at, tlx.local_load(c[j]))


def check_over_each_other(what: str, device: str) -> None:
    p, q = (torch.randn((5, 64, 64), device=device).half() for _ in range(2))
    r = torch.zeros((5, 64, 64), device=device)
    over_each_other[(1,)](p, q, r, r, 5, what, 64)
    expected = p.double() @ q.double()
    assert (r.double() - expected).norm() < 1e-3 * expected.norm()


@triton.jit
def same_bytes(p, q, NUM: tl.constexpr, D: tl.constexpr):
    """Each of two buffers of int32 under four of int16: the second name reads the first's bytes."""
    spec = tlx.storage_alias_spec()
    wide = tlx.local_alloc((D,), tl.int32, NUM, reuse=spec)
    narrow = tlx.local_alloc((D,), tl.int16, 2 * NUM, reuse=spec)
    other = tlx.local_alloc((D,), tl.int32, NUM, reuse=spec)
    pair = tlx.reuse_group(narrow, group_size=2)
    shared = tlx.reuse_group(wide, pair, group_type=tlx.reuse_group_type.shared)
    spec.set_buffer_overlap(
        tlx.reuse_group(shared, other, group_type=tlx.reuse_group_type.distinct)
    )
    at = tl.arange(0, D)
    for i in tl.static_range(NUM):
        tlx.local_store(other[i], at * 0 - 1)
        tlx.local_store(wide[i], tl.load(p + i * D + at))
    for i in range(2 * NUM):
        tl.store(q + i * D + at, tlx.local_load(narrow[i]))


def check_same_bytes(device: str) -> None:
    p = torch.arange(3 * 128, device=device, dtype=torch.int32) * 65537 + 7
    q = torch.zeros(3 * 256, device=device, dtype=torch.int16)
    same_bytes[(1,)](p, q, 3, 128)
    assert torch.equal(q, p.view(torch.int16))


@triton.jit
def attention(
    q, k, v, o, n, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    PIPELINED: tl.constexpr,
):  # fmt: skip
    """One tile of queries over ``n`` tiles of keys, by copies and asynchronous products.

    PIPELINED: the product with the keys of a step is in flight beside that with the values of
    the step before; a wait for the first leaves the second in flight.
    """
    qb = tlx.local_alloc((M, D), tlx.dtype_of(q), 1)
    kb = tlx.local_alloc((N, D), tlx.dtype_of(k), 2)
    vb = tlx.local_alloc((N, D), tlx.dtype_of(v), 2)
    rows, keys, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    at = keys[:, None] * D + d[None, :]
    tlx.async_load(q + rows[:, None] * D + d[None, :], qb[0])
    for i in tl.static_range(1):
        tlx.async_load(k + i * N * D + at, kb[i])
        tlx.async_load(v + i * N * D + at, vb[i])
        tlx.async_load_commit_group()
    m_i = tl.full([M], float("-inf"), tl.float32)
    l_i = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    if PIPELINED:
        tlx.async_load_wait_group(0)
        s = tlx.async_dot(qb[0], tlx.local_trans(kb[0]))
        s = tlx.async_dot_wait(0, s)
        m_ij = tl.maximum(m_i, tl.max(s, 1) * scale)
        p = tl.math.exp2(s * scale - m_ij[:, None])
        l_i = tl.sum(p, 1)
        m_i = m_ij
        for i in range(1, n):
            tlx.async_load(k + i * N * D + at, kb[i % 2])
            tlx.async_load(v + i * N * D + at, vb[i % 2])
            tlx.async_load_commit_group()
            tlx.async_load_wait_group(0)
            s = tlx.async_dot(qb[0], tlx.local_trans(kb[i % 2]))
            acc = tlx.async_dot(p.to(tlx.dtype_of(v)), vb[(i - 1) % 2], acc)
            s = tlx.async_dot_wait(1, s)
            m_ij = tl.maximum(m_i, tl.max(s, 1) * scale)
            p = tl.math.exp2(s * scale - m_ij[:, None])
            alpha = tl.math.exp2(m_i - m_ij)
            l_i = l_i * alpha + tl.sum(p, 1)
            m_i = m_ij
            acc = tlx.async_dot_wait(0, acc)
            acc = acc * alpha[:, None]
        acc = tlx.async_dot(p.to(tlx.dtype_of(v)), vb[(n - 1) % 2], acc)
        acc = tlx.async_dot_wait(0, acc)
    else:
        for i in range(n):
            if i + 1 < n:
                tlx.async_load(k + (i + 1) * N * D + at, kb[(i + 1) % 2])
                tlx.async_load(v + (i + 1) * N * D + at, vb[(i + 1) % 2])
            tlx.async_load_commit_group()
            tlx.async_load_wait_group(1)
            s = tlx.async_dot(qb[0], tlx.local_trans(kb[i % 2]))
            s = tlx.async_dot_wait(0, s)
            m_ij = tl.maximum(m_i, tl.max(s, 1) * scale)
            p = tl.math.exp2(s * scale - m_ij[:, None])
            alpha = tl.math.exp2(m_i - m_ij)
            l_i = l_i * alpha + tl.sum(p, 1)
            m_i = m_ij
            acc = acc * alpha[:, None]
            acc = tlx.async_dot(p.to(tlx.dtype_of(v)), vb[i % 2], acc)
            acc = tlx.async_dot_wait(0, acc)
        tlx.async_load_wait_group(0)
    tl.store(o + rows[:, None] * D + d[None, :], acc / l_i[:, None])


def check_attention(
    device: str, dtype: Any, m: int, n: int, d: int, *, pipelined: bool, warps: int = 4
) -> None:
    steps = 5
    q, k, v = (torch.randn((r, d), device=device).to(dtype) for r in (m, steps * n, steps * n))
    o = torch.zeros((m, d), device=device)
    scale = math.log2(math.e) / math.sqrt(d)
    attention[(1,)](q, k, v, o, steps, scale, m, n, d, pipelined, num_warps=warps)
    weights = (q.double() @ k.double().T / math.sqrt(d)).softmax(1)
    expected = weights @ v.double()
    assert (o.double() - expected).norm() < 4e-3 * expected.norm()


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
