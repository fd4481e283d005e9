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
