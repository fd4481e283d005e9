"""Attention forward for CDNA, in stages that two groups of warps run one apart.

While one group multiplies, the other works on its softmax and moves memory: straight to shared
memory on CDNA 4, through registers on CDNA 3. The recurrence is FlashAttention-2's
(arXiv 2307.08691).
"""

from __future__ import annotations

import triton
import triton.language as tl

import remora.tlx as tlx
from remora.kernels.attention_plain import LN2
from remora.pipeline import attach


# Sums are scaled between products: all of them would go to accumulation registers and back.
@attach(tlx.sums_in_vector_registers)
@triton.jit
def attention_cdna(
    q, k, v, o, sums, scale,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on, stride_od,
    HEADS, LENGTH_Q, LENGTH_K, shift,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """``O = softmax(scale * Q @ K.T) @ V`` for each head.

    q, o: (batch, HEADS, LENGTH_Q, DIM), k, v: (batch, HEADS // GROUP, LENGTH_K, DIM), of any
    strides. sums: (batch, HEADS, LENGTH_Q), fp32: the logarithm of each row's sum of
    exponentials. scale: times log2(e), positive. Grid: (cdiv(LENGTH_Q, BLOCK_M), batch * HEADS).
    STAGES: buffers of keys and of values, at least 3. Row i sees columns up to i + shift: where
    there is no such limit, shift is LENGTH_K. DIRECT: copies, else loads and stores, stride_vd
    being 1 then.
    """
    # A division leaves them in vector registers.
    batch = tlx.assume_uniform(tl.program_id(1) // HEADS)
    head = tl.program_id(1) - batch * HEADS
    key_head = tlx.assume_uniform(head // GROUP)
    # The longest rows first, where they differ.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    there = (rows < LENGTH_Q)[:, None]
    columns, dims = tl.arange(0, BLOCK_N), tl.arange(0, DIM)
    q_at = _head(q, batch, head, stride_qb, stride_qh)
    q_at = q_at + rows[:, None] * stride_qn + dims[None, :] * stride_qd
    k_at = _head(k, batch, key_head, stride_kb, stride_kh)
    k_at = k_at + columns[:, None] * stride_kn + dims[None, :] * stride_kd
    v_first = _head(v, batch, key_head, stride_vb, stride_vh)
    v_at = v_first + columns[:, None] * stride_vn + dims[None, :] * stride_vd

    last = tl.minimum(LENGTH_K, tl.maximum((block + 1) * BLOCK_M + shift, 0))
    whole = tl.minimum(LENGTH_K // BLOCK_N, (block * BLOCK_M + shift + 1) // BLOCK_N)
    whole = tl.maximum(whole, 0)
    blocks = tl.maximum(tl.cdiv(last, BLOCK_N), 1)
    end_of_row = tl.minimum(rows + shift + 1, LENGTH_K)

    # Each warp has rows of its own, and the weights are where the next product wants them.
    mma: tl.constexpr = tlx.amd_mfma_layout(
        4 if DIRECT else 3, (32, 32, 16 if DIRECT else 8), True, (tlx.num_warps(), 1)
    )
    WIDTH: tl.constexpr = 8 if DIRECT else 4
    as_queries: tl.constexpr = tlx.dot_operand_layout(0, mma, WIDTH)
    as_keys: tl.constexpr = tlx.dot_operand_layout(1, mma, WIDTH)
    as_weights: tl.constexpr = tlx.dot_operand_layout(0, mma, 4)
    as_values: tl.constexpr = tlx.dot_operand_layout(1, mma, 4)

    # The buffers of keys and values lie where the queries were.
    q_buffer = tlx.local_alloc((BLOCK_M, DIM), tlx.dtype_of(q), 1)
    tlx.async_load(q_at, q_buffer[0], mask=there)
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    queries = tlx.local_load(q_buffer[0], layout=as_queries)
    k_buffers = tlx.local_alloc((BLOCK_N, DIM), tlx.dtype_of(k), STAGES)
    if DIRECT:
        v_buffers = tlx.local_alloc((BLOCK_N, DIM), tlx.dtype_of(v), STAGES)
    else:
        # By columns: what a lane reads for a product is in a row.
        by_columns: tl.constexpr = tlx.swizzled_shared_layout_encoding(
            4, 64 // BLOCK_N, BLOCK_N // 4, (0, 1)
        )
        v_buffers = tlx.local_alloc((BLOCK_N, DIM), tlx.dtype_of(v), STAGES, layout=by_columns)
    # Values come one block behind keys: a group of copies is one of each.
    for ahead in tl.static_range(STAGES):
        if DIRECT:
            _fill(k_at, k_buffers, ahead, stride_kn, columns, LENGTH_K, BLOCK_N, STAGES)
            if ahead > 0:
                _fill(v_at, v_buffers, ahead - 1, stride_vn, columns, LENGTH_K, BLOCK_N, STAGES)
        else:
            loaded = _loaded(k_at, ahead, stride_kn, columns, LENGTH_K, BLOCK_N)
            tlx.local_store(k_buffers[ahead], loaded)
            if ahead > 0:
                loaded = _loaded_values(v_first, ahead - 1, stride_vn, LENGTH_K, BLOCK_N, DIM)
                tlx.local_store(v_buffers[ahead - 1], loaded)
        tlx.async_load_commit_group()
    tlx.async_load_wait_group(STAGES - 2)

    keys = tlx.local_load(tlx.local_trans(k_buffers[0]), layout=as_keys)
    scores = tl.dot(queries, keys)
    if whole < 1:
        scores = _masked(scores, 0, columns, end_of_row)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    weights, acc, highest, total = _softmax(scores, acc, highest, total, scale)
    weights = tlx.require_layout(weights.to(tlx.dtype_of(v)), as_weights)

    # Blocks that every row sees as a whole, then those that it does not.
    for MASKED in tl.static_range(2):
        begin = tl.maximum(whole - 1, 0) if MASKED else 0
        end = blocks - 1 if MASKED else tl.maximum(whole - 1, 0)
        for step in tl.range(begin, end, num_stages=0):
            with tlx.warp_pipeline_stage("multiply", priority=1):
                k_buffer = tlx.local_trans(k_buffers[(step + 1) % STAGES])
                scores = tl.dot(queries, tlx.local_load(k_buffer, layout=as_keys))
                if not DIRECT:
                    tlx.amd_sched_barrier(0)  # what is read first has been multiplied
                values = tlx.local_load(v_buffers[step % STAGES], layout=as_values)
                acc = tl.dot(weights, values, acc)
            # The group behind reads keys step + 1 and values step still.
            tlx.async_load_wait_group(STAGES - 3)
            with tlx.warp_pipeline_stage("softmax", priority=0):
                later = step + STAGES
                if DIRECT:
                    _fill(k_at, k_buffers, later, stride_kn, columns, LENGTH_K, BLOCK_N, STAGES)
                    _fill(v_at, v_buffers, later - 1, stride_vn, columns, LENGTH_K, BLOCK_N, STAGES)
                    tlx.async_load_commit_group()
                else:
                    v_next = _loaded_values(v_first, later - 1, stride_vn, LENGTH_K, BLOCK_N, DIM)
                    k_next = _loaded(k_at, later, stride_kn, columns, LENGTH_K, BLOCK_N)
                if MASKED:
                    first = (step + 1) * BLOCK_N
                    scores = _masked(scores, first, columns, end_of_row)
                fresh, acc, highest, total = _softmax(scores, acc, highest, total, scale)
                weights = tlx.require_layout(fresh.to(tlx.dtype_of(v)), as_weights)
                if not DIRECT:
                    tlx.local_store(k_buffers[later % STAGES], k_next)
                    tlx.local_store(v_buffers[(later - 1) % STAGES], v_next)
    tlx.async_load_wait_group(0)
    values = tlx.local_load(v_buffers[(blocks - 1) % STAGES], layout=as_values)
    acc = tl.dot(weights, values, acc)

    none = total == 0.0  # rows that see no column
    total = tl.where(none, 1.0, total)
    o_at = _head(o, batch, head, stride_ob, stride_oh)
    o_at = o_at + rows[:, None] * stride_on + dims[None, :] * stride_od
    tl.store(o_at, (acc / total[:, None]).to(tlx.dtype_of(o)), mask=there)
    logarithms = tl.where(none, float("-inf"), (highest + tl.log2(total)) * LN2)
    at = sums + tl.program_id(1).to(tl.int64) * LENGTH_Q + rows
    tl.store(at, logarithms, mask=rows < LENGTH_Q)


@triton.jit
def _head(pointer, batch, head, stride_b, stride_h):
    """The first element of a head."""
    return pointer + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h


@triton.jit
def _fill(at, buffers, block, stride, columns, length, BLOCK_N: tl.constexpr, STAGES: tl.constexpr):
    """Bring a block of keys or values to its buffer; zeros past the last one."""
    there = (block * BLOCK_N + columns < length)[:, None]
    tlx.async_load(at + block * BLOCK_N * stride, buffers[block % STAGES], mask=there)


@triton.jit
def _loaded(at, block, stride, columns, length, BLOCK_N: tl.constexpr):
    """A block of keys or values, in registers."""
    there = (block * BLOCK_N + columns < length)[:, None]
    return tl.load(at + block * BLOCK_N * stride, mask=there, other=0.0)


@triton.jit
def _loaded_values(first, block, stride, length, BLOCK_N: tl.constexpr, DIM: tl.constexpr):
    """A block of values, 4 rows by 2 dimensions in each thread, column by column."""
    THREADS: tl.constexpr = 64 * tlx.num_warps()
    PAIRS: tl.constexpr = DIM // 2
    ROWS: tl.constexpr = 4 * THREADS // PAIRS  # of a pass
    threads: tl.constexpr = ((PAIRS, THREADS // PAIRS), (2, 4 * DIM))
    by_row: tl.constexpr = tlx.layout(
        (threads[0], (2, 4, BLOCK_N // ROWS)), (threads[1], (1, DIM, ROWS * DIM))
    )
    by_column: tl.constexpr = tlx.layout(
        (threads[0], (4, 2, BLOCK_N // ROWS)), (threads[1], (DIM, 1, ROWS * DIM))
    )
    rows = tl.arange(0, BLOCK_N)[:, None]
    offsets = tlx.require_layout(rows * stride + tl.arange(0, DIM)[None, :], by_row)
    there = block * BLOCK_N + rows < length
    first += tl.cast(block, tl.int64) * BLOCK_N * stride
    loaded = tlx.buffer_load(first, offsets, mask=there, other=0.0, contiguity=2)
    return tlx.require_layout(loaded, by_column)


@triton.jit
def _masked(scores, first, columns, end_of_row):
    """Scores of a block of columns from ``first``, without those that a row does not see."""
    return tl.where(columns[None, :] < (end_of_row - first)[:, None], scores, float("-inf"))


@triton.jit
def _softmax(scores, acc, highest, total, scale):
    """Weights of a block, with the sums so far scaled to the new highest score."""
    higher = tl.maximum(highest, tl.max(scores, 1) * scale)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.math.exp2(scores * scale - base[:, None])
    shrink = tl.math.exp2(highest - base)
    return weights, acc * shrink[:, None], higher, total * shrink + tl.sum(weights, 1)
