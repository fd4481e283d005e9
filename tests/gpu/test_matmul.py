"""``remora.kernels.matmul`` on a GPU, against float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

# Relative error that the operands' and the result's precision allow: sums are
# in fp32; the matrix unit keeps fewer bits of fp8 sums (PTX ISA, wgmma).
TOLERANCE = {
    "float16": 1e-3,
    "bfloat16": 5e-3,
    "float32": 1e-3,
    "float8_e4m3fn": 3e-3,
    "float8_e5m2": 3e-3,
    "int8": 0.0,
}
SHAPES = [
    (128, 256, 64),
    (512, 512, 512),
    (1000, 777, 333),
    (1024, 1000, 1000),
    (64, 8192, 512),
    (8192, 64, 512),
    (1, 1, 1),
    (257, 129, 65),
    (16, 4096, 4096),
    (2048, 2048, 8192),
]


def matrix(rows: int, columns: int, dtype: str, *, transposed: bool) -> Any:
    """A random matrix, stored by columns if ``transposed``."""
    shape = (columns, rows) if transposed else (rows, columns)
    kind = getattr(torch, dtype)
    if dtype == "int8":
        values = torch.randint(-9, 9, shape, device="cuda", dtype=kind)
    else:
        values = torch.randn(shape, device="cuda").to(kind)
    return values.T if transposed else values


@pytest.mark.parametrize("order", ["row-row", "row-column", "column-row", "column-column"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_against_float64(dtype: str, shape: tuple[int, int, int], order: str) -> None:
    from remora.kernels import matmul

    m, n, k = shape
    by_column = [o == "column" for o in order.split("-")]
    torch.manual_seed(m + n + k)
    a = matrix(m, k, dtype, transposed=by_column[0])
    b = matrix(k, n, dtype, transposed=by_column[1])
    expected = a.double() @ b.double()
    for _ in range(3):  # a race would not show every time
        c = matmul(a, b)
        assert c.shape == (m, n)
        difference = (c.double() - expected).norm().item()
        assert difference <= TOLERANCE[dtype] * expected.norm().item()


def test_out_dtype_and_empty() -> None:
    from remora.kernels import matmul

    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    assert matmul(a, b, out_dtype=torch.float32).dtype == torch.float32
    assert matmul(a[:0], b).shape == (0, 64)
    assert not matmul(a[:, :0], b[:0]).any()


def test_the_kernel_of_somebody_else_in_between() -> None:
    """A kernel without a word of TLX launches and is right while TLX is in force."""
    import triton

    from remora.kernels.gemm_stock import gemm_stock
    from remora.kernels.matmul import hopper_config

    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    config = hopper_config(256, 256, 256, 2)
    gemm_stock[(2,)](
        a, b, c, 256, 256, 256, *a.stride(), *b.stride(), *c.stride(), **config.arguments(),
        ACC=triton.language.float32, num_warps=config.num_warps,
    )  # fmt: skip
    expected = a.double() @ b.double()
    assert (c.double() - expected).norm() <= 1e-3 * expected.norm()
