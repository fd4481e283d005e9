"""The product for Blackwell: its code without a GPU, its meaning on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton.language as tl
from kernels.matmul_cases import bias_gelu_residual
from launching import standing_in
from tlx.building import build, conversions_in_loops, instructions

import remora
import remora.tlx as tlx
from remora.analysis import of_kernel, resources
from remora.errors import KernelArgumentError
from remora.host import shared_memory
from remora.host.targets import gpu_target
from remora.kernels import matmul
from remora.kernels.config import Config
from remora.kernels.gemm_blackwell import gemm_blackwell
from remora.kernels.gemm_stock import gemm_stock
from remora.kernels.matmul import blackwell_config
from remora.kernels.offline import plain_arguments

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp8e4nv": 1}


def compiled(dtype: str, by_column: bool, pair: bool) -> Any:
    """128 x 256 tiles, as many stages as fit."""
    depth = 128 // BYTES[dtype]
    columns = 128 if pair else 256
    b = [columns, depth] if by_column else [depth, columns]
    result = "fp16" if dtype == "fp8e4nv" else dtype
    config = blackwell_config(4096 if pair else 128, BYTES[dtype], 4)
    with remora.use(tlx.in_clusters((*config.cluster, 1))):
        return build(
            gemm_blackwell, "cuda:100", a_desc=f"tensordesc<{dtype}[128,{depth}]>",
            b_desc=f"tensordesc<{dtype}{b}>".replace(" ", ""),
            c=f"tensordesc<{result}[128,32]>", M="i32", N="i32", K="i32", stride_cm="i32",
            stride_cn=1, **plain_arguments(gemm_blackwell), **config.arguments(),
            SUBTILES=config.subtiles, A_BY_COLUMN=False, B_BY_COLUMN=by_column, A_BATCHED=False,
            B_BATCHED=False, C_DESCRIBED=True, ACC=tl.float32, PAIR=config.cluster == (2, 1),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "by_column", "pair", "kind"),
    [("fp16", False, False, "f16"), ("fp32", True, False, "tf32"), ("fp16", False, True, "f16")],
)
def test_each_task_does_its_part(dtype: str, by_column: bool, pair: bool, kind: str) -> None:
    kernel = compiled(dtype, by_column, pair)
    text = kernel.asm["ptx"]
    group = 2 if pair else 1
    assert len(instructions(text, rf"tcgen05\.mma\.cta_group::{group}\.kind::{kind} ")) == 4
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
    assert (multiply.bound, multiply.cycles["matrix"]) == ("matrix", 512)
    # Of a pair the first CTA waits for the other's operands, too.
    assert multiply.waits == ["mbarrier"] * group
    # Each CTA of a pair brings half of B.
    assert copy.global_ == {"read": (128 + 256 // group) * 128}
    assert multiply.cycles["shared memory"] == (128 + 256 // group) * 128 / 128
    # The stores of a tile: without conflicts of banks, each part's store in flight with the next.
    (store,) = (loop for loop in found.loops if loop.shared.get("written"))
    assert store.conflicts == store.unknown == 0
    assert store.waits.count("bulk stores <= 1") == 8
    assert "bulk stores <= 0" not in store.waits


# --- what matmul launches -------------------------------------------------------------------------


def matrix(*shape: int, dtype: Any = torch.float16, by_column: bool = False) -> Any:
    """On no device."""
    if by_column:
        shape = (*shape[:-2], shape[-1], shape[-2])
    made = torch.empty(shape, dtype=dtype, device="meta")
    return made.mT if by_column else made


def launch(target: str, *operands: Any, **options: Any) -> list[Any]:
    """What ``matmul`` compiles for a GPU that is not there, of its kernels for Blackwell."""
    sys.modules["remora.kernels.matmul"]._KNOWN.clear()
    clustered = vars(gemm_blackwell).get("remora_clusters", (None, {}))[1]
    for kernel in (gemm_stock, gemm_blackwell, *clustered.values()):
        kernel.device_caches.clear()
    with standing_in(gpu_target(target)):
        matmul(*operands, **options)
        clustered = vars(gemm_blackwell).get("remora_clusters", (None, {}))[1]
        return [
            compiled
            for kernel in (gemm_stock, gemm_blackwell, *clustered.values())
            for cache, *_ in kernel.device_caches.values()
            for compiled in cache.values()
        ]


FP8, INT8, FP32 = torch.float8_e4m3fn, torch.int8, torch.float32
NUMBERS = matrix(512, dtype=FP32)


@pytest.mark.parametrize(("a", "b", "options", "kind"), [
    (matrix(128, 256), matrix(256, 512), {}, "1.kind::f16"),
    (matrix(136, 256, by_column=True), matrix(3, 256, 512), {}, "2.kind::f16"),
    (matrix(2, 512, 256, dtype=FP8), matrix(2, 256, 512, dtype=FP8),
     {"scale_a": matrix(2, 512, dtype=FP32), "scale_b": NUMBERS[:1]}, "2.kind::f8f6f4"),
    (matrix(512, 256, dtype=INT8), matrix(256, 511, dtype=INT8, by_column=True), {}, "2.kind::i8"),
    (matrix(128, 256, dtype=FP32), matrix(256, 512, dtype=FP32, by_column=True),
     {"scale_a": NUMBERS[:1]}, "1.kind::tf32"),
    (matrix(2, 512, 256), matrix(2, 256, 512),
     {"epilogue": bias_gelu_residual,
      "epilogue_args": (NUMBERS, matrix(2, 512, 512), 512, tl.constexpr(0.5))}, "2.kind::f16"),
])  # fmt: skip
def test_matmul_takes_it(a: Any, b: Any, options: dict[str, Any], kind: str) -> None:
    """Rows and columns, batches, scales, epilogues, results that TMA does not store."""
    (found,) = launch("cuda:100", a, b, **options)
    ptx = found.asm["ptx"]
    assert found.name == "gemm_blackwell"
    assert len(instructions(ptx, rf"tcgen05\.mma\.cta_group::{kind} ")) == 4
    # Operands and, where its rows are multiples of 16 bytes, the result are copied by TMA.
    dims = {f"{x.dim()}d" for x in (a, b)}
    assert set(instructions(ptx, r"cp\.async\.bulk\.tensor\.(\dd)\.shared")) == dims
    by_tma = "cp.async.bulk.tensor" in " ".join(instructions(ptx, r"cp\.async\S+global\.shared"))
    assert by_tma == (b.shape[-1] % 8 == 0)
    assert resources(found.asm["cubin"])[1] == 0
    assert found.metadata.shared <= shared_memory(gpu_target("cuda:100"))


@pytest.mark.parametrize(("a", "b", "target", "unit"), [
    (matrix(256, 255), matrix(255, 256), "cuda:100", "tcgen05.mma.cta_group::1.kind::f16"),
    (matrix(2, 256, 0), matrix(0, 256), "cuda:100", "tcgen05.mma.cta_group::1.kind::f16"),
    (matrix(256, 256, dtype=FP32), matrix(256, 256, dtype=FP32), "cuda:100",
     "tcgen05.mma.cta_group::1.kind::tf32"),
    (matrix(256, 256, dtype=INT8), matrix(256, 256, dtype=INT8), "cuda:103",
     "mma.sync.aligned.m16n8k32"),
])  # fmt: skip
def test_plain_triton_takes_the_rest(a: Any, b: Any, target: str, unit: str) -> None:
    """Rows that TMA cannot copy, no sums, fp32 that would have to be turned, int8 on sm_103."""
    (found,) = launch(target, a, b)
    assert found.name == "gemm_stock"
    assert unit in found.asm["ptx"]
    assert resources(found.asm["cubin"])[1] == 0


def test_nothing_is_launched_for_no_elements() -> None:
    assert not launch("cuda:100", matrix(0, 64), matrix(64, 64))
    assert not launch("cuda:100", matrix(0, 64, 64), matrix(64, 64))


@pytest.mark.parametrize(("target", "schedule"), [
    ("cuda:100", "cooperative"), ("cuda:90", "blackwell"), ("hip:gfx950", "pingpong"),
])  # fmt: skip
def test_a_schedule_of_another_target(target: str, schedule: str) -> None:
    config = Config(128, 256, 64, 8, 3, 4, schedule, 2)
    with pytest.raises(KernelArgumentError, match=target) as caught:
        launch(target, matrix(256, 256), matrix(256, 256), config=config)
    assert "'pipelined'" in caught.value.hint


def test_what_a_given_schedule_does_not_take() -> None:
    with pytest.raises(KernelArgumentError, match="b cannot be copied by descriptor"):
        launch("cuda:100", matrix(8, 64), matrix(64, 9), config=blackwell_config(8, 2, 2))


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
