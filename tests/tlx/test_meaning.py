"""Runs ``meaning*.py`` in processes of their own, in which kernels have the reference meaning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MEANINGS = sorted(path.name for path in Path(__file__).parent.glob("meaning*.py"))


@pytest.mark.parametrize("file", MEANINGS)
def test_the_reference_meaning(file: str) -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", here / file],
        cwd=here.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout
