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
import triton
from tlx.building import build, conversions_in_loops, instructions

import remora
import remora.tlx as tlx
from remora.analysis import of_kernel
from remora.errors import KernelArgumentError
from remora.host import shared_memory
from remora.host.targets import gpu_target
from remora.kernels.gemm_blackwell import gemm_blackwell, launch_blackwell
from remora.kernels.matmul import blackwell_config
from remora.kernels.operands import Product, product_of

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
            c_desc=f"tensordesc<{result}[128,32]>", M="i32", N="i32", K="i32",
            **config.arguments(), SUBTILES=config.subtiles, A_BY_COLUMN=False,
            B_BY_COLUMN=by_column, PAIR=config.cluster == (2, 1),
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


def meta(m: int, n: int, k: int, dtype: Any = torch.float16, batch: Any = ()) -> Product:
    """A product on no device."""
    a = torch.empty(*batch, m, k, dtype=dtype, device="meta")
    b = torch.empty(*batch, n, k, dtype=dtype, device="meta").mT
    return product_of(a, b, False, None)


class Blackwell:
    """Stands in for the driver of a GPU that is not there."""

    def get_current_target(self) -> Any:
        return gpu_target("cuda:100")


@pytest.mark.parametrize(("m", "cluster"), [(128, (1, 1)), (129, (2, 1))])
def test_matmul_takes_it(m: int, cluster: tuple[int, int], monkeypatch: Any) -> None:
    module = sys.modules["remora.kernels.matmul"]
    monkeypatch.setattr(triton.runtime.driver, "_active", Blackwell())
    kernel, config = module._choose(meta(m, 256, 64), None, None)
    assert kernel is gemm_blackwell
    assert (config.schedule, config.cluster) == ("blackwell", cluster)


@pytest.mark.parametrize(("product", "is_plain", "what"), [
    (meta(128, 128, 64), False, "no epilogue"),
    (meta(128, 128, 64, batch=(2,)), True, "no batches"),
    (meta(128, 128, 64, torch.int8), True, "no int8"),
    (meta(128, 128, 63), True, "16 bytes apart"),
    (meta(128, 128, 0), True, "K is 0"),
])  # fmt: skip
def test_what_it_does_not_take(product: Product, is_plain: bool, what: str) -> None:
    with pytest.raises(KernelArgumentError, match=what) as caught:
        launch_blackwell(product, blackwell_config(128, 2, 2), is_plain)
    assert "gemm_stock" in caught.value.hint


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
