"""Block-scaled products under the reference meaning: run by ``test_meaning.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tlx.scaled_kernels import (
    in_parts,
    numbers,
    ordered,
    packed,
    paired,
    quantized,
    scaled,
    turned,
)  # fmt: skip
from triton.tools.tensor_descriptor import TensorDescriptor

import remora.tlx as tlx
from remora.errors import UnsupportedByTarget

assert triton.knobs.runtime.interpret

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.uint8}


def operand(rows: int, k: int, format_: str) -> torch.Tensor:
    if format_ == "e2m1":
        return torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
    return torch.randn(rows, k).to(FORMATS[format_])


def products_are(c: torch.Tensor, x: np.ndarray, y: np.ndarray) -> None:
    """``c`` is ``x @ y.T``, but for what sums in fp32 lose in any order, as BLAS adds."""
    most = (x.shape[1] + 8) * 2.0**-24 * (np.abs(x) @ np.abs(y).T)
    off = np.abs(c.numpy() - x @ y.T)
    assert (off <= most).all(), f"off by {np.max(off / most):.3g} of what rounding may do"
    assert np.linalg.norm(off) < 1e-6 * np.linalg.norm(x @ y.T)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(
    ("formats", "block", "n", "step"),
    [(("e4m3",), 32, 128, 256), (("e5m2",), 32, 256, 256), (("e2m1",), 32, 128, 256),
     (("e2m1",), 16, 256, 256), (("e4m3",), 32, 64, 128), (("e2m1", "e5m2"), 32, 64, 128)],
)  # fmt: skip
def test_products(
    formats: tuple[str, ...], block: int, n: int, step: int, copied: bool
) -> None:  # fmt: skip
    """formats: of A and B, or of both."""
    m, k = 128, 2 * step
    formats = formats * 2 if len(formats) == 1 else formats
    packed = [2 if format_ == "e2m1" else 1 for format_ in formats]
    a, b = operand(m, k, formats[0]), operand(n, k, formats[1])
    if block == 32:
        raw = [torch.randint(120, 135, (rows, k // 32), dtype=torch.uint8) for rows in (m, n)]
        values: list[Any] = [2.0 ** (r.numpy().astype(np.float64) - 127) for r in raw]
    else:
        fp8 = [(torch.rand(rows, k // 16) + 0.25).to(torch.float8_e4m3fn) for rows in (m, n)]
        raw = [f.view(torch.uint8) for f in fp8]
        values = [f.float().numpy() for f in fp8]
    c = torch.zeros(m, n)
    scales = [ordered(r) for r in raw]
    boxes = [[1, r.shape[1], -(-step // block // 4), 2, 256] for r in scales]
    scaled[(1,)](
        TensorDescriptor.from_tensor(a, [m, step // packed[0]]),
        TensorDescriptor.from_tensor(b, [n, step // packed[1]]),
        *(TensorDescriptor.from_tensor(s, box) for s, box in zip(scales, boxes, strict=True)),
        c, k, *formats, m, n, step, block, copied, tl.uint8,
    )  # fmt: skip
    x, y = (
        numbers(data, format_) * np.repeat(scale, block, axis=1)
        for data, scale, format_ in zip((a, b), values, formats, strict=True)
    )
    products_are(c, x, y)


@pytest.mark.parametrize(("parts", "n"), [(1, 128), (2, 128), (2, 64)])
def test_parts_of_scales(parts: int, n: int) -> None:
    a, b = operand(128, 256, "e4m3"), operand(256, n, "e4m3")
    scales = [torch.randint(120, 135, (rows, 8), dtype=torch.uint8) for rows in (128, n)]
    c = torch.zeros(128, n)
    in_parts[(1,)](a, b, *scales, c, n, parts)
    x, y = (
        numbers(data, "e4m3") * np.repeat(2.0 ** (s.numpy().astype(np.float64) - 127), 32, axis=1)
        for data, s in zip((a, b.T.contiguous()), scales, strict=True)
    )
    products_are(c, x, y)


@pytest.mark.parametrize(
    ("dtype", "kind", "most", "digits"),
    [(tl.float8e4nv, torch.float8_e4m3fn, 448, 15), (tl.float8e5, torch.float8_e5m2, 57344, 7)],
)
def test_a_block_becomes_mxfp8(dtype: Any, kind: Any, most: float, digits: int) -> None:
    """With the least power of two with which its largest number fits: no digit is lost."""
    x = torch.randint(-digits, digits + 1, (128, 128)).float()
    x *= torch.exp2(torch.arange(-64.0, 64))[:, None]
    x[0, :32] = 0
    x[1, :32] = most / 4  # exactly the largest number
    x[2, :32] = most / 4 * (1 + 2**-20)
    y = torch.eye(128).to(kind)
    c, bytes_ = torch.zeros(128, 128), torch.zeros(128, 128).to(kind)
    quantized[(1,)](x, y, c, bytes_, c, dtype, tlx.storage_kind.smem, True)
    used = bytes_.float().abs().view(128, 4, 32).amax(2)
    assert used.max() == most
    assert (used[3:] > most / 2).all()
    assert used[0, 0] == 0
    assert used[1, 0] == most
    assert used[2, 0] == most / 2
    x[2, :32] = most / 4
    assert torch.equal(c, x)


def test_scales_past_k_do_not_count() -> None:
    """K of 64 has two scales a row, of four that the unit reads."""
    a, b = operand(128, 64, "e4m3"), operand(128, 64, "e4m3")
    raw = torch.full((128, 2), 127, dtype=torch.uint8)
    c = torch.zeros(128, 128)
    scaled[(1,)](
        *(TensorDescriptor.from_tensor(x, [128, 64]) for x in (a, b)),
        *(TensorDescriptor.from_tensor(ordered(raw), [1, 1, 1, 2, 256]) for _ in range(2)),
        c, 64, "e4m3", "e4m3", 128, 128, 64, 32, True, tl.uint8,
    )  # fmt: skip
    products_are(c, a.double().numpy(), b.double().numpy())


@pytest.mark.parametrize("groups", [1, 2])
def test_fewer_scales_than_there_are(groups: int) -> None:
    p = torch.randint(10, 256, (32 * groups, 16), dtype=torch.uint8)
    q = torch.zeros(128, 16 * groups, dtype=torch.uint8)
    packed[(1,)](p, q, (32 * groups, 16), 16 * groups, True)
    r, j = torch.meshgrid(torch.arange(128), torch.arange(4 * groups), indexing="ij")
    assert torch.equal(q[:, : 4 * groups], p[32 * (j // 4) + r % 32, r // 32 * 4 + j % 4])
    assert (q[:, 4 * groups :] == 9).all()


@pytest.mark.parametrize(("format_", "b_format", "n", "stored", "place"), [
    ("e4m3", "e4m3", 128, False, "shared"), ("e4m3", "e4m3", 128, True, "tensor"),
    ("e2m1", "e2m1", 256, False, "shared"), ("e2m1", "e2m1", 256, True, "shared"),
    ("e2m1", "e5m2", 128, False, "shared"), ("e4m3", "e2m1", 64, False, "tensor"),
])  # fmt: skip
def test_two_ctas(format_: str, b_format: str, n: int, stored: bool, place: str) -> None:
    """Each has its rows, and half of B's columns; of B's scales all."""
    k = 256
    a_depth, b_depth = (k // 2 if f == "e2m1" else k for f in (format_, b_format))
    a, b = operand(512, k, format_), operand(n, k, b_format)
    scales = [torch.randint(120, 135, (rows, k // 32), dtype=torch.uint8) for rows in (512, n)]
    c = torch.zeros(2, 256, n)
    kernel = tlx.jit(paired.fn)
    for half in range(2):
        rows = slice(256 * half, 256 * half + 256)
        laid = [ordered(x).squeeze(0) for x in (scales[0][rows], scales[1])]
        boxes = [[1, k // 128, 2, 256], [-(-n // 128), k // 128, 2, 256]]
        kernel[(2,)](
            TensorDescriptor.from_tensor(a[rows], [128, a_depth]),
            TensorDescriptor.from_tensor(b, [n // 2, b_depth]),
            *(TensorDescriptor.from_tensor(s, x) for s, x in zip(laid, boxes, strict=True)),
            c[half], format_, n, k, 32, True, stored, b_format, place, ctas_per_cga=(2, 1, 1),
        )  # fmt: skip
    values = [2.0 ** (s.numpy().astype(np.float64) - 127) for s in scales]
    x = numbers(a, format_) * np.repeat(values[0], 32, axis=1)
    y = numbers(b, b_format) * (1 if stored else np.repeat(values[1], 32, axis=1))
    products_are(c.reshape(512, n), x, y)


def test_two_ctas_without_a_cluster() -> None:
    with pytest.raises(Exception, match="take") as caught:
        tlx.jit(alone.fn)[(2,)](ctas_per_cga=(1, 1, 1))
    assert UnsupportedByTarget.of(caught.value) is not None


@triton.jit
def alone():
    bars = tlx.alloc_barriers(1)
    tlx.tcgen05_commit(bars[0], two_ctas=True)


def test_scales_of_a_shape_whose_bytes_lie_alike() -> None:
    a, b = operand(128, 256, "e4m3"), operand(128, 256, "e4m3")
    scales = [torch.randint(120, 134, (128, 8), dtype=torch.uint8) for _ in range(2)]
    c = torch.zeros(128, 128)
    turned[(1,)](
        TensorDescriptor.from_tensor(a, [128, 256]),
        TensorDescriptor.from_tensor(b.T.contiguous(), [256, 128]),
        *(TensorDescriptor.from_tensor(ordered(x), [1, 1, 2, 2, 256]) for x in scales),
        c,
    )  # fmt: skip
    x, y = (
        m.double() * torch.exp2(s.double() - 127).repeat_interleave(32, 1)
        for m, s in zip((a, b), scales, strict=True)
    )
    products_are(c, x.numpy(), y.numpy())
