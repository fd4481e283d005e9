"""The product for Blackwell: its code without a GPU, its meaning on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tlx.building import build, conversions_in_loops, instructions

from remora.analysis import of_kernel
from remora.host import shared_memory
from remora.host.targets import gpu_target
from remora.kernels.gemm_blackwell import gemm_blackwell

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp8e4nv": 1}


def compiled(dtype: str, by_column: bool) -> Any:
    """128 x 256 tiles, as many stages as fit."""
    depth = 128 // BYTES[dtype]
    b = [256, depth] if by_column else [depth, 256]
    result = "fp16" if dtype == "fp8e4nv" else dtype
    return build(
        gemm_blackwell, "cuda:100", a_desc=f"tensordesc<{dtype}[128,{depth}]>",
        b_desc=f"tensordesc<{dtype}{b}>".replace(" ", ""), c_desc=f"tensordesc<{result}[128,32]>",
        M="i32", N="i32", K="i32", BLOCK_M=128, BLOCK_N=256, BLOCK_K=depth, GROUP_M=8, STAGES=4,
        SUBTILES=8, B_BY_COLUMN=by_column, PAIR=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "by_column", "kind", "cycles"),
    [("fp16", False, "f16", 512), ("fp32", True, "tf32", 512)],
)
def test_each_task_does_its_part(dtype: str, by_column: bool, kind: str, cycles: int) -> None:
    kernel = compiled(dtype, by_column)
    text = kernel.asm["ptx"]
    assert len(instructions(text, rf"tcgen05\.mma\.cta_group::1\.kind::{kind} ")) == 4
    # All of tensor memory: two sums of 256 columns.
    assert instructions(text, r"tcgen05\.alloc\.\S+ \[\S+\], (\d+);") == ["512"]
    # A stage is free, and a sum is done, when the unit says so.
    assert len(instructions(text, r"tcgen05\.commit")) == 2
    assert len(instructions(text, r"clusterlaunchcontrol\.try_cancel")) == 1
    assert len(instructions(text, r"query_cancel\.is_canceled")) == 3
    assert not conversions_in_loops(kernel.asm["ttgir"])
    assert kernel.metadata.shared <= shared_memory(gpu_target("cuda:100"))
    found = of_kernel(kernel)
    assert not found.spills
    products = [loop for loop in found.loops if loop.flops]
    copies = [loop for loop in found.loops if loop.global_.get("read")]
    (multiply,), (copy,) = products, copies
    assert (multiply.bound, multiply.cycles["matrix"]) == ("matrix", cycles)
    assert multiply.waits == ["mbarrier"]
    assert copy.global_ == {"read": (128 + 256) * 128}
    # The stores of a tile: without conflicts of banks, each part's store in flight with the next.
    (store,) = (loop for loop in found.loops if loop.shared.get("written"))
    assert store.conflicts == store.unknown == 0
    assert store.waits.count("bulk stores <= 1") == 8
    assert "bulk stores <= 0" not in store.waits


def test_the_meaning() -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         here / "meaning_blackwell.py"],
        cwd=here.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(r"\d+ passed", done.stdout)
