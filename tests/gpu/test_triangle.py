"""``remora.kernels.triangle_multiply`` on a GPU, against float64 and against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernels.triangle_reference import NAMES, error, inputs, scaled, to_tf32, triangle  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(autouse=True)
def tf32() -> Any:
    """PyTorch's products of fp32 as the matrix units have them."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def doubles(values: list[Any]) -> list[Any]:
    return [v.detach().double() for v in values]


def poison(values: list[Any], hidden: int = 128) -> None:
    """Leave NaN where results and intermediates are going to be."""
    size = 4 * values[0].numel() + 4 * hidden * values[0].numel() // max(1, values[0].shape[3])
    torch.full((size,), float("nan"), device="cuda")


def check(values: list[Any], **options: Any) -> Any:
    """No worse than PyTorch in the same precision, but for noise; the same in each run.

    cuBLAS does not multiply all fp32 in tf32 where it may: not one row, and not matrices whose
    rows are no multiple of 16 bytes apart. So tf32 is what float64 gives with each operand of a
    product rounded to it.
    """
    from remora.kernels import triangle_multiply

    mask = options.get("mask")
    expected = triangle(*doubles(values), **options)
    poison(values)
    result = triangle_multiply(*values, **options)
    assert result.dtype == values[0].dtype
    assert result.shape == values[0].shape
    case = f"{tuple(values[0].shape)} {values[0].dtype} {'masked ' if mask is not None else ''}"
    found, in_pytorch = error(result, expected), error(triangle(*values, **options), expected)
    if values[0].dtype == torch.float32:
        rounded = triangle(*doubles(values), **options, operand=to_tf32)
        in_pytorch = max(in_pytorch, error(rounded, expected))
    assert found < min(2e-2, 1.1 * in_pytorch), f"{case}: {found:.3e}, PyTorch {in_pytorch:.3e}"
    poison(values)
    again = triangle_multiply(*values, **options)
    assert torch.equal(again, result), f"{case}: {error(again, result.double()):.3e} the next time"
    return result


@pytest.mark.parametrize("incoming", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("c", [128, 384])
def test_against_float64(c: int, dtype: str, incoming: bool) -> None:
    for b, n in ((2, 256), (1, 192), (1, 320), (1, 512)):
        values = inputs(b, n, c, 128, DTYPES[dtype], "cuda", seed=n)
        check(values, mask=torch.rand(b, n, n, device="cuda") > 0.2, incoming=incoming)


@pytest.mark.parametrize("incoming", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_any_length(dtype: str, incoming: bool) -> None:
    """Rows are padded to 64, which has to show nowhere."""
    for b, n in ((1, 1), (3, 7), (1, 63), (1, 65), (2, 100), (1, 200), (1, 257)):
        values = inputs(b, n, 128, 128, DTYPES[dtype], "cuda", seed=n)
        check(values, mask=torch.rand(b, n, n, device="cuda"), incoming=incoming)


@pytest.mark.parametrize(
    ("c", "h"), [(64, 128), (192, 128), (512, 128), (96, 128), (128, 64), (40, 24)]
)
def test_any_channels(c: int, h: int) -> None:
    """By Hopper's kernels where they take them, else by the portable ones."""
    for dtype in ("bf16", "fp32"):
        values = inputs(1, 130, c, h, DTYPES[dtype], "cuda", seed=c)
        for incoming in (False, True):
            check(values, incoming=incoming)


def test_strides_and_alignment() -> None:
    from remora.kernels import triangle_multiply

    values = inputs(2, 96, 128, 128, torch.bfloat16, "cuda")
    mask = torch.rand(2, 96, 96, device="cuda").bfloat16()
    expected = triangle_multiply(*values, mask=mask)
    x = values[0]
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.zeros(2, 96, 96, 257, device="cuda", dtype=x.dtype)
    spread[..., 1::2] = x
    shifted = torch.zeros(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view(x.shape).copy_(x)
    wide = torch.zeros(2, 96, 192, device="cuda").bfloat16()
    wide[..., ::2] = mask
    for other in (turned, spread[..., 1::2], shifted):
        result = triangle_multiply(other, *values[1:], mask=wide[..., ::2])
        assert torch.equal(result, expected)
    weights = []
    for w in values[1:]:
        moved = torch.zeros(w.numel() + 1, device="cuda", dtype=w.dtype)[1:].view(w.shape).copy_(w)
        weights.append(moved)
    assert torch.equal(triangle_multiply(x, *weights, mask=mask), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_the_tensors() -> None:
    with torch.cuda.device(0):
        check(inputs(1, 192, 128, 128, torch.bfloat16, "cuda:1"))


def test_nan_and_inf_go_where_they_go_in_pytorch() -> None:
    from remora.kernels import triangle_multiply

    for dtype in DTYPES.values():
        values = inputs(1, 128, 128, 128, dtype, "cuda")
        values[0][0, 3, 70, 3] = float("nan")
        values[0][0, 90, 2, 5] = float("inf")
        for incoming in (False, True):
            result = triangle_multiply(*values, incoming=incoming)
            expected = triangle(*values, incoming=incoming)
            assert torch.equal(result.isnan(), expected.isnan())
            assert not expected.isnan().all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("case", ["mean 30", "mean 100", "all the same", "large", "small", "gains"])
def test_norms_in_the_weights(case: str, dtype: str) -> None:
    """Where the mean's part of a product is far larger than the rest, and at the dtype's ends."""
    values = inputs(1, 128, 384, 128, DTYPES[dtype], "cuda")
    x = values[0]
    if case.startswith("mean"):
        x += float(case[5:])
    elif case == "all the same":
        x[:] = 100 * x[..., :1]
    elif case == "gains":
        for norm in (1, 2, 5, 6):
            values[norm] *= 1e-3
        for weight in (3, 4, 7, 8):
            values[weight] *= 1e3
    else:
        x *= 1e4 if case == "large" else 1e-4
    check(values, eps=1e-9 if case == "small" else 1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scales_of_fp32(scale: float) -> None:
    values = scaled(inputs(1, 128, 128, 128, torch.float32, "cuda"), scale)
    check(values, eps=1e-30)


def test_more_than_2_to_the_31_elements() -> None:
    """The projections, 256 channels of 3072 x 3072 pairs; some rows against float64."""
    from remora.kernels import triangle_multiply

    n = 3072
    values = inputs(1, n, 128, 128, torch.bfloat16, "cuda")
    result = triangle_multiply(*values)
    some = torch.tensor([0, 1, n - 1], device="cuda")
    wide = doubles(values[1:])
    y = torch.nn.functional.layer_norm(values[0].double(), (128,), wide[0], wide[1])

    def gated(rows: Any, part: slice) -> Any:
        return (rows @ wide[2][part].T) * torch.sigmoid(rows @ wide[3][part].T)

    a, b = gated(y[0, some], slice(0, 128)), gated(y[0], slice(128, 256))
    t = torch.einsum("ikc,jkc->ijc", a, b)
    z = torch.nn.functional.layer_norm(t, (128,), wide[4], wide[5])
    expected = torch.sigmoid(y[0, some] @ wide[7].T) * (z @ wide[6].T)
    found = error(result[0, some], expected)
    assert found < 2e-2, f"{found:.3e}"


def gradients(of: Any, values: list[Any], grad: Any, **options: Any) -> Any:
    values = [v.detach().requires_grad_() for v in values]
    return torch.autograd.grad(of(*values, **options), values, grad)


def check_gradients(values: list[Any], grad: Any = None, **options: Any) -> Any:
    """As ``check``, of the gradients of x and of all weights."""
    from remora.kernels import triangle_multiply

    if grad is None:
        grad = torch.randn(values[0].shape, device="cuda").to(values[0].dtype)
    expected = gradients(triangle, doubles(values), grad.double(), **options)
    in_pytorch = gradients(triangle, values, grad, **options)
    poison(values)
    found = gradients(triangle_multiply, values, grad, **options)
    poison(values)
    again = gradients(triangle_multiply, values, grad, **options)
    case = f"{tuple(values[0].shape)} {values[0].dtype}"
    wrong = []
    for name, got, same, other, want in zip(
        ("x", *NAMES), found, again, in_pytorch, expected, strict=True
    ):
        assert got.dtype == want.dtype or got.dtype == values[0].dtype
        if not torch.equal(got, same):
            wrong.append(f"{name}: {error(same, got.double()):.3e} the next time")
        ours, theirs = error(got, want), error(other, want)
        if not ours < min(2e-2, max(2e-3, 1.2 * theirs)):
            wrong.append(f"{name}: {ours:.3e}, PyTorch {theirs:.3e}")
    assert not wrong, f"{case}: {'; '.join(wrong)}"
    return found


@pytest.mark.parametrize("incoming", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "n", "c", "h"), [
    (2, 256, 128, 128), (1, 192, 384, 128), (2, 100, 128, 128), (1, 65, 192, 128), (3, 7, 40, 24),
])  # fmt: skip
def test_gradients(b: int, n: int, c: int, h: int, dtype: str, incoming: bool) -> None:
    values = inputs(b, n, c, h, DTYPES[dtype], "cuda", seed=n)
    check_gradients(values, mask=torch.rand(b, n, n, device="cuda") > 0.2, incoming=incoming)


def test_gradients_with_a_mask_of_numbers_and_without_one() -> None:
    values = inputs(1, 96, 128, 128, torch.bfloat16, "cuda")
    check_gradients(values)
    wide = torch.rand(1, 96, 192, device="cuda").bfloat16()
    check_gradients(values, mask=wide[..., ::2])


def test_gradients_of_any_strides() -> None:
    from remora.kernels import triangle_multiply

    values = inputs(2, 96, 128, 128, torch.bfloat16, "cuda")
    grad = torch.randn(values[0].shape, device="cuda").bfloat16()
    expected = check_gradients(values, grad)
    turned = values[0].transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.zeros(2, 96, 96, 257, device="cuda", dtype=grad.dtype)
    spread[..., 1::2] = values[0]
    wide = torch.zeros(2, 96, 96, 257, device="cuda", dtype=grad.dtype)
    wide[..., 1::2] = grad
    weights = [w.T.contiguous().T for w in values[1:]]
    for x in (turned, spread[..., 1::2]):
        found = gradients(triangle_multiply, [x, *weights], wide[..., 1::2])
        for name, got, want in zip(("x", *NAMES), found, expected, strict=True):
            assert torch.equal(got, want), f"{name}: {error(got, want.double()):.3e}"
    check_gradients(values, grad[:1, :1, :1, :1].expand(grad.shape))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_gradients_of_scaled_fp32(scale: float) -> None:
    values = scaled(inputs(1, 128, 128, 128, torch.float32, "cuda"), scale)
    check_gradients(values, eps=1e-30)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("case", ["mean 30", "all the same"])
def test_gradients_of_norms(case: str, dtype: str) -> None:
    values = inputs(1, 128, 384, 128, DTYPES[dtype], "cuda")
    if case == "mean 30":
        values[0] += 30
    else:  # of some pairs
        values[0][:, 3, :40] = 7
    check_gradients(values)


def test_gradients_of_more_than_2_to_the_31_elements() -> None:
    """Those of the products of y, 640 channels of 1856 x 1856 pairs, beside PyTorch's."""
    from remora.kernels import triangle_multiply

    n = 1856
    values = inputs(1, n, 128, 128, torch.bfloat16, "cuda")
    grad = torch.randn(values[0].shape, device="cuda").bfloat16()
    found = gradients(triangle_multiply, values, grad)
    expected = gradients(triangle, values, grad)
    for name, got, want in zip(("x", *NAMES), found, expected, strict=True):
        assert error(got, want.double()) < 2e-2, f"{name}: {error(got, want.double()):.3e}"


def test_gradients_in_a_graph_and_compiled() -> None:
    from remora.kernels import triangle_multiply

    values = inputs(1, 128, 128, 128, torch.bfloat16, "cuda")
    grad = torch.randn(values[0].shape, device="cuda").bfloat16()
    expected = gradients(triangle_multiply, values, grad)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = gradients(triangle_multiply, values, grad)
    for t in replayed:
        t.fill_(float("nan"))
    graph.replay()
    compiled = gradients(torch.compile(triangle_multiply, fullgraph=True), values, grad)
    for name, one, other, want in zip(("x", *NAMES), replayed, compiled, expected, strict=True):
        assert torch.equal(one, want), f"{name} from a graph: {error(one, want.double()):.3e}"
        assert torch.equal(other, want), f"{name} compiled: {error(other, want.double()):.3e}"


def test_operator_compile_graph_and_stream() -> None:
    from remora.kernels import triangle_multiply, triangle_operators

    values = inputs(1, 128, 128, 128, torch.bfloat16, "cuda")
    expected = triangle_multiply(*values)
    compiled = torch.compile(triangle_multiply, fullgraph=True)
    assert torch.equal(compiled(*values), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = triangle_multiply(*values)
    replayed.fill_(float("nan"))
    graph.replay()
    assert torch.equal(replayed, expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        beside = triangle_multiply(*values)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(beside, expected)
    small = [v.requires_grad_() for v in inputs(1, 16, 64, 128, torch.bfloat16, "cuda")]
    torch.library.opcheck(
        triangle_operators.triangle_multiply_keeping, (*small, None, False, 1e-5),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip
