"""Matrix products side by side: Remora's, cuBLAS's, and the C++ plugin's.

    python -m benchmarks.gemm --out benchmarks/results/NAME --peer-python .venv-peer/bin/python
    python -m benchmarks.gemm --suites dtypes epilogue --rounds 3 --ms 200
    python -m benchmarks.gemm --replot --out benchmarks/results/NAME

Every contestant is a process of its own (the C++ plugin needs its own release of Triton), and
they are measured in turn, round after round, so that a drift of the clocks meets all alike.
A measurement is launches back to back, an event between each two; the first quarter, in which
the clock settles, is left out: median, and the fifth on either side. Products of less than
2e11 operations are timed by graphs of 20 launches, so that the GPU is what is timed. Random
normal operands, the result's memory poisoned before it is checked. Ratios are speeds, of the
medians over the rounds. A contestant that fails, ends or hangs has a row that says so, and begins
anew with the next product.

Contestants:
  cublas    torch.matmul, torch.bmm, torch._scaled_mm, torch._int_mm, torch._addmm_activation
  compiled  torch.compile, where something is fused
  remora    remora.kernels.matmul as it is called, from its table and model
  tuned     the same with config="auto", which measures its candidates first
  stock     the product in plain Triton, with pointers
  peer      triton-utlx's persistent warp-specialised tutorial through its C++ plugin, tuned by
            its own autotuner; with --peer-python. Its wrapper fills the result with zeros, which
            the kernel overwrites: that is left out
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import machine
from energy import Meter

TUTORIAL, ENTRY = "hopper-persistent-gemm-ws-cooperative", "matmul_tlx_ws_persistent"
CONTESTANTS = ("cublas", "compiled", "remora", "tuned", "stock", "peer")


@dataclass(frozen=True)
class Case:
    """A product. orders: how A and B are stored. fused: what follows it.

    goal: the speed, of cuBLAS, that it is to have; 0 where none is set.
    """

    m: int
    n: int
    k: int
    dtype: str = "float16"
    batch: int = 1
    orders: tuple[str, str] = ("row", "row")
    fused: str = ""
    goal: float = 0.0

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch > 1 else ""
        orders = "" if self.orders == ("row", "row") else f" {'-'.join(self.orders)}"
        fused = f" + {self.fused}" if self.fused else ""
        return f"{batch}{self.m} x {self.n} x {self.k} {self.dtype}{orders}{fused}"

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


BY_COLUMN = ("row", "column")
CUBE = (8192, 8192, 8192)
SUITES = {
    "announced": [
        Case(128, 13312, 16384, goal=1.08),
        Case(16384, 8192, 8192, goal=1.04),
        Case(8192, 16384, 8192, goal=1.03),
        Case(8192, 53248, 8192, goal=1.02),
        Case(8192, 28672, 4096, goal=1.02),
        Case(*CUBE, goal=1.02),
    ],
    "dtypes": [
        Case(*CUBE, "bfloat16"),
        Case(*CUBE, "float8_e4m3fn", orders=BY_COLUMN),
        Case(*CUBE, "float8_e4m3fn", orders=BY_COLUMN, fused="row scales"),
        Case(*CUBE, "float32", orders=BY_COLUMN),
        Case(*CUBE, "int8", orders=BY_COLUMN),
    ],
    "orders": [
        Case(*CUBE, orders=(a, b))
        for a, b in (("row", "column"), ("column", "row"), ("column", "column"))
    ]
    + [Case(*CUBE, "float32"), Case(*CUBE, "float32", orders=("column", "row"))],
    "batched": [Case(1024, 1024, 1024, batch=64), Case(2048, 128, 2048, batch=64)],
    "epilogue": [
        Case(*CUBE, fused="bias, gelu"),
        Case(8192, 28672, 4096, "bfloat16", fused="bias, gelu"),
    ],
    "small": [Case(n, n, n) for n in (512, 1024, 2048, 4096)],
    "uneven": [Case(4096, 4096, 512), Case(65536, 256, 1024), Case(4095, 4095, 4095)],
    # Of models' layers: weights are stored by output. Rows: tokens.
    "decode": [
        Case(m, n, k, orders=BY_COLUMN)
        for n, k in ((4096, 4096), (8192, 8192), (16384, 16384), (28672, 4096), (4096, 14336))
        for m in (1, 8, 16, 32, 64)
    ]
    + [Case(16, 8192, 8192), Case(16, 8192, 8192, "float8_e4m3fn", orders=BY_COLUMN)],
    "prefill": [
        Case(m, n, k, orders=BY_COLUMN)
        for n, k in ((6144, 4096), (28672, 4096), (4096, 14336))
        for m in (128, 512, 2048)
    ],
}


# --- one contestant, in its own process -----------------------------------------------------------


def operands(case: Case) -> dict[str, Any]:
    """Random normal, and what is fused, with one seed for all contestants."""
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, case.dtype)

    def matrix(rows: int, columns: int, order: str) -> Any:
        shape = (rows, columns) if order == "row" else (columns, rows)
        batch = (case.batch,) if case.batch > 1 else ()
        values = torch.randn(*batch, *shape, device="cuda")
        values = (values * 30).to(kind) if kind == torch.int8 else values.to(kind)
        return values if order == "row" else values.mT

    given = {
        "a": matrix(case.m, case.k, case.orders[0]), "b": matrix(case.k, case.n, case.orders[1])
    }  # fmt: skip
    if "bias" in case.fused:
        given["bias"] = torch.randn(case.n, device="cuda").to(kind)
    if "scales" in case.fused:
        given["scale_a"] = torch.rand(case.m, 1, device="cuda") + 0.5
        given["scale_b"] = torch.rand(1, case.n, device="cuda") + 0.5
    return given


def expected(case: Case, given: dict[str, Any], rows: Any) -> Any:
    """Some rows of the result, in float64."""
    import torch

    result = given["a"][..., rows, :].double() @ given["b"].double()
    if "scales" in case.fused:
        result = result * given["scale_a"][rows].double() * given["scale_b"].double()
    if "bias" in case.fused:
        result = result + given["bias"].double()
    if "gelu" in case.fused:
        result = torch.nn.functional.gelu(result, approximate="tanh")
    return result


def cublas(case: Case, given: dict[str, Any]) -> Callable[[], Any]:
    """PyTorch's own way."""
    import torch

    a, b = given["a"], given["b"]
    if "float8" in case.dtype:
        one = torch.ones((), device="cuda")
        scales = given.get("scale_a", one), given.get("scale_b", one)
        # torch has row scales with results in bf16 only. Fast: sums in the matrix unit's own
        # precision, as Remora's kernels have them.
        out = torch.bfloat16 if "scales" in case.fused else torch.float16
        return lambda: torch._scaled_mm(a, b, *scales, out_dtype=out, use_fast_accum=True)
    if case.dtype == "int8":
        return lambda: torch._int_mm(a, b)
    if case.fused:
        return lambda: torch._addmm_activation(given["bias"], a, b, use_gelu=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    return lambda: torch.matmul(a, b)


def compiled(case: Case, given: dict[str, Any]) -> Callable[[], Any] | None:
    """By torch.compile."""
    import torch

    if "gelu" not in case.fused:
        return None

    def fused(a: Any, b: Any, bias: Any) -> Any:
        return torch.nn.functional.gelu(torch.addmm(bias, a, b), approximate="tanh")

    run = torch.compile(fused)
    return lambda: run(given["a"], given["b"], given["bias"])


def remora(case: Case, given: dict[str, Any], config: Any = None) -> Callable[[], Any]:
    """As it is called, with an epilogue of the caller's where something is fused."""
    from remora.kernels import matmul

    more: dict[str, Any] = {k: v for k, v in given.items() if k.startswith("scale")}
    if "gelu" in case.fused:
        from epilogues import bias_gelu

        more |= {"epilogue": bias_gelu, "epilogue_args": (given["bias"],)}
    if "scales" in case.fused:
        import torch

        more["out_dtype"] = torch.bfloat16  # as torch has it
    return partial(matmul, given["a"], given["b"], config=config, **more)


def tuned(case: Case, given: dict[str, Any]) -> Callable[[], Any]:
    return remora(case, given, "auto")


def stock(case: Case, given: dict[str, Any]) -> Callable[[], Any] | None:
    from remora.kernels.gemm_stock import gemm_stock
    from remora.kernels.launches import Extra, pipelined
    from remora.kernels.matmul import hopper_config
    from remora.kernels.operands import product_of

    if case.fused or case.batch > 1:
        return None
    a, b = given["a"], given["b"]
    config = hopper_config(case.m, case.n, case.k, a.element_size())
    launch = pipelined(gemm_stock, product_of(a, b, False, None), config, Extra())

    def run() -> Any:
        c = product_of(a, b, False, None).c
        launch(a, b, c, Extra())
        return c

    return run


def peer(case: Case, given: dict[str, Any]) -> Callable[[], Any] | None:
    if case.dtype != "float16" or case.fused or case.batch > 1 or case.orders != ("row", "row"):
        return None  # what the tutorial takes
    import tutorials

    tutorials.import_tlx("peer")
    spec = find_spec("utlx_plugin")
    assert spec is not None
    folder = Path(str(spec.origin)).parent.parent / "tlx" / "tutorials"
    name = TUTORIAL.replace("-", "_")
    module = sys.modules.get(name) or tutorials.load(folder, TUTORIAL)
    module.torch = Unfilled()
    return lambda: getattr(module, ENTRY)(given["a"], given["b"])


class Unfilled:
    """PyTorch, whose ``zeros`` are not filled."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, "empty" if name == "zeros" else name)


def chosen(name: str, case: Case, given: dict[str, Any], result: Any) -> Any:
    """The configuration that a contestant runs with, where it says."""
    if name == "peer":
        module = sys.modules[TUTORIAL.replace("-", "_")]
        return str(module.matmul_kernel_tlx_ws_persistent.best_config)
    if name in ("remora", "tuned"):
        from remora.kernels import tuning

        return asdict(list(tuning.chosen.values())[-1])
    return None


def check(name: str, case: Case) -> dict[str, Any]:
    """How far the result is from float64, by 256 of its rows; that all of it was written."""
    import torch

    given = operands(case)
    run = globals()[name](case, given)
    if run is None:
        return {"takes_part": False}
    result = run()
    poison = torch.full_like(result, -77 if result.dtype == torch.int32 else float("nan"))
    del result, poison  # the next result gets that memory
    result = run()
    rows = torch.randperm(case.m, device="cuda")[:256]
    truth = expected(case, given, rows)
    error = ((result[..., rows, :].double() - truth).norm() / truth.norm()).item()
    written = bool(torch.isfinite(result.float().sum(-1)).all())
    answer = {"takes_part": True, "rel_err": error, "all_written": written}
    answer["config"] = chosen(name, case, given, result)
    if name != "cublas":
        same = cublas(case, given)()
        answer["equals_cublas"] = same.dtype == result.dtype and bool((same == result).all())
    return answer


def measure(case: Case, run: Callable[[], Any], ms: float, meter: Meter) -> dict[str, Any]:
    """Milliseconds of launches back to back, and what the driver counts meanwhile."""
    if case.flops > 2e11:
        return meter.events(run, ms)
    together = 20
    found = meter.events(graph(run, together), ms)
    return {k: v / together if k.endswith("ms") or k == "joules" else v for k, v in found.items()}


def graph(run: Callable[[], Any], times: int) -> Callable[[], None]:
    """So many launches in a graph; what it returns replays it."""
    import torch

    run()
    torch.cuda.synchronize()
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        for _ in range(times):
            run()
    return made.replay


def child(name: str) -> None:
    """Answer requests, a JSON object a line."""
    import torch

    meter = Meter()
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if request["do"] == "versions":
                answer = versions()
            else:
                values = request["case"] | {"orders": tuple(request["case"]["orders"])}
                case = Case(**values)
                if request["do"] == "check":
                    answer = check(name, case)
                else:
                    run = globals()[name](case, operands(case))
                    answer = measure(case, run, request["ms"], meter)
                    del run
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print("@" + json.dumps(answer), flush=True)
        if _ends(answer):
            return
        gc.collect()
        torch.cuda.empty_cache()


def _ends(answer: dict[str, Any]) -> bool:
    """Whether a process ends with an answer: after an error of CUDA's all that follows fails."""
    return "CUDA" in answer.get("error", "")


def versions() -> dict[str, Any]:
    """Of the process's packages."""
    found = {}
    for package in ("triton", "torch", "triton-utlx"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    import triton

    return found | {"triton": triton.__version__}


# --- all of them ----------------------------------------------------------------------------------


#: Seconds after which a process that does not answer is ended.
PATIENCE = 120.0


class Contestant:
    """A child process that measures; a new one where the last one has ended."""

    def __init__(self, name: str, python: str, cache: str, kept: str) -> None:
        """cache: of compiled kernels; kept: of measurements."""
        self.name = name
        self.environment = {
            **os.environ, "TRITON_CACHE_DIR": f"{cache}/{name}", "XDG_CACHE_HOME": kept
        }  # fmt: skip
        if name == "peer":
            self.environment.pop("PYTHONPATH", None)
        self.command = [python, "-W", "ignore", __file__, "--child", name]
        self.begin()

    def begin(self) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment,
            bufsize=0,
        )  # fmt: skip
        self.read = b""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and read its answer; an error where the process ended or hangs."""
        if self.process.poll() is not None:
            self.begin()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            while not (line := self._line()).startswith(b"@"):
                if not line:
                    return {"error": f"the process ended with {self.process.wait()}"}
        except BrokenPipeError:
            return {"error": f"the process ended with {self.process.wait()}"}
        except TimeoutError:
            self.process.kill()
            self.process.wait()
            return {"error": f"no answer in {PATIENCE:.0f} s"}
        answer: dict[str, Any] = json.loads(line[1:])
        if _ends(answer):
            self.process.wait()
        return answer

    def _line(self) -> bytes:
        """What the process writes next, up to a line's end; nothing where it has ended.

        Raises:
            TimeoutError: it writes nothing.
        """
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.read:
                if not selector.select(PATIENCE):
                    raise TimeoutError
                if not (more := self.process.stdout.read(1 << 16)):
                    return b""
                self.read += more
        line, _, self.read = self.read.partition(b"\n")
        return line + b"\n"

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compile_all(pythons: dict[str, str], cases: list[Case], cache: str, processes: int) -> None:
    """Run everything once, side by side, so that it is compiled; what is measured is dropped."""

    def run(pair: tuple[str, Case]) -> None:
        name, case = pair
        with tempfile.TemporaryDirectory() as kept:
            contestant = Contestant(name, pythons[name], cache, kept)
            contestant.ask(do="check", case=asdict(case))
            contestant.end()

    started = time.perf_counter()
    pairs = [(name, case) for case in cases for name in pythons if name != "cublas"]
    # What takes longest first.
    pairs.sort(key=lambda pair: ("tuned", "peer", "compiled", "remora", "stock").index(pair[0]))
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run, pairs))
    print(f"compiled in {time.perf_counter() - started:.0f} s", flush=True)


def compare(suite: str, case: Case, contestants: list[Contestant], rounds: int, ms: float) -> Any:
    """One case, all contestants, in turn: a row for each that takes part."""
    rows = {}
    for c in contestants:
        answer = c.ask(do="check", case=asdict(case))
        if answer.pop("takes_part", True):
            rows[c.name] = {
                "suite": suite, "case": asdict(case), "contestant": c.name, **answer, "samples": [],
            }  # fmt: skip
    # The GPU idles while results are checked, and is faster until it is warm again: round 0, of
    # one contestant, counts for nothing. Every other round goes backwards, so that nobody
    # always comes after the same one, who may leave it a cooler GPU.
    for i in range(rounds + 1):
        able = [c for c in contestants if c.name in rows and "error" not in rows[c.name]]
        for c in able[:: 1 if i % 2 else -1] if i else able[:1]:
            sample = c.ask(do="measure", case=asdict(case), ms=ms if i else 2 * ms)
            if "error" in sample:
                rows[c.name]["error"] = sample["error"]
            if i:
                rows[c.name]["samples"].append(sample)
    for row in rows.values():
        if "error" not in row:
            summarize(case, row)
    for row in rows.values():
        for other in ("cublas", "peer"):
            if "ms" in row and "ms" in rows.get(other, {}):
                row["ratio" if other == "cublas" else "ratio_to_peer"] = (
                    rows[other]["ms"] / row["ms"]
                )
    return list(rows.values())


def summarize(case: Case, row: dict[str, Any]) -> None:
    """Medians over the rounds, and the spread: fastest and slowest round."""
    samples = row["samples"]
    row["ms"] = statistics.median(s["ms"] for s in samples)
    row["spread_ms"] = [min(s["ms"] for s in samples), max(s["ms"] for s in samples)]
    row["tflops"] = case.flops / row["ms"] * 1e-9
    for name in ("joules", "watts", "clock_mhz", "celsius"):
        if all(name in s for s in samples):
            row[name] = statistics.mean(s[name] for s in samples)


def line(row: dict[str, Any]) -> str:
    """A row, ratios first."""
    if "error" in row:
        return f"  {row['contestant']:9} ERROR {row['error']}"
    words = [f"  {row['contestant']:9}"]
    words.append(f"{row['ratio']:.3f} of cuBLAS" if "ratio" in row else "")
    words.append(f"{row['ratio_to_peer']:.3f} of the peer" if "ratio_to_peer" in row else "")
    low, high = row["spread_ms"]
    words.append(f"{row['tflops']:6.1f} TFLOP/s {row['ms']:.4f} ms ({low:.4f} to {high:.4f})")
    if "joules" in row:
        words.append(f"{row['joules']:.3f} J {row['watts']:.0f} W {row['clock_mhz']:.0f} MHz")
    words.append(f"error {row['rel_err']:.1e}")
    return "  ".join(filter(None, words))


def goals(rows: list[dict[str, Any]]) -> list[str]:
    """For each case with a goal whether the best of Remora's is there."""
    found = []
    for values in {json.dumps(r["case"]): r["case"] for r in rows if r["case"]["goal"]}.values():
        ours = [
            r["ratio"] for r in rows
            if r["case"] == values and r["contestant"] in ("remora", "tuned") and "ratio" in r
        ]  # fmt: skip
        case = Case(**values | {"orders": tuple(values["orders"])})
        best = max(ours, default=0.0)
        verdict = "reached" if best >= case.goal else "short of"
        peers = [
            r["ratio_to_peer"] for r in rows
            if r["case"] == values and r["contestant"] in ("remora", "tuned")
            and "ratio_to_peer" in r
        ]  # fmt: skip
        beside = f", {max(peers):.3f} of the peer" if peers else ""
        found.append(f"{case}: {best:.3f} of cuBLAS, {verdict} {case.goal}{beside}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gemm"), help="of .json, .png and .svg")
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=SUITES)
    parser.add_argument("--contestants", nargs="*", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--peer-python", help="the Python of an environment with triton-utlx")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=float, default=500, help="of each measurement")
    parser.add_argument(
        "--processes", type=int, default=0, help="compile everything first, in so many"
    )
    parser.add_argument("--seconds", type=float, help="after so many no new product begins")
    parser.add_argument("--cache", help="a folder for compiled kernels, kept between runs")
    parser.add_argument("--replot", action="store_true", help="only draw, from the .json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    out = arguments.out
    if arguments.replot:
        plot(json.loads(out.with_suffix(".json").read_text()), out)
        return
    started = time.perf_counter()
    cases = [(suite, case) for suite in arguments.suites for case in SUITES[suite]]
    with tempfile.TemporaryDirectory() as folder:
        pythons = {n: sys.executable for n in arguments.contestants if n != "peer"}
        if "peer" in arguments.contestants and arguments.peer_python:
            pythons["peer"] = arguments.peer_python
        cache = arguments.cache or folder
        # They import while others compile.
        contestants = [
            Contestant(name, python, cache, f"{folder}/kept") for name, python in pythons.items()
        ]
        if arguments.processes:
            compile_all(pythons, [case for _, case in cases], cache, arguments.processes)
        result = machine.record() | {
            "versions": {c.name: c.ask(do="versions") for c in contestants}, "rows": [],
        }  # fmt: skip
        for suite, case in cases:
            if arguments.seconds and time.perf_counter() - started > arguments.seconds:
                print(f"{case}: left out, {arguments.seconds:.0f} s are over", flush=True)
                continue
            rows = compare(suite, case, contestants, arguments.rounds, arguments.ms)
            print(case, *map(line, rows), sep="\n", flush=True)
            result["rows"] += rows
            out.parent.mkdir(parents=True, exist_ok=True)
            # After each case, so that a time limit loses no more than one.
            out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
        for contestant in contestants:
            contestant.end()
    print(*goals(result["rows"]), sep="\n")
    plot(result, out)


def plot(result: dict[str, Any], path: Path) -> None:
    """Bars of the speed relative to cuBLAS, labelled with TFLOP/s, and the goals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in result["rows"] if "ratio" in r]
    if not rows:
        return
    cases = list({json.dumps(r["case"]): r["case"] for r in rows}.values())
    names = [n for n in CONTESTANTS if any(r["contestant"] == n for r in rows)]
    figure, axes = plt.subplots(figsize=(3 + 1.5 * len(cases), 4.8))
    width = 0.85 / len(names)
    for i, name in enumerate(names):
        mine = [r for r in rows if r["contestant"] == name]
        at = [cases.index(r["case"]) + i * width for r in mine]
        spread = [
            [r["ratio"] * (1 - r["ms"] / r["spread_ms"][1]) for r in mine],
            [r["ratio"] * (r["ms"] / r["spread_ms"][0] - 1) for r in mine],
        ]
        bars = axes.bar(
            at, [r["ratio"] for r in mine], width, label=name, yerr=spread,
            error_kw={"linewidth": 0.6},
        )  # fmt: skip
        axes.bar_label(bars, [f"{r['tflops']:.0f}" for r in mine], fontsize=6, padding=2)
    for i, case in enumerate(cases):
        if case["goal"]:
            ends = i - width / 2, i + (len(names) - 0.5) * width
            axes.plot(ends, [case["goal"]] * 2, color="black", linestyle=":", linewidth=1)
    labels = [str(Case(**c | {"orders": tuple(c["orders"])})) for c in cases]
    axes.set_xticks(
        [i + (len(names) - 1) * width / 2 for i in range(len(cases))],
        [label.replace(" ", "\n", 5).replace("\nx\n", " x ") for label in labels], fontsize=7,
    )  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_ylim(bottom=0.6 * min(r["ratio"] for r in rows))
    axes.set_ylabel("speed, of cuBLAS (labels: TFLOP/s; dots: goals)")
    found = result["machine"]
    axes.set_title(f"{found.get('gpu', '').split(',')[0]}, Triton {found['triton']}", fontsize=9)
    axes.legend(fontsize=7, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, -0.22))
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)


if __name__ == "__main__":
    main()
