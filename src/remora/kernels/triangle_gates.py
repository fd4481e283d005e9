"""``gate_gradients`` of :mod:`remora.kernels.triangle_gradients` for Hopper.

As :mod:`remora.kernels.triangle_folded`, whose tiles, blocks of weights and turns of two consumers
these are, of normalised pairs; and a task copies the gradients that consumers multiply with.
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.tiles import halves_of
from remora.kernels.triangle_folded import (
    DEPTH,
    GROUP,
    PAIRS,
    _block_of,
    _copy_pairs,
    _copy_weights,
    _mask_of,
    _multiply,
    _pairs_of,
    _places_of,
    _turns,
)
from remora.kernels.triangle_hopper import put
from remora.kernels.warp_group import wait

#: Registers of each thread of the second consumer, and of the task that loads the mask.
_CONSUMER, _MASKER = tl.constexpr(216), tl.constexpr(40)

_LOG2E = tl.constexpr(1.4426950408889634)


@tlx.jit(do_not_specialize=["B"])
def gates(
    y_desc, z_desc, p_desc, g_desc, d_desc, mask, out_desc, B, N, first_p, first_g,
    stride_mb, stride_mi, stride_mk,
    PIECES: tl.constexpr, P_PIECES: tl.constexpr, GROUPS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, TILES: tl.constexpr, CLUSTER: tl.constexpr, OUTPUT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Of ``mask * (y @ P.T) * sigmoid(y @ G.T)``, whose gradient is d: those of both products.

    With OUTPUT of ``(z.T @ P.T) * sigmoid(y @ G.T)``. N: a multiple of PAIRS. y_desc: (B * N, N,
    PIECES * DEPTH) in blocks of (1, PAIRS, DEPTH); z_desc: (P_PIECES * DEPTH, B * N * N) in blocks
    of (DEPTH, PAIRS), with OUTPUT; g_desc: (channels, PIECES * DEPTH), p_desc: (channels, P_PIECES
    * DEPTH), in blocks of (GROUP // CLUSTER, DEPTH). d_desc: (channels, B * N * N) in blocks of
    (GROUP, PAIRS), with OUTPUT (B * N, N, channels) in blocks of (1, PAIRS, GROUP). mask:
    (B, N, N), read if MASKED. out_desc: (B * N, N, columns) in blocks of (1, PAIRS, GROUP):
    results are written from columns first_p and first_g on. GROUPS: of channels, up to an even
    number. STAGES, RESIDENT, TILES, grid: as of ``project``.
    """
    x = tlx.local_alloc((2 * PAIRS, DEPTH), tlx.dtype_of(y_desc), TILES * PIECES)
    z = tlx.local_alloc((DEPTH, 2 * PAIRS), tlx.dtype_of(y_desc), TILES * P_PIECES if OUTPUT else 1)
    blocks = tlx.local_alloc((GROUP, DEPTH), tlx.dtype_of(y_desc), STAGES)
    tl.static_assert(PAIRS == GROUP)  # the same buffers are by pairs and by channels
    ds = tlx.local_alloc((PAIRS, GROUP), tlx.dtype_of(y_desc), 4)
    masks = tlx.local_alloc((PAIRS,), tl.float32, 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, CLUSTER)
    x_full, x_empty = tlx.alloc_barriers(TILES * PIECES, 1), tlx.alloc_barriers(TILES * PIECES, 2)
    Z_COUNT: tl.constexpr = TILES * P_PIECES if OUTPUT else 1
    z_full, z_empty = tlx.alloc_barriers(Z_COUNT, 1), tlx.alloc_barriers(Z_COUNT, 2)
    d_full, d_empty = tlx.alloc_barriers(4, 1), tlx.alloc_barriers(4, 1)
    known, used = tlx.alloc_barriers(1, 1), tlx.alloc_barriers(1, 2)
    go = tlx.alloc_barriers(2, 1)
    turns = _turns(tl.cdiv(B * N * (N // PAIRS), 2), CLUSTER)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _consume(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, ds, d_full, d_empty,
                masks, known, used, go, out_desc, turns, N, first_p, first_g, 0,
                PIECES, P_PIECES, GROUPS, STAGES, RESIDENT, TILES, CLUSTER, OUTPUT, MASKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=_CONSUMER):
            _consume(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, ds, d_full, d_empty,
                masks, known, used, go, out_desc, turns, N, first_p, first_g, 1,
                PIECES, P_PIECES, GROUPS, STAGES, RESIDENT, TILES, CLUSTER, OUTPUT, MASKED,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=_MASKER):
            if MASKED:
                for turn in range(turns):
                    tlx.barrier_wait(used[0], (turn & 1) ^ 1)
                    for half in tl.static_range(2):
                        some = _mask_of(
                            turn, half, mask, B, N, N, stride_mb, stride_mi, stride_mk, True
                        )  # fmt: skip
                        tlx.local_store(masks[half], some)
                    tlx.barrier_arrive(known[0])
        with tlx.async_task(num_warps=1, num_regs=24):
            _copy_weights(
                p_desc, g_desc, blocks, full, empty, turns, GROUP,
                GROUPS, P_PIECES, PIECES, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            for turn in range(turns):
                places = _places_of(turn, N, N)
                if OUTPUT:  # they are done with first
                    _copy_pairs(z_desc, z, z_full, z_empty, turn, places, P_PIECES, TILES, True)
                _copy_pairs(y_desc, x, x_full, x_empty, turn, places, PIECES, TILES, False)
        with tlx.async_task(num_warps=1, num_regs=40):
            for turn in range(turns):
                places = _places_of(turn, N, N)
                for group in range(GROUPS):
                    _copy_gradients(
                        d_desc, ds, d_full, d_empty, turn * (GROUPS // 2) + group // 2, group,
                        places, OUTPUT,
                    )  # fmt: skip


@triton.jit
def _copy_gradients(
    desc, buffers, full, empty, number, group, places, OUTPUT: tl.constexpr
):  # fmt: skip
    """Copy what a group's consumer multiplies with; number: how often it has had any."""
    for half in tl.static_range(2):
        mine = group % 2 * 2 + half
        tlx.barrier_wait(empty[mine], (number & 1) ^ 1)
        tlx.barrier_expect_bytes(full[mine], GROUP * PAIRS * 2)
        if OUTPUT:
            at = [places[half][0], places[half][1], group * GROUP]
        else:
            at = [group * GROUP, places[half][2]]
        tlx.async_descriptor_load(desc, buffers[mine], at, full[mine])


@triton.jit
def gate_of(g):
    """``1 / (1 + exp(-g))``; ``/`` would make more of the reciprocal."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + tl.math.exp2(g * -_LOG2E)], tl.float32,
        is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _consume(
    x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, ds, d_full, d_empty,
    masks, known, used, go, out_desc, turns, N, first_p, first_g, ME: tl.constexpr,
    PIECES: tl.constexpr, P_PIECES: tl.constexpr, GROUPS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, TILES: tl.constexpr, CLUSTER: tl.constexpr, OUTPUT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    for turn in range(turns):
        at, phase = turn % TILES * PIECES, turn // TILES & 1
        for step in range(GROUPS // 2):
            group = step * 2 + ME
            number, last = turn * GROUPS + group, step == GROUPS // 2 - 1
            of, of_full, of_empty, of_at = x, x_full, x_empty, at
            if OUTPUT:
                of, of_full, of_empty, of_at = z, z_full, z_empty, turn % TILES * P_PIECES
            p, g = _multiply(
                turn * (GROUPS // 2) + step, go, blocks, full, empty, number, group,
                of, of_full, of_empty, of_at, x, x_full, x_empty, at, phase, last,
                ME, P_PIECES, PIECES, STAGES, RESIDENT, OUTPUT, CLUSTER,
            )  # fmt: skip
            if MASKED:
                if step == 0:
                    wait(known[0], turn & 1)
            ps, gs = halves_of(p), halves_of(g)
            channel, of_g = group * GROUP, ()
            for half in tl.static_range(2):
                mine = ME * 2 + half
                wait(d_full[mine], (turn * (GROUPS // 2) + step) & 1)
                d = tlx.local_load(tlx.local_trans(ds[mine]) if OUTPUT else ds[mine])
                d = d.to(tl.float32)
                if MASKED:
                    d *= tlx.local_load(masks[half])[None, :]
                gate = gate_of(gs[half])
                d *= gate
                of_g += (d * ps[half] * (1.0 - gate),)  # type: ignore[assignment]
                row, pair, _ = _pairs_of(_block_of(turn, half), N, N)
                # What it was multiplied with is not wanted any more. Rows past B * N, and columns
                # past the end, are dropped.
                put(out_desc, ds, mine, 2, d, (row, pair), first_p + channel, True)
            for half in tl.static_range(2):
                row, pair, _ = _pairs_of(_block_of(turn, half), N, N)
                mine = ME * 2 + half
                put(out_desc, ds, mine, 2, of_g[half], (row, pair), first_g + channel, True)
            tlx.async_descriptor_store_wait(0)
            for half in tl.static_range(2):
                tlx.barrier_arrive(d_empty[ME * 2 + half])
            if MASKED:
                if last:
                    tlx.barrier_arrive(used[0])
