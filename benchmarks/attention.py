"""Attention, forward, beside PyTorch's: its cuDNN and its flash backend.

    python benchmarks/attention.py --out benchmarks/results/NAME

Batch 4, 16 heads, length 4096, fp16, random normal. All in one process, in turn, round
after round; medians, and ratios to cuDNN. The error is the largest one, relative to the
largest element of the result in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import machine

BATCH, HEADS, LENGTH = 4, 16, 4096
DIMS = (64, 96, 128, 256)


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


def error(run, q, k, v, causal: bool) -> float:
    """Of one head; a longer one would take the memory of all of float64's scores."""
    import torch
    import torch.nn.functional as F

    one = tuple(x[:1, :1] for x in (q, k, v))
    expected = F.scaled_dot_product_attention(*(x.double() for x in one), is_causal=causal)
    got = run(q, k, v, causal)[:1, :1].double()
    assert not torch.isnan(got).any()
    return float((got - expected).abs().max() / expected.abs().max())


def measure(dim: int, causal: bool, rounds: int, ms: int) -> list[dict]:
    import torch
    from triton.testing import do_bench

    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, dim, device="cuda").half() for _ in range(3))
    runs = contestants()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    errors = {name: error(run, q, k, v, causal) for name, run in runs.items()}
    for _ in range(rounds):
        for name, run in runs.items():
            timed = do_bench(
                lambda run=run: run(q, k, v, causal), warmup=50, rep=ms, return_mode="median"
            )
            samples[name].append(timed)
    flops = 4 * BATCH * HEADS * LENGTH**2 * dim * (0.5 if causal else 1)
    base = statistics.median(samples["cudnn"])
    rows = []
    for name, all_ms in samples.items():
        median = statistics.median(all_ms)
        row = {
            "dim": dim, "causal": causal, "contestant": name, "ratio": base / median,
            "tflops": flops / median * 1e-9, "ms": median, "samples_ms": all_ms,
            "max_rel_err": errors[name],
        }  # fmt: skip
        rows.append(row)
        print(
            f"{dim:4} {'causal' if causal else 'full':7} {name:7} {row['ratio']:.3f} of cuDNN  "
            f"{row['tflops']:6.1f} TFLOP/s  (error {row['max_rel_err']:.1e})",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("attention"))
    parser.add_argument("--dims", nargs="*", type=int, default=DIMS, choices=DIMS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ms", type=int, default=200, help="of each measurement")
    arguments = parser.parse_args()
    rows = [
        row
        for dim in arguments.dims
        for causal in (False, True)
        for row in measure(dim, causal, arguments.rounds, arguments.ms)
    ]
    result = machine.record() | {"rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, arguments.out.with_suffix(".png"))


def plot(result: dict, path: Path) -> None:
    """Bars of TFLOP/s, a group for each head dimension and mask."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys((r["dim"], r["causal"]) for r in result["rows"]))
    names = list(dict.fromkeys(r["contestant"] for r in result["rows"]))
    figure, axes = plt.subplots(figsize=(3 + len(cases), 4.5))
    for i, name in enumerate(names):
        rows = [r for r in result["rows"] if r["contestant"] == name]
        at = [cases.index((r["dim"], r["causal"])) + i / (len(names) + 1) for r in rows]
        bars = axes.bar(at, [r["tflops"] for r in rows], width=1 / (len(names) + 1), label=name)
        axes.bar_label(bars, [f"{r['ratio']:.2f}" for r in rows], fontsize=6)
    axes.set_xticks(
        [i + 0.3 for i in range(len(cases))],
        [f"{d}\n{'causal' if c else 'full'}" for d, c in cases], fontsize=8,
    )  # fmt: skip
    axes.set_ylabel("TFLOP/s (labels: speed, of cuDNN)")
    axes.set_title(
        f"{result['machine']['gpu'].split(',')[0]}, Triton {result['machine']['triton']}"
    )
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
