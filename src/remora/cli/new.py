"""``remora new``: a project to start from."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.errors import PluginError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def new(
    name: Annotated[str, typer.Argument(help="The plugin's name, which is its package's too.")],
    native: Annotated[
        bool, typer.Option("--native", help="A plugin of C++ passes: the kind that there is.")
    ] = False,
) -> None:
    """Write a project for a plugin into a new folder of its name."""
    if not native:
        raise PluginError(
            "a plugin in Python needs no project to start from",
            hint="docs/write-a-plugin.md has one in a file; --native writes a project for C++",
        )
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise PluginError(
            f"{name!r} is not a package's name", hint="use small letters, digits and '_'"
        )
    folder = Path(name)
    if folder.exists():
        raise PluginError(f"{folder} is there already", hint="choose another name or folder")
    _write(files("remora.native") / "template", folder, name)
    typer.echo(f"{folder}: see its README.md; `make PASSES=` builds it without MLIR")


def _write(template: Traversable, folder: Path, name: str) -> None:
    """Copy a folder of the template, with the name put in."""
    for item in template.iterdir():
        if item.is_dir():
            place = Path("src", name) if item.name == "src" else Path(item.name)
            _write(item, folder / place, name)
            continue
        text = item.read_text().replace("@NAME@", name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / item.name).write_text(text.replace("@DISTRIBUTION@", name.replace("_", "-")))
