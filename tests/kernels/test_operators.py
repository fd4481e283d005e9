"""Runs ``meaning_operators.py`` in a process in which kernels have the reference meaning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_operators_with_the_reference_meaning() -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         here / "meaning_operators.py"],
        cwd=here.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout
