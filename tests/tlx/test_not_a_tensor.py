"""A buffer where Triton takes a tensor: refused, and the process lives (libtriton would abort)."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import remora.tlx as tlx
from remora.errors import WrongType


@triton.jit
def misuse(p, WHAT: tl.constexpr):
    buffers = tlx.local_alloc((64, 64), tl.float16, 2)
    view = tlx.local_view(buffers, 0)
    if WHAT == "trans":
        tl.trans(view)
    if WHAT == "permute":
        tl.permute(view, (1, 0))
    if WHAT == "dot":
        tl.dot(view, view)
    if WHAT == "where":
        tl.where(True, view, view)
    if WHAT == "sum":
        tl.sum(view)
    if WHAT == "index":
        view[0]
    if WHAT == "to":
        view.to(tl.float32)
    if WHAT == "T":
        _ = view.T


@pytest.mark.parametrize("what", ["trans", "permute", "dot", "where", "sum", "index", "to", "T"])
def test_refused(what: str) -> None:
    source = ASTSource(misuse, {"p": "*fp16", "WHAT": "constexpr"}, {"WHAT": what})
    with pytest.raises(triton.CompilationError) as caught:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
    error = WrongType.of(caught.value)
    assert error is not None
    assert "a buffer is not a tensor" in error.what
    assert "local_load" in error.hint
