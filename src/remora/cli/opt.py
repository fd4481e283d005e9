"""``remora opt``: passes over an ``.mlir`` file, Python's and Triton's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.errors import IRParseError, StageFailed

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

    from remora.pipeline.subjects import CompiledPass

_TARGET_OF_MODULE = re.compile(r'ttg\.target = "([^"]+)"')
_DEFAULT_TARGET = "cuda:90"


def opt(
    file: Annotated[str, typer.Argument(help="The module; - for standard input.")],
    passes: Annotated[
        str,
        typer.Option(
            "-p",
            "--passes",
            help='What to run: "pass{arg=1},package.module:Class", file.py:Class, or a stock pass, '
            'with what its binding takes: "common.cse,convert_to_ttgpuir("cuda:90", 4, 32, 1)", '
            'or a native plugin\'s: "Plugin.pass("4")", library.so:pass. '
            "Without it the module is parsed, verified and printed.",
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            help="cuda:90, hip:gfx950, ...: whose dialects to load. The module's own "
            f"ttg.target, else {_DEFAULT_TARGET}, if not given."
        ),
    ] = "",
    generic: Annotated[bool, typer.Option("--generic", help="Print MLIR's generic form.")] = False,
    locations: Annotated[
        bool, typer.Option("--locations", help="Print the location of every operation.")
    ] = False,
    print_after_all: Annotated[
        bool,
        typer.Option(
            "--print-after-all", help="Print the module after each pass, on standard error."
        ),
    ] = False,
    verify_each: Annotated[
        bool,
        typer.Option(
            "--verify-each",
            help="Run each stock pass by itself and verify what it leaves; without it those that "
            "follow each other run together, as in a stage. Python passes are always verified.",
        ),
    ] = False,
) -> None:
    """Run passes over a module and print the result.

    The module may be in Triton's form or in MLIR's generic form.
    """
    from remora import host
    from remora.cli.passes import passes_of
    from remora.host.targets import context_of, gpu_target
    from remora.pipeline import run_pass
    from remora.pipeline.subjects import CompiledPass, describe

    name = "standard input" if file == "-" else file
    text = _read(file)
    to_run = passes_of(passes) if passes else []
    host.features()
    if not target:
        own = _TARGET_OF_MODULE.search(text)
        target = own.group(1) if own else _DEFAULT_TARGET
    context = context_of(gpu_target(target))
    try:
        with host.captured_stderr():  # MLIR's messages are in the error
            if file == "-":
                module = host.parse_text(text, context)
            else:
                module = host.parse_file(file, context)
    except IRParseError as error:
        raise IRParseError(error.what, where=name, hint=error.hint) from None

    def printed(module: Any) -> str:
        if generic:
            return host.generic_text(module, locations=locations)
        return str(module if locations else module.str_nodebug()).rstrip()

    for group in _groups(to_run, alone=verify_each or print_after_all):
        if isinstance(group[0], CompiledPass):
            _run_stock(group, module, name)
        else:
            module = run_pass(group[0], module, place=f"remora opt {name}")
        if print_after_all:
            words = ", ".join(map(describe, group))
            typer.echo(f"// after {words}\n{printed(module)}\n", err=True)
    typer.echo(printed(module))


def _groups(passes: Sequence[ModulePass | CompiledPass], *, alone: bool) -> list[list[Any]]:
    """Stock passes that follow each other, together unless each is to run alone."""
    from remora.pipeline.subjects import CompiledPass

    numbers = {i: i for i in range(len(passes))}
    if not alone:
        for i in range(1, len(passes)):
            if isinstance(passes[i], CompiledPass) and isinstance(passes[i - 1], CompiledPass):
                numbers[i] = numbers[i - 1]
    return [[passes[i] for i in group] for _, group in groupby(numbers, key=numbers.get)]


def _run_stock(passes: Sequence[CompiledPass], module: Any, name: str) -> None:
    """Run stock passes in the module, in place.

    Raises:
        StageFailed: one fails; says which.
    """
    from triton._C.libtriton import ir

    from remora import host
    from remora.pipeline.reproducer import explain, messages

    before = host.generic_text(module)
    manager = ir.pass_manager(module.context)
    for stock in passes:
        stock.add_to(manager)
    with host.captured_stderr() as output:  # MLIR's messages are in the error
        try:
            manager.run(module, "remora")
            failed = False
        except RuntimeError:
            failed = True
        failed = failed or not module.verify()
    if not failed:
        sys.stderr.write("".join(output))
        return
    what, where = explain(before, passes, module.context)
    raise StageFailed(
        f"stock passes failed: {what or messages(''.join(output)) or 'no message'}",
        where=f"{where or ', '.join(p.on_command_line() for p in passes)}, in {name}",
        hint="--print-after-all shows what it got",
    )


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise IRParseError(
            f"the file cannot be read: {error}", where=file, hint="name a text file, or -"
        ) from None
