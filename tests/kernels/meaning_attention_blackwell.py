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


@pytest.mark.parametrize(("dim", "causal", "heads", "length"), [
    (64, True, 1, 512), (128, False, 2, 256),
])  # fmt: skip
def test_attention(dim: int, causal: bool, heads: int, length: int) -> None:
    q, k, v = (torch.randn(heads * length, dim, dtype=torch.float16) for _ in range(3))
    o = torch.full_like(q, torch.nan)
    sums = torch.full((heads, length), torch.nan)
    scale = dim**-0.5

    def rows(x: torch.Tensor, block: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(x, [block, dim])

    attention_blackwell[(length // 256, heads)](
        rows(q, 128), rows(k, 64), rows(v, 64), rows(o, 128), sums, scale * math.log2(math.e),
        length, DIM=dim, BLOCK_N=64, STAGES=2, CAUSAL=causal, TASKS=False,
    )  # fmt: skip
    shaped = [x.double().reshape(heads, length, dim) for x in (q, k, v)]
    scores = shaped[0] @ shaped[1].mT * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(length, length).bool().tril(), -math.inf)
    expected = scores.softmax(2) @ shaped[2]
    torch.testing.assert_close(o.double().reshape_as(expected), expected, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(sums.double(), scores.logsumexp(2), atol=1e-4, rtol=1e-4)
