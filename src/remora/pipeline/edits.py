"""Pipelines: what is to be changed in the stages, as values."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from remora.errors import PipelineError
from remora.pipeline.conditions import ALWAYS, Condition, condition
from remora.pipeline.content import content_hash
from remora.pipeline.subjects import CompiledPass, PassRef, describe, trigger_of

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

Side = Literal["before", "after", "start", "end"]
Subject = Any  # PassRef | CompiledPass | ModulePass; the latter comes from xDSL

# Threads that compile side by side ask for the same key: one makes it, the others wait. Six that
# made it at a time took 8.7 s (host of an H200).
_hashing = threading.RLock()


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of one stage.

    stage: its name. pipeline: of which the edit is. when: the condition.
    """

    stage: str
    pipeline: str = ""
    when: Condition = ALWAYS

    @property
    def trigger(self) -> str:
        """Text that the stage's module has to contain for the edit to hold."""
        return ""

    @property
    def subject(self) -> Any:
        """What can change the code, beside the place: joins the key."""
        return None

    @property
    def place(self) -> str:
        """The place in words, for messages."""
        return self.stage

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} {self.place}"


@dataclass(frozen=True, kw_only=True)
class OfPass(Edit):
    """An edit that runs one pass."""

    subject_: Subject

    @property
    def subject(self) -> Subject:
        """The pass."""
        return self.subject_

    @property
    def trigger(self) -> str:
        """See ``Edit``."""
        return trigger_of(self.subject)


@dataclass(frozen=True, kw_only=True)
class Insert(OfPass):
    """Run a pass at a place of a stage's passes.

    side: before or after ``anchor``, or at the start or the end of the stage.
    anchor: the name of a stock pass within the stage, as ``Pipeline.insert`` takes it.
    """

    side: Side
    anchor: str = ""

    @property
    def place(self) -> str:
        """See ``Edit``."""
        if self.anchor:
            return f"{self.side} {self.stage}/{self.anchor}"
        return f"at the {self.side} of {self.stage}"

    def __str__(self) -> str:
        return f"insert of {describe(self.subject)} {self.place}"


@dataclass(frozen=True, kw_only=True)
class Disable(Edit):
    """Leave a stock pass out.

    trigger_: text that the stage's module has to contain.
    """

    anchor: str
    trigger_: str = ""

    @property
    def trigger(self) -> str:
        """See ``Edit``."""
        return self.trigger_

    @property
    def place(self) -> str:
        """See ``Edit``."""
        return f"{self.stage}/{self.anchor}"


@dataclass(frozen=True, kw_only=True)
class Replace(OfPass):
    """Run a pass in the place of a stock pass."""

    anchor: str

    @property
    def place(self) -> str:
        """See ``Edit``."""
        return f"{self.stage}/{self.anchor}"

    def __str__(self) -> str:
        return f"replace {self.place} by {describe(self.subject)}"


@dataclass(frozen=True, kw_only=True)
class Passes(Edit):
    """Run these passes, and no others, in the place of a stage's own."""

    subjects: tuple[Subject, ...]

    @property
    def subject(self) -> tuple[Subject, ...]:
        """The passes."""
        return self.subjects

    def __str__(self) -> str:
        return f"passes of {self.stage}: {', '.join(map(describe, self.subjects))}"


@dataclass(frozen=True, kw_only=True)
class Override(Edit):
    """Call ``function(value, compile_)`` in the place of a stage.

    value: what the stage gets: a module, text. compile_: the stage itself, of a
    value. What the function returns is what the stage makes. trigger_: text that
    the value has to contain for the function to be called.
    """

    function: Callable[[Any, Callable[[Any], Any]], Any]
    trigger_: str = ""

    @property
    def trigger(self) -> str:
        """See ``Edit``."""
        return self.trigger_

    @property
    def subject(self) -> Any:
        """The function."""
        return self.function

    def __str__(self) -> str:
        return f"override of {self.stage} by {describe(self.function)}"


@dataclass(frozen=True, kw_only=True)
class Check(Edit):
    """Look at what a stage made, and refuse it by raising.

    function: ``"package.module:function"`` of (the stage's input as generic
        text, the compilation's metadata); what it returns is not used.
    trigger_: the check runs only for kernels whose module contained this at the
        start of this stage or of an earlier one that the pipeline edits.
    """

    function: str
    trigger_: str = ""

    @property
    def trigger(self) -> str:
        """See ``Edit``."""
        return self.trigger_

    @property
    def subject(self) -> PassRef:
        """The function, as a reference."""
        return PassRef(self.function)

    @property
    def place(self) -> str:
        """See ``Edit``."""
        return f"after {self.stage}"

    def run(self, text: str, metadata: Any) -> None:
        """Call the function."""
        module, _, name = self.function.partition(":")
        getattr(importlib.import_module(module), name)(text, metadata)

    def __str__(self) -> str:
        return f"check {self.function} {self.place}"


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Edits of Triton's stages. A value: every method returns a new pipeline.

    Compared by identity; ``key`` covers the content of all that it runs.
    Pipelines add up: ``a + b`` makes a's edits first, then b's; at one place a's
    passes run before b's. Edits that contradict each other are an error, when a
    stage is compiled, that names both.

    content: what else joins the key, for kernels that depend on more than edits.
    """

    name: str
    edits: tuple[Edit, ...] = ()
    content: str = ""
    _key: list[str] = field(default_factory=list, repr=False)

    def _with(self, edit: Edit) -> Pipeline:
        return replace(self, edits=(*self.edits, edit), _key=[])

    def __add__(self, other: Pipeline) -> Pipeline:
        if not isinstance(other, Pipeline):
            return NotImplemented
        name, content = f"{self.name} + {other.name}", self.content + other.content
        return Pipeline(name, (*self.edits, *other.edits), content)

    def when(
        self,
        *,
        target: str | tuple[str, ...] = (),
        triton: str | tuple[str, ...] = (),
        kernel: str = "",
        module: Callable[[str], bool] | None = None,
    ) -> Pipeline:
        """The same edits, for some compilations only.

        Args:
            target: ``"cuda"``, ``"cuda:90"``, or a tuple of such.
            triton: releases, as patterns: ``"3.9.*"``.
            kernel: a kernel's name, as a pattern.
            module: a predicate on the module's text, as the edited stage gets it.
        """
        added = condition(target, triton, kernel, module)
        edits = tuple(replace(e, when=e.when.and_(added)) for e in self.edits)
        return replace(self, edits=edits, _key=[])

    def insert(
        self,
        subject: PassRef | CompiledPass | ModulePass,
        *,
        before: str | None = None,
        after: str | None = None,
        at: str | None = None,
    ) -> Pipeline:
        """Run a pass at a place.

        Args:
            subject: an ``xdsl.passes.ModulePass``, a ``PassRef`` to one, a stock
                pass (``remora.stock("common.cse")``), or one of a native plugin.
            before, after: an anchor ``stage/pass`` or ``stage/pass#n``, n from 1
                where the stage runs the pass more than once.
            at: ``"stage/start"`` or ``"stage/end"``.

        Inserts at one place run in the order in which they were made.

        Raises:
            PipelineError: not exactly one place, or one that is not so written.
        """
        places = [("before", before), ("after", after), ("at", at)]
        given = [(side, place) for side, place in places if place is not None]
        if len(given) != 1:
            raise PipelineError(
                "insert takes exactly one of before=, after= and at=",
                where=f"pipeline {self.name!r}, insert of {describe(subject)}",
            )
        side, place = given[0]
        stage, anchor = self._split(f"insert of {describe(subject)}", place, side)
        self._check_subject(subject)
        where: Side = "before" if side == "before" else "after"
        if side == "at":
            where, anchor = ("start" if anchor == "start" else "end"), ""
        return self._with(
            Insert(subject_=subject, stage=stage, side=where, anchor=anchor, pipeline=self.name)
        )

    def disable(self, anchor: str, *, trigger: str = "") -> Pipeline:
        """Leave the stock pass ``stage/pass`` or ``stage/pass#n`` out.

        trigger: text that the stage's module has to contain for this to hold.
        """
        stage, name = self._split("disable", anchor)
        return self._with(Disable(stage=stage, anchor=name, trigger_=trigger, pipeline=self.name))

    def replace(self, anchor: str, subject: PassRef | CompiledPass | ModulePass) -> Pipeline:
        """Run a pass in the place of the stock pass ``anchor``."""
        stage, name = self._split("replace", anchor)
        self._check_subject(subject)
        return self._with(Replace(subject_=subject, stage=stage, anchor=name, pipeline=self.name))

    def passes(self, stage: str, *subjects: PassRef | CompiledPass | ModulePass) -> Pipeline:
        """Run these passes, and no others, in the place of all stock passes of a stage.

        What the stage does beside running passes (metadata, for one) stays.
        """
        for subject in subjects:
            self._check_subject(subject)
        return self._with(Passes(stage=stage, subjects=subjects, pipeline=self.name))

    def override(
        self, stage: str, function: Callable[[Any, Callable[[Any], Any]], Any], *, trigger: str = ""
    ) -> Pipeline:
        """Call ``function(value, compile_)`` in the place of a stage: see ``Override``.

        With it the text of ``llir``, ``ptx`` and ``amdgcn`` and the binaries can
        be edited: ``lambda text, compile_: edit(compile_(text))``.
        """
        if not callable(function):
            raise PipelineError(
                f"{function!r} is not a function", where=f"pipeline {self.name!r}, override {stage}"
            )
        return self._with(
            Override(stage=stage, function=function, trigger_=trigger, pipeline=self.name)
        )

    def check(self, stage: str, function: str, *, trigger: str = "") -> Pipeline:
        """Look at what a stage made: see ``Check``."""
        return self._with(
            Check(stage=stage, function=function, trigger_=trigger, pipeline=self.name)
        )

    def _split(self, what: str, place: str, side: str = "") -> tuple[str, str]:
        """Stage and pass of an anchor."""
        stage, slash, anchor = str(place).partition("/")
        if not (stage and slash and anchor) or (side == "at" and anchor not in ("start", "end")):
            raise PipelineError(
                f"{side}={place!r} is not a place" if side else f"{place!r} is not an anchor",
                where=f"pipeline {self.name!r}, {what}",
                hint='an anchor is "stage/pass" or "stage/pass#n"; '
                'at= takes "stage/start" or "stage/end"',
            )
        return stage, anchor

    def _check_subject(self, subject: Subject) -> None:
        a_pass = hasattr(subject, "apply") and not isinstance(subject, type)
        if not isinstance(subject, (PassRef, CompiledPass)) and not a_pass:
            raise PipelineError(
                f"{subject!r} is not a pass",
                where=f"pipeline {self.name!r}",
                hint="derive from remora.ModulePass and pass an instance, or remora.stock(name)",
            )

    @property
    def key(self) -> str:
        """A hash over the content of every edit: passes, functions, arguments, places."""
        if not self._key:
            with _hashing:
                if not self._key:
                    self._key.append(content_hash(self.edits) + self.content)
        return self._key[0]
