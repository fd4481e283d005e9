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


# The programs of each page, with words that each prints.
PAGES = {
    "write-a-plugin.md": {
        "try_it.py": "compiled for Hopper and CDNA",
        "refuse_it.py": "mine.fast_tanh: x has to be of fp32",
        "run_it.py": "ran on the CPU",
    },
    "pipelines.md": {
        "insert.py": "loads: 1\nloads: 1",
        "disable.py": "no wide loads",
        "replace.py": "eight warps",
        "override.py": "overridden",
        "control.py": "controlled",
        "compose.py": "two edits contradict each other",
    },
}
# What they import.
MODULES = {"write-a-plugin.md": ["mine.py"], "pipelines.md": ["common.py"]}


def files(page: str) -> dict[str, str]:
    """The files of a page; blocks of one file are put one after the other."""
    found: dict[str, str] = {}
    for name, _, code in _BLOCK.findall((DOCS / page).read_text()):
        # The first line names the file; it counts as a line of it.
        found[name] = found.get(name, "") + f"# {name}\n{code}\n"
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for page in PAGES:
        for name, text in files(page).items():
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


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run(page: str) -> None:
    text = (DOCS / page).read_text()
    assert set(files(page)) == {*PAGES[page], *MODULES[page]}
    assert len(_BLOCK.findall(text)) == text.count("```python")


@pytest.mark.parametrize(
    ("name", "words"), [program for page in PAGES.values() for program in page.items()]
)
def test_program(folder: Path, name: str, words: str) -> None:
    environment = {}
    if name == "run_it.py":
        pytest.importorskip("torch")
        environment = {"TRITON_INTERPRET": "1"}
    assert words in run(folder, name, **environment)
