"""The operators with the reference meaning: ``test_operators.py`` runs this with
TRITON_INTERPRET=1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

from remora.errors import KernelArgumentError
from remora.kernels import matmul as product
from remora.kernels import operators

matmul = torch.ops.remora.matmul


def matrix(rows: int, columns: int, dtype: Any = torch.float32, *, by_column: bool = False) -> Any:
    shape = (columns, rows) if by_column else (rows, columns)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(rows)).to(dtype)
    return values.T if by_column else values


def close(result: Any, expected: Any, tolerance: float = 1e-3) -> bool:
    difference = (result.double() - expected.double()).norm()
    return bool(difference <= tolerance * expected.double().norm())


@pytest.mark.parametrize(
    ("dtype", "by_column"),
    [(torch.float16, False), (torch.bfloat16, True), (torch.float32, False)],
)
def test_opcheck(dtype: Any, by_column: bool) -> None:
    a = matrix(40, 24, dtype).requires_grad_()
    b = matrix(24, 72, dtype, by_column=by_column).requires_grad_()
    assert set(torch.library.opcheck(matmul, (a, b)).values()) == {"SUCCESS"}
    torch.library.opcheck(matmul, (a, b), {"out_dtype": torch.float32})
    torch.library.opcheck(matmul, (a.detach()[:0], b.detach()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_opcheck_of_what_has_no_gradient(dtype: Any) -> None:
    a, b = (3 * matrix(32, 32)).to(dtype), (3 * matrix(32, 32)).to(dtype)
    # PyTorch's check of the schema multiplies its arguments, which fp8 cannot.
    utilities = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    assert "SUCCESS" in torch.library.opcheck(matmul, (a, b), test_utils=utilities).values()
    result = matmul(a, b)
    assert close(result, a.double() @ b.double(), 0 if dtype == torch.int8 else 1e-3)
    scales = torch.rand(32, 1) + 0.5, torch.rand(1, 32) + 0.5
    torch.library.opcheck(matmul, (a, b, *scales), test_utils=utilities)
    truth = (a.double() @ b.double()) * scales[0] * scales[1]
    assert close(matmul(a, b, *scales, torch.float32), truth)
    if dtype.is_floating_point:
        with pytest.raises(KernelArgumentError, match=f"of {dtype} has no gradient"):
            matmul(a.requires_grad_(), b)
    half = matrix(32, 32, torch.float16).requires_grad_()
    with pytest.raises(KernelArgumentError, match="with scales has no gradient"):
        matmul(half, half, *scales)


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_gradients(out_dtype: Any) -> None:
    a, b = matrix(40, 24, torch.float16), matrix(24, 72, torch.float16, by_column=True)
    a.requires_grad_()
    b.requires_grad_()
    result = matmul(a, b, out_dtype=out_dtype)
    assert result.dtype == (out_dtype or torch.float16)
    weights = matrix(40, 72)
    (result.float() * weights).sum().backward()
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    ((a64 @ b64) * weights.double()).sum().backward()
    assert close(result, (a64 @ b64).detach())
    assert close(a.grad, a64.grad)
    assert close(b.grad, b64.grad)
    assert (a.grad.dtype, b.grad.dtype) == (torch.float16, torch.float16)


@pytest.mark.parametrize(("of_a", "of_b"), [((3,), (3,)), ((3,), ()), ((), (3,)), ((3,), (1,))])
def test_batches(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    """One matrix for a whole batch has the sum of all gradients."""
    a, b = torch.randn(*of_a, 20, 24).half(), torch.randn(*of_b, 24, 40).half()
    a.requires_grad_()
    b.requires_grad_()
    torch.library.opcheck(matmul, (a, b), atol=1e-2, rtol=1e-2)
    a.grad = b.grad = None
    weights = torch.randn(3, 20, 40)
    result = matmul(a, b)
    (result.float() * weights).sum().backward()
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    ((a64 @ b64) * weights.double()).sum().backward()
    assert close(result, (a64 @ b64).detach())
    assert close(a.grad, a64.grad, 2e-3)
    assert close(b.grad, b64.grad, 2e-3)


def test_configurations_by_name() -> None:
    """On a CPU nothing is measured."""
    a, b = matrix(40, 24), matrix(24, 72)
    assert close(product(a, b, config="auto"), a.double() @ b.double())
    with pytest.raises(KernelArgumentError, match="config is 'fast'"):
        product(a, b, config="fast")


def test_gradients_of_gradients() -> None:
    a, b = matrix(8, 16).requires_grad_(), matrix(16, 24).requires_grad_()
    (grad,) = torch.autograd.grad(matmul(a, b).square().sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), b)
    a64, b64 = (x.detach().double().requires_grad_() for x in (a, b))
    (grad64,) = torch.autograd.grad((a64 @ b64).square().sum(), a64, create_graph=True)
    # Three products of operands that are rounded to tf32.
    assert close(second, torch.autograd.grad(grad64.square().sum(), b64)[0], 5e-3)


def test_gradients_copy_no_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(a: Any, b: Any, **others: Any) -> Any:
        seen.append((a.data_ptr(), a.stride(), b.data_ptr(), b.stride()))
        return torch.matmul(a, b)

    monkeypatch.setattr(operators, "product", look)
    a, b = matrix(8, 16).requires_grad_(), matrix(16, 24).requires_grad_()
    matmul(a, b).backward(torch.ones(8, 24))
    assert seen[1][2:] == (b.data_ptr(), (1, 24))
    assert seen[2][:2] == (a.data_ptr(), (1, 16))
    seen.clear()
    matmul(a.detach(), b).sum().backward()  # a gradient of stride 0, and only one is asked for
    assert len(seen) == 2
    assert seen[1][3] == (0, 0)


@triton.jit
def _bias_gelu_residual(acc, rows, columns, bias, residual, stride):
    x = acc + tl.load(bias + columns)
    x = 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))
    return x + tl.load(residual + rows * stride + columns)


def _in_torch(sums: Any, bias: Any, residual: Any, stride: int) -> Any:
    return torch.nn.functional.gelu(sums + bias) + residual


bias_gelu_residual = operators.fused("mine::bias_gelu", _bias_gelu_residual, _in_torch)


def test_fused() -> None:
    a, b = matrix(40, 24, torch.float16), matrix(24, 72, torch.float16)
    bias, residual = matrix(1, 72)[0], matrix(40, 72)
    given = [x.requires_grad_() for x in (a, b, bias, residual)]
    torch.library.opcheck(bias_gelu_residual, (a, b, [bias, residual], [72]), atol=1e-2, rtol=1e-2)
    result = torch.ops.mine.bias_gelu(a, b, [bias, residual], [72], out_dtype=torch.float32)
    weights = matrix(40, 72)
    (result * weights).sum().backward()
    in64 = [x.detach().double().requires_grad_() for x in given]
    truth = _in_torch(in64[0] @ in64[1], *in64[2:], 72)
    (truth * weights.double()).sum().backward()
    assert close(result.detach(), truth.detach())
    for one, other in zip(given, in64, strict=True):
        assert one.grad.dtype == one.dtype
        assert close(one.grad, other.grad, 2e-3)


@triton.jit
def _relu(acc, rows, columns):
    return tl.maximum(acc, 0)


def test_fused_without_tensors_or_numbers() -> None:
    """An empty list is one of tensors to PyTorch, whichever it is."""
    relu = operators.fused("mine::relu", _relu, torch.relu)
    a, b = (matrix(*s, torch.float16).requires_grad_() for s in ((40, 24), (24, 72)))
    torch.library.opcheck(relu, (a, b, [], []), atol=1e-2, rtol=1e-2)


def test_fused_in_torch_compile() -> None:
    def layer(a: Any, b: Any, bias: Any, residual: Any) -> Any:
        return bias_gelu_residual(a, b, [bias, residual], [residual.stride(0)]) * 2

    given = matrix(40, 24), matrix(24, 72), matrix(1, 72)[0], matrix(40, 72)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    truth = 2 * _in_torch(given[0].double() @ given[1].double(), *given[2:], 72)
    assert close(compiled(*given), truth)


def model(a: Any, b: Any) -> Any:
    return torch.relu(matmul(a * 2, b)) + 1


def test_torch_compile() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for m in (40, 24, 33):
        a, b = matrix(m, 16).requires_grad_(), matrix(16, 24).requires_grad_()
        result = compiled(a, b)
        assert close(result, torch.relu(2 * a.double() @ b.double()) + 1)
        result.sum().backward()
        assert a.grad.shape == a.shape
        assert a.grad.any()
    assert counter.frame_count == 1  # one graph for all of them


def test_export(tmp_path: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return model(a, b)

    rows = torch.export.Dim("rows", min=2, max=4096)
    exported = torch.export.export(
        Model(), (matrix(40, 16), matrix(16, 24)), dynamic_shapes={"a": {0: rows}, "b": None}
    )
    torch.export.save(exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    targets = [node.target for node in loaded.graph.nodes]
    assert torch.ops.remora.matmul.default in targets
    a, b = matrix(7, 16), matrix(16, 24)
    assert close(loaded.module()(a, b), torch.relu(2 * a.double() @ b.double()) + 1)


@pytest.mark.parametrize(("a", "b", "what"), [
    ((4, 8), (9, 4), "a is (4, 8) and b is (9, 4)"),
    ((4,), (4, 4), "a has to be a torch tensor of 2 or 3 dimensions"),
    ((2, 4, 8), (3, 8, 4), "a has 2 matrices and b 3"),
])  # fmt: skip
def test_refused_where_it_is_traced(a: Any, b: Any, what: str) -> None:
    """Without data, as torch.compile sees it, as well as with it."""
    for mode in (FakeTensorMode(), torch.no_grad()):
        with mode:
            one, other = torch.empty(a), torch.empty(b)
            with pytest.raises(KernelArgumentError) as caught:
                matmul(one, other)
        assert caught.value.what.startswith(what)
