"""Drives mlstm-kernels: the recurrent layer of xLSTM, chunked, parallel and step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from drivers.fla_core import backward, leaf

MODULES = ("mlstm_kernels",)
B, H, T, D = 1, 2, 128, 64


def inputs() -> list[torch.Tensor]:
    gates = [leaf(B, H, T, dtype=torch.float32) for _ in range(2)]
    return [*(leaf(B, H, T, D) for _ in range(3)), *gates]


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every kernel of the package's own registries whose name says Triton."""
    from mlstm_kernels.torch import (
        get_available_mlstm_kernels,
        get_available_mlstm_step_kernels,
        get_mlstm_kernel,
        get_mlstm_step_kernel,
    )

    for name in get_available_mlstm_kernels():
        if "native" not in name:
            yield name, lambda n=name: backward(get_mlstm_kernel(n)(*inputs()))
    for name in get_available_mlstm_step_kernels():
        if "native" not in name:
            yield name, lambda n=name: step(get_mlstm_step_kernel(n))


def step(function: Callable[..., object]) -> None:
    q, k, v = (torch.randn(B, H, D) for _ in range(3))
    i, f = torch.randn(B, H, 1), torch.randn(B, H, 1)
    function(q, k, v, i, f, torch.zeros(B, H, D, D), torch.zeros(B, H, D), torch.zeros(B, H, 1))
