"""``remora.kernels.matmul`` on a GPU, against float64, into memory that was poisoned before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none"),
]

DTYPES = ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"]
SHAPES = [
    (128, 256, 64),
    (512, 512, 512),
    (1000, 777, 333),
    (1024, 1000, 1000),
    (64, 8192, 512),
    (8192, 64, 512),
    (1, 1, 1),
    (257, 129, 65),
    (16, 4096, 4096),
    (2048, 2048, 8192),
]


@pytest.fixture
def cases() -> Any:
    torch.manual_seed(0)
    from kernels import matmul_cases

    return matmul_cases


def configs() -> dict[str, Any]:
    """Each schedule, and what can be added to it, for Hopper and 16-bit elements."""
    from remora.kernels.matmul import Config

    cooperative = Config(128, 256, 64, 8, 4, 4, "cooperative", 2)
    pingpong = Config(64, 256, 64, 8, 4, 4, "pingpong", 4)
    small = replace(cooperative, block_n=128, stages=6)
    return {
        "pipelined": Config(128, 128, 64, 8, 3, 4),
        "cooperative": cooperative,
        "pingpong": pingpong,
        "stream_k": replace(small, stream_k=True),
        "stream_k 5 programs": replace(small, stream_k=True, programs=5),
        "cluster 2x1": replace(cooperative, cluster=(2, 1)),
        "cluster 1x2": replace(cooperative, cluster=(1, 2)),
        "cluster 2x2": replace(cooperative, cluster=(2, 2)),
        "cluster 1x4": replace(small, cluster=(1, 4)),
        "cluster 4x1, pingpong": replace(pingpong, cluster=(4, 1)),
        "cluster 2x1, stream_k": replace(cooperative, cluster=(2, 1), stream_k=True),
        "cluster 1x4, stream_k": replace(small, cluster=(1, 4), stream_k=True),
        "late": replace(cooperative, subtiles=4, late_store=True, cluster=(2, 1)),
        "late, stream_k": replace(small, late_store=True, stream_k=True, keep="b"),
        "late, pingpong": replace(pingpong, late_store=True, keep="a"),
        "turn": replace(cooperative, cluster=(2, 2), programs=4, turn=True),
        "turn, stream_k": replace(small, stream_k=True, programs=5, turn=True),
    }


hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a Hopper GPU",
)


@pytest.mark.parametrize("order", ["row-row", "row-column", "column-row", "column-column"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_float64(cases: Any, dtype: str, shape: tuple[int, int, int], order: str) -> None:
    m, n, k = shape
    by_column = [o == "column" for o in order.split("-")]
    a = cases.matrix((m, k), dtype, "cuda", by_column=by_column[0])
    b = cases.matrix((k, n), dtype, "cuda", by_column=by_column[1])
    cases.agrees(a, b, times=3)


@hopper
@pytest.mark.parametrize("name", configs())
@pytest.mark.parametrize("shape", [(128, 256, 64), (1000, 776, 328), (8, 8, 8), (640, 1024, 4096)],
                         ids=lambda s: "x".join(map(str, s)))  # fmt: skip
def test_configurations(cases: Any, name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = cases.matrix((m, k), "float16", "cuda"), cases.matrix((k, n), "float16", "cuda")
    first = cases.agrees(a, b, config=configs()[name])
    # The order of the sums does not depend on which program is first.
    assert torch.equal(first, cases.agrees(a, b, times=3, config=configs()[name]))


@hopper
@pytest.mark.parametrize("batch", [(), (3,)])
def test_fp32_is_rounded_to_tf32(batch: tuple[int, ...]) -> None:
    # Cut off, as the matrix units do, each operand would be 3.4e-4 too small on average.
    from remora.kernels import matmul

    torch.manual_seed(0)
    a = 1 + torch.rand(*batch, 512, 2048, device="cuda")
    b = (1 + torch.rand(*batch, 256, 2048, device="cuda")).mT
    off = matmul(a, b).double() / (a.double() @ b.double()) - 1
    assert abs(off.mean().item()) < 3e-5, off.mean().item()


@hopper
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("shape", [(640, 1024, 4096), (304, 272, 144)],
                         ids=lambda s: "x".join(map(str, s)))  # fmt: skip
def test_types_that_are_cut_along_k(cases: Any, dtype: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    size = getattr(torch, dtype).itemsize
    a = cases.matrix((m, k), dtype, "cuda")
    b = cases.matrix((k, n), dtype, "cuda", by_column=True)
    config = replace(configs()["cluster 1x4, stream_k"], block_k=128 // size, subtiles=4)
    for cluster in ((1, 4), (2, 1)):
        cases.agrees(a, b, times=2, config=replace(config, cluster=cluster, stages=4))


def split(columns: int = 256, stream_k: bool = False) -> Any:
    from remora.kernels.matmul import Config

    stages = 3 if columns == 256 else 5
    return Config(128, columns, 64, 8, stages, 4, "split", 1, stream_k=stream_k, keep="a")


@hopper
@pytest.mark.parametrize("stream_k", [False, True])
@pytest.mark.parametrize("columns", [128, 256])
@pytest.mark.parametrize("order", ["row-row", "row-column", "column-row"])
def test_tiles_that_two_programs_share(
    cases: Any, order: str, columns: int, stream_k: bool
) -> None:
    by_column = [o == "column" for o in order.split("-")]
    config = split(columns, stream_k)
    shapes = (
        (128, 256, 4096), (1000, 776, 328), (64, 4104, 136), (304, 2056, 2048), (128, 13312, 4096)
    )  # fmt: skip
    for m, n, k in shapes:
        a = cases.matrix((m, k), "float16", "cuda", by_column=by_column[0])
        b = cases.matrix((k, n), "float16", "cuda", by_column=by_column[1])
        first = cases.agrees(a, b, config=config)
        assert torch.equal(first, cases.agrees(a, b, times=5, config=config))


@hopper
@pytest.mark.parametrize("stream_k", [False, True])
def test_tiles_that_two_programs_share_with_more(cases: Any, stream_k: bool) -> None:
    """An epilogue, scales, other types; several streams; what is refused."""
    from remora.errors import KernelArgumentError
    from remora.kernels import matmul

    config = split(stream_k=stream_k)
    a = cases.matrix((200, 2056), "bfloat16", "cuda")
    b = cases.matrix((2056, 784), "bfloat16", "cuda")
    expected = cases.agrees(a, b, config=config)
    scale = torch.rand(784, device="cuda")
    cases.agrees(a, b, (a.double() @ b.double()) * scale, config=config, scale_b=scale)
    bias, residual = torch.randn(784, device="cuda"), torch.randn(200, 784, device="cuda").half()
    sums = torch.nn.functional.gelu(a.double() @ b.double() * 0.125 + bias) + residual
    arguments = (bias, residual, 784, cases.tl.constexpr(0.125))
    cases.agrees(a, b, sums, config=config, epilogue=cases.bias_gelu_residual,
                 epilogue_args=arguments)  # fmt: skip
    cases.agrees(a, b, config=replace(config, stages=2), out_dtype=torch.float32)
    streams, results = [torch.cuda.Stream() for _ in range(3)], []
    torch.cuda.synchronize()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(matmul(a, b, config=config))
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)
    with pytest.raises(KernelArgumentError, match="with K of 64"):
        matmul(a[:, :64], b[:64], config=config)


@hopper
@pytest.mark.parametrize(("rows", "share", "dtype"), [
    (16, 1, "float16"), (16, 2, "bfloat16"), (16, 8, "int8"), (32, 2, "float8_e4m3fn"),
    (32, 4, "float16"), (64, 1, "float32"), (64, 2, "float16"), (64, 8, "float16"),
    (128, 1, "bfloat16"), (128, 2, "float16"), (128, 2, "float8_e5m2"),
])  # fmt: skip
def test_few_rows(cases: Any, rows: int, share: int, dtype: str) -> None:
    """Several tiles for each program, K shared by a cluster, scales, an epilogue."""
    from remora.errors import KernelArgumentError
    from remora.kernels import matmul

    size = getattr(torch, dtype).itemsize
    depth = 128 // size
    columns = 64 if rows == 64 and share > 2 else 128
    config = replace(split(), block_m=rows, block_n=columns, block_k=depth, schedule="narrow",
                     cluster=(share, 1), keep="a" * (share == 1), early=share == 2)  # fmt: skip
    for m, n, k in ((1, 16, 8 * depth), (rows, 8208, 4096 // size), (rows - 3, 25600, 2064)):
        a = cases.matrix((m, k), dtype, "cuda")
        b = cases.matrix((k, n), dtype, "cuda", by_column=size != 2 or k < 2000)
        first = cases.agrees(a, b, config=config)
        assert torch.equal(first, cases.agrees(a, b, times=3, config=config))
    scale, bias = torch.rand(n, device="cuda") + 0.5, torch.randn(n, device="cuda")
    residual = torch.randn(m, n, device="cuda")
    sums = a.double() @ b.double() * scale.double() * 0.125 + bias
    sums = torch.nn.functional.gelu(sums) + residual
    arguments = (bias, residual, n, cases.tl.constexpr(0.125))
    cases.agrees(a, b, sums, config=config, scale_b=scale, epilogue=cases.bias_gelu_residual,
                 epilogue_args=arguments, out_dtype=torch.float32, tolerance=5e-3)  # fmt: skip
    cases.agrees(cases.matrix((200, 1040), dtype, "cuda"),
                 cases.matrix((1040, 400), dtype, "cuda", by_column=True), times=2,
                 config=replace(config, block_k=64 // size))  # fmt: skip
    with pytest.raises(KernelArgumentError, match="products with K of"):
        matmul(a[:, :depth], b[:depth], config=replace(config, cluster=(2, 1)))


@hopper
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("dtype", "order", "shape"), [
    ("float16", "row-row", (2049, 1023, 511)), ("bfloat16", "column-column", (777, 1000, 333)),
    ("float32", "row-row", (512, 1024, 512)), ("float32", "column-row", (300, 264, 520)),
    ("int8", "column-row", (528, 400, 2064)), ("float8_e4m3fn", "row-column", (300, 520, 1001)),
])  # fmt: skip
def test_copies(
    cases: Any, dtype: str, order: str, shape: tuple[int, int, int], batch: tuple[int, ...]
) -> None:
    """Operands that the copy engine or the matrix unit does not take; in a graph too."""
    from remora.kernels import matmul

    m, n, k = shape
    by_column = [o == "column" for o in order.split("-")]
    a = cases.matrix((*batch, m, k), dtype, "cuda", by_column=by_column[0])
    b = cases.matrix((*batch, k, n), dtype, "cuda", by_column=by_column[1])
    config = replace(configs()["cooperative"], block_k=128 // a.element_size(), subtiles=4,
                     stages=3, copies=True)  # fmt: skip
    for given in (config, replace(config, cluster=(2, 1), early=True), None):
        cases.agrees(a, b, times=3, config=given)
    expected = matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b)
    c.zero_()
    graph.replay()
    assert torch.equal(c, expected)


@hopper
@pytest.mark.parametrize("name", ["cooperative", "pingpong", "cluster 2x1", "late, stream_k"])
def test_kernels_that_begin_early(cases: Any, name: str) -> None:
    """Each reads what the one before wrote, in a stream and in a graph."""
    from remora.kernels import matmul

    config = replace(configs()[name], early=True)
    a = cases.matrix((512, 512), "float16", "cuda") / 16
    expected, chain = a, a
    for _ in range(12):
        expected = matmul(expected, a, config=configs()[name])
        chain = matmul(chain, a, config=config)
    assert torch.equal(chain, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain = a
        for _ in range(12):
            chain = matmul(chain, a, config=config)
    for _ in range(20):
        chain.zero_()
        graph.replay()
        assert torch.equal(chain, expected)


@hopper
@pytest.mark.parametrize("name", ["pipelined", "cooperative", "cluster 2x1", "late, stream_k"])
def test_batches(cases: Any, name: str) -> None:
    cases.in_batches(200, 264, 136, "cuda", ("float16",), config=configs()[name])


def test_batches_of_any_extent(cases: Any) -> None:
    cases.in_batches(200, 264, 136, "cuda")
    cases.in_batches(33, 77, 55, "cuda")


@hopper
@pytest.mark.parametrize("name", ["pipelined", "cooperative", "late", "stream_k"])
def test_epilogues(cases: Any, name: str) -> None:
    cases.with_epilogue(300, 264, 136, "cuda", config=configs()[name])
    cases.with_epilogue(200, 264, 136, "cuda", batch=2, config=configs()[name])


def test_epilogues_of_any_extent(cases: Any) -> None:
    cases.with_epilogue(300, 520, 136, "cuda")
    cases.with_epilogue(300, 521, 136, "cuda")
    cases.with_epilogue(30, 70, 33, "cuda", batch=2)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "float16"])
def test_scales(cases: Any, dtype: str) -> None:
    cases.with_scales(dtype, 300, 272, 144, "cuda")
    cases.with_scales(dtype, 70, 40, 48, "cuda", batch=2)


def test_columns_that_the_copy_engine_cannot_store(cases: Any) -> None:
    a = cases.matrix((300, 512), "float16", "cuda")
    b = cases.matrix((512, 1023), "float16", "cuda", by_column=True)
    cases.agrees(a, b)


def test_nothing(cases: Any) -> None:
    cases.of_nothing("cuda")


def test_any_strides(cases: Any) -> None:
    cases.of_any_strides("cuda")


@hopper
@pytest.mark.parametrize("name", ["pipelined", "cooperative", "cluster 2x2", "late, stream_k"])
def test_what_is_not_finite(cases: Any, name: str) -> None:
    cases.not_finite("cuda", config=configs()[name])


@pytest.mark.parametrize("size", [1e-6, 1e3])
def test_large_and_tiny_numbers(cases: Any, size: float) -> None:
    a, b = (cases.matrix((512, 512), "bfloat16", "cuda") * size for _ in range(2))
    cases.agrees(a, b)


def test_more_than_two_to_the_31_elements(cases: Any) -> None:
    # The rows at the end of a, and of the result, are past 2**31 elements.
    rows, columns = (1 << 31) // 4096 + 256, 4096
    a = torch.zeros(rows, columns, dtype=torch.float16, device="cuda")
    a[-256:] = cases.matrix((256, columns), "float16", "cuda")
    b = cases.matrix((columns, 4096), "float16", "cuda")
    from remora.kernels import matmul

    for config in (None, configs()["pipelined"]):
        c = matmul(a, b, config=config)
        assert not c[:256].any()
        expected = a[-256:].double() @ b.double()
        assert (c[-256:].double() - expected).norm() <= 1e-3 * expected.norm()
        del c


@hopper
def test_streams(cases: Any) -> None:
    """Two streams at once, each with tiles that are cut along K."""
    from remora.kernels import matmul

    a, b = (
        cases.matrix((256, 4096), "float16", "cuda"),
        cases.matrix((4096, 640), "float16", "cuda"),
    )
    config = replace(configs()["stream_k"], programs=40)
    expected = matmul(a, b, config=config)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(matmul(a, b, config=config))
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)


@hopper
def test_a_graph(cases: Any) -> None:
    from remora.kernels import matmul

    a, b = (
        cases.matrix((256, 4096), "float16", "cuda"),
        cases.matrix((4096, 640), "float16", "cuda"),
    )
    config = configs()["stream_k"]
    expected = matmul(a, b, config=config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b, config=config)
    for _ in range(3):
        c.fill_(float("nan"))
        graph.replay()
        assert torch.equal(c, expected)


@hopper
@pytest.mark.parametrize("kind", ["stream_k", "split"])
def test_graphs_beside_each_other(cases: Any, kind: str) -> None:
    """The products of a graph share flags, which are not those of another graph or of a stream."""
    from remora.kernels import matmul

    config = configs()["stream_k"] if kind == "stream_k" else split(stream_k=True)
    a = cases.matrix((128, 4096), "float16", "cuda")
    b = cases.matrix((4096, 5120), "float16", "cuda")
    expected = matmul(a, b, config=config)
    graphs, results = [torch.cuda.CUDAGraph() for _ in range(3)], []
    for graph in graphs:
        with torch.cuda.graph(graph):
            results += [matmul(a, b, config=config) for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(5):
        for c in results:
            c.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        eager = matmul(a, b, config=config)
        torch.cuda.synchronize()
        assert all(torch.equal(c, expected) for c in [*results, eager])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_of_the_tensors(cases: Any) -> None:
    a, b = (cases.matrix((512, 512), "float16", "cuda:1") for _ in range(2))
    with torch.cuda.device(0):
        cases.agrees(a, b)


def test_out_dtype(cases: Any) -> None:
    from remora.kernels import matmul

    a, b = (cases.matrix((64, 64), "float16", "cuda") for _ in range(2))
    for kind, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 5e-3)):
        c = cases.agrees(a, b, tolerance=tolerance, out_dtype=kind)
        assert c.dtype == kind
    assert matmul(a.to(torch.int8), b.to(torch.int8)).dtype == torch.int32


@hopper
def test_what_a_schedule_cannot_take(cases: Any) -> None:
    from remora.errors import KernelArgumentError
    from remora.kernels import matmul

    a = cases.matrix((128, 128), "float8_e4m3fn", "cuda")
    with pytest.raises(KernelArgumentError, match="its columns are not contiguous"):
        matmul(a, a, config=replace(configs()["cooperative"], block_k=128))
    half = cases.matrix((128, 130), "float16", "cuda")
    with pytest.raises(KernelArgumentError, match="a cannot be copied by descriptor"):
        matmul(half[:, 1:129], half[:, :128], config=configs()["cooperative"])


def test_the_kernel_of_somebody_else_in_between(cases: Any) -> None:
    """A kernel without a word of TLX launches and is right while TLX is in force."""
    from remora.kernels.gemm_stock import gemm_stock
    from remora.kernels.launches import Extra, pipelined
    from remora.kernels.matmul import hopper_config
    from remora.kernels.operands import product_of

    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    made = product_of(a, b, False, None)
    c = made.c
    pipelined(gemm_stock, made, hopper_config(256, 256, 256, 2), Extra())(a, b, c, Extra())
    expected = a.double() @ b.double()
    assert (c.double() - expected).norm() <= 1e-3 * expected.norm()
