"""``remora list``."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from compiling import Look

import remora
from remora import plugins
from remora.errors import PluginError
from remora.plugins import Found

GOOD = remora.Plugin(
    "mine",
    version="1.0",
    passes=[Look, remora.PassRef("gone.away:Pass")],
    dialects=["somewhere:MineDialect"],
    ops=[SimpleNamespace(name="mine.fast_exp")],
    pipelines=[remora.Pipeline("fast").insert(Look(), after="ttir/cse")],
)
FOUND = (
    Found("plug", "dist_a:plugin", "dist-a 1.5", plugin=GOOD),
    Found(
        "bad",
        "dist_b:plugin",
        "dist-b 2.0",
        error=PluginError("the plugin 'bad' was refused: no luck", where="there", hint="repair it"),
    ),
)


@pytest.fixture
def found(monkeypatch):
    monkeypatch.setattr(plugins.registry, "_found", FOUND)


def test_for_programs(remora_command, found):
    result = remora_command("list", "--json")
    assert (result.code, result.err) == (0, "")
    good, bad = json.loads(result.out)["plugins"]
    assert good["name"] == "mine"
    assert good["version"] == "1.0"
    assert good["distribution"] == "dist-a 1.5"
    assert good["passes"][0] == {"name": "look", "class": "compiling:Look"}
    assert "cannot be imported" in good["passes"][1]["error"]
    assert good["ops"] == ["mine.fast_exp"]
    assert good["dialects"] == ["MineDialect"]
    assert good["pipelines"] == [{"name": "fast", "edits": ["insert of look after ttir/cse"]}]
    assert not bad["ok"]
    assert bad["error"]["hint"] == "repair it"


def test_for_people(remora_command, found):
    result = remora_command("list")
    assert (result.code, result.err) == (0, "")
    for words in (
        "mine 1.0  from dist-a 1.5",
        "look  compiling:Look",
        "gone.away:Pass",
        "mine.fast_exp",
        "look after ttir/cse",
        "bad  from dist-b 2.0  refused",
        "the plugin 'bad' was refused: no luck",
        "repair it",
    ):
        assert words in result.out
    assert "\x1b" not in result.out


def test_none(remora_command, monkeypatch):
    monkeypatch.setattr(plugins.registry, "_found", ())
    assert remora_command("list").out.startswith("No plugin is installed")
    assert json.loads(remora_command("list", "--json").out) == {"plugins": []}
