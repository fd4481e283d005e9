"""Small Triton kernels of many kinds, to run every part of Remora over.

``CORPUS`` lists them; each is compiled as a launch would compile it, from its
signature and constants. They are about the IR that they lead to, not about
what they compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice


@dataclass(frozen=True)
class Entry:
    """A kernel and how it is compiled.

    signature: argument to Triton type; constants are added from ``constants``.
    options: as a launch takes them (num_warps and so on).
    refused: where stock Triton itself cannot compile it, with the reason. Keys
        are a target's start (``hip``, ``cuda:80``), a release's start (``3.7``),
        or both (``3.7 hip``).
    varies: where stock Triton's code differs from one compilation to the next,
        with the reason; keys as above.
    """

    kernel: Any
    signature: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    varies: dict[str, str] = field(default_factory=dict)
    variant: str = ""

    @property
    def name(self) -> str:
        """Kernel and variant."""
        name: str = self.kernel.fn.__name__
        return f"{name}-{self.variant}" if self.variant else name

    def source(self) -> Any:
        """What ``triton.compile`` takes."""
        from triton.compiler import ASTSource

        constexprs = dict.fromkeys(self.constants, "constexpr")
        order = self.kernel.arg_names
        merged = {**self.signature, **constexprs}
        return ASTSource(self.kernel, {k: merged[k] for k in order}, self.constants)

    def refusal(self, release: str, target: str) -> str:
        """Why stock Triton of this release cannot compile it for this target; "" if it can."""
        return _find(self.refused, release, target)

    def variation(self, release: str, target: str) -> str:
        """Why stock Triton of this release gives code that varies; "" if it does not."""
        return _find(self.varies, release, target)


def _find(reasons: dict[str, str], release: str, target: str) -> str:
    for key, reason in reasons.items():
        if all(release.startswith(w) or target.startswith(w) for w in key.split()):
            return reason
    return ""


# --- elementwise, memory --------------------------------------------------------------------


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside, other=0.0), inside)


@triton.jit
def cached(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.max_contiguous(tl.multiple_of(at, BLOCK), BLOCK)
    a = tl.load(x + at, at < n, cache_modifier=".ca")
    b = tl.load(x + at + BLOCK, at < n, cache_modifier=".cg")
    b += tl.load(x + at + 3 * BLOCK, at < n, eviction_policy="evict_last")
    c = tl.load(x + at + 2 * BLOCK, at < n, volatile=True)
    tl.store(out + at, a + b + c, at < n, cache_modifier=".wt")


@triton.jit
def casts(x, out, wide, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    half = value.to(tl.bfloat16) * 0.3 + value.to(tl.float16).to(tl.bfloat16)
    bits = value.to(tl.int32, bitcast=True) ^ 0x7FFFFFFF
    tl.store(out + at, half + bits.to(tl.float32, bitcast=True).to(tl.bfloat16))
    tl.store(wide + at, value.to(tl.float64) * 0.1 + 1.2345678901234567e-300)


@triton.jit
def constants(out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = at.to(tl.float32)
    value = tl.where(at < 3, value, float("nan"))
    value = tl.where(at < 5, value, float("inf"))
    value = value * 3.14159274 + 1.17549435e-38 + 16777217.0 + 1e-45
    value = tl.where(value > 1e30, tl.full([BLOCK], -0.0, tl.float32), value)
    big = at.to(tl.int64) * 0x7FFFFFFFFFFFFFFF + at.to(tl.uint64, bitcast=False).to(tl.int64)
    tl.store(out + at, value + (big >> 63).to(tl.float32))


@triton.jit
def tuples(pair, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    source, count = pair
    tl.store(out + at, tl.load(source + at, at < count), at < count)


@triton.jit
def shuffle(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at)
    square = tl.reshape(a, (BLOCK // 16, 16))
    turned = tl.trans(square)
    flat = tl.ravel(turned)
    both = tl.cat(flat, a, can_reorder=True)
    wide = tl.arange(0, 2 * BLOCK)
    tl.store(out + wide, both)
    tl.store(out + at, tl.permute(tl.expand_dims(square, 0), (2, 0, 1)).reshape(BLOCK))


@triton.jit
def join_split(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at)
    pair = tl.join(a, a * 2.0)
    left, right = tl.split(pair)
    tl.store(out + at, left - right)
    tl.store(out + tl.arange(0, 2 * BLOCK), tl.interleave(a, right))


@triton.jit
def gathered(x, index, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(index + at), 0))


@triton.jit
def sorted_(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def histogram(x, out, BLOCK: tl.constexpr, BINS: tl.constexpr):
    counts = tl.histogram(tl.load(x + tl.arange(0, BLOCK)), BINS)
    tl.store(out + tl.arange(0, BINS), counts)


@triton.jit
def random(out, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.rand(seed, at) + tl.randn(seed, at))


# --- reductions, scans ----------------------------------------------------------------------


@triton.jit
def reductions(x, out, where, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    grid = tl.load(x + at[:, None] * BLOCK + at[None, :])
    tl.store(out + at, tl.sum(grid, 1) + tl.max(grid, 0) + tl.min(grid, 1))
    tl.store(where + at, tl.argmax(grid, 1) + tl.argmin(grid, 0))
    tl.store(out + BLOCK, tl.sum(tl.sum(grid, 0), 0))


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, at < columns, other=-float("inf"))
    top = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + at, top / tl.sum(top, 0), at < columns)


@triton.jit
def layer_norm(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / columns
    apart = tl.where(at < columns, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / columns + epsilon)
    w, b = tl.load(weight + at, at < columns), tl.load(bias + at, at < columns)
    tl.store(out + row * columns + at, apart * scale * w + b, at < columns)


@triton.jit
def scans(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out + at, tl.cumsum(value, 0) + tl.cumprod(value, 0, reverse=True))


@triton.jit
def _first_order(a0, b0, a1, b1):
    return a0 * a1, a1 * b0 + b1


@triton.jit
def recurrence(a, b, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    _, state = tl.associative_scan((tl.load(a + at), tl.load(b + at)), 0, _first_order)
    tl.store(out + at, state)


@triton.jit
def _larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def custom_reduce(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, BLOCK)), 0, _larger))


# --- atomics --------------------------------------------------------------------------------


@triton.jit
def atomics(x, counts, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.atomic_add(counts + at % 7, value, at < 100, sem="relaxed")
    tl.atomic_max(counts + 8 + at % 7, value)
    tl.atomic_xchg(counts + 16, 1, sem="release", scope="gpu")


@triton.jit
def locked(lock, total, x, BLOCK: tl.constexpr):
    value = tl.sum(tl.load(x + tl.arange(0, BLOCK)), 0)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    tl.store(total, tl.load(total) + value)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem="release")


# --- control flow ---------------------------------------------------------------------------


@triton.jit
def collatz(x, out, limit, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    value = tl.load(x + pid)
    steps = 0
    while (value != 1) & (steps < limit):
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
    tl.store(out + pid, steps)


@triton.jit
def nested(x, out, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    count = 0
    for i in range(rows):
        if i % 2 == 0:
            for j in range(0, columns, BLOCK):
                value = tl.load(x + i * columns + j + at, j + at < columns, other=0.0)
                if j > 64:
                    total += value
                    count += 1
                elif j > 32:
                    total = tl.maximum(total, value)
        else:
            total = total * 0.5
    tl.store(out + at, total * count)


@triton.jit
def early_exit(x, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid * BLOCK >= n:
        return
    at = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) + 1.0, at < n)


@triton.jit(noinline=True)
def _cut(value, bound):
    if bound > 3.0:
        return tl.minimum(value, bound)
    return tl.maximum(value, -bound)


@triton.jit
def calls(x, out, bound, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    low = _cut(bound, 2.5)
    tl.store(out + at, tl.where(value < low, _cut(bound, 1.0), value))


@triton.jit
def static_range(x, out, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TIMES):
        total += tl.load(x + i * BLOCK + at)
    tl.store(out + at, total)


# --- products -------------------------------------------------------------------------------


@triton.jit
def matmul(
    a, b, c, M, N, K, stride_am, stride_bk,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * tiles_n)
    first = group * GROUP
    height = min(tiles_m - first, GROUP)
    row = first + (pid % (GROUP * tiles_n)) % height
    column = (pid % (GROUP * tiles_n)) // height
    tl.assume(row >= 0)
    rows = (row * BM + tl.arange(0, BM)) % M
    columns = (column * BN + tl.arange(0, BN)) % N
    ks = tl.arange(0, BK)
    at_a = a + rows[:, None] * stride_am + ks[None, :]
    at_b = b + ks[:, None] * stride_bk + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = tl.load(at_a, ks[None, :] < K - k * BK, other=0.0)
        right = tl.load(at_b, ks[:, None] < K - k * BK, other=0.0)
        total = tl.dot(left, right, total)
        at_a += BK
        at_b += BK * stride_bk
    out_m, out_n = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    inside = (out_m[:, None] < M) & (out_n[None, :] < N)
    tl.store(c + out_m[:, None] * N + out_n[None, :], total.to(tl.float16), inside)


@triton.jit
def hinted(a, b, c, K, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for tile in tl.range(0, K, 1, flatten=True, disallow_acc_multi_buffer=True):
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in tl.range(0, K, BLOCK, num_stages=4):
            left = tl.load(a + at[:, None] * K + k + at[None, :])
            right = tl.load(b + (k + at)[:, None] * BLOCK + at[None, :])
            total = tl.dot(left, right, total)
        tl.store(c + tile * BLOCK * BLOCK + at[:, None] * BLOCK + at[None, :], total)


@triton.jit
def specialized(a, b, c, M, N, K, BLOCK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK, BLOCK])
    right = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK, BLOCK])
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, K, BLOCK, warp_specialize=True, num_stages=2):
        total = tl.dot(left.load([row, k]), right.load([column, k]).T, total)
    rows, columns = row + tl.arange(0, BLOCK), column + tl.arange(0, BLOCK)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def unrolled(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(0, n, loop_unroll_factor=4):
        total += tl.load(x + i * BLOCK + at)
    tl.store(out + at, total)


@triton.jit
def dot(a, b, c, BLOCK: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, BLOCK)
    left = tl.load(a + at[:, None] * BLOCK + at[None, :])
    right = tl.load(b + at[:, None] * BLOCK + at[None, :])
    total = tl.dot(left, right, input_precision=PRECISION, out_dtype=ACC)
    tl.store(c + at[:, None] * BLOCK + at[None, :], total)


@triton.jit
def scaled(a, a_scale, b, b_scale, c, BLOCK: tl.constexpr, FORMAT: tl.constexpr):
    at, groups = tl.arange(0, BLOCK), tl.arange(0, BLOCK // 32)
    left = tl.load(a + at[:, None] * BLOCK + at[None, :])
    right = tl.load(b + at[:, None] * BLOCK + at[None, :])
    left_scale = tl.load(a_scale + at[:, None] * (BLOCK // 32) + groups[None, :])
    right_scale = tl.load(b_scale + at[:, None] * (BLOCK // 32) + groups[None, :])
    total = tl.dot_scaled(left, left_scale, FORMAT, right, right_scale, FORMAT)
    tl.store(c + at[:, None] * BLOCK + at[None, :], total)


@triton.jit
def attention(
    q, k, v, out, n, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    rows, ds, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    query = tl.load(q + rows[:, None] * D + ds[None, :])
    top = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, n, BN):
        at = start + columns
        keys = tl.load(k + at[:, None] * D + ds[None, :], at[:, None] < n, other=0.0)
        score = tl.dot(query, keys.T) * scale
        inside = at[None, :] < n
        if CAUSAL:
            inside = inside & (rows[:, None] >= at[None, :])
        score = tl.where(inside, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        weight = weight * shrink + tl.sum(p, 1)
        values = tl.load(v + at[:, None] * D + ds[None, :], at[:, None] < n, other=0.0)
        total = tl.dot(p.to(tl.float16), values, total * shrink[:, None])
        top = new_top
    tl.store(out + rows[:, None] * D + ds[None, :], total / weight[:, None])


# --- descriptors ----------------------------------------------------------------------------


@triton.jit
def device_descriptor(x, out, M, N, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BLOCK, BLOCK])
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([row, column], source.load([row, column]) * 2.0)


@triton.jit
def host_descriptor(a, b, c, K, BLOCK: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, K, BLOCK):
        total = tl.dot(a.load([row, k]), b.load([k, column]), total)
    c.store([row, column], total.to(tl.float16))


# --- the outside ----------------------------------------------------------------------------


@triton.jit
def printing(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.device_print('a "quoted" \\ prefix: ', value, at, hex=True)
    tl.device_assert(value < n, "value // too large: é")


@triton.jit
def assembly(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    value = tl.inline_asm_elementwise(
        """{
            // a comment, "quoted"
            add.s32 $0, $1, 7;
        }""",
        "=r,r",
        [value],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    tl.store(out + at, value)


@triton.jit
def device_library(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out + at, libdevice.tanh(value) + libdevice.pow(value, 2.0) + tl.erf(value))


@triton.jit
def maths(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    value = tl.fma(tl.sin(value), tl.cos(value), tl.sqrt(tl.abs(value)))
    value = tl.clamp(tl.log2(value), -1.0, 1.0) + tl.floor(tl.sigmoid(value))
    bits = tl.umulhi(value.to(tl.uint32), 12345)
    tl.store(out + at, value + bits.to(tl.float32))


def _floats(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, "*fp32")


_ONE_VENDOR = "inline assembly is written for one vendor"

CORPUS: list[Entry] = [
    Entry(add, {**_floats("x", "y", "out"), "n": "i32"}, {"BLOCK": 256}),
    Entry(cached, {**_floats("x", "out"), "n": "i32"}, {"BLOCK": 256}),
    Entry(casts, {**_floats("x"), "out": "*bf16", "wide": "*fp64"}, {"BLOCK": 128}),
    Entry(constants, _floats("out"), {"BLOCK": 128}),
    Entry(tuples, {"pair": ("*fp32", "i32"), "out": "*fp32"}, {"BLOCK": 128}),
    Entry(shuffle, _floats("x", "out"), {"BLOCK": 256}),
    Entry(join_split, _floats("x", "out"), {"BLOCK": 128}),
    Entry(gathered, {"x": "*fp32", "index": "*i32", "out": "*fp32"}, {"BLOCK": 128}),
    Entry(sorted_, _floats("x", "out"), {"BLOCK": 64}),
    Entry(histogram, {"x": "*i32", "out": "*i32"}, {"BLOCK": 256, "BINS": 32}),
    Entry(random, {"out": "*fp32", "seed": "i32"}, {"BLOCK": 128}),
    Entry(reductions, {**_floats("x", "out"), "where": "*i32"}, {"BLOCK": 32}),
    Entry(softmax, {**_floats("x", "out"), "columns": "i32"}, {"BLOCK": 512}),
    Entry(
        layer_norm,
        {**_floats("x", "weight", "bias", "out"), "columns": "i32", "epsilon": "fp32"},
        {"BLOCK": 512},
    ),
    Entry(scans, _floats("x", "out"), {"BLOCK": 128}),
    Entry(recurrence, _floats("a", "b", "out"), {"BLOCK": 128}),
    Entry(custom_reduce, _floats("x", "out"), {"BLOCK": 128}),
    Entry(atomics, {"x": "*i32", "counts": "*i32"}, {"BLOCK": 128}),
    Entry(locked, {"lock": "*i32", "total": "*fp32", "x": "*fp32"}, {"BLOCK": 128}),
    Entry(collatz, {"x": "*i32", "out": "*i32", "limit": "i32"}, {"BLOCK": 1}),
    Entry(nested, {**_floats("x", "out"), "rows": "i32", "columns": "i32"}, {"BLOCK": 64}),
    Entry(early_exit, {"x": "*fp32", "n": "i32"}, {"BLOCK": 128}),
    Entry(calls, {**_floats("x", "out"), "bound": "fp32"}, {"BLOCK": 128}),
    Entry(static_range, _floats("x", "out"), {"BLOCK": 64, "TIMES": 3}),
    Entry(
        matmul,
        {"a": "*fp16", "b": "*fp16", "c": "*fp16", "M": "i32", "N": "i32", "K": "i32",
         "stride_am": "i32", "stride_bk": "i32"},
        {"BM": 128, "BN": 128, "BK": 32, "GROUP": 8},
        {"num_warps": 4, "num_stages": 3},
    ),
    Entry(hinted, {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32"}, {"BLOCK": 64}),
    Entry(
        specialized,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "N": "i32", "K": "i32"},
        {"BLOCK": 128},
        {"num_warps": 4},
        varies={"cuda:90": "the arguments of warp-specialized partitions come in any order"},
    ),
    Entry(unrolled, {**_floats("x", "out"), "n": "i32"}, {"BLOCK": 128}),
    Entry(
        dot,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32"},
        {"BLOCK": 64, "ACC": tl.float32, "PRECISION": "ieee"},
        variant="fp16",
    ),
    Entry(
        dot,
        {"a": "*fp8e5", "b": "*fp8e5", "c": "*fp32"},
        {"BLOCK": 64, "ACC": tl.float32, "PRECISION": "ieee"},
        variant="fp8",
    ),
    Entry(
        dot,
        _floats("a", "b", "c"),
        {"BLOCK": 64, "ACC": tl.float32, "PRECISION": "tf32"},
        variant="tf32",
        refused={"hip:gfx950": "the target has no tf32: input_precision must be another"},
    ),
    Entry(
        dot,
        {"a": "*i8", "b": "*i8", "c": "*i32"},
        {"BLOCK": 64, "ACC": tl.int32, "PRECISION": "ieee"},
        variant="int8",
    ),
    Entry(
        scaled,
        {"a": "*fp8e4nv", "a_scale": "*u8", "b": "*fp8e4nv", "b_scale": "*u8", "c": "*fp32"},
        {"BLOCK": 64, "FORMAT": "e4m3"},
    ),
    Entry(
        attention,
        {"q": "*fp16", "k": "*fp16", "v": "*fp16", "out": "*fp32", "n": "i32", "scale": "fp32"},
        {"BM": 64, "BN": 32, "D": 64, "CAUSAL": True},
    ),
    Entry(device_descriptor, {**_floats("x", "out"), "M": "i32", "N": "i32"}, {"BLOCK": 32}),
    Entry(
        host_descriptor,
        {"a": "tensordesc<fp16[64, 64]>", "b": "tensordesc<fp16[64, 64]>",
         "c": "tensordesc<fp16[64, 64]>", "K": "i32"},
        {"BLOCK": 64},
    ),
    Entry(printing, {"x": "*i32", "n": "i32"}, {"BLOCK": 128}, {"debug": True}),
    Entry(
        assembly,
        {"x": "*i32", "out": "*i32"},
        {"BLOCK": 128},
        refused={"hip": _ONE_VENDOR},
    ),
    Entry(device_library, _floats("x", "out"), {"BLOCK": 128}),
    Entry(maths, _floats("x", "out"), {"BLOCK": 128}),
]  # fmt: skip
