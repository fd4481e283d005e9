"""Passes that fail: the error's class and words, the reproducer, and life afterwards."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from compiling import (
    Exits,
    Look,
    Raises,
    Renames,
    Returns,
    Truncates,
    Unwritable,
    code_of,
    compile_kernel,
    dot,
    parse,
    threads,
)

import remora
from remora.errors import (
    InvalidIR,
    KernelRenamed,
    LanguageError,
    PassRaised,
    PassReturned,
    StageFailed,
)
from remora.pipeline import Pipeline, run_pass, use

FAILURES = [
    (Raises(7), PassRaised, "the pass raised ValueError: broken on purpose 7"),
    (Exits(), PassRaised, "the pass raised SystemExit: 3"),
    (Returns(), PassReturned, "the pass returned ModuleOp"),
    (Truncates(), InvalidIR, "block with no terminator"),
    (Unwritable(), InvalidIR, "the pass left invalid IR"),
    (Renames(), KernelRenamed, "from ['axpy'] to ['another']"),
]
NAMES = [broken.name for broken, _, _ in FAILURES]


@pytest.fixture(scope="module")
def source() -> str:
    return compile_kernel("cuda:90").asm["source"]


@pytest.mark.parametrize(("broken", "kind", "words"), FAILURES, ids=NAMES)
def test_in_the_middle_of_a_compilation(broken, kind, words, fresh_cache):
    with use(Pipeline("broken").insert(broken, after="ttir/cse")), pytest.raises(kind) as caught:
        compile_kernel("cuda:90")
    error = caught.value
    assert words in error.what
    assert f"pass {broken.name} (compiling:{type(broken).__name__})" in error.where
    assert "after ttir/cse" in error.where
    assert "kernel axpy" in error.where
    folder = Path(error.reproducer)
    info = json.loads((folder / "info.json").read_text())
    assert info["command"] in error.hint
    assert info["place"] == "after ttir/cse (pipeline broken)"
    assert parse((folder / "before.mlir").read_text()).has_function("axpy")
    # The process lives, and nothing of the broken pass is left.
    assert "cubin" in compile_kernel("cuda:90").asm


@pytest.mark.parametrize(("broken", "kind", "words"), FAILURES, ids=NAMES)
def test_the_reproducer_shows_it_again(broken, kind, words, source):
    with pytest.raises(kind) as caught:
        run_pass(broken, parse(source), place="after ttir/cse")
    command = json.loads((Path(caught.value.reproducer) / "info.json").read_text())["command"]
    again = subprocess.run(
        [sys.executable, "-m", "remora.cli", *shlex.split(command)[1:]],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"PYTHONPATH": str(Path(remora.__file__).parents[1])},
    )
    assert again.returncode == 1
    assert words in again.stderr
    assert f"pass {broken.name}" in again.stderr
    assert "Traceback" not in again.stderr


def test_the_cause_is_kept(source):
    with pytest.raises(PassRaised) as caught:
        run_pass(Raises(), parse(source), place="here")
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_module_is_left_as_it_was(source):
    module = parse(source)
    before = str(module)
    for broken, kind, _ in FAILURES:
        with pytest.raises(kind):
            run_pass(broken, module, place="here")
        assert str(module) == before


def test_a_language_error_goes_through(source):
    class Complains(Look):
        def apply(self, ctx, module):
            raise LanguageError("the kernel is wrong")

    with pytest.raises(LanguageError, match="the kernel is wrong"):
        run_pass(Complains(), parse(source), place="here")


def test_invalid_ir_names_the_kernel_s_line(fresh_cache):
    with (
        use(Pipeline("broken").insert(Truncates(), after="ttir/inliner")),
        pytest.raises(InvalidIR) as caught,
    ):
        compile_kernel("cuda:90")
    assert "compiling.py:" in caught.value.what


def test_a_failure_in_ttgir_and_llir(fresh_cache):
    for stage in ("ttgir", "llir"):
        with (
            use(Pipeline("broken").insert(Raises(), at=f"{stage}/end")),
            pytest.raises(PassRaised, match=f"at the end of {stage}"),
        ):
            compile_kernel("cuda:90")


def test_a_failure_leaves_nothing_in_the_cache(fresh_cache):
    stock = code_of(compile_kernel("cuda:90"))
    pipeline = Pipeline("broken").insert(Raises(), at="ttir/end")
    for _ in range(2):
        with use(pipeline), pytest.raises(PassRaised):
            compile_kernel("cuda:90")
    assert code_of(compile_kernel("cuda:90")) == stock


# --- stock passes that fail because of an edit ---------------------------------------------------

# What is left out, the stage that fails for it, what the error says; per target.
NEEDED = [
    ("cuda:90", "ttgir/convert_to_ttgpuir", "ttgir", "number of warps"),
    ("hip:gfx950", "ttgir/convert_to_ttgpuir", "ttgir", "number of warps"),
    ("cuda:90", "ttir/inliner", "ttgir", "the stock pass"),
    ("cuda:90", "llir/to_llvmir", "llir", "translate module to LLVM IR"),
]


@pytest.mark.parametrize(("target", "anchor", "stage", "words"), NEEDED)
def test_a_disabled_pass_that_a_later_one_needs(target, anchor, stage, words, fresh_cache):
    plain = code_of(compile_kernel(target))
    with use(Pipeline("less").disable(anchor)), pytest.raises(StageFailed) as caught:
        compile_kernel(target, dot, 32)
    error = caught.value
    assert isinstance(error, RuntimeError)  # as Triton's own
    assert error.where.startswith(f"stage {stage}")
    assert f"disable {anchor} (pipeline less)" in error.where
    assert words in error.what + error.where
    # The process, the cache and the next kernel are as before.
    assert code_of(compile_kernel(target)) == plain
    assert "ttgir" in compile_kernel(target, dot, 32).asm


def test_the_command_shows_it_again(fresh_cache, capfd):
    less = Pipeline("less").disable("ttgir/convert_to_ttgpuir")
    with use(less), pytest.raises(StageFailed) as caught:
        compile_kernel("cuda:90")
    assert "the stock pass coalesce; to see it again: remora opt" in caught.value.where
    command = caught.value.where.partition("to see it again: ")[2].partition(";")[0]
    again = subprocess.run(
        [sys.executable, "-m", "remora.cli", *shlex.split(command)[1:]],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 1
    assert "stock passes failed: " in again.stderr
    assert "number of warps" in again.stderr


def test_what_stock_passes_print_is_not_lost(fresh_cache, capfd, monkeypatch):
    """MLIR's own dumps and remarks go to standard error, with edits or without."""
    monkeypatch.setenv("MLIR_ENABLE_DUMP", "1")
    with use(Pipeline("less").disable("ttgir/coalesce").replace("ttir/cse", Look())):
        compile_kernel("cuda:90")
    assert "IR Dump Before" in capfd.readouterr().err


def test_threads_that_fail_at_once_leave_standard_error(fresh_cache, capfd):
    def fail(number: int) -> str:
        less = Pipeline(f"p{number}").disable("ttgir/convert_to_ttgpuir")
        with use(less), pytest.raises(StageFailed) as caught:
            compile_kernel("cuda:90")
        return caught.value.where

    with threads(4) as pool:
        for number, where in enumerate(pool.map(fail, range(8))):
            assert f"convert_to_ttgpuir (pipeline p{number})" in where
    capfd.readouterr()
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_text_that_the_assembler_refuses(fresh_cache):
    """Triton's own error, for its autotuner; the traceback names the edit."""
    bad = Pipeline("bad").override("ptx", lambda text, compile_: compile_(text) + "nonsense;")
    with use(bad), pytest.raises(Exception, match="ptxas") as caught:
        compile_kernel("cuda:90")
    assert "override of ptx" in "".join(caught.value.__notes__)
    assert "(pipeline bad)" in "".join(caught.value.__notes__)
