"""Compiles the products for a target that need not be there."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.compiler import ASTSource

from remora.analysis import resources
from remora.host.targets import gpu_target
from remora.kernels.gemm_cdna import gemm_direct, gemm_staged
from remora.kernels.gemm_hopper import gemm_pipelined
from remora.kernels.gemm_stock import gemm_stock
from remora.kernels.matmul import Config, cdna_config, hopper_config

#: Targets that the products are written for.
TARGETS = ("cuda:90", "hip:gfx942", "hip:gfx950")

# What shows that the hardware's own units are used: label, and the pattern of
# an instruction in the assembly.
_INSTRUCTIONS = {
    "cuda": {
        "wgmma": r"^\s*wgmma\.mma_async",
        "cp.async": r"^\s*(?:@%\w+ )?cp\.async\.c[ag]",
    },
    "hip": {
        "v_mfma": r"^\s*v_mfma",
        "ds_read": r"^\s*ds_read",
        "ds_write": r"^\s*ds_write",
    },
}


@dataclass
class Compiled:
    """A compiled kernel, looked at.

    seconds: of each compilation. shared: bytes of shared memory of a program.
    registers, spills: of a thread; None where no tool tells.
    instructions: how many of each kind the assembly holds.
    """

    seconds: list[float]
    shared: int
    instructions: dict[str, int]
    registers: int | None = None
    spills: int | None = None
    assembly: str = field(default="", repr=False)


def tlx_kernel(target: str) -> tuple[Any, Config]:
    """The TLX product for a target, and its configuration for large fp16 matrices."""
    if target.startswith("cuda"):
        return gemm_pipelined, hopper_config(8192, 8192, 8192, 2)
    arch = target.partition(":")[2]
    kernel = gemm_staged if arch == "gfx942" else gemm_direct
    return kernel, cdna_config(8192, 8192, 8192, 2, arch)


def stock_kernel(target: str) -> tuple[Any, Config]:
    """The same product in plain Triton, with tiles of the same size."""
    config = tlx_kernel(target)[1]
    if target.startswith("hip"):
        # Stock Triton 3.8.0 aborts the process (LLVM: "Bad machine code") when it
        # compiles this kernel with tiles of 256 x 256 for gfx950.
        config = replace(config, block_m=128, stages=2)
    return gemm_stock, config


def plain_arguments(kernel: Any) -> dict[str, Any]:
    """The arguments of a product of two matrices whose sums are stored as they are."""
    plain: dict[str, Any] = {
        "stride_ab": 0, "stride_bb": 0, "stride_cb": 0, "scale_a": None, "scale_b": None,
        "args": (), "EPILOGUE": None, "INDEX": tl.int32,
    }  # fmt: skip
    return {name: value for name, value in plain.items() if name in kernel.arg_names}


def source(kernel: Any, config: Config) -> ASTSource:
    """Row-major fp16 matrices whose pointers, extents and strides are multiples of 16."""
    constants: dict[str, Any] = {**config.arguments(), "ACC": tl.float32, **plain_arguments(kernel)}
    constants.update(stride_ak=1, stride_bn=1, stride_cn=1)
    signature = {
        name: "constexpr" if name in constants else "*fp16" if name.endswith("_ptr") else "i32"
        for name in kernel.arg_names
    }
    aligned: dict[Any, Any] = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(kernel.arg_names)
        if name not in constants
    }
    return ASTSource(kernel, signature, constants, aligned)


def compile_kernel(kernel: Any, config: Config, target: str) -> Compiled:
    """Compile once, past Triton's cache, and count what the assembly holds."""
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        started = time.perf_counter()
        compiled = triton.compile(
            source(kernel, config),
            target=gpu_target(target),
            options={"num_warps": config.num_warps},
        )
        seconds = time.perf_counter() - started
    backend = target.partition(":")[0]
    assembly = compiled.asm["ptx" if backend == "cuda" else "amdgcn"]
    counts = {
        label: len(re.findall(pattern, assembly, re.MULTILINE))
        for label, pattern in _INSTRUCTIONS[backend].items()
    }
    registers, spills = (
        resources(compiled.asm["cubin"]) if backend == "cuda" else _hip_resources(assembly)
    )
    return Compiled([seconds], compiled.metadata.shared, counts, registers, spills, assembly)


def _hip_resources(assembly: str) -> tuple[int | None, int | None]:
    """Vector registers of a lane, and how many were spilled, from the assembly's metadata."""

    def number(name: str) -> int | None:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        return int(found[1]) if found else None

    return number("vgpr_count"), number("vgpr_spill_count")
