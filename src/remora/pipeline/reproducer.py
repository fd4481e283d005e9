"""What a failure leaves: a folder with the module, and the command that shows it again."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora.errors import RemoraError
from remora.host import captured_stderr, features, parse_text
from remora.pipeline.stage import StockPass
from remora.pipeline.subjects import CompiledPass

if TYPE_CHECKING:
    from xdsl.passes import ModulePass


def write_reproducer(
    before: str, on_command_line: str, *, after: str = "", **info: str
) -> tuple[Path, str]:
    """A folder with a module, and the command that runs passes over it.

    Args:
        before: the module's text. after: what a pass made of it, if it wrote anything.
        on_command_line: the passes, as ``remora opt -p`` takes them.
        info: what else ``info.json`` is to say.
    """
    folder = Path(tempfile.mkdtemp(prefix="remora-reproducer-"))
    command = f"remora opt {folder / 'before.mlir'} -p {shlex.quote(on_command_line)}"
    (folder / "before.mlir").write_text(before)
    if after and after != before:
        (folder / "after.mlir").write_text(after)
    versions = {"triton": features().version, "xdsl": version("xdsl")}
    (folder / "info.json").write_text(
        json.dumps(info | versions | {"command": command}, indent=2) + "\n"
    )
    return folder, command


def class_name(module_pass: ModulePass) -> str:
    """``package.module:Class`` of a pass."""
    cls = type(module_pass)
    return f"{cls.__module__}:{cls.__qualname__}"


def python_pass_on_command_line(module_pass: ModulePass) -> str:
    """The pass with its arguments, as ``remora opt -p`` takes it.

    A pass of a script, or of a module beside one, is named by its file: it
    cannot be imported by name elsewhere.
    """
    cls = type(module_pass)
    name = class_name(module_pass)
    if "." not in cls.__module__:
        with suppress(TypeError, OSError):
            name = f"{os.path.abspath(inspect.getfile(cls))}:{cls.__qualname__}"
    try:
        arguments = str(module_pass.pipeline_pass_spec()).removeprefix(module_pass.name)
    except Exception:  # not a dataclass of plain fields; info.json has its repr
        arguments = ""
    return name + arguments


def explain(
    before: str, passes: Sequence[StockPass | CompiledPass], context: Any
) -> tuple[str, str]:
    """Run stock passes one by one, to see which one fails: what MLIR says, and where.

    Args:
        before: the module's text.
        passes: those of which one failed.

    Returns:
        The messages, and the pass with the command that shows it again; "" for
        what cannot be seen this way.
    """
    from triton._C.libtriton import ir

    with captured_stderr() as output, suppress(RemoraError):
        module = parse_text(before, context)
        text = before
        for stock in passes:
            text = str(module)
            manager = ir.pass_manager(context)
            stock.add_to(manager)
            try:
                manager.run(module, "remora")
            except RuntimeError:
                break
        else:
            return "", ""
    found = messages("".join(output))
    _, command = write_reproducer(
        text, stock.on_command_line(), **{"pass": stock.name, "error": found}
    )
    return found, f"the stock pass {stock.name}; to see it again: {command}"


def messages(printed: str) -> str:
    """The errors among what MLIR printed."""
    found = [text for text in re.findall("error: (.*)", printed) if "pass pipeline" not in text]
    return "; ".join(list(dict.fromkeys(found))[:3])
