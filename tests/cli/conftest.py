"""Runs the command in this process, as its script would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from remora.cli import main


@dataclass(frozen=True)
class Result:
    """What a run of the command left."""

    code: int
    out: str
    err: str


@pytest.fixture
def remora_command(monkeypatch, capfd) -> Callable[..., Result]:
    """``remora_command("opt", "x.mlir")``: exit code, standard output and error."""

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["remora", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run
