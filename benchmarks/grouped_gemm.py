"""Products of groups side by side: Remora, PyTorch's own, and a loop over cuBLAS.

    python benchmarks/grouped_gemm.py --out benchmarks/results/NAME

All contestants are measured in one process, in turn, round after round, so that a drift of
the clocks meets all of them alike. Ratios are to the loop, of the medians.

Contestants:
  remora   remora.kernels.grouped_matmul
  torch    torch._grouped_mm (CUTLASS); it has no lists
  loop     torch.mm for each group, of offsets that the host knows already

Cases: forward, with weights by rows and by columns; the gradient of the tokens and of the
weights; a list. Tokens are divided evenly, by a Zipf distribution with an empty group, and so
that each group begins at an odd row.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine

EXPERTS, TOKENS, WIDTH = 16, 16384, 4096


def offsets(division: str, experts: int, tokens: int) -> list[int]:
    """Where groups end."""
    import torch

    if division == "even":
        return [tokens * (i + 1) // experts for i in range(experts)]
    if division == "odd":
        return [tokens * (i + 1) // experts + 2 * (i % 5) + 1 for i in range(experts - 1)] + [
            tokens
        ]
    weights = 1 / torch.arange(1, experts + 1).double() ** 0.7
    weights = weights[torch.randperm(experts, generator=torch.Generator().manual_seed(1))]
    weights[experts // 2] = 0
    ends = (weights.cumsum(0) / weights.sum() * tokens).round().int().tolist()
    return [*ends[:-1], tokens]


def case(kind: str, division: str, experts: int, tokens: int, width: int) -> dict[str, Any]:
    """The contestants' functions, the operands for a check, and the operations."""
    import torch

    from remora.kernels import grouped_matmul

    torch.manual_seed(0)

    def values(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    ends = offsets(division, experts, tokens)
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    starts = [0, *ends]
    if kind == "list":
        a = [values(e - s, width) for s, e in pairwise(starts) if e > s]
        b = [values(width, width * (1 + i % 3) // 2) for i in range(len(a))]
        run = {
            "remora": lambda: grouped_matmul(a, b),
            "loop": lambda: [torch.mm(x, y) for x, y in zip(a, b, strict=True)],
        }
        operations = sum(2 * x.shape[0] * width * y.shape[1] for x, y in zip(a, b, strict=True))
        return {"run": run, "operations": operations}
    x = values(tokens, width)
    if kind == "gradient of weights":
        a, b = x.T, values(tokens, width)

        def loop() -> Any:
            out = torch.empty(experts, width, width, dtype=x.dtype, device="cuda")
            for group, (s, e) in enumerate(pairwise(starts)):
                torch.mm(a[:, s:e], b[s:e], out=out[group])
            return out
    else:
        a, b = x, values(experts, width, width)
        b = b if kind == "forward, by rows" else b.mT

        def loop() -> Any:
            out = torch.empty(tokens, width, dtype=x.dtype, device="cuda")
            for group, (s, e) in enumerate(pairwise(starts)):
                if e > s:
                    torch.mm(a[s:e], b[group], out=out[s:e])
            return out

    run = {
        "remora": lambda: grouped_matmul(a, b, offs),
        "torch": lambda: torch._grouped_mm(a, b, offs=offs),
        "loop": loop,
    }
    return {"run": run, "operations": 2 * tokens * width * width}


KINDS = ("forward, by rows", "forward, by columns", "gradient of weights", "list")
DIVISIONS = ("even", "odd", "zipf")


def measure(kind: str, division: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One case: what the contestants agree on, and their times in turn."""
    import torch
    from triton.testing import do_bench

    made = case(kind, division, arguments.experts, arguments.tokens, arguments.width)
    run = made["run"]
    expected = run["loop"]()
    times: dict[str, list[float]] = {}
    errors: dict[str, Any] = {}
    for name, function in list(run.items()):
        try:
            given = function()
            torch.cuda.synchronize()
        except RuntimeError as error:
            errors[name] = str(error).splitlines()[0]
            continue
        pairs = zip(*((x if isinstance(x, list) else [x]) for x in (given, expected)), strict=True)
        errors[name] = max(
            ((x.double() - y.double()).norm() / y.double().norm().clamp_min(1e-30)).item()
            for x, y in pairs
        )
        times[name] = []
    for _ in range(arguments.rounds):
        for name, samples in times.items():
            samples.append(do_bench(run[name], warmup=25, rep=arguments.ms, return_mode="median"))
    loop = statistics.median(times["loop"])
    rows = {
        name: {
            "ratio": loop / statistics.median(samples),
            "tflops": made["operations"] / statistics.median(samples) * 1e-9,
            "ms": statistics.median(samples),
            "samples_ms": samples,
            "difference_from_loop": errors[name],
        }
        for name, samples in times.items()
    }
    for name, row in rows.items():
        print(
            f"{kind:20} {division:5} {name:7} {row['ratio']:.3f} of the loop "
            f"{row['tflops']:7.1f} TFLOP/s {row['ms']:.4f} ms "
            f"({min(row['samples_ms']):.4f} to {max(row['samples_ms']):.4f}), "
            f"off by {row['difference_from_loop']:.1e}",
            flush=True,
        )
    refused = {name: text for name, text in errors.items() if name not in times}
    return {"kind": kind, "division": division, "contestants": rows, "refused": refused}


def plot(result: dict[str, Any], path: Path) -> None:
    """Bars of the ratio to the loop, a group for each case, labelled with TFLOP/s."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = result["cases"]
    figure, axes = plt.subplots(figsize=(3 + 1.1 * len(cases), 4.5))
    for i, name in enumerate(("remora", "torch", "loop")):
        shown = [
            (at, c["contestants"][name]) for at, c in enumerate(cases) if name in c["contestants"]
        ]
        bars = axes.bar(
            [at + i / 4 for at, _ in shown],
            [row["ratio"] for _, row in shown],
            width=1 / 4,
            label=name,
        )
        axes.bar_label(bars, [f"{row['tflops']:.0f}" for _, row in shown], fontsize=6)
    names = [f"{c['kind']}\n{c['division']}".replace(", ", "\n") for c in cases]
    axes.set_xticks([at + 0.25 for at in range(len(cases))], names, fontsize=7)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_ylabel("speed, of the loop over cuBLAS (labels: TFLOP/s)")
    sizes = f"{result['experts']} experts, {result['tokens']} tokens, {result['width']} wide"
    axes.set_title(f"{result['machine'].get('gpu', '').split(',')[0]}: {sizes}")
    axes.legend(fontsize=7, ncols=3, loc="lower right")
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("grouped_gemm"), help="where to write .json"
    )
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--divisions", nargs="*", default=DIVISIONS, choices=DIVISIONS)
    parser.add_argument("--experts", type=int, default=EXPERTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument(
        "--width", type=int, default=WIDTH, help="columns of the tokens and weights"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=int, default=100, help="of each measurement")
    arguments = parser.parse_args()
    sizes = {"experts": arguments.experts, "tokens": arguments.tokens, "width": arguments.width}
    result = machine.record() | sizes | {"dtype": "bfloat16", "cases": []}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for kind in arguments.kinds:
        for division in arguments.divisions:
            result["cases"].append(measure(kind, division, arguments))
            # After each case, so that a time limit loses no more than one.
            text = json.dumps(result, indent=1) + "\n"
            arguments.out.with_suffix(".json").write_text(text)
    plot(result, arguments.out)


if __name__ == "__main__":
    main()
