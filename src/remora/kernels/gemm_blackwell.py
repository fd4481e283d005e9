"""Matrix product for Blackwell: persistent, with tasks, sums in tensor memory, launch control.

Three tasks: one warp copies operands (TMA), one starts products (tcgen05), four store what the
tensor memory holds. Two sums fit into it: one is stored while the next one grows. The machine
hands out tiles: where a program is done, it takes the place of one that has not begun.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import remora.tlx as tlx
from remora.errors import KernelArgumentError
from remora.kernels.operands import Product
from remora.kernels.tiles import tile_of


@triton.jit
def _place(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
           PAIR: tl.constexpr):  # fmt: skip
    """The first row and column of a program's tile; of two, each has half of the rows."""
    CTAS: tl.constexpr = 2 if PAIR else 1
    tile_m, tile_n = tile_of(program // CTAS, M, N, CTAS * BLOCK_M, BLOCK_N, GROUP_M)
    return (tile_m * CTAS + program % CTAS) * BLOCK_M, tile_n * BLOCK_N


@triton.jit
def _copy(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, tiles, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """The operands of tile after tile, stage by stage; this task asks for the tiles, too."""
    COLUMNS: tl.constexpr = BLOCK_N // 2 if PAIR else BLOCK_N
    BYTES: tl.constexpr = (BLOCK_M + COLUMNS) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    program, step, phase = tl.program_id(0), 0, 0
    while program >= 0:
        tlx.clc_producer(tiles, phase ^ 1, multi_ctas=PAIR)
        row, column = _place(program, M, N, BLOCK_M, BLOCK_N, GROUP_M, PAIR)
        if PAIR:
            column += program % 2 * COLUMNS
        for k in range(0, K, BLOCK_K):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], (step // STAGES) & 1 ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            if A_BY_COLUMN:
                tlx.async_descriptor_load(a_desc, a_buffers[stage], [k, row], full[stage])
            else:
                tlx.async_descriptor_load(a_desc, a_buffers[stage], [row, k], full[stage])
            if B_BY_COLUMN:
                tlx.async_descriptor_load(b_desc, b_buffers[stage], [column, k], full[stage])
            else:
                tlx.async_descriptor_load(b_desc, b_buffers[stage], [k, column], full[stage])
            step += 1
        program = tlx.clc_consumer(tiles, phase, multi_ctas=PAIR)
        phase ^= 1


@triton.jit
def _multiply(
    a_buffers, b_buffers, sums, full, empty, ready, summed, stored, tiles, K,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """The products of tile after tile, in one of two sums. Of a pair the first CTA multiplies."""
    program, step, done = tl.program_id(0), 0, 0
    first = program % 2 == 0
    while program >= 0:
        total = done % 2
        if PAIR:
            tlx.barrier_wait(stored[total], (done // 2) & 1 ^ 1, first)
        else:
            tlx.barrier_wait(stored[total], (done // 2) & 1 ^ 1)
        for k in range(0, K, BLOCK_K):
            stage = step % STAGES
            phase = (step // STAGES) & 1
            tlx.barrier_wait(full[stage], phase)
            if PAIR:  # both have their operands
                tlx.barrier_arrive(ready[stage], 1, 0)
                tlx.barrier_wait(ready[stage], phase, first)
            a = tlx.local_trans(a_buffers[stage]) if A_BY_COLUMN else a_buffers[stage]
            b = tlx.local_trans(b_buffers[stage]) if B_BY_COLUMN else b_buffers[stage]
            tlx.async_dot(a, b, sums[total], use_acc=k > 0, mBarriers=[empty[stage]], two_ctas=PAIR)
            step += 1
        tlx.tcgen05_commit(summed[total], two_ctas=PAIR)
        program = tlx.clc_consumer(tiles, done & 1, multi_ctas=PAIR)
        done += 1


@triton.jit
def _store(
    c_desc, c_buffers, sums, summed, stored, tiles, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, SUBTILES: tl.constexpr,
    PAIR: tl.constexpr,
):  # fmt: skip
    """Sum after sum to global memory, in SUBTILES parts through two buffers."""
    COLUMNS: tl.constexpr = BLOCK_N // SUBTILES
    program, done = tl.program_id(0), 0
    while program >= 0:
        total = done % 2
        row, column = _place(program, M, N, BLOCK_M, BLOCK_N, GROUP_M, PAIR)
        tlx.barrier_wait(summed[total], (done // 2) & 1)
        for part in tl.static_range(SUBTILES):
            values = tlx.local_load(tlx.subslice(sums[total], part * COLUMNS, COLUMNS))
            if part == SUBTILES - 1:
                if PAIR:
                    tlx.barrier_arrive(stored[total], 1, 0)
                else:
                    tlx.barrier_arrive(stored[total])
            buffer = c_buffers[part % 2]
            tlx.async_descriptor_store_wait(1)  # the store before the last has read its buffer
            tlx.local_store(buffer, values.to(tlx.dtype_of(c_desc)))
            tlx.fence_async_shared()
            tlx.async_descriptor_store(c_desc, buffer, [row, column + part * COLUMNS])
        program = tlx.clc_consumer(tiles, done & 1, multi_ctas=PAIR)
        done += 1
    tlx.async_descriptor_store_wait(0)


@tlx.jit
def gemm_blackwell(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, SUBTILES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, summed in fp32.

    With PAIR two CTAs of a cluster share a tile of 2 * BLOCK_M rows, each with half of A's rows
    and half of B's columns: half of B's traffic.

    a_desc (M, K) in blocks of (BLOCK_M, BLOCK_K), or (K, M) in (BLOCK_K, BLOCK_M) if
    A_BY_COLUMN; b_desc (K, N) in (BLOCK_K, COLUMNS), or (N, K)
    in (COLUMNS, BLOCK_K) if B_BY_COLUMN, COLUMNS being BLOCK_N, or BLOCK_N // 2 with PAIR;
    c_desc (M, N) in (BLOCK_M, BLOCK_N // SUBTILES). Grid: a program for each tile, two with
    PAIR. BLOCK_M: 128. BLOCK_N: at most 256. STAGES: buffers of each operand. SUBTILES: even.
    """
    COLUMNS: tl.constexpr = BLOCK_N // 2 if PAIR else BLOCK_N
    CTAS: tl.constexpr = 2 if PAIR else 1
    B_SHAPE: tl.constexpr = (COLUMNS, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, COLUMNS)
    A_SHAPE: tl.constexpr = (BLOCK_K, BLOCK_M) if A_BY_COLUMN else (BLOCK_M, BLOCK_K)
    a_buffers = tlx.local_alloc(A_SHAPE, tlx.dtype_of(a_desc), STAGES)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = tlx.local_alloc((BLOCK_M, BLOCK_N // SUBTILES), tlx.dtype_of(c_desc), 2)
    sums = tlx.local_alloc((BLOCK_M, BLOCK_N), tl.float32, 2, tlx.storage_kind.tmem)
    full = tlx.alloc_barriers(STAGES)
    empty = tlx.alloc_barriers(STAGES)
    ready = tlx.alloc_barriers(STAGES, CTAS)
    summed = tlx.alloc_barriers(2)
    stored = tlx.alloc_barriers(2, CTAS)
    tiles = tlx.clc_create_context(3 * CTAS)
    with tlx.async_tasks():
        with tlx.async_task(num_warps=1, num_regs=40):
            _copy(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, tiles, M, N, K,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, A_BY_COLUMN, B_BY_COLUMN, PAIR,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _multiply(
                a_buffers, b_buffers, sums, full, empty, ready, summed, stored, tiles, K,
                BLOCK_K, STAGES, A_BY_COLUMN, B_BY_COLUMN, PAIR,
            )  # fmt: skip
        with tlx.async_task("default"):
            _store(
                c_desc, c_buffers, sums, summed, stored, tiles, M, N,
                BLOCK_M, BLOCK_N, GROUP_M, SUBTILES, PAIR,
            )  # fmt: skip


def launch_blackwell(product: Product, config: Any, is_plain: bool) -> None:
    """Launch the kernel.

    config: a ``remora.kernels.matmul.Config``; a cluster of (2, 1) is a pair. is_plain: whether
    the sums are stored as they are.

    Raises:
        KernelArgumentError: the kernel does not take the product.
    """
    a, b, c = product.a, product.b, product.c
    problem = ""
    if not is_plain:
        problem = "it takes no scales and no epilogue"
    elif product.batches > 1:
        problem = "it takes no batches"
    elif a.tensor.element_size() == 1 and not a.tensor.dtype.is_floating_point:
        problem = "the matrix unit multiplies no int8"
    elif a.tensor.element_size() == 4 and (a.by_column or not b.by_column):
        problem = "fp32 is multiplied along contiguous dimensions: a by rows, b by columns"
    elif product.k == 0:
        problem = "K is 0"
    elif a.described is None or b.described is None or not product.c_described:
        problem = "rows (or columns) have to be contiguous and multiples of 16 bytes apart"
    if problem:
        raise KernelArgumentError(
            f"the kernel for Blackwell does not take this product: {problem}",
            where="remora.kernels.matmul",
            hint="remora.kernels.gemm_stock.gemm_stock is a plain kernel for any strides",
        )
    ctas = config.cluster[0]
    tiles = triton.cdiv(product.m, config.block_m * ctas) * triton.cdiv(product.n, config.block_n)
    gemm_blackwell[(tiles * ctas,)](
        a.descriptor(config.block_m, config.block_k),
        b.descriptor(config.block_k, config.block_n // ctas),
        TensorDescriptor.from_tensor(c, [config.block_m, config.block_n // config.subtiles]),
        product.m, product.n, product.k, **config.arguments(), SUBTILES=config.subtiles,
        A_BY_COLUMN=a.by_column, B_BY_COLUMN=b.by_column, PAIR=ctas == 2,
        num_warps=4, ctas_per_cga=(ctas, 1, 1),
    )  # fmt: skip
