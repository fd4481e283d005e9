"""What TLX has for CDNA on Triton 3.7: copies through registers; AMD's own words are refused."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from tlx.building import build, line_of
from tlx.test_refused import refused

import remora.tlx as tlx
from remora import errors
from remora.host import features

if features().copies_to_lds:
    pytest.skip("later releases: test_cdna.py", allow_module_level=True)


@triton.jit
def copy(p, q, n, B: tl.constexpr, WHAT: tl.constexpr):
    at = tl.arange(0, B)
    buffer = tlx.local_alloc((B,), tlx.dtype_of(p), 1)[0]
    tlx.async_load(p + at, buffer, mask=at < n)
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    if WHAT == "buffer operation":
        tlx.buffer_store(tlx.local_load(buffer), q, at)  # buffer operation
    if WHAT == "hint":
        tlx.amd_sched_barrier(0)  # hint
    tl.store(q + at, tlx.local_load(buffer))


@pytest.mark.parametrize("target", ["hip:gfx942", "hip:gfx950"])
def test_copies_go_through_registers(target: str) -> None:
    text = build(copy, target, p="*fp32", q="*fp32", n="i32", B=256, WHAT="").asm["amdgcn"]
    assert "ds_write" in text
    assert "global_load_lds" not in text


@pytest.mark.parametrize("what", ["buffer operation", "hint"])
def test_what_is_refused(what: str) -> None:
    given = {"p": "*fp32", "q": "*fp32", "n": "i32", "B": 256, "WHAT": what}
    error = refused(errors.UnsupportedByTarget, copy, "hip:gfx950", **given)
    assert line_of(copy, f"# {what}") in error.where
    assert "Triton 3.8 or later" in error.hint
