"""What a benchmark's numbers hold for: the same record in every result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def record() -> dict[str, Any]:
    """Machine, versions and command; of the GPU, driver, power limit and clock, if there is one."""
    import triton

    found: dict[str, Any] = {
        "cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version(),
        "triton": triton.__version__,
    }  # fmt: skip
    for package in ("xdsl", "torch"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    if gpu := _gpu():
        import torch

        found |= {"gpu": gpu, "cuda": torch.version.cuda}
        with suppress(RuntimeError, ImportError):
            from remora.host.targets import ptxas_release

            major, minor = torch.cuda.get_device_capability()
            found["ptxas"] = "{}.{}".format(*ptxas_release(10 * major + minor))
    return {"machine": found, "command": [_anywhere(word) for word in sys.argv]}


def answer(python: str, *command: str) -> Any:
    """What a program prints as JSON on its last line, run by another environment's Python."""
    done = subprocess.run([python, *command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _anywhere(word: str) -> str:
    """A word of the command without the folders of this machine."""
    name, equals, place = word.rpartition("=")
    script = Path(place)
    if not script.is_absolute():
        return word
    here = Path(__file__).resolve().parent.parent
    inside = script.is_relative_to(here)
    return name + equals + (str(script.relative_to(here)) if inside else script.name)


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _gpu() -> str:
    query = "--query-gpu=name,driver_version,power.limit,clocks.max.sm"
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
    return ""
