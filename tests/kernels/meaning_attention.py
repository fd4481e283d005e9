"""Attention on the CPU: run by ``test_attention.py`` with TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib
from typing import Any

import attention_cases as cases
import pytest
import torch
import triton

from remora.errors import KernelArgumentError
from remora.kernels import attention, attention_packed

assert triton.knobs.runtime.interpret

module: Any = importlib.import_module("remora.kernels.attention")


def normal(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("band", cases.BANDS)
def test_bands(band: str) -> None:
    options = cases.BANDS[band]
    dim = 80 if band == "window" else 64
    queries, keys = (33, 130) if "causal" in band else (70, 45)
    q = normal(1, 4, queries, dim)
    k, v = normal(1, 2, keys, dim), normal(1, 2, keys, dim) * 2
    result, sums = attention(q, k, v, return_sums=True, scale=0.2, **options)
    wanted, logarithms = cases.expected(q, k, v, 0.2, **options)
    assert cases.error(result, wanted) < 1e-3
    torch.testing.assert_close(sums.double(), logarithms, atol=1e-5, rtol=1e-5)
    cases.gradients_are_right(q, k, v, 2e-3, **options)


@pytest.mark.parametrize(("dim", "band"), [
    (64, "full"), (64, "causal"), (128, "causal"), (96, "window"), (192, "causal-lower"),
])  # fmt: skip
def test_hopper_s_kernels(monkeypatch: pytest.MonkeyPatch, dim: int, band: str) -> None:
    """Tasks run against each other: numbers, waits that end, and accesses in order."""
    monkeypatch.setattr(module, "_on_hopper", lambda _: True)
    monkeypatch.setattr(module, "multiprocessors", lambda _: 2)
    options = cases.BANDS[band]
    q, k, v = normal(1, 2, 290, dim), normal(1, 1, 310, dim), normal(1, 1, 310, dim)
    result, sums = attention(q, k, v, return_sums=True, **options)
    wanted, logarithms = cases.expected(q, k, v, **options)
    assert cases.error(result, wanted) < 1e-3
    torch.testing.assert_close(sums.double(), logarithms, atol=1e-3, rtol=1e-3)
    cases.gradients_are_right(q, k, v, 2e-3, **options)


@pytest.mark.parametrize(("dim", "hopper"), [(64, False), (64, True), (192, True)])
def test_more_heads_than_a_side_of_a_grid(
    monkeypatch: pytest.MonkeyPatch, dim: int, hopper: bool
) -> None:
    """In parts, of two of the batch and then the last one."""
    monkeypatch.setattr(module, "_on_hopper", lambda _: hopper)
    monkeypatch.setattr(module, "multiprocessors", lambda _: 2)
    monkeypatch.setattr(module, "_SIDE", 5)
    q, k, v = normal(3, 2, 20, dim), normal(3, 1, 30, dim), normal(3, 1, 30, dim)
    assert cases.error(attention(q, k, v), cases.expected(q, k, v)[0]) < 1e-3
    cases.gradients_are_right(q, k, v, 2e-3, causal=True)
    cases.packed_is_right([9, 20, 4], [5, 3, 30], 2, 1, dim, "cpu", 2e-3)
    monkeypatch.setattr(module, "_SIDE", 1)
    with pytest.raises(KernelArgumentError, match="q has 2 heads"):
        attention(q.requires_grad_(), k, v).sum().backward()


def test_strides_and_dtype() -> None:
    q, k, v = (normal(2, 40, 2, 96, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    result = attention(q, k, v, causal=True)
    assert (result.dtype, result.stride()) == (q.dtype, q.stride())
    assert cases.error(result, cases.expected(q, k, v, causal=True)[0]) < 1e-2
    by_dimension = q.mT.contiguous().mT
    assert torch.equal(attention(by_dimension, k, v, causal=True), result)


def test_packed() -> None:
    cases.packed_is_right([20, 1, 0, 7, 65], [5, 70, 3, 9, 40], 4, 2, 64, "cpu", 2e-3)
    cases.packed_is_right(
        [20, 1, 9, 65, 0], [5, 70, 3, 40, 2], 2, 2, 64, "cpu", 2e-3,
        causal=True, lower_right=True,
    )  # fmt: skip


def test_extremes() -> None:
    q, k, v = (normal(1, 1, 40, 64) for _ in range(3))
    for factor in (1e-4, 60.0):
        wanted = cases.expected(q * factor, k * factor, v)[0]
        assert cases.error(attention(q * factor, k * factor, v), wanted) < 2e-3
    assert cases.error(attention(q, k, v, scale=0.0), v.double().mean(-2).expand_as(v)) < 1e-3
    k[0, 0, 7, 3] = float("nan")
    assert attention(q, k, v).isnan().all()
    for shape in ((0, 2, 8, 64), (2, 0, 8, 64), (2, 2, 0, 64)):
        empty = torch.empty(shape).half().requires_grad_()
        result = attention(empty, empty, empty)
        result.sum().backward()
        assert result.shape == empty.grad.shape == shape
    result, sums = attention(q, k[:, :, :0], v[:, :, :0], return_sums=True)
    assert not result.any()
    assert (sums == float("-inf")).all()


def test_operators() -> None:
    import remora.kernels.attention_operators  # noqa: F401

    q, k, v = (normal(1, 2, 20, 64).requires_grad_() for _ in range(3))
    begins = torch.tensor([0, 5, 20]).int()
    packed = [x.detach()[0].transpose(0, 1).requires_grad_() for x in (q, k, v)]
    operators = torch.ops.remora
    torch.library.opcheck(operators.attention.default, (q, k, v, 0.125), {"right": 0})
    torch.library.opcheck(
        operators.attention_packed.default, (*packed, begins, begins, 15, 15, 0.125)
    )
    compiled = torch.compile(
        lambda *x: attention(*x, causal=True) * 2, backend="aot_eager", fullgraph=True
    )
    compiled(q, k, v).sum().backward()
    first = q.grad.clone()
    q.grad = None
    (attention(q, k, v, causal=True) * 2).sum().backward()
    assert torch.equal(q.grad, first)


@pytest.mark.parametrize(("change", "said"), [
    ({"q": torch.zeros(2, 3, 4)}, "q has to be a torch tensor"),
    ({"k": torch.zeros(1, 2, 8, 64).bfloat16()}, "k of torch.bfloat16"),
    ({"v": torch.zeros(1, 2, 9, 64).half()}, "have in common"),
    ({"k": torch.zeros(1, 3, 8, 64).half(), "v": torch.zeros(1, 3, 8, 64).half()}, "key heads"),
    ({"k": torch.zeros(2, 2, 8, 64).half(), "v": torch.zeros(2, 2, 8, 64).half()}, "the batch"),
    ({"scale": -1.0}, "scale is -1.0"),
    ({"window": (1 << 30, None)}, "window is"),
])  # fmt: skip
def test_refused(change: dict[str, Any], said: str) -> None:
    given = {name: torch.zeros(1, 2, 8, 64).half() for name in "qkv"}
    with pytest.raises(KernelArgumentError, match=said):
        attention(**{**given, **change})


def test_refused_when_packed() -> None:
    x, begins = torch.zeros(8, 2, 64).half(), torch.tensor([0, 8])
    with pytest.raises(KernelArgumentError, match="int32"):
        attention_packed(x, x, x, begins, begins, 8, 8)
    with pytest.raises(KernelArgumentError, match="begins_q"):
        attention_packed(x, x, x, begins.int(), begins[:1].int(), 8, 8)
