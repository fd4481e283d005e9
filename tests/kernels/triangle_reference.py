"""``triangle_multiply`` in PyTorch, as AlphaFold 3's supplement writes it (algorithms 12, 13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import layer_norm

NAMES = (
    "norm_in_weight", "norm_in_bias", "p_in_weight", "g_in_weight",
    "norm_out_weight", "norm_out_bias", "p_out_weight", "g_out_weight",
)  # fmt: skip


def triangle(
    x: Any, norm_in_weight: Any, norm_in_bias: Any, p_in_weight: Any, g_in_weight: Any,
    norm_out_weight: Any, norm_out_bias: Any, p_out_weight: Any, g_out_weight: Any, *,
    mask: Any = None, incoming: bool = False, eps: float = 1e-5,
    operand: Callable[[Any], Any] = lambda x: x,
) -> Any:  # fmt: skip
    """The update, in the precision of its arguments; ``operand``: of each operand of a product."""
    p_in, g_in, p_out, g_out = map(operand, (p_in_weight, g_in_weight, p_out_weight, g_out_weight))
    y = operand(layer_norm(x, x.shape[-1:], norm_in_weight, norm_in_bias, eps))
    ab = (y @ p_in.T) * torch.sigmoid(y @ g_in.T)
    if mask is not None:
        ab = ab * mask.to(ab.dtype)[..., None]
    a, b = operand(ab).chunk(2, -1)
    equation = "bkic,bkjc->bijc" if incoming else "bikc,bjkc->bijc"
    t = torch.einsum(equation, a, b)
    z = operand(layer_norm(t, t.shape[-1:], norm_out_weight, norm_out_bias, eps))
    return torch.sigmoid(y @ g_out.T) * (z @ p_out.T)


def to_tf32(x: Any) -> Any:
    """float64, to the nearest of what has tf32's 10 bits after the first, of any exponent."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2048).round() / 2048, exponent)


def inputs(b: int, n: int, c: int, h: int, dtype: Any, device: str, seed: int = 0) -> list[Any]:
    """Random normal x; weights as a trained model has them, of the size 1 / sqrt(extent)."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def normal(*shape: int) -> Any:
        if device == "cpu" or len(shape) < 4:
            return torch.randn(shape, generator=generator, dtype=torch.float32).to(device)
        return torch.randn(shape, device=device)

    torch.manual_seed(seed)
    values = [
        normal(b, n, n, c),
        1 + 0.1 * normal(c), 0.1 * normal(c),
        normal(2 * h, c) / c**0.5, normal(2 * h, c) / c**0.5,
        1 + 0.1 * normal(h), 0.1 * normal(h),
        normal(c, h) / h**0.5, normal(c, c) / c**0.5,
    ]  # fmt: skip
    return [v.to(dtype) for v in values]


def error(result: Any, expected: Any) -> float:
    """``|result - expected| / |expected|``; infinite for NaN."""
    ratio = float((result.double() - expected).norm() / expected.norm())
    return ratio if ratio == ratio else float("inf")


def scaled(values: list[Any], scale: float) -> list[Any]:
    """``inputs`` some larger and some smaller by scale, in place; the gates stay. For small eps."""
    x, norm_in, bias_in, _, g_in, norm_out, _, p_out, g_out = values
    x /= scale
    for weight in (norm_in, bias_in, norm_out, p_out):
        weight *= scale
    for weight in (g_in, g_out):
        weight /= scale
    return values
