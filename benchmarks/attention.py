"""Attention, forward and backward, beside PyTorch's: its cuDNN and its flash backend.

    python benchmarks/attention.py --out benchmarks/results/NAME

Batch 4, 16 heads, length 4096, fp16, random normal. All in one process, in turn, round
after round; medians, and ratios to cuDNN. Forward counts 4 * length ** 2 * dimension operations
a head (half where causal), backward 2.5 times as many. The error is the largest one of the
result, or of the gradient of the queries, relative to the largest element in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import machine

BATCH, HEADS, LENGTH = 4, 16, 4096
PASSES = ("forward", "backward")
DIMS = (64, 80, 96, 128, 192, 256)


def contestants():
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


def error(run, tensors, causal: bool, backward: bool) -> float:
    """Of one head; a longer one would take the memory of all of float64's scores."""
    import torch
    import torch.nn.functional as F

    one = tuple(x[:1, :1].detach().requires_grad_(backward) for x in tensors)
    wide = tuple(x.detach().double().requires_grad_(backward) for x in one)
    expected = F.scaled_dot_product_attention(*wide, is_causal=causal)
    got = run(*one, causal)
    if backward:
        gradient = torch.randn_like(got)
        (expected,) = torch.autograd.grad(expected, wide[:1], gradient.double())
        (got,) = torch.autograd.grad(got, one[:1], gradient)
    assert not torch.isnan(got).any()
    return float((got.double() - expected).abs().max() / expected.abs().max())


def timed(run, tensors, causal: bool, backward: bool):
    """What is timed: a call of ``run``, or its backward pass alone."""
    import torch

    if not backward:
        return lambda: run(*tensors, causal)
    given = tuple(x.detach().requires_grad_() for x in tensors)
    result = run(*given, causal)
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, given, gradient, retain_graph=True)


def measure(dim: int, causal: bool, backward: bool, rounds: int, ms: int) -> list[dict]:
    import torch
    from triton.testing import do_bench

    torch.manual_seed(0)
    tensors = [torch.randn(BATCH, HEADS, LENGTH, dim, device="cuda").half() for _ in range(3)]
    calls, errors = {}, {}
    for name, run in contestants().items():
        try:
            errors[name] = error(run, tensors, causal, backward)
            calls[name] = timed(run, tensors, causal, backward)
        except RuntimeError as reason:  # a backend of PyTorch's without a kernel for it
            print(f"{dim:4} {name}: {str(reason).splitlines()[0]}", flush=True)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(do_bench(call, warmup=50, rep=ms, return_mode="median"))
    flops = 4 * BATCH * HEADS * LENGTH**2 * dim * (0.5 if causal else 1) * (2.5 if backward else 1)
    base = statistics.median(samples["cudnn"]) if "cudnn" in samples else float("nan")
    rows = []
    for name, all_ms in samples.items():
        median = statistics.median(all_ms)
        row = {
            "dim": dim, "causal": causal, "pass": "backward" if backward else "forward",
            "contestant": name, "ratio": base / median, "tflops": flops / median * 1e-9,
            "ms": median, "samples_ms": all_ms, "max_rel_err": errors[name],
        }  # fmt: skip
        rows.append(row)
        print(
            f"{dim:4} {row['pass']:8} {'causal' if causal else 'full':7} {name:7} "
            f"{row['ratio']:.3f} of cuDNN  {row['tflops']:6.1f} TFLOP/s  "
            f"(error {row['max_rel_err']:.1e})",
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ms", type=int, default=200, help="of each measurement")
    arguments = parser.parse_args()
    rows = [
        row
        for name in arguments.passes
        for dim in arguments.dims
        for causal in (False, True)
        for row in measure(dim, causal, name == "backward", arguments.rounds, arguments.ms)
    ]
    result = machine.record() | {"rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, arguments.out.with_suffix(".png"))


def plot(result: dict, path: Path) -> None:
    """Bars of TFLOP/s, a group for each head dimension and mask, a panel for each pass."""
    import matplotlib

    matplotlib.use("Agg")
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
            axes.bar_label(bars, [f"{r['ratio']:.2f}" for r in rows], fontsize=6)
        axes.set_xticks(
            [i + 0.3 for i in range(len(cases))],
            [f"{d}\n{'causal' if c else 'full'}" for d, c in cases], fontsize=8,
        )  # fmt: skip
        axes.set_ylabel(f"{which}, TFLOP/s (labels: speed, of cuDNN)")
        axes.legend(fontsize=7)
    panels[0, 0].set_title(
        f"{result['machine']['gpu'].split(',')[0]}, Triton {result['machine']['triton']}"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
