"""Which tile of the result a program works on."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a program's tile: GROUP_M rows of tiles at a time, column by column."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * tiles_n)
    first = group * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    within = program % (GROUP_M * tiles_n)
    return first + within % height, within // height


@triton.jit
def place_of(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Matrix of a batch, row and column of a program's tile; one matrix after the other."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tile_of(program % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    return program // tiles, tile_m, tile_n


@triton.jit
def first_blocks(
    a_ptr, b_ptr, tile_m, tile_n, M, N, depth, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Pointers to a tile's first blocks: of A (BLOCK_M, BLOCK_K), of B (BLOCK_K, BLOCK_N).

    depth: 0 to BLOCK_K - 1. INDEX: type of indices. Rows and columns outside the matrices wrap
    around: loads need no mask for them, and the store leaves them out.
    """
    rows = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(INDEX)
    columns = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(INDEX)
    a_at = a_ptr + rows[:, None] * stride_am + depth.to(INDEX)[None, :] * stride_ak
    b_at = b_ptr + depth.to(INDEX)[:, None] * stride_bk + columns[None, :] * stride_bn
    return a_at, b_at


@triton.jit
def columns_of(acc, PARTS: tl.constexpr):
    """The columns in 1, 2 or 4 parts; no value leaves its thread."""
    parts = (acc,)
    for _ in tl.static_range((PARTS > 1) + (PARTS > 2)):
        parts = _halves_of_all(parts)
    return parts


@triton.jit
def _halves_of_all(parts):
    halves = halves_of(parts[0])
    if len(parts) == 2:
        halves = halves + halves_of(parts[1])
    return halves


@triton.jit
def halves_of(acc):
    """The left and the right columns; no value leaves its thread."""
    ROWS: tl.constexpr = acc.shape[0]
    COLUMNS: tl.constexpr = acc.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def top_and_bottom(acc):
    """The upper and the lower rows; no value leaves its thread if a warp group has 64 of each."""
    ROWS: tl.constexpr = acc.shape[0] // 2
    return tl.split(tl.permute(tl.reshape(acc, (2, ROWS, acc.shape[1])), (1, 2, 0)))


@triton.jit
def joined(left, right):
    """What ``halves_of`` gave, in one."""
    ROWS: tl.constexpr = left.shape[0]
    COLUMNS: tl.constexpr = left.shape[1] * 2
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (ROWS, COLUMNS))
