"""Attention on a GPU, against float64."""

from __future__ import annotations

from typing import Any

import attention_cases as cases
import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

DIMS = [64, 80, 96, 128, 192, 256]
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
LENGTHS = [(512, 512), (333, 477), (477, 333), (1, 700), (700, 1)]


def normal(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def operands(queries: int, keys: int, dim: int) -> list[Any]:
    """Four heads of queries, two of keys and values."""
    dtype = torch.bfloat16 if dim in (80, 192) else torch.float16
    torch.manual_seed(dim + queries)
    lengths = ((4, queries), (2, keys), (2, keys))
    return [normal(2, heads, length, dim, dtype=dtype) for heads, length in lengths]


def check(q: Any, k: Any, v: Any, *, config: Any = None, **options: Any) -> Any:
    """Compare with float64; the result, written over poisoned memory."""
    from remora.kernels import attention

    poison = torch.full_like(q, float("nan"))
    del poison  # the result gets its memory
    result, sums = attention(q, k, v, return_sums=True, config=config, **options)
    wanted, logarithms = cases.expected(q, k, v, **options)
    error = cases.error(result, wanted)
    assert error < TOLERANCE[q.dtype], (error, tuple(q.shape), tuple(k.shape), options)
    torch.testing.assert_close(sums.double(), logarithms, atol=2e-4, rtol=1e-4)
    return result


@pytest.mark.parametrize("band", cases.BANDS)
@pytest.mark.parametrize("dim", DIMS)
def test_bands_and_lengths(dim: int, band: str) -> None:
    for queries, keys in LENGTHS:
        check(*operands(queries, keys, dim), **cases.BANDS[band])


@pytest.mark.parametrize("band", cases.BANDS)
@pytest.mark.parametrize("dim", DIMS)
def test_gradients(dim: int, band: str) -> None:
    for queries, keys in LENGTHS:
        given = operands(queries, keys, dim)
        cases.gradients_are_right(*given, 2 * TOLERANCE[given[0].dtype], **cases.BANDS[band])


@pytest.mark.parametrize(("dim", "causal"), [(64, True), (128, False), (128, True)])
def test_many_tiles(dim: int, causal: bool) -> None:
    """More tiles than programs, and many blocks of each; twice the same."""
    torch.manual_seed(0)
    q, k, v = (normal(2, 16, 2048, dim) for _ in range(3))
    assert torch.equal(check(q, k, v, causal=causal), check(q, k, v, causal=causal))
    cases.gradients_are_right(q[:, :4], k[:, :2], v[:, :2], 2e-3, causal=causal)


@pytest.mark.parametrize("dim", [192, 256])
def test_gradients_twice_the_same(dim: int) -> None:
    """Of more than 128 columns nothing is added in an order of its own."""
    from remora.kernels import attention

    torch.manual_seed(0)
    q, k, v = (normal(2, 8, 1024, dim).requires_grad_() for _ in range(3))
    o = attention(q, k, v, causal=True)
    gradient = torch.randn_like(o)
    first, second = (
        torch.autograd.grad(o, (q, k, v), gradient, retain_graph=True) for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("dim", [64, 192])
@pytest.mark.parametrize(("batch", "heads"), [(4100, 16), (65_537, 1)])
def test_more_heads_than_a_side_of_a_grid(batch: int, heads: int, dim: int) -> None:
    """Of all of the batch: 65535 programs are the most along a grid's second and third side."""
    cases.gradients_are_right(*(normal(batch, heads, 8, dim) for _ in range(3)), 2e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_the_tensors() -> None:
    q, k, v = (x.to("cuda:1") for x in operands(333, 477, 64))
    with torch.cuda.device(0):
        check(q, k, v, causal=True)
        cases.gradients_are_right(q, k, v, 2 * TOLERANCE[q.dtype], causal=True)


@pytest.mark.parametrize("dim", [64, 96])
def test_any_strides(dim: int) -> None:
    torch.manual_seed(1)
    by_length = [normal(2, 300, 3, dim).transpose(1, 2) for _ in range(3)]
    result = check(*by_length)
    assert result.stride() == by_length[0].stride()
    fused = normal(2, 300, 3, 3, dim).permute(2, 0, 3, 1, 4)
    check(fused[0], fused[1], fused[2], causal=True)
    cases.gradients_are_right(fused[0], fused[1], fused[2], 2e-3, causal=True)
    check(*(normal(2, 3, dim, 300).mT for _ in range(3)))  # copied first
    odd = normal(2 * 3 * 300 * dim + 1)[1:].view(2, 3, 300, dim)  # begins 2 bytes past 16
    check(odd, odd, odd)
    one = normal(1, 1, 300, dim).expand(2, 3, 300, dim)
    check(one, one, one)


@pytest.mark.parametrize("band", ["full", "causal-lower", "causal-window"])
@pytest.mark.parametrize("dim", [64, 96, 192])
def test_packed(dim: int, band: str) -> None:
    torch.manual_seed(2)
    cases.packed_is_right(
        [100, 1, 0, 300, 129, 700], [77, 200, 5, 0, 500, 650], 4, 2, dim, "cuda", 2e-3,
        **cases.BANDS[band],
    )  # fmt: skip


def test_extremes() -> None:
    """NaN and Inf go where SDPA's go; scores of thousands do no harm; nothing in, nothing out."""
    from remora.kernels import attention

    torch.manual_seed(3)
    q, k, v = (normal(1, 2, 256, 128) for _ in range(3))
    check(q * 30, k * 30, v, scale=1.0)
    check(q * 1e-4, k * 1e-4, v, causal=True)
    check(q, k, v, scale=0.0)
    cases.gradients_are_right(q, k, v, 2e-3, scale=0.0)
    rising = k * torch.linspace(0, 20, 256, device="cuda")[:, None].half()  # rescaled each step
    check(q, rising, v)
    for place, value in (("q", "nan"), ("k", "inf"), ("v", "nan"), ("v", "inf")):
        broken = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        broken[place][0, 1, 7, 3] = float(value)
        result = attention(*broken.values())
        wanted = cases.expected(*broken.values())[0]
        assert torch.equal(result.isnan(), wanted.isnan())
    for shape in ((0, 2, 8, 64), (2, 0, 8, 64), (2, 2, 0, 64)):
        empty = torch.empty(shape, device="cuda").half()
        assert attention(empty, empty, empty).shape == shape
    none, sums = attention(q, k[:, :, :0], v[:, :, :0], return_sums=True)
    assert not none.any()
    assert (sums == float("-inf")).all()


def test_more_than_two_billion_elements() -> None:
    """Heads 2**31 elements apart, and rows far from the first."""
    memory = torch.empty((1 << 31) + (1 << 22), dtype=torch.float16, device="cuda")
    torch.manual_seed(4)
    q, k, v = (memory[i << 20 :].as_strided((1, 2, 256, 64), (0, 1 << 31, 64, 1)) for i in range(3))
    for x in (q, k, v):
        x.copy_(normal(1, 2, 256, 64))
    check(q, k, v, causal=True)


def test_streams_and_graphs() -> None:
    from remora.kernels import attention

    torch.manual_seed(5)
    sets = [[normal(2, 8, 1024, 64) for _ in range(3)] for _ in range(4)]
    wanted = [attention(*x, causal=True) for x in sets]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sets]
    results = []
    for stream, x in zip(streams, sets, strict=True):
        with torch.cuda.stream(stream):
            results.append(attention(*x, causal=True))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
    graph = torch.cuda.CUDAGraph()
    q, k, v = (x.clone() for x in sets[0])
    with torch.cuda.graph(graph):
        captured = attention(q, k, v, causal=True)
    for x, one in zip(sets, wanted, strict=True):
        for to, value in zip((q, k, v), x, strict=True):
            to.copy_(value)
        graph.replay()
        assert torch.equal(captured, one)


def test_compiled() -> None:
    from remora.kernels import attention

    torch.manual_seed(6)
    q, k, v = (normal(2, 4, 512, 128).requires_grad_() for _ in range(3))
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, causal=True) * 2, fullgraph=True)
    compiled(q, k, v).sum().backward()
    first = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    (attention(q, k, v, causal=True) * 2).sum().backward()
    for x, one in zip((q, k, v), first, strict=True):
        error = cases.error(x.grad, one.double())
        assert error < 1e-3, error
