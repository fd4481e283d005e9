"""The product as a PyTorch operator: importing this module defines ``torch.ops.remora.matmul``.

As an operator it goes through ``torch.compile``, ``torch.export`` and CUDA graphs unbroken, and
has gradients. ``remora.kernels.matmul`` is what it runs. ``fused`` makes operators of products
with an epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from remora.errors import KernelArgumentError
from remora.kernels import matmul as product
from remora.kernels.operands import result_of

_WHERE = "torch.ops.remora.matmul"
_DIFFERENTIABLE = (torch.float16, torch.bfloat16, torch.float32)


@torch.library.custom_op("remora::matmul", mutates_args=())
def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``a @ b`` by ``remora.kernels.matmul``, which says what it takes and refuses.

    Differentiable in a and b for fp16, bf16 and fp32 without scales. The gradients are products
    by the same kernels, of operands transposed without a copy.
    """
    return product(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)


@matmul.register_fake
def _(a: Any, b: Any, scale_a: Any = None, scale_b: Any = None, out_dtype: Any = None) -> Any:
    shape, dtype = result_of(a, b, scale_a is not None or scale_b is not None, out_dtype)
    return a.new_empty(shape, dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, scale_a, scale_b, _ = inputs
    if any(x.requires_grad for x in (a, b)) and (
        a.dtype not in _DIFFERENTIABLE or scale_a is not None or scale_b is not None
    ):
        raise KernelArgumentError(
            f"a product of {a.dtype}{'' if scale_a is scale_b else ' with scales'} has no gradient",
            where=_WHERE,
            hint="fp16, bf16 and fp32 have one, without scales; or detach a and b",
        )
    ctx.save_for_backward(a, b)


def _gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    grad = grad.to(a.dtype)
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        of_a = _summed(matmul(grad, b.mT), a)
    if ctx.needs_input_grad[1]:
        of_b = _summed(matmul(a.mT, grad), b)
    return of_a, of_b, None, None, None


def _summed(grad: Any, operand: Any) -> Any:
    """The gradient of an operand, which may be one matrix that a whole batch used."""
    if grad.shape == operand.shape:
        return grad
    return grad.sum(0, keepdim=operand.dim() == 3)


matmul.register_autograd(_gradients, setup_context=_keep)


def fused(name: str, epilogue: Any, meaning: Callable[..., torch.Tensor]) -> Any:
    """An operator for the product with an epilogue in Triton.

    Args:
        name: of the operator, with its namespace: ``"mine::bias_gelu"``.
        epilogue: see ``remora.kernels.matmul``; it is called with the operator's tensors, then
            with its numbers.
        meaning: the same in PyTorch, of (sums in fp32, ``*tensors``, ``*numbers``), from which
            the gradients come: the sums are computed again, in fp32.

    Returns:
        The operator: (a, b, tensors, numbers, *, out_dtype=None). Differentiable in a, b and
        tensors for fp16, bf16 and fp32.
    """

    def run(
        a: torch.Tensor,
        b: torch.Tensor,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[int],
        *,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        args = (*tensors, *numbers)
        return product(a, b, epilogue=epilogue, epilogue_args=args, out_dtype=out_dtype)

    schema = (
        "(Tensor a, Tensor b, Tensor[] tensors, int[] numbers, *, ScalarType? out_dtype=None)"
        " -> Tensor"
    )
    operator = torch.library.custom_op(name, run, mutates_args=(), schema=schema)

    @operator.register_fake
    def _(a: Any, b: Any, tensors: Any, numbers: Any, *, out_dtype: Any = None) -> Any:
        shape, dtype = result_of(a, b, False, out_dtype)
        return a.new_empty(shape, dtype=dtype)

    def keep(
        ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
    ) -> None:
        a, b, tensors, numbers = inputs
        if a.dtype not in _DIFFERENTIABLE and any(x.requires_grad for x in (a, b, *tensors)):
            raise KernelArgumentError(
                f"a product of {a.dtype} has no gradient",
                where=f"torch.ops.{name.replace('::', '.')}",
                hint="fp16, bf16 and fp32 have one; or detach the operands",
            )
        ctx.save_for_backward(a, b, *tensors)
        ctx.numbers = numbers

    def gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
        a, b, *tensors = ctx.saved_tensors
        sums = matmul(a, b, out_dtype=torch.float32).detach().requires_grad_()
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
        with torch.enable_grad():
            result = meaning(sums, *leaves, *ctx.numbers)
        wanted = [x for x in (sums, *leaves) if x.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, grad.to(result.dtype), allow_unused=True))
        of_sums = next(found)
        of_tensors = [next(found) if x.requires_grad else None for x in leaves]
        of_sums = of_sums.to(a.dtype)
        of_a = _summed(matmul(of_sums, b.mT), a) if ctx.needs_input_grad[0] else None
        of_b = _summed(matmul(a.mT, of_sums), b) if ctx.needs_input_grad[1] else None
        # PyTorch takes an empty list for one of tensors, and wants a list of gradients for it.
        return of_a, of_b, of_tensors, None if ctx.numbers else []

    operator.register_autograd(gradients, setup_context=keep)
    return operator
