"""Matrix products side by side: Remora's kernels, cuBLAS, stock Triton, and the C++ plugin.

    python benchmarks/gemm.py --out benchmarks/results/NAME

Every contestant is a process of its own (the C++ plugin needs an environment
of its own), and they are measured in turn, round after round, so that a drift
of the clocks meets all of them alike. Ratios are to cuBLAS, of the medians.

Contestants:
  cublas         torch.matmul
  remora         remora.kernels.matmul: gemm_specialized, cooperative, on Hopper
  remora-pingpong  gemm_specialized, the consumers in turn
  remora-pipelined gemm_pipelined, whose warps have no tasks of their own
  remora-staged  gemm_staged, the kernel for CDNA, on this GPU
  stock          the same product in plain Triton, with remora's tiles
  peer           triton-utlx's pipelined GEMM tutorial, through its C++ plugin
  peer-remora    the same tutorial file, unmodified, through Remora
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import machine

SHAPES = {"8192": (8192, 8192, 8192), "4096": (4096, 4096, 4096), "wide": (8192, 28672, 4096)}
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "tf32": "float32", "fp8": "float8_e4m3fn"}
TUTORIAL = "tlx/tutorials/hopper_gemm_pipelined.py"
CONTESTANTS = (
    "cublas", "remora", "remora-pingpong", "remora-pipelined", "remora-staged", "stock", "peer",
    "peer-remora",
)  # fmt: skip


def tutorial_path() -> Path | None:
    """The peer's tutorial, where its package is installed."""
    spec = find_spec("utlx_plugin")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.parent / TUTORIAL
    return path if path.exists() else None


def load_tutorial():
    """The tutorial as a module."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("peer_tutorial", tutorial_path())
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def product(contestant: str):
    """The contestant's function of (a, b)."""
    if contestant == "cublas":
        import torch

        torch.backends.cuda.matmul.allow_tf32 = True
        return cublas
    if contestant == "remora":
        from remora.kernels import matmul

        return matmul
    if contestant in ("remora-pingpong", "remora-pipelined"):
        return scheduled(contestant.removeprefix("remora-"))
    if contestant in ("stock", "remora-staged"):
        return plain(contestant)
    if contestant == "peer":
        # What its .pth file does at start-up, where it is installed by pip.
        import _utlx_autoregister  # noqa: F401
        import utlx_plugin  # noqa: F401
    else:
        import triton.language.extra

        import remora.tlx as tlx

        sys.modules["triton.language.extra.tlx"] = tlx
        triton.language.extra.tlx = tlx
    return load_tutorial().matmul


def cublas(a, b):
    import torch

    if a.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device=a.device)
        # Sums in the matrix unit's own precision, as the kernels have them.
        return torch._scaled_mm(a, b, one, one, out_dtype=torch.float16, use_fast_accum=True)
    return torch.matmul(a, b)


def scheduled(schedule: str):
    """``matmul`` by a schedule that it does not choose for large products."""
    from remora.kernels import matmul
    from remora.kernels.matmul import Config, hopper_config

    def run(a, b):
        size = a.element_size()
        config = hopper_config(a.shape[0], b.shape[1], a.shape[1], size)
        if schedule == "pingpong":
            config = Config(128, 128, 128 // size, 8, 5, 4, "pingpong", 2)
        return matmul(a, b, config=config)

    return run


def plain(contestant: str):
    """A product kernel that ``matmul`` does not choose on this GPU."""
    import torch
    import triton

    from remora.kernels.gemm_cdna import gemm_staged
    from remora.kernels.gemm_stock import gemm_stock
    from remora.kernels.matmul import _DTYPES, Config, hopper_config

    kernel = gemm_stock if contestant == "stock" else gemm_staged

    def run(a, b):
        (m, k), n = a.shape, b.shape[1]
        acc, out = _DTYPES[str(a.dtype).removeprefix("torch.")]
        size = a.element_size()
        config = hopper_config(m, n, k, size)
        if kernel is gemm_staged:
            config = Config(128, 128, 128 // size, 8, 2, 8)
        c = torch.empty((m, n), device=a.device, dtype=getattr(torch, out))
        grid = (triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n),)
        kernel[grid](
            a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), **config.arguments(),
            ACC=acc, num_warps=config.num_warps,
        )  # fmt: skip
        return c

    return run


def inputs(shape: tuple[int, int, int], dtype: str):
    """Random normal operands; fp8's second one column-major, as the hardware wants it."""
    import torch

    m, n, k = shape
    kind = getattr(torch, DTYPES[dtype])
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda").to(kind)
    if dtype in ("fp8", "tf32"):
        return a, torch.randn(n, k, device="cuda").to(kind).T
    return a, torch.randn(k, n, device="cuda").to(kind)


def child(contestant: str) -> None:
    """Answer requests, a JSON object a line: check a case, or time it."""
    run = product(contestant)
    import torch
    from triton.testing import do_bench

    for line in sys.stdin:
        request = json.loads(line)
        a, b = inputs(tuple(request["shape"]), request["dtype"])
        if request["do"] == "check":
            c = run(a, b)
            expected = a.double() @ b.double()
            error = ((c.double() - expected).norm() / expected.norm()).item()
            exact = bool((c == cublas(a, b)).all()) if contestant != "cublas" else True
            answer = {"rel_err": error, "equals_cublas": exact}
            del expected
        else:
            ms = do_bench(lambda a=a, b=b: run(a, b), warmup=100, rep=request["ms"],
                          return_mode="median")  # fmt: skip
            answer = {"ms": ms}
        print("@" + json.dumps(answer), flush=True)
        del a, b
        torch.cuda.empty_cache()


class Contestant:
    """A child process that measures."""

    def __init__(self, name: str) -> None:
        self.name = name
        environment = dict(os.environ)
        if name == "peer":
            spec = find_spec("utlx_plugin")
            library = Path(spec.origin).parent / "libutlx.so"
            environment["TRITON_PLUGIN_PATHS"] = str(library)
        environment["TRITON_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"remora-bench-{name}")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", name], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def ask(self, **request) -> dict:
        """Send a request and read its answer."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError(f"{self.name} ended with {self.process.wait()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child")
    parser.add_argument("--out", type=Path, default=Path("gemm"), help="where to write .json, .png")
    parser.add_argument("--shapes", nargs="*", default=["8192"], choices=SHAPES)
    parser.add_argument("--dtypes", nargs="*", default=["fp16"], choices=DTYPES)
    parser.add_argument("--contestants", nargs="*", default=None, choices=CONTESTANTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=int, default=500, help="of each measurement")
    parser.add_argument("--replot", action="store_true", help="only draw the .png from the .json")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    if arguments.replot:
        plot(
            json.loads(arguments.out.with_suffix(".json").read_text()),
            arguments.out.with_suffix(".png"),
        )
        return
    names = arguments.contestants or [
        n for n in CONTESTANTS if not n.startswith("peer") or tutorial_path()
    ]
    contestants = [Contestant(n) for n in names]
    rows = []
    for dtype in arguments.dtypes:
        for shape_name in arguments.shapes:
            shape = SHAPES[shape_name]
            rows += measure(contestants, dtype, shape, arguments)
    result = machine.record() | {"rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, arguments.out.with_suffix(".png"))


def measure(contestants: list[Contestant], dtype: str, shape, arguments) -> list[dict]:
    """One case, all contestants, in turn."""
    taking_part, checks = [], {}
    for c in contestants:
        if c.name.startswith("peer") and dtype != "fp16":
            continue  # the tutorial writes fp16
        checks[c.name] = c.ask(do="check", shape=shape, dtype=dtype)
        taking_part.append(c)
    times: dict[str, list[float]] = {c.name: [] for c in taking_part}
    for _ in range(arguments.rounds):
        for c in taking_part:
            times[c.name].append(c.ask(do="time", shape=shape, dtype=dtype, ms=arguments.ms)["ms"])
    m, n, k = shape
    base = statistics.median(times["cublas"]) if "cublas" in times else None
    rows = []
    print(f"{dtype} {m} x {n} x {k}")
    for name, samples in times.items():
        ms = statistics.median(samples)
        row = {
            "dtype": dtype, "shape": shape, "contestant": name,
            "ratio": base / ms if base else None, "tflops": 2e-9 * m * n * k / ms,
            "ms": ms, "samples_ms": samples, **checks[name],
        }  # fmt: skip
        rows.append(row)
        ratio = f"{row['ratio']:.3f}" if base else "-"
        print(
            f"  {name:13} {ratio} of cuBLAS  {row['tflops']:7.1f} TFLOP/s  {ms:.4f} ms  "
            f"(error {row['rel_err']:.1e}, equals cuBLAS: {row['equals_cublas']})",
            flush=True,
        )
    return rows


def plot(result: dict, path: Path) -> None:
    """Bars of the ratio to cuBLAS, a group for each case, labelled with TFLOP/s."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys((r["dtype"], tuple(r["shape"])) for r in result["rows"]))
    names = list(dict.fromkeys(r["contestant"] for r in result["rows"]))
    figure, axes = plt.subplots(figsize=(3 + 1.8 * len(cases), 4.5))
    for i, name in enumerate(names):
        rows = [r for r in result["rows"] if r["contestant"] == name]
        at = [cases.index((r["dtype"], tuple(r["shape"]))) + i / (len(names) + 1) for r in rows]
        bars = axes.bar(at, [r["ratio"] for r in rows], width=1 / (len(names) + 1), label=name)
        axes.bar_label(bars, [f"{r['tflops']:.0f}" for r in rows], fontsize=6)
    axes.set_xticks(
        [i + 0.4 for i in range(len(cases))],
        [f"{d}\n{' x '.join(map(str, s))}" for d, s in cases], fontsize=8,
    )  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_ylabel("speed, of cuBLAS (labels: TFLOP/s)")
    axes.set_title(
        f"{result['machine']['gpu'].split(',')[0]}, Triton {result['machine']['triton']}"
    )
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
