"""The code of kernels whose warps have tasks of their own, without hardware."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton.language as tl
from tlx.building import build, conversions_in_loops, instructions, loops_of

from remora.kernels.attention import BLOCK_M, HEAD_DIMS
from remora.kernels.attention_specialized import attention_forward
from remora.kernels.gemm_specialized import gemm_specialized
from remora.kernels.offline import _cuda_resources


def descriptor(dtype: str, rows: int, columns: int) -> str:
    return f"tensordesc<{dtype}[{rows},{columns}]>"


def product(schedule: str, dtype: str = "fp16", *, by_column: bool = False) -> Any:
    block_m, block_n, stages = (128, 256, 4) if schedule == "cooperative" else (128, 128, 5)
    rows = block_m // 2 if schedule == "cooperative" else block_m
    depth = 64 if dtype == "fp16" else 128
    b = (block_n, depth) if by_column else (depth, block_n)
    return build(
        gemm_specialized, "cuda:90",
        a_desc=descriptor(dtype, rows, depth), b_desc=descriptor(dtype, *b),
        c_desc=descriptor("fp16", rows, block_n // 2), partials="*fp32", flags="*i32",
        M="i32", N="i32", K="i32", split_tiles="i32", CLUSTER_M=1, CLUSTER_N=1, STREAM_K=False,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=depth, GROUP_M=8, STAGES=stages, SUBTILES=2,
        B_BY_COLUMN=by_column, ACC=tl.float32, PINGPONG=schedule == "pingpong",
    )  # fmt: skip


@pytest.mark.parametrize(("schedule", "dtype", "by_column", "shape"), [
    ("cooperative", "fp16", False, "m64n256k16.f32.f16.f16"),
    ("cooperative", "fp8e4nv", True, "m64n256k32.f32.e4m3.e4m3"),
    ("pingpong", "fp16", True, "m64n128k16.f32.f16.f16"),
])  # fmt: skip
def test_products(schedule: str, dtype: str, by_column: bool, shape: str) -> None:
    compiled = product(schedule, dtype, by_column=by_column)
    ptx = compiled.asm["ptx"]
    assert set(instructions(ptx, r"wgmma\.mma_async\.sync\.aligned\.(m\S+) ")) == {shape}
    assert not conversions_in_loops(compiled.asm["ttgir"])
    # A consumer keeps a product in flight in its loop over K, whose operands TMA brings.
    loops = [loop for loop in loops_of(ptx) if "wgmma.mma_async" in loop]
    inner = min(loops, key=len)
    assert instructions(inner, r"wgmma\.wait_group\.sync\.aligned\s+(\d)") == ["1"]
    assert not re.search(r"(ld|st)\.shared|stmatrix|ldmatrix", inner)
    assert "cp.async.bulk.tensor.2d.shared" in ptx
    assert "cp.async.bulk.tensor.2d.global" in ptx
    assert _cuda_resources(compiled.asm["cubin"])[1] == 0  # nothing is spilled
    assert compiled.metadata.shared <= 227 << 10


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_attention(dim: int, causal: bool) -> None:
    first, second = HEAD_DIMS[dim]
    block_n = 128 if dim <= 128 else 64
    kinds = {}
    for name, rows in (("q", BLOCK_M // 2), ("k", block_n), ("v", block_n), ("o", BLOCK_M // 2)):
        kinds[f"{name}0_desc"] = descriptor("fp16", rows, first)
        kinds[f"{name}1_desc"] = descriptor("fp16", rows, second or first)
    compiled = build(
        attention_forward, "cuda:90", **kinds, sums="*fp32", scale="fp32", LENGTH="i32",
        DIM0=first, DIM1=second, BLOCK_M=BLOCK_M, BLOCK_N=block_n, STAGES=2, CAUSAL=causal,
    )  # fmt: skip
    assert not conversions_in_loops(compiled.asm["ttgir"])
    ptx = compiled.asm["ptx"]
    # The values of the block before are added while the scores' softmax is worked out.
    waits = instructions(ptx, r"wgmma\.wait_group\.sync\.aligned\s+(\d)")
    assert waits.count("1" if second == 0 else "2") == 2  # a consumer each
    assert _cuda_resources(compiled.asm["cubin"])[1] == 0
