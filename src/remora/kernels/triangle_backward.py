"""The triangle update's gradients.

Only the arguments are kept: the projections and their products are worked out again, by
the forward kernels. What is done pair by pair is PyTorch's, for some rows at a time, so that no
more than the gradients of the projections is ever held for all pairs. The order of all sums is
fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import layer_norm

from remora.kernels.triangle import products_of

# Pairs worked on at a time.
_PAIRS = 1 << 17


def gradients(
    grad: Any, x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float
) -> list[Any]:
    """The gradients of x and of the weights, from that of the result, in their dtypes."""
    if x.numel() == 0 or weights[4].numel() == 0:
        return [torch.zeros_like(t) for t in (x, *weights)]
    ab, products, units = products_of(x, weights, mask, incoming, eps)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = [torch.zeros(w.shape, dtype=torch.float32, device=w.device) for w in weights]
    of_products = _through_output(grad, x, weights, eps, products, units, dx, sums)
    of_ab = _through_products(of_products, ab, units, incoming, x.dtype)
    _through_input(of_ab, x, weights, mask, eps, dx, sums)
    return [dx, *(s.to(w.dtype) for s, w in zip(sums, weights, strict=True))]


def _rows(x: Any) -> Iterator[tuple[int, slice]]:
    """Batches and slices of rows, of no more than _PAIRS pairs."""
    n = x.shape[1]
    height = max(1, _PAIRS // n)
    for b in range(x.shape[0]):
        for first in range(0, n, height):
            yield b, slice(first, min(first + height, n))


def _outer(a: Any, b: Any) -> Any:
    """``a.T @ b``, in fp32."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a.T, b, out_dtype=torch.float32)
    return a.float().T @ b.float()


def _norm_gradient(grad: Any, x: Any, weight: Any, eps: float) -> tuple[Any, Any, Any]:
    """Of a layer norm: the gradients of x, weight and bias, in fp32, for (pairs, channels)."""
    x, grad = x.float(), grad.float()
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    centred *= scale
    of_weight, of_bias = (grad * centred).sum(0), grad.sum(0)
    grad = grad * weight.float()
    along = (grad * centred).mean(-1, keepdim=True)
    return (grad - grad.mean(-1, keepdim=True) - centred * along) * scale, of_weight, of_bias


def _products(some: Any, units: Any) -> Any:
    """(H, rows, pairs) of the products, as (pairs, H) without their scales, in fp32."""
    h = some.shape[0]
    t = some.reshape(h, -1).T.float()
    return t * (units[:h] * units[h:]) if units.numel() else t


def _through_output(
    grad: Any, x: Any, weights: list[Any], eps: float, products: Any, units: Any,
    dy: Any, sums: list[Any],
) -> Any:  # fmt: skip
    """The products' gradient, (H, B, N, N); of y, what comes through the output's gate, into dy."""
    w_in, b_in, _, _, w_out, b_out, p_out, g_out = weights
    n, c = x.shape[2:]
    h = w_out.numel()
    of_products = torch.empty((h, x.shape[0], n, n), dtype=x.dtype, device=x.device)
    for b, rows in _rows(x):
        y = layer_norm(x[b, rows].reshape(-1, c), (c,), w_in, b_in, eps)
        t = _products(products[:, b, rows, :n], units)
        z = layer_norm(t, (h,), w_out.float(), b_out.float(), eps).to(x.dtype)
        d = grad[b, rows].reshape(-1, c)
        gate = torch.sigmoid((y @ g_out.T).float())
        of_p = (d * gate).to(x.dtype)
        of_g = (d * (z @ p_out.T) * gate * (1 - gate)).to(x.dtype)
        sums[6] += _outer(of_p, z)
        sums[7] += _outer(of_g, y)
        of_t, of_weight, of_bias = _norm_gradient(of_p @ p_out, t, w_out, eps)
        sums[4] += of_weight
        sums[5] += of_bias
        of_products[:, b, rows] = of_t.T.reshape(h, -1, n)
        dy[b, rows] = (of_g @ g_out).reshape(-1, n, c)
    return of_products


def _through_products(of_products: Any, ab: Any, units: Any, incoming: bool, kind: Any) -> Any:
    """The gradient of a and b, (2H, B, N, N): two more batched products, cuBLAS's."""
    h, batch, n, _ = of_products.shape
    both = ab[:, :, :n, :n]
    if units.numel():
        both = both.to(kind) * units[:, None, None, None]
    a, b = (m.reshape(-1, n, n) for m in both.split(h))
    d = of_products.view(-1, n, n)
    of_ab = torch.empty((2, h * batch, n, n), dtype=kind, device=d.device)
    if incoming:  # t = a.T @ b
        torch.bmm(b, d.mT, out=of_ab[0])
        torch.bmm(a, d, out=of_ab[1])
    else:  # t = a @ b.T
        torch.bmm(d, b, out=of_ab[0])
        torch.bmm(d.mT, a, out=of_ab[1])
    return of_ab.view(2 * h, batch, n, n)


def _through_input(
    of_ab: Any, x: Any, weights: list[Any], mask: Any, eps: float, dx: Any, sums: list[Any]
) -> None:
    """The gradient of x, into dx, which holds a part of y's; of the input's weights."""
    w_in, b_in, p_in, g_in = weights[:4]
    n, c = x.shape[2:]
    for b, rows in _rows(x):
        some = x[b, rows].reshape(-1, c)
        y = layer_norm(some, (c,), w_in, b_in, eps)
        d = of_ab[:, b, rows].reshape(of_ab.shape[0], -1).T
        if mask is not None:
            d = d * mask[b, rows].reshape(-1, 1).to(d.dtype)
        gate = torch.sigmoid((y @ g_in.T).float())
        of_p = (d * gate).to(x.dtype)
        of_g = (d * (y @ p_in.T) * gate * (1 - gate)).to(x.dtype)
        sums[2] += _outer(of_p, y)
        sums[3] += _outer(of_g, y)
        of_y = dx[b, rows].reshape(-1, c) + of_p @ p_in + of_g @ g_in
        of_x, of_weight, of_bias = _norm_gradient(of_y, some, w_in, eps)
        sums[0] += of_weight
        sums[1] += of_bias
        dx[b, rows] = of_x.to(x.dtype).reshape(-1, n, c)
