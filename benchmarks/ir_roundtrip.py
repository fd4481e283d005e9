"""Time of reading and writing modules through xDSL, against the number of operations.

Real kernels of ``tests/corpus`` (matmul, attention) after each stage, then a
function with the matmul's body repeated until it has about 5,000 operations.
"cold": no attribute was seen before; "warm": the module was read once.

    PYTHONPATH=src:tests python benchmarks/ir_roundtrip.py [--json PATH]
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
from typing import Any

_ROUNDS = 7


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
            return match[0] if match[0] in shared else f"{match[0]}_{number}"

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
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(name: str, text: str) -> dict[str, Any]:
    """Operations, and milliseconds to read (cold, warm) and to write."""
    from remora import ir

    module = ir.read(text)
    return {
        "name": name,
        "operations": sum(1 for _ in module.walk()),
        "read_cold_ms": milliseconds(lambda: ir.read(text), ir.forget),
        "read_warm_ms": milliseconds(lambda: ir.read(text)),
        "write_ms": milliseconds(lambda: ir.write(module)),
    }


def main() -> None:
    """Print the table, and write it where ``--json`` says."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", metavar="PATH")
    path = arguments.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # 3.9 warns where this is not said
        texts = list(modules())
    import triton

    rows = [measure(name, text) for name, text in texts]
    base = dict(texts)["matmul cuda ttgir"]
    count = next(r["operations"] for r in rows if r["name"] == "matmul cuda ttgir")
    for goal in (1000, 2000, 5000):
        times = max(1, goal // count)
        rows.append(measure(f"matmul cuda ttgir, {times} times", repeated(base, times)))
    print(f"{'module':32} {'ops':>6} {'read cold':>10} {'read warm':>10} {'write':>8}  ms")
    for row in rows:
        print(
            f"{row['name']:32} {row['operations']:6} {row['read_cold_ms']:10.1f} "
            f"{row['read_warm_ms']:10.1f} {row['write_ms']:8.1f}"
        )
    if path:
        with open(path, "w") as file:
            json.dump({"triton": triton.__version__, "modules": rows}, file, indent=2)


if __name__ == "__main__":
    main()
