"""AlphaFold's triangle multiplicative update beside PyTorch's, eager and compiled.

    python benchmarks/triangle.py --out benchmarks/results/NAME

Random normal pairs, weights of the size 1 / sqrt(extent), a mask of nine in ten. All in turn,
round after round; medians of CUDA events, and ratios to torch.compile. The error is
``|result - float64| / |float64|``, of one update; with ``--gradients``, which times forward and
backward together, of the gradient of x. The floors are what the bytes that have to be
moved forward, and the products, take at the rates measured in the same run.

Contestants:
  eager          the update in PyTorch, a line an operation (fp32 products in tf32)
  compiled       the same function through torch.compile
  remora         remora.kernels.triangle_multiply
  remora-graph   the same, replayed from a CUDA graph
  cuequivariance where it is installed

torch.compile may need another Triton than the one that Remora runs on: all but Remora's then have
a process of their own beside this one, whose PYTHONPATH is without the folders that hold a Triton:
so it finds the one PyTorch came with. ``--apart auto`` does so where torch.compile fails here.

Compiling takes most of the time. ``--rounds 0`` only compiles, and ``--part I/COUNT`` takes every
COUNT-th case: run COUNT such processes at once, then the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

HIDDEN = 128
SIZES = [
    (n, batch, c) for c in (128, 384) for n in (256, 512, 768, 1024) for batch in (1, 2)
]  # fmt: skip
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
OTHERS = ("eager", "compiled", "cuequivariance")
CONTESTANTS = (*OTHERS, "remora", "remora-graph")


def contestants(names: list[str]):
    """Functions of (arguments, mask, incoming)."""
    import torch
    from kernels.triangle_reference import triangle

    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.reset()  # each size is compiled for itself
    compiled = torch.compile(triangle, dynamic=False)
    runs = {
        "eager": lambda v, m, i: triangle(*v, mask=m, incoming=i),
        "compiled": lambda v, m, i: compiled(*v, mask=m, incoming=i),
    }
    if "remora" in names:
        from remora.kernels import triangle_multiply

        runs["remora"] = lambda v, m, i: triangle_multiply(*v, mask=m, incoming=i)
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


def work(n: int, batch: int, c: int, dtype: str, gradients: bool) -> dict[str, float]:
    """Floating-point operations, and the bytes of the kernels, each tensor once.

    With gradients those of both directions: docs/triangle.md has the steps.
    """
    pairs, h, element_bytes = batch * n * n, HIDDEN, 4 if dtype == "fp32" else 2
    x, y, ab = pairs * c * element_bytes, pairs * c * 2, 2 * pairs * h * 2
    products = pairs * h * element_bytes
    first, again = (x + y, y) if dtype == "fp32" else (0, x)  # 16 bits are not normalised first
    flops = 2.0 * pairs * (4 * h * c + n * h + c * h + c * c)
    moved = float(first + (again + ab) + (ab + products) + (products + again + x))
    if gradients:
        of_y = 4 * h + c  # all that y is multiplied with
        flops += 2.0 * pairs * (3 * of_y * c + 3 * c * h + 2 * n * h)
        moved += float(15 * x + 17 * products + 3 * of_y * pairs * element_bytes)
    return {"flops": flops, "bytes": moved}


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


class Case:
    """One size, dtype and direction, and some contestants, in this process."""

    def __init__(self, case: list[Any], names: list[str], gradients: bool, exact: bool) -> None:
        """Compile all; with ``exact``, compare with float64."""
        import torch
        from kernels.triangle_reference import error as off
        from kernels.triangle_reference import inputs, triangle

        (n, batch, c), dtype, incoming = case
        kind = getattr(torch, DTYPES[dtype])
        values = inputs(batch, n, c, HIDDEN, kind, "cuda")
        mask = torch.rand(batch, n, n, device="cuda") > 0.1
        grad = torch.randn(values[0].shape, device="cuda").to(kind)

        def complete(run, values, grad):
            """The update; with gradients that of x comes out, and all are worked out."""
            if not gradients:
                with torch.no_grad():
                    return run(values, mask, incoming)
            values = [v.detach().requires_grad_() for v in values]
            return torch.autograd.grad(run(values, mask, incoming), values, grad)[0]

        self.runs = {
            name: lambda run=run: complete(run, values, grad)
            for name, run in contestants(names).items()
        }
        results = {}
        for name in list(self.runs):
            try:
                results[name] = self.runs[name]()
            except Exception as error:  # another's, of whatever kind: the rest goes on
                if name == "remora":
                    raise
                del self.runs[name]
                print(f"{case} {name}: {type(error).__name__}: {str(error)[:1000]}", flush=True)
        self.errors = {}
        if exact:
            reference = complete(
                lambda v, m, i: triangle(*v, mask=m, incoming=i),
                [v.double() for v in values], grad.double(),
            )  # fmt: skip
            self.errors = {name: off(result, reference) for name, result in results.items()}
            del reference
        del results
        if "remora" in self.runs and "remora-graph" in names:
            self.runs["remora-graph"] = replayed(self.runs["remora"])
            self.errors["remora-graph"] = self.errors.get("remora")
        torch.cuda.empty_cache()

    def times(self, ms: int) -> dict[str, float]:
        """The milliseconds of each, once."""
        from triton.testing import do_bench

        return {
            name: do_bench(run, warmup=10, rep=ms, return_mode="median")
            for name, run in self.runs.items()
        }


class Apart:
    """A process of its own for all but Remora's contestants, with PyTorch's own Triton."""

    def __init__(self) -> None:
        folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folders = [f for f in folders if f and not (Path(f) / "triton").exists()]
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)}, text=True,
        )  # fmt: skip

    def _ask(self, *question: Any) -> Any:
        print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the other contestants has ended")
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer

    def start(self, *case: Any) -> None:
        """As ``Case``."""
        self.errors = self._ask("start", *case)

    def times(self, ms: int) -> dict[str, float]:
        """As ``Case``."""
        return self._ask("times", ms)

    def triton(self) -> str:
        """The version of its Triton."""
        return self._ask("triton")["version"]


def serve() -> None:
    """What ``Apart`` asks for, line by line."""
    import torch  # noqa: F401  while the other process is not waiting
    import triton

    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed
    case = None
    for line in sys.stdin:
        word, *rest = json.loads(line)
        try:
            if word == "triton":
                answer = {"version": triton.__version__}
            elif word == "start":
                case = None  # its memory
                case = Case(*rest)
                answer = case.errors
            else:
                answer = case.times(*rest)
        except Exception as error:  # for the one who asked
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def here_compiles() -> bool:
    """Whether torch.compile works beside the Triton of this process."""
    import torch

    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(64, device="cuda"))
    except Exception as error:  # whatever Inductor raises
        print(f"torch.compile in a process of its own: {type(error).__name__}", flush=True)
        return False
    return True


def measure(case: list[Any], arguments: Any, peaks: dict, apart: Apart | None) -> list[dict]:
    (n, batch, c), dtype, incoming = case
    exact, samples, errors = arguments.rounds > 0, {}, {}
    names = arguments.contestants
    parts = []
    if apart:
        apart.start(case, [x for x in names if x in OTHERS], arguments.gradients, exact)
        parts.append(apart)
        names = [x for x in names if x not in OTHERS]
    parts.append(Case(case, names, arguments.gradients, exact))
    for part in parts:
        errors |= part.errors
    for i in range(arguments.rounds):
        for part in parts[:: -1 if i % 2 else 1]:
            for name, took in part.times(arguments.ms).items():
                samples.setdefault(name, []).append(took)
    if not exact:
        return []
    counted = work(n, batch, c, dtype, arguments.gradients)
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
    parser.add_argument("--ms", type=int, default=80, help="of each measurement")
    parser.add_argument("--seconds", type=float, help="begin no case after so many")
    parser.add_argument("--part", default="0/1", metavar="I/COUNT", help="every COUNT-th case")
    parser.add_argument("--apart", default="auto", choices=["auto", "always", "never"],
                        help="all but Remora's in a process of their own")  # fmt: skip
    parser.add_argument("--replot", action="store_true", help="only draw the plots from the .json")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    if arguments.replot:
        plot(json.loads(arguments.out.with_suffix(".json").read_text()), arguments.out)
        return
    started = time.monotonic()
    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes or ()] or SIZES
    cases = list(product(sizes, arguments.dtypes, [d == "incoming" for d in arguments.directions]))
    part, count = map(int, arguments.part.split("/"))
    apart = Apart() if arguments.apart == "always" else None  # imports while this process does
    if arguments.apart == "auto" and "compiled" in arguments.contestants and not here_compiles():
        apart = Apart()
    peaks = rates() if arguments.rounds else {}
    result = machine.record() | {"rates": peaks, "rows": []}
    if apart:
        result["machine"]["triton of torch.compile"] = apart.triton()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for case in cases[part::count]:
        if arguments.seconds and time.monotonic() - started > arguments.seconds:
            print(f"{case} and what follows: no time left", flush=True)
            break
        try:
            result["rows"] += measure(case, arguments, peaks, apart)
        except Exception as error:  # the other cases are measured all the same
            print(f"{case}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
            result.setdefault("failed", []).append([case, f"{type(error).__name__}: {error}"])
        if arguments.rounds:
            arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    if result["rows"]:
        for name in ("remora", "remora-graph", "cuequivariance"):
            ratios = [r["ratio"] for r in result["rows"] if r["contestant"] == name and r["ratio"]]
            if ratios:
                mean = statistics.geometric_mean(ratios)
                least = min(ratios)
                print(f"{name}: {mean:.2f} of torch.compile (geometric mean), least {least:.2f}")
                result[f"{name} of torch.compile"] = {"mean": mean, "least": least}
        arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
        plot(result, arguments.out)
    if result.get("failed"):
        sys.exit(1)


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
    gpu = result["machine"].get("gpu", "no GPU").split(",")[0]
    bars.set_title(f"{gpu}, Triton {result['machine']['triton']}")
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
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)


if __name__ == "__main__":
    main()
