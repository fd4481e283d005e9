"""The product for Blackwell under the reference meaning: run by ``test_blackwell_code.py``.

Tasks run one after the other there: the stages hold all of K, and a program has one tile.
"""

from __future__ import annotations

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from remora import errors
from remora.kernels.gemm_blackwell import gemm_blackwell

assert triton.knobs.runtime.interpret


def product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, stages: int = 4) -> torch.Tensor:
    by_column = b.stride(0) == 1
    (m, k), n = a.shape, b.shape[1]
    depth = 128 // a.element_size()
    c = torch.full((m, n), torch.nan).to(dtype)
    b_block = [64, depth] if by_column else [depth, 64]
    gemm_blackwell[(triton.cdiv(m, 128) * triton.cdiv(n, 64),)](
        TensorDescriptor.from_tensor(a, [128, depth]),
        TensorDescriptor.from_tensor(b.T if by_column else b, b_block),
        TensorDescriptor.from_tensor(c, [128, 32]),
        m, n, k, 128, 64, depth, 2, stages, 2, False, by_column, False, num_warps=4,
    )  # fmt: skip
    return c


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("shape", [(256, 128, 256), (200, 72, 136)])
def test_products(shape: tuple[int, int, int], by_column: bool) -> None:
    m, n, k = shape
    a = torch.randn(m, k, dtype=torch.float16)
    b = torch.randn(n, k, dtype=torch.float16).T if by_column else torch.randn(k, n).half()
    expected = (a.double() @ b.double()).half()
    torch.testing.assert_close(product(a, b, torch.float16), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_other_elements(dtype: torch.dtype) -> None:
    a, b = torch.randn(128, 256).to(dtype), torch.randn(64, 256).to(dtype).T
    expected = (a.double() @ b.double()).to(torch.bfloat16)
    torch.testing.assert_close(product(a, b, torch.bfloat16), expected, rtol=1e-2, atol=1e-2)


def test_more_of_k_than_the_stages_hold_needs_tasks_at_once() -> None:
    a, b = torch.randn(128, 256).half(), torch.randn(256, 64).half()
    with pytest.raises(Exception, match="never ends") as caught:
        product(a, b, torch.float16, stages=2)
    assert errors.WaitNeverEnds.of(caught.value) is not None
