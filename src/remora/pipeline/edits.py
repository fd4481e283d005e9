"""Pipelines: what is to be changed in the stages, as values."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from remora.errors import AnchorNotFound, PipelineError
from remora.pipeline.content import content_hash

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

Side = Literal["before", "after", "start", "end"]


@dataclass(frozen=True)
class PassRef:
    """A Python pass by name: ``"package.module:Class"``, imported when it first runs.

    Keeps xDSL, and the pass, out of a process that compiles nothing with it.
    ``trigger``: the pass runs only over modules whose text contains this.
    ``also``: modules, beside the pass's own, whose packages' content can change
    what the pass does.
    """

    target: str
    arguments: tuple[tuple[str, Any], ...] = ()
    trigger: str = ""
    also: tuple[str, ...] = ()

    @property
    def module_name(self) -> str:
        """The module that defines the pass."""
        return self.target.partition(":")[0]

    def load(self) -> ModulePass:
        """Import the class and make the pass.

        Raises:
            PipelineError: it cannot be imported, or does not take the arguments.
        """
        module, _, name = self.target.partition(":")
        try:
            cls = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            raise PipelineError(
                f"the pass {self.target!r} cannot be imported: {type(error).__name__}: {error}",
                hint='write "package.module:Class"',
            ) from error
        try:
            instance: ModulePass = cls(**dict(self.arguments))
        except Exception as error:
            raise PipelineError(
                f"the pass {self.target!r} cannot be made: {type(error).__name__}: {error}",
                where=f"with the arguments {dict(self.arguments)}",
                hint="arguments are the fields of the pass",
            ) from error
        return instance


def load_pass(value: PassRef | ModulePass) -> ModulePass:
    """The pass itself."""
    return value.load() if isinstance(value, PassRef) else value


def trigger_of(value: PassRef | ModulePass | Check) -> str:
    """Text that a module has to contain for an edit to hold for it; "" for every module."""
    trigger: str = getattr(value, "trigger", "")
    return trigger


@dataclass(frozen=True)
class Insert:
    """Run a Python pass at a place of a stage.

    stage: ``ttir``, ``ttgir`` or ``llir`` (its MLIR part).
    side: before or after ``anchor``, or at the start or the end of the stage.
    anchor: the name of a stock pass within the stage, as ``Pipeline.insert`` takes it.
    pipeline: the name of the pipeline that it was made for.
    """

    python_pass: PassRef | ModulePass
    stage: str
    side: Side
    anchor: str = ""
    pipeline: str = ""

    @property
    def place(self) -> str:
        """The place in words, for messages."""
        return (
            f"{self.side} {self.stage}/{self.anchor}"
            if self.anchor
            else (f"at the {self.side} of {self.stage}")
        )

    def position(self, anchors: Sequence[str]) -> int:
        """Where in a stage's passes, 0 for before the first.

        Raises:
            AnchorNotFound: the stage has no such pass, or has it several times.
        """
        if not anchors:
            raise AnchorNotFound(
                f"the stage {self.stage} runs no pass for this target and language",
                where=f"insert of {describe(self.python_pass)} {self.place}",
                hint="name a stage that runs passes, as ttgir does",
            )
        if self.side == "start":
            return 0
        if self.side == "end":
            return len(anchors)
        if self.anchor not in anchors:
            several = [a for a in anchors if a.partition("#")[0] == self.anchor]
            near = several or difflib.get_close_matches(self.anchor, anchors, n=3, cutoff=0.4)
            problem = "runs more than once" if several else "does not exist"
            raise AnchorNotFound(
                f"the anchor {self.stage}/{self.anchor} {problem} in this target and release",
                where=f"insert of {describe(self.python_pass)} {self.place}",
                hint=(
                    "nearest: " + ", ".join(f"{self.stage}/{a}" for a in near)
                    if near
                    else f"the stage {self.stage} runs: {', '.join(anchors)}"
                ),
            )
        index = anchors.index(self.anchor)
        return index if self.side == "before" else index + 1


@dataclass(frozen=True)
class Check:
    """Look at what a stage made, and refuse it by raising.

    function: ``"package.module:function"`` of (the stage's input as generic
        text, the compilation's metadata); what it returns is not used.
    trigger: the check runs only for kernels whose module contained this at the
        start of this stage or of an earlier one that the pipeline edits.
    """

    function: str
    stage: str
    trigger: str = ""

    @property
    def place(self) -> str:
        """The place in words, for messages."""
        return f"after {self.stage}"

    def run(self, text: str, metadata: Any) -> None:
        """Call the function."""
        module, _, name = self.function.partition(":")
        getattr(importlib.import_module(module), name)(text, metadata)


Edit = Insert | Check


def describe(value: Any) -> str:
    """A pass or a function in a few words: its name, or its class."""
    if isinstance(value, PassRef):
        return value.target
    if isinstance(value, str):
        return value
    return getattr(value, "name", None) or type(value).__name__


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Edits of Triton's stages. A value: every method returns a new pipeline.

    Compared by identity; ``key`` covers the content of all that it runs.
    """

    name: str
    edits: tuple[Edit, ...] = ()
    _key: list[str] = field(default_factory=list, repr=False)

    def insert(
        self,
        python_pass: PassRef | ModulePass,
        *,
        before: str | None = None,
        after: str | None = None,
        at: str | None = None,
    ) -> Pipeline:
        """Run a Python pass at a place.

        Args:
            python_pass: an ``xdsl.passes.ModulePass``, or a ``PassRef`` to one.
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
                where=f"pipeline {self.name!r}, insert of {describe(python_pass)}",
            )
        side, place = given[0]
        stage, slash, anchor = place.partition("/")
        if not (stage and slash and anchor) or (side == "at" and anchor not in ("start", "end")):
            raise PipelineError(
                f"{side}={place!r} is not a place",
                where=f"pipeline {self.name!r}, insert of {describe(python_pass)}",
                hint='before= and after= take "stage/pass" or "stage/pass#n", '
                'at= takes "stage/start" or "stage/end"',
            )
        if not isinstance(python_pass, PassRef) and not hasattr(python_pass, "apply"):
            raise PipelineError(
                f"{python_pass!r} is not a pass",
                where=f"pipeline {self.name!r}",
                hint="derive from remora.ModulePass and pass an instance",
            )
        where: Side = "before" if side == "before" else "after"
        if side == "at":
            where, anchor = ("start" if anchor == "start" else "end"), ""
        edit = Insert(python_pass, stage, where, anchor, self.name)
        return replace(self, edits=(*self.edits, edit), _key=[])

    def check(self, stage: str, function: str, *, trigger: str = "") -> Pipeline:
        """Look at what a stage made: see ``Check``."""
        return replace(self, edits=(*self.edits, Check(function, stage, trigger)), _key=[])

    @property
    def key(self) -> str:
        """A hash over the content of every pass, its arguments and its place."""
        if not self._key:
            self._key.append(
                content_hash(
                    (e.python_pass if isinstance(e, Insert) else e, e.place) for e in self.edits
                )
            )
        return self._key[0]
