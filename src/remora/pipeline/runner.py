"""Runs an edited stage: stock passes in segments, Python passes between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remora.errors import (
    InvalidIR,
    IRParseError,
    KernelRenamed,
    LanguageError,
    PassRaised,
    PassReturned,
    PipelineError,
    RemoraError,
)
from remora.host import generic_text, has_use_order, parse_text, shuffle_uses
from remora.pipeline.dialects import load_wanted
from remora.pipeline.edits import Edit, Passes
from remora.pipeline.plan import Plan
from remora.pipeline.reproducer import (
    class_name,
    explain,
    python_pass_on_command_line,
    write_reproducer,
)
from remora.pipeline.stage import Box, PassList, Session, StockPass, anchors
from remora.pipeline.subjects import CompiledPass, describe, load_pass

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

PUBLIC_FUNCTION = re.compile(r'sym_name = "([^"]*)", sym_visibility = "public"')


def run_pass(module_pass: ModulePass, module: Any, *, place: str) -> Any:
    """Run a Python pass over a Triton module and return the new, verified module.

    Args:
        module_pass: the pass.
        module: a ``libtriton.ir.module``; it is left as it was, and returned where
            the pass changed nothing.
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
    names = PUBLIC_FUNCTION.findall(text)
    where = (
        f"pass {describe(module_pass)} ({class_name(module_pass)}), {place}, "
        f"kernel {', '.join(names) or '?'}"
    )
    try:
        context = ir.context()
        load_wanted(context)
        xdsl_module = ir.read(text)
        contents = ir.Contents(xdsl_module) if has_use_order() else None
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
            if new_text == text:
                return module
            new_names = PUBLIC_FUNCTION.findall(new_text)
            if sorted(new_names) != sorted(names):
                raise KernelRenamed(
                    f"the pass changed the public functions from {names} to {new_names}",
                    where=where,
                    hint="Triton finds a kernel by its name; leave public functions theirs",
                )
            new_module = parse_text(new_text, module.context)
            if not new_module.verify():
                raise IRParseError("the module does not verify")
            if contents is not None:
                _restore_uses(contents, module, xdsl_module, new_module)
        except KernelRenamed:
            raise
        except Exception as error:
            raise InvalidIR(
                f"the pass left invalid IR: {getattr(error, 'what', error)}", where=where
            ) from error
    except (PassRaised, PassReturned, InvalidIR, KernelRenamed) as error:
        folder, command = write_reproducer(
            text,
            python_pass_on_command_line(module_pass),
            after=new_text,
            **{"pass": describe(module_pass), "class": class_name(module_pass)},
            arguments=repr(module_pass),
            place=place,
            error=str(error),
        )
        wrapped = type(error)(
            error.what,
            where=error.where,
            hint=(error.hint + "; " if error.hint else "") + f"to see it again: {command}",
        )
        wrapped.reproducer = str(folder)
        raise wrapped from error.__cause__
    return new_module


def _restore_uses(contents: Any, module: Any, xdsl_module: Any, new_module: Any) -> None:
    """Sort the new module's uses as the old one's are."""
    from remora import ir

    old = ir.UseOrder(contents, generic_text(module, locations=False, users=True))
    new = ir.UseOrder(
        ir.Contents(xdsl_module), generic_text(new_module, locations=False, users=True)
    )
    ir.restore_uses(xdsl_module, new_module, old, new, shuffle_uses)


class StockFailed(RemoraError):
    """Stock passes of an edited stage failed: what MLIR said, and which pass, if it is known."""


class Runner(Session):
    """Runs the passes of one stage as a plan says."""

    def __init__(
        self, stage: str, edits: Sequence[Edit], expected: Sequence[StockPass], target: str
    ) -> None:
        self.stage = stage
        self.names = [p.name for p in expected]
        self.plan = Plan.of(list(anchors(list(expected))), edits, target)
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
        """Run what an edit put here: a compiled pass, a Python pass, or nothing."""
        if subject is None:
            return
        if isinstance(subject, CompiledPass):
            subject.adder()  # an unknown one is an error before anything runs
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
        self.passes: list[StockPass | CompiledPass] = []

    def flush(self) -> None:
        """Run them.

        Raises:
            StockFailed: one of them fails, or leaves what the verifier refuses.
        """
        from triton._C.libtriton import ir

        if not self.passes:
            return
        manager = ir.pass_manager(self.box.module.context)
        if self.context_debug:
            manager.enable_debug()
        for stock in self.passes:
            stock.add_to(manager)
        passes, self.passes = self.passes, []
        before = generic_text(self.box.module)
        try:
            manager.run(self.box.module, self.name)
        except RuntimeError as error:
            what, where = explain(before, passes, self.box.module.context)
            raise StockFailed(what, where=where) from error
