"""Products of as many columns as there are.

A wgmma takes any multiple of 8 columns, a tensor of Triton's a power of two. Where an operand
has columns that are zero, the instructions are written anew in the PTX, for the columns that
are not. The others' accumulators are zero as before, as nothing is added to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from remora.errors import PipelineError
from remora.pipeline import Pipeline

#: Of sums in fp32; what follows them is the first operand: registers, or a descriptor.
_PRODUCT = re.compile(
    r"(wgmma\.mma_async\.sync\.aligned\.m64n)(\d+)(k\d+\.f32\.\S+ )\{((?:%\w+,)+%\w+)\}, (?=(\{)?)"
)


def narrowed(ptx: str, wide: int, columns: int, *, registers: bool) -> str:
    """The PTX with products of ``wide`` columns narrowed.

    registers: those whose first operand is in registers, or those where it is in shared memory.

    Raises:
        PipelineError: there is none.
    """
    count = 0

    def narrow(found: re.Match[str]) -> str:
        nonlocal count
        if int(found[2]) != wide or bool(found[5]) != registers:
            return found[0]
        count += 1
        # A thread has half of each column's eight rows: four registers for eight columns.
        sums = ",".join(found[4].split(",")[: columns // 2])
        return f"{found[1]}{columns}{found[3]}{{{sums}}}, "

    text = _PRODUCT.sub(narrow, ptx)
    if not count:
        raise PipelineError(
            f"the PTX has no product of {wide} columns to narrow", hint="release of Triton?"
        )
    return text


def _compile(
    text: str, compile_: Callable[[str], str], wide: int, columns: int, registers: bool
) -> str:
    return narrowed(compile_(text), wide, columns, registers=registers)


def narrow(wide: int, columns: int, *, registers: bool) -> Pipeline:
    """Narrows a kernel's products; see ``narrowed``."""
    edit = partial(_compile, wide=wide, columns=columns, registers=registers)
    return Pipeline(f"products of {columns} columns").override("ptx", edit)
