"""``remora opt``. How it prints a module is in tests/lit."""

from __future__ import annotations

import io
import sys

import pytest
from compiling import compile_kernel

from remora import host

GOOD = """module {
  tt.func public @kernel(%x: i32) {
    %0 = arith.addi %x, %x : i32
    tt.return
  }
}
"""
PASSES = """
from dataclasses import dataclass
import remora

@dataclass(frozen=True)
class Say(remora.ModulePass):
    name = "say"
    text: str = "nothing"
    numbers: tuple[int, ...] = ()
    loud: bool = False

    def apply(self, ctx, module):
        print(f"// {self.text} {self.numbers} {self.loud}")

@dataclass(frozen=True)
class Fail(remora.ModulePass):
    name = "fail"

    def apply(self, ctx, module):
        raise KeyError("lost")

@dataclass(frozen=True)
class Cse(remora.ModulePass):
    name = "cse"

    def apply(self, ctx, module):
        pass

@dataclass(frozen=True)
class Needs(remora.ModulePass):
    name = "needs"
    count: int

    def apply(self, ctx, module):
        pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with good.mlir and passes.py in it."""
    (tmp_path / "good.mlir").write_text(GOOD)
    (tmp_path / "opt_passes.py").write_text(PASSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("opt_passes", None)


def test_without_passes_the_module_is_printed(remora_command, folder):
    result = remora_command("opt", "good.mlir")
    assert (result.code, result.err) == (0, "")
    assert "arith.addi %arg0, %arg0 : i32" in result.out
    assert "loc(" not in result.out
    assert result.out.endswith("}\n")
    (folder / "again.mlir").write_text(result.out)
    assert remora_command("opt", "again.mlir").out == result.out


def test_locations_are_of_the_file(remora_command, folder):
    assert 'loc("good.mlir":3:10)' in remora_command("opt", "good.mlir", "--locations").out


def test_generic_form(remora_command, folder):
    result = remora_command("opt", "good.mlir", "--generic")
    assert '"arith.addi"(%arg0, %arg0)' in result.out
    (folder / "again.mlir").write_text(result.out)
    assert remora_command("opt", "again.mlir", "--generic").out == result.out


def test_standard_input(remora_command, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(GOOD))
    assert "arith.addi" in remora_command("opt", "-").out
    monkeypatch.setattr(sys, "stdin", io.StringIO("nonsense"))
    result = remora_command("opt", "-")
    assert result.code == 1
    assert "where: standard input" in result.err


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx950"])
def test_stages_of_a_compilation(remora_command, folder, target):
    """The target is read from the module: its dialects are loaded without --target."""
    compiled = compile_kernel(target)
    for stage in ("ttir", "ttgir"):
        (folder / "stage.mlir").write_text(compiled.asm[stage])
        result = remora_command("opt", "stage.mlir", "--locations")
        assert (result.code, result.err) == (0, "")
        assert result.out.strip() == compiled.asm[stage].strip()


def test_passes_run_in_order_with_their_arguments(remora_command, folder):
    passes = 'opt_passes:Say{text="a, b" numbers=1,2},opt_passes.py:Say, opt_passes:Say{loud=true}'
    result = remora_command("opt", "good.mlir", "-p", passes)
    assert (result.code, result.err) == (0, "")
    said = [line for line in result.out.splitlines() if line.startswith("//")]
    assert said == ["// a, b (1, 2) False", "// nothing () False", "// nothing () True"]


@pytest.mark.parametrize(
    ("passes", "words"),
    [
        ("nobody", "no plugin has a pass 'nobody'"),
        ("loop_unrol", "stock passes alike: ttir.loop_unroll"),
        ("cse(3)", "it takes no arguments"),
        ("cse{x=1}", "the arguments of the stock pass 'cse' are not so written: {x=1}"),
        ("convert_to_ttgpuir(x)", "'convert_to_ttgpuir' are not so written: (x)"),
        ("convert_to_ttgpuir", "does not take these arguments"),
        ("canonicalizer", "several stock passes are named 'canonicalizer'"),
        ("ttgpuir.coalesce", "stock passes failed: "),
        ("opt_passes:Gone", "has no attribute 'Gone'"),
        ("nowhere:Say", "No module named 'nowhere'"),
        ("gone.py:Say", "there is no Python file"),
        ("opt_passes.py:Gone", "has no pass 'Gone'"),
        ("opt_passes.py:dataclass", "has no pass 'dataclass'"),
        ("opt_passes:dataclass", "is not a pass"),
        ("opt_passes:Say,", "is not a list of passes"),
        ("opt_passes:Say{text=", "is not a list of passes"),
        ("opt_passes:Say{text=1}", "it takes text: str = nothing, numbers: tuple[int, ...]"),
        ("opt_passes:Say{volume=1}", "it takes text: str = nothing, numbers: tuple[int, ...]"),
        ("opt_passes:Say{=}", "do not fit: Expected argument name here"),
        ("opt_passes:Say{text=} x{", "is not a list of passes"),
        ("opt_passes:Say{loud} x{}", "do not fit"),
        ("opt_passes:Needs", 'requires argument "count"'),
        ("opt_passes:Fail", "the pass raised KeyError: 'lost'"),
    ],
)
def test_what_goes_wrong_is_said(remora_command, folder, passes, words):
    result = remora_command("opt", "good.mlir", "-p", passes)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: ")
    assert words in result.err
    assert "way out: " in result.err
    assert "Traceback" not in result.err


REDUNDANT = GOOD.replace("tt.return", "%1 = arith.addi %x, %x : i32\n    tt.return")


def test_stock_passes_beside_python_s(remora_command, folder):
    (folder / "twice.mlir").write_text(
        REDUNDANT.replace(
            "tt.return",
            '%2 = arith.muli %0, %1 : i32\n tt.print "x" '
            "{hex = false, isSigned = array<i32: 1>} : %2 : i32\n tt.return",
        )
    )
    for passes in ("cse", "common.cse", "common.cse,opt_passes:Say,cse"):
        result = remora_command("opt", "twice.mlir", "-p", passes)
        assert result.code == 0, result.err
        assert result.out.count("arith.addi") == 1
    assert remora_command("opt", "twice.mlir").out.count("arith.addi") == 2


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx950"])
def test_a_stage_by_hand(remora_command, folder, target):
    """The passes that `remora pipeline` lists, run over what the stage got."""
    import json

    compiled = compile_kernel(target)
    (folder / "before.mlir").write_text(compiled.asm["ttir"])
    view = json.loads(remora_command("pipeline", "--target", target, "--json").out)
    (ttgir,) = (s for s in view["stages"] if s["stage"] == "ttgir")
    passes = ",".join(
        row["pass"]
        + (f"({', '.join(map(json.dumps, row['arguments']))})" if row["arguments"] else "")
        for row in ttgir["passes"]
    )
    for options in ((), ("--verify-each",)):
        result = remora_command("opt", "before.mlir", "--target", target, "-p", passes, *options)
        assert result.code == 0, result.err
        assert "tt.load" in result.out or "amdg.buffer_load" in result.out
        assert 'ttg.target = "' + target in result.out


def test_print_after_all(remora_command, folder):
    result = remora_command("opt", "good.mlir", "-p", "cse,opt_passes:Say", "--print-after-all")
    after = [line for line in result.err.splitlines() if line.startswith("// after")]
    assert after == ["// after stock pass cse", "// after say"]
    assert result.err.count("tt.func public @kernel") == 2


def test_a_plugin_s_pass_with_the_name_of_a_stock_one(remora_command, folder, monkeypatch):
    from remora.cli import passes

    monkeypatch.syspath_prepend(str(folder))
    cls = __import__("opt_passes").Cse
    monkeypatch.setattr(passes.registry, "find_pass", lambda name: cls)
    result = remora_command("opt", "good.mlir", "-p", "cse")
    assert result.code == 1
    assert "two passes are named 'cse': the stock pass common.cse, and opt_passes:Cse" in result.err
    assert remora_command("opt", "good.mlir", "-p", "opt_passes:Cse").code == 0


def test_a_broken_file_of_passes(remora_command, folder):
    (folder / "broken.py").write_text("1 / 0\n")
    result = remora_command("opt", "good.mlir", "-p", "broken.py:Say")
    assert result.code == 1
    assert "broken.py cannot be imported: ZeroDivisionError" in result.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("%x, %x", "%x, %y"), "line 3, column 25: use of undeclared SSA value name"),
        ("module {", "line 1"),
        ("\x00\xff", "line 1"),
    ],
)
def test_a_module_that_is_none(remora_command, folder, text, words):
    (folder / "bad.mlir").write_bytes(text.encode())
    result = remora_command("opt", "bad.mlir")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: MLIR refuses the module:\n")  # MLIR's own words once
    assert words in result.err
    assert "where: bad.mlir" in result.err


def test_a_file_that_is_none(remora_command, folder):
    (folder / "binary.mlir").write_bytes(b"\xff\xfe\x00")
    for name in ("gone.mlir", ".", "binary.mlir"):
        result = remora_command("opt", name)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("error: the file cannot be read")


@pytest.mark.parametrize("target", ["cuda", "cuda:hopper", "hip:90", "rocm:gfx942", "tpu:5"])
def test_a_target_that_is_none(remora_command, folder, target):
    result = remora_command("opt", "good.mlir", "--target", target)
    assert result.code == 1
    assert f"{target!r} is not a target" in result.err


def test_an_unfit_triton(remora_command, folder, monkeypatch):
    import triton

    host.features.cache_clear()
    monkeypatch.setattr(triton, "__version__", "3.5.0")
    result = remora_command("opt", "good.mlir")
    assert result.code == 1
    assert result.err.startswith("error: Triton 3.5.0 is too old")
