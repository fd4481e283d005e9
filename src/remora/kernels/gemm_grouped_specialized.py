"""Several matrix products in one persistent launch, for Hopper, by warps with tasks of their own.

The tasks are those of ``gemm_specialized``, cooperative: a producer keeps the copy engine at
work, two consumers the matrix units. The kinds of groups are those of ``gemm_grouped``.

A program's first tile is that of its number; which is next it takes from a counter, so that
none waits for those that had larger ones. The producer hands the number to the consumers.

The copy engine knows where a tensor ends, and not where a group does. What reaches past a
group's end therefore has a descriptor of its own, made on the device, in which the tensor
ends there: stores of a group's last rows; loads along a group's depth; all of a list.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finished
from remora.kernels.gemm_grouped import (
    clear_rows,
    group_end,
    index_of,
    number_of,
    pointer_of,
    stride_of,
)
from remora.kernels.gemm_specialized import copy_block, hand_over
from remora.kernels.tiles import columns_of, tile_of


# The number of tokens differs from call to call, and makes no difference for the code.
@triton.jit(do_not_specialize=["GROUPS", "M", "K"])
def gemm_grouped_specialized(
    a_desc, b_desc, c_desc, a_ptr, b_ptr, c_ptr, scale_a, scale_b, offs, taken, GROUPS, M, N, K,
    stride_a, stride_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, SUBTILES: tl.constexpr, A_BY_COLUMN: tl.constexpr,
    B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, KIND: tl.constexpr, LATE: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """The products of all groups; shapes as of ``gemm_grouped``.

    KIND "rows": A by rows, B either; a_desc in blocks of (BLOCK_M // 2, BLOCK_K), b_desc
    (GROUPS, K, N) in (1, BLOCK_K, BLOCK_N), or (GROUPS, N, K) in (1, BLOCK_N, BLOCK_K) if
    B_BY_COLUMN, c_desc in (BLOCK_M // 2, BLOCK_N // SUBTILES).
    KIND "depth": A_BY_COLUMN and B by rows, stride_a and stride_b elements apart; c_desc
    (GROUPS * M, N).
    KIND "list": offs is the table; A and B by columns where it says so, for all of them alike.
    Descriptors that a kind does not name are None. Scales as of ``gemm_grouped``. taken: an
    int32, 0. Grid: programs, any number. STAGES: buffers of each operand. SUBTILES: 1, 2 or 4.
    ACC: the accumulator's element type. LATE, of KIND "rows" or "list" where each product has at
    least SUBTILES steps of K: a tile is stored during the first products of the next one.
    """
    ROWS: tl.constexpr = BLOCK_M // 2
    A_SHAPE: tl.constexpr = (BLOCK_K, ROWS) if A_BY_COLUMN else (ROWS, BLOCK_K)
    B_SHAPE: tl.constexpr = (BLOCK_N, BLOCK_K) if B_BY_COLUMN else (BLOCK_K, BLOCK_N)
    a_buffers = tlx.local_alloc(A_SHAPE, tlx.dtype_of(a_ptr), STAGES * 2)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_ptr), STAGES)
    c_buffers = tlx.local_alloc((ROWS, BLOCK_N // SUBTILES), tlx.dtype_of(c_ptr), 2)
    full = tlx.alloc_barriers(STAGES, 1)
    empty = tlx.alloc_barriers(STAGES, 2)
    mail = tlx.local_alloc((1,), tl.int32, 2)
    posted, read = tlx.alloc_barriers(2, 1), tlx.alloc_barriers(2, 2)
    # A descriptor's place is used again when no copy by it is in flight: a producer is at most
    # STAGES steps ahead, a group with tiles has at least one; a consumer waits for its stores.
    a_places = tlx.allocate_tensor_descriptor(STAGES + 1)
    b_places = tlx.allocate_tensor_descriptor(STAGES + 1)
    c_places = tlx.allocate_tensor_descriptor(4)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                c_desc, c_ptr, scale_a, scale_b, offs, GROUPS, M, N, K,
                a_buffers, b_buffers, c_buffers, full, empty, mail, posted, read, c_places, 0,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES, A_BY_COLUMN, B_BY_COLUMN,
                ACC, KIND, LATE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _consume(
                c_desc, c_ptr, scale_a, scale_b, offs, GROUPS, M, N, K,
                a_buffers, b_buffers, c_buffers, full, empty, mail, posted, read, c_places, 1,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, SUBTILES, A_BY_COLUMN, B_BY_COLUMN,
                ACC, KIND, LATE, INDEX,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _produce(
                a_desc, b_desc, a_ptr, b_ptr, offs, taken, GROUPS, M, N, K, stride_a, stride_b,
                a_buffers, b_buffers, full, empty, mail, posted, read, a_places, b_places,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, A_BY_COLUMN, B_BY_COLUMN, KIND,
            )  # fmt: skip


@triton.jit
def _sizes(offs, group, start, M, N, K, KIND: tl.constexpr):
    """M, N and K of a group, and where the one after it begins."""
    m, n, k, end = M, N, K, start
    if KIND == "rows":
        end = group_end(offs, group, start, M)
        m = end - start
    elif KIND == "depth":
        end = group_end(offs, group, start, K)
        k = end - start
    else:
        m = number_of(offs, group, 3)
        n = number_of(offs, group, 4)
        k = number_of(offs, group, 5)
    return m, n, k, end


@triton.jit
def _steps(k, BLOCK_K: tl.constexpr):
    """Steps over a group's depth: at least one, which sums zeros where there is no depth."""
    return tl.maximum(tl.cdiv(k, BLOCK_K), 1)


@triton.jit
def _describe(place, pointer, rows, columns, stride, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """A descriptor of a matrix, made on the device; its extents have to be at least 1."""
    return tlx.make_tensor_descriptor(
        place, pointer, [tl.maximum(rows, 1), tl.maximum(columns, 1)],
        [index_of(stride, tl.int64), 1], [HEIGHT, WIDTH],
    )  # fmt: skip


@triton.jit
def _produce(
    a_desc, b_desc, a_ptr, b_ptr, offs, taken, GROUPS, M, N, K, stride_a, stride_b,
    a_buffers, b_buffers, full, empty, mail, posted, read, a_places, b_places,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Copy the operands of the program's tiles, stage by stage; A's in two parts."""
    ROWS: tl.constexpr = BLOCK_M // 2
    step, made, sent = 0, 0, 0
    start, first, tile = 0, 0, tl.program_id(0)
    for group in range(GROUPS):
        m, n, k, end = _sizes(offs, group, start, M, N, K, KIND)
        tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
        if tile < first + tiles:
            if KIND == "rows":
                step, tile, sent = _produce_group(
                    a_desc, b_desc, a_buffers, b_buffers, full, empty, taken, mail, posted, read,
                    start, group, 0, m, n, k, tile, first, tiles, step, sent,
                    BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, A_BY_COLUMN, B_BY_COLUMN, KIND,
                )  # fmt: skip
            else:
                place = made % (STAGES + 1)
                if KIND == "depth":
                    a = _describe(a_places[place], a_ptr, end, M, stride_a, BLOCK_K, ROWS)
                    b = _describe(b_places[place], b_ptr, end, N, stride_b, BLOCK_K, BLOCK_N)
                else:
                    a_at = pointer_of(offs, group, 0, a_ptr)
                    b_at = pointer_of(offs, group, 1, b_ptr)
                    if A_BY_COLUMN:
                        apart = stride_of(offs, group, 7, tl.int64)
                        a = _describe(a_places[place], a_at, k, m, apart, BLOCK_K, ROWS)
                    else:
                        apart = stride_of(offs, group, 6, tl.int64)
                        a = _describe(a_places[place], a_at, m, k, apart, ROWS, BLOCK_K)
                    if B_BY_COLUMN:
                        apart = stride_of(offs, group, 9, tl.int64)
                        b = _describe(b_places[place], b_at, n, k, apart, BLOCK_N, BLOCK_K)
                    else:
                        apart = stride_of(offs, group, 8, tl.int64)
                        b = _describe(b_places[place], b_at, k, n, apart, BLOCK_K, BLOCK_N)
                # Where there is no depth, what is past the end: zeros.
                from_k = tl.where(k > 0, start, tl.maximum(end, 1))
                step, tile, sent = _produce_group(
                    a, b, a_buffers, b_buffers, full, empty, taken, mail, posted, read,
                    0, 0, from_k, m, n, k, tile, first, tiles, step, sent,
                    BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, A_BY_COLUMN, B_BY_COLUMN, KIND,
                )  # fmt: skip
                made += 1
        first += tiles
        start = end


@triton.jit
def _produce_group(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, taken, mail, posted, read,
    from_row, group, from_k, m, n, k, tile, first, tiles, step, sent,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Copy the operands of the tiles of one group; the first tile after it."""
    ROWS: tl.constexpr = BLOCK_M // 2
    BYTES: tl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * tlx.size_of(tlx.dtype_of(a_desc))
    while tile < first + tiles:
        following = tl.atomic_add(taken, 1, sem="relaxed") + tl.num_programs(0)
        _post(mail, posted, read, sent, following)
        sent += 1
        tile_m, tile_n = tile_of(tile - first, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        row, column = from_row + tile_m * BLOCK_M, tile_n * BLOCK_N
        for i in range(_steps(k, BLOCK_K)):
            depth = from_k + i * BLOCK_K
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(full[stage], BYTES)
            for part in tl.static_range(2):
                copy_block(
                    a_desc, a_buffers[stage * 2 + part], full[stage], 0, row + part * ROWS, depth,
                    False, A_BY_COLUMN, 0, 0, 1, "",
                )  # fmt: skip
            copy_block(
                b_desc, b_buffers[stage], full[stage], group, column, depth, KIND == "rows",
                not B_BY_COLUMN, 0, 0, 1, "",
            )  # fmt: skip
            step += 1
        tile = following
    return step, tile, sent


@triton.jit
def _post(mail, posted, read, number, tile):
    """Tell the consumers which tile is next."""
    slot = number % 2
    tlx.barrier_wait(read[slot], ((number // 2) & 1) ^ 1)
    tlx.local_store(mail[slot], tl.full((1,), 0, tl.int32) + tile)
    tlx.barrier_arrive(posted[slot])


@triton.jit
def _receive(mail, posted, read, number):
    """Which tile is next."""
    slot = number % 2
    tlx.barrier_wait(posted[slot], (number // 2) & 1)
    tile = tl.max(tlx.local_load(mail[slot]), 0)
    tlx.barrier_arrive(read[slot])
    return tile


@triton.jit
def _multiply(
    a_buffers, b_buffers, full, empty, steps, step, c_desc, buffer, held, held_row, held_column,
    parts_held, PART: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    SUBTILES: tl.constexpr, A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr,
    ACC: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """The sum over the depth of one tile, a product in flight while the next one is issued.

    LATE: what is held, SUBTILES parts or none, is stored meanwhile, a part in each step.
    """
    # ptxas lets products fly over the end of a loop that surely runs.
    tl.assume(steps > 0)
    acc = tl.zeros((ROWS, BLOCK_N), ACC)
    before = step % STAGES
    for i in range(steps):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        a, b = a_buffers[stage * 2 + PART], b_buffers[stage]
        a = tlx.local_trans(a) if A_BY_COLUMN else a
        b = tlx.local_trans(b) if B_BY_COLUMN else b
        acc = tlx.async_dot(a, b, acc)
        acc = tlx.async_dot_wait(1, acc)
        if i > 0:
            tlx.barrier_arrive(empty[before])
        if LATE:
            if i < parts_held:
                parts = columns_of(held, SUBTILES)
                for part in tl.static_range(SUBTILES):
                    if i == part:
                        column = held_column + part * (BLOCK_N // SUBTILES)
                        hand_over(c_desc, buffer, parts[part], 0, held_row, column)
        before = stage
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    tlx.barrier_arrive(empty[before])
    return acc, step


@triton.jit
def _skip(full, empty, steps, step, STAGES: tl.constexpr):
    """Give the buffers of a tile back unread."""
    for _ in range(steps):
        stage = step % STAGES
        tlx.barrier_wait(full[stage], (step // STAGES) & 1)
        tlx.barrier_arrive(empty[stage])
        step += 1
    return step


@triton.jit
def _store(
    c_desc, buffer, acc, group, row, column, M, N, scale_a, scale_b, SUBTILES: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Scale a tile, and hand it to the copy engine, in SUBTILES parts through one buffer."""
    COLUMNS: tl.constexpr = acc.shape[1] // SUBTILES
    parts = columns_of(acc, SUBTILES)
    for part in tl.static_range(SUBTILES):
        values = finished(
            parts[part], group, row, column + part * COLUMNS, M, N, scale_a, scale_b, (), None,
            INDEX,
        )  # fmt: skip
        hand_over(c_desc, buffer, values, 0, row, column + part * COLUMNS)


@triton.jit
def _place(places, number, ME: tl.constexpr):
    """Where a consumer's descriptor of the result is, of two by turns."""
    return places[ME * 2 + number % 2]


@triton.jit
def _described(
    places, number, pointer, ME: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The descriptor that was made there."""
    return tlx.reinterpret_tensor_descriptor(
        _place(places, number, ME), [ROWS, COLUMNS], tlx.dtype_of(pointer)
    )


@triton.jit
def _consume(
    c_desc, c_ptr, scale_a, scale_b, offs, GROUPS, M, N, K,
    a_buffers, b_buffers, c_buffers, full, empty, mail, posted, read, c_places,
    ME: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr, SUBTILES: tl.constexpr,
    A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr, ACC: tl.constexpr, KIND: tl.constexpr,
    LATE: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Multiply and store half of the rows of each of the program's tiles."""
    ROWS: tl.constexpr = BLOCK_M // 2
    COLUMNS: tl.constexpr = BLOCK_N // SUBTILES
    buffer = c_buffers[ME]
    step, made, received = 0, 0, 0
    # Where LATE, a tile that is to be stored, and where: at first past the end of the result, or
    # none of a list, in whose descriptor it is.
    held, held_row, held_column, held_place = 0, M, 0, 1
    parts_held = 0 if KIND == "list" else SUBTILES
    described = -1  # of a list, the product that the last descriptor is of
    if LATE:
        held = tl.zeros((ROWS, BLOCK_N), tlx.dtype_of(c_ptr))
    start, first, tile = 0, 0, tl.program_id(0)
    for group in range(GROUPS):
        m, n, k, end = _sizes(offs, group, start, M, N, K, KIND)
        tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
        steps = _steps(k, BLOCK_K)
        c_at, c_row = c_ptr, 0
        if KIND == "rows":
            c_row = start
        elif KIND == "depth":
            c_row = group * M
        else:
            c_at = pointer_of(offs, group, 2, c_ptr)
        while tile < first + tiles:
            tile_m, tile_n = tile_of(tile - first, m, n, BLOCK_M, BLOCK_N, GROUP_M)
            row, column = tile_m * BLOCK_M + ME * ROWS, tile_n * BLOCK_N
            if row < m:
                late_desc = c_desc
                if KIND == "list":
                    if described != group:
                        # What was stored by the descriptor that was here has left.
                        tlx.async_descriptor_store_wait(0)
                        made += 1
                        _describe(_place(c_places, made, ME), c_at, m, n, n, ROWS, COLUMNS)
                        described = group
                    late_desc = _described(c_places, held_place, c_ptr, ME, ROWS, COLUMNS)
                acc, step = _multiply(
                    a_buffers, b_buffers, full, empty, steps, step, late_desc, buffer,
                    held, held_row, held_column, parts_held, ME, ROWS, BLOCK_N, STAGES,
                    SUBTILES, A_BY_COLUMN, B_BY_COLUMN, ACC, LATE,
                )  # fmt: skip
                if LATE:
                    held = finished(
                        acc, group, c_row + row, column, c_row + m, n, scale_a, scale_b, (), None,
                        INDEX,
                    ).to(tlx.dtype_of(c_ptr))  # fmt: skip
                    held_row, held_column, held_place = c_row + row, column, made
                if KIND == "list":
                    if LATE:
                        parts_held = SUBTILES
                    else:
                        desc = _described(c_places, made, c_ptr, ME, ROWS, COLUMNS)
                        _store(
                            desc, buffer, acc, group, row, column, m, n, scale_a, scale_b,
                            SUBTILES, INDEX,
                        )  # fmt: skip
                elif row + ROWS <= m:
                    if not LATE:
                        _store(
                            c_desc, buffer, acc, group, c_row + row, column, c_row + m, n,
                            scale_a, scale_b, SUBTILES, INDEX,
                        )  # fmt: skip
                else:
                    # The rows after these are another group's.
                    desc = _describe(
                        _place(c_places, made, ME), c_at, c_row + m, n, n, ROWS, COLUMNS
                    )
                    _store(
                        desc, buffer, acc, group, c_row + row, column, c_row + m, n,
                        scale_a, scale_b, SUBTILES, INDEX,
                    )  # fmt: skip
                    made += 1
                    if LATE:
                        held_row = M  # it is stored
            else:
                step = _skip(full, empty, steps, step, STAGES)
            tile = _receive(mail, posted, read, received)
            received += 1
        first += tiles
        start = end
    if LATE and (KIND != "list" or parts_held > 0):
        last_desc = c_desc
        if KIND == "list":
            last_desc = _described(c_places, held_place, c_ptr, ME, ROWS, COLUMNS)
        parts = columns_of(held, SUBTILES)
        for part in tl.static_range(SUBTILES):
            hand_over(last_desc, buffer, parts[part], 0, held_row, held_column + part * COLUMNS)
    tlx.async_descriptor_store_wait(0)
    if KIND == "rows" and ME == 0:
        clear_rows(c_ptr, start, M, N, 16, BLOCK_N, INDEX)
