"""Several matrix products in one persistent launch, for any operands and target.

There are three kinds of groups, each group a product of its own:

- ``"rows"``: rows of A, a B for each group (a mixture of experts, forward);
- ``"depth"``: columns of A and the same rows of B, a result for each group (the gradient of
  the experts' B);
- ``"list"``: any products, in a table.

Where groups of rows and of depth end is in memory of the device (``offs``), which no host
reads. An offset that is smaller than one before it counts as that one, and one past the
extent as the extent: whatever they are, nothing outside is read or written.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.epilogue import finish
from remora.kernels.tiles import first_blocks, tile_of

#: Columns of a list's table, int64: the addresses of A, B and C; M, N, K; the strides of A (m, k)
#: and of B (k, n) in elements. C's rows are contiguous, one after the other.
TABLE_COLUMNS = 10
_COLUMNS = tl.constexpr(TABLE_COLUMNS)


#: Numbers of a table that one launch of ``fill_table`` writes: the rows of 16 products.
FILLED = 16 * TABLE_COLUMNS


def packed(number: int) -> int:
    """A number from 0 to 2^48 as ``fill_table`` takes it.

    Triton compiles a kernel anew for integers of 1, of 32 and of 64 bits, and multiples of 16:
    all of these are multiples of 16, of 64 bits.
    """
    return (number << 4) | (1 << 53)


@triton.jit
def fill_table(table, values):
    """Write numbers, ``packed``, to a table: no copy from the host, which a graph of CUDA would
    repeat after its source has gone."""
    for i in tl.static_range(len(values)):
        tl.store(table + i, (values[i] & ((1 << 53) - 1)) >> 4)


@triton.jit
def index_of(number, INDEX: tl.constexpr):
    """An integer of any kind, constant or not, as an index."""
    return tl.full((), 0, INDEX) + number


@triton.jit
def group_end(offs, group, start, extent):
    """Where the group that begins at ``start`` ends."""
    return tl.minimum(tl.maximum(tl.load(offs + group), start), extent)


@triton.jit
def number_of(table, number, column):
    """A size of a product in the table."""
    return tl.load(table + number * _COLUMNS + column).to(tl.int32)


@triton.jit
def stride_of(table, number, column, INDEX: tl.constexpr):
    """A stride of a product in the table."""
    return tl.load(table + number * _COLUMNS + column).to(INDEX)


@triton.jit
def pointer_of(table, number, column, like):
    """A pointer of a product in the table, of the type of ``like``."""
    return tl.load(table + number * _COLUMNS + column).to(like.dtype)


@triton.jit
def next_tile(tile, end):
    """This program's first tile from ``end`` on, where ``tile`` is one of its own."""
    programs = tl.num_programs(0)
    return tile + tl.cdiv(tl.maximum(end - tile, 0), programs) * programs


@triton.jit
def clear_rows(c_ptr, first, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INDEX: tl.constexpr):
    """Zero C from row ``first`` on: the rows of no group, divided over the programs."""
    columns = tl.arange(0, COLUMNS)
    zeros = tl.zeros((ROWS, COLUMNS), tlx.dtype_of(c_ptr))
    for row in range(first + tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS):
        rows = row + tl.arange(0, ROWS)
        c_at = c_ptr + rows.to(INDEX)[:, None] * N + columns[None, :]
        for column in range(0, N, COLUMNS):
            inside = (rows[:, None] < M) & (column + columns[None, :] < N)
            tl.store(c_at + column, zeros, mask=inside)


@triton.jit
def gemm_grouped(
    a_ptr, b_ptr, c_ptr, scale_a, scale_b, offs, GROUPS, M, N, K,
    stride_am, stride_ak, stride_bg, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BUFFERS: tl.constexpr, ACC: tl.constexpr, KIND: tl.constexpr, MULTIPLY: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """The products of all groups.

    KIND "rows": a_ptr (M, K), b_ptr (GROUPS, K, N), c_ptr (M, N); offs (GROUPS), of rows.
    KIND "depth": a_ptr (M, K), b_ptr (K, N), c_ptr (GROUPS, M, N); offs (GROUPS), of K.
    KIND "list": offs is a table of GROUPS rows; of the pointers only the types count.
    A and B have any strides, C is contiguous. scale_a, scale_b, INDEX: see ``finished``; scales
    of KIND "rows" alone. Grid: programs, any number. MULTIPLY: ``multiply_pipelined`` or
    ``multiply_staged``, with their BUFFERS. ACC: the accumulator's element type.
    """
    a_buffers = tlx.local_alloc((BLOCK_M, BLOCK_K), tlx.dtype_of(a_ptr), BUFFERS)
    b_buffers = tlx.local_alloc((BLOCK_K, BLOCK_N), tlx.dtype_of(b_ptr), BUFFERS)
    depth = tl.arange(0, BLOCK_K).to(INDEX)
    start, first, tile = 0, 0, tl.program_id(0)
    for group in range(GROUPS):
        # The group's first row among all of A's and C's, where they are its own, and its sizes.
        a, b, c, c_row, m, n, k = a_ptr, b_ptr, c_ptr, 0, M, N, K
        am, ak, bk, bn = stride_am, stride_ak, stride_bk, stride_bn
        if KIND == "list":
            a, b = pointer_of(offs, group, 0, a_ptr), pointer_of(offs, group, 1, b_ptr)
            c = pointer_of(offs, group, 2, c_ptr)
            m, n = number_of(offs, group, 3), number_of(offs, group, 4)
            k = number_of(offs, group, 5)
            am, ak = stride_of(offs, group, 6, INDEX), stride_of(offs, group, 7, INDEX)
            bk, bn = stride_of(offs, group, 8, INDEX), stride_of(offs, group, 9, INDEX)
        elif KIND == "rows":
            end = group_end(offs, group, start, M)
            m, c_row = end - start, start
            a += index_of(start, INDEX) * am
            b += index_of(group, INDEX) * stride_bg
            start = end
        else:
            end = group_end(offs, group, start, K)
            k = end - start
            a += index_of(start, INDEX) * ak
            b += index_of(start, INDEX) * bk
            c += index_of(group, INDEX) * M * N
            start = end
        tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
        for at in range(tile, first + tiles, tl.num_programs(0)):
            tile_m, tile_n = tile_of(at - first, m, n, BLOCK_M, BLOCK_N, GROUP_M)
            row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
            a_at, b_at = first_blocks(
                a, b, tile_m, tile_n, m, n, depth, am, ak, bk, bn, BLOCK_M, BLOCK_N, INDEX
            )
            acc = MULTIPLY(a_at, b_at, a_buffers, b_buffers, k, ak, bk, BUFFERS, ACC, INDEX)
            finish(
                c, acc, index_of(group, INDEX), c_row + row, column, c_row + m, n, 0, n, 1,
                scale_a, scale_b, (), None, INDEX,
            )  # fmt: skip
        first += tiles
        tile = next_tile(tile, first)
    if KIND == "rows":
        clear_rows(c_ptr, start, M, N, 16, BLOCK_N, INDEX)
