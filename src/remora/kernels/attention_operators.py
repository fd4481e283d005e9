"""Attention as PyTorch operators: importing this module defines them in ``torch.ops.remora``.

As operators they go through ``torch.compile``, ``torch.export`` and CUDA graphs unbroken, and
have gradients. ``remora.kernels.attention`` says what they take and refuse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remora.kernels.attention import Band, Problem, like


@torch.library.custom_op("remora::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, left: int | None = None,
    right: int | None = None, lower_right: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result, and the logarithms of the rows' sums, which have no gradient.

    left, right: how far back and ahead of its own a query sees keys, None: without limit;
    causal is right=0. The others as of ``remora.kernels.attention``.
    """
    return Problem(q, k, v, Band(left, right, lower_right), scale).forward()


@torch.library.custom_op("remora::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, sums: Tensor, scale: float,
    left: int | None = None, right: int | None = None, lower_right: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, of that of o; o, sums: what ``attention`` gave."""
    return Problem(q, k, v, Band(left, right, lower_right), scale).backward(o, sums, grad)


@torch.library.custom_op("remora::attention_packed", mutates_args=())
def attention_packed(
    q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, longest_q: int,
    longest_k: int, scale: float, left: int | None = None, right: int | None = None,
    lower_right: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``attention`` of ``remora.kernels.attention_packed``: q, k, v (length, heads, dimension)."""
    problem = _packed(q, k, v, begins_q, begins_k, longest_q, longest_k, scale, left, right,
                      lower_right)  # fmt: skip
    o, sums = problem.forward()
    return o.transpose(0, 1), sums


@torch.library.custom_op("remora::attention_packed_backward", mutates_args=())
def attention_packed_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, sums: Tensor, begins_q: Tensor,
    begins_k: Tensor, longest_q: int, longest_k: int, scale: float, left: int | None = None,
    right: int | None = None, lower_right: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, of that of o; o, sums: what ``attention_packed`` gave."""
    problem = _packed(q, k, v, begins_q, begins_k, longest_q, longest_k, scale, left, right,
                      lower_right)  # fmt: skip
    dq, dk, dv = problem.backward(o.transpose(0, 1), sums, grad.transpose(0, 1))
    return dq.transpose(0, 1), dk.transpose(0, 1), dv.transpose(0, 1)


def _packed(
    q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, longest_q: int,
    longest_k: int, scale: float, left: int | None, right: int | None, lower_right: bool,
) -> Problem:  # fmt: skip
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    packed = (begins_q, begins_k, longest_q, longest_k)
    return Problem(q, k, v, Band(left, right, lower_right), scale, packed)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *band: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@attention_packed.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
    heads_first = q.transpose(0, 1)
    sums = q.new_empty(heads_first.shape[:-1], dtype=torch.float32)
    return like(heads_first).transpose(0, 1), sums


@attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> Any:
    return like(q), like(k), like(v)


@attention_packed_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> Any:
    return tuple(like(x.transpose(0, 1)).transpose(0, 1) for x in (q, k, v))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])
    ctx.others = [x for x in inputs if not isinstance(x, Tensor)]
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    gradients = attention_backward(grad, *ctx.saved_tensors, *ctx.others)
    return (*gradients, *[None] * len(ctx.others))


def _packed_gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    gradients = attention_packed_backward(grad, *ctx.saved_tensors, *ctx.others)
    return (*gradients, None, None, *[None] * len(ctx.others))


attention.register_autograd(_gradients, setup_context=_remember)
attention_packed.register_autograd(_packed_gradients, setup_context=_remember)
