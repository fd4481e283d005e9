"""Which pipelines are active: for the process, for a context, for a kernel's compilation."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from remora import host
from remora.errors import AnchorNotFound, PipelineError
from remora.pipeline.editing import Compilation, edited_stage
from remora.pipeline.edits import Check, Edit, Override, Pipeline
from remora.pipeline.workers import active_mode, carry_to_workers


class Scope:
    """The pipelines of a context, and what a launch asks for, kept.

    A launch must not compute: it takes ``pair`` as long as ``process``, the
    process-wide pipelines for which it was made, are still in force.
    """

    __slots__ = ("inner", "pair", "pipelines", "process")

    # Combinations that are kept: pipelines made anew for each launch are not.
    _MOST = 256

    def __init__(self, pipelines: tuple[Pipeline, ...] = ()) -> None:
        self.pipelines = pipelines
        self.process: tuple[Pipeline, ...] | None = None
        self.pair = ("", "")
        self.inner: dict[tuple[Pipeline, ...], Scope] = {}

    def within(self, pipelines: tuple[Pipeline, ...]) -> Scope:
        """The scope with these pipelines added; kept in ``inner``."""
        if pipelines in self.inner:
            return self.inner[pipelines]
        if len(self.inner) >= self._MOST:
            self.inner.clear()
        scope = Scope(tuple(dict.fromkeys(self.pipelines + pipelines)))
        self.inner[pipelines] = scope
        return scope

    def make_pair(self, process: tuple[Pipeline, ...]) -> None:
        """The keys of these pipelines after the process-wide ones."""
        together = dict.fromkeys(process + self.pipelines)
        key = "remora:" + ":".join(p.key for p in together) if together else ""
        # A launch hashes the memory cache's: it gets a short one.
        self.pair = (key, hashlib.sha256(key.encode()).hexdigest()[:16] if key else "")
        self.process = process


class Active:
    """The client of the stage hook: the pipelines in force, process-wide ones first.

    A pipeline that is in force already is not put in force once more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: tuple[Pipeline, ...] = ()
        self.scope: ContextVar[Scope] = ContextVar("remora", default=Scope())  # noqa: B039
        #: Whether Inductor, where it compiles here, keeps the kernels by what is in force.
        self.inductor_knows: ContextVar[bool] = ContextVar("Inductor knows", default=False)
        self.cache_key = _launch_key(self)

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Those in force here, in the order in which they apply."""
        return tuple(dict.fromkeys(self._process + self.scope.get().pipelines))

    def _first_key(self, scope: Scope) -> tuple[str, str]:
        """The key of a scope for the first time, or where kernels compile asynchronously."""
        if scope.process is not self._process:
            scope.make_pair(self._process)
        if (mode := active_mode().get()) is not None:
            carry_to_workers(mode, self)
        return scope.pair

    def edit_stages(
        self, backend: Any, stages: dict[str, Any], options: Any, language: Any
    ) -> None:
        """See ``StageClient``."""
        names = list(stages)
        by_stage = edits_by_stage(self.pipelines(), backend.target, names)
        known = self.scope.get().pipelines if self.inductor_knows.get() else ()
        _check_inductor((e for edits in by_stage.values() for e in edits), known)
        by_name = any(e.when.kernel for edits in by_stage.values() for e in edits)
        # From the first edit on every stage says, if it fails, what was edited.
        edited = [names.index(name) for name in by_stage if name in names]
        first = 0 if by_name else min(edited, default=len(names))
        compilation = Compilation(f"{backend.target.backend}:{backend.target.arch}")
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
        if not all(isinstance(p, Pipeline) for p in pipelines):
            raise PipelineError("use takes pipelines", hint="with remora.use(pipeline): ...")
        with self._in(self.scope.get().within(pipelines)):
            yield

    @contextmanager
    def for_inductor(self, *pipelines: Pipeline) -> Iterator[None]:
        """Put these in force, and no others of ``use``, for kernels that Inductor keeps by them."""
        token = self.inductor_knows.set(True)
        try:
            with self._in(Scope(tuple(dict.fromkeys(pipelines)))):
                yield
        finally:
            self.inductor_knows.reset(token)

    @contextmanager
    def _in(self, scope: Scope) -> Iterator[None]:
        host.install(self)
        token = self.scope.set(scope)
        try:
            yield
        finally:
            self.scope.reset(token)
            host.uninstall()


def edits_by_stage(
    pipelines: Iterable[Pipeline], target: Any, names: list[str]
) -> dict[str, list[Edit]]:
    """The edits that hold for a target, by the stages of that target and language.

    Raises:
        AnchorNotFound: an edit names a stage that is not there, or has no passes.
    """
    release = host.features().version
    found: dict[str, list[Edit]] = {}
    for pipeline in pipelines:
        for edit in pipeline.edits:
            if edit.when.allows_target(target, release):
                _check_stage(edit, names, f"{target.backend}:{target.arch}")
                found.setdefault(edit.stage, []).append(edit)
    return found


def _launch_key(active: Active) -> Callable[[], tuple[str, str]]:
    """``StageClient.cache_key``. Every launch calls it: a closure is quicker than a method."""
    here = active.scope.get
    # Replaced with the first key, as importing this imports no Triton; an object is not None.
    asynchronous: Callable[[], Any] = object

    def cache_key() -> tuple[str, str]:
        nonlocal asynchronous
        scope = here()
        if scope.process is active._process and asynchronous() is None:
            return scope.pair
        asynchronous = active_mode().get
        return active._first_key(scope)

    return cache_key


def _check_stage(edit: Edit, names: list[str], target: str) -> None:
    """Refuse an edit of a stage that is not there, or that has no passes to edit.

    One with a trigger waits for a module that holds it; here is none then.
    """
    # What follows llir is text: assembly, then the binary.
    with_passes = names[: names.index("llir") + 1] if "llir" in names else names
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


def _check_inductor(edits: Iterable[Edit], known: tuple[Pipeline, ...]) -> None:
    """Refuse to edit a kernel of Inductor's that it would keep, and use, as a stock one.

    Edits with a trigger concern kernels whose source says so.

    Args:
        edits: those in force. known: pipelines by which Inductor keeps the kernel.
    """
    heuristics = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    if heuristics is None:
        return
    ids = {id(edit) for pipeline in known for edit in pipeline.edits}
    edit = next((e for e in edits if not e.trigger and id(e) not in ids), None)
    frame: FrameType | None = sys._getframe() if edit is not None else None
    while frame is not None and frame.f_globals is not vars(heuristics):
        frame = frame.f_back
    if frame is not None:
        raise PipelineError(
            "torch.compile would keep this kernel in its caches as one without pipelines",
            where=f"{edit} (pipeline {edit.pipeline})" if edit else "",
            hint='write torch.compile(..., backend="remora")',
        )


active = Active()
use = active.use
