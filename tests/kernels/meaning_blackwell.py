"""The products for Blackwell under the reference meaning: run by ``test_blackwell_code.py``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from kernels import matmul_cases as cases

from remora.kernels.config import Config
from remora.kernels.gemm_stock import gemm_stock

assert triton.knobs.runtime.interpret

HALF = Config(128, 64, 64, 2, 3, 4, "blackwell", 2)
BYTE = Config(128, 64, 128, 2, 2, 4, "blackwell", 2)


@pytest.mark.parametrize(("dtype", "config"), [
    ("float16", HALF), ("bfloat16", HALF), ("float8_e5m2", BYTE), ("int8", BYTE),
])  # fmt: skip
@pytest.mark.parametrize("a_by_column", [False, True])
def test_any_extent_and_order(dtype: str, config: Config, a_by_column: bool) -> None:
    for (m, n, k), b_by_column in (((256, 128, 128), False), ((208, 80, 144), True)):
        a = cases.matrix((m, k), dtype, "cpu", by_column=a_by_column)
        b = cases.matrix((k, n), dtype, "cpu", by_column=b_by_column)
        cases.agrees(a, b, config=config)


def test_fp32_and_results_that_tma_does_not_store() -> None:
    config = Config(128, 64, 32, 2, 3, 4, "blackwell", 2)
    a = cases.matrix((136, 72), "float32", "cpu")
    b = cases.matrix((72, 51), "float32", "cpu", by_column=True)
    cases.agrees(a, b, config=config)


def test_batches() -> None:
    cases.in_batches(24, 40, 64, "cpu", ("float16", "bfloat16"), config=HALF)


def test_epilogues() -> None:
    cases.with_epilogue(136, 72, 32, "cpu", config=HALF)
    cases.with_epilogue(40, 70, 32, "cpu", batch=2, b_by_column=True, config=HALF)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_scales(dtype: str) -> None:
    cases.with_scales(dtype, 136, 70, 48, "cpu", config=BYTE)
    cases.with_scales(dtype, 20, 40, 48, "cpu", batch=2, config=BYTE)


def test_more_of_k_than_the_stages_hold() -> None:
    a, b = torch.randn(200, 328).half(), torch.randn(328, 72).half()
    for cluster in ((1, 1), (2, 1)):
        cases.agrees(a, b, config=replace(HALF, cluster=cluster))


def test_plain_triton(monkeypatch: Any) -> None:
    """What is launched where the copy engine cannot take the operands."""
    monkeypatch.setattr(sys.modules["remora.kernels.matmul"], "gemm_pipelined", gemm_stock)
    cases.of_nothing("cpu")
    cases.of_any_strides("cpu")
    cases.in_batches(20, 40, 24, "cpu")
    cases.with_epilogue(40, 70, 33, "cpu", batch=2)
    cases.with_scales("int8", 20, 40, 48, "cpu", batch=2)
