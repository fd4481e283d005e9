"""``remora compile``: kernels of a file, for targets that are not there."""

from __future__ import annotations

import sys

import pytest
import triton

KERNELS = """
import remora
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

marked = remora.Pipeline("marked").override("llir", lambda m, c: c(m) + "; attached\\n")
also = remora.Pipeline("also").override("llir", lambda m, c: c(m) + "; with\\n")

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr = 64, DTYPE: tl.constexpr = tl.float16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n).to(DTYPE), at < n)

@triton.autotune([triton.Config({})], key=[])
@remora.attach(marked)
@triton.heuristics({})
@triton.jit
def tuned(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)

@triton.jit
def bad(x):
    tl.nothing(x)

@gluon.jit
def scale(x, y):
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [4], [0])
    at = gl.arange(0, 256, layout=layout)
    gl.store(y + at, gl.load(x + at) * 2.0 + 1.0)
"""


@pytest.fixture
def compile_command(remora_command, tmp_path, monkeypatch, hook_as_before):
    """The command in a folder with kernels.py, and Triton's driver as before afterwards."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = triton.runtime.driver._active
    yield lambda *arguments: remora_command("compile", *arguments)
    triton.runtime.driver._active = before


COPY = ("kernels.py::copy", "--signature", "*fp16:16,*fp16,i32")


def test_a_stage_is_printed(compile_command):
    result = compile_command(*COPY, "--constexpr", "BLOCK=128")
    assert (result.code, result.err) == (0, "")
    assert "tensor<128x!tt.ptr<f16>, #blocked>" in result.out
    assert "%x: !tt.ptr<f16> {tt.divisibility = 16 : i32}" in result.out
    assert "%y: !tt.ptr<f16> loc" in result.out


@pytest.mark.parametrize(
    ("target", "stages", "words"),
    [
        ("cuda:90", ["ptx", "cubin"], ".target sm_90a"),
        ("hip:gfx950", ["amdgcn", "hsaco"], "gfx950"),
        ("hip:gfx942", ["amdgcn", "hsaco"], "gfx942"),
    ],
)
def test_files_for_every_target(compile_command, tmp_path, target, stages, words):
    emit = ",".join(["ttir", *stages])
    result = compile_command(*COPY, "--target", target, "--emit", emit, "-o", "out")
    assert result.code == 0, result.err
    assert result.out == ""
    out = tmp_path / "out"
    assert sorted(p.name for p in out.iterdir()) == sorted(f"copy.{s}" for s in ["ttir", *stages])
    assert words in (out / f"copy.{stages[0]}").read_text()
    assert (out / f"copy.{stages[1]}").read_bytes()[:4] == b"\x7fELF"


def test_options_and_constants(compile_command):
    result = compile_command(*COPY, "--options", "num_warps=8", "--constexpr", "DTYPE=tl.int32")
    assert '"ttg.num-warps" = 8' in result.out
    assert "arith.fptosi" in result.out


def test_gluon(compile_command):
    result = compile_command(
        "kernels.py::scale", "--signature", "*fp32,*fp32", "--target", "hip:gfx950"
    )
    assert "threadsPerWarp = [64]" in result.out


def test_attached_pipelines_and_others(compile_command):
    arguments = ("kernels.py::tuned", "--signature", "*fp32", "--constexpr", "BLOCK=32")
    result = compile_command(*arguments, "--emit", "llir", "--with", "kernels.py:also")
    assert result.code == 0, result.err
    assert result.out.rstrip().endswith("; attached\n; with")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kernels.py"], "'kernels.py' names no kernel"),
        (["gone.py::copy"], "there is no Python file"),
        (["kernels.py::nope"], "kernels in it: copy, tuned, bad, scale"),
        (["kernels.py::copy"], "in their order: x, y, n"),
        (["kernels.py::copy", "--signature", "*fp16,*fp16,!"], "'!' is not a type"),
        (["kernels.py::copy", "--signature", "*fp16,*fp16,i33"], "may not exist"),
        (["kernels.py::tuned", "--signature", "*fp32"], "add --constexpr BLOCK=VALUE"),
        ([*COPY, "--constexpr", "BLOC=3"], "parameters: x, y, n, BLOCK, DTYPE"),
        ([*COPY, "--constexpr", "BLOCK"], "write NAME=VALUE"),
        ([*COPY, "--constexpr", "BLOCK=100"], "power of 2"),
        ([*COPY, "--options", "numwarps=3"], "nearest: num_warps"),
        ([*COPY, "--options", "num_warps=3"], "power of 2"),
        ([*COPY, "--emit", "ttgir,amdgcn"], "there is no stage 'amdgcn'"),
        ([*COPY, "--emit", "cubin"], "name a folder for it with -o"),
        ([*COPY, "--target", "nine"], "'nine' is not a target"),
        ([*COPY, "--with", "nobody"], "no plugin is named 'nobody'"),
        (["kernels.py::bad", "--signature", "*fp32"], "has no attribute 'nothing'"),
    ],
)
def test_what_goes_wrong_is_said(compile_command, arguments, words):
    result = compile_command(*arguments)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: ")
    assert words in result.err
    assert "Traceback" not in result.err
