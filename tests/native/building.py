"""Native libraries for the tests, and scripts that use them in fresh processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from remora.native.probe import installed_triton

SOURCE = Path(__file__).parent / "library.c"
RELEASE = installed_triton().release
_ROOT = Path(__file__).parents[2]


def build(*options: str, release: str = f'"{RELEASE}"', **defines: str) -> Path:
    """The library of ``library.c`` with these macros, compiled once a session.

    Args:
        options: the compiler's.
        release: what it says it was built for, as C.
        defines: macros, by their lower-case names.
    """
    flags = [f"-D{k.upper()}={v}" for k, v in {"release": release, **defines}.items()]
    name = hashlib.sha256(repr((options, flags)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "native"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.so"
    if not path.exists():
        new = folder / f"{name}.{os.getpid()}"
        command = ["cc", "-shared", "-fPIC", "-w", *flags, str(SOURCE), "-o", str(new), *options]
        subprocess.run(command, check=True)
        new.rename(path)
    return path


def wheels(name: str) -> Path:
    """A test plugin of Triton's wheel: "TritonPluginsTestLib" or "MLIRDialectPlugin"."""
    return installed_triton().library.parents[1] / "plugins" / f"lib{name}.so"


def run(code: str, *arguments: object, ok: bool = True, **environment: str) -> str:
    """What a fresh process that runs ``code`` prints; its errors too where it is to fail."""
    file = Path(tempfile.mkdtemp()) / "script.py"  # kernels have to be in a file
    file.write_text(code)
    paths = os.pathsep.join([str(_ROOT / "src"), str(_ROOT / "tests")])
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_PLUGIN_PATHS"}
    done = subprocess.run(
        [sys.executable, file, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=kept | {"PYTHONPATH": paths} | environment,
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout if ok else done.stdout + done.stderr
