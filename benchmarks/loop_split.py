"""Kernels with and without the loop-split plugin: causal attention, and a product with a masked K.

    PYTHONPATH=src:examples/plugins/loop-split/src \\
        python benchmarks/loop_split.py --out benchmarks/results/NAME

Both are compiled from the same source in one process and measured in turn,
round after round, so that a drift of the clocks meets both alike. The ratio is
of the medians, stock time by split time: above 1 the plugin helps. Each case
has several configurations, and the last line of a case compares the best ones,
as an autotuner would choose.

With --check nothing is measured: results with and without the plugin, over many
sizes, beside each other and beside float64.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

HEADS, BATCH, SEQUENCE = 16, 4, 4096
PRODUCT = (8192, 8192, 4096 + 32)


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    BRANCH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Causal attention of one head: q, k, v, o of (heads, N, D), contiguous; scale with log2(e).

    BRANCH: the mask stands in a branch. EVEN: N is a multiple of both blocks.
    """
    start_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest ones first
    base = tl.program_id(1).to(tl.int64) * N * D
    rows = start_m + tl.arange(0, BLOCK_M)
    lanes = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    q_at = q_ptr + base + rows[:, None] * D + dims[None, :]
    q = tl.load(q_at) if EVEN else tl.load(q_at, mask=rows[:, None] < N, other=0.0)
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    k_at = k_ptr + base + lanes[None, :] * D + dims[:, None]
    v_at = v_ptr + base + lanes[:, None] * D + dims[None, :]
    for start_n in range(0, tl.minimum(start_m + BLOCK_M, N), BLOCK_N):
        columns = start_n + lanes
        k = tl.load(k_at) if EVEN else tl.load(k_at, mask=columns[None, :] < N, other=0.0)
        s = tl.dot(q, k) * scale
        if BRANCH:
            if start_n + BLOCK_N > start_m:
                s = tl.where(rows[:, None] >= columns[None, :], s, float("-inf"))
        else:
            s = tl.where(rows[:, None] >= columns[None, :], s, float("-inf"))
        new = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        fade = tl.exp2(most - new)
        total = total * fade + tl.sum(p, 1)
        v = tl.load(v_at) if EVEN else tl.load(v_at, mask=columns[:, None] < N, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        most = new
        k_at += BLOCK_N * D
        v_at += BLOCK_N * D
    o_at = o_ptr + base + rows[:, None] * D + dims[None, :]
    o = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    if EVEN:
        tl.store(o_at, o)
    else:
        tl.store(o_at, o, mask=rows[:, None] < N)


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c = a b, all row-major. Only the last tile of K needs its mask; the source masks each."""
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = program // (GROUP * tiles_n) * GROUP
    size = tl.minimum(tiles_m - first, GROUP)
    tile_m = first + program % (GROUP * tiles_n) % size
    tile_n = program % (GROUP * tiles_n) // size
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    rows_in = tl.max_contiguous(tl.multiple_of(rows % M, BLOCK_M), BLOCK_M)
    columns_in = tl.max_contiguous(tl.multiple_of(columns % N, BLOCK_N), BLOCK_N)
    a_at = a_ptr + rows_in[:, None] * K + depth[None, :]
    b_at = b_ptr + depth[:, None] * N + columns_in[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_at, mask=depth[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_at, mask=depth[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BLOCK_K
        b_at += BLOCK_K * N
    c_at = c_ptr + rows[:, None] * N + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_at, acc.to(c_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Config:
    """Tiles and what the compiler is told: block_m, block_n, block_k (0 for attention)."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}" + (f"x{self.block_k}" if self.block_k else "")
        return f"{tile} w{self.warps} s{self.stages}"


ATTENTION_CONFIGS = {
    64: [Config(128, 64, 0, 4, 3), Config(128, 128, 0, 8, 3), Config(128, 64, 0, 8, 3)],
    128: [Config(128, 64, 0, 8, 3), Config(128, 128, 0, 8, 2), Config(64, 64, 0, 4, 3)],
}
PRODUCT_CONFIGS = [
    Config(128, 256, 64, 8, 3), Config(128, 128, 64, 4, 4), Config(128, 128, 32, 4, 4),
    Config(64, 128, 64, 4, 4),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is computed: a name, the operations, the configurations, and how to run one."""

    name: str
    flops: float
    configs: list[Config]
    run: Callable[[Config], tuple[Any, Any]]
    reference: Callable[[], Any]
    library: Callable[[], Any]


def attention(q: Any, k: Any, v: Any, config: Config, branch: bool) -> tuple[Any, Any]:
    """The output, and the compiled kernel. q, k, v: (batch, heads, N, D)."""
    import torch

    batch, heads, n, d = q.shape
    o = torch.empty_like(q)
    compiled = attention_kernel[triton.cdiv(n, config.block_m), batch * heads](
        q, k, v, o, math.log2(math.e) / math.sqrt(d), n,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, D=d, BRANCH=branch,
        EVEN=n % config.block_m == 0 and n % config.block_n == 0,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return o, compiled


def product(a: Any, b: Any, config: Config) -> tuple[Any, Any]:
    """The product, and the compiled kernel."""
    import torch

    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n),)
    compiled = product_kernel[grid](
        a, b, c, m, n, k,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, GROUP=8,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return c, compiled


def attention_in_float64(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, head by head."""
    import torch

    result = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    n = q.shape[2]
    hidden = torch.ones((n, n), dtype=torch.bool, device=q.device).triu(1)
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            x, y, z = (t[batch, head].double() for t in (q, k, v))
            s = (x @ y.T / math.sqrt(x.shape[1])).masked_fill_(hidden, -math.inf)
            result[batch, head] = s.softmax(1) @ z
    return result


def attention_case(d: int, branch: bool, batch: int, heads: int, n: int) -> Case:
    """Causal attention on random normal fp16."""
    import torch

    torch.manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, n, d, device="cuda", dtype=torch.float16) for _ in range(3)
    )
    return Case(
        f"attention D={d} {'branch' if branch else 'where'} N={n}",
        4 * batch * heads * n * n * d / 2,
        ATTENTION_CONFIGS[d],
        lambda config: attention(q, k, v, config, branch),
        lambda: attention_in_float64(q, k, v),
        lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )


def product_case(m: int, n: int, k: int) -> Case:
    """A product of random normal fp16 matrices."""
    import torch

    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    b = torch.randn(k, n, device="cuda", dtype=torch.float16)
    return Case(
        f"product {m}x{n}x{k}", 2 * m * n * k, PRODUCT_CONFIGS,
        lambda config: product(a, b, config),
        lambda: a.double() @ b.double(),
        lambda: a @ b,
    )  # fmt: skip


def cases() -> Iterator[Case]:
    """What is measured."""
    for d in (64, 128):
        for branch in (False, True):
            yield attention_case(d, branch, BATCH, HEADS, SEQUENCE)
    yield product_case(*PRODUCT)


def small_cases() -> Iterator[Case]:
    """What is checked beside float64: sizes around the tiles' edges."""
    for d in (64, 128):
        for n in (1, 17, 63, 64, 65, 127, 128, 129, 200, 256, 383, 512, 1000, 1024, 1153):
            for branch in (False, True):
                yield attention_case(d, branch, 1, 2, n)
    for m, n in ((128, 256), (200, 136)):
        for k in (1, 8, 31, 32, 33, 63, 64, 65, 72, 96, 127, 128, 129, 200, 256, 500, 1000, 1032):
            yield product_case(m, n, k)


def contexts() -> dict[str, Callable[[], Any]]:
    """Stock Triton, and with the plugin: what to run a kernel in."""
    import remora_loop_split

    import remora

    pipeline = remora_loop_split.pipeline()
    return {"stock": nullcontext, "split": lambda: remora.use(pipeline)}


def error_of(result: Any, expected: Any) -> float:
    """The relative error, by the norm."""
    error: float = ((result.double() - expected).norm() / expected.norm()).item()
    return error


def check() -> bool:
    """Whether all small cases are right with the plugin. Prints each that is not."""
    total = wrong = equal = split = 0
    for case in small_cases():
        expected = case.reference()
        for config in case.configs:
            results, loops = {}, {}
            try:
                for name, inside in contexts().items():
                    with inside():
                        results[name], compiled = case.run(config)
                    loops[name] = compiled.asm["ttgir"].count("scf.for")
            except triton.runtime.errors.OutOfResources:
                continue
            errors = {name: error_of(result, expected) for name, result in results.items()}
            same = bool((results["stock"] == results["split"]).all())
            total += 1
            equal += same
            split += loops["split"] > loops["stock"]
            if not errors["split"] <= max(2e-3, 1.1 * errors["stock"]):
                wrong += 1
                print(f"WRONG {case.name} {config}: {errors}", flush=True)
    print(f"{total} checked, {wrong} wrong, {equal} with the same bits as stock, {split} split")
    return wrong == 0 and split > 0


def measure(case: Case, rounds: int, ms: int) -> list[dict[str, Any]]:
    """A case, in all its configurations, stock and split in turn."""
    import torch
    from triton.testing import do_bench

    print(case.name)
    expected, rows = case.reference(), []
    library = do_bench(case.library, warmup=100, rep=ms, return_mode="median")
    for config in case.configs:
        row: dict[str, Any] = {"case": case.name, "config": asdict(config), "library_ms": library}
        samples: dict[str, list[float]] = {"stock": [], "split": []}
        results = {}
        try:
            for name, inside in contexts().items():
                with inside():
                    results[name], compiled = case.run(config)
                row[f"{name}_loops"] = compiled.asm["ttgir"].count("scf.for")
                row[f"{name}_registers"] = compiled.n_regs
                row[f"{name}_spills"] = compiled.n_spills
                row[f"{name}_error"] = error_of(results[name], expected)
        except triton.runtime.errors.OutOfResources as error:
            print(f"  {config!s:20} {error}")
            continue
        row["same_bits"] = bool((results["stock"] == results["split"]).all())
        del results
        for _ in range(rounds):
            for name, inside in contexts().items():
                with inside():
                    ms_of_one = do_bench(
                        lambda config=config: case.run(config), warmup=100, rep=ms,
                        return_mode="median",
                    )  # fmt: skip
                samples[name].append(ms_of_one)
        for name, values in samples.items():
            row[f"{name}_samples_ms"] = values
            row[f"{name}_ms"] = statistics.median(values)
            row[f"{name}_tflops"] = case.flops * 1e-9 / row[f"{name}_ms"]
        row["ratio"] = row["stock_ms"] / row["split_ms"]
        rows.append(row)
        print(
            f"  {row['ratio']:.3f}x  {config!s:20} {row['stock_tflops']:6.1f} -> "
            f"{row['split_tflops']:6.1f} TFLOP/s  loops {row['stock_loops']} -> "
            f"{row['split_loops']}, registers {row['stock_registers']} -> "
            f"{row['split_registers']}, spills {row['stock_spills']} -> {row['split_spills']}, "
            f"error {row['split_error']:.1e}, same bits: {row['same_bits']}",
            flush=True,
        )
    if rows:
        stock, split = (min(row[f"{name}_ms"] for row in rows) for name in ("stock", "split"))
        print(
            f"  {stock / split:.3f}x  best of each          {case.flops * 1e-9 / stock:6.1f} -> "
            f"{case.flops * 1e-9 / split:6.1f} TFLOP/s  (torch: "
            f"{case.flops * 1e-9 / library:.1f})",
            flush=True,
        )
    torch.cuda.empty_cache()
    return rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Bars of the ratio, one for each configuration, labelled with TFLOP/s before and after."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = result["rows"]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.32 * len(rows)))
    names = [f"{row['case']}, {Config(**row['config'])}" for row in rows]
    bars = axes.barh(range(len(rows)), [row["ratio"] for row in rows])
    labels = [f"{row['stock_tflops']:.0f} → {row['split_tflops']:.0f}" for row in rows]
    axes.bar_label(bars, labels, fontsize=7, padding=2)
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.5)
    axes.margins(x=0.15)
    axes.set_xlabel("time without the plugin by time with it (labels: TFLOP/s)")
    where = result["machine"]
    axes.set_title(f"{where['gpu'].split(',')[0]}, Triton {where['triton']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument(
        "--out", type=Path, default=Path("loop_split"), help="where to write .json, .png"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=int, default=200, help="of each measurement")
    parser.add_argument("--replot", action="store_true", help="only draw the .png from the .json")
    arguments = parser.parse_args()
    if arguments.check:
        sys.exit(not check())
    data, picture = arguments.out.with_suffix(".json"), arguments.out.with_suffix(".png")
    if arguments.replot:
        plot(json.loads(data.read_text()), picture)
        return
    import machine  # the folder is not on the path of a test that loads this file

    rows = []
    for case in cases():
        if arguments.only in case.name:
            rows += measure(case, arguments.rounds, arguments.ms)
    result = machine.record() | {"rows": rows}
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(result, indent=1) + "\n")
    plot(result, picture)


if __name__ == "__main__":
    main()
