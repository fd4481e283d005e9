"""Targets as they are written on the command line."""

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
