"""``remora opt``: Python passes over an ``.mlir`` file, through Triton's own parser."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from remora.errors import IRParseError

_TARGET_OF_MODULE = re.compile(r'ttg\.target = "([^"]+)"')
_DEFAULT_TARGET = "cuda:90"


def opt(
    file: Annotated[str, typer.Argument(help="The module; - for standard input.")],
    passes: Annotated[
        str,
        typer.Option(
            "-p",
            "--passes",
            help='What to run: "pass{arg=1},package.module:Class" or file.py:Class. '
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
) -> None:
    """Run Python passes over a module and print the result, verified after each.

    The module may be in Triton's form or in MLIR's generic form.
    """
    from remora import host
    from remora.cli.passes import passes_of
    from remora.cli.target import context_of, gpu_target
    from remora.pipeline import run_pass

    host.features()
    name = "standard input" if file == "-" else file
    text = _read(file)
    to_run = passes_of(passes) if passes else []
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
    for module_pass in to_run:
        module = run_pass(module_pass, module, place=f"remora opt {name}")
    if generic:
        typer.echo(host.generic_text(module, locations=locations))
    else:
        typer.echo((str(module) if locations else module.str_nodebug()).rstrip())


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise IRParseError(
            f"the file cannot be read: {error}", where=file, hint="name a text file, or -"
        ) from None
