"""The product in plain Triton: what the TLX kernels are compared with.

On Blackwell it is also what multiplies where the copy engine cannot take the operands.
"""

from __future__ import annotations

import triton
import triton.language as tl

from remora.kernels.epilogue import finish
from remora.kernels.tiles import first_blocks, place_of


@triton.jit
def gemm_stock(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak,
    stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    scale_a, scale_b, args,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, ACC: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, pipelined by the compiler in STAGES stages; any M, N and K, any strides, in
    batches.

    a_ptr (M, K), b_ptr (K, N), c_ptr (M, N), each with a stride from matrix to matrix.
    scale_a, ..., args, EPILOGUE, INDEX: see ``finished``. ACC: the accumulator's element type.
    """
    batch, tile_m, tile_n = place_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    a_ptr += batch.to(INDEX) * stride_ab
    b_ptr += batch.to(INDEX) * stride_bb
    depth = tl.arange(0, BLOCK_K)
    a_at, b_at = first_blocks(
        a_ptr, b_ptr, tile_m, tile_n, M, N, depth, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, INDEX,
    )  # fmt: skip
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in tl.range(tl.cdiv(K, BLOCK_K), num_stages=STAGES):
        left = K - step * BLOCK_K
        a = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
        a_at += tl.cast(BLOCK_K, INDEX) * stride_ak
        b_at += tl.cast(BLOCK_K, INDEX) * stride_bk
    finish(
        c_ptr, acc, batch, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cb, stride_cm,
        stride_cn, scale_a, scale_b, args, EPILOGUE, INDEX,
    )  # fmt: skip
