"""Matrix products for Hopper whose warps have tasks of their own, persistent.

A producer keeps the copy engine (TMA) at work, two consumers the matrix units;
each program works through several tiles, so that the copies of the next tile
run during the epilogue of the last.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import tile_of


@triton.jit
def _produce(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, B_BY_COLUMN: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Copy the operands of the program's tiles, stage by stage; A's in PARTS."""
    ROWS: tl.constexpr = BLOCK_M // PARTS
    BYTES: tl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    step = 0
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        for k in range(0, K, BLOCK_K):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            for part in tl.static_range(PARTS):
                tlx.async_descriptor_load(
                    a_desc, a_buffers[stage * PARTS + part], [row + part * ROWS, k], full[stage]
                )
            if B_BY_COLUMN:
                tlx.async_descriptor_load(b_desc, b_buffers[stage], [column, k], full[stage])
            else:
                tlx.async_descriptor_load(b_desc, b_buffers[stage], [k, column], full[stage])
            step += 1


@triton.jit
def _multiply(
    a_buffers, b_buffers, full, empty, K, step, part,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The sum over K of one tile, a product in flight while the next one is issued."""
    # ptxas lets products fly over the end of a loop that surely runs.
    tl.assume(K > 0)
    acc = tl.zeros((ROWS, BLOCK_N), ACC)
    before = step % STAGES
    for k in range(0, K, BLOCK_K):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        b = tlx.local_trans(b_buffers[stage]) if B_BY_COLUMN else b_buffers[stage]
        acc = tlx.async_dot(a_buffers[stage * PARTS + part], b, acc)
        acc = tlx.async_dot_wait(1, acc)
        if k > 0:
            tlx.barrier_arrive(empty[before])
        before = stage
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    tlx.barrier_arrive(empty[before])
    return acc, step


@triton.jit
def _store(c_desc, buffer, acc, row, column, COLUMNS: tl.constexpr, SUBTILES: tl.constexpr):
    """Hand a tile to the copy engine, in SUBTILES parts through one buffer."""
    ROWS: tl.constexpr = acc.shape[0]
    if SUBTILES == 1:
        _store_part(c_desc, buffer, acc, row, column)
    else:
        halves = tl.permute(tl.reshape(acc, (ROWS, 2, COLUMNS // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        _store_part(c_desc, buffer, left, row, column)
        _store_part(c_desc, buffer, right, row, column + COLUMNS // 2)


@triton.jit
def _store_part(c_desc, buffer, values, row, column):
    tlx.async_descriptor_store_wait(0)  # the store before has read the buffer
    tlx.local_store(buffer, values.to(tlx.dtype_of(c_desc)))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(c_desc, buffer, [row, column])


# The hardware's named barriers that say whose turn the matrix units are, one for each
# consumer; Triton's own begin at 0.
_TURN = tl.constexpr(8)


@triton.jit
def gemm_specialized(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, SUBTILES: tl.constexpr, B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr,
    PINGPONG: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, by two consumers.

    Without PINGPONG they are cooperative: they share a tile, each half of its rows.
    With it they take turns, each with a tile of its own: while one multiplies, the
    other stores.

    Descriptors, with ROWS of BLOCK_M // 2, or with PINGPONG of BLOCK_M: a_desc (M, K) in
    blocks of (ROWS, BLOCK_K); b_desc (K, N) in (BLOCK_K, BLOCK_N), or (N, K) in
    (BLOCK_N, BLOCK_K) if B_BY_COLUMN; c_desc (M, N) in (ROWS, BLOCK_N // SUBTILES). Grid:
    programs, any number. STAGES: buffers of each operand. SUBTILES: 1 or 2. ACC: the
    accumulator's element type.
    """
    PARTS: tl.constexpr = 1 if PINGPONG else 2
    ROWS: tl.constexpr = BLOCK_M // PARTS
    B_SHAPE: tl.constexpr = (BLOCK_N, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, BLOCK_N)
    a_buffers = tlx.local_alloc((ROWS, BLOCK_K), tlx.dtype_of(a_desc), STAGES * PARTS)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = tlx.local_alloc((ROWS, BLOCK_N // SUBTILES), tlx.dtype_of(c_desc), 2)
    full = tlx.alloc_barriers(STAGES, 1)
    empty = tlx.alloc_barriers(STAGES, PARTS)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, M, N, K, 0,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES, B_BY_COLUMN, ACC, PINGPONG,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _consume(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, M, N, K, 1,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES, B_BY_COLUMN, ACC, PINGPONG,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, B_BY_COLUMN, PARTS,
            )  # fmt: skip


@triton.jit
def _consume(
    c_desc, a_buffers, b_buffers, c_buffers, full, empty, M, N, K,
    ME: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr, SUBTILES: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, PINGPONG: tl.constexpr,
):  # fmt: skip
    """Multiply and store half of each of the program's tiles, or every other one."""
    PARTS: tl.constexpr = 1 if PINGPONG else 2
    PART: tl.constexpr = 0 if PINGPONG else ME
    ROWS: tl.constexpr = BLOCK_M // PARTS
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    first, stride, step = tl.program_id(0), tl.num_programs(0), 0
    steps = tl.cdiv(K, BLOCK_K)
    if PINGPONG:
        if ME == 1:
            tlx.named_barrier_arrive(_TURN, 256)  # the first turn is the other's
        first += ME * stride
        stride *= 2
        step = ME * steps
    for tile in range(first, tiles, stride):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        if PINGPONG:
            tlx.named_barrier_wait(_TURN + ME, 256)
        acc, step = _multiply(
            a_buffers, b_buffers, full, empty, K, step, PART,
            ROWS, BLOCK_N, BLOCK_K, PARTS, STAGES, B_BY_COLUMN, ACC,
        )  # fmt: skip
        if PINGPONG:
            tlx.named_barrier_arrive(_TURN + 1 - ME, 256)
            step += steps  # the other's tile
        _store(
            c_desc, c_buffers[ME], acc, tile_m * BLOCK_M + PART * ROWS, tile_n * BLOCK_N,
            BLOCK_N, SUBTILES,
        )  # fmt: skip
    tlx.async_descriptor_store_wait(0)
