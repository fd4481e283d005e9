"""The model of a kernel that Triton compiled: its assembly, and what the launch gives it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from remora.analysis.binaries import disassemble, resources
from remora.analysis.model import KernelModel, LoopModel, model, read
from remora.errors import UnknownAssembly

#: Units whose work PTX says only roughly: ptxas moves it to the uniform datapath, or away.
_INEXACT = ("issue", "alu", "fma", "sfu")


def of_kernel(kernel: Any, warps: int | None = None) -> KernelModel:
    """The model of a ``CompiledKernel``, registers and shared memory included.

    NVIDIA: the loops are those of the PTX, which says shapes, bytes and addresses; vector
    instructions and issue slots of loops with products are counted in the SASS.
    """
    shared = kernel.metadata.shared
    if "amdgcn" in kernel.asm:
        return model(read(kernel.asm["amdgcn"], shared=shared, warps=warps))
    registers, spills = resources(kernel.asm["cubin"])
    found = model(
        read(kernel.asm["ptx"], shared=shared, registers=registers, spills=spills, warps=warps)
    )
    with suppress(UnknownAssembly):
        text = disassemble(kernel.asm["cubin"])
        exact = model(read(text, warps=found.warps, target=found.target))
        _count_again(found.loops, exact.loops)
    return found


def _count_again(loops: list[LoopModel], machine: list[LoopModel]) -> None:
    """Take what PTX says roughly from the loop of the SASS that has the same products.

    ptxas keeps the order of loops, and may unroll one: then an iteration is a part of its.
    """
    left = [loop for loop in machine if loop.flops]
    for loop in [loop for loop in loops if loop.flops]:
        same = next((m for m in left if m.flops % loop.flops == 0), None)
        if same is None:
            continue
        left.remove(same)
        times = same.flops // loop.flops
        kept = {unit: c for unit, c in loop.cycles.items() if unit not in _INEXACT}
        counted = {unit: round(c / times, 1) for unit, c in same.cycles.items() if unit in _INEXACT}
        loop.cycles = {**kept, **counted}
        loop.issue = round(same.issue / times)
