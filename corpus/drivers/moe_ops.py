"""Drives moe-ops: routing and grouped products of mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from drivers.fla_core import leaf

MODULES = ("moe_ops",)
N, D, E, K = 64, 128, 4, 2


def route() -> None:
    from moe_ops import fused_topk_softmax_ops as f

    weights, indices = f._fused_topk_softmax_fwd(torch.randn(N, E), K)
    f._fused_topk_softmax_bwd(torch.randn(N, K), weights, indices, N, E, K)


def products() -> None:
    from moe_ops import grouped_gemm_ops as g

    offsets = torch.arange(0, N + 1, N // E, dtype=torch.int32)
    g.gmm_try_fn(leaf(N, D), leaf(E, D, D), offsets, True)
    g.gmm_try_gradB(leaf(N, D), leaf(N, D), offsets)


def permutation() -> None:
    from moe_ops import permute_ops as p

    indices = torch.randint(0, E, (N, K), dtype=torch.int32)
    p.permute(leaf(N, D), indices, E=E)


def unpermutation() -> None:
    from moe_ops import unpermute_ops as u

    at = torch.arange(N * K, dtype=torch.int32)
    u.unpermute_forward(leaf(N * K, D), at, torch.rand(N, K), N, K)
    u.unpermute_backward(leaf(N, D), leaf(N * K, D), at, torch.rand(N, K), N, K)


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call."""
    for case in (route, products, permutation, unpermutation):
        yield case.__name__, case
