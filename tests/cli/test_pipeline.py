"""``remora pipeline``: what it lists is what edits take."""

from __future__ import annotations

import json
import sys

import pytest
from compiling import TARGETS, compile_kernel

from remora.pipeline import Pipeline, active, stock, use

PIPELINES = """
from dataclasses import dataclass
import remora

@dataclass(frozen=True)
class Stages(remora.ModulePass):
    name = "stages"
    number: int = 2

    def apply(self, ctx, module):
        pass

mine = (
    remora.Pipeline("mine")
    .insert(Stages(4), before="ttir/cse")
    .insert(remora.stock("common.cse"), at="ttgir/end")
    .disable("ttgir/coalesce")
    .replace("ttir/combine", Stages())
    .override("ptx", lambda text, compile_: compile_(text))
)
elsewhere = remora.Pipeline("elsewhere").disable("ttgir/block_pingpong").when(target="hip")
own = remora.Pipeline("own").passes("ttir", remora.stock("common.cse"), Stages(3))
plugin = remora.Plugin("bundle", pipelines=[mine])
nothing = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "shown_pipelines.py").write_text(PIPELINES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("shown_pipelines", None)


def view(remora_command, *arguments):
    result = remora_command("pipeline", "--json", *arguments)
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


@pytest.mark.parametrize("language", ["triton", "gluon"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_target(remora_command, target, language):
    shown = view(remora_command, "--target", target, "--language", language)
    stages = [s["stage"] for s in shown["stages"]]
    # Gluon's glir is a stage from 3.9 on.
    modules = ["ttir", "ttgir"] if language == "triton" else [*stages[:-4], "ttgir"]
    last = ["ptx", "cubin"] if target.startswith("cuda") else ["amdgcn", "hsaco"]
    assert stages == [*modules, "llir", *last]
    assert [s["makes"] for s in shown["stages"]][-4:] == ["module", "text", "text", "binary"]


def test_every_anchor_takes_an_edit(remora_command, fresh_cache):
    shown = view(remora_command)
    rows = [row for stage in shown["stages"] for row in stage["passes"]]
    pipeline = Pipeline("all")
    for row in rows:
        pipeline = pipeline.insert(stock("common.symbol_dce"), after=row["anchor"])
    with use(pipeline):
        assert "cubin" in compile_kernel("cuda:90").asm


def test_text(remora_command, folder):
    result = remora_command("pipeline", "--with", "shown_pipelines.py:mine")
    assert result.code == 0
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[0].startswith("cuda:90 Triton 3.")
    assert lines[0].endswith("language triton, with mine")
    assert "ttir/inliner common.inliner" in lines
    assert "+ stages{number=4} before ttir/cse (pipeline mine)" in lines
    assert "+ stock pass common.cse at the end of ttgir (pipeline mine)" in lines
    assert "- ttgir/coalesce disabled (pipeline mine)" in lines
    assert "- ttir/combine replaced by stages (pipeline mine)" in lines
    assert "* override of ptx by <lambda> (pipeline mine)" in lines
    assert 'ttgir/convert_to_ttgpuir ttir.convert_to_ttgpuir("cuda:90", 4, 32, 1)' in lines
    assert "cubin makes a binary" in lines


def test_a_plugin_and_conditions(remora_command, folder):
    module = "shown_pipelines"
    one = view(remora_command, "--with", f"{module}:plugin", "--with", f"{module}:elsewhere")
    assert one["pipelines"] == ["mine", "elsewhere"]
    assert "block_pingpong" not in json.dumps(one)
    assert "LowerOperations" in json.dumps(view(remora_command, "--with", "tlx"))


def test_passes_of_one_s_own(remora_command, folder):
    shown = view(remora_command, "--with", "shown_pipelines:own")
    rows = shown["stages"][0]["passes"]
    assert [r["inserted"] for r in rows[:2]] == ["stock pass common.cse", "stages{number=3}"]
    assert {r["edit"] for r in rows[2:]} == {"disabled"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "tpu"], "'tpu' is not a target"),
        (["--language", "cuda"], "'cuda' is not a language"),
        (["--with", "nobody"], "no plugin is named 'nobody'"),
        (["--with", "shown_pipelines:nothing"], "is neither a pipeline nor a plugin"),
        (["--with", "nowhere:mine"], "nowhere cannot be imported"),
        (["--with", "gone.py:mine"], "there is no Python file"),
        (
            ["--with", "shown_pipelines:mine", "--target", "hip:gfx950"],
            "the stage 'ptx' does not exist for hip:gfx950",
        ),
        (
            ["--with", "shown_pipelines:mine", "--with", "shown_pipelines:own"],
            "two edits contradict each other",
        ),
    ],
)
def test_what_goes_wrong_is_said(remora_command, folder, arguments, words):
    result = remora_command("pipeline", *arguments)
    assert (result.code, result.out) == (1, "")
    assert words in result.err
    assert "Traceback" not in result.err


def test_nothing_is_left_in_force(remora_command, folder):
    remora_command("pipeline", "--with", "shown_pipelines:mine")
    assert "mine" not in [p.name for p in active.pipelines()]
