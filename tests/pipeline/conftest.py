"""Pipelines are tested without TLX, which other tests of the process put in force."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def without_tlx() -> Iterator[None]:
    from remora.tlx_plugin import plugin

    was_active = plugin.is_active
    plugin.deactivate()
    yield
    if was_active:
        plugin.activate()
