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
    "native-plugins.md": {
        "passes.py": "a native pass on Triton 3.",
        "operations.py": "its own operation, lowered by its own pass",
        "refuse.py": "begins with b'not '",
    },
}
# What they import.
MODULES = {
    "write-a-plugin.md": ["mine.py"],
    "pipelines.md": ["common.py"],
    "native-plugins.md": ["load.py", "common.py"],
}


def files(page: str) -> dict[str, str]:
    """The files of a page; blocks of one file are put one after the other."""
    found: dict[str, str] = {}
    for name, _, code in _BLOCK.findall((DOCS / page).read_text()):
        # The first line names the file; it counts as a line of it.
        found[name] = found.get(name, "") + f"# {name}\n{code}\n"
    return found


def write(page: str, folder: Path) -> None:
    for name, text in files(page).items():
        (folder / name).write_text(text)


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
    ("page", "name", "words"),
    [(page, *program) for page, programs in PAGES.items() for program in programs.items()],
)
def test_program(tmp_path: Path, page: str, name: str, words: str) -> None:
    write(page, tmp_path)
    environment = {}
    if name == "run_it.py":
        pytest.importorskip("torch")
        environment = {"TRITON_INTERPRET": "1"}
    assert words in run(tmp_path, name, **environment)
