"""Drives sageattention 1: attention over 8-bit products."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

MODULES = ("sageattention",)


def attention(head: int, causal: bool) -> None:
    from sageattention import sageattn

    q, k, v = (torch.randn(1, 4, 256, head).to(torch.float16) for _ in range(3))
    sageattn(q, k, v, is_causal=causal)


def varlen(causal: bool) -> None:
    from sageattention import sageattn_varlen

    q, k, v = (torch.randn(256, 4, 64).to(torch.float16) for _ in range(3))
    at = torch.tensor([0, 128, 256], dtype=torch.int32)
    sageattn_varlen(q, k, v, at, at, 128, 128, is_causal=causal)


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call."""
    for causal in (False, True):
        for head in (64, 96, 128):
            yield f"sageattn {head} {causal}", lambda h=head, c=causal: attention(h, c)
        yield f"sageattn_varlen {causal}", lambda c=causal: varlen(c)
