"""Which pipelines are active: for the process, for a context, for a kernel's compilation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from remora import host
from remora.errors import AnchorNotFound
from remora.pipeline.edits import Edit, Insert, Pipeline, describe, trigger_of
from remora.pipeline.runner import edited_stage

# Combinations of pipelines whose keys are kept: a launch must not join them anew.
_MOST_PAIRS = 256


class Active:
    """The client of the stage hook: the pipelines in force, process-wide ones first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: tuple[Pipeline, ...] = ()
        self._context: ContextVar[tuple[Pipeline, ...]] = ContextVar("remora", default=())
        self._pairs: dict[tuple[Pipeline, ...], tuple[str, str]] = {(): ("", "")}

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Those in force here, in the order in which they apply."""
        return self._process + self._context.get()

    def cache_key(self) -> tuple[str, str]:
        """See ``StageClient``."""
        active = self._process + self._context.get()
        pair = self._pairs.get(active)
        if pair is None:
            if len(self._pairs) >= _MOST_PAIRS:  # pipelines made anew for each launch
                self._pairs = {(): ("", "")}
            key = "remora:" + ":".join(p.key for p in active)
            pair = self._pairs[active] = (key, key)
        return pair

    def edit_stages(
        self, backend: Any, stages: dict[str, Any], options: Any, language: Any
    ) -> None:
        """See ``StageClient``."""
        by_stage: dict[str, list[Edit]] = {}
        seen: set[str] = set()
        for pipeline in self.pipelines():
            for edit in pipeline.edits:
                by_stage.setdefault(edit.stage, []).append(edit)
        # What follows llir is text: assembly, then the binary.
        names = list(stages)
        with_passes = names[: names.index("llir") + 1] if "llir" in names else names
        for name, edits in by_stage.items():
            if name in with_passes:
                stages[name] = edited_stage(name, stages[name], edits, seen)
                continue
            # An edit with a trigger waits for a module that holds it; here is none.
            for edit in edits:
                subject = edit.python_pass if isinstance(edit, Insert) else edit
                if not trigger_of(subject):
                    what = "holds text and runs no pass" if name in names else "does not exist"
                    raise AnchorNotFound(
                        f"the stage {name!r} {what} for this target and language",
                        where=f"{describe(subject)} {edit.place}",
                        hint="stages with passes: " + ", ".join(with_passes),
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
        token = self._context.set(self._context.get() + pipelines)
        try:
            yield
        finally:
            self._context.reset(token)
            host.uninstall()


active = Active()
use = active.use
