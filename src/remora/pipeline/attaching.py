"""A pipeline for one kernel, always."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from remora import host
from remora.errors import PipelineError
from remora.pipeline.active import active
from remora.pipeline.edits import Pipeline

Kernel = TypeVar("Kernel")


def attach(*pipelines: Pipeline) -> Callable[[Kernel], Kernel]:
    """A decorator: these pipelines are in force whenever the kernel is launched.

    Over or under ``@triton.jit``'s companions ``@triton.autotune`` and
    ``@triton.heuristics``, in any order; other kernels, and the same function
    called from another kernel, are compiled without them.

    The kernel object stays the same one, with a ``run`` of its own.

    Raises:
        PipelineError: what is decorated is no kernel, or no pipeline was given.
    """
    if not pipelines or not all(isinstance(p, Pipeline) for p in pipelines):
        raise PipelineError(
            "attach takes pipelines", hint="@remora.attach(pipeline) above @triton.jit"
        )

    def decorate(kernel: Kernel) -> Kernel:
        run = getattr(kernel, "run", None)
        if run is None or not hasattr(kernel, "__getitem__"):
            raise PipelineError(
                f"{kernel!r} is not a kernel",
                hint="put @remora.attach above @triton.jit, not below it",
            )

        host.install(active)  # for as long as the process lives, as the kernel does

        @functools.wraps(run)
        def run_with_pipelines(*args: Any, **kwargs: Any) -> Any:
            token = active.enter(pipelines)
            try:
                return run(*args, **kwargs)
            finally:
                active.leave(token)

        kernel.run = run_with_pipelines  # type: ignore[attr-defined]
        return kernel

    return decorate
