"""Lowerings for AMD's CDNA: copies go straight to LDS where the target has such loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton import knobs
from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.host import features
from remora.ir.alignment import copy_bytes, element_bytes
from remora.ir.build import Builder, attribute, boolean
from remora.tlx.copies import async_load, async_load_commit_group, async_load_wait_group
from remora.tlx.lower.layouts import SwizzledShared, order_of, run_of
from remora.tlx.lower.shared import (
    carrying_load,
    erase_load,
    load_now,
    masked_load,
    segments,
    token,
    zeros_of,
)
from remora.tlx.lower.waits import mark
from remora.tlx.utilities import thread_id

if TYPE_CHECKING:
    from remora.tlx.lower.analysis import TlxAnalysis

_TOKEN = attribute("!ttg.async.token")

# Bytes that a lane can load straight to LDS: CDNA 3 and CDNA 4 instruction set references,
# buffer and global loads with LDS; less than 4, and 12, are not used.
DIRECT = {"gfx942": (4,), "gfx950": (16, 4)}


def known_bytes(op: CustomOp, analysis: TlxAnalysis, contiguous: int) -> int:
    """Bytes that each lane is known to copy in a row, aligned and under one mask.

    contiguous: the dimension of the buffer along which elements follow each other.
    """
    pointer, mask, _ = masked_load(carrying_load(op))
    size = element_bytes(pointer.type)
    known = copy_bytes(analysis.alignment, pointer, mask, contiguous)
    known = min(known, run_of(pointer.type, contiguous) * size)
    return max(known, op.attributes.get("contiguity", 1) * size)


def direct_bytes(op: CustomOp, analysis: TlxAnalysis, contiguous: int) -> int:
    """Bytes of a lane's loads straight to LDS for a copy; 0: through registers."""
    arch = str(analysis.lowering.target.arch)
    if arch not in DIRECT or not features().copies_to_lds or knobs.amd.use_async_copy is False:
        return 0
    known = known_bytes(op, analysis, contiguous)
    if arch == "gfx942" and known != 4:
        return 0  # wider through registers, which its loads to LDS cannot do
    size = element_bytes(carrying_load(op).operands[0].type)
    return next((width for width in DIRECT[arch] if size <= width <= known), 0)


def is_direct(op: CustomOp, analysis: TlxAnalysis) -> bool:
    """Whether a copy goes straight to LDS, its buffer's layout known."""
    layout = analysis.layout_of(op.operands[1])
    if not direct_bytes(op, analysis, layout.order[0]):
        return False
    if analysis.lowering.target.arch != "gfx942":
        return True
    # Stock Triton fits the layout of the loads to that of the buffer on gfx950 only.
    kind: Any = carrying_load(op).operands[0].type
    plain = isinstance(layout, SwizzledShared) and layout.max_phase == 1
    width = run_of(kind, layout.order[0]) * element_bytes(kind)
    return plain and order_of(kind) == layout.order and width == 4


@async_load.lowering("hip")
def lower_async_load(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.async_copy_global_to_local``, or a load and a store to the buffer."""
    load = carrying_load(op)
    pointer, mask, other = masked_load(load)
    if not is_direct(op, lowering.analysis):
        load_now(op, load, builder)
    else:
        if mask is not None and other is None:
            # Without it LDS keeps what was there where the mask is false.
            other = zeros_of(load.results[0].type, builder)
        operands = [v for v in (pointer, op.operands[1], mask, other) if v is not None]
        policy = {k: v for k, v in load.properties.items() if k in ("cache", "cachePolicy")}
        builder.op(
            "ttg.async_copy_global_to_local", operands, [_TOKEN],
            {
                **policy,
                "isVolatile": boolean(op.attributes["is_volatile"]),
                "operandSegmentSizes": segments(1, 1, *(int(v is not None) for v in (mask, other))),
            },
        )  # fmt: skip
    erase_load(op, load)
    return token(builder)


def copies_in_flight(lowering: Lowering) -> bool:
    """Whether the target's copies are ever in flight."""
    return str(lowering.target.arch) in DIRECT and features().copies_to_lds


@async_load_commit_group.lowering("hip")
def lower_commit(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.async_commit_group``: a group of what was copied straight to LDS."""
    if copies_in_flight(lowering):
        builder.op("ttg.async_commit_group", [], [_TOKEN])
    return token(builder)


@async_load_wait_group.lowering("hip")
def lower_wait(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.async_wait``, of which stock Triton makes ``s_waitcnt vmcnt`` and a barrier.

    A marker first: see ``remora.tlx.lower.waits``.
    """
    if copies_in_flight(lowering):
        mark(builder, op.attributes["pendings"])
    return token(builder)


@thread_id.lowering("hip")
def lower_thread_id(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``gpu.thread_id``."""
    dimension = {"dimension": attribute(f"#gpu<dim {'xyz'[op.attributes['axis']]}>")}
    index = builder.value("gpu.thread_id", [], attribute("index"), dimension)
    return builder.value("arith.index_cast", [index], attribute("i32"))
