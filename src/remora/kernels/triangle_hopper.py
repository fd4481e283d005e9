"""The triangle multiplicative update's batched product for Hopper.

:func:`pair_products` is between the kernels of :mod:`remora.kernels.triangle_folded`.
Intermediates are channel-major, (channel, pair): so the batched product reads and writes plain
matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import halves_of, tile_of


@triton.jit(do_not_specialize=("BATCHES",))
def pair_products(
    a_desc, b_desc, c_desc, BATCHES, ROW,
    BLOCK_N: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr, INCOMING: tl.constexpr,
):  # fmt: skip
    """``A @ B.T`` for each of BATCHES pairs of matrices; ``A.T @ B`` if INCOMING.

    a_desc, b_desc: the A's, then the B's, of ROW x ROW, one below the other; in blocks
    of (64, 64) and (BLOCK_N, 64), (64, BLOCK_N) if INCOMING. c_desc: the products, in
    blocks of (64, BLOCK_N // PARTS), PARTS 2 or 4. ROW: a multiple of 64.
    Grid: programs, any number.
    """
    B_SHAPE: tl.constexpr = (64, BLOCK_N) if INCOMING else (BLOCK_N, 64)
    a_buffers = tlx.local_alloc((64, 64), tlx.dtype_of(a_desc), STAGES * 2)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = tlx.local_alloc((64, BLOCK_N // PARTS), tlx.dtype_of(c_desc), 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _multiply_pairs(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
                0, BLOCK_N, PARTS, STAGES, INCOMING,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _multiply_pairs(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
                1, BLOCK_N, PARTS, STAGES, INCOMING,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _copy_pairs(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, BATCHES, ROW,
                BLOCK_N, STAGES, INCOMING,
            )  # fmt: skip


@triton.jit
def _tile(tile, ROW, BLOCK_N: tl.constexpr):
    """The batch of a tile, its first row and its first column."""
    tiles = tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    tile_m, tile_n = tile_of(tile % tiles, ROW, ROW, 128, BLOCK_N, 8)
    return tile // tiles, tile_m * 128, tile_n * BLOCK_N


@triton.jit
def _copy_pairs(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, BATCHES, ROW,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, INCOMING: tl.constexpr,
):  # fmt: skip
    step = 0
    tiles = BATCHES * tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        batch, row, column = _tile(tile, ROW, BLOCK_N)
        a_first, b_first = batch * ROW, (BATCHES + batch) * ROW
        for k in range(0, ROW, 64):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(
                full[stage], (128 + BLOCK_N) * 64 * tlx.size_of(tlx.dtype_of(a_desc))
            )
            for part in tl.static_range(2):
                buffer = a_buffers[stage * 2 + part]
                if INCOMING:
                    at = [a_first + k, row + part * 64]
                else:
                    at = [a_first + row + part * 64, k]
                tlx.async_descriptor_load(a_desc, buffer, at, full[stage])
            at = [b_first + k, column] if INCOMING else [b_first + column, k]
            tlx.async_descriptor_load(b_desc, b_buffers[stage], at, full[stage])
            step += 1


@triton.jit
def _multiply_pairs(
    c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
    PART: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    INCOMING: tl.constexpr,
):  # fmt: skip
    """Half of the rows of each of the program's tiles."""
    tl.assume(ROW > 0)
    step = 0
    tiles = BATCHES * tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        batch, row, column = _tile(tile, ROW, BLOCK_N)
        row += PART * 64
        acc = tl.zeros((64, BLOCK_N), tl.float32)
        before = step % STAGES
        for k in range(0, ROW, 64):
            stage = step % STAGES
            tlx.barrier_wait(full[stage], (step // STAGES) & 1)
            a, b = a_buffers[stage * 2 + PART], b_buffers[stage]
            if INCOMING:
                a = tlx.local_trans(a)
            else:
                b = tlx.local_trans(b)
            acc = tlx.async_dot_wait(1, tlx.async_dot(a, b, acc))
            if k > 0:
                tlx.barrier_arrive(empty[before])
            before = stage
            step += 1
        acc = tlx.async_dot_wait(0, acc)
        tlx.barrier_arrive(empty[before])
        if row < ROW:  # else the rows are the next batch's
            at = (batch * ROW + row,)
            left, right = halves_of(acc)
            if PARTS == 2:
                put(c_desc, c_buffers, PART, 1, left, at, column, False)
                put(c_desc, c_buffers, PART, 1, right, at, column + BLOCK_N // 2, False)
            else:
                _put_quarters(c_desc, c_buffers, PART, left, at, column)
                _put_quarters(c_desc, c_buffers, PART, right, at, column + BLOCK_N // 2)
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _put_quarters(desc, buffers, mine: tl.constexpr, half, at, column):
    left, right = halves_of(half)
    put(desc, buffers, mine, 1, left, at, column, False)
    put(desc, buffers, mine, 1, right, at, column + half.shape[1] // 2, False)


@triton.jit
def put(
    desc, buffers, mine: tl.constexpr, COUNT: tl.constexpr, values, at, column,
    BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Hand values to the copy engine, through one of the COUNT buffers that take turns.

    They go to ``(*at, column)``; what is past the tensor's end is dropped.
    """
    tlx.async_descriptor_store_wait(COUNT - 1)  # the store from this buffer has read it
    buffer = buffers[mine]
    view = tlx.local_trans(buffer) if BY_COLUMN else buffer
    tlx.local_store(view, values.to(tlx.dtype_of(desc)))
    tlx.fence_async_shared()
    at += (column,)
    tlx.async_descriptor_store(desc, buffer, at)
