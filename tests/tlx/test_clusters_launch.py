"""``ctas_per_cga``: what is compiled, and what the launcher is given."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import triton
import triton.language as tl
from compiling import TARGETS
from launching import Launcher, Pointer, standing_in
from tlx.building import build

import remora
import remora.tlx as tlx
from remora.errors import KernelArgumentError, UnsupportedByTarget


class Recording(Launcher):
    """Writes down each launch: the grid, and the CTAs that the launcher makes a cluster of."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata = metadata

    def __call__(self, *args: Any) -> None:
        LAUNCHES.append((args[:3], self.metadata.num_ctas, args[5]))


LAUNCHES: list[Any] = []


@pytest.fixture
def launches(request, fresh_cache):
    """Launches go to a stand-in for a driver of the target."""
    LAUNCHES.clear()
    with standing_in(TARGETS[getattr(request, "param", "cuda:90")]):
        triton.runtime.driver.active.launcher_cls = Recording
        yield LAUNCHES


def new_kernel(decorator: Any = tlx.jit) -> Any:
    @decorator
    def fill(x, N: tl.constexpr):
        tl.store(x + tl.program_id(0) * N + tl.arange(0, N), 1.0)

    return fill


def cluster_of(ptx: str) -> tuple[int, ...]:
    found = re.findall(r"^\.reqnctapercluster (\d+), (\d+), (\d+)$", ptx, re.MULTILINE)
    assert len(found) <= 1
    return tuple(map(int, found[0])) if found else ()


def test_the_grid_counts_ctas_and_programs_are_ctas(launches) -> None:
    compiled = new_kernel()[(8, 3)](Pointer(), 128, ctas_per_cga=(2, 1, 1))
    ptx = compiled.asm["ptx"]
    assert cluster_of(ptx) == (2, 1, 1)
    assert "%ctaid.x" in ptx
    assert "%clusterid" not in ptx
    # The launcher makes no cluster of its own: the cubin says it.
    assert [(grid, ctas) for grid, ctas, _ in launches] == [((8, 3, 1), 1)]
    assert compiled.metadata.num_ctas == 1
    assert cuda_attribute(compiled.asm["cubin"], "EIATTR_CTA_PER_CLUSTER") == "0x2 0x1 0x1"


def cuda_attribute(cubin: bytes, name: str) -> str:
    """An attribute of a cubin's kernel, as cuobjdump shows it."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        elf = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-elf", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    found = re.search(rf"Attribute:\s*{name}.*?Value:\s*([^\n]+)", elf, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


@pytest.mark.parametrize("size", [(1, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 2), [8, 1, 1], None])
def test_sizes(launches, size) -> None:
    compiled = new_kernel()[(8, 8, 8)](Pointer(), 64, ctas_per_cga=size)
    expected = () if size is None or tuple(size) == (1, 1, 1) else tuple(size)
    assert cluster_of(compiled.asm["ptx"]) == expected


def test_each_size_is_compiled_once(launches) -> None:
    kernel = new_kernel()
    sizes = [(2, 1, 1), None, (4, 1, 1), (2, 1, 1), None]
    compiled = [kernel[(8,)](Pointer(), 64, ctas_per_cga=size) for size in sizes]
    assert compiled[0] is compiled[3]
    assert compiled[1] is compiled[4]
    assert [cluster_of(c.asm["ptx"]) for c in compiled[:3]] == [(2, 1, 1), (), (4, 1, 1)]
    assert len({c.hash for c in compiled}) == 3


def test_the_autotuner(launches) -> None:
    configs = [
        tlx.Config({"N": 64}, num_warps=2, num_stages=1, ctas_per_cga=(2, 1, 1)),
        tlx.Config({"N": 64}, num_warps=2, num_stages=1, ctas_per_cga=(4, 1, 1)),
        tlx.Config({"N": 64}, num_warps=2, num_stages=1),
    ]
    assert len(set(configs)) == 3
    assert [c.ctas_per_cga for c in configs] == [(2, 1, 1), (4, 1, 1), None]
    tuned = triton.autotune(configs, key=[])(new_kernel())
    tuned[lambda meta: (512 // meta["N"],)](Pointer())
    assert {grid for grid, _, _ in launches} == {(8, 1, 1)}
    assert len({function for _, _, function in launches}) == 1  # the stand-in's only handle
    options = {"num_warps": 2, "num_stages": 1}
    kernels = [tuned.fn[(8,)](Pointer(), **c.kwargs, **options) for c in configs]
    assert [cluster_of(k.asm["ptx"]) for k in kernels] == [(2, 1, 1), (4, 1, 1), ()]


def test_a_configuration_without_a_cluster_is_stock() -> None:
    config = tlx.Config({"N": 64}, num_warps=2, ctas_per_cga=None)
    assert config.all_kwargs() == triton.Config({"N": 64}, num_warps=2).all_kwargs()


@pytest.mark.parametrize("size", [(3, 3, 1), (16, 1, 1), (4, 4, 1), (2, 1), 2, "two", (0, 1, 1)])
def test_sizes_that_there_are_not(launches, size) -> None:
    with pytest.raises(KernelArgumentError, match="not the size of a cluster"):
        new_kernel()[(16,)](Pointer(), 64, ctas_per_cga=size)
    with pytest.raises(KernelArgumentError, match="not the size of a cluster"):
        tlx.Config({}, ctas_per_cga=size)


def test_sizes_are_any_numbers(launches) -> None:
    compiled = new_kernel()[(6, 1)](Pointer(), 64, ctas_per_cga=(3, 1, 1))
    assert cluster_of(compiled.asm["ptx"]) == (3, 1, 1)


def test_a_grid_of_broken_clusters(launches) -> None:
    kernel = new_kernel()
    with pytest.raises(KernelArgumentError, match="3 CTAs along axis 0, clusters have 2"):
        kernel[(3,)](Pointer(), 64, ctas_per_cga=(2, 1, 1))
    with pytest.raises(KernelArgumentError, match="1 CTAs along axis 1, clusters have 2"):
        kernel[lambda meta: (4,)](Pointer(), 64, ctas_per_cga=(1, 2, 1))
    assert not launches


def test_num_ctas_and_a_cluster(launches) -> None:
    with pytest.raises(KernelArgumentError, match="both given"):
        new_kernel()[(4,)](Pointer(), 64, ctas_per_cga=(2, 1, 1), num_ctas=2)


@pytest.mark.parametrize("launches", ["cuda:80", "hip:gfx950"], indirect=True)
def test_targets_without_clusters(launches) -> None:
    with pytest.raises(UnsupportedByTarget, match="has no clusters"):
        new_kernel()[(4,)](Pointer(), 64, ctas_per_cga=(2, 1, 1))
    new_kernel()[(4,)](Pointer(), 64, ctas_per_cga=(1, 1, 1))


def test_compiling_without_a_launch() -> None:
    with remora.use(tlx.in_clusters((2, 1, 1))):
        compiled = build(new_kernel(triton.jit), "cuda:90", x="*fp32", N=64)
        assert cluster_of(compiled.asm["ptx"]) == (2, 1, 1)
        with pytest.raises(UnsupportedByTarget, match="sm_80 has no clusters"):
            build(new_kernel(triton.jit), "cuda:80", x="*fp32", N=64)
