"""``remora new --native``: the project, what it builds without MLIR, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from remora.errors import NativeBuildMismatch
from remora.native import toolchain
from remora.native.probe import installed_triton, probe

TRITON = installed_triton()
HAS_HEADERS = (TRITON.library.parents[1] / "include").is_dir()
# The revisions of llvm-project from which the wheels of the tested releases were built.
REVISIONS = {
    "3.7.1": "1f126a6dea50d185c0781743a667390037ae88bd",
    "3.8.0": "5f07f818b51b786b0a87b4e514882600ecba112f",
    "3.9.0": "b010a18d2b648cab83c83967ff26b8fde11acdc6",
}


@pytest.fixture
def project(remora_command, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    result = remora_command("new", "--native", "my_passes")
    assert (result.code, result.err) == (0, "")
    return tmp_path / "my_passes"


def make(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(toolchain.__file__).parents[2])
    return subprocess.run(
        ["make", f"PYTHON={sys.executable}", *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )


def llvm(folder: Path, revision: str | None) -> Path:
    """A prefix whose headers say that they are of a revision."""
    header = folder / "llvm" / "include" / "llvm" / "Support" / "VCSRevision.h"
    header.parent.mkdir(parents=True)
    text = "#undef LLVM_REVISION" if revision is None else f'#define LLVM_REVISION "{revision}"'
    header.write_text(text + "\n")
    return folder / "llvm"


def headers(folder: Path, release: str) -> Path:
    """Headers of Triton that say that they are of a release."""
    tools = folder / "headers" / "triton" / "Tools"
    tools.mkdir(parents=True)
    (tools / "PluginUtils.h").write_text("")
    (tools.parent / "Version.h").write_text(f'#define TRITON_VERSION "{release}"\n')
    return folder / "headers"


def test_structure(project):
    files = {str(p.relative_to(project)) for p in project.rglob("*") if p.is_file()}
    assert files == {
        "Makefile", "README.md", "pyproject.toml", "native/entry.c", "native/passes.cpp",
        "native/plugin.h", "src/my_passes/__init__.py", "tests/test_library.py",
    }  # fmt: skip
    assert not any("@" in p.read_text().replace("$@", "") for p in project.rglob("*.*"))
    described = tomllib.loads((project / "pyproject.toml").read_text())
    assert described["project"]["name"] == "my-passes"
    points = described["project"]["entry-points"]["remora.native"]
    assert points == {"my_passes": "my_passes:libmy_passes.so"}


def test_the_entry_point_alone(project):
    """Built with the C compiler only, it is a plugin with empty lists."""
    built = make(project, "PASSES=", "test")
    assert built.returncode == 0, built.stdout + built.stderr
    assert "1 passed" in built.stdout
    report = probe(project / "src" / "my_passes" / "libmy_passes.so")
    assert report.is_fine
    assert (report.name, report.release, report.passes) == ("my_passes", TRITON.release, ())
    assert make(project, "clean").returncode == 0
    assert not list(project.rglob("*.so"))


def test_it_does_not_build_against_another_mlir(project, tmp_path):
    folder = headers(tmp_path, TRITON.release)
    other = "0123456789abcdef0123456789abcdef01234567"
    prefix = llvm(tmp_path, other)
    built = make(project, f"MLIR={prefix}", f"TRITON_INCLUDE={folder}")
    assert built.returncode != 0
    assert f"MLIR is of revision {other}" in built.stderr
    assert f"was built from {REVISIONS[TRITON.release]}" in built.stderr
    assert "entry.c" not in built.stdout  # nothing was compiled
    assert not list(project.rglob("*.o"))


def test_it_does_not_build_without_mlir(project):
    built = make(project)
    assert built.returncode != 0
    assert "name the prefix of an LLVM and MLIR with MLIR=" in built.stderr


def test_the_revision_of_the_wheel():
    assert toolchain.llvm_revision(TRITON.library) == REVISIONS[TRITON.release]


def test_a_libtriton_that_does_not_say(tmp_path):
    path = tmp_path / "libtriton.so"
    path.write_bytes(b"git 0123, and git " + b"g" * 40 + b"\0")
    with pytest.raises(NativeBuildMismatch, match="does not say from which revision"):
        toolchain.llvm_revision(path)


@pytest.mark.parametrize("revision", [None, "0123456789abcdef0123456789abcdef01234567"])
def test_another_mlir(tmp_path, revision):
    prefix = llvm(tmp_path, revision)
    says = f"MLIR is of revision {revision}" if revision else "MLIR does not say"
    with pytest.raises(NativeBuildMismatch, match=says) as error:
        toolchain.flags(prefix, headers(tmp_path, TRITON.release))
    assert REVISIONS[TRITON.release] in error.value.hint


def test_headers_of_another_release(tmp_path):
    prefix = llvm(tmp_path, REVISIONS[TRITON.release])
    with pytest.raises(NativeBuildMismatch, match=r"headers are of 1\.2\.3"):
        toolchain.flags(prefix, headers(tmp_path, "1.2.3"))


@pytest.mark.parametrize("shown", [40, 10])
def test_what_fits(tmp_path, shown):
    """With the wheel's own headers, where it has some."""
    prefix = llvm(tmp_path, REVISIONS[TRITON.release][:shown])
    include = None if HAS_HEADERS else headers(tmp_path, TRITON.release)
    flags = toolchain.flags(prefix, include)
    assert f"-I{prefix}/include" in flags
    assert str(TRITON.library) in flags


@pytest.mark.skipif(HAS_HEADERS, reason="the wheel brings Triton's headers")
def test_a_wheel_without_headers(tmp_path):
    with pytest.raises(NativeBuildMismatch, match=r"brings them from 3\.9 on"):
        toolchain.flags(llvm(tmp_path, REVISIONS[TRITON.release]))


@pytest.mark.skipif(not HAS_HEADERS, reason="the wheel brings no headers")
def test_the_structs_are_those_of_the_headers(project):
    """Field by field, as far as that can be read without MLIR's headers."""
    header = TRITON.library.parents[1] / "include" / "triton" / "Tools" / "PluginUtils.h"
    theirs, ours = header.read_text(), (project / "native" / "plugin.h").read_text()
    assert "#define TRITON_PLUGIN_API_VERSION 2" in theirs
    for struct, fields in (("PluginInfo", 10), ("PassInfo", 4), ("DialectInfo", 3), ("OpInfo", 2)):
        body = theirs.split(f"struct {struct} {{")[1].split("};")[0]
        declared = [line for line in body.splitlines() if line.strip().endswith(";")]
        assert len(declared) == fields, declared
        mine = ours.split("struct " + struct.replace("Info", "_info").lower() + " {")[1]
        mine = mine.split("};")[0]
        names = mine.count(";") + mine.count(", *")
        assert names == fields, mine


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mine",), "a plugin in Python needs no project"),
        (("--native", "My-Plugin"), "is not a package's name"),
        (("--native", "there"), "there is there already"),
    ],
)
def test_refused(remora_command, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    result = remora_command("new", *arguments)
    assert result.code == 1
    assert words in result.err
