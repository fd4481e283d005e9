"""Drives liger-kernel: losses, norms, activations and rotary embeddings of LLM training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from drivers.fla_core import backward, leaf

MODULES = ("liger_kernel",)
N, D, V = 64, 256, 1024


def logits(vocabulary: int = V) -> torch.Tensor:
    return leaf(N, vocabulary, dtype=torch.float32)


def labels(high: int = V) -> torch.Tensor:
    return torch.randint(0, high, (N,))


def probabilities() -> torch.Tensor:
    return torch.softmax(torch.randn(N, V), -1)


def lines() -> dict[str, Callable[[], Any]]:
    """Calls of the functional interface."""
    from liger_kernel import ops
    from liger_kernel.transformers import functional as f

    b, s, h, d = 2, 32, 4, 64
    angle = torch.randn(1, s, d)
    return {
        "cross_entropy": lambda: f.liger_cross_entropy(logits(), labels()),
        "fused_linear_cross_entropy": lambda: f.liger_fused_linear_cross_entropy(
            leaf(N, D), leaf(V, D), labels()
        ),
        "fused_linear_jsd": lambda: f.liger_fused_linear_jsd(
            leaf(N, D), leaf(V, D), leaf(N, D), leaf(V, D)
        ),
        "fused_linear_kl_div": lambda: f.liger_fused_linear_kl_div(
            leaf(N, D), leaf(V, D), probabilities()
        ),
        "geglu": lambda: f.liger_geglu(leaf(N, D), leaf(N, D)),
        "swiglu": lambda: f.liger_swiglu(leaf(N, D), leaf(N, D)),
        "relu_squared": lambda: f.liger_relu_squared(leaf(N, D)),
        "group_norm": lambda: f.liger_group_norm(leaf(4, 16, D), leaf(16), leaf(16), 16, 4, 1e-6),
        "jsd": lambda: f.liger_jsd(logits(), logits(), labels()),
        "kl_div": lambda: f.liger_kl_div(logits(), probabilities()),
        "sparsemax": lambda: f.liger_sparsemax(logits()),
        "multi_token_attention": lambda: f.liger_multi_token_attention(
            leaf(1, 4, 32, 32, dtype=torch.float32),
            leaf(4, 4, 3, 3, dtype=torch.float32),
            padding=1,
        ),
        "fused_neighborhood_attention": lambda: f.liger_fused_neighborhood_attention(
            leaf(b, h, s, d), leaf(b, h, s, d), leaf(b, h, s, d)
        ),
        "tvd": lambda: f.liger_tvd(leaf(N, V, dtype=torch.float32), probabilities()),
        "layer_norm": lambda: f.liger_layer_norm(leaf(N, D), leaf(D), leaf(D), 1e-6),
        "rms_norm": lambda: f.liger_rms_norm(leaf(N, D), leaf(D), 1e-6),
        "rms_norm_blocks": lambda: f.liger_rms_norm(leaf(128 * N, 128), leaf(128), 1e-6),
        "modulated_rms_norm": lambda: f.liger_modulated_rms_norm(
            leaf(2, N, D), leaf(D), leaf(2, D), leaf(2, D)
        ),
        "poly_norm": lambda: f.liger_poly_norm(leaf(N, D), leaf(3), leaf(1)),
        "fused_add_rms_norm": lambda: f.liger_fused_add_rms_norm(
            leaf(N, D), leaf(N, D), leaf(D), 1e-6
        ),
        "rope": lambda: f.liger_rope(leaf(b, h, s, d), leaf(b, h, s, d), angle, angle),
        "qwen2vl_mrope": lambda: f.liger_qwen2vl_mrope(
            leaf(b, h, s, d),
            leaf(b, h, s, d),
            torch.randn(3, b, s, d),
            torch.randn(3, b, s, d),
            [16, 8, 8],
        ),
        "llama4_rope": lambda: ops.LigerLlama4RopeFunction.apply(
            leaf(b, s, h, d), leaf(b, s, h, d), torch.randn(s, d // 2, dtype=torch.complex64)
        ),
        "softmax": lambda: f.liger_softmax(leaf(N, D)),
        "softmax_of_long_rows": lambda: f.liger_softmax(leaf(4, 1 << 17)),
        "dyt": lambda: f.liger_dyt(leaf(N, D), leaf(1), leaf(D), leaf(D)),
        "attn_res": lambda: f.liger_attn_res(leaf(4, b, s, D), leaf(D), leaf(D)),
        "mhc_coeffs": lambda: f.liger_mhc_coeffs(
            leaf(N, 4, D),
            leaf(4 * D, 24),
            leaf(24, dtype=torch.float32),
            *[leaf(1, dtype=torch.float32) for _ in range(3)],
        ),
        "mhc_pre": lambda: f.liger_mhc_pre(leaf(N, 4, D), leaf(N, 4)),
        "mhc_post_res": lambda: f.liger_mhc_post_res(
            leaf(N, 4, D), leaf(N, D), leaf(N, 4), leaf(N, 4, 4)
        ),
        "embedding": lambda: ops.LigerEmbeddingFunction.apply(leaf(V, D), labels()),
        "fused_ce_tvd": lambda: ops.LigerFusedCETVDFunction.apply(
            logits(), logits().detach(), labels()
        ),
        "fused_moe": lambda: ops.LigerFusedMoEFunction.apply(
            leaf(N, D),
            leaf(4, 2 * D, D),
            leaf(4, D, D),
            torch.randint(0, 4, (N, 2), dtype=torch.int32),
            leaf(N, 2, dtype=torch.float32),
        ),
        "grpo": lambda: ops.GrpoLossFunction.apply(
            leaf(2, N + 1, V),
            torch.randn(2, N),
            torch.randn(2, N),
            torch.zeros(2, N, dtype=torch.long),
            torch.randn(2),
            torch.ones(2, N, dtype=torch.long),
            0.9,
            0.04,
            0.2,
            0.4,
            False,
        ),
    }


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call, forward and backward."""
    for name, call in lines().items():
        yield name, lambda call=call: backward(call())
