"""The one stage hook among others."""

from __future__ import annotations

from typing import Any

import pytest
from triton import knobs

from remora import host

pytestmark = pytest.mark.usefixtures("no_hook")


class Client:
    """Writes down that it was called."""

    def __init__(self) -> None:
        self.edited: list[Any] = []

    def cache_key(self) -> tuple[str, str]:
        return ("client", "CLIENT")

    def edit_stages(self, backend: Any, stages: Any, options: Any, language: Any) -> None:
        self.edited.append(stages)


class Neighbour:
    """A hook of somebody else, which calls another one or does not."""

    def __init__(self, calls: Any = None) -> None:
        self.calls = calls
        self.edited: list[Any] = []

    def __call__(self, backend=None, stages=None, options=None, language=None, capability=None):
        key, digest = ("other", "OTHER")
        if self.calls is not None:
            inner = self.calls(backend, stages, options, language, capability)
            if stages is None:
                key, digest = key + inner[0], digest + inner[1]
        if stages is not None:
            self.edited.append(stages)
        return (key, digest)


def current() -> Any:
    return knobs.runtime.add_stages_inspection_hook


def test_installs_and_goes():
    client = Client()
    host.install(client)
    try:
        assert current()() == ("client", "CLIENT")
        current()("backend", {"ttir": 1}, None, None, None)
        assert client.edited == [{"ttir": 1}]
    finally:
        host.uninstall()
    assert current() is None


def test_counts_its_users():
    client = Client()
    host.install(client)
    host.install(client)
    host.uninstall()
    assert current()() == ("client", "CLIENT")
    host.uninstall()
    assert current() is None


def test_calls_a_hook_that_was_there_before_and_gives_it_back():
    before, client = Neighbour(), Client()
    knobs.runtime.add_stages_inspection_hook = before
    host.install(client)
    assert current()() == ("otherclient", "OTHERCLIENT")
    current()("backend", {"ttir": 1}, None, None, None)
    assert before.edited == client.edited == [{"ttir": 1}]
    host.uninstall()
    assert current() is before
    knobs.runtime.add_stages_inspection_hook = None


def test_a_hook_set_afterwards_that_calls_ours_stays():
    client = Client()
    host.install(client)
    after = Neighbour(calls=current())
    knobs.runtime.add_stages_inspection_hook = after
    assert current()() == ("otherclient", "OTHERCLIENT")
    host.uninstall()
    assert current() is after
    assert current()() == ("other", "OTHER")  # ours is inert now
    current()("backend", {"ttir": 1}, None, None, None)
    assert client.edited == []
    # Installed again it is reached through the other, and called once.
    host.install(client)
    assert current() is after
    assert current()() == ("otherclient", "OTHERCLIENT")
    current()("backend", {"ttir": 2}, None, None, None)
    assert client.edited == [{"ttir": 2}]
    host.uninstall()
    knobs.runtime.add_stages_inspection_hook = None


def test_a_hook_set_afterwards_that_does_not_call_ours_stays():
    client = Client()
    host.install(client)
    after = Neighbour()
    knobs.runtime.add_stages_inspection_hook = after
    host.uninstall()
    assert current() is after
    host.install(client)
    assert current() is not after
    assert current()() == ("otherclient", "OTHERCLIENT")
    host.uninstall()
    assert current() is after
    knobs.runtime.add_stages_inspection_hook = None


@pytest.mark.parametrize("theirs", [None, Neighbour()])
def test_installed_again_where_somebody_put_theirs_in_its_place(theirs):
    client = Client()
    host.install(client)
    knobs.runtime.add_stages_inspection_hook = theirs
    host.install(client)
    assert current()()[0].endswith("client")
    assert (current()()[0] == "otherclient") is (theirs is not None)
    host.uninstall()
    host.uninstall()
    assert current() is theirs
    knobs.runtime.add_stages_inspection_hook = None


def test_a_hook_that_calls_ours_for_stages_only_is_no_endless_loop():
    client = Client()
    host.install(client)
    ours = current()

    def after(backend=None, stages=None, options=None, language=None, capability=None):
        if stages is not None:
            ours(backend, stages, options, language, capability)
        return ("other", "OTHER")

    knobs.runtime.add_stages_inspection_hook = after
    host.uninstall()
    host.install(client)
    current()("backend", {"ttir": 1}, None, None, None)
    assert client.edited == [{"ttir": 1}]
    host.uninstall()
    assert current() is after
    knobs.runtime.add_stages_inspection_hook = None


def test_a_chain_of_before_and_after_survives_our_leaving():
    before, client = Neighbour(), Client()
    knobs.runtime.add_stages_inspection_hook = before
    host.install(client)
    after = Neighbour(calls=current())
    knobs.runtime.add_stages_inspection_hook = after
    host.uninstall()
    assert current()() == ("otherother", "OTHEROTHER")
    current()("backend", {"ttir": 1}, None, None, None)
    assert before.edited == after.edited == [{"ttir": 1}]
    knobs.runtime.add_stages_inspection_hook = None
    from remora.host import hook

    hook._previous = None
