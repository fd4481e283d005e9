"""Kernels with block-scaled products, and what they get: for the compiler and for the CPU."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

import remora.tlx as tlx


@triton.jit
def scaled(
    a_desc, b_desc, a_scale_desc, b_scale_desc, c_ptr, K,
    FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, BLOCK: tl.constexpr, COPIED: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """c_ptr (BM, BN): the product of one tile, K in steps of BK.

    a_desc (BM, K), b_desc (BN, K); scales (1, rows / 128, blocks / 4, 2, 256), rounded up, of
    blocks of BLOCK. COPIED: whether the kernel copies them to tensor memory. SCALES: their dtype.
    """
    PACKED: tl.constexpr = 2 if FORMAT == "e2m1" else 1
    B_PACKED: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    A_ROWS: tl.constexpr = BM // 128
    B_ROWS: tl.constexpr = (BN + 127) // 128
    BLOCKS: tl.constexpr = (BK // BLOCK + 3) // 4
    a = tlx.local_alloc((BM, BK // PACKED), tlx.dtype_of(a_desc), 2)
    b = tlx.local_alloc((BN, BK // B_PACKED), tlx.dtype_of(b_desc), 2)
    a_scale = tlx.local_alloc((1, A_ROWS, BLOCKS, 2, 256), SCALES, 2)
    b_scale = tlx.local_alloc((1, B_ROWS, BLOCKS, 2, 256), SCALES, 2)
    acc = tlx.local_alloc((BM, BN), tl.float32, 1, tlx.storage_kind.tmem)
    if COPIED:
        a_copied = tlx.local_alloc((BM, BLOCKS * 4), tl.uint8, 2, tlx.storage_kind.tmem)
        # Of fewer rows than 128 the bytes of 128.
        B_SIZE: tl.constexpr = (BN, B_ROWS * BLOCKS * 512 // BN)
        b_copied = tlx.local_alloc(B_SIZE, tl.uint8, 2, tlx.storage_kind.tmem)
    full = tlx.alloc_barriers(2)
    done = tlx.alloc_barriers(2)
    for i in range(K // BK):
        at = i % 2
        phase = (i // 2) & 1
        tlx.barrier_expect_bytes(
            full[at],
            BM * BK // PACKED + BN * BK // B_PACKED + (A_ROWS + B_ROWS) * BLOCKS * 512,
        )
        tlx.async_descriptor_load(a_desc, a[at], [0, i * BK // PACKED], full[at])
        tlx.async_descriptor_load(b_desc, b[at], [0, i * BK // B_PACKED], full[at])
        tlx.async_descriptor_load(a_scale_desc, a_scale[at], [0, 0, i * BLOCKS, 0, 0], full[at])
        tlx.async_descriptor_load(b_scale_desc, b_scale[at], [0, 0, i * BLOCKS, 0, 0], full[at])
        tlx.barrier_wait(full[at], phase)
        if COPIED:
            tlx.tmem_copy(a_scale[at], a_copied[at])
            tlx.tmem_copy(b_scale[at], b_copied[at])
            tlx.async_dot_scaled(
                a[at], tlx.local_trans(b[at]), acc[0], a_copied[at], FORMAT, b_copied[at], B_FORMAT,
                use_acc=i > 0, mBarriers=[done[at]],
            )  # fmt: skip
        else:
            tlx.async_dot_scaled(
                a[at], tlx.local_trans(b[at]), acc[0], a_scale[at], FORMAT, b_scale[at], B_FORMAT,
                use_acc=i > 0, mBarriers=[done[at]],
            )  # fmt: skip
        tlx.barrier_wait(done[at], phase)
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(c_ptr + at, tlx.local_load(acc[0]))


@triton.jit
def paired(
    a_desc, b_desc, a_scale_desc, b_scale_desc, c_ptr,
    FORMAT: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    PAIR: tl.constexpr, STORED: tl.constexpr, B_FORMAT: tl.constexpr, PLACE: tl.constexpr,
):  # fmt: skip
    """c_ptr (128, N) of each CTA: two CTAs' product of 256 rows; or, without PAIR, one's.

    a_desc (128, K), b_desc (N // 2, K); scales in 4 dimensions, (rows / 128, blocks / 4, 2, 256).
    STORED: B's scales are 1, stored in tensor memory; "copied": the kernel copies them there.
    PLACE: of A, "shared" or "tensor" memory.
    """
    PACKED: tl.constexpr = 2 if FORMAT == "e2m1" else 1
    B_PACKED: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    HALF: tl.constexpr = N // 2 if PAIR else N
    B_ROWS: tl.constexpr = (N + 127) // 128
    BLOCKS: tl.constexpr = K // BLOCK // 4
    rank = tlx.cluster_cta_rank()
    a = tlx.local_alloc((128, K // PACKED), tlx.dtype_of(a_desc), 1)
    b = tlx.local_alloc((HALF, K // B_PACKED), tlx.dtype_of(b_desc), 1)
    a_scale = tlx.local_alloc((1, BLOCKS, 2, 256), tl.uint8, 1)
    b_scale = tlx.local_alloc((B_ROWS, BLOCKS, 2, 256), tl.uint8, 1)
    acc = tlx.local_alloc((128, N), tl.float32, 1, tlx.storage_kind.tmem)
    full = tlx.alloc_barriers(1)
    done = tlx.alloc_barriers(1)
    both = tlx.alloc_barriers(1, arrive_count=2)
    BYTES: tl.constexpr = 128 * K // PACKED + HALF * K // B_PACKED + (1 + B_ROWS) * BLOCKS * 512
    tlx.barrier_expect_bytes(full, BYTES)
    tlx.async_descriptor_load(a_desc, a[0], [rank * 128, 0], full)
    tlx.async_descriptor_load(b_desc, b[0], [rank * HALF, 0], full)
    tlx.async_descriptor_load(a_scale_desc, a_scale[0], [rank, 0, 0, 0], full)
    tlx.async_descriptor_load(b_scale_desc, b_scale[0], [0, 0, 0, 0], full)
    tlx.barrier_wait(full, 0)
    right = b_scale[0]
    if STORED and STORED != "copied":
        right = tlx.local_alloc((N, BLOCKS * 4), tl.uint8, 1, tlx.storage_kind.tmem)[0]
        tlx.local_store(right, tl.full((N, BLOCKS * 4), 127, tl.uint8))
    left = a[0]
    if PLACE == "tensor":
        left = tlx.local_alloc((128, K // PACKED), tlx.dtype_of(a_desc), 1, tlx.storage_kind.tmem)[
            0
        ]
        tlx.local_store(left, tlx.local_load(a[0]))
    if PAIR:
        tlx.barrier_arrive(both[0], 1, remote_cta_rank=0)
        tlx.barrier_wait(both[0], 0, pred=rank == 0)
    if STORED == "copied":
        right = tlx.local_alloc((N, BLOCKS * 4), tl.uint8, 1, tlx.storage_kind.tmem)[0]
        tlx.tmem_copy(b_scale[0], right)
    tlx.async_dot_scaled(
        left, tlx.local_trans(b[0]), acc[0], a_scale[0], FORMAT, right, B_FORMAT,
        use_acc=False, mBarriers=[done[0]], two_ctas=PAIR,
    )  # fmt: skip
    tlx.barrier_wait(done[0], 0)
    at = (rank * 128 + tl.arange(0, 128))[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c_ptr + at, tlx.local_load(acc[0]))


@triton.jit
def turned(x_desc, y_desc, x_scale_desc, y_scale_desc, c_ptr):
    """c (128, 128), K 256: y's scales are (K, 4) in tensor memory, whose bytes lie as (128, 8).

    x_desc (128, 256), y_desc (256, 128), both e4m3; scales (1, 1, 2, 2, 256).
    """
    x = tlx.local_alloc((128, 256), tl.float8e4nv, 1)
    y = tlx.local_alloc((256, 128), tl.float8e4nv, 1)
    x_scale = tlx.local_alloc((1, 1, 2, 2, 256), tl.uint8, 1)
    y_scale = tlx.local_alloc((1, 1, 2, 2, 256), tl.uint8, 1)
    x_copied = tlx.local_alloc((128, 8), tl.uint8, 1, tlx.storage_kind.tmem)
    y_copied = tlx.local_alloc((256, 4), tl.uint8, 1, tlx.storage_kind.tmem)
    acc = tlx.local_alloc((128, 128), tl.float32, 1, tlx.storage_kind.tmem)
    full = tlx.alloc_barriers(1)  # stands for its one barrier
    tlx.barrier_expect_bytes(full, 2 * 128 * 256 + 2 * 1024)
    tlx.async_descriptor_load(x_desc, x[0], [0, 0], full)
    tlx.async_descriptor_load(y_desc, y[0], [0, 0], full)
    tlx.async_descriptor_load(x_scale_desc, x_scale[0], [0, 0, 0, 0, 0], full)
    tlx.async_descriptor_load(y_scale_desc, y_scale[0], [0, 0, 0, 0, 0], full[0])
    tlx.barrier_wait(full, 0)
    tlx.tmem_copy(x_scale[0], x_copied[0])
    tlx.tmem_copy(y_scale[0], y_copied[0])
    tlx.async_dot_scaled(
        x[0], y[0], acc[0], x_copied[0], "e4m3", y_copied[0], "e4m3", use_acc=False
    )
    at = tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :]
    tl.store(c_ptr + at, tlx.local_load(acc[0]))


@triton.jit
def in_parts(a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, c_ptr, N: tl.constexpr, PARTS: tl.constexpr):
    """c = a @ b, (128, 256) and (256, N) of e4m3, scales (rows, 8): K at once, or in two parts."""
    a = tlx.local_alloc((128, 256), tl.float8e4nv, 1)
    b = tlx.local_alloc((256, N), tl.float8e4nv, 1)
    acc = tlx.local_alloc((128, N), tl.float32, 1, tlx.storage_kind.tmem)
    a_scale = tlx.local_alloc((128, 8), tl.uint8, 1, tlx.storage_kind.tmem)
    b_scale = tlx.local_alloc((N, 8), tl.uint8, 1, tlx.storage_kind.tmem)
    blocks = tl.arange(0, 8)[None, :]
    rows, columns = tl.arange(0, 128)[:, None], tl.arange(0, N)[None, :]
    k = tl.arange(0, 256)
    tlx.local_store(a[0], tl.load(a_ptr + rows * 256 + k[None, :]))
    tlx.local_store(b[0], tl.load(b_ptr + k[:, None] * N + columns))
    tlx.local_store(a_scale[0], tl.load(a_scale_ptr + rows * 8 + blocks))
    tlx.local_store(b_scale[0], tl.load(b_scale_ptr + tl.arange(0, N)[:, None] * 8 + blocks))
    tlx.fence_async_shared()
    K: tl.constexpr = 256 // PARTS
    for part in tl.static_range(PARTS):
        tlx.async_dot_scaled(
            tlx.local_slice(a[0], (0, part * K), (128, K)),
            tlx.local_slice(b[0], (part * K, 0), (K, N)), acc[0],
            tlx.subslice(a_scale[0], part * K // 32, K // 32), "e4m3",
            tlx.local_slice(b_scale[0], (0, part * K // 32), (N, K // 32)), "e4m3",
            use_acc=part > 0,
        )  # fmt: skip
    tl.store(c_ptr + rows * N + columns, tlx.local_load(acc[0]))


@triton.jit
def packed(p, q, SHAPE: tl.constexpr, LENGTH: tl.constexpr, LOADED: tl.constexpr):
    """Scales of 128 rows, LENGTH of each; SHAPE: in which their bytes are copied, fewer or as many.

    LOADED, under the reference meaning: q (128, LENGTH).
    """
    COUNT: tl.constexpr = SHAPE[0] * SHAPE[1]
    to = tlx.local_alloc((128, LENGTH), tl.uint8, 1, tlx.storage_kind.tmem)
    tlx.local_store(to[0], tl.full((128, LENGTH), 9, tl.uint8))
    given = tlx.local_alloc(SHAPE, tl.uint8, 1)
    tlx.local_store(given[0], tl.reshape(tl.load(p + tl.arange(0, COUNT)), SHAPE))
    tlx.fence_async_shared()
    tlx.tmem_copy(given[0], to[0])  # copied
    done = tlx.alloc_barriers(1)
    tlx.tcgen05_commit(done[0])
    tlx.barrier_wait(done[0], 0)
    if LOADED:
        at = tl.arange(0, 128)[:, None] * LENGTH + tl.arange(0, LENGTH)[None, :]
        tl.store(q + at, tlx.local_load(to[0]))  # loaded


@triton.jit
def quantized(
    x_ptr, y_ptr, c_ptr, bytes_ptr, scales_ptr, DTYPE: tl.constexpr, WHERE: tl.constexpr,
    STORED: tl.constexpr,
):  # fmt: skip
    """c = mxfp8(x) @ y, all (128, 128): x is converted in the kernel, y is fp8 of scale 1."""
    at = tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :]
    x = tlx.local_alloc((128, 128), DTYPE, 1, WHERE)
    y = tlx.local_alloc((128, 128), DTYPE, 1)
    scales = tlx.local_alloc((128, 4), tl.uint8, 2, tlx.storage_kind.tmem)
    acc = tlx.local_alloc((128, 128), tl.float32, 1, tlx.storage_kind.tmem)
    tlx._to_mxfp8_block(tl.load(x_ptr + at), x[0], scales[0], 32, DTYPE)
    tlx.local_store(y[0], tl.load(y_ptr + at))
    tlx.local_store(scales[1], tl.full((128, 4), 127, tl.uint8))
    tlx.fence_async_shared()
    FORMAT: tl.constexpr = tlx.get_fp8_format_name(DTYPE)
    tlx.async_dot_scaled(x[0], y[0], acc[0], scales[0], FORMAT, scales[1], FORMAT, use_acc=False)
    tl.store(c_ptr + at, tlx.local_load(acc[0]))
    if STORED:
        tl.store(bytes_ptr + at, tlx.local_load(x[0]))


def ordered(scales: torch.Tensor) -> torch.Tensor:
    """Scales (rows, blocks) in the matrix unit's order: (1, rows // 128, blocks // 4, 2, 256)."""
    rows, blocks = (-(-n // step) * step for n, step in zip(scales.shape, (128, 4), strict=True))
    filled = torch.full((rows, blocks), 255, dtype=scales.dtype)  # not a number
    filled[: scales.shape[0], : scales.shape[1]] = scales
    scales = filled
    tiles = scales.view(rows // 128, 4, 32, blocks // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(1, rows // 128, blocks // 4, 2, 256).contiguous()


def numbers(matrix: torch.Tensor, format_: str) -> np.ndarray:
    """fp64, of a matrix with K along its second dimension."""
    if format_ != "e2m1":
        return matrix.float().numpy().astype(np.float64)
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    raw = matrix.numpy().view(np.uint8)
    found = np.empty((raw.shape[0], raw.shape[1] * 2))
    for half, codes in enumerate((raw % 16, raw // 16)):
        found[:, half::2] = magnitudes[codes % 8] * np.where(codes < 8, 1, -1)
    return found
