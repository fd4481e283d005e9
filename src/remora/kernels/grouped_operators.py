"""The operators of ``grouped_matmul``: ``torch.ops.remora.grouped_matmul`` and ``_list``."""

from __future__ import annotations

import contextlib
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

_DIFFERENTIABLE = (torch.float16, torch.bfloat16, torch.float32)

# ``define`` and not ``custom_op``, whose first call imports TorchDynamo. No argument has a default:
# PyTorch's dispatcher leaves out those that are equal to theirs, and then finds the gradients of
# lists to be of another structure than the arguments (2.13).
_SCHEMAS = {
    "grouped_matmul": "(Tensor a, Tensor b, Tensor offs, Tensor? scale_a, Tensor? scale_b, "
    "ScalarType? out_dtype) -> Tensor",
    "grouped_matmul_list": "(Tensor[] a, Tensor[] b, ScalarType? out_dtype) -> Tensor[]",
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"remora::{_name}", _schema, tags=torch.Tag.pt2_compliant_tag)

#: See ``remora.kernels.grouped_matmul``: with offsets, and of lists.
grouped_matmul = torch.ops.remora.grouped_matmul.default
grouped_matmul_list = torch.ops.remora.grouped_matmul_list.default


def _on(*tensors: Any) -> Any:
    """Launch on the device that tensors are on."""
    on_gpu = tensors and tensors[0].is_cuda
    return torch.cuda.device(tensors[0].device) if on_gpu else contextlib.nullcontext()


@torch.library.impl("remora::grouped_matmul", "default")
def _multiply(a: Any, b: Any, offs: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
    check(a, b, offs, scale_a, scale_b)
    with _on(a):
        return multiply_groups(a, b, offs, scale_a, scale_b, out_dtype)


@torch.library.register_fake("remora::grouped_matmul")
def _shape(a: Any, b: Any, offs: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
    check(a, b, offs, scale_a, scale_b)
    groups, rows = offs.shape[0], a.shape[0]
    shape = (rows, b.shape[2]) if b.dim() == 3 else (groups, rows, b.shape[1])
    return a.new_empty(shape, dtype=result_dtype(a.dtype, out_dtype, scale_a is not None))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, offs, scale_a, _, _ = inputs
    _check_differentiable(a)
    if scale_a is not None:
        raise KernelArgumentError(
            "products with scales have no gradient",
            where="remora.kernels.grouped_matmul",
            hint="scale the operands or the result, or detach them",
        )
    ctx.save_for_backward(a, b, offs)


def _gradients(ctx: Any, c: Any) -> tuple[Any, ...]:
    """Of A: the same form, with B transposed. Of B: of rows the sums, of sums the rows."""
    a, b, offs = ctx.saved_tensors
    c = c.to(a.dtype).contiguous()
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        left, right = (c, b.mT) if b.dim() == 3 else (b, c.mT)
        of_a = grouped_matmul(left, right, offs, None, None, a.dtype)
        of_a = of_a if b.dim() == 3 else of_a.mT
    if ctx.needs_input_grad[1]:
        of_b = grouped_matmul(a.mT, c, offs, None, None, b.dtype)
    return of_a, of_b, None, None, None, None


@torch.library.impl("remora::grouped_matmul_list", "default")
def _multiply_list(a: list[Any], b: list[Any], out_dtype: Any) -> list[Any]:
    check_list(a, b)
    with _on(*a[:1]):
        return multiply_list(a, b, out_dtype)


@torch.library.register_fake("remora::grouped_matmul_list")
def _shapes(a: list[Any], b: list[Any], out_dtype: Any) -> list[Any]:
    check_list(a, b)
    return [
        x.new_empty((x.shape[0], y.shape[1]), dtype=result_dtype(x.dtype, out_dtype))
        for x, y in zip(a, b, strict=True)
    ]


def _keep_lists(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, _ = inputs
    _check_differentiable(a[0])
    ctx.count = len(a)
    ctx.save_for_backward(*a, *b)


def _gradients_of_lists(ctx: Any, c: list[Any]) -> tuple[Any, Any, None]:
    a, b = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
    c = [x.to(a[0].dtype).contiguous() for x in c]
    of_a = grouped_matmul_list(c, [y.mT for y in b], a[0].dtype)
    of_b = grouped_matmul_list([x.mT for x in a], c, a[0].dtype)
    return of_a, of_b, None


torch.library.register_autograd("remora::grouped_matmul", _gradients, setup_context=_keep)
torch.library.register_autograd(
    "remora::grouped_matmul_list", _gradients_of_lists, setup_context=_keep_lists
)


def _check_differentiable(x: Any) -> None:
    if x.dtype not in _DIFFERENTIABLE:
        raise KernelArgumentError(
            f"products of {x.dtype} have no gradient",
            where="remora.kernels.grouped_matmul",
            hint="use fp16, bf16 or fp32, or detach the operands",
        )
