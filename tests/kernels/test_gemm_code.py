"""The products' machine code: what the kernels say is what the hardware gets."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton.language as tl
from kernels.shared_memory import LIMIT, of_pipelined
from tlx.building import build, instructions, waits

from remora.host import features
from remora.kernels.gemm_cdna import gemm_direct, gemm_staged
from remora.kernels.gemm_hopper import gemm_pipelined
from remora.kernels.matmul import cdna_config, hopper_config
from remora.kernels.offline import plain_arguments

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp8e4nv": 1, "fp8e5": 1, "fp8e4b8": 1, "i8": 1}


def compiled(
    target: str, dtype: str, *, columns: str = "", aligned: bool = True, small: bool = False
) -> Any:
    """The product as ``matmul`` would launch it.

    columns: the operands that are column-major. aligned: M, N, K and strides
    are multiples of 16.
    """
    size = BYTES[dtype]
    extent = 64 if small else 4096
    if target == "cuda:90":
        kernel, config = gemm_pipelined, hopper_config(extent, extent, 4096, size)
    else:
        kernel = gemm_staged if target == "hip:gfx942" else gemm_direct
        config = cdna_config(extent, extent, 4096, size, target[4:])
    integers = dtype == "i8"
    number = "i32:16" if aligned else "i32"
    # As a launch has it, a stride of 1 is a constant: Triton specialises on it.
    strides: dict[str, Any] = {
        "stride_am": number, "stride_ak": number, "stride_bk": number, "stride_bn": number,
        "stride_cm": number,
        "stride_am" if "a" in columns else "stride_ak": 1,
        "stride_bk" if "b" in columns else "stride_bn": 1,
        "stride_cn": 1,
    }  # fmt: skip
    return build(
        kernel, target, options={"num_warps": config.num_warps},
        a_ptr=f"*{dtype}", b_ptr=f"*{dtype}", c_ptr="*i32" if integers else "*fp16",
        M=number, N=number, K=number, ACC=tl.int32 if integers else tl.float32,
        **strides, **config.arguments(), **plain_arguments(kernel),
    )  # fmt: skip


def inner_loop(ttgir: str) -> str:
    """The loop over K."""
    (loop,) = re.findall(r"scf\.for .*?\n    \}", ttgir, re.DOTALL)
    return str(loop)


WGMMA = {
    "fp16": "f32.f16.f16", "bf16": "f32.bf16.bf16", "fp32": "f32.tf32.tf32",
    "fp8e4nv": "f32.e4m3.e4m3", "fp8e5": "f32.e5m2.e5m2", "i8": "s32.s8.s8",
}  # fmt: skip


@pytest.mark.parametrize("dtype", WGMMA)
def test_hopper(dtype: str) -> None:
    result = compiled("cuda:90", dtype, columns="b")
    text = result.asm["ptx"]
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(\S+)", text)
    assert {types for *_, types in products} == {WGMMA[dtype]}
    assert {depth for _, depth, _ in products} == {str(32 // BYTES[dtype])}
    config = hopper_config(4096, 4096, 4096, BYTES[dtype])
    out_size = 4 if dtype == "i8" else 2
    assert result.metadata.shared <= of_pipelined(config, BYTES[dtype], out_size) <= LIMIT
    stages = config.stages
    assert waits(result) == [stages - 2, 0]
    assert re.findall(r"wgmma\.wait_group\S*\s+(\d+)", text) == ["1", "0"]
    assert text.count("cp.async.commit_group") == stages
    copies = re.findall(r"cp\.async\.c([ag])\.\S+\s.*?, (0x[0-9a-f]+)", text)
    assert set(copies) == {("g", "0x10")}
    loop = inner_loop(result.asm["ttgir"])
    assert loop.count("async_copy_global_to_local") == 2
    assert "convert_layout" not in loop
    assert "local_load" not in loop
    # Nothing but the copy engine and the matrix unit touches the operands.
    assert "ld.global" not in text


@pytest.mark.parametrize("columns", ["", "a", "b", "ab"])
def test_hopper_takes_either_order(columns: str) -> None:
    result = compiled("cuda:90", "fp16", columns=columns, small=True)
    assert waits(result)[1:] == [0]
    assert "convert_layout" not in inner_loop(result.asm["ttgir"])
    assert set(re.findall(r"cp\.async\.c[ag]\.\S+\s.*?, (0x\w+)", result.asm["ptx"])) == {"0x10"}
    assert "ld.global" not in result.asm["ptx"]


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_hopper_without_alignment(dtype: str) -> None:
    result = compiled("cuda:90", dtype, aligned=False, small=True)
    assert waits(result)[1:] == [0]
    # What is not aligned to the 4 bytes of the copy engine goes through registers.
    assert ("ld.global" in result.asm["ptx"]) == (dtype == "fp16")


@pytest.mark.parametrize(("target", "dtype", "instruction"), [
    ("hip:gfx942", "fp16", "_f16 "),
    ("hip:gfx942", "bf16", "_bf16 "),
    ("hip:gfx942", "fp32", "f32 "),
    ("hip:gfx942", "i8", "_i8 "),
    ("hip:gfx942", "fp8e4b8", "_fp8_fp8 "),
    ("hip:gfx950", "fp16", "_f16 "),
    ("hip:gfx950", "fp8e4nv", "_f8f6f4 |_fp8_fp8 "),
    ("hip:gfx950", "fp8e5", "_f8f6f4 |_bf8_bf8 "),
])  # fmt: skip
def test_cdna(target: str, dtype: str, instruction: str) -> None:
    result = compiled(target, dtype, columns="b", small=True)
    text = result.asm["amdgcn"]
    assert re.search(rf"v_mfma_\w*(?:{instruction})", text)
    assert "ds_read" in text
    loop = inner_loop(result.asm["ttgir"])
    assert loop.count("ttg.local_load") == 2
    assert "convert_layout" not in loop
    direct = target == "hip:gfx950" and features().copies_to_lds
    assert loop.count("ttg.local_store") == (0 if direct else 2)
    assert loop.count("async_copy_global_to_local") == (2 if direct else 0)
    assert ("global_load_lds_dwordx4" in text) == direct
    assert direct or "ds_write" in text
    assert "s_setprio 1" in text


@pytest.mark.parametrize("columns", ["", "ab"])
def test_cdna_takes_either_order(columns: str) -> None:
    result = compiled("hip:gfx942", "fp16", columns=columns, small=True)
    assert "v_mfma" in result.asm["amdgcn"]
    assert "convert_layout" not in inner_loop(result.asm["ttgir"])


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp8e4nv"])
def test_warp_groups_wait_for_each_other(dtype: str) -> None:
    """After a wait for products no group writes what another's product may still read.

    Measured on an H200 with Triton 3.8.0, before: wrong results where the
    conversion of the result used the operands' memory.
    """
    ptx = compiled("cuda:90", dtype).asm["ptx"]
    pattern = r"wgmma\.wait_group|bar\.sync|st\.shared|stmatrix|cp\.async\.c[ag]"
    touching = instructions(ptx, pattern)
    waits_for_products = [i for i, name in enumerate(touching) if name == "wgmma.wait_group"]
    assert len(waits_for_products) == 2
    assert all(touching[i + 1] == "bar.sync" for i in waits_for_products)
