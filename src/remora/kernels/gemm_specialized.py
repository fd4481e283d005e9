"""Matrix products for Hopper whose warps have tasks of their own, persistent.

A producer keeps the copy engine (TMA) at work, two consumers the matrix units;
each program works through several tiles, so that the copies of the next tile
run during the epilogue of the last. The programs of a cluster work on tiles beside
each other, and each copies its share of what they have in common to all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.stream_k import add_partials, give_partial, items_of, work_item
from remora.kernels.tiles import tile_of

# The hardware's named barriers that say whose turn the matrix units are, one for each
# consumer; Triton's own begin at 0.
_TURN = tl.constexpr(8)


@tlx.jit(do_not_specialize=["split_tiles"])
def gemm_specialized(
    a_desc, b_desc, c_desc, partials, flags, M, N, K, split_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, SUBTILES: tl.constexpr, B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr,
    PINGPONG: tl.constexpr, CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr,
    STREAM_K: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, by two consumers.

    Without PINGPONG they are cooperative: they share a tile, each half of its rows.
    With it they take turns, each with a tile of its own: while one multiplies, the
    other stores.

    Descriptors, with ROWS of BLOCK_M // 2, or with PINGPONG of BLOCK_M: a_desc (M, K) in
    blocks of (ROWS, BLOCK_K), or of BLOCK_M // CLUSTER_N rows where that is less; b_desc
    (K, N) in (BLOCK_K, BLOCK_N // CLUSTER_M), or (N, K) in (BLOCK_N // CLUSTER_M, BLOCK_K)
    if B_BY_COLUMN; c_desc (M, N) in (ROWS, BLOCK_N // SUBTILES). Grid: programs, whole
    clusters. STAGES: buffers of each operand. SUBTILES: 1, 2 or 4. ACC: the
    accumulator's element type. CLUSTER_M, CLUSTER_N: the tiles of a cluster.

    STREAM_K, without PINGPONG: the last split_tiles clusters' tiles are cut along K into
    parts of equal length, one for each cluster, at least one step of K each. partials:
    fp32, BLOCK_M * BLOCK_N for each program; flags: int32, 2 for each program, 0, and
    0 again afterwards.
    """
    PARTS: tl.constexpr = 1 if PINGPONG else 2
    ROWS: tl.constexpr = BLOCK_M // PARTS
    B_SHAPE: tl.constexpr = (BLOCK_N, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, BLOCK_N)
    a_buffers = tlx.local_alloc((ROWS, BLOCK_K), tlx.dtype_of(a_desc), STAGES * PARTS)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = tlx.local_alloc((ROWS, BLOCK_N // SUBTILES), tlx.dtype_of(c_desc), 2)
    full = tlx.alloc_barriers(STAGES, 1)
    # A buffer is free when all consumers are done with what this program copies to them.
    empty = tlx.alloc_barriers(STAGES, PARTS * (CLUSTER_M + CLUSTER_N - 1))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, partials, flags,
                M, N, K, split_tiles, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES,
                B_BY_COLUMN, ACC, PINGPONG, CLUSTER_M, CLUSTER_N, STREAM_K,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _consume(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, partials, flags,
                M, N, K, split_tiles, 1, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES,
                B_BY_COLUMN, ACC, PINGPONG, CLUSTER_M, CLUSTER_N, STREAM_K,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, split_tiles,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, B_BY_COLUMN, PARTS,
                CLUSTER_M, CLUSTER_N, STREAM_K,
            )  # fmt: skip


@triton.jit
def _rank(CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr):
    """Which tile of its cluster's a program has: its row, its column, and its rank."""
    rank = 0
    if CLUSTER_M * CLUSTER_N > 1:
        rank = tlx.cluster_cta_rank()
    return rank % CLUSTER_M, rank // CLUSTER_M, rank


@triton.jit
def _origin(
    tile, rank_m, rank_n, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr,
):  # fmt: skip
    """Where a program's tile of a cluster's tiles begins."""
    tile_m, tile_n = tile_of(
        tile, M, N, BLOCK_M * CLUSTER_M, BLOCK_N * CLUSTER_N, max(GROUP_M // CLUSTER_M, 1)
    )
    return (tile_m * CLUSTER_M + rank_m) * BLOCK_M, (tile_n * CLUSTER_N + rank_n) * BLOCK_N


@triton.jit
def _produce(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, split_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, B_BY_COLUMN: tl.constexpr, PARTS: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr, STREAM_K: tl.constexpr,
):  # fmt: skip
    """Copy the operands of the program's tiles, stage by stage; A's in PARTS."""
    BYTES: tl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    B_PART: tl.constexpr = BLOCK_N // CLUSTER_M
    # Parts of A that a program copies, or programs that copy one part together.
    A_PARTS: tl.constexpr = max(PARTS // CLUSTER_N, 1)
    A_PIECES: tl.constexpr = max(CLUSTER_N // PARTS, 1)
    ROWS: tl.constexpr = BLOCK_M // PARTS
    rank_m, rank_n, _ = _rank(CLUSTER_M, CLUSTER_N)
    steps = tl.cdiv(K, BLOCK_K)
    tiles = tl.cdiv(M, BLOCK_M * CLUSTER_M) * tl.cdiv(N, BLOCK_N * CLUSTER_N)
    cluster = tl.program_id(0) // (CLUSTER_M * CLUSTER_N)
    clusters = tl.num_programs(0) // (CLUSTER_M * CLUSTER_N)
    step = 0
    for item in range(items_of(cluster, clusters, tiles, split_tiles, steps, STREAM_K)):
        tile, first, last = work_item(item, cluster, clusters, tiles, split_tiles, steps, STREAM_K)
        row, column = _origin(
            tile, rank_m, rank_n, M, N, BLOCK_M, BLOCK_N, GROUP_M, CLUSTER_M, CLUSTER_N
        )
        for k in range(first * BLOCK_K, last * BLOCK_K, BLOCK_K):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            for part in tl.static_range(A_PARTS):
                which = rank_n // A_PIECES * A_PARTS + part
                _copy_share(
                    a_desc, a_buffers[stage * PARTS + which], full[stage],
                    row + which * ROWS, k, rank_n % A_PIECES, ROWS // A_PIECES, False,
                    rank_m, CLUSTER_M, CLUSTER_N, A_PIECES,
                )  # fmt: skip
            _copy_share(
                b_desc, b_buffers[stage], full[stage],
                column, k, rank_m, B_PART, not B_BY_COLUMN,
                rank_n * CLUSTER_M, 1, CLUSTER_M, CLUSTER_M,
            )  # fmt: skip
            step += 1


@triton.jit
def _copy_share(
    desc, buffer, full, at, k, piece, EXTENT: tl.constexpr, K_FIRST: tl.constexpr,
    first, STEP: tl.constexpr, PROGRAMS: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Copy one of PIECES of a buffer to PROGRAMS programs: first, first + STEP, ...

    at: where the buffer's extent in rows of A or columns of B begins; EXTENT: of a piece.
    K_FIRST: the buffer's first dimension is along K.
    """
    if PIECES == 1:
        _copy(desc, buffer, full, at, k, K_FIRST, first, STEP, PROGRAMS)
    else:
        DEPTH: tl.constexpr = desc.block_shape[0] if K_FIRST else desc.block_shape[1]
        SHAPE: tl.constexpr = (DEPTH, EXTENT) if K_FIRST else (EXTENT, DEPTH)
        for i in tl.static_range(PIECES):
            if piece == i:
                # A slice begins at a constant.
                START: tl.constexpr = (0, i * EXTENT) if K_FIRST else (i * EXTENT, 0)
                _copy(
                    desc, tlx.local_slice(buffer, START, SHAPE), full, at + i * EXTENT, k,
                    K_FIRST, first, STEP, PROGRAMS,
                )  # fmt: skip


@triton.jit
def _copy(
    desc, buffer, full, at, k, K_FIRST: tl.constexpr,
    first, STEP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    row = k if K_FIRST else at
    column = at if K_FIRST else k
    if PROGRAMS == 1:
        tlx.async_descriptor_load(desc, buffer, [row, column], full)
    elif PROGRAMS == 2:
        tlx.async_descriptor_load(
            desc, buffer, [row, column], full, multicast_targets=[first, first + STEP]
        )
    elif PROGRAMS == 4:
        tlx.async_descriptor_load(
            desc, buffer, [row, column], full,
            multicast_targets=[first, first + STEP, first + 2 * STEP, first + 3 * STEP],
        )  # fmt: skip
    else:
        tl.static_assert(PROGRAMS == 8)
        tlx.async_descriptor_load(
            desc, buffer, [row, column], full, multicast_targets=[0, 1, 2, 3, 4, 5, 6, 7]
        )


@triton.jit
def _release(empty, rank_m, rank_n, CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr):
    """Tell the programs that copy into a buffer that it is free."""
    if CLUSTER_M * CLUSTER_N == 1:
        tlx.barrier_arrive(empty)
    else:
        for m in tl.static_range(CLUSTER_M):
            tlx.barrier_arrive(empty, 1, rank_n * CLUSTER_M + m)
        for n in tl.static_range(1, CLUSTER_N):
            tlx.barrier_arrive(empty, 1, (rank_n + n) % CLUSTER_N * CLUSTER_M + rank_m)


@triton.jit
def _multiply(
    a_buffers, b_buffers, full, empty, steps, step, part, rank_m, rank_n,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr,
):  # fmt: skip
    """The sum over some steps of K, a product in flight while the next one is issued."""
    # ptxas lets products fly over the end of a loop that surely runs.
    tl.assume(steps > 0)
    acc = tl.zeros((ROWS, BLOCK_N), ACC)
    before = step % STAGES
    for k in range(0, steps):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        b = tlx.local_trans(b_buffers[stage]) if B_BY_COLUMN else b_buffers[stage]
        acc = tlx.async_dot(a_buffers[stage * PARTS + part], b, acc)
        acc = tlx.async_dot_wait(1, acc)
        if k > 0:
            _release(empty[before], rank_m, rank_n, CLUSTER_M, CLUSTER_N)
        before = stage
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    _release(empty[before], rank_m, rank_n, CLUSTER_M, CLUSTER_N)
    return acc, step


@triton.jit
def _consume(
    c_desc, a_buffers, b_buffers, c_buffers, full, empty, partials, flags, M, N, K, split_tiles,
    ME: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr, SUBTILES: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, PINGPONG: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr, STREAM_K: tl.constexpr,
):  # fmt: skip
    """Multiply and store half of each of the program's tiles, or every other one."""
    PARTS: tl.constexpr = 1 if PINGPONG else 2
    PART: tl.constexpr = 0 if PINGPONG else ME
    ROWS: tl.constexpr = BLOCK_M // PARTS
    rank_m, rank_n, rank = _rank(CLUSTER_M, CLUSTER_N)
    steps = tl.cdiv(K, BLOCK_K)
    tiles = tl.cdiv(M, BLOCK_M * CLUSTER_M) * tl.cdiv(N, BLOCK_N * CLUSTER_N)
    cluster = tl.program_id(0) // (CLUSTER_M * CLUSTER_N)
    clusters = tl.num_programs(0) // (CLUSTER_M * CLUSTER_N)
    step = 0
    if PINGPONG:
        if ME == 1:
            tlx.named_barrier_arrive(_TURN, 256)  # the first turn is the other's
        step = ME * steps
    items = items_of(cluster, clusters, tiles, split_tiles, steps, STREAM_K)
    for item in range(ME if PINGPONG else 0, items, 2 if PINGPONG else 1):
        tile, first, last = work_item(item, cluster, clusters, tiles, split_tiles, steps, STREAM_K)
        row, column = _origin(
            tile, rank_m, rank_n, M, N, BLOCK_M, BLOCK_N, GROUP_M, CLUSTER_M, CLUSTER_N
        )
        row += PART * ROWS
        if PINGPONG:
            tlx.named_barrier_wait(_TURN + ME, 256)
        acc, step = _multiply(
            a_buffers, b_buffers, full, empty, last - first, step, PART, rank_m, rank_n,
            ROWS, BLOCK_N, PARTS, STAGES, B_BY_COLUMN, ACC, CLUSTER_M, CLUSTER_N,
        )  # fmt: skip
        if PINGPONG:
            tlx.named_barrier_arrive(_TURN + 1 - ME, 256)
            step += steps  # the other's tile
        if STREAM_K:
            if last < steps:
                give_partial(acc, partials, flags, tl.program_id(0), ME)
            else:
                acc = add_partials(
                    acc, partials, flags, tile, first, cluster, clusters, rank,
                    tiles, split_tiles, steps, ME, CLUSTER_M * CLUSTER_N,
                )  # fmt: skip
                _store(c_desc, c_buffers[ME], acc, row, column, SUBTILES)
        else:
            _store(c_desc, c_buffers[ME], acc, row, column, SUBTILES)
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _halves(acc):
    """The left and the right columns; no value leaves its thread."""
    ROWS: tl.constexpr = acc.shape[0]
    COLUMNS: tl.constexpr = acc.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def _store(c_desc, buffer, acc, row, column, SUBTILES: tl.constexpr):
    """Hand a tile to the copy engine, in SUBTILES parts through one buffer."""
    COLUMNS: tl.constexpr = acc.shape[1] // SUBTILES
    if SUBTILES == 1:
        _store_part(c_desc, buffer, acc, row, column)
    else:
        left, right = _halves(acc)
        if SUBTILES == 2:
            _store_part(c_desc, buffer, left, row, column)
            _store_part(c_desc, buffer, right, row, column + COLUMNS)
        else:
            tl.static_assert(SUBTILES == 4)
            first, second = _halves(left)
            third, fourth = _halves(right)
            _store_part(c_desc, buffer, first, row, column)
            _store_part(c_desc, buffer, second, row, column + COLUMNS)
            _store_part(c_desc, buffer, third, row, column + 2 * COLUMNS)
            _store_part(c_desc, buffer, fourth, row, column + 3 * COLUMNS)


@triton.jit
def _store_part(c_desc, buffer, values, row, column):
    tlx.async_descriptor_store_wait(0)  # the store before has read the buffer
    tlx.local_store(buffer, values.to(tlx.dtype_of(c_desc)))
    tlx.fence_async_shared()
    tlx.async_descriptor_store(c_desc, buffer, [row, column])
