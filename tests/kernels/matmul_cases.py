"""What ``remora.kernels.matmul`` is tried with, on a GPU and with the reference meaning."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from remora.kernels import matmul

# Relative error that the operands' and the result's precision allow: sums are in fp32; the
# matrix unit keeps fewer bits of fp8 sums (PTX ISA, wgmma), and multiplies fp32 as tf32.
TOLERANCE = {
    "float16": 1e-3,
    "bfloat16": 5e-3,
    "float32": 2e-3,
    "float8_e4m3fn": 3e-3,
    "float8_e5m2": 3e-3,
    "int8": 0.0,
}


def matrix(shape: tuple[int, ...], dtype: str, device: str, *, by_column: bool = False) -> Any:
    """Random matrices, stored by columns if ``by_column``."""
    kind = getattr(torch, dtype)
    if by_column:
        shape = (*shape[:-2], shape[-1], shape[-2])
    if dtype == "int8":
        values = torch.randint(-9, 9, shape, device=device, dtype=kind)
    else:
        values = torch.randn(shape, device=device).to(kind)
    return values.mT if by_column else values


def poison(device: str, elements: int, kind: Any) -> None:
    """Fill memory that the next result may get: what is not written then is NaN, or 85."""
    memory = torch.empty(elements * kind.itemsize, dtype=torch.uint8, device=device)
    memory.fill_(0xFF if kind.is_floating_point else 0x55)


def agrees(
    a: Any, b: Any, expected: Any = None, *, tolerance: float | None = None, times: int = 1,
    **options: Any,
) -> Any:  # fmt: skip
    """The product, compared with float64; a race would not show every time."""
    if expected is None:
        expected = a.double() @ b.double()
    if tolerance is None:
        tolerance = TOLERANCE[str(a.dtype).removeprefix("torch.")]
    kind = options.get("out_dtype") or a.dtype
    for _ in range(times):
        poison(str(a.device), expected.numel(), kind)
        c = matmul(a, b, **options)
        assert c.shape == expected.shape
        difference = (c.double() - expected).norm().item()
        assert difference <= tolerance * expected.norm().item()
    return c


@triton.jit
def bias_gelu_residual(acc, rows, columns, bias, residual, stride, SCALE: tl.constexpr):
    """What a layer does with its sums."""
    x = acc * SCALE + tl.load(bias + columns)
    x = 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))
    return x + tl.load(residual + rows * stride + columns)


@triton.jit
def place(acc, rows, columns):
    """Which element is which."""
    return acc * 0 + rows * 1000 + columns


def with_epilogue(
    m: int, n: int, k: int, device: str, batch: int = 0, b_by_column: bool = False, **options: Any
) -> None:
    """A function of the caller's, with loads by row, by column and by both."""
    front = (batch,) if batch else ()
    a = matrix((*front, m, k), "float16", device)
    b = matrix((*front, k, n), "float16", device, by_column=b_by_column)
    bias = torch.randn(n, device=device)
    residual = torch.randn((*front, m, n), device=device).half()
    x = (a.double() @ b.double()) * 0.125 + bias.double()
    expected = torch.nn.functional.gelu(x) + residual.double()
    arguments = (bias, residual, n, tl.constexpr(0.125))
    agrees(a, b, expected, epilogue=bias_gelu_residual, epilogue_args=arguments, **options)
    c = matmul(a, b, epilogue=place, out_dtype=torch.float32, **options)
    rows = torch.arange(m * max(batch, 1), device=device).view(*front, m, 1)
    assert (c == rows * 1000 + torch.arange(n, device=device)).all()


def with_scales(
    dtype: str, m: int, n: int, k: int, device: str, batch: int = 0, **options: Any
) -> None:
    """One number, and one for each row or column."""
    front = (batch,) if batch else ()
    a = matrix((*front, m, k), dtype, device)
    b = matrix((*front, k, n), dtype, device, by_column=True)
    one = torch.rand(1, device=device) + 0.5
    by_row = torch.rand((*front, m), device=device) + 0.5
    by_column = torch.rand((*front, n), device=device) + 0.5
    plain = a.double() @ b.double()
    tolerance = max(TOLERANCE[dtype], 1e-3)
    for scale_a, scale_b, factor in (
        (one, None, one),
        (None, one.view(()), one),
        (by_row, one, one * by_row[..., None]),
        (by_row, by_column, by_row[..., None] * by_column[..., None, :]),
    ):
        scaled = plain * factor.double()
        options |= {"scale_a": scale_a, "scale_b": scale_b}
        c = agrees(a, b, scaled, tolerance=tolerance, **options)
        assert c.dtype in (torch.float16, torch.bfloat16, torch.float32)


def in_batches(
    m: int, n: int, k: int, device: str, dtypes: tuple[str, ...] = ("float16", "float32"),
    **options: Any,
) -> None:  # fmt: skip
    """Of both operands, of one of them, and of one matrix for all."""
    for dtype in dtypes:
        a, b = matrix((3, m, k), dtype, device), matrix((3, k, n), dtype, device)
        agrees(a, b, **options)
        agrees(a, b[0], **options)
        agrees(a[0], b, **options)
        agrees(a[:1], b, **options)
        agrees(a[0].expand(3, m, k), b, **options)
        agrees(a.transpose(0, 1).contiguous().transpose(0, 1), b.mT.contiguous().mT, **options)
        agrees(a[::2], b[1:], **options)
        assert matmul(a[:1], b[0], **options).shape == (1, m, n)


def of_nothing(device: str) -> None:
    """Extents of zero: no sums, or sums of nothing."""
    a, b = (matrix((64, 64), "float16", device) for _ in range(2))
    assert matmul(a[:0], b).shape == (0, 64)
    assert matmul(a, b[:, :0]).shape == (64, 0)
    assert matmul(a.expand(2, 64, 64)[:0], b).shape == (0, 64, 64)
    poison(device, 64 * 64, a.dtype)
    assert not matmul(a[:, :0], b[:0]).any()
    c = matmul(a[:, :0], b[:0], epilogue=place, out_dtype=torch.float32)
    assert c[3, 4] == 3004


def of_any_strides(device: str) -> None:
    """Rows that are not aligned, columns that are not contiguous, elements at odd addresses."""
    whole = matrix((130, 257), "float16", device)
    b = matrix((128, 96), "float16", device)
    agrees(whole[1:129, 1:129], b)
    agrees(whole[:128, ::2][:, :128], b)
    agrees(whole[:128, :128], whole[:128, 3:99])
    agrees(whole[:1, :128].expand(64, 128), b)
    agrees(b.mT, whole[:128, :256])


def not_finite(device: str, **options: Any) -> None:
    """NaN and infinity reach what they reach in IEEE arithmetic, and nothing else."""
    a, b = matrix((96, 72), "float16", device), matrix((72, 80), "float16", device)
    a[5, 7], a[70, 71] = float("nan"), float("inf")
    b[3, 2], b[71, 79] = float("-inf"), 0.0
    c, expected = matmul(a, b, **options).double(), a.double() @ b.double()
    assert (c.isnan() == expected.isnan()).all()
    assert (c.isinf() == expected.isinf()).all()
    assert (c.sign()[c.isinf()] == expected.sign()[c.isinf()]).all()
    finite = expected.isfinite()
    assert (c - expected)[finite].abs().max() < 0.05
