"""Matrix product for Hopper: copies in several stages, products of a warp group.

While the matrix unit works on one buffer, the copy engine fills the others.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finish
from remora.kernels.tiles import first_blocks, place_of


@triton.jit
def multiply_pipelined(
    a_at, b_at, a_buffers, b_buffers, K, stride_ak, stride_bk, BUFFERS: tl.constexpr,
    ACC: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The sum over K of one tile; all copies and products are done.

    a_at (BLOCK_M, BLOCK_K), b_at (BLOCK_K, BLOCK_N): pointers to the first elements.
    a_buffers, b_buffers: BUFFERS of each, at least 3. INDEX: type of indices.
    """
    BLOCK_M: tl.constexpr = a_at.shape[0]
    BLOCK_K: tl.constexpr = a_at.shape[1]
    BLOCK_N: tl.constexpr = b_at.shape[1]
    depth = tl.arange(0, BLOCK_K)
    for stage in tl.static_range(BUFFERS - 1):
        left = K - stage * BLOCK_K
        a_token = tlx.async_load(a_at, tlx.local_view(a_buffers, stage), mask=depth[None, :] < left)
        b_token = tlx.async_load(b_at, tlx.local_view(b_buffers, stage), mask=depth[:, None] < left)
        tlx.async_load_commit_group([a_token, b_token])
        a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
        b_at += tl.cast(BLOCK_K, INDEX) * stride_bk

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=0):
        buffer = step % BUFFERS
        tlx.async_load_wait_group(BUFFERS - 2)
        acc = tlx.async_dot(
            tlx.local_view(a_buffers, buffer), tlx.local_view(b_buffers, buffer), acc
        )
        # The product before this one is done then, and its buffer is free.
        acc = tlx.async_dot_wait(1, acc)
        ahead = step + BUFFERS - 1
        free = ahead % BUFFERS
        left = K - ahead * BLOCK_K
        a_token = tlx.async_load(a_at, tlx.local_view(a_buffers, free), mask=depth[None, :] < left)
        b_token = tlx.async_load(b_at, tlx.local_view(b_buffers, free), mask=depth[:, None] < left)
        tlx.async_load_commit_group([a_token, b_token])
        a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
        b_at += tl.cast(BLOCK_K, INDEX) * stride_bk
    # The copies past the end of K write zeros; they are waited for, because the
    # compiler uses the buffers' memory again from here on.
    tlx.async_load_wait_group(0)
    return tlx.async_dot_wait(0, acc)


@triton.jit
def gemm_pipelined(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak,
    stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    scale_a, scale_b, args,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, ACC: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``; any M, N and K, any strides, in batches.

    a_ptr (M, K), b_ptr (K, N), c_ptr (M, N), each with a stride from matrix to matrix.
    scale_a, ..., args, EPILOGUE, INDEX: see ``finished``. STAGES: buffers of each operand, at
    least 3. ACC: the accumulator's element type. GROUP_M: rows of tiles that are
    worked on together, for the L2 cache.
    """
    batch, tile_m, tile_n = place_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    a_ptr += batch.to(INDEX) * stride_ab
    b_ptr += batch.to(INDEX) * stride_bb
    depth = tl.arange(0, BLOCK_K)
    a_at, b_at = first_blocks(
        a_ptr, b_ptr, tile_m, tile_n, M, N, depth, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, INDEX,
    )  # fmt: skip

    a_buffers = tlx.local_alloc((BLOCK_M, BLOCK_K), tlx.dtype_of(a_ptr), STAGES)
    b_buffers = tlx.local_alloc((BLOCK_K, BLOCK_N), tlx.dtype_of(b_ptr), STAGES)

    acc = multiply_pipelined(
        a_at, b_at, a_buffers, b_buffers, K, stride_ak, stride_bk, STAGES, ACC, INDEX
    )

    finish(
        c_ptr, acc, batch, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cb, stride_cm,
        stride_cn, scale_a, scale_b, args, EPILOGUE, INDEX,
    )  # fmt: skip
