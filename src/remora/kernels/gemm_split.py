"""Matrix products for Hopper whose tiles are shared by two programs, each with half of K.

For products of few rows, which memory bounds. With tiles of 128 columns each program copies as
much of A as of B, and a multiprocessor takes no more than 64 bytes a cycle. Here a tile has 256
columns, and a program copies half of its rows of A: a quarter less. At the end the programs give
each other half of the rows' sums, from registers into shared memory.

Where that leaves multiprocessors without work there are helpers: programs that do the last steps
of K of some tiles, one after the other, and give their sums through memory.

Tasks are those of ``gemm_specialized``: a producer and two consumers of 64 rows each.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finished
from remora.kernels.gemm_specialized import copy_block
from remora.kernels.stream_k import added, give_partial, lower_flags, raise_flag, wait_for_flag
from remora.kernels.tiles import columns_of
from remora.kernels.warp_group import give, given_to

#: Columns that are stored at a time.
_COLUMNS = tl.constexpr(64)


@tlx.jit(do_not_specialize=["helped"])
def gemm_split(
    a_desc, b_desc, c_desc, scale_a, scale_b, args, partials, flags, M, N, K, helped,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, SHARE: tl.constexpr, HELP: tl.constexpr, KEEP: tl.constexpr,
    EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, of 16-bit elements, sums in fp32; C of any type.

    Grid: two programs for each tile of 128 rows and BLOCK_N columns (128 or 256), in clusters of
    2 * SHARE. SHARE: 1, or 2: so many tiles beside each other share the copies of A. K: more
    than BLOCK_K. Descriptors: a_desc (M, K) in blocks of (64, BLOCK_K), or (K, M) the other way
    round if A_BY_COLUMN; b_desc (K, N) in (BLOCK_K, BLOCK_N), or (N, K) if B_BY_COLUMN; c_desc
    (M, N) in (64, 64). KEEP: see ``gemm_specialized``. The rest: see ``finished``.

    HELP, with SHARE of 1: programs follow, in clusters too, each for HELP tiles, of which they do
    the last ``helped`` steps of K; two steps or more are left. partials: fp32, 128 * BLOCK_N for
    each tile; flags: int32, 2 for each, 0, and 0 again afterwards. Without it helped is 0.
    """
    A_SHAPE: tl.constexpr = (BLOCK_K, 64) if A_BY_COLUMN else (64, BLOCK_K)
    B_SHAPE: tl.constexpr = (BLOCK_N, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, BLOCK_N)
    a_buffers = tlx.local_alloc(A_SHAPE, tlx.dtype_of(a_desc), STAGES * 2)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    sums = tlx.local_alloc((64 * BLOCK_N,), tl.float32, 1)
    c_buffers = tlx.local_alloc((64, _COLUMNS), tlx.dtype_of(c_desc), 2)
    full = tlx.alloc_barriers(STAGES, 1)
    empty = tlx.alloc_barriers(STAGES, 2 * SHARE)
    given = tlx.alloc_barriers(1, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c_desc, scale_a, scale_b, args, partials, flags, a_buffers, b_buffers, c_buffers,
                sums, full, empty, given, M, N, K, helped, 0, BLOCK_N, BLOCK_K, STAGES, A_BY_COLUMN,
                B_BY_COLUMN, SHARE, HELP, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _consume(
                c_desc, scale_a, scale_b, args, partials, flags, a_buffers, b_buffers, c_buffers,
                sums, full, empty, given, M, N, K, helped, 1, BLOCK_N, BLOCK_K, STAGES, A_BY_COLUMN,
                B_BY_COLUMN, SHARE, HELP, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, helped,
                BLOCK_N, BLOCK_K, STAGES, A_BY_COLUMN, B_BY_COLUMN, SHARE, HELP, KEEP,
            )  # fmt: skip


@triton.jit
def _work(M, N, BLOCK_N: tl.constexpr, SHARE: tl.constexpr, HELP: tl.constexpr):
    """What a program has: half of K (0 or 1, a helper 2), place among tiles that share A, its
    first tile, or group of such, and how many.
    """
    rank = tlx.cluster_cta_rank()
    half, place = rank // SHARE, rank % SHARE
    tile, count = tl.program_id(0) // (2 * SHARE), 1
    if HELP > 0:
        tiles = tl.cdiv(M, 128) * tl.cdiv(N, BLOCK_N)
        if tile >= tiles:
            half = 2
            tile = (tl.program_id(0) - 2 * tiles) * HELP
            count = tl.minimum(tiles - tile, HELP)
    return half, place, tile, count


@triton.jit
def _part(
    tile, half, place, M, K, helped, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SHARE: tl.constexpr,
):  # fmt: skip
    """Row and column of a tile; its steps of K to do: the first, and the one after the last.

    Tiles below each other are neighbours, so that their columns of B come from memory once.
    """
    tiles_m = tl.cdiv(M, 128)
    end = tl.cdiv(K, BLOCK_K)
    whole = end - helped
    first = tl.where(half == 0, 0, tl.where(half == 1, whole // 2, whole))
    last = tl.where(half == 0, whole // 2, tl.where(half == 1, whole, end))
    return tile % tiles_m * 128, (tile // tiles_m * SHARE + place) * BLOCK_N, first, last


@triton.jit
def _produce(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, helped,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, SHARE: tl.constexpr, HELP: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Copy a program's parts of tiles' rows and columns, stage by stage; A's in two parts."""
    BYTES: tl.constexpr = (128 + BLOCK_N) * BLOCK_K * 2
    FIRST: tl.constexpr = "" if KEEP == "" else "evict_first"
    A_LEAVES: tl.constexpr = "evict_last" if KEEP == "a" else FIRST
    B_LEAVES: tl.constexpr = "evict_last" if KEEP == "b" else FIRST
    half, place, begin, count = _work(M, N, BLOCK_N, SHARE, HELP)
    step = 0
    for tile in range(begin, begin + count):
        row, column, first, last = _part(tile, half, place, M, K, helped, BLOCK_N, BLOCK_K, SHARE)
        for i in range(first, last):
            stage, k = step % STAGES, i * BLOCK_K
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            copy_block(
                b_desc, b_buffers[stage], full[stage], 0, column, k, False, not B_BY_COLUMN,
                0, 1, 1, B_LEAVES,
            )  # fmt: skip
            for j in tl.static_range(2 // SHARE):
                part = j + place
                copy_block(
                    a_desc, a_buffers[stage * 2 + part], full[stage], 0, row + part * 64, k,
                    False, A_BY_COLUMN, half * SHARE, 1, SHARE, A_LEAVES,
                )  # fmt: skip
            step += 1


@triton.jit
def _release(empty, half, SHARE: tl.constexpr):
    """Tell the programs that copy into a buffer that it is free."""
    if SHARE == 1:
        tlx.barrier_arrive(empty)
    else:
        for i in tl.static_range(SHARE):
            tlx.barrier_arrive(empty, 1, half * SHARE + i)


@triton.jit
def _multiply(
    a_buffers, b_buffers, full, empty, steps, step, half, ME: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, SHARE: tl.constexpr,
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
            _release(empty[before], half, SHARE)
        before = stage
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    _release(empty[before], half, SHARE)
    return acc, step


@triton.jit
def _consume(
    c_desc, scale_a, scale_b, args, partials, flags, a_buffers, b_buffers, c_buffers, sums, full,
    empty, given, M, N, K, helped, ME: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, SHARE: tl.constexpr, HELP: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Multiply 64 of a tile's rows; in the program whose half is ME's, finish and store them."""
    half, place, begin, count = _work(M, N, BLOCK_N, SHARE, HELP)
    if half == ME:
        tlx.barrier_expect_bytes(given[0], 64 * BLOCK_N * 4)
    step = 0
    for tile in range(begin, begin + count):
        row, column, first, last = _part(tile, half, place, M, K, helped, BLOCK_N, BLOCK_K, SHARE)
        acc, step = _multiply(
            a_buffers, b_buffers, full, empty, last - first, step, half, ME, BLOCK_N, STAGES,
            A_BY_COLUMN, B_BY_COLUMN, SHARE,
        )  # fmt: skip
        if half == ME:
            tlx.barrier_wait(given[0], 0)
            acc += given_to(sums[0])
            _put(
                c_desc, acc, partials, flags, tile, c_buffers, row + ME * 64, column, M, N,
                scale_a, scale_b, args, ME, HELP, EPILOGUE, INDEX,
            )  # fmt: skip
        elif half == 1 - ME:
            give(acc, sums[0], (1 - half) * SHARE + place, given[0])
        elif HELP > 0:
            give_partial(acc, partials, tile, ME)
            raise_flag(flags, tile, ME)


@triton.jit
def _put(
    c_desc, acc, partials, flags, tile, c_buffers, row, column, M, N, scale_a, scale_b, args,
    ME: tl.constexpr, HELP: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add a helper's sums, finish and store; the program's other consumer does not."""
    PARTS: tl.constexpr = acc.shape[1] // _COLUMNS
    batch = tl.program_id(1)  # there is one
    if HELP > 0:
        wait_for_flag(flags, tile, ME)
    parts = columns_of(acc, PARTS)
    for i in tl.static_range(PARTS):
        at, values = column + i * _COLUMNS, parts[i]
        if HELP > 0:
            values = added(values, i, partials, tile, ME, PARTS)
        values = finished(values, batch, row, at, M, N, scale_a, scale_b, args, EPILOGUE, INDEX)
        if i >= 2:
            tlx.async_descriptor_store_wait(1)  # the last but one has read its buffer
        tlx.local_store(c_buffers[i % 2], values.to(tlx.dtype_of(c_desc)))
        tlx.fence_async_shared()
        tlx.async_descriptor_store(c_desc, c_buffers[i % 2], [row, at])
    if HELP > 0:
        lower_flags(flags, tile, tile + 1, 1, 0, ME)
    tlx.async_descriptor_store_wait(0)
