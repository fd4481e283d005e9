"""The command ``remora``: one module for each of its commands."""

from __future__ import annotations

import importlib
import sys

import typer

from remora import __version__
from remora.errors import RemoraError

# Name of the command, and the function behind it. Its module imports neither
# Triton nor xDSL at the top, so that `remora --help` is quick.
_COMMANDS = {
    "demo": "remora.cli.demo:demo",
    "list": "remora.cli.list:list_plugins",
    "doctor": "remora.cli.doctor:doctor",
    "pipeline": "remora.cli.pipeline:pipeline",
    "opt": "remora.cli.opt:opt",
    "compile": "remora.cli.compile:compile_kernel",
    "bounds": "remora.cli.bounds:bounds",
    "run": "remora.cli.run:run",
    "new": "remora.cli.new:new",
}


def _version(value: bool) -> None:
    if value:
        typer.echo(f"remora {__version__}")
        raise typer.Exit


def _callback(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Compiler plugins for stock Triton, written in Python."""


def application() -> typer.Typer:
    """The typer application with every command."""
    app = typer.Typer(
        name="remora",
        callback=_callback,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, target in _COMMANDS.items():
        module, _, function = target.partition(":")
        command = getattr(importlib.import_module(module), function)
        settings = getattr(command, "context_settings", None)
        app.command(name, context_settings=settings)(command)
    return app


def main() -> None:
    """Entry point. An error of the catalogue is printed as text, with exit code 1."""
    try:
        application()(prog_name="remora")
    except Exception as error:
        known = RemoraError.of(error)
        if known is None:
            raise
        print_error(known)
        sys.exit(1)


def print_error(error: RemoraError) -> None:
    """Print what, where and the way out on standard error."""
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("error: ", "bold red"), error.what)
    for label, value in (("where", error.where), ("way out", error.hint)):
        if value:
            text.append(f"\n  {label}: ", "bold").append(value)
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)
