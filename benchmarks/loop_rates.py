"""The model of loops beside a Hopper GPU: cycles that loops take there, and that it says.

    python benchmarks/loop_rates.py --out FILE.json

Cycles are read from the multiprocessor's own counter, so that its clock, which power limits,
does not matter. Each row: measured cycles of one iteration, and the model's bound of the same
code. Programs: one a multiprocessor, all of them at once.
"""

from __future__ import annotations

import argparse
import contextvars
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import machine
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import remora.tlx as tlx
from remora.analysis import of_kernel
from remora.kernels.gemm_hopper import gemm_pipelined
from remora.kernels.gemm_specialized import gemm_specialized

#: Eight reads of 16 bytes, on the same banks.
_READS = "".join(
    f"ld.volatile.shared.v4.b32 {{a, b, c, d}}, [at+{3584 * i}]; xor.b32 sum, sum, a;"
    for i in range(8)
)
_BANKS = tl.constexpr(
    """
{
    .shared .align 128 .b8 buffer[32768];
    .reg .b32 base, at, a, b, c, d, n, sum;
    .reg .pred more;
    .reg .b64 start, end;
    mov.b32 base, buffer;
    add.s32 at, base, $1;
    mov.b32 n, $2;
    mov.b32 sum, 0;
    bar.sync 0;
    mov.u64 start, %clock64;
again:
    READS
    add.s32 n, n, -1;
    setp.ne.b32 more, n, 0;
    @more bra again;
    bar.sync 0;
    mov.u64 end, %clock64;
    sub.u64 $0, end, start;
    setp.eq.b32 more, sum, 1;
    @more add.u64 $0, $0, 1;
}
""".replace("READS", _READS)
)


@triton.jit
def banks(t_ptr, rounds, PITCH: tl.constexpr, SWIZZLED: tl.constexpr):
    """Eight reads of 16 bytes a lane, a row each, PITCH bytes apart. t_ptr (programs * 128).

    Each of its own addresses, on the same banks, and what is read is used: else ptxas leaves one
    of the eight, ``volatile`` or not.
    """
    lane = tl.arange(0, 128) % 32
    at = lane * PITCH
    if SWIZZLED:
        at ^= (lane % 8) * 16
    times = tl.inline_asm_elementwise(_BANKS, "=l,r,r", [at, rounds], tl.int64, False, 1)
    tl.store(t_ptr + tl.program_id(0) * 128 + tl.arange(0, 128), times)


@triton.jit
def copies(x_desc, t_ptr, rounds, ROWS: tl.constexpr, BUFFERS: tl.constexpr):
    """Tiles of ROWS x 64 fp16 into shared memory, BUFFERS in flight. t_ptr (programs)."""
    buffers = tlx.local_alloc((ROWS, 64), tl.float16, BUFFERS)
    full = tlx.alloc_barriers(BUFFERS, 1)
    start = tlx.clock64()
    for i in tl.range(0, rounds + BUFFERS, num_stages=0):
        at = i % BUFFERS
        if i >= BUFFERS:
            tlx.barrier_wait(full[at], ((i // BUFFERS) - 1) & 1)
        if i < rounds:
            tlx.barrier_expect_bytes(full[at], ROWS * 128)
            row = ((tl.program_id(0) * 7 + i) % 64) * ROWS
            tlx.async_descriptor_load(x_desc, buffers[at], [row, 0], full[at])
    tl.store(t_ptr + tl.program_id(0), tlx.clock64() - start)


@triton.jit
def products(y_ptr, t_ptr, rounds, N: tl.constexpr):
    """128 x N x 64 in fp16, out of shared memory, by two warp groups. t_ptr (programs)."""
    a = tlx.local_alloc((128, 64), tl.float16, 1)
    b = tlx.local_alloc((64, N), tl.float16, 1)
    tlx.local_store(a[0], tl.zeros((128, 64), tl.float16))
    tlx.local_store(b[0], tl.zeros((64, N), tl.float16))
    tlx.fence_async_shared()
    acc = tl.zeros((128, N), tl.float32)
    tl.assume(rounds > 0)
    start = tlx.clock64()
    for _ in tl.range(0, rounds, num_stages=0):
        acc = tlx.async_dot(a[0], b[0], acc)
        acc = tlx.async_dot_wait(1, acc)
    acc = tlx.async_dot_wait(0, acc)
    tl.store(t_ptr + tl.program_id(0), tlx.clock64() - start)
    at = tl.arange(0, 128)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y_ptr + at, acc)


@triton.jit
def timed_pipelined(
    a_ptr, b_ptr, c_ptr, t_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
    stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """``gemm_pipelined`` with its cycles. t_ptr (programs)."""
    start = tlx.clock64()
    gemm_pipelined(
        a_ptr, b_ptr, c_ptr, M, N, K, 0, stride_am, stride_ak, 0, stride_bk, stride_bn, 0,
        stride_cm, stride_cn, None, None, (), BLOCK_M, BLOCK_N, BLOCK_K, 8, STAGES, tl.float32,
        None, tl.int32,
    )  # fmt: skip
    tl.store(t_ptr + tl.program_id(0), tlx.clock64() - start)


@triton.jit
def timed_specialized(
    a_desc, b_desc, c_desc, t_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, SUBTILES: tl.constexpr, PINGPONG: tl.constexpr,
):  # fmt: skip
    """``gemm_specialized`` with its cycles. t_ptr (programs)."""
    start = tlx.clock64()
    gemm_specialized(
        a_desc, b_desc, c_desc, None, None, (), None, None, M, N, K, 1, 0, 0, 0, 0,
        BLOCK_M, BLOCK_N, BLOCK_K, 8, STAGES, SUBTILES, False, False, False, False, True,
        tl.float32, PINGPONG, 1, 1, False, False, "", False, None, tl.int32,
    )  # fmt: skip
    tl.store(t_ptr + tl.program_id(0), tlx.clock64() - start)


def cases(processors: int) -> dict[str, Any]:
    """For each case: what launches it, with a pair of lengths, and iterations by length."""
    device = "cuda"
    found: dict[str, Any] = {}
    times = torch.zeros(processors * 128, dtype=torch.int64, device=device)
    for pitch, swizzled in ((16, False), (32, False), (128, False), (144, False), (128, True)):
        name = f"ld.shared.v4, rows {pitch} bytes apart{', swizzled' if swizzled else ''}"
        found[name] = (
            lambda n, p=pitch, s=swizzled: banks[(processors,)](times, n, p, s, num_warps=4),
            times, (200, 400), 1,
        )  # fmt: skip
    x = torch.randn(64 * 128, 64, device=device).half()
    described = TensorDescriptor.from_tensor(x, [128, 64])
    found["bulk copies of 16 KiB out of L2"] = (
        lambda n: copies[(processors,)](described, times, n, 128, 8, num_warps=4),
        times, (500, 1000), 1,
    )  # fmt: skip
    y = torch.empty(128 * 256, device=device)
    for n in (64, 128, 256):
        found[f"wgmma, 128 x {n} x 64"] = (
            lambda r, n=n: products[(processors,)](y, times, r, n, num_warps=8),
            times, (500, 1000), 1,
        )  # fmt: skip
    # One tile for each of 132 programs.
    m, n, longest = 128 * 12, 256 * (processors // 12), 16384
    a = torch.randn(m, longest, device=device).half()
    b = torch.randn(longest, n, device=device).half()
    c = torch.empty(m, n, device=device).half()
    grid = (12 * (processors // 12),)

    def pipelined(k: int) -> Any:
        return timed_pipelined[grid](
            a, b, c, times, m, n, k, *a.stride(), *b.stride(), *c.stride(), 128, 256, 64, 3,
            num_warps=8,
        )  # fmt: skip

    found["gemm_pipelined, 128 x 256 x 64"] = (pipelined, times, (8192, 16384), 64)
    for pingpong in (False, True):
        rows, stages, subtiles, wide = (128, 4, 2, 128) if pingpong else (64, 4, 2, 256)
        left = TensorDescriptor.from_tensor(a, [rows, 64])
        right = TensorDescriptor.from_tensor(b, [64, wide])
        out = TensorDescriptor.from_tensor(c, [rows, wide // subtiles])

        def specialized(k: int, p=pingpong, w=wide, d=(left, right, out), s=stages, t=subtiles):
            return timed_specialized[grid](*d, times, m, n, k, 128, w, 64, s, t, p, num_warps=4)

        # Taking turns, the two consumers have a tile of half the width each.
        name = "ping-pong, 2 x (128 x 128 x 64)" if pingpong else "cooperative, 128 x 256 x 64"
        found[f"gemm_specialized, {name}"] = (specialized, times, (8192, 16384), 64)
    return found


def main() -> None:
    """Measure, and print the model beside."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    rows = []
    every = cases(processors)
    # Compiled side by side: three quarters of a compilation are in LLVM and ptxas.
    contexts = {name: contextvars.copy_context() for name in every}
    with ThreadPoolExecutor(len(every)) as pool:
        running = {
            name: pool.submit(contexts[name].run, launch, few)
            for name, (launch, _, (few, _), _) in every.items()
        }
    kernels = {name: future.result() for name, future in running.items()}
    torch.cuda.synchronize()
    for name, (launch, times, (few, many), step) in every.items():
        cycles = []
        for _ in range(7):
            taken = []
            for length in (few, many):
                launch(length)
                taken.append(times[:processors].float().median().item())
            cycles.append((taken[1] - taken[0]) * step / (many - few))
        bound = of_kernel(kernels[name]).together
        slowest = max(bound, key=lambda unit: bound[unit])
        rows.append({"case": name, "cycles": statistics.median(cycles), "model": bound})
        print(
            f"{name:55} {rows[-1]['cycles']:9.1f}   model {bound[slowest]:9.1f} {slowest}",
            flush=True,
        )
        if given.out:
            given.out.write_text(json.dumps({**machine.record(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
