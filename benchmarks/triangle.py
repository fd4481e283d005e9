"""AlphaFold's triangle multiplicative update beside PyTorch's, eager and compiled.

    python benchmarks/triangle.py --out benchmarks/results/NAME

Random normal pairs, weights of the size 1 / sqrt(extent), a mask of nine in ten. All in one
process, in turn, round after round; medians of CUDA events, and ratios to torch.compile. The
error is ``|result - float64| / |float64|``, of one update; with ``--gradients``, which times
forward and backward together, of the gradient of x. The floors are what the bytes that have to be
moved forward, and the products, take at the rates measured in the same run.

Contestants:
  eager          the update in PyTorch, a line an operation (fp32 products in tf32)
  compiled       the same function through torch.compile
  remora         remora.kernels.triangle_multiply
  remora-graph   the same, replayed from a CUDA graph
  cuequivariance where it is installed
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from itertools import product
from pathlib import Path

import machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

HIDDEN = 128
SIZES = [
    (n, batch, c) for c in (128, 384) for n in (256, 512, 768, 1024) for batch in (1, 2)
]  # fmt: skip
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CONTESTANTS = ("eager", "compiled", "remora", "remora-graph", "cuequivariance")


def contestants(names: list[str]):
    """Functions of (arguments, mask, incoming)."""
    import torch
    from kernels.triangle_reference import triangle

    from remora.kernels import triangle_multiply

    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.reset()  # each size is compiled for itself
    compiled = torch.compile(triangle, dynamic=False)
    runs = {
        "eager": lambda v, m, i: triangle(*v, mask=m, incoming=i),
        "compiled": lambda v, m, i: compiled(*v, mask=m, incoming=i),
        "remora": lambda v, m, i: triangle_multiply(*v, mask=m, incoming=i),
    }
    try:
        from cuequivariance_torch import triangle_multiplicative_update
    except ImportError:
        pass
    else:
        runs["cuequivariance"] = lambda v, m, i: triangle_multiplicative_update(
            v[0], "incoming" if i else "outgoing", m.to(v[0].dtype),
            norm_in_weight=v[1], norm_in_bias=v[2], p_in_weight=v[3], g_in_weight=v[4],
            norm_out_weight=v[5], norm_out_bias=v[6], p_out_weight=v[7], g_out_weight=v[8],
        )  # fmt: skip
    return {name: run for name, run in runs.items() if name in names}


def replayed(run):
    """A function that replays ``run`` from a CUDA graph."""
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def work(n: int, batch: int, c: int, element_bytes: int) -> dict[str, float]:
    """Floating-point operations, and the bytes of the four kernels, each tensor once."""
    pairs, h = batch * n * n, HIDDEN
    x, y, ab = pairs * c * element_bytes, pairs * c * 2, 2 * pairs * h * 2
    products = pairs * h * element_bytes
    return {
        "flops": 2.0 * pairs * (4 * h * c + n * h + c * h + c * c),
        "bytes": float((x + y) + (y + ab) + (ab + products) + (products + y + x)),
    }


def rates() -> dict[str, float]:
    """What this GPU reaches: bytes/s of a copy (read and written), FLOP/s of a bf16 product."""
    import torch
    from triton.testing import do_bench

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copy = do_bench(lambda: target.copy_(source), return_mode="median")
    multiply = do_bench(lambda: a @ b, return_mode="median")
    return {
        "bytes_per_s": 2 * source.numel() / copy * 1e3,
        "flop_per_s": 2 * 8192**3 / multiply * 1e3,
    }


def measure(size, dtype: str, incoming: bool, arguments, peaks) -> list[dict]:
    import torch
    from kernels.triangle_reference import error, inputs, triangle
    from triton.testing import do_bench

    n, batch, c = size
    kind = getattr(torch, DTYPES[dtype])
    values = inputs(batch, n, c, HIDDEN, kind, "cuda")
    mask = torch.rand(batch, n, n, device="cuda") > 0.1
    grad = torch.randn(values[0].shape, device="cuda").to(kind)

    def complete(run, values, grad):
        """The update; with gradients that of x comes out, and all are worked out."""
        if not arguments.gradients:
            with torch.no_grad():
                return run(values, mask, incoming)
        values = [v.detach().requires_grad_() for v in values]
        return torch.autograd.grad(run(values, mask, incoming), values, grad)[0]

    def exact(values, mask, incoming):
        return triangle(*values, mask=mask, incoming=incoming)

    runs = {
        name: lambda run=run: complete(run, values, grad)
        for name, run in contestants(arguments.contestants).items()
    }
    if not arguments.rounds:  # only to compile
        for run in runs.values():
            run()
        return []
    expected = complete(exact, [v.double() for v in values], grad.double())
    errors = {name: error(run(), expected) for name, run in runs.items()}
    del expected
    torch.cuda.empty_cache()
    if "remora" in runs and "remora-graph" in arguments.contestants and not arguments.gradients:
        runs["remora-graph"], errors["remora-graph"] = replayed(runs["remora"]), errors["remora"]
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            timed = do_bench(run, warmup=25, rep=arguments.ms, return_mode="median")
            samples[name].append(timed)
    counted = work(n, batch, c, values[0].element_size())
    floors = (counted["flops"] / peaks["flop_per_s"], counted["bytes"] / peaks["bytes_per_s"])
    base = statistics.median(samples["compiled"]) if "compiled" in samples else None
    rows = []
    for name, all_ms in samples.items():
        median = statistics.median(all_ms)
        row = {
            "n": n, "batch": batch, "channels": c, "dtype": dtype, "incoming": incoming,
            "gradients": arguments.gradients,
            "contestant": name, "ratio": base / median if base else None, "ms": median,
            "samples_ms": all_ms, "tflops": counted["flops"] / median * 1e-9,
            "rel_err": errors[name], "flops_floor_ms": floors[0] * 1e3,
            "bytes_floor_ms": floors[1] * 1e3,
        }  # fmt: skip
        rows.append(row)
        ratio = f"{row['ratio']:5.2f}" if base else "    -"
        print(
            f"{n:5} {batch} {c:4} {dtype} {'in ' if incoming else 'out'} {name:14} {ratio} of "
            f"torch.compile  {median:8.4f} ms  {row['tflops']:6.1f} TFLOP/s  floors "
            f"{row['flops_floor_ms']:.3f}, {row['bytes_floor_ms']:.3f} ms  "
            f"(error {errors[name]:.2e})",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("triangle"))
    parser.add_argument("--sizes", nargs="*", default=None, help="N,batch,C, all by default")
    parser.add_argument("--dtypes", nargs="*", default=["fp32", "bf16"], choices=DTYPES)
    parser.add_argument("--directions", nargs="*", default=["outgoing"],
                        choices=["outgoing", "incoming"])  # fmt: skip
    parser.add_argument("--contestants", nargs="*", default=CONTESTANTS, choices=CONTESTANTS)
    parser.add_argument("--gradients", action="store_true", help="time forward and backward")
    parser.add_argument("--rounds", type=int, default=3, help="0: only compile")
    parser.add_argument("--ms", type=int, default=100, help="of each measurement")
    parser.add_argument("--replot", action="store_true", help="only draw the .png from the .json")
    arguments = parser.parse_args()
    if arguments.replot:
        result = json.loads(arguments.out.with_suffix(".json").read_text())
        plot(result, arguments.out.with_suffix(".png"))
        return
    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes or ()] or SIZES
    peaks = rates() if arguments.rounds else {}
    result = machine.record() | {"rates": peaks, "rows": []}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for size, dtype, direction in product(sizes, arguments.dtypes, arguments.directions):
        result["rows"] += measure(size, dtype, direction == "incoming", arguments, peaks)
        arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    if not result["rows"]:
        return
    for name in ("remora", "remora-graph", "cuequivariance"):
        ratios = [r["ratio"] for r in result["rows"] if r["contestant"] == name and r["ratio"]]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"{name}: {mean:.2f} of torch.compile (geometric mean), least {min(ratios):.2f}")
            result[f"{name} of torch.compile"] = {"mean": mean, "least": min(ratios)}
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, arguments.out.with_suffix(".png"))


def plot(result: dict, path: Path) -> None:
    """Above, bars of the speed relative to torch.compile; below, a roofline."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def case(row: dict) -> tuple:
        return row["dtype"], row["channels"], row["n"], row["batch"], row["incoming"]

    cases = list(dict.fromkeys(map(case, result["rows"])))
    names = list(dict.fromkeys(r["contestant"] for r in result["rows"]))
    figure, (bars, roof) = plt.subplots(2, figsize=(4 + 0.7 * len(cases), 9))
    for i, name in enumerate(names):
        rows = [r for r in result["rows"] if r["contestant"] == name and r["ratio"]]
        at = [cases.index(case(r)) + i / (len(names) + 1) for r in rows]
        drawn = bars.bar(at, [r["ratio"] for r in rows], width=1 / (len(names) + 1), label=name)
        bars.bar_label(drawn, [f"{r['ms']:.2f}" for r in rows], fontsize=4)
    labels = [f"{d}\n{c}\n{n}x{b}{' in' if i else ''}" for d, c, n, b, i in cases]
    bars.set_xticks([i + 0.4 for i in range(len(cases))], labels, fontsize=5)
    bars.axhline(1, color="black", linewidth=0.5)
    bars.set_ylabel("speed, of torch.compile (labels: ms)")
    bars.set_title(
        f"{result['machine']['gpu'].split(',')[0]}, Triton {result['machine']['triton']}"
    )
    bars.legend(fontsize=6)

    peak, bandwidth = result["rates"]["flop_per_s"], result["rates"]["bytes_per_s"]
    at = [2.0**i for i in range(4, 13)]
    roof.plot(at, [min(peak, x * bandwidth) * 1e-12 for x in at], color="black")
    for name in names:
        rows = [r for r in result["rows"] if r["contestant"] == name]
        intensity = [r["flops_floor_ms"] * peak / (r["bytes_floor_ms"] * bandwidth) for r in rows]
        roof.plot(intensity, [r["tflops"] for r in rows], "o", markersize=3, label=name)
    roof.set_xscale("log", base=2)
    roof.set_yscale("log", base=2)
    roof.set_xlabel("FLOP per byte that has to be moved")
    roof.set_ylabel("TFLOP/s")
    roof.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
