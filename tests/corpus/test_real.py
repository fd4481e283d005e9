"""Kernels that others wrote, from packages as installed: a fixed sample of ``corpus/kernels.json``.

``corpus/run.py`` compiles each in a process of its own, because importing the
packages needs a torch that says it has a GPU; ``docs/corpus.md`` tells of the
whole list.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton

ROOT = Path(__file__).resolve().parents[2] / "corpus"
SAMPLE = [
    "conch.kernels.quantization.bitsandbytes.dequantize_blockwise:_dequantize_blockwise_kernel",
    "fla.modules.activations.ops:swiglu_fwd_kernel",
    "fla.ops.common.chunk_o:chunk_bwd_kernel_dv",
    "fla.ops.gla.chunk:chunk_gla_bwd_kernel_dA",
    "fla.ops.utils.cumsum:chunk_global_cumsum_vector_kernel",
    "fla.ops.utils.solve_tril:merge_16x16_to_32x32_inverse_kernel",
    "liger_kernel.ops.experimental.embedding:embedding_backward_kernel",
    "liger_kernel.ops.fused_linear_kl_div:_kl_div_kernel",
    "liger_kernel.ops.layer_norm:_layer_norm_backward_kernel",
    "liger_kernel.ops.rope:_triton_rope",
    "sageattention.quant_per_block:quant_per_block_int8_kernel",
    "torchnorm._triton:_layer_norm_fwd_kernel",
]
#: Name to number and entry.
LISTED = {
    f"{entry['module']}:{entry['kernel']}": (number, entry)
    for number, entry in enumerate(json.loads((ROOT / "kernels.json").read_text()))
}


class Worker:
    """``corpus/run.py`` at work: a line with a kernel's number in, a line with the result out."""

    def __init__(self, target: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "run.py"), "--work", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"},
        )

    def ask(self, index: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{index}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Worker]]:
    """A process for a target: importing the packages takes longer than compiling a kernel."""
    workers: dict[str, Worker] = {}
    yield workers
    for worker in workers.values():
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        worker.process.wait(60)


def test_the_list_is_long_and_names_what_it_lists() -> None:
    assert len(LISTED) >= 200
    assert len({entry["package"] for _, entry in LISTED.values()}) >= 4
    pinned = (ROOT.parent / "requirements" / "corpus-all.txt").read_text().splitlines()
    for _, entry in LISTED.values():
        assert f"{entry['package']}=={entry['version']}" in pinned
        assert entry["signature"]


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx950"])
@pytest.mark.parametrize("name", SAMPLE)
def test_code_is_the_stock_code(name: str, target: str, workers: dict[str, Worker]) -> None:
    index, _ = LISTED[name]
    if target not in workers:
        workers[target] = Worker(target)
    result = workers[target].ask(index)
    if result["outcome"] == "missing":
        pytest.skip(f"{result['detail']}: pip install --no-deps -r requirements/corpus.txt")
    if result["outcome"] in ("refused", "varies"):
        pytest.skip(f"stock Triton {triton.__version__}: {result['outcome']}: {result['detail']}")
    assert result["outcome"] == "same", result["detail"]
    assert result["places"] > 20
