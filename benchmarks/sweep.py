"""Times configurations of ``matmul`` beside cuBLAS on this GPU, for Remora's table.

    python -m benchmarks.sweep --suites decode prefill --out benchmarks/results/NAME.json
    python -m benchmarks.sweep --table benchmarks/results/NAME.json     # without a GPU

Products are those of ``benchmarks.gemm``; configurations the model's likeliest, or those of a file
(--configs: for each product, by its name, a list). They are compiled and checked in processes
first, then timed in one, beside the library: in turn, there and back, launches back to back for
--ms; medians over the rounds, of which the first does not count. Products of less than 2e11
operations are timed by graphs of 20 launches; with few rows B changes from launch to launch, so
that it comes from memory. --table writes each product's fastest configuration into
src/remora/kernels/measured.json.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gemm
import machine
from energy import Meter
from gemm import SUITES, Case

from remora.kernels import cost, tuning
from remora.kernels.config import Config
from remora.kernels.cost import Problem

#: What results without a device are of.
H200 = {"name": "NVIDIA H200", "arch": "cuda:90", "units": 132}
TABLE = Path(tuning.__file__).with_name("measured.json")


def problem_of(case: Case) -> Problem:
    """As ``matmul`` sees it."""
    size = {"float32": 4, "float16": 2, "bfloat16": 2}.get(case.dtype, 1)
    out = {1: "float16", 2: case.dtype, 4: "float32"}[size]
    out = "int32" if case.dtype == "int8" else "bfloat16" if "scales" in case.fused else out
    by_row = [case.orders[0] == "row", case.orders[1] == "row"]
    contiguous = case.k if by_row[0] else case.m, case.n if by_row[1] else case.k
    described = all(n * size % 16 == 0 for n in contiguous)
    described &= size == 2 or by_row == [True, False]
    return Problem(
        case.m, case.n, case.k, case.dtype, out, case.orders, described, case.batch, case.fused
    )  # fmt: skip


def configurations(case: Case, most: int, given: dict[str, Any]) -> list[Config]:
    """What ``matmul`` chooses, and those of a file, or of the model in two orders of tiles."""
    problem = problem_of(case)
    found = [tuning.choose(problem, tuning.this_device())]
    if str(case) in given:
        found += map(tuning.config_of, given[str(case)])
    else:
        for config in cost.candidates(problem, most=most):
            other = 8 if config.group_m != 8 else 16
            found += [config, replace(config, group_m=other)][: 1 if most < 8 else 2]
    return list(dict.fromkeys(found))


def compile_share(found: list[tuple[Case, Config]], share: str, passed: Path) -> None:
    """Run a part of them on small matrices, so that they are in Triton's cache.

    Those that are right are written to a file; one that hangs ends the process.
    """
    import torch

    index, of = map(int, share.split("/"))
    mine = sorted(found[index::of], key=lambda pair: pair[1].cluster)
    with (passed / f"{index}.jsonl").open("w") as file:
        for case, config in mine:
            # As many tiles as leave some over, for what stream-K compiles.
            m, n, k = (
                extent if extent <= most else most + extent % 16
                for extent, most in ((case.m, 2560), (case.n, 2560), (case.k, 1024))
            )
            small = replace(case, m=m, n=n, k=k, batch=min(case.batch, 3))
            given = gemm.operands(small)
            try:
                result = gemm.remora(small, given, config)()
                wait(config)
            except Exception as error:
                print(f"{case}: {config}: {error}"[:400], flush=True)
                continue
            truth = gemm.expected(small, given, torch.arange(m, device="cuda"))
            error = ((result.double() - truth).norm() / truth.norm()).item()
            if error < 5e-3:
                file.write(json.dumps(asdict(config)) + "\n")
                file.flush()
            else:
                print(f"{case}: {config}: its error is {error}", flush=True)


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


def compilers(processes: int, passed: Path) -> list[subprocess.Popen[bytes]]:
    """Processes that compile a share each, by this command."""
    command = [sys.executable, "-m", "benchmarks.sweep", *sys.argv[1:], "--passed", str(passed)]
    return [subprocess.Popen([*command, "--share", f"{i}/{processes}"]) for i in range(processes)]


def distinct(pairs: list[tuple[Case, Config]]) -> list[tuple[Case, Config]]:
    """What has to be compiled: extents that 16 divides all compile alike."""
    found: dict[Any, tuple[Case, Config]] = {}
    for case, config in pairs:
        extents = tuple((n % 16 == 0, n == 1) for n in (case.m, case.n, case.k))
        extents = extents[config.schedule == "narrow" :]  # whose rows are not specialized
        kind = case.dtype, case.orders, case.fused, case.batch > 1, extents, config
        found.setdefault(kind, (case, config))
    return list(found.values())


def sweep(
    case: Case, configs: list[Config], rounds: int, ms: float, sustained: float, meter: Meter
) -> dict[str, Any]:
    """One product's rows, the fastest first; ``ratio``: of the library's speed.

    sustained: milliseconds for which the fastest are measured once more, with their energy.
    """
    import torch

    problem = problem_of(case)
    sets = [gemm.operands(case)]
    if case.m <= 64:
        size = case.n * case.k * sets[0]["b"].element_size()
        sets += [gemm.operands(case) for _ in range(min(int(2e8 / size), 19))]
    truth = gemm.expected(case, sets[0], rows := torch.randperm(case.m, device="cuda")[:256])
    runs: dict[Config | None, Callable[[], float]] = {}
    errors = {}
    for config in (None, *configs):
        try:
            calls = [
                gemm.remora(case, given, config) if config else gemm.cublas(case, given)
                for given in sets
            ]
            off = calls[0]()[..., rows, :].double() - truth
            errors[config] = (off.norm() / truth.norm()).item()
            runs[config] = timer(calls, ms, together=case.flops < 2e11)
        except Exception as error:
            print(f"{case}: {config}: {error}"[:400], flush=True)
    samples: dict[Config | None, list[float]] = {c: [] for c in runs}
    for i in range(rounds + 1):
        for config in list(runs)[:: 1 if i % 2 else -1]:
            samples[config].append(runs[config]())
    medians = {c: statistics.median(s[1:]) for c, s in samples.items()}
    found = [
        {"config": asdict(c), "seconds": medians[c], "ratio": medians.get(None, 0) / medians[c],
         "samples": s, "error": errors[c], "estimate": cost.estimate(problem, c)}
        for c, s in samples.items() if c
    ]  # fmt: skip
    found.sort(key=lambda row: row["seconds"])
    for row in found[:4] if sustained else ():
        call = gemm.remora(case, sets[0], tuning.config_of(row["config"]))
        row["sustained"] = meter.events(call, sustained)
    library = {"seconds": medians.get(None), "samples": samples.get(None)}
    return {
        "case": asdict(case), "problem": asdict(problem), "rows": found, "cublas": library,
        "chosen": asdict(configs[0]) if configs else None,
    }  # fmt: skip


def timer(calls: list[Callable[[], Any]], ms: float, *, together: bool) -> Callable[[], float]:
    """Says how many seconds a call takes, of calls in turn for some milliseconds."""
    number = 0

    def one() -> None:
        nonlocal number
        calls[number % len(calls)]()
        number += 1

    for _ in calls:
        one()
    several = 20 if together else 1
    run = gemm.graph(one, several) if together else one

    tuning.timed(run, 1)
    once = tuning.timed(run, 2)
    return lambda: tuning.timed(run, max(1, int(ms * 1e-3 / once))) / several


def summary(found: dict[str, Any]) -> str:
    """What is chosen and the fastest, of the library's speed, and the bytes that must move."""
    case = Case(**found["case"] | {"orders": tuple(found["case"]["orders"])})
    problem = Problem(**found["problem"])
    size = (case.m * case.k + case.k * case.n) * problem.size + case.m * case.n * problem.out_size
    lines = [f"{case}: cuBLAS {(found['cublas']['seconds'] or 0) * 1e6:.1f} us"]
    for row in found["rows"]:
        config = {k: v for k, v in row["config"].items() if v not in (0, False, "")}
        mark = "*" if row["config"] == found["chosen"] else " "
        low, high = min(row["samples"][1:]), max(row["samples"][1:])
        lines.append(
            f" {mark} {row['ratio']:.3f} {row['seconds'] * 1e6:.1f} us ({low * 1e6:.1f} to "
            f"{high * 1e6:.1f}) {problem.flops / row['seconds'] * 1e-12:.0f} TFLOP/s "
            f"{case.batch * size / row['seconds'] * 1e-12:.2f} TB/s, "
            f"model {row['estimate'] * 1e6:.1f} error {row['error']:.1e} "
            + " ".join(map(str, config.values()))
        )
    return "\n".join(lines)


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
        if found["problem"]["epilogue"]:
            continue  # the library's function is not the caller's
        best = min(found["rows"], key=lambda row: row["seconds"])
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
    parser.add_argument("--most", type=int, default=16, help="configurations of a product")
    parser.add_argument("--configs", type=Path, help="configurations of products, by their names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ms", type=float, default=60)
    parser.add_argument(
        "--sustained", type=float, default=0, help="ms of the fastest once more, with their energy"
    )
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, help="after so many no new product begins")
    parser.add_argument("--table", nargs="*", type=Path, help="only write the table, from these")
    parser.add_argument("--fit", nargs="*", type=Path, help="only fit the model's energies")
    parser.add_argument("--passed", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--share", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        write_table(arguments.table)
        return
    if arguments.fit:
        fit(arguments.fit)
        return
    started = time.perf_counter()
    given = json.loads(arguments.configs.read_text()) if arguments.configs else {}
    with tempfile.TemporaryDirectory() as folder:
        passed = arguments.passed or Path(folder)
        # They import while this process does.
        children = [] if arguments.share else compilers(arguments.processes, passed)
        wanted = {
            case: configurations(case, arguments.most, given)
            for suite in arguments.suites for case in SUITES[suite]
            if not given or str(case) in given
        }  # fmt: skip
        to_compile = distinct([(case, c) for case, configs in wanted.items() for c in configs])
        if arguments.share:
            compile_share(to_compile, arguments.share, arguments.passed)
            return
        for child in children:
            child.wait()
        print(f"compiled {len(to_compile)} in {time.perf_counter() - started:.1f} s", flush=True)
        lines = [line for file in passed.glob("*.jsonl") for line in file.read_text().splitlines()]
    usable = {tuning.config_of(json.loads(line)) for line in lines}
    meter = Meter()
    record = machine.record() | {"device": asdict(tuning.this_device())}
    products = []
    for case, configs in wanted.items():
        if arguments.seconds and time.perf_counter() - started > arguments.seconds:
            print(f"{case}: left out, {arguments.seconds:.0f} s are over", flush=True)
            continue
        configs = [c for c in configs if c in usable]
        products.append(
            sweep(case, configs, arguments.rounds, arguments.ms, arguments.sustained, meter)
        )
        print(summary(products[-1]), flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record | {"products": products}, indent=1) + "\n")


if __name__ == "__main__":
    main()
