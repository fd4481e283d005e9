"""What a plugin costs at compile time: the GEMM with and without Python passes.

    python benchmarks/compile_time.py --out benchmarks/results/NAME.json

Rows, for each target: plain Triton's GEMM; the same with a pass that does
nothing, where TLX is lowered; the TLX GEMM. Medians, in turn, imports warm.
``pass_s`` is the time in Python passes: reading the module, the pass, writing
and parsing it again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton

import remora
from remora.kernels.offline import TARGETS, compile_kernel, stock_kernel, tlx_kernel
from remora.pipeline import runner


@dataclass(frozen=True)
class Identity(remora.ModulePass):
    """Does nothing."""

    name = "identity"

    def apply(self, ctx, op):
        """Leave the module as it is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    spent = [0.0]
    stock_run_pass = runner.run_pass

    def timed(*args, **kwargs):
        started = time.perf_counter()
        try:
            return stock_run_pass(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - started

    runner.run_pass = timed
    identity = remora.Pipeline("identity").insert(Identity(), after="ttgir/coalesce")

    def with_identity(target):
        with remora.use(identity):
            return compile_kernel(*stock_kernel(target), target)

    kinds = {
        "stock": lambda target: compile_kernel(*stock_kernel(target), target),
        "stock + identity pass": with_identity,
        "TLX": lambda target: compile_kernel(*tlx_kernel(target), target),
    }
    rows = []
    for target in TARGETS:
        samples = {kind: [] for kind in kinds}
        for compile_it in kinds.values():
            compile_it(target)
        for _ in range(arguments.rounds):
            for kind, compile_it in kinds.items():
                spent[0] = 0.0
                samples[kind].append((compile_it(target).seconds[0], spent[0]))
        base = statistics.median(s for s, _ in samples["stock"])
        for kind, values in samples.items():
            seconds = statistics.median(s for s, _ in values)
            passes = statistics.median(p for _, p in values)
            rows.append(
                {
                    "target": target, "kind": kind, "ratio": seconds / base, "seconds": seconds,
                    "pass_s": passes, "samples": [s for s, _ in values],
                }
            )  # fmt: skip
            print(
                f"{target:11} {kind:22} {seconds / base:.3f} of stock  {seconds:.3f} s, "
                f"of which {passes:.3f} s in Python passes ({passes / seconds:.1%})"
            )
    result = {
        "triton": triton.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "cores": os.cpu_count(), "command": sys.argv, "rows": rows,
    }  # fmt: skip
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
