"""Matrix products for CDNA, in stages that two groups of warps run one apart.

While one group multiplies, the other moves memory. On CDNA 4 copies go straight to shared
memory; on CDNA 3 the next tile waits in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finish
from remora.kernels.tiles import first_blocks, place_of


@triton.jit
def gemm_direct(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak,
    stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    scale_a, scale_b, args,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, ACC: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B`` with copies straight to shared memory; any M, N and K, any strides, in
    batches.

    a_ptr (M, K), b_ptr (K, N), c_ptr (M, N), each with a stride from matrix to matrix.
    scale_a, ..., args, EPILOGUE, INDEX: see ``finished``. STAGES: at least 3, buffers of
    each operand. ACC: the accumulator's element type.
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
    # One group of copies a tile; past the end of K they write zeros.
    for stage in tl.static_range(STAGES):
        left = K - stage * BLOCK_K
        tlx.async_load(a_at, a_buffers[stage], mask=depth[None, :] < left)
        tlx.async_load(b_at, b_buffers[stage], mask=depth[:, None] < left)
        tlx.async_load_commit_group()
        a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
        b_at += tl.cast(BLOCK_K, INDEX) * stride_bk
    tlx.async_load_wait_group(STAGES - 2)
    a, b = tlx.local_load(a_buffers[0]), tlx.local_load(b_buffers[0])

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in tl.range(tl.cdiv(K, BLOCK_K) - 1, num_stages=0):
        with tlx.warp_pipeline_stage("multiply", priority=0):
            acc = tl.dot(a, b, acc, out_dtype=ACC)
        # A warp waits for its own copies. The group ahead reads tile step + 1 when the other
        # one has last waited in the step before: so each waits for one tile more.
        tlx.async_load_wait_group(STAGES - 3)
        with tlx.warp_pipeline_stage("move", priority=1):
            left = K - (step + STAGES) * BLOCK_K
            tlx.async_load(a_at, a_buffers[step % STAGES], mask=depth[None, :] < left)
            tlx.async_load(b_at, b_buffers[step % STAGES], mask=depth[:, None] < left)
            tlx.async_load_commit_group()
            a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
            b_at += tl.cast(BLOCK_K, INDEX) * stride_bk
            a = tlx.local_load(a_buffers[(step + 1) % STAGES])
            b = tlx.local_load(b_buffers[(step + 1) % STAGES])
    acc = tl.dot(a, b, acc, out_dtype=ACC)
    finish(
        c_ptr, acc, batch, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cb, stride_cm,
        stride_cn, scale_a, scale_b, args, EPILOGUE, INDEX,
    )  # fmt: skip


@triton.jit
def gemm_staged(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak,
    stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    scale_a, scale_b, args,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, ACC: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B`` with loads through registers; any M, N and K, any strides, in
    batches.

    a_ptr (M, K), b_ptr (K, N), c_ptr (M, N), each with a stride from matrix to matrix.
    scale_a, ..., args, EPILOGUE, INDEX: see ``finished``. STAGES: at least 2, buffers of
    each operand; one tile more is on its way. ACC: the accumulator's element type.
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
    a_next = tl.load(a_at, mask=depth[None, :] < K, other=0.0)
    b_next = tl.load(b_at, mask=depth[:, None] < K, other=0.0)
    for stage in tl.static_range(STAGES - 1):
        tlx.local_store(a_buffers[stage], a_next)
        tlx.local_store(b_buffers[stage], b_next)
        a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
        b_at += tl.cast(BLOCK_K, INDEX) * stride_bk
        left = K - (stage + 1) * BLOCK_K
        a_next = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        b_next = tl.load(b_at, mask=depth[:, None] < left, other=0.0)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in tl.range(tl.cdiv(K, BLOCK_K), num_stages=0):
        with tlx.warp_pipeline_stage("move", priority=1):
            a = tlx.local_load(a_buffers[step % STAGES])
            b = tlx.local_load(b_buffers[step % STAGES])
            # All warps have loaded the last tile of this buffer, a step before.
            tlx.local_store(a_buffers[(step + STAGES - 1) % STAGES], a_next)
            tlx.local_store(b_buffers[(step + STAGES - 1) % STAGES], b_next)
            a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
            b_at += tl.cast(BLOCK_K, INDEX) * stride_bk
            left = K - (step + STAGES) * BLOCK_K
            a_next = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
            b_next = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        with tlx.warp_pipeline_stage("multiply", priority=0):
            acc = tl.dot(a, b, acc, out_dtype=ACC)
    finish(
        c_ptr, acc, batch, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cb, stride_cm,
        stride_cn, scale_a, scale_b, args, EPILOGUE, INDEX,
    )  # fmt: skip


@triton.jit
def multiply_staged(
    a_at, b_at, a_buffers, b_buffers, K, stride_ak, stride_bk, BUFFERS: tl.constexpr,
    ACC: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The sum over K of one tile.

    a_at (BLOCK_M, BLOCK_K), b_at (BLOCK_K, BLOCK_N): pointers to the first elements.
    a_buffers, b_buffers: BUFFERS of each, at least 1. INDEX: type of indices.

    ``gemm_staged`` stores a tile that it loaded a step before, which takes two buffers; here it is
    loaded in the step, and one is enough: on gfx942, of 128 x 128, half of the shared memory. (With
    that loop groups of the sum have 2,816 cycles of shared memory a step on gfx950, here 1,280.)
    """
    BLOCK_M: tl.constexpr = a_at.shape[0]
    BLOCK_K: tl.constexpr = a_at.shape[1]
    BLOCK_N: tl.constexpr = b_at.shape[1]
    depth = tl.arange(0, BLOCK_K)
    for stage in tl.static_range(BUFFERS):
        left = K - stage * BLOCK_K
        a = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        tlx.local_store(tlx.local_view(a_buffers, stage), a)
        tlx.local_store(tlx.local_view(b_buffers, stage), b)
        a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
        b_at += tl.cast(BLOCK_K, INDEX) * stride_bk

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    steps = tl.cdiv(K, BLOCK_K)
    for step in tl.range(BUFFERS, steps, num_stages=0):
        left = K - step * BLOCK_K
        a_next = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        b_next = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        a_buffer = tlx.local_view(a_buffers, step % BUFFERS)
        b_buffer = tlx.local_view(b_buffers, step % BUFFERS)
        a, b = tlx.local_load(a_buffer), tlx.local_load(b_buffer)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
        tlx.local_store(a_buffer, a_next)
        tlx.local_store(b_buffer, b_next)
        a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
        b_at += tl.cast(BLOCK_K, INDEX) * stride_bk
    # The buffers hold the last tiles; one past the end of K is zero.
    for stage in tl.static_range(BUFFERS):
        last = tl.maximum(steps - BUFFERS, 0) + stage
        a_buffer = tlx.local_view(a_buffers, last % BUFFERS)
        b_buffer = tlx.local_view(b_buffers, last % BUFFERS)
        a, b = tlx.local_load(a_buffer), tlx.local_load(b_buffer)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
    return acc
