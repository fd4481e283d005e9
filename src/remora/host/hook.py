"""The one stage hook: installed while somebody needs it, a good neighbour to others.

Triton calls ``knobs.runtime.add_stages_inspection_hook`` in two ways: without
arguments before a kernel cache is looked up (on every launch, so it has to be
cheap), for a pair (text that joins the disk cache's key, text that joins the
memory cache's key); and with the backend and its stages before a compilation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from remora.host.releases import features


class StageClient(Protocol):
    """Who edits stages through the hook."""

    def cache_key(self) -> tuple[str, str]:
        """The pair for the disk cache's and the memory cache's key, ("", "") for none."""
        ...

    def edit_stages(
        self, backend: Any, stages: dict[str, Any], options: Any, language: Any
    ) -> None:
        """Replace entries of ``stages`` (name to function of module and metadata)."""
        ...


class _Inside(threading.local):
    """Whether this thread is in a call of the hook before ours."""

    previous = False


_inside = _Inside()
_lock = threading.RLock()
# A child that is forked while another thread holds the lock would wait for ever.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_users = 0
_client: StageClient | None = None
_previous: Callable[..., Any] | None = None
_reached = False


def _hook(
    backend: Any = None,
    stages: Any = None,
    options: Any = None,
    language: Any = None,
    capability: Any = None,
) -> tuple[str, str]:
    if stages is None:
        return _key()
    global _reached
    _reached = True
    client, previous = _client, _previous
    if previous is not None:
        if _inside.previous:
            return ("", "")  # the hook before ours calls ours: one call is enough
        _call_previous(previous, backend, stages, options, language, capability)
    if client is not None:
        client.edit_stages(backend, stages, options, language)
    return ("", "")


def _key_of_all() -> tuple[str, str]:
    """The keys of the hook before ours, and then the client's."""
    global _reached
    _reached = True
    client, previous = _client, _previous
    if previous is not None and _inside.previous:
        return ("", "")
    key = client.cache_key() if client is not None else ("", "")
    if previous is None:
        return key
    before = _call_previous(previous)
    return before[0] + key[0], before[1] + key[1]


# What a launch calls: the client alone, as long as nothing else is to be asked.
_key: Callable[[], tuple[str, str]] = _key_of_all


def _call_previous(previous: Callable[..., Any], *args: Any) -> Any:
    _inside.previous = True
    try:
        return previous(*args)
    finally:
        _inside.previous = False


def _is_reached(hook: Callable[..., Any] | None) -> bool:
    """Whether ``hook`` is ours, or calls ours."""
    global _reached, _key
    if hook is None or hook is _hook:
        return hook is _hook
    _reached, _key = False, _key_of_all
    hook()
    return _reached


def _set_key() -> None:
    """Take the short way for launches where it is one."""
    global _key
    _key = _client.cache_key if _client is not None and _previous is None else _key_of_all


def install(client: StageClient) -> None:
    """Install the hook for ``client``; counts its users. One client a process.

    Raises:
        UnsupportedTriton: the installed Triton lacks what Remora stands on.
    """
    global _users, _client, _previous
    with _lock:
        features()
        from triton import knobs

        # Also where it was installed before: somebody may have put theirs in its place.
        current = knobs.runtime.add_stages_inspection_hook
        if not _is_reached(current):
            _previous = current
            knobs.runtime.add_stages_inspection_hook = _hook
        _client = client
        _users += 1
        _set_key()


def uninstall() -> None:
    """Undo one ``install``; with the last one the hook goes.

    A hook that somebody set after ours, and that may call ours, stays. Ours is
    then inert and passes on to the hook that was there before it.
    """
    global _users, _client, _previous
    from triton import knobs

    with _lock:
        _users -= 1
        if _users:
            return
        _client = None
        _set_key()
        if knobs.runtime.add_stages_inspection_hook is _hook:
            knobs.runtime.add_stages_inspection_hook = _previous
            _previous = None
