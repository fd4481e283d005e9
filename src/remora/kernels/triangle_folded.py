"""The triangle multiplicative update's kernels for Hopper, of 16-bit inputs.

The layer norms are in the weights (:mod:`remora.kernels.triangle_folding`), and products read what
is not normalised. Two kernels, :func:`project` and :func:`finish`, are products of which one is
the other's gate; between them is ``triangle_hopper.pair_products``. Each has two consumers, of 64
pairs each, which keep their pairs in registers, where they work out mean and variance too; weights
stream through shared memory, for both. Gates are worked out beside products, and what is done is
stored beside those of the next channels.

A kernel may begin while the one before it ends (programmatic dependent launch): what reads the
other's results waits for it, and lets the kernel after this one begin only then.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import remora.tlx as tlx
from remora.kernels.warp_group import release, row_moments, rows_and_moments

#: Pairs of one consumer, and channels of a block of weights.
PAIRS = tl.constexpr(64)
CHANNELS = tl.constexpr(64)

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


@triton.jit
def _gate(g, scale, weights, terms, first, end, COUNT, place: tl.constexpr, UNITS: tl.constexpr):
    """``1 / (weight * (1 + 2 ** logit))``, a weight for each row, worked out here.

    first, end: of the rows of the gates' weights, as of ``_normalised``.
    """
    g = _normalised(g, _here(scale, place), terms, first, end, COUNT, UNITS)
    g = tl.math.exp2(g) * weights[:, None] + weights[:, None]
    return tl.inline_asm_elementwise(
        _RECIPROCALS, _RECIPROCALS_REGISTERS, [g], tl.float32, is_pure=False, pack=16
    )  # fmt: skip


@triton.jit
def _copy_weights(
    g_desc, p_desc, blocks, full, empty, turns, G_FIRST: tl.constexpr, APART: tl.constexpr,
    CHUNKS: tl.constexpr, G_PIECES: tl.constexpr, P_PIECES: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr,
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
            tlx.barrier_expect_bytes(full[stage], CHANNELS * DEPTH * 2)
            if piece < G_PIECES:
                at = [row + G_FIRST, piece * DEPTH]
                tlx.async_descriptor_load(g_desc, blocks[stage], at, full[stage])
            else:
                at = [row, (piece - G_PIECES) * DEPTH]
                tlx.async_descriptor_load(p_desc, blocks[stage], at, full[stage])
            step += 1


@triton.jit
def _copy_pairs(
    desc, x, full, empty, row, first, use, PIECES: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Copy a consumer's pairs of (rows, pairs, channels), when the ones before are taken.

    use: how many consumers have had the buffers.
    """
    for piece in range(PIECES):
        tlx.barrier_wait(empty[piece], (use & 1) ^ 1)
        tlx.barrier_expect_bytes(full[piece], PAIRS * DEPTH * 2)
        tlx.async_descriptor_load(desc, x[piece], [row, first, piece * DEPTH], full[piece])


@triton.jit
def _take_pairs(
    x, full, empty, use, eps, PIECES: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """A consumer's pairs, in pieces of their channels, and the scale of each pair."""
    parts = ()
    mean, squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
    for piece in tl.static_range(PIECES):
        tlx.barrier_wait(full[piece], use & 1)
        part, m, q = rows_and_moments(x[piece])
        tlx.barrier_arrive(empty[piece])
        parts += (part,)  # type: ignore[assignment]
        m -= mean
        mean += m * (1 / (piece + 1))
        squares += q + m * m * (piece * DEPTH / (piece + 1))
    return parts, _scale(squares, eps, PIECES * DEPTH)


@triton.jit
def _block(blocks, full, step, STAGES: tl.constexpr, RESIDENT: tl.constexpr):
    """A block of weights as a product's second operand, when it is there."""
    stage = step % STAGES
    tlx.barrier_wait(full[stage], 0 if RESIDENT else (step // STAGES) & 1)
    return tlx.local_trans(blocks[stage])


@triton.jit
def _free(empty, step, STAGES: tl.constexpr, RESIDENT: tl.constexpr):
    """The product with a block of weights is done."""
    if not RESIDENT:
        release(empty[step % STAGES])


@triton.jit
def _turns(tiles):
    """How many of the tiles are this program's."""
    return tl.cdiv(tiles - tl.program_id(0), tl.num_programs(0))


@triton.jit
def _tile(turn, me):
    return (tl.program_id(0) + turn * tl.num_programs(0)) * 2 + me


@triton.jit
def _put(desc, buffer, values, row, pair, channel):
    """Hand a consumer's channels to the copy engine; what is past the tensor's end is dropped."""
    tlx.async_descriptor_store_wait(0)  # the store before has read the buffer
    if len(desc.block_shape) == 2:
        tlx.local_store(tlx.local_trans(buffer), values)
        tlx.fence_async_shared()
        tlx.async_descriptor_store(desc, buffer, [channel, pair])
    else:
        tlx.local_store(buffer, values)
        tlx.fence_async_shared()
        tlx.async_descriptor_store(desc, buffer, [row, pair, channel])


@tlx.jit(do_not_specialize=["B", "N"])
def project(
    x_desc, mask, w_desc, terms, out_desc, B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
    PIECES: tl.constexpr, DEPTH: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr,
    RESIDENT: tl.constexpr, MASKED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """``mask * (y @ P.T) * sigmoid(y @ G.T)``, channel-major; y: the norm of x.

    x_desc: (B * N, N, PIECES * DEPTH) in blocks of (1, PAIRS, DEPTH); ROW: N, up to a multiple of
    PAIRS. mask (B, N, N), read if MASKED. w_desc: (2 * CHUNKS * CHANNELS, PIECES * DEPTH),
    CHANNELS rows of P, then those of G, in blocks of (CHANNELS, DEPTH); terms: of ``fold_norms``,
    COUNT of a kind. out_desc: (CHUNKS * CHANNELS, B * ROW * ROW) in blocks of (CHANNELS, PAIRS),
    zeros past N. STAGES: blocks of weights in shared memory;
    RESIDENT: those are all. Grid: programs, any number.
    """
    x = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(x_desc), PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(w_desc), STAGES)
    results = tlx.local_alloc((CHANNELS, PAIRS), tlx.dtype_of(out_desc), 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    x_full, x_empty = tlx.alloc_barriers(PIECES, 1), tlx.alloc_barriers(PIECES, 1)
    turns = _turns(B * ROW * (ROW // PAIRS) // 2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _project(
                mask, x, x_full, x_empty, blocks, full, empty, results, terms, out_desc, turns,
                B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
                0, PIECES, DEPTH, CHUNKS, STAGES, RESIDENT, MASKED, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _project(
                mask, x, x_full, x_empty, blocks, full, empty, results, terms, out_desc, turns,
                B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
                1, PIECES, DEPTH, CHUNKS, STAGES, RESIDENT, MASKED, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            gdc_wait()
            gdc_launch_dependents()
            _copy_weights(
                w_desc, w_desc, blocks, full, empty, turns, CHANNELS, 2 * CHANNELS,
                CHUNKS, PIECES, PIECES, DEPTH, STAGES, RESIDENT,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            for turn in range(turns):
                for me in tl.static_range(2):
                    tile = _tile(turn, me)
                    row = tile // (ROW // PAIRS)
                    # Rows past N are read as zeros, from past the end.
                    row = tl.where(row % ROW < N, row // ROW * N + row % ROW, B * N)
                    first = tile % (ROW // PAIRS) * PAIRS
                    _copy_pairs(x_desc, x, x_full, x_empty, row, first, me, PIECES, DEPTH)


@triton.jit
def _project(
    mask, x, x_full, x_empty, blocks, full, empty, results, terms, out_desc, turns,
    B, N, ROW, COUNT, stride_mb, stride_mi, stride_mk, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, DEPTH: tl.constexpr, CHUNKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, MASKED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    ALL: tl.constexpr = CHUNKS * CHANNELS
    step = 0
    # What is to be stored, and where: at first past the end.
    held = tl.zeros((PAIRS, CHANNELS), tlx.dtype_of(out_desc))
    held_pair, held_channel = 0, ALL
    for turn in range(turns):
        tile = _tile(turn, ME)
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
        parts, scale = _take_pairs(x, x_full, x_empty, ME, eps, PIECES, DEPTH)
        if RESIDENT:
            step = 0
        for chunk in range(CHUNKS):
            channel = chunk * CHANNELS
            g = tl.zeros((PAIRS, CHANNELS), tl.float32)
            for piece in tl.static_range(PIECES):
                block = _block(blocks, full, step, STAGES, RESIDENT)
                g = tlx.async_dot(parts[piece], block, g)
                if piece == 0:
                    _put(out_desc, results[ME], held, 0, held_pair, held_channel)
                else:
                    g = tlx.async_dot_wait(1, g)
                    _free(empty, step - 1, STAGES, RESIDENT)
                step += 1
            p = tl.zeros((PAIRS, CHANNELS), tl.float32)
            for piece in tl.static_range(PIECES):
                block = _block(blocks, full, step, STAGES, RESIDENT)
                p = tlx.async_dot(parts[piece], block, p)
                if piece == 0:
                    g = tlx.async_dot_wait(1, g)
                else:
                    p = tlx.async_dot_wait(1, p)
                _free(empty, step - 1, STAGES, RESIDENT)
                if piece == min(1, PIECES - 1):
                    g = _gate(g, scale, weights, terms + ALL, channel, ALL, COUNT, 0, UNITS)
                step += 1
            p = tlx.async_dot_wait(0, p)
            _free(empty, step - 1, STAGES, RESIDENT)
            p = _normalised(p, scale, terms, channel, ALL, COUNT, UNITS) * g
            held = p.to(tlx.dtype_of(out_desc))
            held_pair, held_channel = tile * PAIRS, channel
    _put(out_desc, results[ME], held, 0, held_pair, held_channel)
    tlx.async_descriptor_store_wait(0)


@tlx.jit(do_not_specialize=["B", "N"])
def finish(
    x_desc, products, p_desc, g_desc, g_terms, p_terms, out_desc, B, N, ROW, C, COUNT, eps,
    PIECES: tl.constexpr, H_PIECES: tl.constexpr, DEPTH: tl.constexpr, CHUNKS: tl.constexpr,
    STAGES: tl.constexpr, RESIDENT: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """``(z @ P.T) * sigmoid(y @ G.T)``, z the layer norm of the products, y that of x.

    x_desc as of ``project``; products: (H_PIECES * DEPTH, B * ROW * ROW) in blocks of (DEPTH,
    PAIRS). p_desc: (C, H_PIECES * DEPTH), g_desc: (C, PIECES * DEPTH), in blocks of (CHANNELS,
    DEPTH). g_terms, p_terms: the terms of ``fold_norms``, COUNT of a kind, from G's and from P's
    on. out_desc: (B * N, N, C), in blocks of (1, PAIRS, CHANNELS). Grid: programs, any number.
    """
    x = tlx.local_alloc((PAIRS, DEPTH), tlx.dtype_of(x_desc), PIECES)
    z = tlx.local_alloc((DEPTH, PAIRS), tlx.dtype_of(p_desc), 2 * H_PIECES)
    blocks = tlx.local_alloc((CHANNELS, DEPTH), tlx.dtype_of(p_desc), STAGES)
    results = tlx.local_alloc((PAIRS, CHANNELS), tlx.dtype_of(out_desc), 2)
    full, empty = tlx.alloc_barriers(STAGES, 1), tlx.alloc_barriers(STAGES, 2)
    x_full, x_empty = tlx.alloc_barriers(PIECES, 1), tlx.alloc_barriers(PIECES, 1)
    z_full, z_empty = tlx.alloc_barriers(2 * H_PIECES, 1), tlx.alloc_barriers(2 * H_PIECES, 1)
    turns = _turns(tl.cdiv(B * N * (ROW // PAIRS), 2))
    with tlx.async_tasks():
        with tlx.async_task("default"):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results, g_terms,
                p_terms, out_desc, turns, B, N, ROW, C, COUNT, eps,
                0, PIECES, H_PIECES, DEPTH, CHUNKS, STAGES, RESIDENT, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=4, num_regs=232):
            _finish(
                x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results, g_terms,
                p_terms, out_desc, turns, B, N, ROW, C, COUNT, eps,
                1, PIECES, H_PIECES, DEPTH, CHUNKS, STAGES, RESIDENT, UNITS,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            _copy_weights(
                g_desc, p_desc, blocks, full, empty, turns, 0, CHANNELS,
                CHUNKS, PIECES, H_PIECES, DEPTH, STAGES, RESIDENT,
            )  # fmt: skip
        with tlx.async_task(num_warps=1, num_regs=24):
            gdc_wait()
            for turn in range(turns):
                for me in tl.static_range(2):
                    row, first, pair = _pairs_of(turn, me, N, ROW)
                    _copy_pairs(x_desc, x, x_full, x_empty, row, first, me, PIECES, DEPTH)
                for me in tl.static_range(2):  # which are done with last
                    row, first, pair = _pairs_of(turn, me, N, ROW)
                    for piece in range(H_PIECES):
                        mine = me * H_PIECES + piece
                        tlx.barrier_wait(z_empty[mine], (turn & 1) ^ 1)
                        tlx.barrier_expect_bytes(z_full[mine], PAIRS * DEPTH * 2)
                        at = [piece * DEPTH, pair]
                        tlx.async_descriptor_load(products, z[mine], at, z_full[mine])


@triton.jit
def _pairs_of(turn, me, N, ROW):
    """A consumer's row among B * N, its first pair there, and that pair among B * ROW * ROW."""
    tile = _tile(turn, me)
    row, first = tile // (ROW // PAIRS), tile % (ROW // PAIRS) * PAIRS
    return row, first, (row // N * ROW + row % N) * ROW + first


@triton.jit
def _finish(
    x, x_full, x_empty, z, z_full, z_empty, blocks, full, empty, results, g_terms, p_terms,
    out_desc, turns, B, N, ROW, C, COUNT, eps,
    ME: tl.constexpr, PIECES: tl.constexpr, H_PIECES: tl.constexpr, DEPTH: tl.constexpr,
    CHUNKS: tl.constexpr, STAGES: tl.constexpr, RESIDENT: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    step = 0
    # What is to be stored, and where: at first past the end.
    held = tl.zeros((PAIRS, CHANNELS), tlx.dtype_of(out_desc))
    held_row, held_pair, held_channel = B * N, 0, 0
    ones = tl.full((PAIRS,), 1.0, tl.float32)
    for turn in range(turns):
        row, first, _ = _pairs_of(turn, ME, N, ROW)
        parts, scale = _take_pairs(x, x_full, x_empty, ME, eps, PIECES, DEPTH)
        mean, squares = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
        for piece in tl.static_range(H_PIECES):
            tlx.barrier_wait(z_full[ME * H_PIECES + piece], turn & 1)
            m, q = row_moments(tlx.local_trans(z[ME * H_PIECES + piece]))
            m -= mean
            mean += m * (1 / (piece + 1))
            squares += q + m * m * (piece * DEPTH / (piece + 1))
        z_scale = _scale(squares, eps, H_PIECES * DEPTH)
        if RESIDENT:
            step = 0
        for chunk in range(CHUNKS):
            channel = chunk * CHANNELS
            g = tl.zeros((PAIRS, CHANNELS), tl.float32)
            for piece in tl.static_range(PIECES):
                block = _block(blocks, full, step, STAGES, RESIDENT)
                g = tlx.async_dot(parts[piece], block, g)
                if piece == 0:
                    _put(out_desc, results[ME], held, held_row, held_pair, held_channel)
                else:
                    g = tlx.async_dot_wait(1, g)
                    _free(empty, step - 1, STAGES, RESIDENT)
                step += 1
            p = tl.zeros((PAIRS, CHANNELS), tl.float32)
            for piece in tl.static_range(H_PIECES):
                block = _block(blocks, full, step, STAGES, RESIDENT)
                p = tlx.async_dot(tlx.local_trans(z[ME * H_PIECES + piece]), block, p)
                if piece == 0:
                    g = tlx.async_dot_wait(1, g)
                else:
                    p = tlx.async_dot_wait(1, p)
                _free(empty, step - 1, STAGES, RESIDENT)
                step += 1
            gate = _gate(g, scale, ones, g_terms, channel, C, COUNT, 0, UNITS)
            p = tlx.async_dot_wait(0, p)
            _free(empty, step - 1, STAGES, RESIDENT)
            if chunk == CHUNKS - 1:
                for piece in tl.static_range(H_PIECES):
                    tlx.barrier_arrive(z_empty[ME * H_PIECES + piece])
            p = _normalised(p, z_scale, p_terms, channel, C, COUNT, UNITS) * gate
            held = p.to(tlx.dtype_of(out_desc))
            held_row, held_pair, held_channel = row, first, channel
    _put(out_desc, results[ME], held, held_row, held_pair, held_channel)
    tlx.async_descriptor_store_wait(0)
