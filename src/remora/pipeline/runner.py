"""Runs an edited stage: stock passes in segments, Python passes between them."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora.errors import (
    InvalidIR,
    IRParseError,
    KernelRenamed,
    LanguageError,
    OverrideReturned,
    PassRaised,
    PassReturned,
    PipelineError,
    StageFailed,
)
from remora.host import (
    captured_stderr,
    features,
    generic_text,
    has_use_order,
    parse_text,
    shuffle_uses,
)
from remora.pipeline.dialects import load_wanted
from remora.pipeline.edits import Check, Edit, Insert, Override, Passes
from remora.pipeline.plan import Plan
from remora.pipeline.stage import Box, PassList, Session, StockPass, anchors, instrument, record
from remora.pipeline.subjects import StockRef, describe, find_stock, load_pass

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
    """Runs the passes of one stage as a plan says."""

    def __init__(self, stage: str, edits: Sequence[Edit], expected: Sequence[StockPass]):
        self.stage = stage
        self.names = [p.name for p in expected]
        self.plan = Plan.of(list(anchors(list(expected))), edits)
        self.pipelines = ", ".join(dict.fromkeys(e.pipeline for e in edits))
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
        segment = _Segment(self, passes, box, name)
        for stock in passes.passes:
            self._due(segment)
            if self.done in self.plan.instead:
                self._subject(self.plan.instead[self.done], segment)
            else:
                segment.passes.append(stock)
            self.done += 1
        if self.done == len(self.names):
            self._due(segment)
        segment.flush()

    def _due(self, segment: _Segment) -> None:
        for subject in self.plan.due.pop(self.done, []):
            self._subject(subject, segment)

    def _subject(self, subject: Any, segment: _Segment) -> None:
        """Run what an edit put here: a stock pass, a Python pass, or nothing."""
        if subject is None:
            return
        if isinstance(subject, StockRef):
            find_stock(subject.name)  # an unknown one is an error before anything runs
            segment.passes.append(subject)
            return
        segment.flush()
        anchor = self.names[self.done] if self.done < len(self.names) else "the end"
        edit = next(e for e in self.plan.edits if _holds(e, subject))
        place = edit.place if not isinstance(edit, Passes) else f"{self.stage}, at {anchor}"
        place = f"{place} (pipeline {edit.pipeline})"
        segment.box.module = run_pass(load_pass(subject), segment.box.module, place=place)


def _holds(edit: Edit, subject: Any) -> bool:
    subjects = edit.subject if isinstance(edit, Passes) else (edit.subject,)
    return any(s is subject for s in subjects)


class _Segment:
    """Stock passes that follow each other, until something else has to run."""

    def __init__(self, runner: Runner, passes: PassList, box: Box, name: str) -> None:
        self.runner = runner
        self.context_debug = passes.debug
        self.box = box
        self.name = name
        self.passes: list[StockPass | StockRef] = []

    def flush(self) -> None:
        """Run them.

        Raises:
            StageFailed: one of them fails, or leaves what the verifier refuses.
        """
        from triton._C.libtriton import ir

        if not self.passes:
            return
        manager = ir.pass_manager(self.box.module.context)
        if self.context_debug:
            manager.enable_debug()
        for stock in self.passes:
            stock.add_to(manager)
        names, self.passes = [s.name for s in self.passes], []
        changing = [
            e for e in self.runner.plan.edits if not isinstance(e, (Insert, Check, Override))
        ]
        if not changing:
            manager.run(self.box.module, self.name)
            return
        with captured_stderr() as output:
            try:
                manager.run(self.box.module, self.name)
                failed = False
            except RuntimeError:
                failed = True
        printed = "".join(output)
        if not failed:
            sys.stderr.write(printed)
            return
        messages = [m for m in re.findall(r"error: (.*)", printed) if "pass pipeline" not in m]
        raise StageFailed(
            "stock passes failed in an edited stage: " + ("; ".join(messages[:3]) or "no message"),
            where=f"{self.runner.stage}, among {', '.join(names)}; "
            f"edits: {'; '.join(map(str, changing))} (pipeline {self.runner.pipelines})",
            hint="a later pass may need what the edit left out",
        )


@dataclass
class Compilation:
    """What the edited stages of one compilation share.

    by_name: whether an edit asks for the kernel's name. seen: the triggers that
    its modules held so far. kernels: its public functions, if asked for.
    """

    by_name: bool = False
    seen: set[str] = field(default_factory=set)
    kernels: list[str] = field(default_factory=list)


_KINDS = {
    "ttir": "module", "glir": "module", "ttgir": "module", "llir": "str", "ptx": "str",
    "amdgcn": "str", "cubin": "bytes", "hsaco": "bytes",
}  # fmt: skip


def edited_stage(
    name: str,
    stage: Callable[[Any, Any], Any],
    edits: Sequence[Edit],
    compilation: Compilation,
) -> Callable[[Any, Any], Any]:
    """The function of a stage with its edits.

    A module for which no edit of the passes holds goes through the stock
    function, untouched.
    """
    needs_text = any(e.trigger or e.when.needs_module for e in edits)

    def run(value: Any, metadata: Any) -> Any:
        text = ""
        if not isinstance(value, (str, bytes)) and (needs_text or compilation.by_name):
            text = generic_text(value, locations=False)
            compilation.kernels = _PUBLIC_FUNCTION.findall(text) or compilation.kernels
        elif isinstance(value, str):
            text = value
        compilation.seen.update(e.trigger for e in edits if e.trigger and e.trigger in text)
        held = [e for e in edits if e.when.allows_module(compilation.kernels, text)]
        checks = [
            e
            for e in held
            if isinstance(e, Check) and (not e.trigger or e.trigger in compilation.seen)
        ]
        before = generic_text(value) if checks and not isinstance(value, (str, bytes)) else text

        def compile_(given: Any) -> Any:
            return with_passes(
                [e for e in held if not isinstance(e, (Check, Override)) and e.trigger in text],
                given,
                metadata,
            )

        whole: Callable[[Any], Any] = compile_
        for override in held:
            if isinstance(override, Override):
                whole = _overridden(override, whole)
        result = whole(value)
        for check in checks:
            check.run(before, metadata)
        return result

    def with_passes(wanted: Sequence[Edit], module: Any, metadata: Any) -> Any:
        if not wanted:
            return stage(module, metadata)
        runner = Runner(name, wanted, record(stage))
        box = Box(module)
        result = instrument(stage, runner)(box, metadata)
        if runner.plan.due:
            raise PipelineError(
                f"the stage {name} ended before its passes {runner.names[runner.done :]}",
                hint="its passes depend on the module; report it with the Triton release",
            )
        return box.module if isinstance(result, Box) else result

    return run


def _overridden(override: Override, compile_: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A stage's function with another in its place, which gets the first."""

    def run(value: Any) -> Any:
        from triton._C.libtriton import ir

        result = override.function(value, compile_)
        kinds = {"module": ir.module, "str": str, "bytes": bytes}
        kind = _KINDS.get(override.stage)
        if kind is not None and not isinstance(result, kinds[kind]):
            raise OverrideReturned(
                f"the function returned {type(result).__name__}, the stage makes {kind}",
                where=f"{override} (pipeline {override.pipeline})",
                hint="return what compile_(value) returns, or the like",
            )
        return result

    return run
