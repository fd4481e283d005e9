"""What the units of a multiprocessor did while a kernel ran: ncu's counters, on one page.

    python -m benchmarks.counters --out benchmarks/results/NAME      # on the GPU: .json, .md
    python -m benchmarks.counters --page NAME.json                   # the .md anew

Attention (cuDNN's kernels beside ours) and the triangle update, of the sizes of their own
benchmarks. ncu runs each kernel by itself, several times, on a chip that is cooler than under
load: times are longer or shorter than the benchmarks', parts of a time are what to read. Kernels
that are not compiled yet take most of the time: ``attention.py --warm`` and ``triangle.py --rounds
0`` compile them side by side.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attention
import machine
import triangle
import triton

#: Label, ncu's name, and how many of its base unit make the label's.
COUNTERS = {
    "ms": ("gpu__time_duration.sum", 1e6),
    "matrix units busy %": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 1),
    "L2 hits %": ("lts__t_sector_hit_rate.pct", 1),
    "GB out of L2": ("lts__t_sectors_op_read.sum", 1e9 / 32),
    "GB from memory": ("dram__bytes_read.sum", 1e9),
    "GB to memory": ("dram__bytes_write.sum", 1e9),
    "memory busy %": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1),
}
#: More of them, for kernels that do other work than products.
UNITS = {
    "exponentials %": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", 1),
    "FMA %": ("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active", 1),
    "ALU %": ("sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active", 1),
    "issue slots %": ("sm__inst_issued.avg.pct_of_peak_sustained_active", 1),
}
#: Sections that say what warps wait for.
WAITS = ("WarpStateStats",)
STALL = "smsp__average_warps_issue_stalled_"


@triton.jit
def part_begins():
    """Marks where a part begins in what ncu counts."""


def counted(
    command: Sequence[str], sections: Sequence[str], metrics: Sequence[str], seconds: float
) -> list[list[dict[str, str]]] | str:
    """ncu's counters of the kernels of each part that a command runs, or why there are none.

    command: a program of Python's and its words, which profiles parts by ``profile``.
    """
    if shutil.which("ncu") is None:
        return "ncu is not installed"
    words = [word for section in sections for word in ("--section", section)]
    known = subprocess.run(
        ["ncu", "--query-metrics", "--chip", "gh100"], capture_output=True, text=True
    ).stdout.split()
    more = [name for name in metrics if name.partition(".")[0] in known]
    whole = [
        "ncu", "--clock-control", "none", "--profile-from-start", "off", *words,
        *(["--metrics", ",".join(more)] if more else []),
        "--csv", "--page", "raw", "--print-units", "base", sys.executable, *command,
    ]  # fmt: skip
    try:
        done = subprocess.run(whole, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"ncu took more than {seconds:.0f} s"
    start = done.stdout.find('"ID"')
    if start < 0:
        return f"ncu: {(done.stdout + done.stderr)[-300:]}"
    parts: list[list[dict[str, str]]] = []
    for row in list(csv.DictReader(io.StringIO(done.stdout[start:])))[1:]:  # the first: units
        if part_begins.__name__ in row["Kernel Name"]:
            parts.append([])
        elif parts:
            parts[-1].append({k: v for k, v in row.items() if v})
    return parts


def profile(run: Callable[[], Any]) -> None:
    """Run a part, compiled before, as ncu counts it."""
    import torch

    run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    part_begins[(1,)]()
    run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def number(text: str) -> float:
    """A counter's value; 0 where it is a word."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def values(kernel: dict[str, str], counters: dict[str, tuple[str, float]]) -> dict[str, float]:
    """A kernel's counters by label, and the three things that its warps wait for most."""
    found = {
        label: number(kernel[key]) / unit
        for label, (key, unit) in counters.items() if key in kernel
    }  # fmt: skip
    stalls = {
        key.removeprefix(STALL).partition("_per_")[0]: number(value)
        for key, value in kernel.items() if key.startswith(STALL)
    }  # fmt: skip
    return found | {
        f"stalled: {name.replace('_', ' ')}": value
        for name, value in sorted(stalls.items(), key=lambda pair: -pair[1])[:3]
    }


def _is_read(name: str) -> bool:
    """Whether ``values`` and the page take it from what ncu gives."""
    counters = {name for name, _ in (COUNTERS | UNITS).values()}
    return name == "Kernel Name" or name in counters or name.startswith(STALL)


# --- what is profiled -----------------------------------------------------------------------------

TRIANGLE = [(n, batch, c, dtype) for n, batch, c in ((256, 2, 128), (1024, 2, 384))
            for dtype in ("bf16", "fp32")]  # fmt: skip


def _attention() -> Iterator[tuple[dict[str, Any], Callable[[], Callable[[], Any]]]]:
    runs = attention.contestants
    for backward in (False, True):
        for dim in attention.DIMS:
            for causal in (False, True):
                for name in ("remora", "cudnn"):
                    part = {
                        "suite": "attention", "case": attention.name_of(
                            {"dim": dim, "causal": causal,
                             "pass": "backward" if backward else "forward"}
                        ), "contestant": name,
                    }  # fmt: skip

                    def make(name=name, dim=dim, causal=causal, backward=backward):
                        given = attention.operands(dim, backward)
                        return attention.call(runs()[name], given, causal, backward)

                    yield part, make


def _triangle() -> Iterator[tuple[dict[str, Any], Callable[[], Callable[[], Any]]]]:
    for n, batch, c, dtype in TRIANGLE:
        part = {
            "suite": "triangle", "case": f"{n}, {batch}, {c} {dtype}", "contestant": "remora"
        }  # fmt: skip

        def make(case=((n, batch, c), dtype, False)):
            return triangle.Case(list(case), ["remora"], False, False).runs["remora"]

        yield part, make


SUITES = {"attention": _attention, "triangle": _triangle}


def parts(suites: Sequence[str]) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """What a part is, and what makes the function that runs it."""
    for suite in suites:
        yield from SUITES[suite]()


# --- the page -------------------------------------------------------------------------------------


def page(result: dict[str, Any], source: str) -> str:
    """The page in Markdown: a table a suite, a row for each kernel of a twentieth of its part."""
    labels = [*COUNTERS, *UNITS]
    lines = [
        "# Kernels: what their units did", "",
        f"Made by `python -m benchmarks.counters` ([raw]({source})); "
        f"{result['machine']['gpu'].splitlines()[0]}, Triton {result['machine']['triton']}. "
        "ncu's counters of one launch, at the clock of a chip that is not under load. *Waits*: "
        "what warps wait for, for each instruction issued, the longest three; a producer's warps "
        "wait most of their time on purpose. Kernels of less than a twentieth of a part's time are "
        "left out.",
    ]  # fmt: skip
    for suite in dict.fromkeys(part["suite"] for part in result["parts"]):
        lines += [
            "", f"## {suite.capitalize()}", "",
            "| case | by | kernel | " + " | ".join(labels) + " | waits |",
            "|" + "---|" * (len(labels) + 4),
        ]  # fmt: skip
        for part in result["parts"]:
            if part["suite"] != suite:
                continue
            found = [values(kernel, COUNTERS | UNITS) for kernel in part["kernels"]]
            whole = sum(one.get("ms", 0) for one in found)
            for kernel, one in zip(part["kernels"], found, strict=True):
                if one.get("ms", 0) < 0.05 * whole:
                    continue
                cells = " | ".join(f"{one[x]:.3g}" if x in one else "" for x in labels)
                waits = ", ".join(
                    f"{name.removeprefix('stalled: ')} {value:.1f}"
                    for name, value in one.items() if name.startswith("stalled: ")
                )  # fmt: skip
                lines.append(
                    f"| {part['case']} | {part['contestant']} | {short(kernel['Kernel Name'])} "
                    f"| {cells} | {waits} |"
                )
    return "\n".join(lines) + "\n"


def short(name: str) -> str:
    """A kernel's name without its template's arguments, at most 40 characters."""
    name = re.sub(r"<.*|\(.*", "", name).rpartition("::")[2].removeprefix("void ")
    return name if len(name) <= 40 else name[:39] + "…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suites", nargs="*", choices=SUITES, default=tuple(SUITES))
    parser.add_argument("--out", type=Path, default=Path("counters"))
    parser.add_argument(
        "--seconds", type=float, default=120, help="begin no part of a suite after so many"
    )
    parser.add_argument("--page", type=Path, help="only write the page, from the .json")
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.profiled:
        started = time.monotonic()
        for _, make in parts(given.suites):
            if time.monotonic() - started < given.seconds:
                profile(make())
        return
    if given.page:
        given.page.with_suffix(".md").write_text(
            page(json.loads(given.page.read_text()), given.page.name)
        )
        return
    names = [name for name, _ in (COUNTERS | UNITS).values()]
    result = machine.record() | {"parts": []}
    for suite in given.suites:
        # The program that is profiled ends in time; of one that is killed ncu tells nothing.
        command = [__file__, "--profiled", "--suites", suite, "--seconds", str(given.seconds)]
        found = counted(command, WAITS, names, given.seconds + 60)
        if isinstance(found, str):
            sys.exit(f"{suite}: {found}")
        described = [part for part, _ in parts([suite])]
        for part, kernels in zip(described, found, strict=False):
            kept = [{k: v for k, v in one.items() if _is_read(k)} for one in kernels]
            result["parts"].append(part | {"kernels": kept})
        if len(found) < len(described):
            print(f"{suite}: {len(found)} of {len(described)} parts", file=sys.stderr)
    path = given.out.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(result, path.name))


if __name__ == "__main__":
    main()
