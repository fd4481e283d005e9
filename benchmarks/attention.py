"""Attention, forward and backward, beside PyTorch's: its cuDNN and its flash backend.

    python benchmarks/attention.py --out benchmarks/results/NAME          # .json, .png, .svg
    python benchmarks/attention.py --warm 3/16                            # compile a sixteenth

Batch 4, 16 heads, length 4096, fp16, random normal. All in one process, in turn, round
after round, there and back; medians, and ratios to cuDNN. Forward counts 4 * length ** 2 *
dimension operations a head (half where causal), backward 2.5 times as many. The error is
``|result - float64| / |float64|`` of the last head's result, or of the worst of its three
gradients.

Each row has its floors, in ms: what the products take on the matrix units, the exponentials on
the special function units (both at the highest clock), and each tensor's bytes, moved once, at
the rate of a copy. Clock, power and energy are those of one more run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import machine
from energy import Meter

BATCH, HEADS, LENGTH = 4, 16, 4096
PASSES = ("forward", "backward")
DIMS = (64, 80, 96, 128, 192, 256)
#: Of cuDNN's speed.
GOALS = {96: 1.15}

#: A multiprocessor's operations a cycle: fp16 on the matrix units (NVIDIA H100 Tensor Core GPU
#: Architecture, 2022); exponentials (CUDA C++ Programming Guide, arithmetic instructions, 9.0).
OPERATIONS, EXPONENTIALS = 4096, 16


def contestants() -> dict[str, Any]:
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from remora.kernels import attention

    def torch_with(backend):
        def run(q, k, v, causal):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    return {
        "cudnn": torch_with(SDPBackend.CUDNN_ATTENTION),
        "flash": torch_with(SDPBackend.FLASH_ATTENTION),
        "remora": lambda q, k, v, causal: attention(q, k, v, causal=causal),
    }


def operands(dim: int, backward: bool) -> list[Any]:
    """q, k, v, and the gradient of the result."""
    import torch

    torch.manual_seed(0)
    shape = (BATCH, HEADS, LENGTH, dim)
    tensors = [torch.randn(shape, device="cuda").half() for _ in range(4)]
    return [x.requires_grad_(backward) for x in tensors[:3]] + tensors[3:]


def call(run: Any, given: list[Any], causal: bool, backward: bool) -> Any:
    """What is timed: a call of ``run``, or its backward pass alone; gives a list of results."""
    import torch

    *qkv, gradient = given
    if not backward:
        return lambda: [run(*qkv, causal)]
    result = run(*qkv, causal)
    return lambda: torch.autograd.grad(result, qkv, gradient, retain_graph=True)


def expected(given: list[Any], causal: bool, backward: bool) -> list[Any]:
    """Of the last head, in float64."""
    import torch
    import torch.nn.functional as F

    *qkv, gradient = (x.detach()[-1:, -1:].double() for x in given)
    qkv = [x.requires_grad_(backward) for x in qkv]
    result = F.scaled_dot_product_attention(*qkv, is_causal=causal)
    return list(torch.autograd.grad(result, qkv, gradient)) if backward else [result]


def error(got: list[Any], wanted: list[Any]) -> float:
    pairs = ((x[-1:, -1:].double(), y) for x, y in zip(got, wanted, strict=True))
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


def rates(meter: Meter) -> dict[str, float]:
    """Of this GPU: bytes a second of a copy, read and written; multiprocessors; highest clock."""
    import torch
    from triton.testing import do_bench

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy = do_bench(lambda: target.copy_(source), return_mode="median")
    clock = meter.highest_clock() if meter.nvml else 1980.0
    units = torch.cuda.get_device_properties(0).multi_processor_count
    return {
        "bytes_per_s": 2 * source.numel() / copy * 1e3, "multiprocessors": units, "mhz": clock
    }  # fmt: skip


def flops_of(dim: int, causal: bool, backward: bool) -> float:
    return 4 * BATCH * HEADS * LENGTH**2 * dim * (0.5 if causal else 1) * (2.5 if backward else 1)


def floors(dim: int, causal: bool, backward: bool, peaks: dict[str, float]) -> dict[str, float]:
    """Milliseconds that no kernel can do without."""
    cycles_per_ms = peaks["multiprocessors"] * peaks["mhz"] * 1e3
    exponentials = BATCH * HEADS * LENGTH**2 * (0.5 if causal else 1)
    rows = BATCH * HEADS * LENGTH
    moved = rows * (2 * dim * (8 if backward else 4) + 4)  # q, k, v, o, their gradients; sums
    return {
        "matrix": flops_of(dim, causal, backward) / OPERATIONS / cycles_per_ms,
        "exponentials": exponentials / EXPONENTIALS / cycles_per_ms,
        "memory": moved / peaks["bytes_per_s"] * 1e3,
    }


def measure(
    dim: int, causal: bool, backward: bool, rounds: int, ms: int, peaks: dict[str, float],
    meter: Meter,
) -> list[dict]:  # fmt: skip
    from triton.testing import do_bench

    given = operands(dim, backward)
    wanted = expected(given, causal, backward)
    calls, errors = {}, {}
    for name, run in contestants().items():
        try:
            one = call(run, given, causal, backward)
            errors[name] = error(one(), wanted)
            calls[name] = one
        except RuntimeError as reason:  # a backend of PyTorch's without a kernel for it
            print(f"{dim:4} {name}: {str(reason).splitlines()[0]}", flush=True)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    # Warm from the first round on; every other round goes backwards, so that ours does not always
    # come after flash, which leaves it a cooler GPU.
    for one in calls.values():
        do_bench(one, warmup=25, rep=ms)
    for i in range(rounds):
        for name in list(calls)[:: -1 if i % 2 else 1]:
            samples[name].append(do_bench(calls[name], warmup=25, rep=ms, return_mode="median"))
    flops = flops_of(dim, causal, backward)
    base = statistics.median(samples["cudnn"]) if "cudnn" in samples else None
    rows = []
    for name, all_ms in samples.items():
        median = statistics.median(all_ms)
        counted = meter.events(calls[name], ms)
        row = {
            "dim": dim, "causal": causal, "pass": "backward" if backward else "forward",
            "contestant": name, "ratio": base / median if base else None,
            "goal": None if backward else GOALS.get(dim, 1.0),
            "tflops": flops / median * 1e-9, "ms": median, "samples_ms": all_ms,
            "rel_err": errors[name], "floors_ms": floors(dim, causal, backward, peaks),
        }  # fmt: skip
        row |= {key: counted[key] for key in ("joules", "watts", "clock_mhz") if key in counted}
        rows.append(row)
        ratio = f"{row['ratio']:.3f}" if base else "  -  "
        print(
            f"{dim:4} {row['pass']:8} {'causal' if causal else 'full':7} {name:7} "
            f"{ratio} of cuDNN  {row['tflops']:6.1f} TFLOP/s  "
            f"{max(row['floors_ms'].values()) / median:5.1%} of the bound  "
            f"{row.get('clock_mhz', 0):4.0f} MHz {row.get('watts', 0):3.0f} W  "
            f"(error {row['rel_err']:.1e})",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("attention"))
    parser.add_argument("--dims", nargs="*", type=int, default=DIMS, choices=DIMS)
    parser.add_argument(
        "--passes", nargs="*", default=PASSES, choices=PASSES, help="of a training step"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ms", type=int, default=100, help="of each measurement")
    parser.add_argument(
        "--warm", metavar="I/N", help="only compile the I-th of each N cases, for a later run"
    )
    parser.add_argument("--replot", action="store_true", help="only draw, from the .json")
    arguments = parser.parse_args()
    path = arguments.out.with_suffix(".json")
    if arguments.replot:
        draw(json.loads(path.read_text()), path)
        return
    cases = [
        (dim, causal, name == "backward")
        for name, dim, causal in product(arguments.passes, arguments.dims, (False, True))
    ]
    if arguments.warm:
        first, step = map(int, arguments.warm.split("/"))
        for dim, causal, backward in cases[first::step]:
            call(contestants()["remora"], operands(dim, backward), causal, backward)()
        return
    meter = Meter()
    peaks = rates(meter)
    result = machine.record() | {"rates": peaks, "rows": []}
    path.parent.mkdir(parents=True, exist_ok=True)
    for dim, causal, backward in cases:
        result["rows"] += measure(
            dim, causal, backward, arguments.rounds, arguments.ms, peaks, meter
        )  # fmt: skip
        path.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, path)


def draw(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    plot(result, path.with_suffix(".png"))
    roofline(result, path.with_suffix(".svg"))


def name_of(row: dict) -> str:
    return f"{row['dim']} {row['pass']} {'causal' if row['causal'] else 'full'}"


def title(result: dict) -> str:
    return f"{result['machine']['gpu'].split(',')[0]}, Triton {result['machine']['triton']}"


def plot(result: dict, path: Path) -> None:
    """Bars of TFLOP/s, a group for each head dimension and mask, a panel for each pass."""
    import matplotlib.pyplot as plt

    passes = list(dict.fromkeys(r["pass"] for r in result["rows"]))
    cases = list(dict.fromkeys((r["dim"], r["causal"]) for r in result["rows"]))
    names = list(dict.fromkeys(r["contestant"] for r in result["rows"]))
    figure, panels = plt.subplots(
        len(passes), figsize=(3 + len(cases), 4 * len(passes)), squeeze=False
    )
    for axes, which in zip(panels[:, 0], passes, strict=True):
        for i, name in enumerate(names):
            rows = [r for r in result["rows"] if (r["contestant"], r["pass"]) == (name, which)]
            at = [cases.index((r["dim"], r["causal"])) + i / (len(names) + 1) for r in rows]
            heights = [r["tflops"] for r in rows]
            bars = axes.bar(at, heights, width=1 / (len(names) + 1), label=name)
            labels = [f"{r['ratio']:.2f}" if r["ratio"] else "" for r in rows]
            axes.bar_label(bars, labels, fontsize=6)
        axes.set_xticks(
            [i + 0.3 for i in range(len(cases))],
            [f"{d}\n{'causal' if c else 'full'}" for d, c in cases], fontsize=8,
        )  # fmt: skip
        axes.set_ylabel(f"{which}, TFLOP/s (labels: speed, of cuDNN)")
        axes.legend(fontsize=7)
    panels[0, 0].set_title(title(result))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def roofline(result: dict, path: Path) -> None:
    """A bar for each row of ours: its time, by what bounds it; marks at the other floors."""
    import matplotlib.pyplot as plt

    rows = [r for r in result["rows"] if r["contestant"] == "remora"]
    highest = result["rates"]["mhz"]
    colours = {"matrix": "tab:blue", "exponentials": "tab:purple", "memory": "tab:green"}
    figure, axes = plt.subplots(figsize=(8, 1.4 + 0.26 * len(rows)))
    for i, row in enumerate(rows):
        parts = {kind: ms / row["ms"] for kind, ms in row["floors_ms"].items()}
        bound = max(parts, key=lambda kind: parts[kind])
        slower = 0.0 if bound == "memory" else highest / row.get("clock_mhz", highest) - 1
        power = min(parts[bound] * slower, 1 - parts[bound])
        axes.barh(i, parts[bound], color=colours[bound])
        axes.barh(i, power, left=parts[bound], color="tab:orange")
        axes.barh(i, 1 - parts[bound] - power, left=parts[bound] + power, color="lightgray")
        for kind, part in parts.items():
            axes.plot([part], [i], "|", color=colours[kind], markersize=11, markeredgewidth=2)
    for kind, colour in colours.items():
        axes.barh(0, 0, color=colour, label=f"bound: {kind}, at the highest clock")
    axes.barh(0, 0, color="tab:orange", label="lower clock: power limit")
    axes.barh(0, 0, color="lightgray", label="rest")
    axes.set_yticks(range(len(rows)), [name_of(r) for r in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("part of the time (marks: the other floors)")
    axes.set_title(title(result), fontsize=9, loc="left")
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.45, -0.12))
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
