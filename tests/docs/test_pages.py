"""The code of the pages runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"```python\n# (\S+\.py)([^\n]*)\n(.*?)```", re.DOTALL)


def files(page: str) -> dict[str, str]:
    """The files of a page; blocks of one file are put one after the other."""
    found: dict[str, str] = {}
    for name, _, code in _BLOCK.findall((DOCS / page).read_text()):
        # The first line names the file; it counts as a line of it.
        found[name] = found.get(name, "") + f"# {name}\n{code}\n"
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in files("write-a-plugin.md").items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, name: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env={**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_every_block_is_run() -> None:
    text = (DOCS / "write-a-plugin.md").read_text()
    assert set(files("write-a-plugin.md")) == {"mine.py", "try_it.py", "refuse_it.py", "run_it.py"}
    assert len(_BLOCK.findall(text)) == text.count("```python")


def test_compiles(folder: Path) -> None:
    assert "compiled for Hopper and CDNA" in run(folder, "try_it.py")


def test_refuses_at_the_kernels_line(folder: Path) -> None:
    assert "mine.fast_tanh: x has to be of fp32" in run(folder, "refuse_it.py")


def test_runs_on_the_cpu(folder: Path) -> None:
    pytest.importorskip("torch")
    assert "ran on the CPU" in run(folder, "run_it.py", TRITON_INTERPRET="1")
