"""``grouped_matmul`` without a GPU: its meaning, what it refuses, and its code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from compiling import TARGETS
from kernels.shared_memory import LIMIT, SCALES, SMALL, of_grouped, of_specialized
from tlx.building import build, conversions_in_loops, instructions, loops_of
from triton.compiler import ASTSource

from remora.analysis import resources
from remora.errors import KernelArgumentError
from remora.kernels import grouped_matmul
from remora.kernels.config import Config
from remora.kernels.gemm_grouped import FILLED, fill_table, gemm_grouped, packed
from remora.kernels.gemm_grouped_specialized import gemm_grouped_specialized
from remora.kernels.grouped_matmul import plain_config, specialized_config
from remora.kernels.offline import _hip_resources


def test_the_reference_meaning() -> None:
    here = Path(__file__).parent
    file = here / "meaning_grouped.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        cwd=here.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout


# --- what is refused -------------------------------------------------------------------------

A, B, OFFS = torch.ones(8, 16), torch.ones(2, 16, 32), torch.tensor([3, 8], dtype=torch.int32)
REFUSED = {
    "no offsets": ((A, B), "offs has to be a torch tensor, it is NoneType"),
    "three dimensions": ((B, B, OFFS), "a is (2, 16, 32) and b is (2, 16, 32)"),
    "inner extents": ((A, B.mT, OFFS), "a is (8, 16) and b is (2, 32, 16)"),
    "wide offsets": ((A, B, OFFS.long()), "offs is (2,) of torch.int64"),
    "offsets in two dimensions": ((A, B, OFFS[None]), "offs is (1, 2) of torch.int32"),
    "too many offsets": ((A, B, OFFS.repeat(2)), "there are 4 offsets and 2 matrices in b"),
    "two dtypes": ((A, B.half(), OFFS), "a is of torch.float32 and b of torch.float16"),
    "complex": ((A.cfloat(), B.cfloat(), OFFS), "a is of torch.complex64"),
    "two devices": ((A.to("meta"), B, OFFS), "a is on meta and b on cpu"),
    "offsets elsewhere": ((A, B, OFFS.to("meta")), "a is on cpu and offs on meta"),
    "lists and offsets": (([A], [B[0]], OFFS), "there are offsets or scales for lists"),
    "one list": (([A], B[0]), "b has to be a list as the other operand is"),
    "lengths": (([A], [B[0], B[0]]), "a has 1 matrices and b has 2"),
    "a list's dimensions": (([A], [B]), "b[0] has to be a torch tensor of 2 dimensions, it is 3"),
    "a list's extents": (([A, A.T], [B[0], B[0]]), "a[1] is (16, 8) and b[1] is (16, 32)"),
    "a list's dtypes": (([A, A.half()], [B[0], B[0].half()]), "a[0] is of torch.float32 and a[1]"),
    "one scale": ((A, B, OFFS, A[:, 0], None), "scale_b is NoneType"),
    "a scale of halves": (
        (A, B, OFFS, A[:, 0].half(), B[:, 0]),
        "scale_a is (8,) of torch.float16",
    ),
    "a scale's shape": ((A, B, OFFS, A[:, 0], B[0, 0]), "scale_b is (32,) of torch.float32"),
    "scales of sums": ((A.T, A, OFFS, A[0], B[:, 0]), "there are scales for groups of the sum"),
    "the CPU": ((A, B, OFFS), "the operands are on the CPU"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    operands, says = REFUSED[what]
    scales = {
        name: operands[i] for i, name in ((3, "scale_a"), (4, "scale_b")) if len(operands) > 3
    }
    with pytest.raises(KernelArgumentError) as caught:
        grouped_matmul(*operands[:3], **scales)
    assert says in caught.value.what
    assert caught.value.where == "remora.kernels.grouped_matmul"


# --- code ------------------------------------------------------------------------------------


BYTES = {"i8": 1, "fp8e4nv": 1, "fp16": 2, "bf16": 2, "fp32": 4, "i32": 4, "fp64": 8}


def specialized(
    kind: str, dtype: str = "bf16", out: str = "bf16", *, turned: bool = False
) -> tuple[Any, Config]:
    size = BYTES[dtype]
    # Of the rows of all groups, and of the columns of each.
    of_rows, of_columns = (("*fp32", "i32", 1), ("*fp32", "i32", 1)) if size == 1 else (None, None)
    config = specialized_config(4096, size, BYTES[out])
    rows, part = config.block_m // 2, config.block_n // config.subtiles
    b = (config.block_n, config.block_k) if turned else (config.block_k, config.block_n)
    kinds = dict.fromkeys(("a_desc", "b_desc", "c_desc"))
    if kind == "rows":
        kinds["a_desc"] = f"tensordesc<{dtype}[{rows},{config.block_k}]>"
        kinds["b_desc"] = f"tensordesc<{dtype}[1,{b[0]},{b[1]}]>"
    if kind != "list":
        kinds["c_desc"] = f"tensordesc<{out}[{rows},{part}]>"
    compiled = build(
        gemm_grouped_specialized, "cuda:90", **kinds, a_ptr=f"*{dtype}", b_ptr=f"*{dtype}",
        c_ptr=f"*{out}", scale_a=of_rows, scale_b=of_columns,
        offs="*i64" if kind == "list" else "*i32", taken="*i32", GROUPS="i32", M="i32",
        N="i32:16", K="i32:16", stride_a="i32:16", stride_b="i32:16", **config.arguments(),
        SUBTILES=config.subtiles, A_BY_COLUMN=kind == "depth", B_BY_COLUMN=turned,
        ACC=tl.float32, KIND=kind, LATE=kind != "depth" and BYTES[out] <= 2, INDEX=tl.int32,
    )  # fmt: skip
    return compiled, config


@pytest.mark.parametrize(("kind", "dtype", "out", "turned", "shape"), [
    ("rows", "bf16", "bf16", False, "m64n256k16.f32.bf16.bf16"),
    ("rows", "fp8e4nv", "bf16", True, "m64n256k32.f32.e4m3.e4m3"),
    ("depth", "bf16", "fp32", False, "m64n256k16.f32.bf16.bf16"),
    ("list", "bf16", "bf16", True, "m64n256k16.f32.bf16.bf16"),
])  # fmt: skip
def test_hopper(kind: str, dtype: str, out: str, turned: bool, shape: str) -> None:
    compiled, config = specialized(kind, dtype, out, turned=turned)
    ptx = compiled.asm["ptx"]
    assert set(instructions(ptx, r"wgmma\.mma_async\.sync\.aligned\.(m\S+) ")) == {shape}
    # None but of scales.
    moved = conversions_in_loops(compiled.asm["ttgir"])
    assert not [line for line in moved if not re.search(r"-> tensor<\d+xf32, #ttg.slice", line)]
    # A consumer keeps a product in flight in its loop over the depth, whose operands TMA brings.
    inner = min((loop for loop in loops_of(ptx) if "wgmma.mma_async" in loop), key=len)
    assert instructions(inner, r"wgmma\.wait_group\.sync\.aligned\s+(\d)") == ["1"]
    assert not re.search(r"(ld|st)\.shared|stmatrix|ldmatrix|ld\.global", inner)
    # Descriptors are made where a group's end is not the tensor's.
    made = ptx.count("tensormap.cp_fenceproxy")
    assert made == {"rows": 2, "depth": 4, "list": 4}[kind]
    # Nothing is spilled, but for a few registers beside scales.
    assert resources(compiled.asm["cubin"])[1] <= (8 if dtype == "fp8e4nv" else 0)
    counted = of_specialized(config, BYTES[dtype], BYTES[out])
    small = SMALL + (SCALES if dtype == "fp8e4nv" else 0)
    assert counted < compiled.metadata.shared <= min(counted + small, LIMIT)


def plain(
    target: str, kind: str, dtype: str = "bf16", out: str = "bf16", *, aligned: bool = True
) -> tuple[Any, Config]:
    config, multiply, buffers = plain_config(target, 4096, BYTES[dtype], BYTES[out], kind)
    constants = config.arguments()
    del constants["STAGES"]
    number = "i32:16" if aligned else "i32"
    strides: dict[str, Any] = dict.fromkeys(
        ("stride_am", "stride_ak", "stride_bg", "stride_bk", "stride_bn"), number
    )
    if kind != "list":
        strides |= {"stride_am" if kind == "depth" else "stride_ak": 1, "stride_bn": 1}
    compiled = build(
        gemm_grouped, target, options={"num_warps": config.num_warps}, a_ptr=f"*{dtype}",
        b_ptr=f"*{dtype}", c_ptr=f"*{out}", scale_a=None, scale_b=None,
        offs="*i64" if kind == "list" else "*i32", GROUPS="i32",
        M=number, N=number, K=number, **strides, **constants, BUFFERS=buffers,
        ACC=tl.int32 if dtype == "i8" else tl.float32, KIND=kind, MULTIPLY=multiply,
        INDEX=tl.int32,
    )  # fmt: skip
    return compiled, config


@pytest.mark.parametrize(("kind", "dtype", "out"), [
    ("depth", "bf16", "bf16"), ("list", "bf16", "bf16"), ("list", "fp32", "fp32"),
    ("rows", "i8", "i32"),
])  # fmt: skip
def test_hopper_with_any_strides(kind: str, dtype: str, out: str) -> None:
    compiled, config = plain("cuda:90", kind, dtype, out, aligned=kind != "list")
    ptx = compiled.asm["ptx"]
    assert "wgmma.mma_async" in ptx
    assert ("cp.async.cg" in ptx) == (kind != "list")  # whose alignment nobody knows
    # Of a list each element has an address of its own: 214 are spilled on 3.9, 442 on 3.8.
    assert resources(compiled.asm["cubin"])[1] <= (500 if kind == "list" else 0)
    assert compiled.metadata.shared <= of_grouped(config, BYTES[dtype], BYTES[out])


@pytest.mark.parametrize("out", ["i8", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("dtype", ["i8", "bf16", "fp32"])
def test_what_is_launched_on_hopper_fits(dtype: str, out: str) -> None:
    """By the counts that compiled kernels keep, above."""
    size, out_size = BYTES[dtype], BYTES[out]
    for n in (8, 64, 128, 136, 256, 4096):
        plain, _, buffers = plain_config("cuda:90", n, size, out_size, "rows")
        assert plain.stages == buffers >= 3
        assert of_grouped(plain, size, out_size) <= LIMIT
        config = specialized_config(n, size, out_size)
        assert config.stages >= 2
        assert of_specialized(config, size, out_size) + SMALL + SCALES <= LIMIT


@pytest.mark.parametrize(("target", "kind"), [
    ("hip:gfx942", "rows"), ("hip:gfx942", "list"), ("hip:gfx950", "depth"),
])  # fmt: skip
def test_cdna(target: str, kind: str) -> None:
    text = plain(target, kind)[0].asm["amdgcn"]
    assert re.search(r"v_mfma_f32_\w+_bf16", text)
    assert "ds_read" in text
    assert "ds_write" in text
    assert _hip_resources(text)[1] == 0  # nothing is spilled


def test_a_table_is_written_by_one_kernel() -> None:
    """Whatever the numbers are, Triton sees integers of one kind."""
    for number in (0, 1, 16, 17, 2**31, 2**48 - 1):
        value = packed(number)
        assert value % 16 == 0
        assert 2**31 < value < 2**63
        assert (value & ((1 << 53) - 1)) >> 4 == number
    by_16 = [["tt.divisibility", 16]]
    source = ASTSource(
        fill_table, {"table": "*i64", "values": ("i64",) * FILLED}, {},
        {(0,): by_16, **{(1, i): by_16 for i in range(FILLED)}},
    )  # fmt: skip
    compiled = triton.compile(source, target=TARGETS["cuda:90"], options={"num_warps": 1})
    assert compiled.asm["ptx"].count("st.global") == FILLED
