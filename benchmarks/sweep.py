"""Times configurations of ``matmul`` on this GPU, for the table that comes with Remora.

    python -m benchmarks.sweep --out benchmarks/results/NAME.json
    python -m benchmarks.sweep --table benchmarks/results/NAME.json     # without a GPU

Configurations are compiled and checked in processes first, then timed in turn, round after
round: launches back to back, median over the rounds. The fastest of each product are measured
once more for longer, with the energy of a launch. --table writes each product's fastest
configuration into src/remora/kernels/measured.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import machine
from energy import Meter

from remora.kernels import cost, tuning
from remora.kernels.config import Config
from remora.kernels.cost import Problem

ANNOUNCED = [
    (128, 13312, 16384), (16384, 8192, 8192), (8192, 16384, 8192), (8192, 53248, 8192),
    (8192, 28672, 4096), (8192, 8192, 8192),
]  # fmt: skip
SQUARES = [(n, n, n) for n in (1024, 2048, 4096, 16384)]
#: Of models' layers, with few tokens and with many.
LAYERS = [
    (m, n, k)
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    for m in (16, 128, 1024, 4096)
]
SUITES = {"announced": ANNOUNCED, "squares": SQUARES, "layers": LAYERS}
#: What results without a device are of.
H200 = {"name": "NVIDIA H200", "arch": "cuda:90", "units": 132}
TABLE = Path(tuning.__file__).with_name("measured.json")


def problems(suites: list[str], dtypes: list[str]) -> list[Problem]:
    """The products of suites; of 8-bit and 32-bit operands B is stored by columns."""
    found = []
    for dtype in dtypes:
        out = {"int8": "int32", "float32": "float32"}.get(dtype, dtype)
        out = "float16" if "float8" in dtype else out
        order = "row" if dtype in ("float16", "bfloat16") else "column"
        found += [
            Problem(*shape, dtype, out, ("row", order)) for s in suites for shape in SUITES[s]
        ]
    return found


def configurations(problem: Problem, most: int) -> list[Config]:
    """More than ``matmul`` would try: the likeliest, each with two orders of tiles."""
    found = []
    for config in cost.candidates(problem, most=most):
        other = 8 if config.group_m != 8 else 16
        found += [config, replace(config, group_m=other)]
    return list(dict.fromkeys(found))


def operands(problem: Problem) -> tuple[Any, Any]:
    """Random normal matrices."""
    import torch

    kind = getattr(torch, problem.dtype)

    def matrix(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns, device="cuda")
        return (values * 30).to(kind) if problem.dtype == "int8" else values.to(kind)

    a = matrix(problem.m, problem.k)
    if problem.orders[1] == "column":
        return a, matrix(problem.n, problem.k).T
    return a, matrix(problem.k, problem.n)


def compile_share(found: list[tuple[Problem, Config]], share: str, passed: Path) -> None:
    """Run a part of them on small matrices, so that they are in Triton's cache.

    Those that are right are written to a file; one that hangs ends the process.
    """
    from remora.kernels import matmul

    index, of = map(int, share.split("/"))
    mine = sorted(found[index::of], key=lambda pair: pair[1].cluster)
    with (passed / f"{index}.jsonl").open("w") as file:
        for problem, config in mine:
            # As many tiles as leave some over, for what stream-K compiles.
            small = replace(problem, m=min(problem.m, 2560), n=2560, k=512)
            a, b = operands(small)
            try:
                result = matmul(a, b, config=config)
                wait(config)
            except Exception as error:
                print(f"{config}: {error}"[:300], flush=True)
                continue
            truth = a.double() @ b.double()
            error = ((result.double() - truth).norm() / truth.norm()).item()
            if error < 5e-3:
                file.write(json.dumps(asdict(config)) + "\n")
                file.flush()
            else:
                print(f"{config}: its error is {error}", flush=True)


def wait(config: Config) -> None:
    """For the GPU, but not for ever."""
    import torch

    event = torch.cuda.Event()
    event.record()
    deadline = time.perf_counter() + 5
    while not event.query():
        if time.perf_counter() > deadline:
            print(f"{config}: it hangs", flush=True)
            os._exit(1)


def compile_all(found: list[tuple[Problem, Config]], processes: int, passed: Path) -> None:
    """The same by this command in several processes."""
    started = time.perf_counter()
    passed.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.sweep", *sys.argv[1:], "--passed", str(passed)]
    children = [
        subprocess.Popen([*command, "--share", f"{i}/{processes}"]) for i in range(processes)
    ]
    for child in children:
        child.wait()
    print(f"compiled {len(found)} in {time.perf_counter() - started:.1f} s", flush=True)


def distinct(all_problems: list[Problem], most: int) -> list[tuple[Problem, Config]]:
    """What has to be compiled: extents that 16 divides all compile alike."""
    found: dict[Any, tuple[Problem, Config]] = {}
    for problem in all_problems:
        for config in configurations(problem, most):
            found.setdefault((problem.dtype, problem.orders, config), (problem, config))
    return list(found.values())


def sweep(
    problem: Problem, configs: list[Config], rounds: int, seconds: float, meter: Meter
) -> dict[str, Any]:
    """One product's rows, the fastest first."""
    import torch

    from remora.kernels import matmul

    a, b = operands(problem)
    usable = []
    for config in configs:
        try:
            matmul(a, b, config=config)
            torch.cuda.synchronize()
            usable.append(config)
        except Exception as error:
            print(f"{config}: {error}"[:300], flush=True)
    timers = {c: tuning.gpu_timer(partial(matmul, a, b, config=c)) for c in usable}
    samples: dict[Config, list[float]] = {c: [] for c in usable}
    for _ in range(rounds):
        for config, timer in timers.items():
            samples[config].append(timer())
    rows = [
        {"config": asdict(c), "seconds": statistics.median(s), "samples": s,
         "estimate": cost.estimate(problem, c)}
        for c, s in samples.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: row["seconds"])
    for row in rows[:4] if seconds else ():
        config = tuning.config_of(row["config"])
        row["sustained"] = meter.events(partial(matmul, a, b, config=config), seconds * 1e3)
    library = {}
    if problem.dtype in ("float16", "bfloat16"):
        library = {"seconds": tuning.gpu_timer(partial(torch.matmul, a, b))()}
        if seconds:
            library["sustained"] = meter.events(partial(torch.matmul, a, b), seconds * 1e3)
    return {"problem": asdict(problem), "rows": rows, "cublas": library}


def summary(found: dict[str, Any]) -> str:
    """The fastest, and what the count says of it."""
    problem = Problem(**found["problem"])
    best = min(found["rows"], key=chosen_by)
    ratio = found["cublas"].get("seconds", float("nan")) / best["seconds"]
    estimates = sorted(row["estimate"] for row in found["rows"])
    config = {k: v for k, v in best["config"].items() if v not in (0, False)}
    return (
        f"{problem.dtype} {problem.m} x {problem.n} x {problem.k}: {ratio:.3f} of cuBLAS, "
        f"{problem.flops / best['seconds'] * 1e-12:.1f} TFLOP/s "
        f"(estimate {problem.flops / best['estimate'] * 1e-12:.0f}, its place "
        f"{estimates.index(best['estimate']) + 1} of {len(estimates)}) {list(config.values())} "
        f"{best.get('sustained', {})}"
    )


def chosen_by(row: dict[str, Any]) -> float:
    """What the table goes by: the longer measurement, where there is one."""
    return row.get("sustained", {}).get("ms", 1e9), row["seconds"]


def write_table(files: list[Path]) -> None:
    """The table, from the results of sweeps; later ones replace earlier ones."""
    table: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for file in files:
        result = json.loads(file.read_text())
        found = list(fastest(result))
        device = result.get("device", H200)
        if table.setdefault("device", device) != device:
            sys.exit(f"{file} is of {device}, the others are of {table['device']}")
        table.setdefault("measured", []).append(
            {"file": f"benchmarks/results/{file.name}", "machine": result["machine"]}
        )
        rows |= {json.dumps(row["problem"]): row for row in found}
    TABLE.write_text(json.dumps(table | {"rows": list(rows.values())}, indent=1) + "\n")


def fastest(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The table's rows, from what ``sweep`` wrote, or from rows of named configurations."""
    for found in result.get("products", ()):
        best = min(found["rows"], key=chosen_by)
        yield {
            "problem": found["problem"], "config": best["config"], "seconds": best["seconds"]
        }  # fmt: skip
    named: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for row in result.get("rows", ()):
        if row["config"] is not None:
            named.setdefault(tuple(row["shape"]), []).append(row)
    for shape, several in named.items():
        best = min(several, key=lambda row: statistics.median(row["ms"]))
        yield {
            "problem": asdict(Problem(*shape, "float16", "float16")), "config": best["config"],
            "seconds": statistics.median(best["ms"]) * 1e-3,
        }  # fmt: skip


def fit(files: list[Path]) -> None:
    """Print the energies of ``cost.Gpu`` that fit sweeps best, none of them negative.

    A launch's joules are the idle chip's watts times its time, and so much for each operation
    and byte. Also how well the model ranks: the place of the fastest in its order.
    """
    from itertools import combinations

    import numpy as np

    table, joules, places = [], [], []
    for file in files:
        for found in json.loads(file.read_text())["products"]:
            values = found["problem"] | {"orders": tuple(found["problem"]["orders"])}
            problem = Problem(**values)
            configs = [tuning.config_of(row["config"]) for row in found["rows"]]
            estimates = [cost.estimate(problem, c) for c in configs]
            best = min(range(len(configs)), key=lambda i: found["rows"][i]["seconds"])
            places.append(sorted(estimates).index(estimates[best]) + 1)
            for config, row in zip(configs, found["rows"], strict=True):
                if "joules" in row.get("sustained", {}):
                    c = cost.count(problem, config)
                    seconds = row["sustained"]["ms"] * 1e-3
                    table.append([seconds, c.flops, c.shared, c.l2, c.memory])
                    joules.append(row["sustained"]["joules"])
    names = ("idle watts", "per_flop", "per_shared_byte", "per_l2_byte", "per_memory_byte")
    values, wanted = np.array(table), np.array(joules)
    # Each product's error counts alike, whatever its size.
    scaled = values / wanted[:, None]
    best_fit: tuple[float, dict[str, float]] = (np.inf, {})
    for count in range(1, len(names) + 1):
        for used in combinations(range(len(names)), count):
            solution, *_ = np.linalg.lstsq(scaled[:, used], np.ones(len(wanted)), rcond=None)
            error = float(np.sqrt(np.mean((scaled[:, used] @ solution - 1) ** 2)))
            if (solution >= 0).all() and error < best_fit[0]:
                best_fit = error, {names[i]: float(s) for i, s in zip(used, solution, strict=True)}
    print(f"{len(wanted)} launches, relative error {best_fit[0]:.3f}: {best_fit[1]}")
    print(f"the fastest of each product is at these places of the model: {places}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("sweep.json"))
    parser.add_argument("--suites", nargs="*", default=["announced"], choices=SUITES)
    parser.add_argument("--dtypes", nargs="*", default=["float16"])
    parser.add_argument("--most", type=int, default=16, help="configurations of a product")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="with the energy; 0: without")
    parser.add_argument("--processes", type=int, default=16, help="0: compile later")
    parser.add_argument("--table", nargs="*", type=Path, help="only write the table, from these")
    parser.add_argument("--fit", nargs="*", type=Path, help="only fit the model's energies")
    parser.add_argument("--passed", type=Path, help="a folder: what ran in the processes")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        write_table(arguments.table)
        return
    if arguments.fit:
        fit(arguments.fit)
        return
    wanted = problems(arguments.suites, arguments.dtypes)
    to_compile = distinct(wanted, arguments.most)
    if arguments.share:
        compile_share(to_compile, arguments.share, arguments.passed)
        return
    with tempfile.TemporaryDirectory() as folder:
        passed = arguments.passed or Path(folder)
        if arguments.processes:
            compile_all(to_compile, arguments.processes, passed)
        lines = [line for file in passed.glob("*.jsonl") for line in file.read_text().splitlines()]
    usable = {tuning.config_of(json.loads(line)) for line in lines}
    meter, products = Meter(), []
    for problem in wanted:
        configs = [c for c in configurations(problem, arguments.most) if c in usable]
        products.append(sweep(problem, configs, arguments.rounds, arguments.seconds, meter))
        print(summary(products[-1]), flush=True)
        result = machine.record() | {
            "device": asdict(tuning.this_device()), "products": products,
        }  # fmt: skip
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
