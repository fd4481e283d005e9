"""What the tools that come with Triton say of a cubin."""

from __future__ import annotations

import re
import subprocess
import tempfile

from remora.errors import UnknownAssembly


def resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers of a thread, and how many are spilled; None where no tool tells.

    Spills are what it has of stack and local memory, in 4 bytes.
    """
    output = _run("cuobjdump", ["-res-usage"], cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)", output or "")
    return (int(found[1]), (int(found[2]) + int(found[3])) // 4) if found else (None, None)


def disassemble(cubin: bytes) -> str:
    """SASS.

    Raises:
        UnknownAssembly: it is no cubin, or nvdisasm is missing.
    """
    output = _run("nvdisasm", [], cubin)
    if output is None:
        raise UnknownAssembly(
            "nvdisasm does not read this cubin", hint="give the PTX, or what nvdisasm prints"
        )
    return output


def _run(tool: str, arguments: list[str], content: bytes) -> str | None:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(content)
        file.flush()
        try:
            return subprocess.run(
                [getattr(knobs.nvidia, tool).path, *arguments, file.name],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        except (OSError, RuntimeError, subprocess.CalledProcessError):
            return None
