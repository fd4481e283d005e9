"""Which pipelines are active: for the process, for a context, for a kernel's compilation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

from remora import host
from remora.errors import AnchorNotFound
from remora.pipeline.editing import Compilation, edited_stage
from remora.pipeline.edits import Check, Edit, Override, Pipeline
from remora.pipeline.workers import carry_to_workers


class Scope:
    """The pipelines of a context, and what a launch asks for, kept.

    A launch must not compute: it takes ``pair`` as long as ``process``, the
    process-wide pipelines for which it was made, are still in force.
    """

    __slots__ = ("_inner", "pair", "pipelines", "process")

    # Combinations that are kept: pipelines made anew for each launch are not.
    _MOST = 256

    def __init__(self, pipelines: tuple[Pipeline, ...] = ()) -> None:
        self.pipelines = pipelines
        self.process: tuple[Pipeline, ...] | None = None
        self.pair = ("", "")
        self._inner: dict[tuple[Pipeline, ...], Scope] = {}

    def within(self, pipelines: tuple[Pipeline, ...]) -> Scope:
        """The scope with these pipelines added."""
        scope = self._inner.get(pipelines)
        if scope is None:
            if len(self._inner) >= self._MOST:
                self._inner.clear()
            scope = self._inner[pipelines] = Scope(self.pipelines + pipelines)
        return scope

    def make_pair(self, process: tuple[Pipeline, ...]) -> tuple[str, str]:
        """The keys of these pipelines after the process-wide ones."""
        together = process + self.pipelines
        key = "remora:" + ":".join(p.key for p in together) if together else ""
        # The memory cache, this process's own, gets a number: a launch hashes it.
        number = str(_numbers.setdefault(key, len(_numbers))) if key else ""
        self.pair, self.process = (key, number), process
        return self.pair


_numbers: dict[str, int] = {}


class Active:
    """The client of the stage hook: the pipelines in force, process-wide ones first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: tuple[Pipeline, ...] = ()
        self._scope: ContextVar[Scope] = ContextVar("remora", default=Scope())  # noqa: B039

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Those in force here, in the order in which they apply."""
        return self._process + self._scope.get().pipelines

    def cache_key(self) -> tuple[str, str]:
        """See ``StageClient``."""
        scope = self._scope.get()
        if scope.pipelines:
            carry_to_workers()
        process = self._process
        return scope.pair if scope.process is process else scope.make_pair(process)

    def edit_stages(
        self, backend: Any, stages: dict[str, Any], options: Any, language: Any
    ) -> None:
        """See ``StageClient``."""
        release = host.features().version
        target = backend.target
        by_stage: dict[str, list[Edit]] = {}
        for pipeline in self.pipelines():
            for edit in pipeline.edits:
                if edit.when.allows_target(target, release):
                    by_stage.setdefault(edit.stage, []).append(edit)
        names = list(stages)
        # What follows llir is text: assembly, then the binary.
        with_passes = names[: names.index("llir") + 1] if "llir" in names else names
        by_name = any(e.when.kernel for edits in by_stage.values() for e in edits)
        for edits in by_stage.values():
            for edit in edits:
                _check_stage(edit, names, with_passes, f"{target.backend}:{target.arch}")
        # From the first edit on every stage says, if it fails, what was edited.
        edited = [names.index(name) for name in by_stage if name in names]
        first = 0 if by_name else min(edited, default=len(names))
        compilation = Compilation()
        for name in names[first:]:
            stages[name] = edited_stage(
                name, stages[name], by_stage.get(name, []), compilation, by_name=by_name
            )

    def add(self, pipeline: Pipeline) -> None:
        """Put a pipeline in force for the whole process. Adding it again does nothing."""
        with self._lock:
            if pipeline in self._process:
                return
            host.install(self)
            self._process += (pipeline,)

    def remove(self, pipeline: Pipeline) -> None:
        """Take a process-wide pipeline out of force."""
        with self._lock:
            if pipeline not in self._process:
                return
            self._process = tuple(p for p in self._process if p is not pipeline)
            host.uninstall()

    @contextmanager
    def use(self, *pipelines: Pipeline) -> Iterator[None]:
        """Put pipelines in force for the kernels launched or compiled inside, on this thread."""
        host.install(self)
        token = self.enter(pipelines)
        try:
            yield
        finally:
            self.leave(token)
            host.uninstall()

    def enter(self, pipelines: tuple[Pipeline, ...]) -> Token[Scope]:
        """Put pipelines in force in this context; the hook has to be installed."""
        return self._scope.set(self._scope.get().within(pipelines))

    def leave(self, token: Token[Scope]) -> None:
        """Undo ``enter``."""
        self._scope.reset(token)


def _check_stage(edit: Edit, names: list[str], with_passes: list[str], target: str) -> None:
    """Refuse an edit of a stage that is not there, or that has no passes to edit.

    One with a trigger waits for a module that holds it; here is none then.
    """
    of_text = isinstance(edit, (Override, Check))
    if edit.stage in with_passes or (of_text and edit.stage in names) or edit.trigger:
        return
    what = "holds text and runs no pass" if edit.stage in names else "does not exist"
    raise AnchorNotFound(
        f"the stage {edit.stage!r} {what} for {target} and this language",
        where=f"{edit} (pipeline {edit.pipeline})",
        hint=f"stages with passes: {', '.join(with_passes)}; any of {', '.join(names)} can be "
        "overridden",
    )


active = Active()
use = active.use
