"""The command as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import remora


def test_version(remora_command):
    result = remora_command("--version")
    assert (result.code, result.out) == (0, f"remora {remora.__version__}\n")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_command(remora_command, arguments):
    result = remora_command(*arguments)
    for command in ("compile", "doctor", "list", "new", "opt", "pipeline", "run"):
        assert command in result.out + result.err


@pytest.mark.parametrize("command", ["compile", "doctor", "list", "new", "opt", "pipeline", "run"])
def test_help_of_a_command(remora_command, command):
    result = remora_command(command, "--help")
    assert result.code == 0
    assert f"remora {command}" in result.out


def test_an_unknown_command(remora_command):
    result = remora_command("nothing")
    assert result.code == 2
    assert "nothing" in result.err


def test_help_imports_no_compiler():
    code = (
        "import sys; sys.argv = ['remora', '--help']\n"
        "from remora.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('triton', 'xdsl', 'torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(remora.__file__).parents[1])},
    )
    assert done.stdout.splitlines()[-1] == "[]"
