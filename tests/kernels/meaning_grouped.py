"""``grouped_matmul`` and its operators on the CPU, with the reference meaning.

``test_grouped.py`` runs this file where ``TRITON_INTERPRET=1`` is set.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from kernels.grouped_cases import close, reference, values

from remora.errors import KernelArgumentError
from remora.kernels import grouped_matmul, grouped_operators

OFFSETS = {
    "even": [25, 50, 75, 100], "uneven": [1, 67, 68, 100], "empty": [0, 70, 70, 90],
    "none": [0, 0, 0, 0], "wrong": [-5, 40, 20, 7000],
}  # fmt: skip


def offsets(name: str) -> Any:
    return torch.tensor(OFFSETS[name], dtype=torch.int32)


@pytest.fixture
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch allocates is NaN, or another number that no product gives."""
    stock = torch.empty

    def empty(*shape: Any, **options: Any) -> Any:
        new = stock(*shape, **options)
        return new.fill_(torch.nan if new.is_floating_point() else -99999)

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("groups", OFFSETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
def test_groups(dtype: str, groups: str) -> None:
    offs = offsets(groups)
    a, b = values((100, 40), dtype, "cpu"), values((4, 70, 40), dtype, "cpu").mT
    assert close(grouped_matmul(a, b, offs), reference(a, b, offs), dtype)
    c = values((100, 50), dtype, "cpu")
    assert close(grouped_matmul(a.T, c, offs), reference(a.T, c, offs), dtype)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("groups", [[67, 200, 200, 420], [0, 0, 1, 300]])
def test_hopper_s_kernel(groups: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run against each other: numbers, waits that end, and accesses in order."""
    module: Any = importlib.import_module("remora.kernels.grouped_matmul")
    monkeypatch.setattr(module, "_target", lambda _: "cuda:90")
    monkeypatch.setattr(module, "multiprocessors", lambda _: 3)
    offs = torch.tensor(groups, dtype=torch.int32)
    a, b = values((420, 136), "float16", "cpu"), values((4, 200, 136), "float16", "cpu").mT
    assert close(grouped_matmul(a, b, offs), reference(a, b, offs), "float16")
    c = values((420, 72), "float16", "cpu")
    assert close(grouped_matmul(a.T, c, offs), reference(a.T, c, offs), "float16")


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("depth", [136, 40], ids=["stored late", "stored at once"])
def test_hopper_s_kernel_of_lists(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs have tiles of several products, some with rows for one consumer only."""
    module: Any = importlib.import_module("remora.kernels.grouped_matmul")
    monkeypatch.setattr(module, "_target", lambda _: "cuda:90")
    monkeypatch.setattr(module, "multiprocessors", lambda _: 2)
    shapes = [(200, 264), (40, 280), (64, 72), (136, 256), (24, 8)]
    a = [values((m, depth + 8 * i), "float16", "cpu") for i, (m, _) in enumerate(shapes)]
    b = [values((depth + 8 * i, n), "float16", "cpu") for i, (_, n) in enumerate(shapes)]
    for result, x, y in zip(grouped_matmul(a, b), a, b, strict=True):
        assert close(result, x.double() @ y.double(), "float16")


@pytest.mark.usefixtures("_poisoned")
def test_a_group_does_not_see_another() -> None:
    offs = torch.tensor([10, 30, 30, 80], dtype=torch.int32)
    a, b, c = (values(s, "bfloat16", "cpu") for s in ((100, 40), (4, 40, 24), (100, 24)))
    expected, sums = reference(a, b, offs), reference(a.T, c, offs)
    a[10:30], b[1:3], c[10:30] = torch.nan, torch.inf, torch.nan
    a[80:], c[80:] = torch.inf, torch.nan
    result, of_sum = grouped_matmul(a, b, offs), grouped_matmul(a.T, c, offs)
    assert result[10:30].isnan().all()
    assert of_sum[1].isnan().all()
    result[10:30], expected[10:30], of_sum[1], sums[1] = 0, 0, 0, 0
    assert close(result, expected, "bfloat16")
    assert close(of_sum, sums, "bfloat16")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_scales(dtype: str) -> None:
    offs = offsets("uneven")
    a, b = values((100, 64), dtype, "cpu"), values((4, 24, 64), dtype, "cpu").mT
    of_a, of_b = torch.rand(100) + 0.5, torch.rand(4, 24) - 0.5
    result = grouped_matmul(a, b, offs, scale_a=of_a, scale_b=of_b)
    assert result.dtype == torch.float16
    sizes = torch.diff(offs, prepend=torch.zeros(1, dtype=torch.int32))
    columns = of_b.repeat_interleave(sizes, 0)
    assert close(result, reference(a, b, offs) * of_a[:, None] * columns, "float16")


@pytest.mark.usefixtures("_poisoned")
def test_lists() -> None:
    shapes = [(5, 7, 9), (64, 32, 16), (0, 3, 4), (3, 0, 4), (70, 50, 33), (4, 5, 0)]
    a = [values((m, k), "float16", "cpu") for m, _, k in shapes]
    b = [values((n, k), "float16", "cpu").T for _, n, k in shapes]
    results = grouped_matmul(a, b, out_dtype=torch.float32)
    for result, x, y in zip(results, a, b, strict=True):
        assert result.dtype == torch.float32
        assert close(result, x.double() @ y.double(), "float16")
    assert grouped_matmul([], []) == []


@pytest.mark.usefixtures("_poisoned")
def test_sizes_of_zero() -> None:
    a, b, offs = torch.ones(100, 40), torch.ones(4, 40, 24), offsets("even")
    assert grouped_matmul(a[:0], b, offs).shape == (0, 24)
    assert grouped_matmul(a, b[..., :0], offs).shape == (100, 0)
    assert not grouped_matmul(a[:, :0], b[:, :0], offs).any()
    assert not grouped_matmul(a, b[:0], offs[:0]).any()
    assert grouped_matmul(a.T, a, offs[:0]).shape == (0, 40, 40)
    assert not grouped_matmul(a[:0].T, a[:0], offs).any()


def test_gradients() -> None:
    offs = offsets("empty")
    a = values((100, 40), "float32", "cpu").requires_grad_()
    b = values((4, 40, 24), "float32", "cpu").requires_grad_()
    wanted = values((100, 24), "float32", "cpu")
    grouped_matmul(a, b, offs).backward(wanted)
    assert close(a.grad, reference(wanted, b.detach().mT, offs), "float32")
    assert close(b.grad, reference(a.detach().T, wanted, offs), "float32")


OPERANDS = {
    "rows": lambda a, b, c: (a, b, offsets("uneven"), None, None, None),
    "scaled": lambda a, b, c: (
        a.detach(),
        b.detach(),
        offsets("uneven"),
        a[:, 0].detach(),
        b[:, 0].detach(),
        None,
    ),
    "sums": lambda a, b, c: (a.T, c, offsets("empty"), None, None, torch.float32),
}


@pytest.mark.parametrize("kind", OPERANDS)
def test_operator(kind: str) -> None:
    shapes = (100, 40), (4, 40, 24), (100, 16)
    operands = OPERANDS[kind](*(values(s, "float32", "cpu").requires_grad_() for s in shapes))
    torch.library.opcheck(grouped_operators.grouped_matmul, operands)


def test_operator_of_lists() -> None:
    a = [values((m, 16), "float32", "cpu").requires_grad_() for m in (5, 70)]
    b = [values((16, n), "float32", "cpu").requires_grad_() for n in (24, 8)]
    torch.library.opcheck(grouped_operators.grouped_matmul_list, (a, b, None))


def test_what_has_no_gradient() -> None:
    a, b, offs = torch.ones(4, 8), torch.ones(1, 8, 8), torch.tensor([4], dtype=torch.int32)
    eighths = [x.to(torch.float8_e5m2).requires_grad_() for x in (a, b)]
    with pytest.raises(
        KernelArgumentError, match=r"products of torch\.float8_e5m2 have no gradient"
    ):
        grouped_matmul(*eighths, offs)
    with pytest.raises(KernelArgumentError, match="products with scales have no gradient"):
        grouped_matmul(a.requires_grad_(), b, offs, scale_a=a[:, 0].detach(), scale_b=b[0, :1])


def test_export() -> None:
    class Layer(torch.nn.Module):
        def forward(self, a: Any, b: Any, offs: Any) -> Any:
            return torch.relu(grouped_matmul(a, b, offs)), *grouped_matmul([a, a], [b[0], b[1]])

    a, b, offs = torch.randn(100, 40), torch.randn(4, 40, 24), offsets("uneven")
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(Layer(), (a, b, offs), dynamic_shapes=({0: rows}, None, None))
    few = a[:70]
    for result, expected in zip(
        exported.module()(few, b, offs), Layer()(few, b, offs), strict=True
    ):
        assert torch.equal(result, expected)
