"""``remora bounds``: what bounds the loops of a kernel, from its assembly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.errors import UnknownAssembly

if TYPE_CHECKING:
    from remora.analysis import KernelModel


def bounds(
    files: Annotated[
        list[str],
        typer.Argument(help="Assembly (.amdgcn, .ptx, .sass), a .cubin, or FILE.py::KERNEL."),
    ],
    shared: Annotated[
        int | None, typer.Option(help="Bytes of shared memory a program: not in Triton's assembly.")
    ] = None,
    warps: Annotated[int | None, typer.Option(help="Warps of a program.")] = None,
    signature: Annotated[str, typer.Option(help="Of FILE.py::KERNEL, as in compile.")] = "",
    constexpr: Annotated[list[str] | None, typer.Option(help="As in compile.")] = None,
    target: Annotated[str, typer.Option(help="Of a kernel, or of SASS.")] = "cuda:90",
    options: Annotated[str, typer.Option(help="As in compile.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count what an iteration of each innermost loop asks of each unit, and which is the slowest.

    Several files stand side by side: two versions compared without the hardware.
    """
    from rich.console import Console

    from remora.analysis import compare, of_kernel

    models: list[tuple[str, KernelModel]] = []
    for file in files:
        if "::" in file:
            from remora.cli.compile import compiled

            kernel, _ = compiled(file, signature, constexpr or [], target, options)
            models.append((file.rpartition("::")[2], of_kernel(kernel, warps=warps)))
        else:
            models.append((Path(file).name, _of_file(Path(file), shared, warps, target)))
    if as_json:
        typer.echo(json.dumps({name: model.to_json() for name, model in models}, indent=1))
        return
    console = Console(
        soft_wrap=False, width=max(100, 30 + 36 * sum(len(m.loops) for _, m in models))
    )
    if any(model.loops for _, model in models):
        console.print(compare(models))
    for name, model in models:
        if not model.loops:
            console.print(f"{name}: no loop moves or computes anything")
        elif len(model.loops) > 1 and model.specialized:
            worst = max(model.together, key=lambda unit: model.together[unit])
            console.print(
                f"{name}: all its loops at once, an iteration each: {worst} "
                f"{model.together[worst]:,.0f} cycles"
            )


def _of_file(path: Path, shared: int | None, warps: int | None, target: str) -> KernelModel:
    from remora.analysis import disassemble, model, read, resources

    if not path.is_file():
        raise UnknownAssembly(f"there is no file {path}")
    if path.suffix != ".cubin":
        return model(read(path.read_text(), shared=shared, warps=warps, target=target))
    registers, spills = resources(path.read_bytes())
    text = disassemble(path.read_bytes())
    return model(
        read(text, shared=shared, registers=registers, spills=spills, warps=warps, target=target)
    )
