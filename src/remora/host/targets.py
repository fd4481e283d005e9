"""Targets: as they are written, and what a compiled kernel has to fit into."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from remora.errors import PipelineError

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget

#: What `remora doctor` tries: a target, and the hardware that it stands for.
KNOWN_TARGETS = {
    "cuda:80": "A100",
    "cuda:90": "H100, H200",
    "cuda:100": "B200",
    "hip:gfx942": "MI300",
    "hip:gfx950": "MI350",
}

# Bytes of shared memory that one program can have. NVIDIA: CUDA C++ Programming
# Guide, technical specifications by compute capability (maximum a thread
# block). AMD: CDNA 3 and CDNA 4 instruction set references, LDS of a workgroup.
_SHARED_MEMORY: dict[tuple[str, str], int] = {
    ("cuda", "80"): 163 << 10,
    ("cuda", "86"): 99 << 10,
    ("cuda", "87"): 163 << 10,
    ("cuda", "89"): 99 << 10,
    ("cuda", "90"): 227 << 10,
    ("cuda", "100"): 227 << 10,
    ("cuda", "103"): 227 << 10,
    ("cuda", "120"): 99 << 10,
    ("hip", "gfx942"): 64 << 10,
    ("hip", "gfx950"): 160 << 10,
}


def shared_memory(target: Any) -> int | None:
    """Bytes of shared memory that a program can have on a ``GPUTarget``; None if unknown."""
    return _SHARED_MEMORY.get((target.backend, str(target.arch)))


def ptxas_release(arch: int) -> tuple[int, int]:
    """Of the ptxas that Triton compiles with for an NVIDIA architecture (90 for sm_90).

    Its wheel's, if TRITON_PTXAS_PATH or TRITON_PTXAS_BLACKWELL_PATH name no other.
    """
    from triton.backends.nvidia.compiler import get_ptxas

    major, minor = map(int, get_ptxas(arch).version.split("."))
    return major, minor


def gpu_target(text: str) -> GPUTarget:
    """``cuda:90`` or ``hip:gfx950`` as a ``triton.backends.compiler.GPUTarget``.

    Raises:
        PipelineError: the text is neither.
    """
    from triton.backends.compiler import GPUTarget

    backend, _, arch = text.partition(":")
    if backend == "cuda" and arch.isdecimal():
        return GPUTarget("cuda", int(arch), 32)
    if backend == "hip" and re.fullmatch("gfx[0-9a-f]+", arch):
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise PipelineError(
        f"{text!r} is not a target", hint=f"write one of {', '.join(KNOWN_TARGETS)}, or alike"
    )


def context_of(target: GPUTarget) -> Any:
    """A ``libtriton.ir.context`` with the dialects of a target loaded."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    context = ir.context()
    ir.load_dialects(context)
    make_backend(target).load_dialects(context)
    return context
