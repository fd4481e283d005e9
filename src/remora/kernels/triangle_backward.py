"""The triangle update's gradients.

Only the arguments are kept: the projections and their products are worked out again, by
the forward kernels. Products of pairs with weights are PyTorch's, for some rows at a time, so that
no more than the gradients of the projections is ever held for all pairs; gates and norms are
Triton kernels. The order of all sums is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch.nn.functional import layer_norm

from remora.kernels.triangle import mask_arguments, products_of
from remora.kernels.triangle_stock import gate_gradient, norm_gradient

# Pairs worked on at a time.
_PAIRS = 1 << 17

# Programs of the norms' gradients, each with sums of its own.
_PROGRAMS = 512


def gradients(
    grad: Any, x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float
) -> list[Any]:
    """The gradients of x and of the weights, from that of the result, in their dtypes."""
    if x.numel() == 0 or weights[4].numel() == 0:
        return [torch.zeros_like(t) for t in (x, *weights)]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = [torch.zeros(w.shape, dtype=torch.float32, device=w.device) for w in weights]
    with torch.cuda.device_of(x):
        ab, products, units = products_of(x, weights, mask, incoming, eps)
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


def _of_gate(d: Any, p: Any, g: Any, mask: Any) -> tuple[Any, Any]:
    """The gradients of p and g from that of ``p * sigmoid(g)``, (pairs, channels)."""
    of_p, of_g = torch.empty_like(p), torch.empty_like(g)
    tensor, strides = mask_arguments(mask, p)
    m, k = p.shape
    gate_gradient[(triton.cdiv(m, 64) * triton.cdiv(k, 64),)](
        d, p, g, tensor, of_p, of_g, m, 1 if mask is None else mask.shape[-1], k, *d.stride(),
        *strides[-2:], ROWS=64, COLUMNS=64, MASKED=mask is not None,
    )  # fmt: skip
    return of_p, of_g


def _of_norm(grad: Any, x: Any, weight: Any, units: Any, eps: float, of_x: Any) -> tuple[Any, Any]:
    """Write the gradient of x, (rows, pairs, channels); the gradients of weight and bias."""
    k = x.shape[2]
    m = x.shape[0] * x.shape[1]
    width = triton.next_power_of_2(k)
    rows = max(1, 4096 // width)
    programs = min(_PROGRAMS, triton.cdiv(m, rows))
    sums = torch.empty((programs, 2, k), dtype=torch.float32, device=x.device)
    norm_gradient[(programs,)](
        grad, x, weight, weight if units is None else units, of_x, sums, m, x.shape[1], k,
        *x.stride(), *of_x.stride(), eps, ROWS=rows, K_POWER=width, SCALED=units is not None,
    )  # fmt: skip
    of_weight, of_bias = sums.sum(0)
    return of_weight, of_bias


def _products(some: Any, units: Any) -> Any:
    """(H, rows, pairs) of the products, as (pairs, H) without their scales, in fp32."""
    h = some.shape[0]
    t = some.reshape(h, -1).T.float()
    return t * (units[:h] * units[h:]) if units is not None else t


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
        of_p, of_g = _of_gate(d, z @ p_out.T, y @ g_out.T, None)
        sums[6] += _outer(of_p, z)
        sums[7] += _outer(of_g, y)
        some = products[:, b, rows, :n].permute(1, 2, 0)
        of_some = of_products[:, b, rows].permute(1, 2, 0)
        found = _of_norm(of_p @ p_out, some, w_out, units, eps, of_some)
        sums[4] += found[0]
        sums[5] += found[1]
        dy[b, rows] = (of_g @ g_out).view(-1, n, c)
    return of_products


def _through_products(of_products: Any, ab: Any, units: Any, incoming: bool, kind: Any) -> Any:
    """The gradient of a and b, (2H, B, N, N): two more batched products, cuBLAS's."""
    h, batch, n, _ = of_products.shape
    both = ab[:, :, :n, :n]
    if units is not None:
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
    c = x.shape[3]
    for b, rows in _rows(x):
        some = x[b, rows]
        y = layer_norm(some.reshape(-1, c), (c,), w_in, b_in, eps)
        d = of_ab[:, b, rows].reshape(of_ab.shape[0], -1).T
        of_p, of_g = _of_gate(d, y @ p_in.T, y @ g_in.T, None if mask is None else mask[b, rows])
        sums[2] += _outer(of_p, y)
        sums[3] += _outer(of_g, y)
        of_y = torch.addmm(torch.addmm(dx[b, rows].view(-1, c), of_p, p_in), of_g, g_in)
        found = _of_norm(of_y, some, w_in, None, eps, dx[b, rows])
        sums[0] += found[0]
        sums[1] += found[1]
