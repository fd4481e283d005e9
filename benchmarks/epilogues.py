"""What the products are fused with."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bias_gelu(acc, rows, columns, bias):
    """``gelu(acc + bias)``, with the tangent's approximation, as cuBLAS has it."""
    x = acc + tl.load(bias + columns)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x * tl.sigmoid(2 * inner)  # 0.5 * (1 + tanh(inner))
