"""``remora.kernels.grouped_matmul`` on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernels.grouped_cases import close, reference, values  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

# Where groups of 1000 end: even and not, empty ones, the last one short of the end, back, past it.
OFFSETS = {
    "even": [256, 512, 768, 1000],
    "uneven": [3, 131, 132, 1000],
    "empty": [0, 0, 500, 500, 900, 900],
    "one": [1000],
    "none": [0, 0, 0],
    "wrong": [-5, 300, 200, 7000, 9],
}


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    """What PyTorch allocates without a value is NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def offsets(name: str) -> Any:
    return torch.tensor(OFFSETS[name], dtype=torch.int32, device="cuda")


def multiply(*operands: Any, **options: Any) -> Any:
    from remora.kernels import grouped_matmul

    first, second = (grouped_matmul(*operands, **options) for _ in range(2))
    if isinstance(first, list):
        assert all(map(torch.equal, first, second))
    else:
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    return first


@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("n", "k"), [(384, 256), (136, 72), (1000, 1000), (64, 32), (77, 45)])
@pytest.mark.parametrize("groups", OFFSETS)
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"]
)
def test_groups_of_rows(dtype: str, groups: str, n: int, k: int, by_column: bool) -> None:
    offs = offsets(groups)
    torch.manual_seed(n + k)
    a = values((1000, k), dtype, "cuda")
    b = values((len(offs), n, k), dtype, "cuda").mT
    if not by_column:
        b = b.view(torch.uint8).contiguous().view(b.dtype) if b.itemsize == 1 else b.contiguous()
    assert close(multiply(a, b, offs), reference(a, b, offs), dtype)


@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("m", "n"), [(256, 512), (200, 136), (64, 1000), (8, 8), (77, 45)])
@pytest.mark.parametrize("groups", OFFSETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_groups_of_the_sum(dtype: str, groups: str, m: int, n: int, by_column: bool) -> None:
    """A as autograd gives it, by columns; and as it is not copied by descriptor."""
    offs = offsets(groups)
    torch.manual_seed(m + n)
    a = values((1000, m), dtype, "cuda").T
    b = values((1000, n), dtype, "cuda")
    if by_column:
        a, b = a.contiguous(), b.T.contiguous().T
    assert close(multiply(a, b, offs), reference(a, b, offs), dtype)


@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("n", [384, 77])
@pytest.mark.parametrize("groups", ["uneven", "empty"])
def test_scales(groups: str, n: int, by_column: bool) -> None:
    offs = offsets(groups)
    a, b = values((1000, 256), "float8_e4m3fn", "cuda"), values((len(offs), n, 256), "int8", "cuda")
    b = b.to(torch.float8_e4m3fn).mT
    if not by_column:
        b = b.view(torch.uint8).contiguous().view(b.dtype)
    of_a = torch.rand(1000, device="cuda") + 0.5
    of_b = torch.rand(len(offs), n, device="cuda") - 0.5
    result = multiply(a, b, offs, scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16)
    sizes = torch.diff(offs, prepend=offs.new_zeros(1))
    columns = torch.zeros(1000, n, device="cuda")
    columns[: offs[-1]] = of_b.repeat_interleave(sizes, 0)
    assert close(result, reference(a, b, offs) * of_a[:, None] * columns, "bfloat16")


SHAPES = [(128, 256, 64), (1000, 776, 328), (8, 8, 8), (0, 64, 64), (64, 64, 0), (300, 512, 1024)]


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_lists(dtype: str, odd: bool, turned: str) -> None:
    shapes = [*SHAPES, (33, 77, 45)] if odd else SHAPES
    shapes = shapes * 4  # more than one launch writes the table
    torch.manual_seed(0)
    a = [values((m, k), dtype, "cuda") for m, n, k in shapes]
    b = [values((k, n), dtype, "cuda") for m, n, k in shapes]
    if "a" in turned:
        a = [x.T.contiguous().T for x in a]
    if "b" in turned:
        b = [x.T.contiguous().T for x in b]
    for c, x, y in zip(multiply(a, b), a, b, strict=True):
        assert close(c, x.double() @ y.double(), dtype)


@pytest.mark.parametrize("turned", ["", "a", "b"])
def test_lists_that_are_stored_late(turned: str) -> None:
    """Programs have tiles of several products, of which some have rows for one consumer only."""
    shapes = [(1000, 776, 328), (100, 2056, 192), (64, 520, 136), (700, 1024, 1024), (40, 264, 200)]
    shapes *= 6
    torch.manual_seed(0)
    a = [values((m, k), "bfloat16", "cuda") for m, n, k in shapes]
    b = [values((k, n), "bfloat16", "cuda") for m, n, k in shapes]
    if "a" in turned:
        a = [x.T.contiguous().T for x in a]
    if "b" in turned:
        b = [x.T.contiguous().T for x in b]
    for _ in range(3):
        for c, x, y in zip(multiply(a, b), a, b, strict=True):
            assert close(c, x.double() @ y.double(), "bfloat16")


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_group_does_not_see_another(poison: float) -> None:
    """NaN and Inf stay in their group, and in rows that no group has."""
    offs = torch.tensor([100, 230, 230, 700], dtype=torch.int32, device="cuda")
    a = values((1000, 200), "bfloat16", "cuda")
    b = values((4, 200, 264), "bfloat16", "cuda")
    c = values((1000, 264), "bfloat16", "cuda")
    expected, sums = reference(a, b, offs), reference(a.T, c, offs)
    a[100:230], b[1:3], c[100:230] = poison, poison, poison
    a[700:], c[700:] = poison, poison
    result, of_sum = multiply(a, b, offs), multiply(a.T, c, offs)
    assert not result[100:230].isfinite().any()
    assert not of_sum[1].isfinite().any()
    result[100:230], expected[100:230] = 0, 0
    assert close(result, expected, "bfloat16")
    of_sum[1], sums[1] = 0, 0
    assert close(of_sum, sums, "bfloat16")


def test_large_small_and_zero() -> None:
    offs = offsets("uneven")
    for scale in (2.0**60, 2.0**-60, 0.0):
        a = values((1000, 256), "bfloat16", "cuda") * scale
        b = values((4, 256, 256), "bfloat16", "cuda")
        expected = reference(a, b, offs)
        difference = (multiply(a, b, offs, out_dtype=torch.float32).double() - expected).abs()
        assert difference.max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("what", ["misaligned", "strided", "expanded", "slice"])
def test_operands_that_are_not_contiguous(what: str) -> None:
    offs = offsets("uneven")
    a, b = values((1000, 128), "float16", "cuda"), values((4, 128, 256), "float16", "cuda")
    if what == "misaligned":
        a = torch.cat([a.flatten()[:1], a.flatten()])[1:].view(1000, 128)
        b = torch.cat([b.flatten()[:3], b.flatten()])[3:].view(4, 128, 256)
    elif what == "strided":
        a = values((1000, 256), "float16", "cuda")[:, ::2]
        b = values((4, 128, 512), "float16", "cuda")[..., ::2]
    elif what == "expanded":
        a, b = a[:1].expand(1000, 128), b[:1].expand(4, 128, 256)
    else:
        a = values((1000, 200), "float16", "cuda")[:, 24:152]
        b = values((8, 130, 264), "float16", "cuda")[::2, 1:129, 8:]
    assert close(multiply(a, b, offs), reference(a, b, offs), "float16")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_device_of_the_tensors(dtype: str) -> None:
    offs = offsets("uneven").to("cuda:1")
    a, b = values((1000, 128), dtype, "cuda:1"), values((4, 128, 256), dtype, "cuda:1")
    with torch.cuda.device(0):
        assert close(multiply(a, b, offs), reference(a, b, offs), dtype)
        assert close(multiply(a.T, a, offs), reference(a.T, a, offs), dtype)
        for c, x, y in zip(multiply([a, a[:5]], [b[0], b[1]]), (a, a[:5]), b[:2], strict=True):
            assert close(c, x.double() @ y.double(), dtype)


def test_more_than_2_31_elements() -> None:
    rows, k, n = (1 << 20) + 300, 2112, 64
    a = torch.empty(rows, k, dtype=torch.float16, device="cuda").normal_()
    b = values((3, k, n), "float16", "cuda")
    offs = torch.tensor([1000, rows - 500, rows], dtype=torch.int32, device="cuda")
    c = multiply(a, b, offs)
    for at in (slice(900, 1100), slice(rows - 600, rows)):
        here = (offs - at.start).clamp(0, at.stop - at.start)
        assert close(c[at], reference(a[at], b, here), "float16")
    tall = values((k, n), "float16", "cuda")
    wide = a[:, :8]  # rows are far apart
    assert close(multiply(wide, tall[:8].expand(3, 8, n).contiguous(), offs)[-500:],
                 wide[-500:].double() @ tall[:8].double(), "float16")  # fmt: skip


@pytest.mark.parametrize("groups", ["uneven", "empty"])
def test_gradients(groups: str) -> None:
    from remora.kernels import grouped_matmul

    offs = offsets(groups)
    a = values((1000, 200), "bfloat16", "cuda").requires_grad_()
    b = values((len(offs), 136, 200), "bfloat16", "cuda").mT.requires_grad_()
    wanted = values((1000, 136), "bfloat16", "cuda")
    grouped_matmul(a, b, offs).backward(wanted)
    of_a = reference(wanted, b.detach().mT, offs)
    of_b = reference(a.detach().T, wanted, offs)
    assert close(a.grad, of_a, "bfloat16")
    assert close(b.grad, of_b, "bfloat16")
    # Groups of the sum: their gradients are products of groups of rows.
    x = values((1000, 64), "bfloat16", "cuda").T.requires_grad_()
    y = values((1000, 72), "bfloat16", "cuda").requires_grad_()
    wanted = values((len(offs), 64, 72), "bfloat16", "cuda")
    grouped_matmul(x, y, offs).backward(wanted)
    assert close(x.grad, reference(y.detach(), wanted.mT, offs).T, "bfloat16")
    assert close(y.grad, reference(x.detach().T, wanted, offs), "bfloat16")


def test_gradients_of_lists() -> None:
    from remora.kernels import grouped_matmul

    a = [values((m, 64), "float16", "cuda").requires_grad_() for m in (16, 200)]
    b = [values((64, n), "float16", "cuda").requires_grad_() for n in (72, 136)]
    wanted = [
        values((x.shape[0], y.shape[1]), "float16", "cuda") for x, y in zip(a, b, strict=True)
    ]
    torch.autograd.backward(grouped_matmul(a, b), wanted)
    for x, y, w in zip(a, b, wanted, strict=True):
        assert close(x.grad, w.double() @ y.detach().double().T, "float16")
        assert close(y.grad, x.detach().double().T @ w.double(), "float16")


def test_opcheck() -> None:
    from remora.kernels import grouped_operators

    offs = offsets("uneven")
    a = values((1000, 64), "bfloat16", "cuda").requires_grad_()
    b = values((4, 64, 128), "bfloat16", "cuda").requires_grad_()
    torch.library.opcheck(grouped_operators.grouped_matmul, (a, b, offs, None, None, None))
    c = values((1000, 72), "bfloat16", "cuda").requires_grad_()
    torch.library.opcheck(
        grouped_operators.grouped_matmul, (a.T, c, offs, None, None, torch.float32)
    )
    torch.library.opcheck(grouped_operators.grouped_matmul_list, ([a, a[:5]], [b[0], b[1]], None))


def test_torch_compile() -> None:
    import triton

    from remora.errors import RemoraError
    from remora.kernels import grouped_matmul

    try:
        torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(64, device="cuda"))
    except Exception as error:
        if RemoraError.of(error) is not None:
            raise
        versions = f"PyTorch {torch.__version__} with Triton {triton.__version__}"
        pytest.skip(f"{versions} does not compile: {error}")

    def layer(a: Any, b: Any, c: Any, offs: Any) -> Any:
        hidden = torch.relu(grouped_matmul(a * 2, b, offs))
        return grouped_matmul(hidden, c, offs).float().square().mean()

    offs = offsets("uneven")
    operands = [values(s, "bfloat16", "cuda") / 8 for s in ((1000, 64), (4, 64, 128), (4, 128, 64))]
    eager, compiled = ([x.clone().requires_grad_() for x in operands] for _ in range(2))
    layer(*eager, offs).backward()
    torch.compile(layer, fullgraph=True)(*compiled, offs).backward()
    for x, y in zip(eager, compiled, strict=True):
        assert (x.grad - y.grad).norm() <= 2e-2 * x.grad.norm()


def test_a_graph_is_replayed_with_other_offsets() -> None:
    """Nothing waits for the host: a graph follows what offsets say when it is replayed."""
    from remora.kernels import grouped_matmul

    offs = offsets("uneven")
    a, b = values((1000, 64), "bfloat16", "cuda"), values((4, 64, 128), "bfloat16", "cuda")
    lists = [a[:100], a[100:300]], [b[0], b[1]]
    grouped_matmul(a, b, offs), grouped_matmul(a.T, a, offs), grouped_matmul(*lists)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, sums = grouped_matmul(a, b, offs), grouped_matmul(a.T, a, offs)
        products = grouped_matmul(*lists)
    for ends in ([250, 500, 750, 1000], [10, 10, 999, 999]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        a.normal_()
        graph.replay()
        assert close(rows, reference(a, b, offs), "bfloat16")
        assert close(sums, reference(a.T, a, offs), "bfloat16")
        for c, x, y in zip(products, *lists, strict=True):
            assert close(c, x.double() @ y.double(), "bfloat16")


def test_streams() -> None:
    """Launches that run at the same time do not share descriptors."""
    from remora.kernels import grouped_matmul

    offs = offsets("uneven")
    cases, streams = [], [torch.cuda.Stream() for _ in range(4)]
    for i, stream in enumerate(streams):
        a, b = (values(s, "bfloat16", "cuda") for s in ((1000, 64 + 8 * i), (4, 64 + 8 * i, 128)))
        cases.append((a, b, [], reference(a, b, offs), reference(a.T, a, offs)))
        stream.wait_stream(torch.cuda.current_stream())
    for _ in range(10):
        for stream, (a, b, results, *_) in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                results.append((grouped_matmul(a, b, offs), grouped_matmul(a.T, a, offs)))
    torch.cuda.synchronize()
    for _, _, results, rows, sums in cases:
        for result, of_sum in results:
            assert close(result, rows, "bfloat16")
            assert close(of_sum, sums, "bfloat16")
