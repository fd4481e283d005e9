"""The triangle update as a PyTorch operator: ``torch.ops.remora.triangle_multiply``.

As an operator it goes through ``torch.compile``, ``torch.export`` and CUDA graphs unbroken, and
has gradients. ``remora.kernels.triangle_multiply`` calls it where one of these is asked for.
"""

from __future__ import annotations

from typing import Any

import torch

from remora.errors import KernelArgumentError
from remora.kernels.triangle import Kept, check, forward_keeping
from remora.kernels.triangle_backward import gradients

_NAMES = (
    "norm_in_weight", "norm_in_bias", "p_in_weight", "g_in_weight",
    "norm_out_weight", "norm_out_bias", "p_out_weight", "g_out_weight",
)  # fmt: skip

# ``define`` and not ``custom_op``, whose first call imports TorchDynamo.
_ARGUMENTS = (
    "(Tensor x, "
    + ", ".join(f"Tensor {name}" for name in _NAMES)
    + ", Tensor? mask, bool incoming, float eps)"
)
torch.library.define("remora::triangle_multiply", _ARGUMENTS + " -> Tensor")
torch.library.define(
    "remora::triangle_multiply_keeping",
    _ARGUMENTS + " -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    "remora::triangle_multiply_backward",
    "(Tensor grad, Tensor x, Tensor[] weights, Tensor? mask, Tensor kept, bool incoming, float eps)"
    " -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)

#: See ``remora.kernels.triangle_multiply``; all arguments by position.
triangle_multiply = torch.ops.remora.triangle_multiply.default
#: The same, and bytes from which the gradients are worked out.
triangle_multiply_keeping = torch.ops.remora.triangle_multiply_keeping.default
triangle_multiply_backward = torch.ops.remora.triangle_multiply_backward.default


@torch.library.impl("remora::triangle_multiply", "CompositeImplicitAutograd")
def _forward(*arguments: Any) -> Any:
    return triangle_multiply_keeping(*arguments)[0]


@torch.library.impl("remora::triangle_multiply_keeping", "default")
def _keeping(x: Any, *others: Any) -> tuple[Any, Any]:
    *weights, mask, incoming, eps = others
    check(x, dict(zip(_NAMES, weights, strict=True)), mask)
    return forward_keeping(x, weights, mask, incoming, eps)


@torch.library.register_fake("remora::triangle_multiply_keeping")
def _shape(x: Any, *others: Any) -> tuple[Any, Any]:
    *weights, mask, _, _ = others
    check(x, dict(zip(_NAMES, weights, strict=True)), mask)
    size = Kept(x.dtype, x.device, x.shape, weights[4].numel()).bytes
    return (
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
        torch.empty(size, dtype=torch.uint8, device=x.device),
    )


@torch.library.impl("remora::triangle_multiply_backward", "default")
def _backward(grad: Any, x: Any, weights: list[Any], *others: Any) -> list[Any]:
    return gradients(grad, x, weights, *others)


@torch.library.register_fake("remora::triangle_multiply_backward")
def _shapes(grad: Any, x: Any, weights: list[Any], *_: Any) -> list[Any]:
    return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, *weights)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    *tensors, mask, ctx.incoming, ctx.eps = inputs
    if mask is not None and mask.requires_grad:
        raise KernelArgumentError(
            "the mask has no gradient",
            where="remora.kernels.triangle_multiply",
            hint="detach it",
        )
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for what is kept
    ctx.save_for_backward(*tensors, mask, output[1])


def _through(backward: Any) -> Any:
    """The gradients of all arguments, by the operator or by what it calls."""

    def gradients_of(ctx: Any, grad: Any, _: Any) -> tuple[Any, ...]:
        x, *weights, mask, kept = ctx.saved_tensors
        found = backward(grad, x, weights, mask, kept, ctx.incoming, ctx.eps)
        return *found, None, None, None

    return gradients_of


torch.library.register_autograd(
    "remora::triangle_multiply_keeping", _through(triangle_multiply_backward), setup_context=_keep
)


class Update(torch.autograd.Function):
    """The operator without the dispatcher, which takes 100 us of both directions' time; of
    arguments that were checked."""

    @staticmethod
    def forward(x: Any, *others: Any) -> tuple[Any, Any]:
        *weights, mask, incoming, eps = others
        return forward_keeping(x, weights, mask, incoming, eps)

    setup_context = staticmethod(_keep)
    backward = staticmethod(torch.autograd.function.once_differentiable(_through(gradients)))
