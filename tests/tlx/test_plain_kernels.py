"""A kernel without a word of TLX compiles as if the plugin were not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import triton
import triton.language as tl
from compiling import axpy, code_of, compile_kernel, dot
from tlx.building import build, line_of

import remora.tlx as tlx
from remora.dsl import Op
from remora.errors import PluginError

pytestmark = pytest.mark.usefixtures("always_compile")


@triton.jit
def with_tlx(p, q, B: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 1)
    at = tl.arange(0, B)
    tlx.local_store(tlx.local_view(buf, 0), tl.load(p + at))
    tl.store(q + at, tlx.local_load(tlx.local_view(buf, 0)))


@pytest.fixture
def inactive() -> Iterator[None]:
    tlx.plugin.deactivate()
    yield
    tlx.plugin.activate()


@pytest.fixture
def stock(inactive: None) -> dict[tuple[str, str], bytes]:
    return {
        (target, kernel.fn.__name__): code_of(compile_kernel(target, kernel, 64))
        for target in ("cuda:90", "hip:gfx942")
        for kernel in (axpy, dot)
    }


def test_the_same_bytes_before_and_after_a_kernel_with_tlx(
    stock: dict[tuple[str, str], bytes],
) -> None:
    tlx.plugin.activate()
    for _ in range(2):
        for (target, name), code in stock.items():
            kernel = {"axpy": axpy, "dot": dot}[name]
            assert code_of(compile_kernel(target, kernel, 64)) == code
            assert build(with_tlx, target, p="*fp16", q="*fp16", B=128).metadata.shared == 256


def test_without_the_plugin_a_word_of_tlx_is_an_error_at_its_line(inactive: None) -> None:
    with pytest.raises(triton.CompilationError) as caught:
        build(with_tlx, "cuda:90", p="*fp16", q="*fp16", B=128)
    error = PluginError.of(caught.value)
    assert error is not None
    assert "no pipeline in force lowers it" in error.what
    assert line_of(with_tlx, "tlx.local_alloc") in error.where


def test_every_edit_waits_for_a_word_of_tlx() -> None:
    """So that other kernels, and torch.compile, are as without it."""
    assert all(edit.trigger for pipeline in tlx.plugin.pipelines for edit in pipeline.edits)


def test_the_plugin_names_every_word() -> None:
    words = {name for name in tlx.__all__ if isinstance(getattr(tlx, name), Op)}
    named = [op.partition(":")[2] for op in tlx.plugin.ops]
    assert sorted(words) == sorted(named)
