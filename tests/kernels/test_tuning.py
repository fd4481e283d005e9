"""The choice of a configuration, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import triton
from kernels.shared_memory import LIMIT, SMALL, of_pipelined, of_specialized

from remora.errors import KernelArgumentError
from remora.host.targets import gpu_target
from remora.kernels import cost, tuning
from remora.kernels.config import Config
from remora.kernels.cost import Problem
from remora.kernels.tuning import Device, Kept

H200 = Device("NVIDIA H200", "cuda:90", 132)
# The shapes of the announcement.
SHAPES = [
    (128, 13312, 16384), (16384, 8192, 8192), (8192, 16384, 8192), (8192, 53248, 8192),
    (8192, 28672, 4096), (8192, 8192, 8192),
]  # fmt: skip


def problem(m: int, n: int, k: int, **others: Any) -> Problem:
    return Problem(m, n, k, **{"dtype": "float16", "out_dtype": "float16", **others})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "chosen", {})


# --- the count ------------------------------------------------------------------------------------

EVERY = [
    *(problem(*s) for s in SHAPES), problem(1, 1, 1), problem(16, 4096, 4096),
    problem(4096, 4096, 4096, described=False, orders=("strided", "row")),
    problem(8192, 8192, 8192, dtype="float8_e4m3fn", orders=("row", "column")),
    problem(8192, 8192, 8192, dtype="float32", out_dtype="float32", orders=("row", "column")),
    problem(512, 512, 512, batch=64, dtype="bfloat16", out_dtype="float32"),
    problem(2**20, 2**20, 2**15, dtype="int8", out_dtype="int32", orders=("row", "column")),
]  # fmt: skip


@pytest.mark.parametrize("p", EVERY, ids=lambda p: f"{p.batch}x{p.m}x{p.n}x{p.k}-{p.dtype}")
def test_candidates(p: Problem) -> None:
    found = cost.candidates(p)
    assert 1 <= len(found) <= 6
    assert len(set(found)) == len(found)
    times = [cost.estimate(p, c) for c in found]
    assert times == sorted(times)
    # No faster than the matrix units without a limit, nor than the memory: 989 TFLOP/s.
    size, out = p.size, p.out_size
    moved = p.batch * ((p.m + p.n) * p.k * size + p.m * p.n * out)
    assert times[0] >= max(p.flops * size / 2 / 1e15, moved / 4.8e12)
    assert {c.copies or c.schedule == "pipelined" for c in found} == {not p.described}


@pytest.mark.parametrize("out_dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("described", [True, False])
def test_every_configuration_fits(described: bool, dtype: str, out_dtype: str) -> None:
    """By the counts that compiled kernels keep (tests of their code)."""
    for shape in (*SHAPES, (1, 1, 1), (64, 8192, 512), (3000, 3000, 64)):
        p = problem(*shape, dtype=dtype, out_dtype=out_dtype, described=described)
        for epilogue in ("", "x"):
            found = list(cost._all(replace(p, epilogue=epilogue), cost.H200))
            assert found
            for config in found:
                counted = of_specialized if described else of_pipelined
                assert counted(config, p.size, p.out_size) <= LIMIT - SMALL, config


def test_large_products_have_large_tiles() -> None:
    for shape in SHAPES[1:]:
        best = cost.candidates(problem(*shape))[0]
        assert best.block_m * best.block_n >= 128 * 256
        assert 600e12 < problem(*shape).flops / cost.estimate(problem(*shape), best) < 750e12


def test_more_programs_where_tiles_are_few() -> None:
    """Half of the multiprocessors would idle with large tiles that are whole."""
    p = problem(1024, 2048, 4096)
    best = cost.candidates(p)[0]
    assert best.stream_k or best.block_m * best.block_n < 128 * 256
    large = Config(128, 256, 64, 8, 4, 4, "cooperative", 2)
    assert cost.estimate(p, best) < 0.9 * cost.estimate(p, large)


def test_helpers() -> None:
    """Programs without a tile do what the others have less to do."""
    # 52 tiles, two programs each, of 256 steps; 26 helpers of two tiles each, a little less.
    assert cost.helpers_of(52, 256, 132) == (26, 2, 44)
    assert cost.helpers_of(64, 256, 132)[0] == 4
    assert cost.helpers_of(66, 256, 132) == cost.helpers_of(52, 5, 132) == (0, 0, 0)
    for tiles in range(1, 66):
        for steps in (9, 16, 100, 257):
            helpers, each, helped = cost.helpers_of(tiles, steps, 132)
            assert helpers % 2 == 0
            assert 2 * tiles + helpers <= 132
            if helpers:
                assert helpers * each >= tiles
                assert 0 < each * helped <= (steps - helped) / 2 + 1


def test_a_product_that_memory_bounds() -> None:
    p = problem(128, 13312, 16384)
    seconds = cost.estimate(p, cost.candidates(p)[0])
    assert 447e6 / 4.3e12 < seconds < 1.3 * 447e6 / 4.3e12
    assert cost.candidates(p)[0].schedule == "split"


# --- what is kept ---------------------------------------------------------------------------------

P = problem(512, 512, 512)
CONFIG = Config(128, 128, 64, 8, 5, 4, "pingpong", 2)


def test_what_is_written_is_read() -> None:
    assert Kept(P, H200).read() is None
    Kept(P, H200).write(CONFIG, {CONFIG: 1e-3})
    assert Kept(P, H200).read() == CONFIG
    assert tuning.choose(P, H200) == CONFIG
    # Another product, device or epilogue has its own.
    others = [
        problem(512, 512, 513),
        replace(P, epilogue="x"),
        replace(P, orders=("row", "column")),
    ]
    assert all(Kept(other, H200).read() is None for other in others)
    assert Kept(P, replace(H200, name="NVIDIA H100")).read() is None


def test_other_versions_measure_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    Kept(P, H200).write(CONFIG, {})
    for module, name in ((triton, "__version__"), (tuning.remora, "__version__")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, "0.0.0")
            assert Kept(P, H200).read() is None
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_kernels", lambda: "changed")
        assert Kept(P, H200).read() is None
    assert Kept(P, H200).read() == CONFIG


@pytest.mark.parametrize("damage", [
    lambda text: text[: len(text) // 2],
    lambda text: b"",
    lambda text: b"\xff\xfe",
    lambda text: b"[]",
    lambda text: b"null",
    lambda text: text.replace(b"pingpong", b"pongping"),
    lambda text: text + b" ",
    lambda text: other_product(text),
])  # fmt: skip
def test_damage_is_ignored_with_a_warning(damage: Any) -> None:
    Kept(P, H200).write(CONFIG, {CONFIG: 1e-3})
    file = Kept(P, H200).file
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(RuntimeWarning, match="is damaged and ignored"):
        assert Kept(P, H200).read() is None
    with pytest.warns(RuntimeWarning, match="is damaged and ignored"):
        assert tuning.choose(P, H200) == cost.candidates(P)[0]
    Kept(P, H200).write(CONFIG, {})
    assert Kept(P, H200).read() == CONFIG


def other_product(text: bytes) -> bytes:
    """A whole file, of another product: what a collision of names would be."""
    other = Kept(problem(512, 512, 513), H200)
    other.write(CONFIG, {})
    return other.file.read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Kept(P, H200).write(CONFIG, {})
    assert Kept(P, H200).read() is None


WRITER = """
import sys
from remora.kernels.config import Config
from remora.kernels.tuning import Device, Kept
from remora.kernels.cost import Problem
kept = Kept(Problem(512, 512, 512, "float16", "float16"), Device("NVIDIA H200", "cuda:90", 132))
for i in range(200):
    config = Config(128, 128, 64, 8 + i % 2, 5, 4, "pingpong", 2)
    kept.write(config, {config: 1e-3 * j for j in range(int(sys.argv[1]))})
    assert kept.read().group_m in (8, 9)
"""


def test_several_processes_write_at_once() -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(n)], env=environment) for n in (1, 9)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody ever sees half a file
        while any(w.poll() is None for w in writers):
            found = Kept(P, H200).read()
            assert found is None or found.group_m in (8, 9)
    assert [w.returncode for w in writers] == [0, 0]
    assert [f.name for f in Kept(P, H200).file.parent.iterdir()] == [Kept(P, H200).file.name]


# --- what is measured -----------------------------------------------------------------------------


def test_tune_takes_the_fastest_and_keeps_it() -> None:
    p = problem(*SHAPES[-1])
    tried = cost.candidates(p)
    slowness = {config: 7 - i for i, config in enumerate(tried)}
    ran: list[Config] = []

    def timer(function: Any) -> Any:
        return lambda: function() or slowness[ran[-1]] * 1e-3

    assert tuning.tune(p, H200, ran.append, timer) == tried[-1]
    assert set(ran) == set(tried)
    assert tuning.choose(p, H200) == tried[-1]
    ran.clear()
    tuning.chosen.clear()  # as in another process
    assert tuning.choose(p, H200) == tried[-1]
    assert tuning.tune(p, H200, ran.append, timer) == tried[-1]
    assert not ran


def test_what_does_not_run_is_left_out() -> None:
    p = problem(*SHAPES[-1])
    best = cost.candidates(p)[0]

    def run(config: Config) -> None:
        if config == best:
            raise RuntimeError("no")

    assert tuning.tune(p, H200, run, lambda function: lambda: 1.0) != best

    def never(config: Config) -> None:
        raise RuntimeError("never")

    with pytest.raises(KernelArgumentError, match="none of 6 configurations runs") as caught:
        tuning.tune(replace(p, m=4096), H200, never, lambda function: lambda: 1.0)
    assert "never" in str(caught.value.__cause__)


def test_rounds_take_turns() -> None:
    configs = [replace(CONFIG, group_m=g) for g in (1, 2, 3)]
    order: list[int] = []
    drift = iter(range(1000))

    def timer(function: Any) -> Any:
        # slower and slower
        return lambda: function() or 100 + next(drift) + order[-1] * 0.01

    measured = tuning.measure(configs, lambda c: order.append(c.group_m), timer)
    assert order[:9] == [1, 2, 3, 2, 3, 1, 3, 1, 2]
    assert sorted(measured, key=measured.__getitem__) == configs
    # What drifts meets all alike.
    assert max(measured.values()) - min(measured.values()) < 3


def test_what_fails_beside_others_is_tried_alone() -> None:
    configs = [Config(64, 64, 64, group, 3, 4) for group in (1, 2, 4)]
    meeting, runs = threading.Barrier(3), Counter[Config]()

    def run(config: Config) -> None:
        runs[config] += 1
        if runs[config] == 1:
            meeting.wait(60)  # all three are running
        if config is configs[2] or (config is configs[0] and runs[config] == 1):
            raise SystemError("AST constructor recursion depth mismatch")

    assert tuning.compile_together(configs, run) == configs[:2]
    assert [runs[config] for config in configs] == [2, 1, 2]


def test_candidates_compile_side_by_side(fresh_cache: Path) -> None:
    """More than one is in LLVM or ptxas at a time, and all are in Triton's cache afterwards."""
    from remora.kernels.gemm_hopper import gemm_pipelined
    from remora.kernels.offline import source

    inside, most = 0, 0
    lock = threading.Lock()

    def watched(function: Any) -> Any:
        def wrapper(*arguments: Any, **others: Any) -> Any:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            try:
                return function(*arguments, **others)
            finally:
                with lock:
                    inside -= 1

        return wrapper

    def compile_(config: Config) -> Any:
        return triton.compile(
            source(gemm_pipelined, config), target=gpu_target("cuda:90"),
            options={"num_warps": config.num_warps},
        )  # fmt: skip

    from triton.backends.nvidia.compiler import CUDABackend

    configs = [Config(64, 64, 64, group, 3, 4) for group in (1, 2, 4)]
    with pytest.MonkeyPatch.context() as patch:
        for stage in ("make_llir", "make_cubin"):
            patch.setattr(CUDABackend, stage, watched(getattr(CUDABackend, stage)))
        assert tuning.compile_together(configs, compile_) == configs
    assert most > 1
    assert len(list(fresh_cache.glob("*/gemm_pipelined.cubin"))) == 3
    started = time.perf_counter()
    assert tuning.compile_together(configs, compile_) == configs
    assert time.perf_counter() - started < 2  # read, not compiled


# --- the table ------------------------------------------------------------------------------------


def test_the_table() -> None:
    """The announcement's shapes are in it, and ``choose`` finds its rows; bf16 as fp16."""
    table = json.loads((Path(tuning.__file__).parent / "measured.json").read_text())
    assert table["device"] == asdict(H200)
    found = tuning._table(H200)
    assert len(found) >= len(table["rows"])
    for shape in SHAPES:
        assert problem(*shape) in found
    for p, config in found.items():
        assert tuning.choose(p, H200) == config
        assert asdict(config).keys() == asdict(CONFIG).keys()
    bf16 = problem(*SHAPES[0], dtype="bfloat16", out_dtype="bfloat16")
    assert tuning.choose(bf16, H200) == tuning.choose(problem(*SHAPES[0]), H200)
    other = problem(*SHAPES[3], orders=("column", "row"), epilogue="gelu")
    assert tuning.choose(other, H200) == tuning.choose(problem(*SHAPES[3]), H200)
    assert tuning.choose(replace(other, described=False), H200).copies
    assert not tuning.choose(problem(65, 129, 65, described=False), H200).copies
    assert not tuning._table(replace(H200, name="another"))


def test_what_was_measured_here_goes_before_the_table() -> None:
    p = problem(*SHAPES[0])
    assert tuning.choose(p, H200) != CONFIG
    Kept(p, H200).write(CONFIG, {CONFIG: 1e-3})
    tuning.chosen.clear()
    assert tuning.choose(p, H200) == CONFIG
