"""``remora demo``: the TLX products through an unmodified Triton, and what came out."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

# Compilations that are timed, of each kernel, in turn.
_ROUNDS = 3


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Compile the TLX matrix products for every target here, run them, and say what happened.

    Needs no GPU, and uses one where torch finds one. Exit code 1 if anything is not ok.
    """
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    # Triton reads it as it is imported; this process compiles, a child interprets.
    os.environ.pop("TRITON_INTERPRET", None)
    report = _with_progress(run, quiet=as_json)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    if not is_ok(report):
        raise typer.Exit(1)


def is_ok(report: dict[str, Any]) -> bool:
    """Whether every part of a report is ok."""
    parts = [*report["targets"], report["cpu"], *([report["gpu"]] if report["gpu"] else [])]
    return all(part["ok"] for part in parts)


def run(say: Callable[[str], None]) -> dict[str, Any]:
    """The report, as ``--json`` prints it; ``say`` is told what is being done."""
    import triton

    from remora.kernels.offline import TARGETS

    targets = []
    for target in TARGETS:
        say(f"compiling for {target}")
        targets.append(_target(target))
    say("running on the CPU, with the reference meaning")
    cpu = _on_cpu()
    say("looking for a GPU")
    return {"triton": triton.__version__, "targets": targets, "cpu": cpu, "gpu": _on_gpu(say)}


def _target(target: str) -> dict[str, Any]:
    """Compile the TLX product and the stock one in turn; count what the assembly holds."""
    from remora.kernels.offline import compile_kernel, stock_kernel, tlx_kernel

    try:
        compile_kernel(*tlx_kernel(target), target)  # the first loads xDSL, LLVM and the tools
        rounds = [
            (
                compile_kernel(*tlx_kernel(target), target),
                compile_kernel(*stock_kernel(target), target),
            )
            for _ in range(_ROUNDS)
        ]
    except Exception as error:
        return {"target": target, "ok": False, "error": str(error)}
    ours, stock = rounds[-1]
    return {
        "target": target,
        # The matrix unit and shared memory are used, and nothing is spilled.
        "ok": all(ours.instructions.values()) and not ours.spills,
        "kernel": tlx_kernel(target)[0].__name__,
        "compile_s": statistics.median(r[0].seconds[0] for r in rounds),
        "stock_compile_s": statistics.median(r[1].seconds[0] for r in rounds),
        "instructions": ours.instructions,
        "stock_instructions": stock.instructions,
        "shared_bytes": ours.shared,
        "registers": ours.registers,
        "spills": ours.spills,
    }


def _on_cpu() -> dict[str, Any]:
    """The products under the reference meaning, in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", "remora.kernels.on_cpu"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    if process.returncode:
        return {"ok": False, "rel_err": None, "error": process.stderr.strip()[-2000:]}
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def _on_gpu(say: Callable[[str], None]) -> dict[str, Any] | None:
    """The product beside the vendor's library, where torch sees a GPU; None elsewhere."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    from triton.testing import do_bench

    from remora.kernels import matmul

    name, size = torch.cuda.get_device_name(), 8192
    say(f"running on {name}")
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    try:
        c = matmul(a, b)
        expected = a.double() @ b.double()
        error = ((c.double() - expected).norm() / expected.norm()).item()
        del expected
        ours = do_bench(lambda: matmul(a, b), rep=500, return_mode="median")
        library = do_bench(lambda: torch.matmul(a, b), rep=500, return_mode="median")
    except Exception as failure:
        return {"ok": False, "device": name, "error": str(failure)}
    flop = 2e-9 * size**3
    return {
        "ok": error < 1e-3,
        "device": name,
        "shape": [size] * 3,
        "dtype": "float16",
        "rel_err": error,
        "tflops": flop / ours,
        "library_tflops": flop / library,
        "equals_library": bool((c == torch.matmul(a, b)).all()),
    }


def _with_progress(
    work: Callable[[Callable[[str], None]], dict[str, Any]], *, quiet: bool
) -> dict[str, Any]:
    """Run ``work``, showing on standard error what it says it is doing."""
    if quiet:
        return work(lambda text: None)
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        return work(lambda text: console.print(text, style="dim"))
    with console.status("starting") as status:
        return work(lambda text: status.update(text))


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    from remora.cli.show import console

    out = console()
    out.print(f"TLX matrix products through stock Triton {report['triton']}\n")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title, justify in (
        ("target", "left"), ("", "left"), ("compiled in", "right"), ("stock", "right"),
        ("in the assembly", "left"), ("shared", "right"), ("registers", "right"),
        ("spills", "right"),
    ):  # fmt: skip
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for row in report["targets"]:
        if "error" in row:
            table.add_row(row["target"], _mark(row["ok"]), "", "", row["error"].splitlines()[0])
            continue
        table.add_row(
            row["target"],
            _mark(row["ok"]),
            f"{row['compile_s']:.2f} s",
            f"{row['stock_compile_s']:.2f} s",
            ", ".join(f"{count} {name}" for name, count in row["instructions"].items()),
            f"{row['shared_bytes'] / 1024:.0f} KiB",
            _or_dash(row["registers"]),
            _or_dash(row["spills"]),
        )
    out.print(table)
    out.print()
    cpu = report["cpu"]
    if cpu["rel_err"] is None:
        out.print("CPU ", _mark(False), f" {cpu['error']}", sep="")
    else:
        shape = " x ".join(map(str, cpu["shape"]))
        out.print(
            f"CPU  {_mark(cpu['ok'])}  both kernels with the reference meaning, fp16 {shape}: "
            f"relative error {cpu['rel_err']:.1e} to float64, in {cpu['seconds']:.1f} s"
        )
    out.print(_gpu_line(report["gpu"]))


def _gpu_line(gpu: dict[str, Any] | None) -> str:
    if gpu is None:
        return "GPU  none here (or no torch that sees one): nothing was run on one"
    if "error" in gpu:
        return f"GPU  {_mark(False)}  {gpu['device']}: {gpu['error']}"
    ratio = gpu["tflops"] / gpu["library_tflops"]
    same = "bit for bit the library's result" if gpu["equals_library"] else "not the same bits"
    return (
        f"GPU  {_mark(gpu['ok'])}  {gpu['device']}, fp16 {' x '.join(map(str, gpu['shape']))}: "
        f"{gpu['tflops']:.0f} TFLOP/s, {ratio:.3f} of the vendor's library "
        f"({gpu['library_tflops']:.0f}); relative error {gpu['rel_err']:.1e}, {same}"
    )


def _mark(ok: bool) -> str:
    return "[green]ok[/]" if ok else "[bold red]not ok[/]"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
