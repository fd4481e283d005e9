"""Pipelines in the threads that compile for Triton's asynchronous mode.

``triton.AsyncCompileMode`` hands compilations to an executor, whose threads do
not know the context in which the kernel was launched; and it takes a kernel
for one that is being compiled already where only the pipelines differ.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import cache
from typing import Any


@cache
def active_mode() -> ContextVar[Any]:
    """Triton's variable with the mode that is active here, if one is."""
    try:
        from triton.runtime._async_compile import active_mode
    except ImportError:  # a release without the mode
        return ContextVar("no asynchronous mode", default=None)
    variable: ContextVar[Any] = active_mode
    return variable


def carry_to_workers(mode: Any, key: Callable[[], str]) -> None:
    """Let a mode compile in the context of each launch, and tell kernels apart by ``key()``."""
    if getattr(mode, "_remora", False):
        return
    submit = mode.submit

    def submit_here(kernel_key: str, compile_fn: Callable[[], Any], *rest: Any) -> Any:
        context = copy_context()
        return submit(kernel_key + key(), lambda: context.run(compile_fn), *rest)

    mode.submit = submit_here
    mode._remora = True
