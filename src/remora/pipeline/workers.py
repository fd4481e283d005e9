"""Pipelines in the threads that compile for Triton's asynchronous mode.

``triton.AsyncCompileMode`` hands compilations to an executor, whose threads do
not know the context in which the kernel was launched.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import cache
from typing import Any


class ContextExecutor(Executor):
    """An executor whose tasks run in the context in which they were submitted."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As ``Executor.submit``."""
        return self.executor.submit(copy_context().run, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ``Executor.shutdown``."""
        self.executor.shutdown(wait, cancel_futures=cancel_futures)


@cache
def _active_mode() -> Any:
    try:
        from triton.runtime._async_compile import active_mode
    except ImportError:  # a release without the mode
        return None
    return active_mode


def carry_to_workers() -> None:
    """Let the asynchronous mode that is active here, if one is, hand on the context."""
    variable = _active_mode()
    mode = variable.get() if variable is not None else None
    if mode is not None and not isinstance(mode.executor, ContextExecutor):
        mode.executor = ContextExecutor(mode.executor)
