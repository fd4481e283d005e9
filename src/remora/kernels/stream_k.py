"""Tiles cut along K, so that all multiprocessors have the same work (stream-K).

M. Osama et al., "Stream-K: Work-Centric Parallel Decomposition for Dense Matrix-Matrix
Multiplication on the GPU", PPoPP 2023. The steps of K of the last ``split_tiles`` tiles are
one sequence, which is cut into as many equal parts as there are clusters of programs. A
cluster goes through its part from the end: first comes what it does not finish, whose sums it
gives to the cluster that does; last what it finishes, of sums that were given long before. So
sums come from clusters of lower number only, in one order: results are the same each time.
The other tiles follow, whole, as many for each cluster.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import columns_of, joined

# The hardware's named barriers of the consumers; those before are taken.
_GIVEN = tl.constexpr(10)

# Of a part of a tile whose sums are given or added together.
_COLUMNS = tl.constexpr(64)


@triton.jit
def _begin(cluster, clusters, total):
    """Where a cluster's part of the steps begins; the first ones are longer by one."""
    return cluster * (total // clusters) + min(cluster, total % clusters)


@triton.jit
def _cluster_of(step, clusters, total):
    """In whose part a step is."""
    each, longer = total // clusters, total % clusters
    end = longer * (each + 1)
    found = step // (each + 1)
    if step >= end:
        found = longer + (step - end) // each
    return found


@triton.jit
def items_of(cluster, clusters, tiles, split_tiles, steps, STREAM_K: tl.constexpr):
    """How many tiles, or parts of tiles, a cluster works on."""
    items = tl.cdiv(tiles - cluster, clusters)
    if STREAM_K:
        _, _, split = _share(cluster, clusters, split_tiles, steps)
        items = split + (tiles - split_tiles) // clusters
    return items


@triton.jit
def _share(cluster, clusters, split_tiles, steps):
    """A cluster's part of the steps: begin, end, and how many tiles it meets."""
    total = split_tiles * steps
    begin = _begin(cluster, clusters, total)
    end = _begin(cluster + 1, clusters, total)
    return begin, end, (end - 1) // steps - begin // steps + 1


@triton.jit
def work_item(item, cluster, clusters, tiles, split_tiles, steps, STREAM_K: tl.constexpr):
    """A tile, and the steps of K to do: the first one, and the one after the last."""
    tile = cluster + item * clusters
    first, last = 0, steps
    if STREAM_K:
        begin, end, split = _share(cluster, clusters, split_tiles, steps)
        tile -= split * clusters
        if item < split:
            number = (end - 1) // steps - item
            tile = tiles - split_tiles + number
            first = max(begin - number * steps, 0)
            last = min(end - number * steps, steps)
    return tile, first, last


@triton.jit
def _places(part, number, partials, program, ME: tl.constexpr, PARTS: tl.constexpr):
    """The addresses of one of PARTS parts of a tile's columns, as numbers.

    Before Triton 3.9 instructions take no pointers beside numbers.
    """
    ROWS: tl.constexpr = part.shape[0]
    COLUMNS: tl.constexpr = part.shape[1]
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    first = ((program * 2 + ME) * PARTS + number) * (ROWS * COLUMNS)
    return (partials + first + at).to(tl.int64)


@triton.jit
def give_partial(acc, partials, program, ME: tl.constexpr):
    """Write sums for another cluster; ``raise_flag`` says so."""
    PARTS: tl.constexpr = acc.shape[1] // _COLUMNS
    parts = columns_of(acc, PARTS)
    for i in tl.static_range(PARTS):
        # Elementwise instructions leave the sums in the registers they are in: tl.store would
        # move them for whole lines, through shared memory that is full.
        tl.inline_asm_elementwise(
            "st.global.v2.b32 [$2], {$4, $5}; mov.b32 $0, 0; mov.b32 $1, 0;",
            "=r,=r,l,l,r,r", [_places(parts[i], i, partials, program, ME, PARTS), parts[i]],
            dtype=tl.int32, is_pure=False, pack=2,
        )  # fmt: skip


@triton.jit
def raise_flag(flags, program, ME: tl.constexpr):
    """Say that sums are there. It waits for their stores: better when these have arrived."""
    tlx.fence("gpu")
    tlx.named_barrier_wait(_GIVEN + ME, 128)
    tl.store(flags + program * 2 + ME, 1)


@triton.jit
def wait_for_flag(flags, program, ME: tl.constexpr):
    """Wait for sums of another program."""
    tl.inline_asm_elementwise(
        "{.reg .pred %up; waiting: ld.acquire.gpu.global.b32 $0, [$1]; "
        "setp.ne.b32 %up, $0, 0; @!%up bra waiting;}",
        "=r,l", [flags + program * 2 + ME], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def lower_flag(flags, program, ME: tl.constexpr):
    """Lower the flag of sums, when all of this consumer have read them."""
    tlx.named_barrier_wait(_GIVEN + ME, 128)
    tl.store(flags + program * 2 + ME, 0)


@triton.jit
def add_partials(
    acc, partials, flags, tile, first, cluster, clusters, rank, tiles, split_tiles, steps,
    ME: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add what clusters before this one summed of a tile; lower their flags."""
    PARTS: tl.constexpr = acc.shape[1] // _COLUMNS
    giver = cluster
    if first > 0:
        giver = _cluster_of((tile - (tiles - split_tiles)) * steps, clusters, split_tiles * steps)
    for other in range(giver, cluster):
        wait_for_flag(flags, other * SIZE + rank, ME)
    # A part at a time: the addresses of a whole tile would take more registers than there are.
    parts = columns_of(acc, PARTS)
    if PARTS == 1:
        acc = _sum(parts[0], 0, partials, giver, cluster, rank, ME, SIZE, PARTS)
    elif PARTS == 2:
        acc = joined(
            _sum(parts[0], 0, partials, giver, cluster, rank, ME, SIZE, PARTS),
            _sum(parts[1], 1, partials, giver, cluster, rank, ME, SIZE, PARTS),
        )
    else:
        left = joined(
            _sum(parts[0], 0, partials, giver, cluster, rank, ME, SIZE, PARTS),
            _sum(parts[1], 1, partials, giver, cluster, rank, ME, SIZE, PARTS),
        )
        right = joined(
            _sum(parts[2], 2, partials, giver, cluster, rank, ME, SIZE, PARTS),
            _sum(parts[3], 3, partials, giver, cluster, rank, ME, SIZE, PARTS),
        )
        acc = joined(left, right)
    for other in range(giver, cluster):
        lower_flag(flags, other * SIZE + rank, ME)
    return acc


@triton.jit
def _sum(
    part, number, partials, giver, cluster, rank,
    ME: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add a part of what clusters from ``giver`` to before ``cluster`` gave."""
    for other in range(giver, cluster):
        part = added(part, number, partials, other * SIZE + rank, ME, PARTS)
    return part


@triton.jit
def added(part, number, partials, program, ME: tl.constexpr, PARTS: tl.constexpr):
    """One of PARTS parts of a tile's columns, with what a program gave of it."""
    places = _places(part, number, partials, program, ME, PARTS)
    if part.dtype == tl.int32:
        sums = tl.inline_asm_elementwise(
            "{.reg .b32 %a, %b; ld.global.v2.b32 {%a, %b}, [$2]; "
            "add.s32 $0, $4, %a; add.s32 $1, $5, %b;}",
            "=r,=r,l,l,r,r", [places, part], dtype=tl.int32, is_pure=False, pack=2,
        )  # fmt: skip
    else:
        sums = tl.inline_asm_elementwise(
            "{.reg .f32 %a, %b; ld.global.v2.f32 {%a, %b}, [$2]; "
            "add.f32 $0, $4, %a; add.f32 $1, $5, %b;}",
            "=f,=f,l,l,f,f", [places, part], dtype=tl.float32, is_pure=False, pack=2,
        )  # fmt: skip
    return sums
