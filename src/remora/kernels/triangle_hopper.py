"""The triangle multiplicative update's kernels for Hopper.

Three kernels, whose warps have tasks of their own: :func:`project` and :func:`finish`, products of
which one is the other's gate, and :func:`pair_products`, the batched product between them.
Intermediates are channel-major, (channel, pair): so the batched product reads and writes plain
matrices.

FOLDED: the layer norms are in the weights (:mod:`remora.kernels.triangle_folding`), and products
read what is not normalised. The consumers work out each row's mean and variance from shared memory
while the matrix units have its first products.

A kernel may begin while the one before it ends (programmatic dependent launch): what reads the
other's results waits for it, and lets the kernel after this one begin only then.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import remora.tlx as tlx
from remora.kernels.tiles import columns_of, halves_of, joined, tile_of
from remora.kernels.triangle_folding import GATE
from remora.kernels.warp_group import release, row_moments

#: Pairs of one consumer; channels of a block of weights, and its depth.
PAIRS = tl.constexpr(64)
CHANNELS = tl.constexpr(128)
DEPTH = tl.constexpr(64)


#: Reciprocals of 16 numbers. ptxas moves work down to where its results are used, past waits for
#: products: what might sleep by them (no sign is set) stays where it is written.
_RECIPROCALS = tl.constexpr(
    "{\n.reg .b32 %any, %x, %y;\n.reg .pred %sleeps;\n"
    + "".join(f"rcp.approx.ftz.f32 ${i}, ${i};\n" for i in range(16))
    + "mov.b32 %any, $0;\nmov.b32 %x, $15;\nor.b32 %any, %any, %x;\n"
    + "".join(
        f"mov.b32 %x, ${i};\nmov.b32 %y, ${i + 1};\nlop3.b32 %any, %any, %x, %y, 0xFE;\n"
        for i in range(1, 15, 2)
    )
    + "setp.lt.s32 %sleeps, %any, 0;\n@%sleeps nanosleep.u32 0;\n}"
)
_RECIPROCALS_REGISTERS = tl.constexpr(",".join(["=f"] * 16 + [str(i) for i in range(16)]))


@triton.jit
def _here(x, place: tl.constexpr):
    """The same numbers, one of each row; what comes of them is worked out after this place.

    place: its number, which keeps it apart from others.
    """
    return tl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, 0, 31, -1; // $2", "=f,f,n", [x, place], tl.float32,
        is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _gate(
    g, scale, weights, terms, first, end, COUNT,
    place: tl.constexpr, FOLDED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """``1 / (weight * (1 + 2 ** logit))``, a weight for each row, worked out here.

    first, end: of the rows of the gates' weights, as of ``_normalised``.
    """
    if FOLDED:
        g = _normalised(g, _here(scale, place), terms, first, end, COUNT, UNITS)
    else:
        rows = first + tl.arange(0, g.shape[1])
        g *= (tl.load(terms + rows, rows < end, 0.0) * GATE)[None, :]
        weights = _here(weights, place)
    g = tl.math.exp2(g) * weights[:, None] + weights[:, None]
    return tl.inline_asm_elementwise(
        _RECIPROCALS, _RECIPROCALS_REGISTERS, [g], tl.float32, is_pure=False, pack=16
    )  # fmt: skip


@triton.jit
def _wait_for_the_kernel_before():
    gdc_wait()
    gdc_launch_dependents()


@triton.jit
def _turns(tiles, CLUSTER: tl.constexpr):
    """How many of the tiles are a program's: as many as of the others of its cluster."""
    clusters = tl.num_programs(0) // CLUSTER
    return tl.cdiv(tl.cdiv(tiles, CLUSTER) - tl.program_id(0) // CLUSTER, clusters)


@triton.jit
def _copy_weights(
    g_desc, p_desc, blocks, full, empty, turns, G_FIRST: tl.constexpr, APART: tl.constexpr,
    CHUNKS: tl.constexpr, G_PIECES: tl.constexpr, P_PIECES: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """Copy the weights, block by block, for each tile again; once if all are RESIDENT.

    Chunks of them are APART rows apart; the gates' begin G_FIRST rows on.
    """
    step = 0
    for chunk in range(CHUNKS if RESIDENT else turns * CHUNKS):
        row = chunk % CHUNKS * APART
        for piece in range(G_PIECES + P_PIECES):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(
                full[stage], CHANNELS * DEPTH * tlx.size_of(tlx.dtype_of(p_desc))
            )
            if piece < G_PIECES:
                _copy_block(
                    g_desc, blocks[stage], full[stage], row + G_FIRST, piece * DEPTH, CLUSTER
                )  # fmt: skip
            else:
                depth = (piece - G_PIECES) * DEPTH
                _copy_block(p_desc, blocks[stage], full[stage], row, depth, CLUSTER)
            step += 1


@triton.jit
def _copy_block(desc, block, full, row, depth, CLUSTER: tl.constexpr):
    """Copy a block of weights; of a cluster each program copies its share to all."""
    if CLUSTER == 1:
        tlx.async_descriptor_load(desc, block, [row, depth], full)
    else:
        tl.static_assert(CLUSTER == 2)
        rank = tlx.cluster_cta_rank()
        SHARE: tl.constexpr = CHANNELS // CLUSTER
        for i in tl.static_range(CLUSTER):
            if rank == i:  # a slice begins at a constant
                part = tlx.local_slice(block, (i * SHARE, 0), (SHARE, DEPTH))
                tlx.async_descriptor_load(
                    desc, part, [row + i * SHARE, depth], full, multicast_targets=(0, 1)
                )  # fmt: skip


@triton.jit
def _release(empty, CLUSTER: tl.constexpr):
    """Tell those who copy into a block of weights that it is free."""
    if CLUSTER == 1:
        release(empty)  # only products read it
    else:
        release(empty)
        tlx.barrier_arrive(empty, 1, 1 - tlx.cluster_cta_rank())


@triton.jit
def _copy_rows(
    desc, rows, full, empty, row, first, turn, ME: tl.constexpr, PIECES: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Copy a consumer's pairs, from ``first`` on, each piece when the last one is done with.

    Of a row of (rows, pairs, channels), or BY_COLUMN of (channels, pairs).
    """
    for piece in range(PIECES):
        mine = ME * PIECES + piece
        tlx.barrier_wait(empty[mine], (turn & 1) ^ 1)
        tlx.barrier_expect_bytes(full[mine], PAIRS * DEPTH * tlx.size_of(tlx.dtype_of(desc)))
        if BY_COLUMN:
            tlx.async_descriptor_load(desc, rows[mine], [piece * DEPTH, first], full[mine])
        else:
            tlx.async_descriptor_load(desc, rows[mine], [row, first, piece * DEPTH], full[mine])


@triton.jit
def _multiply_piece(
    acc, rows, rows_full, blocks, full, step, turn, mine, RESIDENT: tl.constexpr,
    STAGES: tl.constexpr, COPIED: tl.constexpr, BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Issue a piece of ``acc + rows @ weights.T``; the rows' buffer, too."""
    stage = step % STAGES
    tlx.barrier_wait(full[stage], 0 if RESIDENT else (step // STAGES) & 1)
    if COPIED:
        tlx.barrier_wait(rows_full[mine], turn & 1)
    some = tlx.local_trans(rows[mine]) if BY_COLUMN else rows[mine]
    return tlx.async_dot(some, tlx.local_trans(blocks[stage]), acc), some


@triton.jit
def _done(
    rows_empty, empty, step, mine, arrive, RESIDENT: tl.constexpr, STAGES: tl.constexpr,
    COPIED: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """A product is: its block of weights is free, and with ``arrive`` its rows."""
    if not RESIDENT:
        _release(empty[step % STAGES], CLUSTER)
    if COPIED:
        if arrive:
            tlx.barrier_arrive(rows_empty[mine])


@triton.jit
def _measured(mean, squares, some, piece):
    """The mean of rows, and the squares of what differs from it, with a piece more of them."""
    m, q = row_moments(some)
    part = 1 / (piece + 1).to(tl.float32)
    m -= mean
    return mean + m * part, squares + q + m * m * ((1 - part) * DEPTH)


@triton.jit
def _logits(
    x, x_full, x_empty, blocks, full, empty, step, turn, arrive, measure, mean, squares, late,
    ME: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    MEASURED: tl.constexpr, UNROLLED: tl.constexpr, LATE: tl.constexpr, CLUSTER: tl.constexpr,
    RESULTS: tl.constexpr,
):  # fmt: skip
    """``x @ weights.T``, of copied rows, which with ``arrive`` are done with afterwards.

    MEASURED, with ``measure``: the rows' mean and the squares of what differs from it, too. LATE:
    what is in ``late`` is stored meanwhile.
    """
    acc = tl.zeros((PAIRS, CHANNELS), tl.float32)
    if UNROLLED:
        for piece in tl.static_range(PIECES):
            acc, mean, squares = _logits_piece(
                acc, x, x_full, x_empty, blocks, full, empty, step, turn, arrive, measure, mean,
                squares, late, tl.to_tensor(piece), ME, PIECES, STAGES, RESIDENT, MEASURED, LATE,
                CLUSTER, RESULTS,
            )  # fmt: skip
            step += 1
    else:
        for piece in range(PIECES):
            acc, mean, squares = _logits_piece(
                acc, x, x_full, x_empty, blocks, full, empty, step, turn, arrive, measure, mean,
                squares, late, piece, ME, PIECES, STAGES, RESIDENT, MEASURED, LATE, CLUSTER,
                RESULTS,
            )  # fmt: skip
            step += 1
    acc = tlx.async_dot_wait(0, acc)
    _done(
        x_empty, empty, step - 1, ME * PIECES + PIECES - 1, arrive, RESIDENT, STAGES, True, CLUSTER
    )  # fmt: skip
    return acc, step, mean, squares


@triton.jit
def _logits_piece(
    acc, x, x_full, x_empty, blocks, full, empty, step, turn, arrive, measure, mean, squares, late,
    piece, ME: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    MEASURED: tl.constexpr, LATE: tl.constexpr, CLUSTER: tl.constexpr, RESULTS: tl.constexpr,
):  # fmt: skip
    mine = ME * PIECES + piece
    acc, some = _multiply_piece(
        acc, x, x_full, blocks, full, step, turn, mine, RESIDENT, STAGES, True, False
    )  # fmt: skip
    if MEASURED:
        if measure:
            mean, squares = _measured(mean, squares, some, piece)
    if LATE:
        for half in tl.static_range(2):
            if piece == min(half, PIECES - 1):
                _put_half(late, half, ME, RESULTS)
    # The product before this one is done then.
    acc = tlx.async_dot_wait(1, acc)
    if piece > 0:
        _done(x_empty, empty, step - 1, mine - 1, arrive, RESIDENT, STAGES, True, CLUSTER)
    return acc, mean, squares


@triton.jit
def _gated(
    rows, rows_full, rows_empty, blocks, full, empty, step, turn, arrive, measure, mean, squares,
    g, scale, weights, terms, first, end, COUNT,
    ME: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    COPIED: tl.constexpr, BY_COLUMN: tl.constexpr, MEASURED: tl.constexpr, FOLDED: tl.constexpr,
    UNITS: tl.constexpr, CLUSTER: tl.constexpr,
):  # fmt: skip
    """``rows @ weights.T``; meanwhile g goes through ``_gate``, in 1, 2 or 4 parts.

    The rows are COPIED, or the consumer's own. MEASURED, with ``measure``: as of ``_logits``.
    """
    GATES: tl.constexpr = 4 if PIECES >= 4 else min(PIECES, 2)
    acc = tl.zeros((PAIRS, CHANNELS), tl.float32)
    gates = ()
    parts = columns_of(g, GATES)
    for piece in tl.static_range(PIECES):
        mine = ME * PIECES + piece
        acc, some = _multiply_piece(
            acc, rows, rows_full, blocks, full, step, turn, mine, RESIDENT, STAGES, COPIED,
            BY_COLUMN,
        )  # fmt: skip
        if MEASURED:
            if measure:
                mean, squares = _measured(mean, squares, some, tl.to_tensor(piece))
        for i in tl.static_range(GATES):
            if piece == min(i + 1, PIECES - 1):  # with two products in flight, where there are two
                at = first + i * (CHANNELS // GATES)
                gate = _gate(parts[i], scale, weights, terms, at, end, COUNT, i, FOLDED, UNITS)
                gates += (gate,)  # type: ignore[assignment]
        acc = tlx.async_dot_wait(1, acc)
        if piece > 0:
            _done(
                rows_empty, empty, step - 1, mine - 1, arrive, RESIDENT, STAGES, COPIED, CLUSTER
            )  # fmt: skip
        step += 1
    acc = tlx.async_dot_wait(0, acc)
    _done(
        rows_empty, empty, step - 1, ME * PIECES + PIECES - 1, arrive, RESIDENT, STAGES, COPIED,
        CLUSTER,
    )  # fmt: skip
    return acc, step, mean, squares, gates


@triton.jit
def _half(parts, half: tl.constexpr):
    """The left or the right half of what is in 1, 2 or 4 parts."""
    if len(parts) == 1:
        return halves_of(parts[0])[half]
    elif len(parts) == 2:  # noqa: RET505 - what follows a return is compiled too
        return parts[half]
    else:
        return joined(parts[2 * half], parts[2 * half + 1])


@triton.jit
def _scale(squares, eps, EXTENT: tl.constexpr):
    """What a row is multiplied by, from the squares of what differs from its mean."""
    variance = squares / EXTENT
    scale = tl.math.rsqrt(variance + eps)
    # Where all are the same only the shift is left: not what rounding made of it.
    return tl.where(variance == 0, variance * scale, scale)


@triton.jit
def _normalised(acc, scale, terms, first, end, COUNT, UNITS: tl.constexpr):
    """A product with folded weights, as if of normalised rows.

    first, end: of the weights' rows among the COUNT of all.
    """
    rows = first + tl.arange(0, acc.shape[1])
    if UNITS:
        acc *= tl.load(terms + COUNT + rows, rows < end, 0.0)[None, :]
    return acc * scale[:, None] + tl.load(terms + rows, rows < end, 0.0)[None, :]


@tlx.jit(do_not_specialize=["B", "N"])
def project(
    x_desc, mask, w_desc, g_unit, out_desc,
    B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
    PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr,
    RESULTS: tl.constexpr, MASKED: tl.constexpr, FOLDED: tl.constexpr, UNITS: tl.constexpr,
    CLUSTER: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, channel-major; y: the norm of x, or x.

    x_desc: (B * N, N, PIECES * DEPTH), without FOLDED (B * N, ROW, ...) and past N anything, in
    blocks of (1, PAIRS, DEPTH); ROW: N, up to a multiple of PAIRS. mask (B, N, N), read if MASKED.
    w_desc: (2 * CHUNKS * CHANNELS, PIECES * DEPTH), CHANNELS rows of P, then those of G, in
    blocks of (CHANNELS // CLUSTER, DEPTH). g_unit: what each gate's logits are multiplied by;
    or with FOLDED the terms of ``fold_norms``, COUNT of a kind. out_desc:
    (CHUNKS * CHANNELS, B * ROW * ROW) in blocks of (CHANNELS // 2, PAIRS), zeros past N.
    STAGES: blocks of weights in shared memory; RESIDENT: those are all; RESULTS: buffers of
    results of each consumer, 1 or 2. Grid: programs, any number of clusters of CLUSTER.
    """
    x = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(x_desc), 2 * PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(w_desc), STAGES)
    results = tlx.local_alloc((CHANNELS // 2, PAIRS), tlx.dtype_of(out_desc), 2 * RESULTS)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2 * CLUSTER)
    x_full, x_empty = tlx.alloc_barriers(2 * PIECES, 1), tlx.alloc_barriers(2 * PIECES, 1)
    # Two consumers, PAIRS each; B * ROW * ROW is a multiple of 2 * PAIRS.
    turns = _turns(B * ROW * (ROW // PAIRS) // 2, CLUSTER)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _project(
                mask, x, x_full, x_empty, blocks, full, empty, results, g_unit, out_desc,
                turns, B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps, 0,
                PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, MASKED, FOLDED, UNITS, CLUSTER, LATE,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _project(
                mask, x, x_full, x_empty, blocks, full, empty, results, g_unit, out_desc,
                turns, B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps, 1,
                PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, MASKED, FOLDED, UNITS, CLUSTER, LATE,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            _wait_for_the_kernel_before()
            _copy_weights(
                w_desc, w_desc, blocks, full, empty, turns, CHANNELS, 2 * CHANNELS,
                CHUNKS, PIECES, PIECES, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            if not FOLDED:
                gdc_wait()
            for turn in range(turns):
                for me in tl.static_range(2):
                    tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + me
                    row = tile // (ROW // PAIRS)
                    # Rows past N are read as zeros, from past the end.
                    row = tl.where(row % ROW < N, row // ROW * N + row % ROW, B * N)
                    first = tile % (ROW // PAIRS) * PAIRS
                    _copy_rows(x_desc, x, x_full, x_empty, row, first, turn, me, PIECES, False)


@triton.jit
def _project(
    mask, x, x_full, x_empty, blocks, full, empty, results, g_unit, out_desc, turns,
    B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, RESULTS: tl.constexpr, MASKED: tl.constexpr, FOLDED: tl.constexpr,
    UNITS: tl.constexpr, CLUSTER: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    EXTENT: tl.constexpr = PIECES * DEPTH
    ALL: tl.constexpr = CHUNKS * CHANNELS
    step = 0
    # Where LATE, what is to be stored, and where: at first past the end.
    held = tl.zeros((PAIRS, CHANNELS), tlx.dtype_of(out_desc))
    held_pair, held_channel = 0, ALL
    for turn in range(turns):
        tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + ME
        row = tile // (ROW // PAIRS)
        pairs = tile % (ROW // PAIRS) * PAIRS + tl.arange(0, PAIRS)
        b, i = (row // ROW).to(tl.int64), (row % ROW).to(tl.int64)
        inside = pairs < tl.where((i < N) & (b < B), N, 0)
        factor = tl.where(inside, 1.0, 0.0)
        if MASKED:
            at = mask + b * stride_mb + i * stride_mi + pairs.to(tl.int64) * stride_mk
            factor = tl.load(at, inside, 0.0).to(tl.float32)
        # 1 / factor; a gate's denominator of 2**127 or more makes the gate zero.
        weights = tl.where(tl.abs(factor) < 2.0**-127, 2.0**127, 1.0 / factor)
        if RESIDENT:
            step = 0
        mean, squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
        for chunk in range(CHUNKS):
            channel = chunk * CHANNELS
            late = (out_desc, results, held, 0, held_pair, held_channel)
            g, step, mean, squares = _logits(
                x, x_full, x_empty, blocks, full, empty, step, turn, False, chunk == 0,
                mean, squares, late, ME, PIECES, STAGES, RESIDENT, FOLDED, FOLDED, LATE, CLUSTER,
                RESULTS,
            )  # fmt: skip
            scale = _scale(squares, eps, EXTENT)
            p, step, _, _, gates = _gated(
                x, x_full, x_empty, blocks, full, empty, step, turn, chunk == CHUNKS - 1, False,
                mean, squares, g, scale, weights, g_unit + (ALL if FOLDED else 0), channel, ALL,
                COUNT, ME, PIECES, STAGES, RESIDENT, True, False, False, FOLDED, UNITS, CLUSTER,
            )  # fmt: skip
            ps = halves_of(p)
            done = ()
            for half in tl.static_range(2):
                p = ps[half]
                if FOLDED:
                    column = channel + half * (CHANNELS // 2)
                    p = _normalised(p, scale, g_unit, column, ALL, COUNT, UNITS)
                p *= _half(gates, half)
                if not FOLDED:  # what is past N may be anything
                    p = tl.where(inside[:, None], p, 0.0)
                done += (p.to(tlx.dtype_of(out_desc)),)  # type: ignore[assignment]
            held, held_pair, held_channel = joined(*done), tile * PAIRS, channel
            if not LATE:
                late = (out_desc, results, held, 0, held_pair, held_channel)
                for half in tl.static_range(2):
                    _put_half(late, half, ME, RESULTS)
    if LATE:
        late = (out_desc, results, held, 0, held_pair, held_channel)
        for half in tl.static_range(2):
            _put_half(late, half, ME, RESULTS)
    tlx.async_descriptor_store_wait(0)


@tlx.jit(do_not_specialize=["B", "N"])
def finish(
    x_desc, products, weight, bias, p_desc, g_desc, unit, g_unit, p_unit, out_desc,
    B, N, ROW, C, COUNT, eps,
    PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, RESULTS: tl.constexpr, FOLDED: tl.constexpr, UNITS: tl.constexpr,
    CLUSTER: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, z the layer norm of the products, y as of ``project``.

    x_desc as of ``project``; products: (H_PIECES * DEPTH, B * ROW * ROW), with FOLDED a descriptor
    of blocks of (DEPTH, PAIRS). p_desc: (C, H_PIECES * DEPTH), g_desc: (C, PIECES * DEPTH), in
    blocks of (CHANNELS // CLUSTER, DEPTH). With FOLDED g_unit and p_unit: the terms of
    ``fold_norms``, COUNT of each kind, from G's and from P's on. Without: weight and bias of the
    norm; unit (2, H_PIECES * DEPTH): what the products' channels are multiplied by; g_unit and
    p_unit (C): the logits and the results. out_desc: (B * N, N, C), in blocks of (1, PAIRS,
    CHANNELS // 2), without FOLDED CHANNELS // 4. Grid: programs, any number of clusters of CLUSTER.
    """
    PART: tl.constexpr = CHANNELS // 2 if FOLDED else CHANNELS // 4
    x = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(x_desc), 2 * PIECES)
    z = tlx.local_alloc((DEPTH, PAIRS), tlx.dtype_of(p_desc), 2 * H_PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(p_desc), STAGES)
    results = tlx.local_alloc((PAIRS, PART), tlx.dtype_of(out_desc), 2 * RESULTS)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2 * CLUSTER)
    x_full, x_empty = tlx.alloc_barriers(2 * PIECES, 1), tlx.alloc_barriers(2 * PIECES, 1)
    z_full, z_empty = full, empty
    if FOLDED:
        z_full, z_empty = tlx.alloc_barriers(2 * H_PIECES, 1), tlx.alloc_barriers(2 * H_PIECES, 1)
    turns = _turns(tl.cdiv(B * N * (ROW // PAIRS), 2), CLUSTER)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results,
                products, weight, bias, unit, g_unit, p_unit, out_desc, turns, B, N, ROW, C, COUNT,
                eps, 0, PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, FOLDED, UNITS, CLUSTER,
                LATE,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=224):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results,
                products, weight, bias, unit, g_unit, p_unit, out_desc, turns, B, N, ROW, C, COUNT,
                eps, 1, PIECES, H_PIECES, CHUNKS, STAGES, RESIDENT, RESULTS, FOLDED, UNITS, CLUSTER,
                LATE,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            _copy_weights(
                g_desc, p_desc, blocks, full, empty, turns, 0, CHANNELS,
                CHUNKS, PIECES, H_PIECES, STAGES, RESIDENT, CLUSTER,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            gdc_wait()
            for turn in range(turns):
                if not FOLDED:
                    ahead = (tl.program_id(0) + (turn + 1) * tl.num_programs(0)) * 2 * PAIRS
                    _prefetch(products, ahead, B, N, ROW, H_PIECES)
                for me in tl.static_range(2):
                    row, first, pair = _pairs_of(turn, me, N, ROW)
                    _copy_rows(x_desc, x, x_full, x_empty, row, first, turn, me, PIECES, False)
                if FOLDED:  # which are done with last
                    for me in tl.static_range(2):
                        row, first, pair = _pairs_of(turn, me, N, ROW)
                        _copy_rows(
                            products, z, z_full, z_empty, 0, pair, turn, me, H_PIECES, True
                        )  # fmt: skip


@triton.jit
def _pairs_of(turn, me, N, ROW):
    """A consumer's row among B * N, its first pair there, and that pair among B * ROW * ROW."""
    tile = (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + me
    row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
    return row, first, (row // N * ROW + row % N) * ROW + first


@triton.jit
def _prefetch(products, pair, B, N, ROW, PIECES: tl.constexpr):
    """Have the products of two consumers' pairs brought to the L2 cache, from a pair on."""
    LINE: tl.constexpr = 128 // tlx.size_of(tlx.dtype_of(products))
    row = pair // ROW
    at = products + tl.cast(row // N * ROW + row % N, tl.int64) * ROW + pair % ROW
    # The second consumer's pairs may be in the next row: a hint that comes to nothing then.
    lines = (tl.arange(0, 2 * PAIRS // LINE) * LINE)[None, :]
    plane = tl.cast(B, tl.int64) * ROW * ROW
    # A few channels at a time: the task has few registers.
    at = at + tl.arange(0, 32)[:, None] * plane + lines
    for _ in range(PIECES * DEPTH // 32):
        tlx.prefetch(at, "L2", (row < B * N) & (lines >= 0))
        at += 32 * plane


@triton.jit
def _normalise(
    products, apart, there, z, weight, bias, unit, eps, ME: tl.constexpr, PIECES: tl.constexpr
):  # fmt: skip
    """The layer norm of a consumer's products, ``apart`` from channel to channel, into buffers.

    The sums are of differences to the first channel's products, which are never more than
    sqrt(channels) standard deviations from the mean: nothing cancels.
    """
    EXTENT: tl.constexpr = PIECES * DEPTH
    depth = tl.arange(0, DEPTH)
    pairs = tl.arange(0, PAIRS)
    at = products + depth[:, None] * apart + pairs[None, :]
    parts = ()
    for piece in tl.static_range(PIECES):
        parts += (tl.load(at + piece * DEPTH * apart, there, 0.0),)  # type: ignore[assignment]
    shift = tl.load(products + pairs, there, 0.0) * tl.load(unit) * tl.load(unit + EXTENT)
    totals = tl.zeros((DEPTH, PAIRS), tl.float32)
    squares = tl.zeros((DEPTH, PAIRS), tl.float32)
    for piece in tl.static_range(PIECES):
        x = _unscaled(parts[piece], unit, piece, EXTENT) - shift[None, :]
        totals += x
        squares += x * x
    mean = tl.sum(totals, 0) / EXTENT
    variance = tl.maximum(tl.sum(squares, 0) / EXTENT - mean * mean, 0.0)
    scale = tl.math.rsqrt(variance + eps)
    mean += shift
    for piece in tl.static_range(PIECES):
        w = tl.load(weight + piece * DEPTH + depth).to(tl.float32)
        b = tl.load(bias + piece * DEPTH + depth).to(tl.float32)
        x = _unscaled(parts[piece], unit, piece, EXTENT)
        x = (x - mean[None, :]) * scale[None, :] * w[:, None] + b[:, None]
        buffer = z[ME * PIECES + piece]
        tlx.local_store(buffer, x.to(tlx.dtype_of(buffer)))
    tlx.fence_async_shared()


@triton.jit
def _unscaled(x, unit, piece: tl.constexpr, EXTENT: tl.constexpr):
    """Some channels of the products as they are without the weights' scales."""
    at = unit + piece * DEPTH + tl.arange(0, DEPTH)
    return x * (tl.load(at) * tl.load(at + EXTENT))[:, None]


@triton.jit
def _finish(
    x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results, products,
    weight, bias, unit, g_unit, p_unit, out_desc, turns, B, N, ROW, C, COUNT, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, H_PIECES: tl.constexpr, CHUNKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, RESULTS: tl.constexpr, FOLDED: tl.constexpr,
    UNITS: tl.constexpr, CLUSTER: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    one, other = ME * RESULTS, ME * RESULTS + RESULTS - 1
    H: tl.constexpr = H_PIECES * DEPTH
    step = 0
    # Where LATE, what is to be stored, and where: at first past the end.
    held = tl.zeros((PAIRS, CHANNELS), tlx.dtype_of(out_desc))
    held_row, held_pair, held_channel = B * N, 0, 0
    ones = tl.full((PAIRS,), 1.0, tl.float32)
    for turn in range(turns):
        row, first, pair = _pairs_of(turn, ME, N, ROW)
        if not FOLDED:
            gdc_wait()
            apart = tl.cast(B, tl.int64) * ROW * ROW
            _normalise(
                products + pair, apart, row < B * N, z, weight, bias, unit, eps, ME, H_PIECES
            )  # fmt: skip
        if RESIDENT:
            step = 0
        mean, squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
        z_mean, z_squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
        for chunk in range(CHUNKS):
            last = chunk == CHUNKS - 1
            channel = chunk * CHANNELS
            late = (out_desc, results, held, held_row, held_pair, held_channel)
            g, step, mean, squares = _logits(
                x, x_full, x_empty, blocks, full, empty, step, turn, last, chunk == 0,
                mean, squares, late, ME, PIECES, STAGES, RESIDENT, FOLDED, False, LATE, CLUSTER,
                RESULTS,
            )  # fmt: skip
            scale = _scale(squares, eps, PIECES * DEPTH)
            p, step, z_mean, z_squares, gates = _gated(
                z, z_full, z_empty, blocks, full, empty, step, turn, last, chunk == 0,
                z_mean, z_squares, g, scale, ones, g_unit, channel, C, COUNT,
                ME, H_PIECES, STAGES, RESIDENT, FOLDED, True, FOLDED, FOLDED, UNITS, CLUSTER,
            )  # fmt: skip
            ps = halves_of(p)
            z_scale = _scale(z_squares, eps, H)
            done = ()
            for half in tl.static_range(2):
                p, column = ps[half], channel + half * (CHANNELS // 2)
                # Pairs past N, and rows past B * N, are dropped.
                if FOLDED:
                    p = _normalised(p, z_scale, p_unit, column, C, COUNT, UNITS)
                    done += ((p * _half(gates, half)).to(tlx.dtype_of(out_desc)),)  # type: ignore[assignment]
                else:
                    channels = column + tl.arange(0, CHANNELS // 2)
                    p *= tl.load(p_unit + channels, channels < C, 0.0)[None, :]
                    p *= _half(gates, half)
                    _put_quarters(out_desc, results, one, other, RESULTS, p, (row, first), column)
            if FOLDED:
                held = joined(*done)
                held_row, held_pair, held_channel = row, first, channel
                if not LATE:
                    late = (out_desc, results, held, held_row, held_pair, held_channel)
                    for half in tl.static_range(2):
                        _put_half(late, half, ME, RESULTS)
    if LATE:
        late = (out_desc, results, held, held_row, held_pair, held_channel)
        for half in tl.static_range(2):
            _put_half(late, half, ME, RESULTS)
    tlx.async_descriptor_store_wait(0)


@triton.jit(do_not_specialize=("BATCHES",))
def pair_products(
    a_desc, b_desc, c_desc, BATCHES, ROW,
    BLOCK_N: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr, INCOMING: tl.constexpr,
):  # fmt: skip
    """``A @ B.T`` for each of BATCHES pairs of matrices; ``A.T @ B`` if INCOMING.

    a_desc, b_desc: the A's, then the B's, of ROW x ROW, one below the other; in blocks
    of (64, 64) and (BLOCK_N, 64), (64, BLOCK_N) if INCOMING. c_desc: the products, in
    blocks of (64, BLOCK_N // PARTS), PARTS 2 or 4. ROW: a multiple of 64.
    Grid: programs, any number.
    """
    B_SHAPE: tl.constexpr = (64, BLOCK_N) if INCOMING else (BLOCK_N, 64)
    a_buffers = tlx.local_alloc((64, 64), tlx.dtype_of(a_desc), STAGES * 2)
    b_buffers = tlx.local_alloc(B_SHAPE, tlx.dtype_of(b_desc), STAGES)
    c_buffers = tlx.local_alloc((64, BLOCK_N // PARTS), tlx.dtype_of(c_desc), 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _multiply_pairs(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
                0, BLOCK_N, PARTS, STAGES, INCOMING,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _multiply_pairs(
                c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
                1, BLOCK_N, PARTS, STAGES, INCOMING,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=40):
            _wait_for_the_kernel_before()
            _copy_pairs(
                a_desc, b_desc, a_buffers, b_buffers, full, empty, BATCHES, ROW,
                BLOCK_N, STAGES, INCOMING,
            )  # fmt: skip


@triton.jit
def _tile(tile, ROW, BLOCK_N: tl.constexpr):
    """The batch of a tile, its first row and its first column."""
    tiles = tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    tile_m, tile_n = tile_of(tile % tiles, ROW, ROW, 128, BLOCK_N, 8)
    return tile // tiles, tile_m * 128, tile_n * BLOCK_N


@triton.jit
def _copy_pairs(
    a_desc, b_desc, a_buffers, b_buffers, full, empty, BATCHES, ROW,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, INCOMING: tl.constexpr,
):  # fmt: skip
    step = 0
    tiles = BATCHES * tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        batch, row, column = _tile(tile, ROW, BLOCK_N)
        a_first, b_first = batch * ROW, (BATCHES + batch) * ROW
        for k in range(0, ROW, 64):
            stage = step % STAGES
            tlx.barrier_wait(empty[stage], ((step // STAGES) & 1) ^ 1)
            tlx.barrier_expect_bytes(
                full[stage], (128 + BLOCK_N) * 64 * tlx.size_of(tlx.dtype_of(a_desc))
            )
            for part in tl.static_range(2):
                buffer = a_buffers[stage * 2 + part]
                if INCOMING:
                    at = [a_first + k, row + part * 64]
                else:
                    at = [a_first + row + part * 64, k]
                tlx.async_descriptor_load(a_desc, buffer, at, full[stage])
            at = [b_first + k, column] if INCOMING else [b_first + column, k]
            tlx.async_descriptor_load(b_desc, b_buffers[stage], at, full[stage])
            step += 1


@triton.jit
def _multiply_pairs(
    c_desc, a_buffers, b_buffers, c_buffers, full, empty, BATCHES, ROW,
    PART: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    INCOMING: tl.constexpr,
):  # fmt: skip
    """Half of the rows of each of the program's tiles."""
    tl.assume(ROW > 0)
    step = 0
    tiles = BATCHES * tl.cdiv(ROW, 128) * tl.cdiv(ROW, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        batch, row, column = _tile(tile, ROW, BLOCK_N)
        row += PART * 64
        acc = tl.zeros((64, BLOCK_N), tl.float32)
        before = step % STAGES
        for k in range(0, ROW, 64):
            stage = step % STAGES
            tlx.barrier_wait(full[stage], (step // STAGES) & 1)
            a, b = a_buffers[stage * 2 + PART], b_buffers[stage]
            if INCOMING:
                a = tlx.local_trans(a)
            else:
                b = tlx.local_trans(b)
            acc = tlx.async_dot_wait(1, tlx.async_dot(a, b, acc))
            if k > 0:
                tlx.barrier_arrive(empty[before])
            before = stage
            step += 1
        acc = tlx.async_dot_wait(0, acc)
        tlx.barrier_arrive(empty[before])
        if row < ROW:  # else the rows are the next batch's
            at = (batch * ROW + row,)
            left, right = halves_of(acc)
            if PARTS == 2:
                _put(c_desc, c_buffers, PART, 1, left, at, column, False)
                _put(c_desc, c_buffers, PART, 1, right, at, column + BLOCK_N // 2, False)
            else:
                _put_quarters(c_desc, c_buffers, PART, PART, 1, left, at, column)
                _put_quarters(c_desc, c_buffers, PART, PART, 1, right, at, column + BLOCK_N // 2)
    tlx.async_descriptor_store_wait(0)


@triton.jit
def _put_half(late, half: tl.constexpr, ME: tl.constexpr, RESULTS: tl.constexpr):
    """Hand half of a consumer's chunk of channels to the copy engine.

    late: the descriptor, buffers of results, the chunk; its row, first pair and first channel.
    """
    desc, results, held, row, pair, channel = late
    values = halves_of(held)[half]
    mine = ME * RESULTS + half * (RESULTS - 1)
    channel += half * values.shape[1]
    if len(desc.block_shape) == 2:
        _put(desc, results, mine, RESULTS, values, (channel,), pair, True)
    else:
        _put(desc, results, mine, RESULTS, values, (row, pair), channel, False)


@triton.jit
def _put_quarters(
    desc, buffers, one: tl.constexpr, other: tl.constexpr, COUNT: tl.constexpr, half, at, column
):  # fmt: skip
    left, right = halves_of(half)
    _put(desc, buffers, one, COUNT, left, at, column, False)
    _put(desc, buffers, other, COUNT, right, at, column + half.shape[1] // 2, False)


@triton.jit
def _put(
    desc, buffers, mine: tl.constexpr, COUNT: tl.constexpr, values, at, column,
    BY_COLUMN: tl.constexpr,
):  # fmt: skip
    """Hand values to the copy engine, through one of the COUNT buffers that take turns.

    They go to ``(*at, column)``; what is past the tensor's end is dropped.
    """
    tlx.async_descriptor_store_wait(COUNT - 1)  # the store from this buffer has read it
    buffer = buffers[mine]
    view = tlx.local_trans(buffer) if BY_COLUMN else buffer
    tlx.local_store(view, values.to(tlx.dtype_of(desc)))
    tlx.fence_async_shared()
    at += (column,)
    tlx.async_descriptor_store(desc, buffer, at)
