"""What ``grouped_matmul`` has to give, in float64, and where groups end in tests."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

#: Relative error, of the norm, that the operands' and the result's precision allow. Hopper's
#: matrix unit keeps fewer bits of fp8 sums: 3.2e-3 was seen on an H200.
TOLERANCE = {
    "float16": 1e-3, "bfloat16": 5e-3, "float32": 1e-3, "float8_e4m3fn": 5e-3,
    "float8_e5m2": 5e-3, "int8": 0.0,
}  # fmt: skip


def ends(offs: Any, extent: int) -> list[int]:
    """Where groups end: an offset that goes back, or past the extent, is moved."""
    found, last = [], 0
    for end in offs.tolist():
        last = min(max(end, last), extent)
        found.append(last)
    return found


def reference(a: Any, b: Any, offs: Any) -> Any:
    """Rows or sums in groups, in float64."""
    starts = [0, *ends(offs, a.shape[b.dim() == 2])]
    groups = list(pairwise(starts))
    a, b = a.double(), b.double()
    if b.dim() == 2:
        return torch.stack([a[:, s:e] @ b[s:e] for s, e in groups])
    c = torch.zeros(a.shape[0], b.shape[2], dtype=torch.float64, device=a.device)
    for group, (s, e) in enumerate(groups):
        c[s:e] = a[s:e] @ b[group]
    return c


def values(shape: tuple[int, ...], dtype: str, device: str) -> Any:
    """Random numbers."""
    kind = getattr(torch, dtype)
    if dtype == "int8":
        return torch.randint(-9, 9, shape, device=device, dtype=kind)
    return torch.randn(shape, device=device).to(kind)


def close(result: Any, expected: Any, dtype: str) -> bool:
    """Whether a result is as precise as it can be; NaN never is."""
    difference = (result.double() - expected).norm().item()
    return bool(difference <= TOLERANCE[dtype] * expected.norm().item())
