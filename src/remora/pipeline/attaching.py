"""A pipeline for one kernel, always.

A launch of such a kernel costs what it costs in stock Triton: the pipelines are
in force, and the hook is there, only while the kernel is compiled. Its compiled
forms are in a memory cache that the kernel has to itself.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from remora import host
from remora.errors import PipelineError
from remora.pipeline.active import active
from remora.pipeline.edits import Pipeline
from remora.pipeline.registry import name_of

Kernel = TypeVar("Kernel")


def attach(*pipelines: Pipeline) -> Callable[[Kernel], Kernel]:
    """A decorator: these pipelines are in force whenever the kernel is compiled for a launch.

    Over or under ``@triton.jit``'s companions ``@triton.autotune`` and
    ``@triton.heuristics``, in any order; other kernels, also those made of the
    same function, and the function called from another kernel, are compiled
    without them.

    The kernel object stays the same one.

    Raises:
        PipelineError: what is decorated is no kernel, or no pipeline was given.
        UnsupportedTriton: the installed Triton lacks what Remora stands on.
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
        host.features()
        function = _own_function(kernel)
        before = attached(function)
        function.remora_pipelines = pipelines + before
        if hasattr(function, "_do_compile"):  # Triton's interpreter compiles nothing
            if not before:
                stock: Any = type(function)
                function.__class__ = _with_pipelines(stock)
            function.device_caches = defaultdict(function.create_binder)
        return kernel

    return decorate


@functools.cache
def _with_pipelines(stock: Any) -> Any:
    """The class of functions, ``JITFunction`` or Gluon's, that have pipelines of their own."""

    class Attached(stock):  # type: ignore[misc]
        remora_pipelines: tuple[Pipeline, ...] = ()

        def _do_compile(self, *args: Any, **kwargs: Any) -> Any:
            """What every launch and warmup comes to whose kernel is not in memory."""
            with active.use(*self.remora_pipelines):
                active.cache_key()  # where kernels compile asynchronously it tells their executor
                return super()._do_compile(*args, **kwargs)

        @property
        def src(self) -> str:
            """The source, as Inductor takes it into a module of its own: it names the pipelines.

            Triton parses ``_src``.
            """
            return (
                f"{self._src.rstrip()}\n\n"
                '__import__("remora.inductor", fromlist=["keep"])'
                f'.keep(globals(), "{self.fn.__name__}", "{name_of(self.remora_pipelines)}")\n'
            )

        @property
        def cache_key(self) -> str:
            """The stock one: other kernels call the function without its pipelines."""
            plain = copy.copy(self)
            plain.__class__ = stock
            key: str = plain.cache_key
            self.__dict__.update(plain.__dict__)  # what it found on the way: the globals in use
            return key

    Attached.__name__ = stock.__name__  # Triton asks for it
    return Attached


def _own_function(kernel: Any) -> Any:
    """What the kernel runs in the end, for this kernel alone.

    What an autotuner or the like was made of may be launched by itself, or be
    another's: the kernel gets copies.
    """
    outer = kernel
    for inner in list(_chain(kernel))[1:]:
        outer.fn = copy.copy(inner)
        outer = outer.fn
    return outer


def _chain(kernel: Any) -> Iterator[Any]:
    """A kernel and what it is made of, down to the function that is compiled."""
    while hasattr(kernel, "run"):
        yield kernel
        kernel = getattr(kernel, "fn", None)


def attached(kernel: Any) -> tuple[Pipeline, ...]:
    """The pipelines that are attached to a kernel, or to one that it is made of."""
    found: tuple[Pipeline, ...] = ()
    for part in _chain(kernel):
        found += getattr(part, "remora_pipelines", ())
    return found
