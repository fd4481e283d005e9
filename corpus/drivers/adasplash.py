"""Drives adasplash: adaptive sparse attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from drivers.fla_core import backward, leaf

MODULES = ("adasplash",)


def inputs() -> list[torch.Tensor]:
    return [leaf(1, 2, 256, 64, dtype=torch.float16) for _ in range(3)]


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call, forward and backward."""
    import adasplash as a

    def without_mask() -> None:
        from adasplash.adasplash_no_block_mask import sparse_attn

        backward(sparse_attn(*inputs(), alpha=1.5, is_causal=True, varlen=None, niter=4))

    def entmax() -> None:
        from adasplash.triton_entmax import triton_entmax

        backward(triton_entmax(torch.randn(64, 512, requires_grad=True)))

    for causal in (False, True):
        yield (
            f"adasplash_v1 {causal}",
            lambda c=causal: backward(a.adasplash_v1(*inputs(), is_causal=c)),
        )
    yield "adasplash_v2", lambda: backward(a.adasplash_v2(*inputs()))
    yield "without_mask", without_mask
    yield "entmax", entmax
