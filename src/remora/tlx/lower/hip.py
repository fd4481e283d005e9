"""Lowerings for AMD: copies go through registers, in the order of the program."""

from __future__ import annotations

from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.ir.build import Builder, attribute
from remora.tlx.copies import async_load, async_load_commit_group, async_load_wait_group
from remora.tlx.lower.cuda import carrying_load
from remora.tlx.lower.shared import erase_load, load_now, token
from remora.tlx.utilities import thread_id


@async_load.lowering("hip")
def lower_async_load(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """A load and a store to the buffer."""
    load = carrying_load(op)
    load_now(op, load, builder)
    erase_load(op, load)
    return token(builder)


@async_load_commit_group.lowering("hip")
@async_load_wait_group.lowering("hip")
def lower_group(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """Nothing is in flight; stock barriers order the buffer's writes and reads."""
    return token(builder)


@thread_id.lowering("hip")
def lower_thread_id(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``gpu.thread_id``."""
    dimension = {"dimension": attribute(f"#gpu<dim {'xyz'[op.attributes['axis']]}>")}
    index = builder.value("gpu.thread_id", [], attribute("index"), dimension)
    return builder.value("arith.index_cast", [index], attribute("i32"))
