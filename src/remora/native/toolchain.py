"""What a native plugin is built against: ``python -m remora.native.toolchain [--mlir PREFIX]``.

Prints the compiler's flags. A plugin shares C++ objects with libtriton, whose
layouts change with LLVM's revision: built against another one it corrupts the
heap. So the revision that Triton's wheel was built from is looked up, in
libtriton, and held against the one that MLIR's headers say they are of.
"""

from __future__ import annotations

import mmap
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from remora.errors import NativeBuildMismatch, RemoraError
from remora.native.probe import installed_triton

_REVISION = re.compile(r'#define\s+LLVM_REVISION\s+"([0-9a-f]{8,40})"')
_RELEASE = re.compile(r'#define\s+TRITON_VERSION\s+"([^"]+)"')


def llvm_revision(libtriton: Path) -> str:
    """The commit of llvm-project that a libtriton was built from: 40 hexadecimal digits.

    Raises:
        NativeBuildMismatch: it does not say.
    """
    with libtriton.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(b"git ")
        while at >= 0:
            revision = re.match(rb"git ([0-9a-f]{40})\0", data[at : at + 45])
            if revision:
                return revision[1].decode()
            at = data.find(b"git ", at + 1)
    raise NativeBuildMismatch(
        "libtriton does not say from which revision of LLVM it was built",
        where=str(libtriton),
        hint="install Triton from its wheel",
    )


def check_mlir(prefix: Path, revision: str, release: str) -> None:
    """Check that MLIR's headers are of the revision.

    Raises:
        NativeBuildMismatch: they are not, or do not say of which they are.
    """
    header = prefix / "include" / "llvm" / "Support" / "VCSRevision.h"
    text = header.read_text() if header.is_file() else ""
    found = _REVISION.search(text)
    what = (
        f"MLIR is of revision {found[1]}" if found else "MLIR does not say of which revision it is"
    )
    if found is None or not revision.startswith(found[1]):
        raise NativeBuildMismatch(
            f"{what}, and Triton {release} was built from {revision}",
            where=str(header),
            hint=f"build or download LLVM at {revision}, with LLVM_APPEND_VC_REV=ON, and name its "
            "prefix with MLIR=",
        )


def check_headers(include: Path, release: str) -> None:
    """Check that Triton's headers are there, and of the release.

    Raises:
        NativeBuildMismatch: they are not.
    """
    version = include / "triton" / "Version.h"
    found = _RELEASE.search(version.read_text()) if version.is_file() else None
    plugin = include / "triton" / "Tools" / "PluginUtils.h"
    if found is None or not plugin.is_file():
        raise NativeBuildMismatch(
            f"Triton's headers are not there; its wheel brings them from 3.9 on, this is {release}",
            where=str(include),
            hint="build Triton's source of this release, and name the folder of its headers with "
            "TRITON_INCLUDE=",
        )
    if found[1] != release:
        raise NativeBuildMismatch(
            f"Triton's headers are of {found[1]}, and the Triton that is installed is {release}",
            where=str(version),
            hint="name the headers of this release",
        )


def flags(mlir: Path | None = None, include: Path | None = None) -> list[str]:
    """The compiler's flags for a plugin for the Triton that is installed, for a shell.

    Args:
        mlir: the prefix of an LLVM and MLIR; without it only C can be built.
        include: Triton's headers, where the wheel does not bring them.

    Raises:
        NativeBuildMismatch: one of these is not what the wheel was built from.
        UnsupportedTriton: there is no Triton.
    """
    triton = installed_triton()
    found = [f'-DTRITON_RELEASE=\\"{triton.release}\\"', shlex.quote(str(triton.library))]
    if mlir is None:
        return found
    include = include or triton.library.parents[1] / "include"
    check_headers(include, triton.release)
    check_mlir(mlir, llvm_revision(triton.library), triton.release)
    return [*found, *(f"-I{shlex.quote(str(path))}" for path in (include, mlir / "include"))]


def main(
    mlir: Annotated[Path | None, typer.Option(help="The prefix of an LLVM and MLIR.")] = None,
    triton_include: Annotated[Path | None, typer.Option(help="Triton's headers.")] = None,
) -> None:
    """Print the compiler's flags for a plugin for the Triton that is installed."""
    try:
        typer.echo(" ".join(flags(mlir, triton_include)))
    except RemoraError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
