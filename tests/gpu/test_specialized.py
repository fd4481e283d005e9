"""Kernels whose warps have tasks of their own, on a GPU, against float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

SHAPES = [(128, 256, 64), (512, 512, 512), (1000, 776, 328), (8, 8, 8), (4096, 4096, 1024)]


def relative_error(result: Any, expected: Any) -> float:
    difference = (result.double() - expected).abs().max()
    return float(difference / expected.abs().max().clamp_min(1e-30))


@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_matmul(dtype: str, schedule: str, shape: tuple[int, int, int], by_column: bool) -> None:
    from remora.kernels import matmul
    from remora.kernels.matmul import Config

    m, n, k = shape
    kind = getattr(torch, dtype)
    if kind.itemsize == 1:
        if not by_column:
            pytest.skip("the matrix unit reads fp8 with K contiguous")
        m, n, k = (-(-x // 16) * 16 for x in shape)
    torch.manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda").to(kind)
    b = torch.randn(n, k, device="cuda").to(kind).T
    if not by_column:
        b = b.contiguous()
    block_m = 128 if schedule == "cooperative" else 64
    config = Config(block_m, 256, 128 // kind.itemsize, 8, 3, 4, schedule, 2)
    result = matmul(a, b, config=config)
    expected = a.double() @ b.double()
    tolerance = {"float16": 1e-3, "bfloat16": 5e-3, "float8_e4m3fn": 3e-3}[dtype]
    assert relative_error(result, expected) < tolerance
    assert torch.equal(result, matmul(a, b, config=config))
