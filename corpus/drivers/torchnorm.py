"""Drives torchnorm: fused norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from drivers.fla_core import backward, leaf

MODULES = ("torchnorm",)


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call, forward and backward."""
    import torchnorm as t

    def rows() -> torch.Tensor:
        return leaf(64, 256, dtype=torch.float32)

    def image() -> torch.Tensor:
        return leaf(2, 16, 8, 8, dtype=torch.float32)

    yield "RMSNorm", lambda: backward(t.RMSNorm(256)(rows()))
    yield "FusedAddRMSNorm", lambda: backward(t.FusedAddRMSNorm(256)(rows(), rows()))
    yield "LayerNorm", lambda: backward(t.LayerNorm(256)(rows()))
    yield "GroupNorm", lambda: backward(t.GroupNorm(4, 16)(image()))
    yield "InstanceNorm", lambda: backward(t.InstanceNorm(16)(image()))
    yield "ScaleNorm", lambda: backward(t.ScaleNorm(256)(rows()))
