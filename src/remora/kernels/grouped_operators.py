"""The operators of ``grouped_matmul``: ``torch.ops.remora.grouped_matmul`` and ``_list``."""

from __future__ import annotations

from typing import Any

import torch

from remora.errors import KernelArgumentError
from remora.kernels.grouped_matmul import (
    check,
    check_list,
    multiply_groups,
    multiply_list,
    result_dtype,
)

# Neither has a default: PyTorch's dispatcher leaves out arguments that are equal to theirs, and
# then finds the gradients of lists to be of another structure than the arguments (2.11, 2.13).
_DIFFERENTIABLE = (torch.float16, torch.bfloat16, torch.float32)


@torch.library.custom_op("remora::grouped_matmul", mutates_args=())
def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None
) -> torch.Tensor:
    """See ``remora.kernels.grouped_matmul``, with offsets."""
    check(a, b, offs)
    return multiply_groups(a, b, offs, out_dtype)


@grouped_matmul.register_fake
def _(a: Any, b: Any, offs: Any, out_dtype: Any) -> Any:
    check(a, b, offs)
    groups, rows = offs.shape[0], a.shape[0]
    shape = (rows, b.shape[2]) if b.dim() == 3 else (groups, rows, b.shape[1])
    return a.new_empty(shape, dtype=result_dtype(a.dtype, out_dtype))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, offs, _ = inputs
    _check_differentiable(a)
    ctx.save_for_backward(a, b, offs)


def _gradients(ctx: Any, c: Any) -> tuple[Any, Any, None, None]:
    a, b, offs = ctx.saved_tensors
    c = c.to(a.dtype).contiguous()
    of_a = of_b = None
    if b.dim() == 3:
        if ctx.needs_input_grad[0]:
            of_a = grouped_matmul(c, b.mT, offs, a.dtype)
        if ctx.needs_input_grad[1]:
            of_b = grouped_matmul(a.mT, c, offs, b.dtype)
    else:
        if ctx.needs_input_grad[0]:
            of_a = grouped_matmul(b, c.mT, offs, a.dtype).mT
        if ctx.needs_input_grad[1]:
            of_b = grouped_matmul(a.mT, c, offs, b.dtype)
    return of_a, of_b, None, None


grouped_matmul.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("remora::grouped_matmul_list", mutates_args=())
def grouped_matmul_list(
    a: list[torch.Tensor], b: list[torch.Tensor], out_dtype: torch.dtype | None
) -> list[torch.Tensor]:
    """See ``remora.kernels.grouped_matmul``, of lists."""
    check_list(a, b)
    return multiply_list(a, b, out_dtype)


@grouped_matmul_list.register_fake
def _(a: Any, b: Any, out_dtype: Any) -> Any:
    check_list(a, b)
    return [
        x.new_empty((x.shape[0], y.shape[1]), dtype=result_dtype(x.dtype, out_dtype))
        for x, y in zip(a, b, strict=True)
    ]


def _keep_lists(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, _ = inputs
    if a:
        _check_differentiable(a[0])
    ctx.count = len(a)
    ctx.save_for_backward(*a, *b)


def _gradients_of_lists(ctx: Any, c: list[Any]) -> tuple[Any, Any, None]:
    a, b = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
    dtype = a[0].dtype if a else None
    c = [x.to(dtype).contiguous() for x in c]
    of_a = grouped_matmul_list(c, [y.mT for y in b], dtype)
    of_b = grouped_matmul_list([x.mT for x in a], c, dtype)
    return of_a, of_b, None


grouped_matmul_list.register_autograd(_gradients_of_lists, setup_context=_keep_lists)


def _check_differentiable(x: Any) -> None:
    if x.requires_grad and x.dtype not in _DIFFERENTIABLE:
        raise KernelArgumentError(
            f"products of {x.dtype} have no gradient",
            where="remora.kernels.grouped_matmul",
            hint="use fp16, bf16 or fp32, or detach the operands",
        )
