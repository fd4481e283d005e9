"""Stages are listed as they are, also while a pipeline, TLX's for one, is in force."""

from __future__ import annotations

import pytest
from compiling import TARGETS, stages_of

from remora import host
from remora.errors import BridgeError
from remora.pipeline import anchors, record
from remora.tlx_plugin import plugin

pytestmark = pytest.mark.usefixtures("no_hook")


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_anchors(target: str) -> None:
    names = ("ttir", "ttgir", "llir")
    stock = [list(anchors(record(stages_of(target)[2][name]))) for name in names]
    plugin.activate()
    try:
        in_force = [list(anchors(record(stages_of(target)[2][name]))) for name in names]
    finally:
        plugin.deactivate()
    assert in_force == stock


def test_what_is_no_module_has_no_text() -> None:
    with pytest.raises(BridgeError, match="is not a module"):
        host.generic_text(object())
