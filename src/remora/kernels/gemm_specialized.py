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
from remora.kernels.epilogue import finished, store
from remora.kernels.stream_k import add_partials, give_partial, items_of, raise_flag, work_item
from remora.kernels.tiles import columns_of, tile_of
from remora.kernels.warp_group import let_next_kernel_begin, wait_for_kernels_before

# The hardware's named barriers that say whose turn the matrix units are, one for each
# consumer; Triton's own begin at 0.
_TURN = tl.constexpr(8)


@tlx.jit(do_not_specialize=["split_tiles", "batches"])
def gemm_specialized(
    a_desc, b_desc, c, scale_a, scale_b, args, partials, flags,
    M, N, K, batches, stride_cb, stride_cm, stride_cn, split_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, SUBTILES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr,
    C_DESCRIBED: tl.constexpr, ACC: tl.constexpr, PINGPONG: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr, STREAM_K: tl.constexpr,
    LATE: tl.constexpr, KEEP: tl.constexpr, TURN: tl.constexpr, EPILOGUE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """``C = A @ B``, by two consumers; in batches.

    Without PINGPONG they are cooperative: they share a tile, each half of its rows.
    With it they take turns, each with a tile of its own: while one multiplies, the
    other stores.

    Descriptors, with ROWS of BLOCK_M // 2, or with PINGPONG of BLOCK_M: a_desc (M, K) in
    blocks of (ROWS, BLOCK_K), or of BLOCK_M // CLUSTER_N rows where that is less, or (K, M)
    in blocks the other way round if A_BY_COLUMN; b_desc (K, N) in (BLOCK_K, BLOCK_N //
    CLUSTER_M), or (N, K) in (BLOCK_N // CLUSTER_M, BLOCK_K) if B_BY_COLUMN; c (M, N) in
    (ROWS, BLOCK_N // SUBTILES) if C_DESCRIBED, a pointer otherwise. With A_BATCHED,
    B_BATCHED the operand, and with batches of more than one c has a dimension in front of
    these, of blocks of 1. Grid: programs, whole clusters. STAGES: buffers of each operand.
    SUBTILES: 1, 2 or 4. ACC: the accumulator's element type. CLUSTER_M, CLUSTER_N: the tiles
    of a cluster. scale_a, ..., args, EPILOGUE, INDEX: see ``finished``.

    STREAM_K, without PINGPONG: the last split_tiles clusters' tiles are cut along K into
    parts of equal length, one for each cluster, at least one step of K each. partials:
    fp32, BLOCK_M * BLOCK_N for each program; flags: int32, 2 for each program, 0, and
    0 again afterwards.

    LATE, with C_DESCRIBED: a tile is stored during the first products of the next one. KEEP:
    "a" or "b": that operand is to leave the second-level cache last, the other one first.
    TURN: every other tile of a program begins at the end of K, of which what it has in common
    with the tile before is still in that cache.
    """
    PARTS: tl.constexpr = 1 if PINGPONG else 2
    ROWS: tl.constexpr = BLOCK_M // PARTS
    A_SHAPE: tl.constexpr = (BLOCK_K, ROWS) if A_BY_COLUMN else (ROWS, BLOCK_K)
    B_SHAPE: tl.constexpr = (BLOCK_N, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, BLOCK_N)
    a_buffers = tlx.local_alloc(A_SHAPE, tlx.dtype_of(a_desc), STAGES * PARTS)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = b_buffers
    if C_DESCRIBED:
        c_buffers = tlx.local_alloc((ROWS, BLOCK_N // SUBTILES), tlx.dtype_of(c), 2)
    full = tlx.alloc_barriers(STAGES, 1)
    # A buffer is free when all consumers are done with what this program copies to them.
    empty = tlx.alloc_barriers(STAGES, PARTS * (CLUSTER_M + CLUSTER_N - 1))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c, scale_a, scale_b, args, a_buffers, b_buffers, c_buffers,
                full, empty, partials, flags, M, N, K, batches, stride_cb, stride_cm, stride_cn,
                split_tiles, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES,
                A_BY_COLUMN, B_BY_COLUMN, C_DESCRIBED, ACC, PINGPONG, CLUSTER_M, CLUSTER_N,
                STREAM_K, LATE, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _consume(
                c, scale_a, scale_b, args, a_buffers, b_buffers, c_buffers,
                full, empty, partials, flags, M, N, K, batches, stride_cb, stride_cm, stride_cn,
                split_tiles, 1, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES,
                A_BY_COLUMN, B_BY_COLUMN, C_DESCRIBED, ACC, PINGPONG, CLUSTER_M, CLUSTER_N,
                STREAM_K, LATE, EPILOGUE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, batches, split_tiles,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, A_BY_COLUMN, B_BY_COLUMN,
                A_BATCHED, B_BATCHED, PARTS, CLUSTER_M, CLUSTER_N, STREAM_K, KEEP, TURN,
            )  # fmt: skip


@triton.jit
def _rank(CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr):
    """Which tile of its cluster's a program has: its row, its column, and its rank."""
    rank = 0
    if CLUSTER_M * CLUSTER_N > 1:
        rank = tlx.cluster_cta_rank()
    return rank % CLUSTER_M, rank // CLUSTER_M, rank


@triton.jit
def _work(
    M, N, K, batches, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr,
):  # fmt: skip
    """This program's cluster, of how many; the clusters' tiles, and the steps of K of each."""
    tiles = tl.cdiv(M, BLOCK_M * CLUSTER_M) * tl.cdiv(N, BLOCK_N * CLUSTER_N) * batches
    return (
        tl.program_id(0) // (CLUSTER_M * CLUSTER_N),
        tl.num_programs(0) // (CLUSTER_M * CLUSTER_N),
        tiles,
        tl.cdiv(K, BLOCK_K),
    )


@triton.jit
def _origin(
    tile, rank_m, rank_n, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr,
):  # fmt: skip
    """Where a program's tile of a cluster's tiles begins: matrix of the batch, row, column."""
    GROUP: tl.constexpr = max(GROUP_M // CLUSTER_M, 1)
    tiles = tl.cdiv(M, BLOCK_M * CLUSTER_M) * tl.cdiv(N, BLOCK_N * CLUSTER_N)
    tile_m, tile_n = tile_of(tile % tiles, M, N, BLOCK_M * CLUSTER_M, BLOCK_N * CLUSTER_N, GROUP)
    row = (tile_m * CLUSTER_M + rank_m) * BLOCK_M
    return tile // tiles, row, (tile_n * CLUSTER_N + rank_n) * BLOCK_N


@triton.jit
def _produce(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, M, N, K, batches, split_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr,
    A_BATCHED: tl.constexpr, B_BATCHED: tl.constexpr, PARTS: tl.constexpr,
    CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr, STREAM_K: tl.constexpr, KEEP: tl.constexpr,
    TURN: tl.constexpr,
):  # fmt: skip
    """Copy the operands of the program's tiles, stage by stage; A's in PARTS."""
    BYTES: tl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    ROWS: tl.constexpr = BLOCK_M // PARTS
    # Parts of A that a program copies, or programs that copy one part together.
    A_PARTS: tl.constexpr = max(PARTS // CLUSTER_N, 1)
    A_PIECES: tl.constexpr = max(CLUSTER_N // PARTS, 1)
    A_LEAVES: tl.constexpr = leaves("a", KEEP)
    B_LEAVES: tl.constexpr = leaves("b", KEEP)
    rank_m, rank_n, _ = _rank(CLUSTER_M, CLUSTER_N)
    cluster, clusters, tiles, steps = _work(
        M, N, K, batches, BLOCK_M, BLOCK_N, BLOCK_K, CLUSTER_M, CLUSTER_N
    )
    let_next_kernel_begin()
    wait_for_kernels_before()
    step = 0
    for item in range(items_of(cluster, clusters, tiles, split_tiles, steps, STREAM_K)):
        tile, first, last = work_item(item, cluster, clusters, tiles, split_tiles, steps, STREAM_K)
        batch, row, column = _origin(
            tile, rank_m, rank_n, M, N, BLOCK_M, BLOCK_N, GROUP_M, CLUSTER_M, CLUSTER_N
        )
        k, ahead = first * BLOCK_K, BLOCK_K
        if TURN:
            if item % 2 == 1:
                k, ahead = (last - 1) * BLOCK_K, -BLOCK_K
        for _ in range(first, last):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            for part in tl.static_range(A_PARTS):
                which = rank_n // A_PIECES * A_PARTS + part
                _copy_share(
                    a_desc, a_buffers[stage * PARTS + which], full[stage],
                    batch, row + which * ROWS, k, rank_n % A_PIECES, A_BATCHED,
                    ROWS // A_PIECES, BLOCK_K, A_BY_COLUMN, rank_m, CLUSTER_M, CLUSTER_N, A_PIECES,
                    A_LEAVES,
                )  # fmt: skip
            _copy_share(
                b_desc, b_buffers[stage], full[stage], batch, column, k, rank_m, B_BATCHED,
                BLOCK_N // CLUSTER_M, BLOCK_K, not B_BY_COLUMN,
                rank_n * CLUSTER_M, 1, CLUSTER_M, CLUSTER_M, B_LEAVES,
            )  # fmt: skip
            step += 1
            k += ahead


@triton.jit
def _copy_share(
    desc, buffer, full, batch, at, k, piece, BATCHED: tl.constexpr, EXTENT: tl.constexpr,
    BLOCK_K: tl.constexpr, K_FIRST: tl.constexpr,
    first, STEP: tl.constexpr, PROGRAMS: tl.constexpr, PIECES: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """Copy one of PIECES of a buffer to PROGRAMS programs: first, first + STEP, ...

    at: where the buffer's rows of A or columns of B begin; EXTENT: how many a piece has.
    K_FIRST: the buffer's first dimension is along K.
    """
    if PIECES == 1:
        copy_block(
            desc, buffer, full, batch, at, k, BATCHED, K_FIRST, first, STEP, PROGRAMS, LEAVES
        )
    else:
        SHAPE: tl.constexpr = (BLOCK_K, EXTENT) if K_FIRST else (EXTENT, BLOCK_K)
        for i in tl.static_range(PIECES):
            if piece == i:
                # A slice begins at a constant.
                START: tl.constexpr = (0, i * EXTENT) if K_FIRST else (i * EXTENT, 0)
                copy_block(
                    desc, tlx.local_slice(buffer, START, SHAPE), full, batch, at + i * EXTENT, k,
                    BATCHED, K_FIRST, first, STEP, PROGRAMS, LEAVES,
                )  # fmt: skip


@triton.constexpr_function
def leaves(operand: str, keep: str) -> str:
    """When an operand's blocks leave the second-level cache, ``keep`` being the one to stay."""
    if keep == "":
        return ""
    return "evict_last" if operand == keep else "evict_first"


@triton.jit
def copy_block(
    desc, buffer, full, batch, at, k, BATCHED: tl.constexpr, K_FIRST: tl.constexpr,
    first, STEP: tl.constexpr, PROGRAMS: tl.constexpr, LEAVES: tl.constexpr = "",
):  # fmt: skip
    """Copy a block of an operand to PROGRAMS programs: first, first + STEP, ...

    at: where its rows of A or columns of B begin. BATCHED: the descriptor has a dimension of
    matrices. K_FIRST: the buffer's first dimension is along K. LEAVES: how it leaves the cache.
    """
    row = k if K_FIRST else at
    column = at if K_FIRST else k
    offsets = (batch, row, column) if BATCHED else (row, column)
    if PROGRAMS == 1:
        tlx.async_descriptor_load(desc, buffer, offsets, full, eviction_policy=LEAVES)
    else:
        tlx.async_descriptor_load(
            desc, buffer, offsets, full, eviction_policy=LEAVES,
            multicast_targets=_targets(first, STEP, PROGRAMS),
        )  # fmt: skip


@triton.jit
def _targets(first, STEP: tl.constexpr, PROGRAMS: tl.constexpr):
    """Ranks from ``first`` on, every STEP."""
    if PROGRAMS == 2:
        return (first, first + STEP)
    elif PROGRAMS == 4:  # noqa: RET505 - what follows a return is compiled too
        return (first, first + STEP, first + 2 * STEP, first + 3 * STEP)
    else:
        tl.static_assert(PROGRAMS == 8)
        return (0, 1, 2, 3, 4, 5, 6, 7)


@triton.jit
def _release(empty, rank_m, rank_n, CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr):
    """Tell the programs that copy into a buffer that it is free."""
    if CLUSTER_M * CLUSTER_N == 1:
        tlx.barrier_arrive(empty)
    else:
        for m in tl.static_range(CLUSTER_M):
            tlx.barrier_arrive(empty, 1, rank_n * CLUSTER_M + m)
        for n in tl.static_range(1, CLUSTER_N):
            rank = (rank_n + n) % CLUSTER_N * CLUSTER_M + rank_m
            tlx.barrier_arrive(empty, 1, rank)


@triton.jit
def _multiply(
    a_buffers, b_buffers, full, empty, steps, step, part, rank_m, rank_n,
    c, c_buffer, held, held_batch, held_row, held_column, flags, given,
    ME: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, SUBTILES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, CLUSTER_M: tl.constexpr,
    CLUSTER_N: tl.constexpr, LATE: tl.constexpr, STREAM_K: tl.constexpr,
):  # fmt: skip
    """The sum over some steps of K, a product in flight while the next one is issued.

    LATE: what is held is stored meanwhile, one of its SUBTILES parts in each step. STREAM_K:
    what is given is made known a few steps later, when it has arrived.
    """
    # ptxas lets products fly over the end of a loop that surely runs.
    tl.assume(steps > 0)
    acc = tl.zeros((ROWS, BLOCK_N), ACC)
    before = step % STAGES
    for k in range(steps):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        a = a_buffers[stage * PARTS + part]
        a = tlx.local_trans(a) if A_BY_COLUMN else a
        b = tlx.local_trans(b_buffers[stage]) if B_BY_COLUMN else b_buffers[stage]
        acc = tlx.async_dot(a, b, acc)
        acc = tlx.async_dot_wait(1, acc)
        if k > 0:
            _release(empty[before], rank_m, rank_n, CLUSTER_M, CLUSTER_N)
        if LATE:
            if k < SUBTILES:
                parts = columns_of(held, SUBTILES)
                for i in tl.static_range(SUBTILES):
                    if k == i:
                        column = held_column + i * (BLOCK_N // SUBTILES)
                        hand_over(c, c_buffer, parts[i], held_batch, held_row, column)
        if STREAM_K:
            if k == tl.minimum(steps - 1, 4):
                if given:
                    raise_flag(flags, tl.program_id(0), ME)
        before = stage
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    _release(empty[before], rank_m, rank_n, CLUSTER_M, CLUSTER_N)
    if LATE:
        if steps < SUBTILES:
            parts = columns_of(held, SUBTILES)
            for i in tl.static_range(1, SUBTILES):
                if steps <= i:
                    column = held_column + i * (BLOCK_N // SUBTILES)
                    hand_over(c, c_buffer, parts[i], held_batch, held_row, column)
    return acc, step


@triton.jit
def _consume(
    c, scale_a, scale_b, args, a_buffers, b_buffers, c_buffers,
    full, empty, partials, flags, M, N, K, batches, stride_cb, stride_cm, stride_cn, split_tiles,
    ME: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr, SUBTILES: tl.constexpr,
    A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr, C_DESCRIBED: tl.constexpr,
    ACC: tl.constexpr, PINGPONG: tl.constexpr, CLUSTER_M: tl.constexpr, CLUSTER_N: tl.constexpr,
    STREAM_K: tl.constexpr, LATE: tl.constexpr, EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Multiply and store half of each of the program's tiles, or every other one."""
    PARTS: tl.constexpr = 1 if PINGPONG else 2
    PART: tl.constexpr = 0 if PINGPONG else ME
    ROWS: tl.constexpr = BLOCK_M // PARTS
    rank_m, rank_n, rank = _rank(CLUSTER_M, CLUSTER_N)
    cluster, clusters, tiles, steps = _work(
        M, N, K, batches, BLOCK_M, BLOCK_N, BLOCK_K, CLUSTER_M, CLUSTER_N
    )
    wait_for_kernels_before()
    step = 0
    if PINGPONG:
        if ME == 1:
            tlx.named_barrier_arrive(_TURN, 256)  # the first turn is the other's
        step = ME * steps
    # Where LATE, what is to be stored, and where: at first something past the end of the result.
    held = tl.zeros((ROWS, BLOCK_N), tlx.dtype_of(c))
    held_batch, held_row, held_column = 0, M, 0
    given = cluster < 0  # nothing is
    items = items_of(cluster, clusters, tiles, split_tiles, steps, STREAM_K)
    for item in range(ME if PINGPONG else 0, items, 2 if PINGPONG else 1):
        tile, first, last = work_item(item, cluster, clusters, tiles, split_tiles, steps, STREAM_K)
        batch, row, column = _origin(
            tile, rank_m, rank_n, M, N, BLOCK_M, BLOCK_N, GROUP_M, CLUSTER_M, CLUSTER_N
        )
        row += PART * ROWS
        if PINGPONG:
            tlx.named_barrier_wait(_TURN + ME, 256)
        acc, step = _multiply(
            a_buffers, b_buffers, full, empty, last - first, step, PART, rank_m, rank_n,
            c, c_buffers[ME], held, held_batch, held_row, held_column, flags, given,
            ME, ROWS, BLOCK_N, PARTS, STAGES, SUBTILES, A_BY_COLUMN, B_BY_COLUMN, ACC,
            CLUSTER_M, CLUSTER_N, LATE, STREAM_K,
        )  # fmt: skip
        if PINGPONG:
            tlx.named_barrier_arrive(_TURN + 1 - ME, 256)
            step += steps  # the other's tile
        if STREAM_K:
            given = last < steps
            if given:
                give_partial(acc, partials, tl.program_id(0), ME)
            else:
                acc = add_partials(
                    acc, partials, flags, tile, first, cluster, clusters, rank,
                    tiles, split_tiles, steps, ME, CLUSTER_M * CLUSTER_N,
                )  # fmt: skip
        if LATE:
            held = finished(
                acc, batch, row, column, M, N, scale_a, scale_b, args, EPILOGUE, INDEX
            ).to(tlx.dtype_of(c))
            held_batch, held_column = batch, column
            held_row = tl.where(last < steps, M, row)  # what was given away is not stored
        else:
            if last == steps:
                _put(
                    acc, c, c_buffers[ME], batch, row, column, M, N, stride_cb, stride_cm,
                    stride_cn, scale_a, scale_b, args, SUBTILES, C_DESCRIBED, EPILOGUE, INDEX,
                )  # fmt: skip
    if STREAM_K:
        if given:
            raise_flag(flags, tl.program_id(0), ME)
    if LATE:
        parts = columns_of(held, SUBTILES)
        for part in tl.static_range(SUBTILES):
            column = held_column + part * (BLOCK_N // SUBTILES)
            hand_over(c, c_buffers[ME], parts[part], held_batch, held_row, column)
    if C_DESCRIBED:
        tlx.async_descriptor_store_wait(0)


@triton.jit
def _put(
    acc, c, buffer, batch, row, column, M, N, stride_cb, stride_cm, stride_cn, scale_a, scale_b,
    args, SUBTILES: tl.constexpr, C_DESCRIBED: tl.constexpr,
    EPILOGUE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Finish and store a tile, in SUBTILES parts."""
    COLUMNS: tl.constexpr = acc.shape[1] // SUBTILES
    parts = columns_of(acc, SUBTILES)
    for part in tl.static_range(SUBTILES):
        at = column + part * COLUMNS
        values = finished(
            parts[part], batch, row, at, M, N, scale_a, scale_b, args, EPILOGUE, INDEX
        )
        if C_DESCRIBED:
            hand_over(c, buffer, values, batch, row, at)
        else:
            store(c, values, batch, row, at, M, N, stride_cb, stride_cm, stride_cn, INDEX)


@triton.jit
def hand_over(c_desc, buffer, values, batch, row, column, OTHERS: tl.constexpr = 0):
    """Give a part of the result to the copy engine; OTHERS: buffers in turn with this one."""
    tlx.async_descriptor_store_wait(OTHERS)  # the last store from this buffer has read it
    tlx.local_store(buffer, values.to(tlx.dtype_of(c_desc)))
    tlx.fence_async_shared()
    if len(c_desc.block_shape) == 3:
        tlx.async_descriptor_store(c_desc, buffer, [batch, row, column])
    else:
        tlx.async_descriptor_store(c_desc, buffer, [row, column])
