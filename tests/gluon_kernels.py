"""A kernel in Gluon."""

from __future__ import annotations

from typing import Any

import triton
from compiling import TARGETS
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource


@gluon.jit
def scale(x, y, THREADS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [THREADS], [4], [0])
    at = gl.arange(0, 4 * THREADS, layout=layout)
    gl.store(y + at, gl.load(x + at) * 2.0 + 1.0)


def compile_gluon(target: str) -> Any:
    """Compile the kernel; the CompiledKernel."""
    threads = TARGETS[target].warp_size
    signature = {"x": "*fp32", "y": "*fp32", "THREADS": "constexpr"}
    source = GluonASTSource(scale, signature, {"THREADS": threads})
    return triton.compile(source, target=TARGETS[target])
