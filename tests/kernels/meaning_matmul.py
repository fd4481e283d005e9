"""``matmul`` with the reference meaning: what tests/gpu/test_matmul.py tries, at small sizes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from kernels import matmul_cases as cases

from remora.errors import KernelArgumentError
from remora.kernels import launches, matmul
from remora.kernels.config import Config
from remora.kernels.operands import product_of
from remora.kernels.stream_k import _cluster_of, items_of, work_item

assert triton.knobs.runtime.interpret


@pytest.mark.parametrize("dtype", cases.TOLERANCE)
def test_any_extent_and_order(dtype: str) -> None:
    for m, n, k in ((9, 5, 3), (70, 90, 33), (64, 128, 200)):
        for a_by_column, b_by_column in ((False, False), (True, True)):
            a = cases.matrix((m, k), dtype, "cpu", by_column=a_by_column)
            b = cases.matrix((k, n), dtype, "cpu", by_column=b_by_column)
            cases.agrees(a, b)


def test_batches() -> None:
    cases.in_batches(20, 40, 24, "cpu")


def test_epilogues() -> None:
    cases.with_epilogue(70, 90, 33, "cpu")
    cases.with_epilogue(40, 70, 33, "cpu", batch=2)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_scales(dtype: str) -> None:
    cases.with_scales(dtype, 70, 40, 48, "cpu")
    cases.with_scales(dtype, 20, 40, 48, "cpu", batch=2)


def test_nothing() -> None:
    cases.of_nothing("cpu")


def test_any_strides() -> None:
    cases.of_any_strides("cpu")


def test_what_is_not_finite() -> None:
    cases.not_finite("cpu")


def test_type_of_the_result() -> None:
    a = cases.matrix((16, 16), "float16", "cpu")
    assert matmul(a, a, out_dtype=torch.float32).dtype == torch.float32
    assert matmul(a.to(torch.int8), a.to(torch.int8)).dtype == torch.int32


def test_what_is_launched_again() -> None:
    """Launches are worked out once for tensors of one kind, and hold for these only."""
    from remora.kernels.matmul import _KNOWN

    scale = torch.rand(1) + 0.5
    for turn in range(2):
        before = len(_KNOWN)
        a, b = cases.matrix((40, 24), "float16", "cpu"), cases.matrix((24, 56), "float16", "cpu")
        cases.agrees(a, b)
        cases.agrees(a[:20], b)
        cases.agrees(a, b, a.double() @ b.double() * scale.double(), scale_a=scale)
        cases.agrees(a.expand(3, 40, 24), b)
        cases.agrees(torch.cat([a, a], 1)[:, :24], b)
        assert matmul(a, b, out_dtype=torch.float32).dtype == torch.float32
        assert (len(_KNOWN) - before, turn) in ((6, 0), (0, 1))


@triton.jit
def shares(out, clusters, tiles, split_tiles, steps, MOST: tl.constexpr, STREAM_K: tl.constexpr):
    """Each cluster's items: tile, first step, step after the last, who is the tile's first."""
    cluster = tl.program_id(0)
    for item in range(items_of(cluster, clusters, tiles, split_tiles, steps, STREAM_K)):
        tile, first, last = work_item(item, cluster, clusters, tiles, split_tiles, steps, STREAM_K)
        at = out + (cluster * MOST + item) * 4
        tl.store(at, tile)
        tl.store(at + 1, first)
        tl.store(at + 2, last)
        if STREAM_K and first > 0:
            start = (tile - (tiles - split_tiles)) * steps
            tl.store(at + 3, _cluster_of(start, clusters, split_tiles * steps))


@pytest.mark.parametrize(("clusters", "tiles", "steps"), [
    (5, 3, 4), (5, 13, 3), (4, 6, 1), (7, 2, 5), (3, 1, 3), (6, 9, 10),
])  # fmt: skip
def test_tiles_are_cut_into_equal_shares(clusters: int, tiles: int, steps: int) -> None:
    """As ``launches.specialized`` cuts them; who gives sums has a lower number than who adds."""
    split, most = min(tiles, tiles % clusters + clusters), tiles + 2
    out = torch.full((clusters, most, 4), -1, dtype=torch.int32)
    shares[(clusters,)](out, clusters, tiles, split, steps, most, True)
    parts: dict[int, list[tuple[int, int, int, int]]] = {tile: [] for tile in range(tiles)}
    work = []
    for cluster, items in enumerate(out.tolist()):
        items = [item for item in items if item[0] >= 0]
        work.append(sum(last - first for _, first, last, _ in items))
        # At most the first item is given away: there is room for one.
        assert all(last == steps for _, _, last, _ in items[1:])
        for tile, first, last, giver in items:
            parts[tile].append((first, last, cluster, giver))
    assert max(work) - min(work) <= 1
    for found in parts.values():
        found.sort()
        ends = [0, *(last for _, last, _, _ in found)]
        assert [first for first, *_ in found] == ends[:-1]
        assert ends[-1] == steps
        numbers = [cluster for _, _, cluster, _ in found]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert all(giver in (-1, numbers[0]) for *_, giver in found)


@pytest.mark.parametrize(("schedule", "cluster", "options"), [
    ("cooperative", (2, 1), {}),
    ("cooperative", (1, 2), {"late_store": True}),
    ("cooperative", (2, 2), {"turn": True}),
    ("pingpong", (2, 1), {}),
    ("pingpong", (1, 1), {}),
])  # fmt: skip
def test_tasks_and_clusters(
    schedule: str, cluster: tuple[int, int], options: dict[str, bool]
) -> None:
    """More of K than the stages hold, several tiles for each program."""
    by_column = schedule == "pingpong"
    a = cases.matrix((328, 136), "float16", "cpu", by_column=by_column)
    b = cases.matrix((136, 200), "float16", "cpu", by_column=not by_column)
    config = Config(128, 128, 64, 4, 2, 4, schedule, 2, cluster, **options)
    expected = a.double() @ b.double()
    torch.testing.assert_close(
        matmul(a, b, config=config, out_dtype=torch.float32).double(), expected,
        rtol=1e-3, atol=1e-3,
    )  # fmt: skip


def refused(text: str, *operands: object, **options: object) -> None:
    with pytest.raises(KernelArgumentError, match=text):
        matmul(*operands, **options)  # type: ignore[arg-type]


def test_what_does_not_fit() -> None:
    a, one = cases.matrix((16, 16), "float16", "cpu"), torch.ones(1)
    refused("a has to be a torch tensor of 2 or 3 dimensions, it is list", [[1]], a)
    refused("it is 1 dimensions", a[0], a)
    refused(r"a is \(16, 16\) and b is \(8, 16\)", a, a[:8])
    refused("a has 2 matrices and b 3", a.expand(2, 16, 16), a.expand(3, 16, 16))
    refused("a is of torch.float16 and b of torch.float32", a, a.float())
    refused("b of torch.int64", a.long(), a.long())
    refused("scale_a has 3 numbers", a, a, scale_a=torch.ones(3))
    refused("scale_b is of torch.float64", a, a, scale_b=one.double())
    refused("scale_b has to be a torch tensor, it is float", a, a, scale_b=1.0)


@pytest.mark.parametrize(("by_column", "shape", "stages"), [
    (False, (104, 520, 200), 2), (True, (200, 264, 456), 3), (False, (104, 136, 72), 4),
    (False, (104, 136, 328), 4), (False, (104, 136, 1000), 5),
])  # fmt: skip
def test_tiles_that_two_programs_share(
    by_column: bool, shape: tuple[int, int, int], stages: int
) -> None:
    """Programs and tasks run at the same time: a wait for what nobody does is an error.

    Fewer steps than stages, as many, more.
    """
    m, n, k = shape
    a = cases.matrix((m, k), "float16", "cpu", by_column=by_column)
    b = cases.matrix((k, n), "float16", "cpu", by_column=by_column)
    product = product_of(a, b, False, None)
    product.c.fill_(float("nan"))
    config = Config(128, 128, 64, 1, stages, 4, "split", 1)
    launches.launched(product, config, launches.Extra())
    expected = a.double() @ b.double()
    difference = (product.result.double() - expected).norm()
    assert difference <= 1e-3 * expected.norm()
    assert torch.isfinite(product.result).all()


@pytest.mark.parametrize(("dtype", "rows", "columns", "share", "by_column"), [
    ("float16", 16, 64, 2, True),
    ("float16", 32, 128, 4, False),
    ("int8", 16, 64, 2, True),
    ("bfloat16", 64, 64, 1, True),
])  # fmt: skip
def test_few_rows(
    monkeypatch: pytest.MonkeyPatch, dtype: str, rows: int, columns: int, share: int,
    by_column: bool,
) -> None:  # fmt: skip
    """By programs that share K, or have several tiles each; more of K than the stages hold."""
    monkeypatch.setattr(launches, "multiprocessors", lambda _: 2)
    for m in (1, rows - 3):
        a = cases.matrix((m, 720), dtype, "cpu")
        b = cases.matrix((720, 208), dtype, "cpu", by_column=by_column)
        config = Config(rows, columns, 64, 1, 2, 4, "narrow", cluster=(share, 1))
        row = torch.rand(208) + 0.5
        expected = (a.double() @ b.double()) * row.double()
        cases.agrees(
            a, b, expected, tolerance=1e-3, config=config, scale_b=row, out_dtype=torch.float32
        )


@pytest.mark.parametrize(("dtype", "a_by_column", "b_by_column", "batch"), [
    ("float16", False, False, 1), ("bfloat16", True, True, 2), ("int8", True, False, 1),
    ("float32", False, False, 2), ("float32", False, True, 1),
])  # fmt: skip
def test_copies(dtype: str, a_by_column: bool, b_by_column: bool, batch: int) -> None:
    """Operands that the copy engine, or the matrix unit, does not take."""
    m, n, k = (131, 72, 101) if dtype != "int8" else (128, 80, 96)
    a = cases.matrix((batch * m, k), dtype, "cpu", by_column=a_by_column)
    b = cases.matrix((k, n), dtype, "cpu", by_column=b_by_column)
    size = a.element_size()
    config = Config(128, 128, 128 // size, 4, 2, 4, "cooperative", 2)
    if dtype != "float32" or not b_by_column:
        refused("a|b", a, b, config=config)
    if batch > 1:
        a = a.reshape(batch, m, k)
        if b_by_column:  # matrices that are not one below the other
            a = a.transpose(0, 1).contiguous().transpose(0, 1)
    copied = Config(**{**vars(config), "copies": True})
    cases.agrees(a, b, times=2, config=copied)
