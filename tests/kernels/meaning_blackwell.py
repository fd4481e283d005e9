"""The product for Blackwell under the reference meaning: run by ``test_blackwell_code.py``."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.kernels.gemm_blackwell import gemm_blackwell

assert triton.knobs.runtime.interpret


def product(
    a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, stages: int = 2, pair: bool = False
) -> torch.Tensor:
    by_column = b.stride(0) == 1
    (m, k), n = a.shape, b.shape[1]
    depth = 128 // a.element_size()
    c = torch.full((m, n), torch.nan).to(dtype)
    ctas = 2 if pair else 1
    columns = 64 // ctas
    b_block = [columns, depth] if by_column else [depth, columns]
    gemm_blackwell[(triton.cdiv(m, 128 * ctas) * triton.cdiv(n, 64) * ctas,)](
        TensorDescriptor.from_tensor(a, [128, depth]),
        TensorDescriptor.from_tensor(b.T if by_column else b, b_block),
        TensorDescriptor.from_tensor(c, [128, 32]),
        m, n, k, 128, 64, depth, 2, stages, 2, False, by_column, pair,
        num_warps=4, ctas_per_cga=(ctas, 1, 1),
    )  # fmt: skip
    return c


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("shape", [(256, 128, 320), (200, 72, 136)])
def test_products(shape: tuple[int, int, int], by_column: bool, pair: bool) -> None:
    m, n, k = shape
    a = torch.randn(m, k, dtype=torch.float16)
    b = torch.randn(n, k, dtype=torch.float16).T if by_column else torch.randn(k, n).half()
    expected = (a.double() @ b.double()).half()
    c = product(a, b, torch.float16, pair=pair)
    torch.testing.assert_close(c, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_other_elements(dtype: torch.dtype) -> None:
    a, b = torch.randn(128, 256).to(dtype), torch.randn(64, 256).to(dtype).T
    expected = (a.double() @ b.double()).to(torch.bfloat16)
    torch.testing.assert_close(product(a, b, torch.bfloat16), expected, rtol=1e-2, atol=1e-2)
