"""``triangle_multiply`` with the reference meaning: run by ``test_triangle.py``.

Not collected by itself: Triton reads TRITON_INTERPRET as it is imported.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from kernels.triangle_reference import NAMES, error, inputs, scaled, triangle

from remora.errors import KernelArgumentError
from remora.kernels import triangle_multiply
from remora.kernels.triangle_folding import fold_norms
from remora.kernels.triangle_stock import sigmoid

assert triton.knobs.runtime.interpret

# Of |result - float64| / |float64|. The interpreter rounds to bf16 towards zero.
TOLERANCE = {torch.float32: 1.5e-3, torch.float16: 1.5e-3, torch.bfloat16: 2e-2}


def doubles(values: list[Any]) -> list[Any]:
    return [v.detach().double() for v in values]


# Channels and hidden channels are not of a tile, and n is no multiple of the padding, 16.
@pytest.mark.parametrize("incoming", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize(("dtype", "b", "n", "c", "h"), [
    (torch.float32, 1, 5, 24, 8), (torch.bfloat16, 2, 3, 136, 8), (torch.float16, 1, 18, 16, 4),
])  # fmt: skip
def test_against_float64(dtype: Any, b: int, n: int, c: int, h: int, incoming: bool) -> None:
    values = inputs(b, n, c, h, dtype, "cpu")
    mask = torch.rand(b, n, n) > 0.3
    result = triangle_multiply(*values, mask=mask, incoming=incoming)
    expected = triangle(*doubles(values), mask=mask, incoming=incoming)
    assert result.dtype == dtype
    found = error(result, expected)
    assert found < TOLERANCE[dtype], f"{found:.3e}"


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scales_of_fp32(scale: float) -> None:
    """What fp16 cannot hold: weights are scaled to what it can, and results back."""
    values = scaled(inputs(1, 4, 16, 4, torch.float32, "cpu"), scale)
    expected = triangle(*doubles(values), eps=1e-30)
    assert error(triangle_multiply(*values, eps=1e-30), expected) < TOLERANCE[torch.float32]


def test_a_mean_far_from_zero() -> None:
    values = inputs(1, 4, 16, 4, torch.float32, "cpu")
    values[0] += 1000
    expected = triangle(*doubles(values))
    assert error(triangle_multiply(*values), expected) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_norms_in_the_weights(dtype: Any) -> None:
    """What Hopper's kernels make of x itself, of the folded weights and of their terms."""
    c, h, group, units = 24, 8, 4, dtype == torch.float16
    x, *weights = inputs(1, 4, c, h, dtype, "cpu")
    x = x.view(-1, c) + 30
    w_in, b_in, p_in, g_in, w_out, b_out, p_out, g_out = weights
    both = torch.empty(4 * h, c, dtype=x.dtype)
    folded_p_out, folded_g_out = torch.empty_like(p_out), torch.empty_like(g_out)
    count = 4 * h + 2 * c
    terms = torch.full((1 + units, count), float("nan"))
    if units:  # what fp16 cannot hold of a product of two
        w_in, p_in[0] = w_in * 2**-14, p_in[0] * 2**-8
    fold_norms[(count,)](
        p_in, g_in, p_out, g_out, w_in, b_in, w_out, b_out, both, folded_p_out, folded_g_out,
        terms, c, h, GROUP=group, C_POWER=32, H_POWER=8, UNITS=units, CENTRED=True,
    )  # fmt: skip
    shifts, *by = terms.double()
    groups, log2e = both.view(-1, 2, group, c), 1.4426950408889634
    first = 0
    for matrix, base, factor in (
        (groups[:, 0].reshape(-1, c), p_in, 1), (groups[:, 1].reshape(-1, c), g_in, -log2e),
        (folded_g_out, g_out, -log2e), (folded_p_out, p_out, 1),
    ):  # fmt: skip
        width = matrix.shape[1]
        weight, bias = (w_in, b_in) if width == c else (w_out, b_out)
        rows, some = x[:, :width].double(), slice(first, first + matrix.shape[0])
        variance = rows.var(1, correction=0, keepdim=True)
        got = rows @ matrix.double().T / (variance + 1e-5).sqrt() + shifts[some]
        got = got * by[0][some] if units else got
        y = torch.nn.functional.layer_norm(rows, (width,), weight.double(), bias.double())
        found = error(got, y @ base.double().T * factor)
        assert found < TOLERANCE[x.dtype] / 2, f"{found:.3e}"
        first += matrix.shape[0]


@triton.jit
def _gated(p, g):
    return p / (1.0 + tl.math.exp2(g))  # the kernel's reciprocal is assembly


@pytest.mark.parametrize(
    ("dtype", "stages"), [(torch.float16, None), (torch.float32, {"project": 1, "finish": 2})]
)
def test_hoppers_tasks(dtype: Any, stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that stay; such as two CTAs give each other, in fewer blocks than a group has."""
    from remora.kernels import triangle as update
    from remora.kernels import triangle_folded

    def held(step: str, *pieces: Any) -> dict[str, Any]:
        found = kept(step, *pieces)
        if stages:
            found |= {"STAGES": stages[step], "RESIDENT": False, "TILES": 1, "CLUSTER": 2}
        return found

    kept = update.held_in_shared
    monkeypatch.setattr(update, "held_in_shared", held)
    monkeypatch.setattr(update, "on_hopper", lambda _: True)
    monkeypatch.setattr(update, "_pairs", lambda _: 64)
    monkeypatch.setattr(update, "_processors", lambda _: 4)
    monkeypatch.setattr(triangle_folded, "gated", _gated)
    update._update.cache_clear()
    values = inputs(1, 7, 64, 128, dtype, "cpu")
    mask = torch.rand(1, 7, 7)
    found = error(triangle_multiply(*values, mask=mask), triangle(*doubles(values), mask=mask))
    update._update.cache_clear()
    assert found < TOLERANCE[dtype], f"{found:.3e}"


def test_hoppers_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of gates, by tasks: weights that stay, and such as two CTAs give each other."""
    from remora.kernels import triangle as update
    from remora.kernels import triangle_backward, triangle_gates

    def held(step: str, *pieces: Any) -> dict[str, Any]:
        found = kept(step, *pieces)
        if step == "output":
            found |= {"STAGES": 2, "RESIDENT": False, "TILES": 1, "CLUSTER": 2}
        return found

    kept = update.held_in_shared
    monkeypatch.setattr(update, "held_in_shared", held)
    monkeypatch.setattr(update, "_pairs", lambda _: 64)
    values = [v.requires_grad_() for v in inputs(1, 64, 64, 128, torch.float16, "cpu")]
    mask = torch.rand(1, 64, 64)
    grad = torch.randn(values[0].shape).half()
    update._update.cache_clear()
    result = triangle_multiply(*values, mask=mask)
    update._update.cache_clear()
    monkeypatch.setattr(update, "on_hopper", lambda _: True)
    monkeypatch.setattr(update, "_processors", lambda _: 4)
    monkeypatch.setattr(triangle_gates, "gate_of", sigmoid)
    triangle_backward._steps.cache_clear()
    found = torch.autograd.grad(result, values, grad)
    triangle_backward._steps.cache_clear()
    wide = [v.requires_grad_() for v in doubles(values)]
    expected = torch.autograd.grad(triangle(*wide, mask=mask), wide, grad.double())
    for name, got, want in zip(("x", *NAMES), found, expected, strict=True):
        found_error = error(got, want)
        assert found_error < 2 * TOLERANCE[torch.float16], f"{name}: {found_error:.3e}"


def test_nan_and_inf_go_where_they_go_in_pytorch() -> None:
    values = inputs(1, 4, 8, 2, torch.float16, "cpu")
    values[0][0, 1, 2, 3] = float("nan")
    values[0][0, 3, 2, 5] = float("inf")
    result, expected = triangle_multiply(*values), triangle(*values)
    assert expected.isnan().any()
    assert not expected.isnan().all()
    assert torch.equal(result.isnan(), expected.isnan())


def test_what_a_mask_leaves_out_does_not_count() -> None:
    values = inputs(1, 4, 8, 2, torch.float16, "cpu")
    mask = torch.ones(1, 4, 4)
    mask[0, 1] = 0
    before = triangle_multiply(*values, mask=mask)
    values[0][0, 1] += 1
    after = triangle_multiply(*values, mask=mask)
    assert torch.equal(before[0, 0], after[0, 0])
    assert not torch.equal(before[0, 1], after[0, 1])  # the output's gate


def test_strides() -> None:
    values = inputs(1, 4, 8, 2, torch.float16, "cpu")
    mask = torch.rand(1, 4, 4)
    expected = triangle_multiply(*values, mask=mask)
    values[0] = values[0].transpose(1, 2).contiguous().transpose(1, 2)
    values[3] = values[3].T.contiguous().T
    wide = torch.zeros(1, 4, 8)
    wide[:, :, ::2] = mask
    assert torch.equal(triangle_multiply(*values, mask=wide[:, :, ::2]), expected)
    spread = torch.zeros(*values[0].shape[:3], 24, dtype=torch.float16)
    spread[..., 1::3] = values[0]
    values[0] = spread[..., 1::3]
    assert torch.equal(triangle_multiply(*values, mask=mask), expected)


@pytest.mark.parametrize(
    ("b", "n", "c", "h"), [(0, 4, 8, 2), (1, 0, 8, 2), (1, 2, 0, 2), (1, 2, 8, 0)]
)
def test_nothing_to_do(b: int, n: int, c: int, h: int) -> None:
    values = [torch.randn(s) for s in [
        (b, n, n, c), (c,), (c,), (2 * h, c), (2 * h, c), (h,), (h,), (c, h), (c, c)
    ]]  # fmt: skip
    values = [v.requires_grad_() for v in values]
    result = triangle_multiply(*values)
    assert result.shape == (b, n, n, c)
    assert not result.any()
    result.sum().backward()
    assert all(v.grad is not None and not v.grad.any() for v in values)


@pytest.mark.parametrize("incoming", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_gradients(dtype: Any, incoming: bool) -> None:
    values = [v.requires_grad_() for v in inputs(2, 5, 24, 4, dtype, "cpu")]
    mask = torch.rand(2, 5, 5) > 0.3
    grad = torch.randn(values[0].shape).to(dtype)
    found = torch.autograd.grad(
        triangle_multiply(*values, mask=mask, incoming=incoming), values, grad
    )
    wide = [v.requires_grad_() for v in doubles(values)]
    expected = torch.autograd.grad(
        triangle(*wide, mask=mask, incoming=incoming), wide, grad.double()
    )
    for name, got, want in zip(("x", *NAMES), found, expected, strict=True):
        assert got.dtype == dtype
        found_error = error(got, want)
        assert found_error < 2 * TOLERANCE[dtype], f"{name}: {found_error:.3e}"


def test_a_mask_has_no_gradient() -> None:
    values = inputs(1, 2, 8, 2, torch.float16, "cpu")
    with pytest.raises(KernelArgumentError, match="the mask has no gradient"):
        triangle_multiply(*values, mask=torch.ones(1, 2, 2, requires_grad=True))


def test_the_operator() -> None:
    from remora.kernels import triangle_operators

    values = [v.requires_grad_() for v in inputs(1, 2, 8, 2, torch.float16, "cpu")]
    mask = torch.ones(1, 2, 2)
    torch.library.opcheck(
        triangle_operators.triangle_multiply_keeping, (*values, mask, False, 1e-5),
        test_utils=("test_autograd_registration", "test_faketensor"),
    )  # fmt: skip
    compiled = torch.compile(triangle_multiply, fullgraph=True, backend="aot_eager")
    result = compiled(*values, mask=mask)
    assert torch.equal(result, triangle_multiply(*values, mask=mask))
    result.sum().backward()
    assert all(v.grad is not None for v in values)
