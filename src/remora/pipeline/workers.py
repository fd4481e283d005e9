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

from remora import host


@cache
def active_mode() -> ContextVar[Any]:
    """Triton's variable with the mode that is active here, if one is."""
    try:
        from triton.runtime._async_compile import active_mode
    except ImportError:  # a release without the mode
        return ContextVar("no asynchronous mode", default=None)
    variable: ContextVar[Any] = active_mode
    return variable


def carry_to_workers(mode: Any, client: host.StageClient) -> None:
    """Let a mode compile with the client, in the context of each launch.

    Kernels that differ in the client's key alone are told apart. The hook is
    there while a worker compiles: where the kernel was launched it may be gone.
    """
    if getattr(mode, "_remora", False):
        return
    submit = mode.submit

    def submit_here(key: str, compile_fn: Callable[[], Any], *rest: Any) -> Any:
        context = copy_context()

        def compile_here() -> Any:
            host.install(client)
            try:
                return context.run(compile_fn)
            finally:
                host.uninstall()

        return submit(key + client.cache_key()[0], compile_here, *rest)

    mode.submit = submit_here
    mode._remora = True
