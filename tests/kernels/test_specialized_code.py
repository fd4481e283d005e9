"""The code of kernels whose warps have tasks of their own, without hardware."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import triton
import triton.language as tl
from kernels.shared_memory import LIMIT, SCALES, SMALL, of_specialized
from tlx.building import build, conversions_in_loops, instructions, loops_of

import remora
import remora.tlx as tlx
from remora.analysis import resources
from remora.kernels.gemm_narrow import gemm_narrow
from remora.kernels.gemm_specialized import gemm_specialized
from remora.kernels.gemm_split import gemm_split
from remora.kernels.matmul import Config
from remora.kernels.offline import plain_arguments


@triton.jit
def add_residual(acc, rows, columns, bias, residual, stride):
    x = acc + tl.load(bias + columns)
    return x + tl.load(residual + rows * stride + columns)


def product(config: Config, dtype: str = "fp16", *, columns: str = "", out: str = "fp16",
            batched: str = "", described: bool = True, **given: Any) -> Any:  # fmt: skip
    """The product as ``matmul`` launches it.

    columns: the operands that are column-major. batched: those that are batches.
    """
    rows = config.block_m // (2 if config.schedule == "cooperative" else 1)
    cluster_m, cluster_n = config.cluster

    def box(name: str, dtype: str, *extents: int) -> str:
        shape = extents[::-1] if name in columns else extents
        shape = (1, *shape) if name in batched else shape
        return f"tensordesc<{dtype}[{','.join(map(str, shape))}]>"

    a = box("a", dtype, min(rows, config.block_m // cluster_n), config.block_k)
    b = box("b", dtype, config.block_k, config.block_n // cluster_m)
    c = box("c", out, rows, config.block_n // config.subtiles) if described else f"*{out}"
    workspace = (
        {"partials": "*fp32", "flags": "*i32"}
        if config.stream_k
        else dict.fromkeys(("partials", "flags"))
    )
    arguments: dict[str, Any] = {
        **plain_arguments(gemm_specialized), **workspace, "stride_cm": "i32:16", "stride_cn": 1,
        "ACC": tl.int32 if dtype == "i8" else tl.float32,
    }  # fmt: skip
    with remora.use(tlx.in_clusters((cluster_m * cluster_n, 1, 1))):
        return build(
            gemm_specialized, "cuda:90", a_desc=a, b_desc=b, c=c, M="i32", N="i32", K="i32",
            batches="i32", split_tiles="i32", **config.arguments(), SUBTILES=config.subtiles,
            A_BY_COLUMN="a" in columns, B_BY_COLUMN="b" in columns, A_BATCHED="a" in batched,
            B_BATCHED="b" in batched, C_DESCRIBED=described,
            PINGPONG=config.schedule == "pingpong", CLUSTER_M=cluster_m, CLUSTER_N=cluster_n,
            STREAM_K=config.stream_k, LATE=config.late_store, KEEP=config.keep, TURN=config.turn,
            **{**arguments, **given},
        )  # fmt: skip


COOPERATIVE = Config(128, 256, 64, 8, 4, 4, "cooperative", 2)
SHARED = replace(COOPERATIVE, cluster=(2, 1))


@pytest.mark.parametrize(("config", "dtype", "options", "shape"), [
    (COOPERATIVE, "fp16", {}, "m64n256k16.f32.f16.f16"),
    (replace(COOPERATIVE, block_k=128), "fp8e4nv",
     {"columns": "b", "scale_a": ("*fp32", 0, 1), "scale_b": ("*fp32", 0, 0)},
     "m64n256k32.f32.e4m3.e4m3"),
    (Config(128, 128, 64, 8, 5, 4, "pingpong", 2), "fp16", {"columns": "b"},
     "m64n128k16.f32.f16.f16"),
    (SHARED, "bf16", {"columns": "a", "batched": "abc"}, "m64n256k16.f32.bf16.bf16"),
    (replace(COOPERATIVE, block_k=32, cluster=(2, 2), stages=3), "fp32",
     {"columns": "b", "out": "fp32"}, "m64n256k8.f32.tf32.tf32"),
    (replace(COOPERATIVE, block_k=128, stages=3), "i8", {"columns": "b", "out": "i32"},
     "m64n128k32.s32.s8.s8"),
    (replace(COOPERATIVE, stages=3), "fp16", {"described": False, "INDEX": tl.int64},
     "m64n256k16.f32.f16.f16"),
    (replace(COOPERATIVE, stages=3, subtiles=4), "fp16",
     {"EPILOGUE": add_residual, "args": ("*fp32", "*fp16", "i32")}, "m64n256k16.f32.f16.f16"),
])  # fmt: skip
def test_products(config: Config, dtype: str, options: dict[str, Any], shape: str) -> None:
    compiled = product(config, dtype, **options)
    ptx = compiled.asm["ptx"]
    assert set(instructions(ptx, r"wgmma\.mma_async\.sync\.aligned\.(m\S+) ")) == {shape}
    # A consumer keeps a product in flight in its loop over K, whose operands TMA brings.
    loops = [loop for loop in loops_of(ptx) if "wgmma.mma_async" in loop]
    inner = min(loops, key=len)
    assert instructions(inner, r"wgmma\.wait_group\.sync\.aligned\s+(\d)") == ["1"]
    assert not re.search(r"(ld|st)\.shared|stmatrix|ldmatrix", inner)
    assert re.search(r"cp\.async\.bulk\.tensor\.\dd\.shared", ptx)
    described = options.get("described", True)
    assert bool(re.search(r"cp\.async\.bulk\.tensor\.\dd\.global", ptx)) == described
    # No tile moves between threads, but for what a caller's function loads, and for stores.
    tiles = [c for c in conversions_in_loops(compiled.asm["ttgir"]) if re.search(r"<\d+x\d+x", c)]
    assert bool(tiles) == ("EPILOGUE" in options or not described)
    # Nothing is spilled, but for a few registers beside a caller's function.
    assert resources(compiled.asm["cubin"])[1] <= (12 if "EPILOGUE" in options else 0)
    assert compiled.metadata.shared <= LIMIT
    if described and "EPILOGUE" not in options:
        sizes = {"fp32": 4, "i32": 4, "i8": 1, "fp8e4nv": 1}
        counted = of_specialized(config, *(sizes.get(x, 2) for x in (dtype, options.get("out"))))
        small = SMALL + (SCALES if "scale_a" in options else 0)
        assert counted < compiled.metadata.shared <= counted + small


@pytest.mark.parametrize(("cluster", "copies"), [
    ((2, 1), 4), ((1, 2), 1), ((2, 2), 5), ((1, 4), 2),
])  # fmt: skip
def test_clusters(cluster: tuple[int, int], copies: int) -> None:
    """What tiles have in common is copied once: each program copies its share to all of them."""
    ptx = product(replace(COOPERATIVE, cluster=cluster)).asm["ptx"]
    assert f".reqnctapercluster {cluster[0] * cluster[1]}, 1, 1" in ptx
    # A part of A is one instruction, B one for each 128 bytes of its rows; all shares are there.
    assert ptx.count("complete_tx::bytes.multicast::cluster") == copies
    # Each consumer tells the programs that copy to it: after each step, and after the last.
    # The consumer's warps meet before, once.
    arrivals = " mbarrier.arrive.shared::cluster" * (cluster[0] + cluster[1] - 1)
    found = " ".join(instructions(ptx, r"bar\.sync|mbarrier\.arrive\.shared::cluster"))
    assert found.count("bar.sync" + arrivals) == 2 * 2
    assert found.count("shared::cluster") == 2 * 2 * (cluster[0] + cluster[1] - 1)
    # Warps of tasks come to the cluster's meeting when they have given up their registers.
    head = ptx[: ptx.index("@%task barrier.cluster.arrive")].rpartition("$L__BB")[2]
    assert "setmaxnreg.dec" in head


def test_what_the_cache_is_to_keep() -> None:
    ptx = product(replace(COOPERATIVE, cluster=(2, 2), keep="a")).asm["ptx"]
    policies = instructions(ptx, r"createpolicy\.fractional\.L2::(\w+)")
    assert set(policies) == {"evict_last", "evict_first"}
    copies = instructions(ptx, r"cp\.async\.bulk\.tensor\.2d\.shared\S+")
    assert len(copies) == 5
    assert all(copy.endswith(".multicast::cluster.L2::cache_hint") for copy in copies)


def test_tiles_that_are_stored_late() -> None:
    """A part of the tile before is stored while a product is in flight."""
    ptx = product(replace(SHARED, subtiles=4, late_store=True)).asm["ptx"]
    # Of each consumer, in four parts: in its loop, where that is too short, and the last tile.
    assert ptx.count("cp.async.bulk.tensor.2d.global") == 2 * (4 + 3 + 4)
    waits = instructions(ptx, r"wgmma\.wait_group\.sync\.aligned\s+(\d)")
    assert sorted(waits) == ["0", "0", "1", "1"]


def test_tiles_that_are_cut_along_k() -> None:
    ptx = product(replace(SHARED, stream_k=True)).asm["ptx"]
    # Each consumer's sums go to memory from the registers that they are in, and come from there.
    assert ptx.count("st.global.v2.b32") == ptx.count("ld.global.v2.f32") == 2 * 64
    assert ptx.count("ld.acquire.gpu.global.b32") == 2
    # A flag is raised in the loop, some steps later, or after the last tile.
    assert ptx.count("fence.acq_rel.gpu") == 2 * 2


def test_integers_that_are_cut_along_k() -> None:
    config = replace(COOPERATIVE, block_n=128, block_k=128, stream_k=True)
    ptx = product(config, "i8", columns="b", out="i32").asm["ptx"]
    assert len(re.findall(r"ld\.global\.v2\.b32 \{%a, %b\}.*add\.s32", ptx)) == 2 * 32


def test_turns() -> None:
    """Every other tile goes through K from the end."""
    ptx = product(replace(COOPERATIVE, turn=True)).asm["ptx"]
    assert instructions(ptx, r"selp\.b32\s+\S+, -?64, -?64")


@pytest.mark.parametrize(("columns", "width", "stages", "help"), [
    ("", 256, 3, 2), ("ab", 256, 3, 0), ("b", 128, 5, 0),
])  # fmt: skip
def test_tiles_that_two_programs_share(columns: str, width: int, stages: int, help: int) -> None:
    box = f"{width},64" if "b" in columns else f"64,{width}"
    with remora.use(tlx.in_clusters((2, 1, 1))):
        compiled = build(
            gemm_split, "cuda:90", a_desc="tensordesc<bf16[64,64]>",
            b_desc=f"tensordesc<bf16[{box}]>", c_desc="tensordesc<bf16[64,64]>",
            **plain_arguments(gemm_split), M="i32", N="i32", K="i32", helped="i32", helpers="i32",
            partials="*fp32" if help else None, flags="*i32" if help else None, BLOCK_N=width,
            STAGES=stages, A_BY_COLUMN="a" in columns, B_BY_COLUMN="b" in columns, HELP=help,
            KEEP="a",
        )  # fmt: skip
    ptx = compiled.asm["ptx"]
    # Each consumer's sums leave from the registers that they are in, and come to the same ones.
    assert ptx.count("st.async") == ptx.count("ld.shared.v4.f32") == width // 8
    config = Config(128, width, 64, 8, stages, 4, "split")
    buffers = of_specialized(config, 2, 2)
    assert buffers < compiled.metadata.shared <= min(buffers + SMALL, LIMIT)
    assert resources(compiled.asm["cubin"])[1] == 0
    # A's two parts, and B's of 64 columns, or all of it by columns.
    boxes = 2 + (1 if "b" in columns else width // 64)
    assert len(instructions(ptx, r"cp\.async\.bulk\.tensor\.2d\.shared\S+")) == boxes


@pytest.mark.parametrize(("rows", "columns", "share", "by_column", "dtype", "shape"), [
    (16, 64, 2, "b", "fp16", "m64n16k16.f32.f16.f16"),
    (32, 128, 4, "", "bf16", "m64n32k16.f32.bf16.bf16"),
    (64, 128, 1, "b", "i8", "m64n64k32.s32.s8.s8"),
    (128, 128, 2, "a", "fp16", "m64n128k16.f32.f16.f16"),
])  # fmt: skip
def test_few_rows(
    rows: int, columns: int, share: int, by_column: str, dtype: str, shape: str
) -> None:
    """Rows of A are the columns of the matrix unit's products; sums go to the first program."""
    size = 1 if dtype == "i8" else 2
    out_size = 4 if dtype == "i8" else 2
    config = Config(rows, columns, 128 // size, 1, 4, 4, "narrow", cluster=(share, 1))
    depth = config.block_k
    a, b = ((n, depth) if x in by_column else (depth, n) for x, n in (("a", rows), ("b", columns)))
    with remora.use(tlx.in_clusters((share, 1, 1))):
        compiled = build(
            gemm_narrow, "cuda:90", a_desc=f"tensordesc<{dtype}[{a[1]},{a[0]}]>",
            b_desc=f"tensordesc<{dtype}[{b[0]},{b[1]}]>",
            **plain_arguments(gemm_narrow) | {"stride_cm": "i32:16", "stride_cn": 1},
            c_ptr="*i32" if dtype == "i8" else f"*{dtype}", M="i32", N="i32", K="i32",
            BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=depth, STAGES=4, KEEP="a",
            A_BY_COLUMN="a" in by_column, B_BY_COLUMN="b" in by_column,
            ACC=tl.int32 if dtype == "i8" else tl.float32, SHARE=share,
        )  # fmt: skip
    ptx = compiled.asm["ptx"]
    assert set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.([\w.]+)", ptx)) == {shape}
    fours = columns // 64 * rows // 8 * (share > 1)
    assert ptx.count("st.async") == fours
    assert ptx.count("ld.shared.v4.f32") == fours * (share - 1)
    counted = of_specialized(config, size, out_size)
    assert compiled.metadata.shared <= min(counted + SMALL, LIMIT)
    registers, spilled = resources(compiled.asm["cubin"])
    assert registers <= 168 and spilled == 0  # noqa: PT018
    assert ptx.index("griddepcontrol.launch_dependents") < ptx.rindex("griddepcontrol.wait")
