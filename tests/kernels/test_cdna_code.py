"""The machine code of the kernels for CDNA, as a launch would compile them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from compiling import TARGETS
from triton.compiler import ASTSource

from remora.analysis import of_kernel
from remora.host import features
from remora.kernels.attention_cdna import attention_cdna
from remora.kernels.gemm_cdna import gemm_direct, gemm_staged
from remora.kernels.matmul import cdna_config

pytestmark = pytest.mark.skipif(
    not features().copies_to_lds, reason="copies to LDS from Triton 3.8 on"
)


def built(kernel: Any, target: str, warps: int, **given: Any) -> Any:
    """A kernel for tensors of less than 2 GiB, aligned, with rows of multiples of 16."""
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = given.get(parameter.name, "i32")
        if parameter.is_constexpr or not isinstance(value, str):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = value
        attributes[(index,)] = [["tt.divisibility", 16]] if value != "fp32" else []
        if value.startswith("*"):
            attributes[(index,)].append(["tt.pointer_range", 32])
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": warps})


def loop_of(assembly: str) -> str:
    """The loop with the most products: from its label to the branch back."""
    labels = {m[1]: m.start() for m in re.finditer(r"^(\.LBB\d+_\d+):", assembly, re.MULTILINE)}
    branches = re.finditer(r"s_cbranch_\w+ (\.LBB\d+_\d+)", assembly)
    bodies = [assembly[labels[b[1]] : b.start()] for b in branches if labels[b[1]] < b.start()]
    return max(bodies, key=lambda body: body.count("v_mfma"))


def product(target: str, dtype: str = "fp16", contiguous: str = "stride_bn") -> Any:
    size = {"fp16": 2, "fp32": 4, "i8": 1}[dtype]
    config = cdna_config(8192, 8192, 8192, size, target[4:])
    kernel = gemm_staged if target == "hip:gfx942" else gemm_direct
    out = "i32" if dtype == "i8" else dtype
    return built(
        kernel, target, config.num_warps, a_ptr=f"*{dtype}", b_ptr=f"*{dtype}", c_ptr=f"*{out}",
        stride_ak=1, stride_cn=1, scale_a=None, scale_b=None, args=(), EPILOGUE=None,
        ACC=tl.int32 if dtype == "i8" else tl.float32, INDEX=tl.int32, **config.arguments(),
        **{contiguous: 1},
    )  # fmt: skip


def spilled(compiled: Any) -> int:
    return int(re.findall(r"\.vgpr_spill_count:\s+(\d+)", compiled.asm["amdgcn"])[0])


def test_the_product_for_cdna_4() -> None:
    compiled = product("hip:gfx950")
    loop = loop_of(compiled.asm["amdgcn"])
    # 256 x 256 x 32 by 8 warps: 64 MFMA of 32x32x16 x 4 a warp; 2 x 16 KiB in 16 bytes a lane.
    assert loop.count("v_mfma_f32_32x32x16_f16") == 16
    assert len(re.findall(r"buffer_load_dwordx4 .* lds", loop)) == 4
    assert loop.count("ds_read_b128") == 8
    assert loop.count("ds_read_b64_tr_b16") == 8
    assert "ds_write" not in loop
    assert "bpermute" not in loop
    # One tile, 4 loads, stays in flight.
    assert re.findall(r"vmcnt\((\d+)\)", loop) == ["4"]
    assert re.findall(r"s_setprio (\d)", loop) == ["1", "0"]
    assert spilled(compiled) == 0


def test_the_product_for_cdna_3() -> None:
    compiled = product("hip:gfx942")
    loop = loop_of(compiled.asm["amdgcn"])
    assert loop.count("v_mfma_f32_32x32x8_f16") == 32
    assert len(re.findall(r"buffer_load_dwordx4 ", loop)) == 4
    assert "lds" not in re.sub(r";.*", "", loop)
    assert loop.count("ds_write") > 0
    assert "ds_read_u16" not in loop  # both operands are read as the matrix unit takes them
    assert spilled(compiled) == 0


def test_columns_of_b_are_read_as_they_are_stored() -> None:
    """Loads that go round the loop in registers say in which order the buffer is filled."""
    found = of_kernel(product("hip:gfx942", "i8", "stride_bk"))
    loop = max(found.loops, key=lambda one: one.flops)
    assert min(map(int, loop.widths["shared read"])) >= 8  # bytes of a lane
    assert loop.conflicts == loop.unknown == 0
    assert (loop.bound, found.spills) == ("matrix", 0)


def test_fp32_for_cdna_4_leaves_registers() -> None:
    assert spilled(product("hip:gfx950", "fp32")) == 0


def test_attention_for_cdna_4() -> None:
    names = {f"stride_{x}d": 1 for x in "qkvo"}
    compiled = built(
        attention_cdna, "hip:gfx950", 8, q="*fp16", k="*fp16", v="*fp16", o="*fp16",
        sums="*fp32", scale="fp32", GROUP=1, DIM=128, BLOCK_M=256, BLOCK_N=64, STAGES=3,
        DIRECT=True, **names,
    )  # fmt: skip
    loop = loop_of(compiled.asm["amdgcn"])
    # Of a warp: 32 rows, 64 columns, 128 dimensions, twice.
    assert loop.count("v_mfma_f32_32x32x16_f16") == 32
    assert len(re.findall(r"buffer_load_dwordx4 .* lds", loop)) == 4
    assert "ds_write" not in loop  # weights go to the next product in their registers
    assert "bpermute" not in loop
    assert sorted(set(re.findall(r"s_setprio (\d)", loop))) == ["0", "1"]
    assert spilled(compiled) == 0
