"""Runs an edited stage: stock passes in segments, Python passes between them."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora.errors import (
    InvalidIR,
    IRParseError,
    KernelRenamed,
    LanguageError,
    PassRaised,
    PassReturned,
    PipelineError,
)
from remora.host import features, generic_text, has_use_order, parse_text, shuffle_uses
from remora.pipeline.dialects import load_wanted
from remora.pipeline.edits import Check, Edit, Insert, describe, load_pass, trigger_of
from remora.pipeline.stage import Box, PassList, Session, StockPass, anchors, instrument, record

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

_PUBLIC_FUNCTION = re.compile(r'sym_name = "([^"]*)", sym_visibility = "public"')


def run_pass(module_pass: ModulePass, module: Any, *, place: str) -> Any:
    """Run a Python pass over a Triton module and return the new, verified module.

    Args:
        module_pass: the pass.
        module: a ``libtriton.ir.module``; it is left as it was.
        place: where the pass runs, for messages.

    Raises:
        PassRaised, PassReturned, InvalidIR, KernelRenamed: the pass failed; each
            names the pass, the place and a folder with a reproducer. A
            ``LanguageError`` that the pass raises goes through as it is: it
            speaks of the kernel, not of the pass.
    """
    from remora import ir

    text = generic_text(module)
    new_text = text
    names = _PUBLIC_FUNCTION.findall(text)
    where = (
        f"pass {describe(module_pass)} ({_class_name(module_pass)}), {place}, "
        f"kernel {', '.join(names) or '?'}"
    )
    try:
        context = ir.context()
        load_wanted(context)
        xdsl_module = ir.read(text)
        uses = _use_order(xdsl_module, module)
        try:
            returned = module_pass.apply(context, xdsl_module)
        except (LanguageError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, and errors of xDSL that are no Exception
            raise PassRaised(
                f"the pass raised {type(error).__name__}: {error}", where=where
            ) from error
        if returned is not None:
            raise PassReturned(
                f"the pass returned {type(returned).__name__}",
                where=where,
                hint="edit the module in place and return None",
            )
        try:
            new_text = ir.write(xdsl_module)
            new_names = _PUBLIC_FUNCTION.findall(new_text)
            if sorted(new_names) != sorted(names):
                raise KernelRenamed(
                    f"the pass changed the public functions from {names} to {new_names}",
                    where=where,
                    hint="Triton finds a kernel by its name; leave public functions theirs",
                )
            new_module = parse_text(new_text, module.context)
            if not new_module.verify():
                raise IRParseError("the module does not verify")
            if uses is not None:
                after = ir.UseOrder(
                    xdsl_module, generic_text(new_module, locations=False, users=True)
                )
                ir.restore_uses(xdsl_module, new_module, uses, after, shuffle_uses)
        except KernelRenamed:
            raise
        except Exception as error:
            raise InvalidIR(
                f"the pass left invalid IR: {getattr(error, 'what', error)}", where=where
            ) from error
    except (PassRaised, PassReturned, InvalidIR, KernelRenamed) as error:
        folder, command = _write_reproducer(module_pass, place, text, new_text, str(error))
        wrapped = type(error)(
            error.what,
            where=error.where,
            hint=(error.hint + "; " if error.hint else "") + f"to see it again: {command}",
        )
        wrapped.reproducer = str(folder)
        raise wrapped from error.__cause__
    return new_module


def _use_order(xdsl_module: Any, module: Any) -> Any:
    """The order of the module's uses, where this libtriton can restore it."""
    from remora import ir

    if not has_use_order():
        return None
    return ir.UseOrder(xdsl_module, generic_text(module, locations=False, users=True))


def _write_reproducer(
    module_pass: ModulePass, place: str, before: str, after: str, error: str
) -> tuple[Path, str]:
    """A folder with the module before the pass, and the command that runs the pass over it."""
    from importlib.metadata import version

    folder = Path(tempfile.mkdtemp(prefix="remora-reproducer-"))
    command = f"remora opt {folder / 'before.mlir'} -p {shlex.quote(_on_command_line(module_pass))}"
    (folder / "before.mlir").write_text(before)
    if after != before:
        (folder / "after.mlir").write_text(after)
    info = {
        "pass": describe(module_pass),
        "class": _class_name(module_pass),
        "arguments": repr(module_pass),
        "place": place,
        "error": error,
        "triton": features().version,
        "xdsl": version("xdsl"),
        "command": command,
    }
    (folder / "info.json").write_text(json.dumps(info, indent=2) + "\n")
    return folder, command


def _class_name(module_pass: ModulePass) -> str:
    cls = type(module_pass)
    return f"{cls.__module__}:{cls.__qualname__}"


def _on_command_line(module_pass: ModulePass) -> str:
    """The pass with its arguments, as ``remora opt -p`` takes it.

    A pass of a script, or of a module beside one, is named by its file: it
    cannot be imported by name elsewhere.
    """
    cls = type(module_pass)
    name = _class_name(module_pass)
    if "." not in cls.__module__:
        with suppress(TypeError, OSError):
            name = f"{os.path.abspath(inspect.getfile(cls))}:{cls.__qualname__}"
    try:
        arguments = str(module_pass.pipeline_pass_spec()).removeprefix(module_pass.name)
    except Exception:  # not a dataclass of plain fields; info.json has its repr
        arguments = ""
    return name + arguments


class Runner(Session):
    """Runs the stock passes of one stage, and the inserted ones at their places."""

    def __init__(self, stage: str, inserts: Sequence[Insert], expected: Sequence[StockPass]):
        self.stage = stage
        self.names = [p.name for p in expected]
        self.due: dict[int, list[Insert]] = {}
        names = list(anchors(list(expected)))
        for insert in inserts:
            self.due.setdefault(insert.position(names), []).append(insert)
        self.done = 0

    def debug_enabled(self, passes: PassList) -> bool:
        from triton._C.libtriton import ir

        enabled: bool = ir.pass_manager(passes.context).enable_debug()
        return enabled

    def run(self, passes: PassList, module: Any, name: str) -> None:
        end = self.done + len(passes.passes)
        if self.names[self.done : end] != [p.name for p in passes.passes]:
            raise PipelineError(
                f"the stage {self.stage} ran other passes than its dry run: "
                f"{[p.name for p in passes.passes]}",
                hint="its passes depend on the module; report it with the Triton release",
            )
        box = module if isinstance(module, Box) else Box(module)
        segment: list[StockPass] = []
        for stock in passes.passes:
            if self.done in self.due:
                self._stock(segment, passes, box, name)
                segment = []
                self._python(box)
            segment.append(stock)
            self.done += 1
        self._stock(segment, passes, box, name)
        if self.done == len(self.names):
            self._python(box)

    def _stock(self, segment: list[StockPass], passes: PassList, box: Box, name: str) -> None:
        from triton._C.libtriton import ir

        if not segment:
            return
        manager = ir.pass_manager(box.module.context)
        if passes.debug:
            manager.enable_debug()
        for stock in segment:
            stock.add_to(manager)
        manager.run(box.module, name)

    def _python(self, box: Box) -> None:
        for insert in self.due.pop(self.done, []):
            module_pass = load_pass(insert.python_pass)
            place = f"{insert.place} (pipeline {insert.pipeline})"
            box.module = run_pass(module_pass, box.module, place=place)


def edited_stage(
    name: str, stage: Callable[[Any, Any], Any], edits: Sequence[Edit], seen: set[str]
) -> Callable[[Any, Any], Any]:
    """The function of a stage with passes inserted and checks made.

    A module that holds none of the passes' triggers goes through the stock
    function, untouched. ``seen``: the triggers that this compilation's modules
    held so far, shared by its stages.
    """
    inserts = [e for e in edits if isinstance(e, Insert)]
    checks = [e for e in edits if isinstance(e, Check)]

    def run(module: Any, metadata: Any) -> Any:
        text = generic_text(module, locations=False) if any(map(_trigger, edits)) else ""
        seen.update(t for t in map(_trigger, edits) if t in text)
        due = [c for c in checks if not c.trigger or c.trigger in seen]
        before = generic_text(module) if due else ""
        result = with_passes([i for i in inserts if _trigger(i) in text], module, metadata)
        for check in due:
            check.run(before, metadata)
        return result

    def with_passes(wanted: Sequence[Insert], module: Any, metadata: Any) -> Any:
        if not wanted:
            return stage(module, metadata)
        runner = Runner(name, wanted, record(stage))
        box = Box(module)
        result = instrument(stage, runner)(box, metadata)
        if runner.due:
            raise PipelineError(
                f"the stage {name} ended before its passes {runner.names[runner.done :]}",
                hint="its passes depend on the module; report it with the Triton release",
            )
        return box.module if isinstance(result, Box) else result

    return run


def _trigger(edit: Edit) -> str:
    return trigger_of(edit.python_pass) if isinstance(edit, Insert) else edit.trigger
