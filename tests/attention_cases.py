"""What attention means, in float64, and the cases that all devices have to get right."""

from __future__ import annotations

from typing import Any

import torch

#: Options that say which keys a query sees.
BANDS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (100, 30)},
    "causal-window": {"causal": True, "window": (70, None), "lower_right": True},
    "causal-lower": {"causal": True, "lower_right": True},
    "ahead": {"window": (-3, None)},
}


def seen(
    queries: int, keys: int, causal: bool = False, window: Any = None, lower_right: bool = False
) -> Any:
    """Which keys a query sees: (queries, keys)."""
    left, right = window or (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    shift = keys - queries if lower_right else 0
    i, j = torch.arange(queries)[:, None] + shift, torch.arange(keys)[None, :]
    mask = torch.ones(queries, keys, dtype=torch.bool)
    if left is not None:
        mask &= j >= i - left
    if right is not None:
        mask &= j <= i + right
    return mask


def expected(q: Any, k: Any, v: Any, scale: float | None = None, **band: Any) -> tuple[Any, Any]:
    """The result, and the logarithms of sums, of (..., heads, length, dimension), in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    mask = seen(q.shape[-2], k.shape[-2], **band).to(q.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1).masked_fill(~mask.any(-1, keepdim=True), 0)
    return weights @ v, scores.logsumexp(-1)


def error(got: Any, wanted: Any, at_least: float = 0.0) -> float:
    """The difference, relative in the Frobenius norm; NaN where any element is.

    at_least: what the norm of ``wanted`` is taken for where it is smaller.
    """
    got, wanted = got.detach().double(), wanted.detach()
    return float((got - wanted).norm() / wanted.norm().clamp_min(max(at_least, 1e-6)))


def _scales(
    q: Any, k: Any, v: Any, gradient: Any, scale: float | None = None, **band: Any
) -> tuple[float, float, float]:
    """What errors of the gradients of q, k and v are relative to, at least.

    The gradient of a score is the difference of two terms, ``weight * (dO @ V.T - sum(dO * O))``.
    Where a query sees one key they are equal, the gradients of q and k are 0, and what is left is
    the rounding of the terms: so these are the norms of the gradients with the first term alone.
    """
    q, k, v, gradient = (x.detach().double() for x in (q, k, v, gradient))
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask = seen(q.shape[-2], k.shape[-2], **band).to(q.device)
    weights = (q @ k.mT * scale).masked_fill(~mask, float("-inf")).softmax(-1)
    terms = scale * weights.masked_fill(~mask, 0) * (gradient @ v.mT)
    of_k = (terms.mT @ q).unflatten(-3, (-1, group)).sum(-3)
    return float((terms @ k).norm()), float(of_k.norm()), 0.0


def gradients_are_right(
    q: Any, k: Any, v: Any, tolerance: float, scale: float | None = None, **band: Any
) -> None:
    """Backward through ``remora.kernels.attention`` against autograd in float64."""
    from remora.kernels import attention

    given = [x.detach().requires_grad_() for x in (q, k, v)]
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    o = attention(*given, scale=scale, **band)
    gradient = torch.randn_like(o)
    o.backward(gradient)
    expected(*wide, scale=scale, **band)[0].backward(gradient.double())
    scales = _scales(*wide, gradient, scale, **band)
    errors = {
        name: error(x.grad, exact.grad, at_least)
        for name, x, exact, at_least in zip("qkv", given, wide, scales, strict=True)
    }
    sizes = (tuple(q.shape), tuple(k.shape), band)
    assert all(e < tolerance for e in errors.values()), (errors, tolerance, sizes)
    assert all(x.grad.dtype == x.dtype for x in given)


def packed_is_right(
    lengths_q: list[int], lengths_k: list[int], heads: int, key_heads: int, dim: int,
    device: str, tolerance: float, **band: Any,
) -> None:  # fmt: skip
    """Packed sequences, and their gradients, against each one by itself in float64.

    No sequence may see the next one's rows: those of the next but one are NaN.
    """
    from remora.kernels import attention_packed

    begins_q, begins_k = (
        torch.tensor([0, *x]).cumsum(0).int() for x in (lengths_q, lengths_k)
    )  # fmt: skip
    q = torch.randn(sum(lengths_q), heads, dim, device=device).half()
    k, v = (torch.randn(sum(lengths_k), key_heads, dim, device=device).half() for _ in range(2))
    bad = len(lengths_k) // 2
    spoilt = slice(int(begins_k[bad]), int(begins_k[bad + 1]))
    k[spoilt], v[spoilt] = float("nan"), float("nan")
    given = [x.requires_grad_() for x in (q, k, v)]
    o, sums = attention_packed(
        *given, begins_q.to(device), begins_k.to(device), max(lengths_q), max(lengths_k),
        return_sums=True, **band,
    )  # fmt: skip
    gradient = torch.randn_like(o)
    o.backward(gradient)
    assert o.shape == q.shape
    for i in range(len(lengths_q)):
        if i == bad:
            continue
        rows, keys = slice(*begins_q[i : i + 2]), slice(*begins_k[i : i + 2])
        wide = [
            x.detach()[at].double().transpose(0, 1).requires_grad_()
            for x, at in zip(given, (rows, keys, keys), strict=True)
        ]
        wanted, logarithms = expected(*wide, **band)
        wanted.backward(gradient[rows].double().transpose(0, 1))
        errors = [error(o[rows].transpose(0, 1), wanted)]
        torch.testing.assert_close(sums[:, rows].double(), logarithms, atol=2e-4, rtol=1e-4)
        errors += [
            error(x.grad[at].transpose(0, 1), exact.grad)
            for x, at, exact in zip(given, (rows, keys, keys), wide, strict=True)
        ]
        assert all(e < tolerance for e in errors), ("o, q, k, v", i, errors, tolerance)
