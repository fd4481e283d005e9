"""What a plugin costs at compile time: the GEMM with and without Python passes.

    python benchmarks/compile_time.py --out benchmarks/results/NAME.json [--peer PYTHON]

Rows, for each target: plain Triton's GEMM; the same with a pass that does
nothing, where TLX is lowered; the TLX GEMM. CPU seconds to the binary, the
assembler's too, the median of rounds in which the rows take turns; imports warm.
``pass_s`` is the time in Python passes: reading the module, the pass, writing
and parsing it again. The peer, triton-utlx, is in a virtual environment of its
own, whose Python is given: plain Triton's GEMM under its hook, beside stock
Triton in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import machine
import triton
from triton import knobs

import remora
from remora.host.targets import gpu_target
from remora.kernels.offline import TARGETS, source, stock_kernel, tlx_kernel
from remora.pipeline import runner


def cpu_seconds() -> float:
    """Of this process, and of those that it ran."""
    own, others = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def compile_it(kernel: Any, config: Any, target: str) -> None:
    """Compile a product, past Triton's cache."""
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        triton.compile(
            source(kernel, config),
            target=gpu_target(target),
            options={"num_warps": config.num_warps},
        )


def under(hook: Any) -> Callable[[str], None]:
    """Plain Triton's GEMM under a stage hook."""

    def compile_(target: str) -> None:
        with knobs.runtime.scope():
            knobs.runtime.add_stages_inspection_hook = hook
            compile_it(*stock_kernel(target), target)

    return compile_


def kinds_of_the_peer() -> dict[str, Callable[[str], None]]:
    """In a process of the peer's: stock, and under the hook that importing it sets."""
    import utlx_plugin  # noqa: F401

    return {
        "stock": under(None),
        "the peer's hook": under(knobs.runtime.add_stages_inspection_hook),
    }


def kinds() -> dict[str, Callable[[str], None]]:
    """Row to what compiles for a target."""

    @dataclass(frozen=True)
    class Identity(remora.ModulePass):
        name = "identity"

        def apply(self, ctx, op):
            """Leave the module as it is."""

    identity = remora.Pipeline("identity").insert(Identity(), after="ttgir/coalesce")

    def with_identity(target: str) -> None:
        with remora.use(identity):
            compile_it(*stock_kernel(target), target)

    return {
        "stock": under(None),
        "stock + identity pass": with_identity,
        "TLX": lambda target: compile_it(*tlx_kernel(target), target),
    }


@contextmanager
def passes_timed() -> Iterator[list[float]]:
    """The CPU seconds in Python passes, in a list of one."""
    spent, stock_run_pass = [0.0], runner.run_pass

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return stock_run_pass(*args, **kwargs)
        finally:
            spent[0] += time.process_time() - started

    runner.run_pass = timed
    try:
        yield spent
    finally:
        runner.run_pass = stock_run_pass


def measure(kinds: dict[str, Callable[[str], None]], rounds: int) -> list[dict[str, Any]]:
    """A row for each target and kind."""
    rows = []
    for target in TARGETS:
        samples: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for compile_ in kinds.values():
            compile_(target)
        for _ in range(rounds):
            for kind, compile_ in kinds.items():
                with passes_timed() as spent:
                    started = cpu_seconds()
                    compile_(target)
                    samples[kind].append((cpu_seconds() - started, spent[0]))
        base = statistics.median(s for s, _ in samples["stock"])
        for kind, values in samples.items():
            seconds = statistics.median(s for s, _ in values)
            rows.append(
                {
                    "target": target, "kind": kind, "ratio": seconds / base, "seconds": seconds,
                    "pass_s": statistics.median(p for _, p in values),
                    "samples": [s for s, _ in values],
                }
            )  # fmt: skip
    return rows


def show(result: dict[str, Any]) -> None:
    print(f"Triton {result['machine']['triton']}")
    for row in result["rows"]:
        print(
            f"{row['target']:11} {row['kind']:22} {row['ratio']:.3f} of stock  "
            f"{row['seconds']:.3f} s, of which {row['pass_s']:.3f} s in Python passes "
            f"({row['pass_s'] / row['seconds']:.1%})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", metavar="PYTHON", help="of an environment with triton-utlx")
    parser.add_argument("--of-the-peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of_the_peer:
        result = machine.record() | {"rows": measure(kinds_of_the_peer(), arguments.rounds)}
        print(json.dumps(result))
        return
    result = machine.record() | {"rows": measure(kinds(), arguments.rounds)}
    show(result)
    if arguments.peer:
        command = ["--of-the-peer", "--rounds", str(arguments.rounds)]
        result["peer"] = machine.answer(arguments.peer, __file__, *command)
        show(result["peer"])
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
