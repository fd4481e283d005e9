"""How far the products are from what bounds them, and where the rest of the time goes.

    python -m benchmarks.roofline measure --out benchmarks/results/NAME.json     # on the GPU
    python -m benchmarks.roofline measure --suites announced --out ...
    python -m benchmarks.roofline page GEMM.json NAME.json --out benchmarks/results/PAGE

measure finds the ceilings (a copy; products of zeros, which take so little power that the clock
stays up), times each product with half of its K as well, and reads ncu's counters where they
may be read. page puts these and the rows of benchmarks.gemm into PAGE.md and PAGE.svg; it needs
no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import counters
import gemm
import machine
from counters import COUNTERS, number
from energy import Meter
from gemm import Case

#: Operations a cycle of a multiprocessor (NVIDIA H100 Tensor Core GPU Architecture, 2022:
#: 989.4 TFLOP/s of dense fp16 by 132 multiprocessors at 1830 MHz).
PER_CYCLE = {"float16": 4096, "bfloat16": 4096, "float8_e4m3fn": 8192, "int8": 8192,
             "float32": 2048}  # fmt: skip
SUITES = ("announced", "dtypes")
#: What ncu collects, and what of it goes onto the page.
SECTIONS = (
    "SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "WarpStateStats",
    "LaunchStats",
)  # fmt: skip


def cases_of(suites: Sequence[str]) -> list[Case]:
    return [case for suite in suites for case in gemm.SUITES[suite]]


# --- on the GPU -----------------------------------------------------------------------------------


def ceilings(meter: Meter, cases: list[Case]) -> dict[str, Any]:
    """Bytes a second of a copy, read and written; products of zeros."""
    import torch

    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    copied = meter.events(partial(target.copy_, source), 200)
    del source, target
    found: dict[str, Any] = {"copy": 8 * (1 << 30) / copied["ms"] * 1e3, "zeros": {}}
    properties = torch.cuda.get_device_properties(0)
    found["units"] = properties.multi_processor_count
    for dtype, orders in {case.dtype: case.orders for case in cases}.items():
        case = Case(*gemm.CUBE, dtype, orders=orders)
        given = {k: torch.zeros_like(v) for k, v in gemm.operands(case).items()}
        sample = meter.events(gemm.cublas(case, given), 100)
        found["zeros"][case.dtype] = sample | {"tflops": case.flops / sample["ms"] * 1e-9}
    return found


def halves(meter: Meter, cases: list[Case]) -> list[dict[str, Any]]:
    """Each product with all of its K and with half of it, in turn, in one configuration."""
    from remora.kernels import tuning

    found = []
    for case in cases:
        half = replace(case, k=case.k // 2)
        for name in ("cublas", "remora"):
            given, shorter = gemm.operands(case), gemm.operands(half)
            if name == "remora":
                gemm.remora(case, given)()
                config = list(tuning.chosen.values())[-1]
                runs = [gemm.remora(case, given, config), gemm.remora(half, shorter, config)]
            else:
                runs = [gemm.cublas(case, given), gemm.cublas(half, shorter)]
            samples = [
                [gemm.measure(c, run, 60, meter) for c, run in zip((case, half), runs, strict=True)]
                for _ in range(3)
            ]
            found.append({
                "case": vars(case), "contestant": name,
                "whole": [s[0] for s in samples], "half": [s[1] for s in samples],
            })  # fmt: skip
    return found


def counted(
    suites: Sequence[str], sections: Sequence[str], seconds: float
) -> list[dict[str, Any]] | str:
    """ncu's counters for each product, or why there are none."""
    command = [__file__, "profiled", "--suites", *suites]
    found = counters.counted(command, sections, [name for name, _ in COUNTERS.values()], seconds)
    if isinstance(found, str):
        return found
    return [
        {"case": vars(case), "contestant": name, "kernels": kernels}
        for (case, name), kernels in zip(profiled_order(suites), found, strict=False)
    ]


def profiled_order(suites: Sequence[str]) -> list[tuple[Case, str]]:
    return [(case, name) for case in cases_of(suites) for name in ("remora", "cublas")]


def profiled(suites: Sequence[str]) -> None:
    """What ncu runs: each product once."""
    for case, name in profiled_order(suites):
        counters.profile(getattr(gemm, name)(case, gemm.operands(case)))


def measure(out: Path, suites: Sequence[str], sections: Sequence[str], seconds: float) -> None:
    meter, cases = Meter(), cases_of(suites)
    limits = {"power_w": meter.power_limit(), "clock_mhz": meter.highest_clock()}
    result = machine.record() | {"limits": limits, "ceilings": ceilings(meter, cases)}
    result["halves"] = halves(meter, cases)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    result["counters"] = counted(suites, sections, seconds)
    out.write_text(json.dumps(result, indent=1) + "\n")


# --- the page -------------------------------------------------------------------------------------


def share(row: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Where a row's time goes, in milliseconds.

    memory: moving each operand and the result once at the copy's rate. matrix: the matrix
    units at the highest clock; power: what the clock adds that the power limit leaves. The
    bound is memory, or matrix and power. outside: of the loop over K, from the times with K
    and with half of it. inside: the rest.
    """
    case = Case(**row["case"] | {"orders": tuple(row["case"]["orders"])})
    units, highest = found["ceilings"]["units"], found["limits"]["clock_mhz"]
    size = {"float32": 4, "int8": 1, "float8_e4m3fn": 1}.get(case.dtype, 2)
    out = {"int8": 4, "float32": 4}.get(case.dtype, 2)
    moved = case.batch * ((case.m + case.n) * case.k * size + case.m * case.n * out)
    memory = moved / found["ceilings"]["copy"] * 1e3
    matrix = case.flops / (units * PER_CYCLE[case.dtype] * highest * 1e6) * 1e3
    power = matrix * (highest / row.get("clock_mhz", highest) - 1)
    by_memory = memory > matrix + power
    at_best = max(memory, matrix + power)
    left = max(row["ms"] - at_best, 0.0)
    outside = min(outside_of_the_loop(row, found, in_cycles=not by_memory), left)
    name = "memory" if by_memory else "power limit" if power > 0.03 * matrix else "matrix units"
    return {
        "bound": name, "at_best": at_best, "of_bound": at_best / row["ms"], "outside": outside,
        "inside": left - outside, "memory": memory if by_memory else 0.0,
        "matrix": 0.0 if by_memory else matrix, "power": 0.0 if by_memory else power,
    }  # fmt: skip


def outside_of_the_loop(row: dict[str, Any], found: dict[str, Any], *, in_cycles: bool) -> float:
    """Milliseconds that do not shrink with K: twice the time with half of K, less the time."""
    for one in found["halves"]:
        if (one["case"], one["contestant"]) == (row["case"], row["contestant"]):
            differences = []
            for whole, half in zip(one["whole"], one["half"], strict=True):
                # Half of K may run at another clock.
                faster = half["clock_mhz"] / whole["clock_mhz"] if in_cycles else 1.0
                differences.append(2 * half["ms"] * faster - whole["ms"])
            return max(0.0, statistics.median(differences))
    return 0.0


def counters_of(row: dict[str, Any], found: dict[str, Any]) -> dict[str, float]:
    """Of the longest kernel of a product, by ncu: what goes onto the page."""
    counted = found.get("counters")
    for one in counted if isinstance(counted, list) else ():
        if (one["case"], one["contestant"]) == (row["case"], row["contestant"]) and one["kernels"]:
            longest = max(one["kernels"], key=lambda k: number(k.get(COUNTERS["ms"][0], "0")))
            return counters.values(longest, COUNTERS)
    return {}


def page(rows: list[dict[str, Any]], found: dict[str, Any], picture: str) -> str:
    """The page in Markdown."""
    limits, best = found["limits"], found["ceilings"]
    zeros = ", ".join(
        f"{dtype} {one['tflops']:.0f} TFLOP/s at {one.get('clock_mhz', 0):.0f} MHz"
        for dtype, one in best["zeros"].items()
    )
    lines = [
        "# Matrix products: what bounds them, and where the rest goes", "",
        "Made by `python -m benchmarks.roofline page` from " + " and ".join(found["files"]) + ".",
        f"{found['machine']['gpu']}, Triton {found['machine']['triton']}.", "",
        f"Ceilings, measured: a copy moves {best['copy'] * 1e-12:.2f} TB/s, read and written. "
        f"cuBLAS on zeros, which take little power: {zeros}. Power limit "
        f"{limits['power_w']:.0f} W, highest clock {limits['clock_mhz']:.0f} MHz, {best['units']} "
        "multiprocessors.", "",
        "*At best*: the larger of what memory takes (operands and result once, at the copy's "
        "rate) and what the matrix units take at the clock that the power limit left them, as "
        "measured. The time is the sum of the columns after it: matrix units at the highest "
        "clock, or memory; what the lower clock adds; what is outside of the loop over K (filling "
        "the pipeline, the epilogue, the launch: the time with K and with half of it tells); the "
        "rest inside the loop (waits, tiles that are not full, multiprocessors without a tile).",
        "", f"![time by what it is spent on]({picture})", "",
        "| product | by | ms | TFLOP/s | bound | at best, ms | of it | matrix or memory | power "
        "| outside | inside | J | W | MHz |",
        "|" + "---|" * 14,
    ]  # fmt: skip
    for row in rows:
        s = share(row, found)
        parts = [s["matrix"] or s["memory"], s["power"], s["outside"], s["inside"]]
        spent = " | ".join(f"{part / row['ms']:.1%}" for part in parts)
        lines.append(
            f"| {name_of(row)} | {row['contestant']} | {row['ms']:.4f} | {row['tflops']:.0f} "
            f"| {s['bound']} | {s['at_best']:.4f} | {s['of_bound']:.1%} | {spent} "
            f"| {row.get('joules', 0):.3f} | {row.get('watts', 0):.0f} "
            f"| {row.get('clock_mhz', 0):.0f} |"
        )
    counted = [(row, counters_of(row, found)) for row in rows]
    if any(values for _, values in counted):
        lines += [
            "", "## Counters", "",
            "By ncu, of one launch of a cool chip at its own clock. *Stalled*: warps that wait "
            "for it, for each instruction issued, the three longest; a warp of a specialised "
            "kernel waits most of its time on purpose.", "",
        ]  # fmt: skip
        for row, values in counted:
            if values:
                text = ", ".join(f"{label} {value:.4g}" for label, value in values.items())
                lines.append(f"- {name_of(row)}, {row['contestant']}: {text}")
    else:
        lines += ["", f"No counters: {found.get('counters', 'not measured')}."]
    return "\n".join(lines) + "\n"


def name_of(row: dict[str, Any]) -> str:
    return str(Case(**row["case"] | {"orders": tuple(row["case"]["orders"])}))


def draw(rows: list[dict[str, Any]], found: dict[str, Any], path: Path) -> None:
    """A bar for each row: its time by what it is spent on, the whole being the row's own."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.24 * len(rows)))
    kinds = {
        "memory": "tab:green", "matrix": "tab:blue", "power": "tab:orange",
        "outside": "tab:red", "inside": "tab:gray",
    }  # fmt: skip
    labels = {
        "memory": "memory", "matrix": "matrix units at the highest clock",
        "power": "lower clock: power limit", "outside": "outside of the loop",
        "inside": "rest inside the loop",
    }  # fmt: skip
    parts = [share(row, found) for row in rows]
    left = [0.0] * len(rows)
    for kind, colour in kinds.items():
        widths = [s[kind] / row["ms"] for s, row in zip(parts, rows, strict=True)]
        axes.barh(range(len(rows)), widths, left=left, color=colour, label=labels[kind])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(
        range(len(rows)), [f"{name_of(r)}  {r['contestant']}" for r in rows], fontsize=7
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("part of the time")
    axes.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("measure", "page", "profiled"))
    parser.add_argument("files", nargs="*", type=Path, help="page: of gemm, and of measure")
    parser.add_argument("--out", type=Path, default=Path("roofline"))
    parser.add_argument("--suites", nargs="*", default=SUITES, choices=SUITES)
    parser.add_argument("--sections", nargs="*", default=SECTIONS, help="of ncu's, beside COUNTERS")
    parser.add_argument("--seconds", type=float, default=120, help="the most that ncu may take")
    arguments = parser.parse_args()
    if arguments.what == "profiled":
        profiled(arguments.suites)
        return
    if arguments.what == "measure":
        measure(arguments.out, arguments.suites, arguments.sections, arguments.seconds)
        return
    products, found = (json.loads(file.read_text()) for file in arguments.files)
    found["files"] = [f"`{file.name}`" for file in arguments.files]
    rows = [
        row for row in products["rows"]
        if row["contestant"] in ("remora", "cublas", "peer") and "ms" in row
        and row["case"]["batch"] == 1
    ]  # fmt: skip
    picture = arguments.out.with_suffix(".svg")
    draw(rows, found, picture)
    arguments.out.with_suffix(".md").write_text(page(rows, found, picture.name))


if __name__ == "__main__":
    main()
