"""Drives conch-triton-kernels: inference of language models, and vision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

MODULES = ("conch",)
M, N = 64, 256


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (M, N))).to(torch.float16)


def norms() -> None:
    from conch.ops.normalization import gemma_rms_norm, rms_norm

    rms_norm.rms_norm(x(), x(N), 1e-6)
    rms_norm.fused_add_rms_norm(x(), x(), x(N), 1e-6)
    gemma_rms_norm.gemma_rms_norm(x(), x(N), 1e-6)
    gemma_rms_norm.gemma_rms_norm(x(), x(N), 1e-6, x())


def activations() -> None:
    from conch.ops.activation import gelu_tanh_and_mul, silu_and_mul

    gelu_tanh_and_mul.gelu_tanh_and_mul(x())
    silu_and_mul.silu_and_mul(x())


def rotary() -> None:
    from conch.ops.embedding.rotary_embedding import rotary_embedding

    rotary_embedding(torch.arange(M), x(M, 4 * 64), x(M, 4 * 64), 64, x(128, 64))


def blockwise() -> None:
    from conch.ops.quantization.bitsandbytes import functional

    for kind in ("fp4", "nf4"):
        packed, state = functional.quantize_4bit(x(M * N), quant_type=kind)
        functional.dequantize_4bit(packed, state, quant_type=kind)


def scaled() -> None:
    from conch.ops.quantization import fp8, int8

    scale = torch.ones(1)
    for function in (
        fp8.scaled_fp8_quant,
        int8.scaled_int8_quant,
    ):
        function(x(), scale)


def caches() -> None:
    from conch.ops.vllm import copy_blocks, reshape_and_cache

    cache = [x(8, 16 * 4 * 64) for _ in range(2)]
    copy_blocks.copy_blocks(cache, list(cache), torch.tensor([[0, 1]]))
    reshape_and_cache.reshape_and_cache(
        x(M, 4, 64), x(M, 4, 64), x(8, 16, 4, 64), x(8, 16, 4, 64), torch.arange(M)
    )


def attention() -> None:
    from conch.ops.attention.paged_attention import paged_attention

    paged_attention(
        x(2, 8, 64),
        x(8, 16, 4, 64),
        x(8, 16, 4, 64),
        torch.zeros(2, 4, dtype=torch.int32),
        torch.full((2,), 40, dtype=torch.int32),
    )


def attention_of_prompts() -> None:
    from conch.ops.attention.varlen_attention import varlen_attention

    varlen_attention(
        query=x(M, 8, 64),
        key_cache=x(8, 16, 4, 64),
        value_cache=x(8, 16, 4, 64),
        cu_seqlens_q=torch.tensor([0, 32, 64], dtype=torch.int32),
        max_seqlen_q=32,
        seq_lens=torch.full((2,), 32, dtype=torch.int32),
        max_seqlen_k=32,
        block_table=torch.zeros(2, 4, dtype=torch.int32),
        causal=True,
    )


def boxes() -> None:
    from conch.ops.vision.nms import nms

    nms(torch.rand(M, 4), torch.rand(M), 0.5)


def pooling() -> None:
    from conch.ops.vision.bev_pool import bev_pool

    bev_pool(
        torch.rand(M, 16),
        torch.zeros(M, dtype=torch.int32),
        torch.arange(0, M, 8, dtype=torch.int32),
        torch.full((8,), 8, dtype=torch.int32),
        1, 4, 8, 8,
    )  # fmt: skip


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call."""
    for case in (
        norms, activations, rotary, blockwise, scaled, caches, attention, attention_of_prompts,
        boxes, pooling,
    ):  # fmt: skip
        yield case.__name__, case
