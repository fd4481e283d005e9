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

# What compiles: the autotuner's ``warmup`` does not go through its ``run``.
_ENTRIES = ("run", "warmup", "preload")


def attach(*pipelines: Pipeline) -> Callable[[Kernel], Kernel]:
    """A decorator: these pipelines are in force whenever the kernel is launched.

    Over or under ``@triton.jit``'s companions ``@triton.autotune`` and
    ``@triton.heuristics``, in any order; other kernels, and the same function
    called from another kernel, are compiled without them.

    The kernel object stays the same one, with methods of its own.

    Raises:
        PipelineError: what is decorated is no kernel, or no pipeline was given.
    """
    if not pipelines or not all(isinstance(p, Pipeline) for p in pipelines):
        raise PipelineError(
            "attach takes pipelines", hint="@remora.attach(pipeline) above @triton.jit"
        )

    def decorate(kernel: Kernel) -> Kernel:
        if not (hasattr(kernel, "run") and hasattr(kernel, "__getitem__")):
            raise PipelineError(
                f"{kernel!r} is not a kernel",
                hint="put @remora.attach above @triton.jit, not below it",
            )
        host.install(active)  # for as long as the process lives, as the kernel does
        for name in _ENTRIES:
            if hasattr(kernel, name):
                setattr(kernel, name, _with_pipelines(getattr(kernel, name), pipelines))
        return kernel

    return decorate


def _with_pipelines(method: Callable[..., Any], pipelines: tuple[Pipeline, ...]) -> Any:
    # Every launch comes through here: one frame, no calls that can be spared.
    scope = active.scope
    here, enter, leave = scope.get, scope.set, scope.reset
    last = scope.get(), scope.get().within(pipelines)

    @functools.wraps(method)
    def with_pipelines(*args: Any, **kwargs: Any) -> Any:
        nonlocal last
        outer, known = here(), last
        if known[0] is not outer:
            known = last = outer, outer.within(pipelines)
        token = enter(known[1])
        try:
            return method(*args, **kwargs)
        finally:
            leave(token)

    with_pipelines.remora_pipelines = pipelines  # type: ignore[attr-defined]
    return with_pipelines


def attached(kernel: Any) -> tuple[Pipeline, ...]:
    """The pipelines that are attached to a kernel, or to one that it is made of."""
    found: tuple[Pipeline, ...] = ()
    while hasattr(kernel, "run"):
        method = kernel.run
        while method is not None:
            found += getattr(method, "remora_pipelines", ())
            method = getattr(method, "__wrapped__", None)
        kernel = getattr(kernel, "fn", None)
    return found
