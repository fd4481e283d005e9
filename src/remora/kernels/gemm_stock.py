"""The same product in plain Triton: what the TLX kernels are compared with."""

from __future__ import annotations

import triton
import triton.language as tl

from remora.kernels.tiles import tile_of


@triton.jit
def gemm_stock(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    STAGES: tl.constexpr,
    ACC: tl.constexpr,
):
    """``C = A @ B``, pipelined by the compiler in STAGES stages."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    depth = tl.arange(0, BLOCK_K)
    a_at = a_ptr + rows[:, None] * stride_am + depth[None, :] * stride_ak
    b_at = b_ptr + depth[:, None] * stride_bk + columns[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=STAGES):
        left = K - step * BLOCK_K
        a = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_at = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_at, acc.to(c_ptr.dtype.element_ty), mask=inside)
