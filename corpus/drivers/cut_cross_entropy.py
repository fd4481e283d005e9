"""Drives cut-cross-entropy: a loss that never has its logits in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from drivers.fla_core import backward, leaf

MODULES = ("cut_cross_entropy",)


def loss() -> None:
    from cut_cross_entropy import linear_cross_entropy

    labels = torch.randint(0, 1024, (256,))
    backward(linear_cross_entropy(leaf(256, 128), leaf(1024, 128), labels, impl="cce"))


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call."""
    yield "linear_cross_entropy", loss
