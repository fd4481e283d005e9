"""Attention for Blackwell: its code without a GPU, its meaning on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tlx.building import RELEASE, build, conversions_in_loops, instructions, loops_of
from triton import knobs

from remora.host import shared_memory
from remora.host.targets import gpu_target
from remora.kernels.attention_blackwell import attention_blackwell
from remora.kernels.attention_elsewhere import blackwell_stages


def compiled(dim: int, causal: bool) -> Any:
    block = f"tensordesc<fp16[1,1,128,{dim}]>"
    return build(
        attention_blackwell, "cuda:100", q_desc=block, k_desc=block, v_desc=block, o_desc=block,
        sums="*fp32", scale="fp32", HEADS="i32", LENGTH_Q="i32:16", LENGTH_K="i32:16",
        shift="i32", GROUP=1, DIM=dim, BLOCK_N=128, STAGES=blackwell_stages(dim), CAUSAL=causal,
        TAIL=causal, TASKS=True,
    )  # fmt: skip


def stack_of(cubin: bytes) -> int:
    """Bytes of a thread's stack: what is spilled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"STACK:(\d+)", text)[-1])


@pytest.mark.skipif(RELEASE < (3, 8), reason="Triton 3.7 lacks parts of tensor memory")
@pytest.mark.parametrize(("dim", "causal"), [(64, False), (128, True)])
def test_each_task_does_its_part(dim: int, causal: bool) -> None:
    kernel = compiled(dim, causal)
    ptx = kernel.asm["ptx"]
    assert kernel.metadata.tmem_size == 512  # 256 of scores and weights; twice DIM of sums
    assert kernel.metadata.shared <= shared_memory(gpu_target("cuda:100"))
    # Before the loop two products of scores, in it two of each kind, after it two of sums.
    assert len(instructions(ptx, r"tcgen05\.mma\.cta_group::1\.kind::f16")) == 4 * (8 + dim // 16)
    assert not conversions_in_loops(kernel.asm["ttgir"])
    # The author's registers, and hardly any that do not do.
    registers = instructions(ptx, r"setmaxnreg\.inc\.sync\.aligned\.u32\s+(\d+)")
    assert registers.count("200") == 2
    assert stack_of(kernel.asm["cubin"]) <= 64
    # What is in tensor memory has been read, or written, before the next task hears of it.
    for loop in loops_of(ptx):
        happens = r"tcgen05\.(?:ld|st)\.|tcgen05\.wait::\w+|mbarrier\.arrive\.shared"
        for before, after in pairwise(instructions(loop, happens)):
            assert not (re.match(r"tcgen05\.(ld|st)\.", before) and after.startswith("mbarrier"))


def test_the_meaning() -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         here / "meaning_attention_blackwell.py"],
        cwd=here.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(r"\d+ passed", done.stdout)
