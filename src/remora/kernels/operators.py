"""The products as PyTorch operators: importing this module defines ``torch.ops.remora``.

As operators they go through ``torch.compile``, ``torch.export`` and CUDA graphs unbroken, and
have gradients. ``remora.kernels.matmul`` is what they run.
"""

from __future__ import annotations

from typing import Any

import torch

from remora.errors import KernelArgumentError
from remora.kernels import matmul as products
from remora.kernels.matmul import _DTYPES as products_dtypes

_WHERE = "torch.ops.remora.matmul"


@torch.library.custom_op("remora::matmul", mutates_args=())
def matmul(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``a @ b`` by ``remora.kernels.matmul``, which says what it takes and refuses.

    Differentiable for fp16, bf16 and fp32; the gradients are products of the same kernels, with
    operands transposed in place. ``out_dtype``: of the result.
    """
    return products(a, b, out_dtype=out_dtype)


@matmul.register_fake
def _(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """The result's shape and dtype, of tensors without data."""
    default = getattr(torch, products_dtypes[str(a.dtype).removeprefix("torch.")][1])
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype or default)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, _ = inputs
    ctx.save_for_backward(a, b)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    for x in (a, b):
        if x.dtype.itemsize == 1:
            raise KernelArgumentError(
                f"a product of {x.dtype} has no gradient",
                where=_WHERE,
                hint="detach the operands, or multiply fp16 or bf16",
            )
    grad = grad.to(a.dtype)
    return (
        matmul(grad, b.mT) if ctx.needs_input_grad[0] else None,
        matmul(a.mT, grad) if ctx.needs_input_grad[1] else None,
        None,
    )


matmul.register_autograd(_gradients, setup_context=_remember)
