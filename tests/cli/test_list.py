"""``remora list``."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from compiling import Look
from native.building import RELEASE, build, run, wheels

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
    assert json.loads(remora_command("list", "--json").out) == {"plugins": [], "natives": []}


LIST = "import sys; from remora.cli import main; sys.argv[0] = 'remora'; main()"


def test_native_plugins():
    """One that is loaded, and two that are refused, of the variable."""
    bad = build(release="NULL")
    variable = f"{wheels('MLIRDialectPlugin')}:/nowhere.so:{bad}"
    environment = {"TRITON_PLUGIN_PATHS": variable, "PYTHONWARNINGS": "ignore"}
    out = run(LIST, "list", **environment)
    for words in (
        r"DialectPlugin 0\.1\.0 +loaded +" + RELEASE + " +1 +1 +1 +TRITON_PLUGIN_PATHS",
        r"nowhere\.so +refused +TRITON_PLUGIN_PATHS",
        "  passes: plugingpu_conversion\n",
        "  ops: custom_op\n",
        "/nowhere.so\n  the native library was refused: it cannot be read: No such file",
        "the native library was refused: it does not say for which release",
    ):
        assert re.search(words, out), out
    rows = json.loads(run(LIST, "list", "--json", **environment))["natives"]
    assert [(r["state"], r["verdict"]) for r in rows] == [
        ("loaded", "fine"),
        ("refused", "unreadable"),
        ("refused", "wrong release"),
    ]
    assert rows[0]["passes"] == ["plugingpu_conversion"]
    assert rows[0]["error"] is None
    assert rows[2]["error"]["where"] == str(bad)
