"""``remora doctor``."""

from __future__ import annotations

import json
import re

import pytest
import triton
from native.building import run, wheels

from remora import host
from remora.cli import doctor
from remora.host.targets import KNOWN_TARGETS


@pytest.fixture(autouse=True)
def forget():
    host.features.cache_clear()
    yield
    host.features.cache_clear()


def test_for_programs(remora_command):
    result = remora_command("doctor", "--json")
    assert (result.code, result.err) == (0, "")
    report = json.loads(result.out)
    assert report["ok"]
    assert report["triton"]["version"] == triton.__version__
    assert report["triton"]["tested"]
    assert report["triton"]["features"]["bridge"] is True
    assert [(t["target"], t["ok"]) for t in report["targets"]] == [(t, True) for t in KNOWN_TARGETS]
    tools = {tool["name"]: tool for tool in report["tools"]}
    assert tools["ptxas"]["version"]


def test_for_people(remora_command):
    result = remora_command("doctor")
    assert (result.code, result.err) == (0, "")
    assert f"Triton {triton.__version__}" in result.out
    assert "calls_carry_tensors" in result.out
    for target in KNOWN_TARGETS:
        assert target in result.out
    assert "\x1b" not in result.out  # no colours in a pipe


def test_an_unfit_triton(remora_command, monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.4.0")
    result = remora_command("doctor")
    assert result.code == 1
    assert "Triton 3.4.0 is too old" in result.out
    assert "install one of" in result.out
    report = json.loads(remora_command("doctor", "--json").out)
    assert "too old" in report["triton"]["error"]["what"]
    assert report["targets"] == []


def test_a_newer_triton_is_said(remora_command, monkeypatch):
    monkeypatch.setattr(triton, "__version__", "9.0.0")
    result = remora_command("doctor")
    assert result.code == 0
    assert "not among the tested releases" in result.out
    assert "newer than the releases Remora is tested on" in result.out


def test_a_target_that_does_not_compile(remora_command, monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "module { nonsense }")
    result = remora_command("doctor")
    assert result.code == 1
    assert "fails" in result.out


def test_a_tool_that_is_not_there(remora_command, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert "not found" in remora_command("doctor").out


def test_native_plugins():
    """A variable that points nowhere is named, and is a fault."""
    code = "import sys; from remora.cli import main; sys.argv[0] = 'remora'; main()"
    good = {"TRITON_PLUGIN_PATHS": str(wheels("TritonPluginsTestLib"))}
    assert re.search("TRITON_PLUGIN_PATHS +loaded  /", run(code, "doctor", **good))
    bad = {"TRITON_PLUGIN_PATHS": "/nowhere/lib.so", "PYTHONWARNINGS": "ignore"}
    out = run(code, "doctor", ok=False, **bad)
    assert re.search("TRITON_PLUGIN_PATHS +points nowhere  /nowhere/lib.so", out)
    report = json.loads(run(code, "doctor", "--json", ok=False, **bad))
    assert not report["ok"]
    assert [row["verdict"] for row in report["natives"]] == ["unreadable"]
