"""Time of reading and writing modules through xDSL, and of a whole pass, by their size.

Real kernels of ``tests/corpus`` (matmul, attention) after each stage, then a
function with the matmul's body repeated until it has about 20,000 operations.
"cold": no attribute was seen before; "warm": the module was read once. "pass": one
that changes nothing, as a pipeline runs it; "anew": the same where the module is
parsed, verified and its uses sorted, as after a pass that changes something.
CPU time of the process, medians.

    PYTHONPATH=src:tests python benchmarks/ir_roundtrip.py [--out NAME] [--replot]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine

_ROUNDS = 5
_GOALS = (1000, 2000, 5000, 10_000, 20_000)


def modules() -> Iterator[tuple[str, str]]:
    """Name and text of each module."""
    from corpus.kernels import CORPUS
    from triton._C.libtriton import ir as triton_ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    from remora import host

    wanted = {e.name: e for e in CORPUS if e.name in ("matmul", "attention")}
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)):
        for name, entry in wanted.items():
            backend = make_backend(target)
            options = backend.parse_options(entry.options)
            context = triton_ir.context()
            triton_ir.load_dialects(context)
            backend.load_dialects(context)
            source = entry.source()
            module = source.make_ir(
                target,
                options,
                backend.get_codegen_implementation(options),
                backend.get_module_map(),
                context,
            )
            stages: dict[str, Any] = {}
            backend.add_stages(stages, options, source.language)
            yield f"{name} {target.backend} source", host.generic_text(module)
            metadata: dict[str, Any] = {"hash": "", "target": target, **options.__dict__}
            for stage in ("ttir", "ttgir"):
                module = stages[stage](module, metadata)
                yield f"{name} {target.backend} {stage}", host.generic_text(module)


def repeated(text: str, times: int) -> str:
    """A module with the operations of its function's body so many times, each at lines of its own.

    The copies use the same arguments; their results are not used.
    """
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  ^bb0")) + 1
    end = next(i for i, line in enumerate(lines) if line.lstrip().startswith('"tt.return"'))
    shared = set(re.findall(r"%arg\d+", lines[start - 1]))
    body = "\n".join(lines[start:end])

    def copy(number: int) -> str:
        def name(match: re.Match[str]) -> str:
            return match[0] if match[0] in shared else f"%copy{number}_{match[0][1:]}"

        def line(match: re.Match[str]) -> str:
            return f"{match[1]}{int(match[2]) + 1000 * number}:"

        return re.sub(r'(\.py":)(\d+):', line, re.sub(r"%\w+", name, body))

    return "\n".join([*lines[:start], *map(copy, range(times)), *lines[end:]])


def milliseconds(function: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """The median over some runs."""
    times = []
    for _ in range(_ROUNDS):
        if before is not None:
            before()
        gc.collect()
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def measure(name: str, text: str) -> dict[str, Any]:
    """Operations, and milliseconds to read (cold, warm) and to write."""
    from compiling import round_trips

    import remora
    from remora import host, ir
    from remora.host.targets import context_of, gpu_target
    from remora.pipeline import run_pass

    class Identity(remora.ModulePass):
        name = "identity"

        def apply(self, ctx: Any, module: Any) -> None:
            """Leave the module as it is."""

    module = ir.read(text)
    target = "hip:gfx950" if " hip " in name else "cuda:90"
    native = host.parse_text(text, context_of(gpu_target(target)))
    row = {
        "name": name,
        "operations": sum(1 for _ in module.walk()),
        "read_cold_ms": milliseconds(lambda: ir.read(text), ir.forget),
        "read_warm_ms": milliseconds(lambda: ir.read(text)),
        "write_ms": milliseconds(lambda: ir.write(module)),
        "pass_ms": milliseconds(lambda: run_pass(Identity(), native, place="here")),
    }
    with round_trips():
        row["anew_ms"] = milliseconds(lambda: run_pass(Identity(), native, place="here"))
    return row


def per_operation(rows: list[dict[str, Any]], cost: str) -> list[float]:
    """Microseconds an operation of the repeated modules: the same for all if the cost is linear."""
    return [1e3 * r[cost] / r["operations"] for r in rows if "times" in r["name"]]


def plot(result: dict[str, Any], path: Path) -> None:
    """Cost against operations, and a line of constant cost an operation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = sorted(result["rows"], key=lambda r: r["operations"])
    figure, axes = plt.subplots(figsize=(6, 4))
    sizes = [r["operations"] for r in rows]
    for cost, label in (("pass_ms", "pass, nothing changed"), ("anew_ms", "pass, parsed anew")):
        axes.plot(sizes, [r[cost] for r in rows], "o-", label=label, markersize=3)
        slope = rows[-1][cost] / sizes[-1]
        axes.plot(sizes, [slope * n for n in sizes], "k:", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="operations", ylabel="CPU ms")
    axes.set_title(f"one identity pass, Triton {result['machine']['triton']}", fontsize=9)
    axes.legend(title="dotted: linear", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the table, and write it where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write .json, .png")
    parser.add_argument("--replot", action="store_true", help="only draw the .png from the .json")
    arguments = parser.parse_args()
    if arguments.replot:
        result = json.loads(arguments.out.with_suffix(".json").read_text())
        plot(result, arguments.out.with_suffix(".png"))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # 3.9 warns where this is not said
        texts = list(modules())
    rows = [measure(name, text) for name, text in texts]
    base = dict(texts)["matmul cuda ttgir"]
    count = next(r["operations"] for r in rows if r["name"] == "matmul cuda ttgir")
    for goal in _GOALS:
        times = max(1, goal // count)
        rows.append(measure(f"matmul cuda ttgir, {times} times", repeated(base, times)))
    costs = ("read_cold_ms", "read_warm_ms", "write_ms", "pass_ms", "anew_ms")
    heads = ("read cold", "read warm", "write", "pass", "anew")
    print(f"{'module':32} {'ops':>6} " + " ".join(f"{h:>9}" for h in heads) + "  CPU ms")
    for row in rows:
        print(
            f"{row['name']:32} {row['operations']:6} " + " ".join(f"{row[c]:9.1f}" for c in costs)
        )
    result = machine.record() | {"rows": rows}
    for cost in ("pass_ms", "anew_ms"):
        each = per_operation(rows, cost)
        result[f"us an operation, {cost}"] = each
        print(f"{cost}: {', '.join(f'{us:.1f}' for us in each)} us an operation, by size")
    if arguments.out:
        arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
        plot(result, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
