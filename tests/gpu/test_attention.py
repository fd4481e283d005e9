"""Attention on a GPU, against float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

DIMS = [64, 80, 96, 128, 192, 256]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2}


def seen(queries: int, keys: int, *, causal: Any = False, window: Any = None, lower_right=False):
    """Which keys a query sees: (queries, keys)."""
    left, right = window or (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    shift = keys - queries if lower_right else 0
    i = torch.arange(queries, device="cuda")[:, None] + shift
    j = torch.arange(keys, device="cuda")[None, :]
    mask = torch.ones(queries, keys, dtype=torch.bool, device="cuda")
    if left is not None:
        mask &= j >= i - left
    if right is not None:
        mask &= j <= i + right
    return mask


def expected(q: Any, k: Any, v: Any, scale: float | None = None, **band: Any) -> tuple[Any, Any]:
    """In float64: (..., heads, length, dimension), and the logarithms of sums."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, -3) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    mask = seen(q.shape[-2], k.shape[-2], **band)
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1).masked_fill(~mask.any(-1, keepdim=True), 0)
    return weights @ v, scores.logsumexp(-1)


def close(result: Any, wanted: Any, dtype: Any) -> None:
    error = (result.double() - wanted).abs().max()
    assert float(error / wanted.abs().max().clamp_min(1e-30)) < TOLERANCE[dtype]


def normal(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def check(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Run it twice over poisoned memory, and compare; the result."""
    from remora.kernels import attention

    poison = torch.full_like(q, float("nan"))  # its memory is what the result gets
    del poison
    result, sums = attention(q, k, v, return_sums=True, **options)
    options.pop("config", None)
    wanted, logarithms = expected(q, k, v, **options)
    close(result, wanted, q.dtype)
    torch.testing.assert_close(sums.double(), logarithms, atol=2e-4, rtol=1e-4)
    return result


BANDS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (100, 30)},
    "causal-window": {"causal": True, "window": (70, None), "lower_right": True},
    "causal-lower": {"causal": True, "lower_right": True},
}


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("dim", DIMS)
def test_bands_and_lengths(dim: int, band: str) -> None:
    torch.manual_seed(dim)
    dtype = torch.bfloat16 if dim in (80, 192) else torch.float16
    for queries, keys in ((512, 512), (333, 477), (477, 333), (1, 700), (700, 1)):
        q = normal(2, 4, queries, dim, dtype=dtype)
        k, v = (normal(2, 2, keys, dim, dtype=dtype) for _ in range(2))
        check(q, k, v, **BANDS[band])


def test_many_tiles() -> None:
    """More tiles than programs, and many blocks of each."""
    torch.manual_seed(0)
    for dim, causal in ((64, True), (128, False), (128, True)):
        q, k, v = (normal(2, 16, 2048, dim) for _ in range(3))
        first = check(q, k, v, causal=causal)
        assert torch.equal(first, check(q, k, v, causal=causal))


@pytest.mark.parametrize("dim", [64, 96])
def test_any_strides(dim: int) -> None:
    torch.manual_seed(1)
    by_length = [normal(2, 300, 3, dim).transpose(1, 2) for _ in range(3)]
    result = check(*by_length)
    assert result.stride() == by_length[0].stride()
    fused = normal(2, 300, 3, 3, dim).permute(2, 0, 3, 1, 4)
    check(fused[0], fused[1], fused[2], causal=True)
    by_dimension = [normal(2, 3, dim, 300).mT for _ in range(3)]  # copied first
    check(*by_dimension)
    odd = normal(2 * 3 * 300 * dim + 1)[1:].view(2, 3, 300, dim)  # begins at 2 bytes past 16
    check(odd, odd, odd)
    one = normal(1, 1, 300, dim)
    check(one.expand(2, 3, 300, dim), one.expand(2, 3, 300, dim), one.expand(2, 3, 300, dim))


@pytest.mark.parametrize("causal", [False, True])
def test_packed(causal: bool) -> None:
    from remora.kernels.attention import attention_packed

    torch.manual_seed(2)
    lengths_q, lengths_k = [100, 1, 0, 300, 129], [77, 200, 5, 0, 500]
    begins_q, begins_k = (
        torch.tensor([0, *x], device="cuda").cumsum(0).int() for x in (lengths_q, lengths_k)
    )
    for dim in (64, 96):
        q = normal(sum(lengths_q), 4, dim)
        k, v = (normal(sum(lengths_k), 2, dim) for _ in range(2))
        # Rows of the sequence behind would show.
        for end in begins_k[1:-1].tolist():
            v[end] = float("nan") if end == 77 else v[end]
        o, sums = attention_packed(
            q, k, v, begins_q, begins_k, max(lengths_q), max(lengths_k), causal=causal,
            lower_right=True, return_sums=True,
        )  # fmt: skip
        for i in range(len(lengths_q)):
            at = slice(begins_q[i], begins_q[i + 1])
            keys = slice(begins_k[i], begins_k[i + 1])
            wanted, logarithms = expected(
                q[at].transpose(0, 1), k[keys].transpose(0, 1), v[keys].transpose(0, 1),
                causal=causal, lower_right=True,
            )  # fmt: skip
            got = o[at].transpose(0, 1).double()
            torch.testing.assert_close(got, wanted, atol=4e-3, rtol=4e-3, equal_nan=True)
            torch.testing.assert_close(sums[:, at].double(), logarithms, atol=2e-4, rtol=1e-4)


def test_extremes() -> None:
    """NaN and Inf go where SDPA's go; scores of a thousand do no harm; nothing in, nothing out."""
    from remora.kernels import attention

    torch.manual_seed(3)
    q, k, v = (normal(1, 2, 256, 128) for _ in range(3))
    check(q * 100, k * 100, v, scale=1.0)
    check(q * 1e-4, k * 1e-4, v, causal=True)
    check(q, k, v, scale=0.0)
    for place, value in (("q", float("nan")), ("k", float("inf")), ("v", float("nan"))):
        broken = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        broken[place][0, 1, 7, 3] = value
        result = attention(*broken.values())
        wanted = torch.nn.functional.scaled_dot_product_attention(
            *(x.double() for x in broken.values())
        )
        assert torch.equal(result.isnan(), wanted.isnan())
    for shape in ((0, 2, 8, 64), (2, 0, 8, 64), (2, 2, 0, 64)):
        empty = torch.empty(shape, device="cuda").half()
        assert attention(empty, empty, empty).shape == shape
    none = attention(q, k[:, :, :0], v[:, :, :0], return_sums=True)
    assert not none[0].any()
    assert (none[1] == float("-inf")).all()
