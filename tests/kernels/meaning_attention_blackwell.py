"""Attention for Blackwell with the reference meaning; run by ``test_attention_blackwell.py``.

Tasks run one after the other there, so that the steps of all are taken in one order.
"""

from __future__ import annotations

import math

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.kernels.attention_blackwell import attention_blackwell

assert triton.knobs.runtime.interpret


@pytest.mark.parametrize(("dim", "shift", "heads", "length_q", "length_k"), [
    (64, 0, 1, 512, 512), (128, None, 2, 256, 256), (64, 40, 2, 70, 110), (64, None, 1, 300, 70),
])  # fmt: skip
def test_attention(
    dim: int, shift: int | None, heads: int, length_q: int, length_k: int
) -> None:  # fmt: skip
    """With a shift query i sees keys up to i + shift; two heads share one of keys."""
    q = torch.randn(1, heads, length_q, dim, dtype=torch.float16)
    k, v = (torch.randn(1, 1, length_k, dim, dtype=torch.float16) for _ in range(2))
    o = torch.full_like(q, torch.nan)
    sums = torch.full((1, heads, length_q), torch.nan)
    scale = dim**-0.5

    def rows(x: torch.Tensor, block: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(x, [1, 1, block, dim])

    attention_blackwell[(triton.cdiv(length_q, 256), heads)](
        rows(q, 128), rows(k, 64), rows(v, 64), rows(o, 128), sums, scale * math.log2(math.e),
        heads, length_q, length_k, shift or 0, GROUP=heads, DIM=dim, BLOCK_N=64, STAGES=2,
        CAUSAL=shift is not None, TAIL=length_k % 64 != 0, TASKS=False,
    )  # fmt: skip
    scores = q.double() @ k.double().mT * scale
    if shift is not None:
        seen = torch.arange(length_k)[None, :] <= torch.arange(length_q)[:, None] + shift
        scores = scores.masked_fill(~seen, -math.inf)
    expected = scores.softmax(3) @ v.double()
    torch.testing.assert_close(o.double(), expected, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(sums.double(), scores.logsumexp(3), atol=1e-4, rtol=1e-4)
