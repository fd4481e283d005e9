"""A plugin as a value, and putting it in force."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from compiling import SEEN, Look, compile_kernel
from triton import knobs

import remora
from remora.errors import PluginError, UnsupportedTriton
from remora.pipeline import active

pytestmark = pytest.mark.usefixtures("no_hook")

LOOK = remora.Pipeline("look").insert(Look("plugin"), at="ttir/end")


def test_what_it_brings():
    op = SimpleNamespace(name="mine.op")
    plugin = remora.Plugin(
        "mine",
        version="1.0",
        passes=[remora.PassRef("nowhere.at_all:Pass"), Look],
        dialects=["nowhere.at_all:Mine"],
        ops=[op],
        pipelines=[LOOK],
    )
    assert plugin.passes == (remora.PassRef("nowhere.at_all:Pass"), Look)
    assert plugin.ops == (op,)
    assert plugin.pipelines == (LOOK,)
    assert not plugin.is_active


def test_in_force_and_out(always_compile):
    plugin = remora.Plugin("mine", pipelines=[LOOK])
    SEEN.clear()
    plugin.activate()
    plugin.activate()  # again does nothing
    try:
        assert plugin.is_active
        compile_kernel("cuda:90")
    finally:
        plugin.deactivate()
    assert not plugin.is_active
    plugin.deactivate()
    assert knobs.runtime.add_stages_inspection_hook is None
    compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["plugin"]


def test_a_plugin_without_pipelines_installs_no_hook():
    plugin = remora.Plugin("mine")
    plugin.activate()
    assert knobs.runtime.add_stages_inspection_hook is None
    plugin.deactivate()


def test_two_of_one_name():
    first, second = remora.Plugin("mine", version="1.0"), remora.Plugin("mine")
    first.activate()
    with pytest.raises(PluginError, match=r"another plugin named 'mine' is active \(version 1\.0"):
        second.activate()
    assert not second.is_active
    second.deactivate()  # not active: takes nothing away
    assert first.is_active
    first.deactivate()
    second.activate()
    second.deactivate()


def test_what_fails_half_way_leaves_nothing(monkeypatch):
    other = remora.Pipeline("other")
    plugin = remora.Plugin("mine", pipelines=[LOOK, other])
    add = active.add

    def refuse(pipeline):
        if pipeline is other:
            raise UnsupportedTriton("no")
        add(pipeline)

    monkeypatch.setattr(active, "add", refuse)
    with pytest.raises(UnsupportedTriton):
        plugin.activate()
    assert not plugin.is_active
    assert active.pipelines() == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": ""}, "is not a plugin's name"),
        ({"name": "has space"}, "is not a plugin's name"),
        ({"name": 3}, "is not a plugin's name"),
        ({"version": 1.0}, "1.0 does not belong into version"),
        ({"passes": "a.b:C"}, "'a.b:C' does not belong into passes"),
        ({"passes": Look}, "does not belong into passes"),
        ({"passes": ["a.b:C"]}, "'a.b:C' does not belong into passes"),
        ({"passes": [Look()]}, "does not belong into passes"),
        ({"passes": [remora.PassRef("a.b.C")]}, "does not belong into passes"),
        ({"dialects": ["a.b"]}, "'a.b' does not belong into dialects"),
        ({"ops": ["mine.op"]}, "'mine.op' does not belong into ops"),
        ({"ops": [3]}, "3 does not belong into ops"),
        ({"pipelines": [Look()]}, "does not belong into pipelines"),
        ({"pipelines": LOOK}, "does not belong into pipelines"),
    ],
)
def test_what_is_no_plugin(arguments, words):
    with pytest.raises(PluginError) as caught:
        remora.Plugin(**({"name": "mine"} | arguments))
    assert words in caught.value.what
    assert caught.value.hint


def test_its_dialects_are_there_for_passes(always_compile):
    from xdsl.dialects.test import Test

    from remora import ir

    seen = []

    class Looks(remora.ModulePass):
        name = "looks"

        def apply(self, ctx, op):
            seen.append("test" in {d.name for d in ctx.loaded_dialects})

    ir.forget()
    pipeline = remora.Pipeline("looks").insert(Looks(), at="ttir/end")
    plugin = remora.Plugin("mine", dialects=[Test], pipelines=[pipeline])
    with remora.use(pipeline):
        compile_kernel("cuda:90")
    plugin.activate()
    try:
        compile_kernel("cuda:90")
    finally:
        plugin.deactivate()
    assert seen == [False, True]


def test_a_dialect_that_is_none(always_compile, monkeypatch):
    from remora.pipeline import dialects

    monkeypatch.setattr(dialects, "_wanted", ["nowhere.at_all:Mine"])
    pipeline = remora.Pipeline("look").insert(Look("plugin"), at="ttir/end")
    with remora.use(pipeline), pytest.raises(PluginError, match="nowhere"):
        compile_kernel("cuda:90")
