"""Attention whose products leave out columns that are zero.

A wgmma takes any multiple of 8 columns, a tensor of Triton's a power of two. Where the head
dimension is 80 or 96 the kernels pad buffers to 128 columns, with zeros (forward the values', back
all); the instructions that make so many are written anew in the PTX, for those that there are.
The others' accumulators are zero as before, as nothing is added to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import triton

import remora.tlx as tlx
from remora.errors import PipelineError
from remora.kernels.attention_backward import attention_backward
from remora.kernels.attention_plain import EXTENTS
from remora.kernels.attention_specialized import attention_forward
from remora.pipeline import Pipeline, attach

#: Of 128 columns; the last group is there where the first operand is in registers.
_PRODUCT = re.compile(
    r"(wgmma\.mma_async\.sync\.aligned\.m64n)128(k16\.f32\.\S+ )\{((?:%\w+,){63}%\w+)\}, (?=(\{)?)"
)


def narrowed(ptx: str, columns: int, every: bool = False) -> str:
    """The PTX with products of 128 columns narrowed: ``every`` one, or those of values.

    The values' first operand is in registers, that of scores, of 128 keys, in shared memory.

    Raises:
        PipelineError: there is none.
    """
    count = 0

    def narrow(found: re.Match[str]) -> str:
        nonlocal count
        if not (every or found[4]):
            return found[0]
        count += 1
        # A thread has half of each column's eight rows: four registers for eight columns.
        registers = ",".join(found[3].split(",")[: columns // 2])
        return f"{found[1]}{columns}{found[2]}{{{registers}}}, "

    text = _PRODUCT.sub(narrow, ptx)
    if not count:
        raise PipelineError("the PTX has no product to narrow", hint="release of Triton?")
    return text


def _edit(columns: int, every: bool) -> Callable[[str, Callable[[str], str]], str]:
    def edit(text: str, compile_: Callable[[str], str]) -> str:
        return narrowed(compile_(text), columns, every)

    return edit


@cache
def forward_of(dim: int) -> Any:
    """``attention_forward`` for head dimension 80 or 96, with values of 128 columns."""
    kernel = triton.jit(do_not_specialize=["BATCH", *EXTENTS])(attention_forward.fn)
    pipeline = Pipeline(f"products of {dim} columns").override("ptx", _edit(dim, False))
    return attach(pipeline, tlx.products_in_flight)(kernel)


@cache
def backward_of(dim: int) -> Any:
    """``attention_backward`` for head dimension 80 or 96, with buffers of 128 columns."""
    kernel = triton.jit(do_not_specialize=[*EXTENTS, "PADDED_Q"])(attention_backward.fn)
    pipeline = Pipeline(f"products of {dim} columns").override("ptx", _edit(dim, True))
    return attach(pipeline, tlx.products_in_flight)(kernel)
