"""Matrix products for Hopper whose tiles are shared by two programs, each with half of K.

For products of few rows, which memory bounds, and the power that is left for it. With tiles of 128
columns a program copies as much of A as of B out of the second-level cache. Here a tile has 256
columns, and a program copies half of its rows of A: a quarter less. At the end
the programs give each other the sums of half of the columns, from registers into shared memory.

Where that leaves multiprocessors without work there are helpers: programs that do the last steps
of K of some tiles, one after the other, and give their sums through memory.

Tasks are those of ``gemm_specialized``: a producer and two consumers of 64 rows each.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finished
from remora.kernels.gemm_specialized import copy_block, hand_over, leaves
from remora.kernels.stream_k import added, give_partial, lower_flag, raise_flag, wait_for_flag
from remora.kernels.tiles import columns_of, halves_of
from remora.kernels.warp_group import give, given_to

#: Columns of a part of a tile, which is given and stored by itself; steps of K have as many.
_PART = tl.constexpr(64)


@tlx.jit(do_not_specialize=["helped", "helpers"])
def gemm_split(
    a_desc, b_desc, c_desc, scale_a, scale_b, args, partials, flags, M, N, K, helped, helpers,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, HELP: tl.constexpr, KEEP: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, of 16-bit elements, sums in fp32; C of any type.

    Grid: helpers, and two programs for each tile of 128 rows and BLOCK_N columns (128 or 256), in
    clusters of two. K: more than 64. Descriptors: a_desc (M, K) in blocks of (64, 64), or (K, M)
    if A_BY_COLUMN; b_desc (K, N) in (64, BLOCK_N), or (N, K) in (BLOCK_N, 64) if B_BY_COLUMN;
    c_desc (M, N) in (64, 64). KEEP: see ``gemm_specialized``. The rest: see ``finished``.

    helpers: an even number, each for HELP tiles, of which it does the last ``helped`` steps of 64
    of K; two steps or more are left. partials: fp32, 128 * BLOCK_N for each tile; flags: int32,
    4 for each, 0, and 0 again afterwards. Without helpers all of these are 0 or None.
    """
    PARTS: tl.constexpr = BLOCK_N // _PART
    B_SHAPE: tl.constexpr = (BLOCK_N, 64) if B_BY_COLUMN else (64, BLOCK_N)
    a_buffers = tlx.local_alloc((64, 64), tlx.dtype_of(a_desc), STAGES * 2)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = tlx.local_alloc((64, _PART), tlx.dtype_of(c_desc), 2)
    sums = tlx.local_alloc((64 * _PART,), tl.float32, PARTS)
    full = tlx.alloc_barriers(STAGES, 1)
    empty = tlx.alloc_barriers(STAGES, 2)
    given = tlx.alloc_barriers(PARTS, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c_desc, scale_a, scale_b, args, partials, flags, a_buffers, b_buffers, c_buffers,
                sums, full, empty, given, M, N, K, helped, helpers, 0, BLOCK_N, STAGES,
                A_BY_COLUMN, B_BY_COLUMN, HELP, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _consume(
                c_desc, scale_a, scale_b, args, partials, flags, a_buffers, b_buffers, c_buffers,
                sums, full, empty, given, M, N, K, helped, helpers, 1, BLOCK_N, STAGES,
                A_BY_COLUMN, B_BY_COLUMN, HELP, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, helped, helpers,
                BLOCK_N, STAGES, A_BY_COLUMN, B_BY_COLUMN, HELP, KEEP,
            )  # fmt: skip


@triton.jit
def _work(M, N, helpers, BLOCK_N: tl.constexpr, HELP: tl.constexpr):
    """What a program has: half of K, 0 or 1, or 2 of a helper; its first tile, and how many.

    Helpers come first: they never wait for a program that has not begun.
    """
    half = tlx.cluster_cta_rank()
    tile, count = (tl.program_id(0) - helpers) // 2, 1
    if HELP > 0:
        if tl.program_id(0) < helpers:
            half = 2
            tile = tl.program_id(0) * HELP
            count = tl.minimum(tl.cdiv(M, 128) * tl.cdiv(N, BLOCK_N) - tile, HELP)
    return half, tile, count


@triton.jit
def _part(tile, half, M, K, helped, BLOCK_N: tl.constexpr):
    """Row and column of a tile; its steps of K to do: the first, and the one after the last.

    Tiles below each other are neighbours, so that their columns of B come from memory once.
    """
    tiles_m = tl.cdiv(M, 128)
    end = tl.cdiv(K, 64)
    whole = end - helped
    first = tl.where(half == 0, 0, tl.where(half == 1, whole // 2, whole))
    last = tl.where(half == 0, whole // 2, tl.where(half == 1, whole, end))
    return tile % tiles_m * 128, tile // tiles_m * BLOCK_N, first, last


@triton.jit
def _produce(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, helped, helpers,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, HELP: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Copy a program's parts of tiles' rows and columns, stage by stage; A's in two parts."""
    BYTES: tl.constexpr = (128 + BLOCK_N) * 64 * 2
    A_LEAVES: tl.constexpr = leaves("a", KEEP)
    B_LEAVES: tl.constexpr = leaves("b", KEEP)
    half, begin, count = _work(M, N, helpers, BLOCK_N, HELP)
    step = 0
    for tile in range(begin, begin + count):
        row, column, first, last = _part(tile, half, M, K, helped, BLOCK_N)
        for i in range(first, last):
            stage, k = step % STAGES, i * 64
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            copy_block(
                b_desc, b_buffers[stage], full[stage], 0, column, k, False, not B_BY_COLUMN,
                0, 1, 1, B_LEAVES,
            )  # fmt: skip
            for part in tl.static_range(2):
                copy_block(
                    a_desc, a_buffers[stage * 2 + part], full[stage], 0, row + part * 64, k,
                    False, A_BY_COLUMN, 0, 1, 1, A_LEAVES,
                )  # fmt: skip
            step += 1


@triton.jit
def _multiply(
    a_buffers, b_buffers, full, empty, steps, step, ME: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """The sum over some steps of K, a product in flight while the next one is issued."""
    # ptxas lets products fly over the end of a loop that surely runs.
    tl.assume(steps > 0)
    acc = tl.zeros((64, BLOCK_N), tl.float32)
    before = step % STAGES
    for i in range(steps):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        a = a_buffers[stage * 2 + ME]
        a = tlx.local_trans(a) if A_BY_COLUMN else a
        b = tlx.local_trans(b_buffers[stage]) if B_BY_COLUMN else b_buffers[stage]
        acc = tlx.async_dot(a, b, acc)
        acc = tlx.async_dot_wait(1, acc)
        if i > 0:
            tlx.barrier_arrive(empty[before])
        before = stage
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    tlx.barrier_arrive(empty[before])
    return acc, step


@triton.jit
def _consume(
    c_desc, scale_a, scale_b, args, partials, flags, a_buffers, b_buffers, c_buffers, sums, full,
    empty, given, M, N, K, helped, helpers, ME: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr,
    HELP: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Multiply 64 of a tile's rows; finish and store half of their columns, give the others."""
    HALF: tl.constexpr = BLOCK_N // _PART // 2
    half, begin, count = _work(M, N, helpers, BLOCK_N, HELP)
    if half < 2:
        for i in tl.static_range(HALF):
            tlx.barrier_expect_bytes(given[ME * HALF + i], 64 * _PART * 4)
    step = 0
    for tile in range(begin, begin + count):
        row, column, first, last = _part(tile, half, M, K, helped, BLOCK_N)
        acc, step = _multiply(
            a_buffers, b_buffers, full, empty, last - first, step, ME, BLOCK_N, STAGES,
            A_BY_COLUMN, B_BY_COLUMN,
        )  # fmt: skip
        if half < 2:
            left, right = halves_of(acc)
            parts = columns_of(tl.where(half == 0, right, left), HALF)
            for i in tl.static_range(HALF):
                give(parts[i], sums[ME * HALF + i], 1 - half, given[ME * HALF + i])
            _put(
                c_desc, tl.where(half == 0, left, right), half, partials, flags, tile,
                c_buffers[ME], sums, given, row + ME * 64, column + half * (BLOCK_N // 2), M, N,
                scale_a, scale_b, args, ME, HELP, EPILOGUE, INDEX,
            )  # fmt: skip
        elif HELP > 0:
            give_partial(acc, partials, tile, ME)
            for other in tl.static_range(2):
                raise_flag(flags, tile * 2 + other, ME)


@triton.jit
def _put(
    c_desc, acc, half, partials, flags, tile, buffer, sums, given, row, column, M, N,
    scale_a, scale_b, args, ME: tl.constexpr, HELP: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Add the others' sums, the helper's first: they have long been there; finish and store."""
    HALF: tl.constexpr = acc.shape[1] // _PART
    batch = tl.program_id(1)  # there is one
    parts = columns_of(acc, HALF)
    if HELP > 0:
        wait_for_flag(flags, tile * 2 + half, ME)
        first = added(parts[0], half * HALF, partials, tile, ME, 2 * HALF)
        if HALF == 1:
            parts = (first,)
        else:
            parts = (first, added(parts[1], half * HALF + 1, partials, tile, ME, 2 * HALF))
        lower_flag(flags, tile * 2 + half, ME)
    for i in tl.static_range(HALF):
        tlx.barrier_wait(given[ME * HALF + i], 0)
        values = parts[i] + given_to(sums[ME * HALF + i])
        at = column + i * _PART
        values = finished(values, batch, row, at, M, N, scale_a, scale_b, args, EPILOGUE, INDEX)
        hand_over(c_desc, buffer, values, batch, row, at)
    tlx.async_descriptor_store_wait(0)
