"""Three words for kernels whose tasks are warp groups, below what TLX says."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine
from remora.tlx.barriers import Barrier, barrier


@op("remora.release")
def release(call: Call, bar: Any) -> None:
    """Arrive at a barrier once for the task, without waiting for its other warps.

    For buffers that only products of the warp group read, after ``tlx.async_dot_wait``: a
    product is one of the whole group, so that where it is done for one thread it is for all.
    (CUTLASS releases its pipelines so.) ``tlx.barrier_arrive`` makes all warps meet first.
    """
    call.emit([barrier(call, "bar", bar)])


@release.reference
def _release(machine: Machine, bar: Barrier) -> None:
    bar.arrive(machine.strand.release())


@release.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> None:
    from remora.tlx.lower.assembly import execute, shared_address

    execute(
        builder,
        "{\n\t.reg .pred %first;\n\t.reg .b32 %thread;\n"
        "\tmov.u32 %thread, %tid.x;\n"
        "\tand.b32 %thread, %thread, 127;\n"
        "\tsetp.eq.u32 %first, %thread, 0;\n"
        "\t@%first mbarrier.arrive.shared::cta.b64 _, [$0];\n\t}",
        [shared_address(builder, op.operands[0])],
    )


@op("remora.wait")
def wait(call: Call, bar: Any, phase: Any) -> None:
    """``tlx.barrier_wait``, of each thread by itself.

    Stock Triton makes the warps of a task meet between two waits for barriers of one array.
    """
    call.emit([barrier(call, "bar", bar), call.integer("phase", phase)])


@wait.reference
def _wait(machine: Machine, bar: Barrier, phase: Any) -> None:
    bar.wait(machine, int(phase))


@wait.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> None:
    from remora.tlx.lower.assembly import execute, shared_address

    bar, phase = op.operands
    execute(
        builder,
        "{\n\t.reg .pred %done;\nagain:\n"
        "\tmbarrier.try_wait.parity.shared::cta.b64 %done, [$0], $1;\n"
        "\t@!%done bra.uni again;\n\t}",
        [shared_address(builder, bar), phase],
    )


@op("remora.any_in_warp")
def any_in_warp(call: Call, rows: Any) -> Any:
    """Whether any of a product's rows that the warp holds is set: a scalar, of each warp its own.

    Args:
        rows: i1, one for each row of a product of the task's.

    Only elementwise work on that product's rows may depend on it: warps go different ways.
    """
    rows = call.tensor("rows", rows, dtypes=(tl.int1,))
    return call.emit([rows], [tl.int1])


@any_in_warp.reference
def _any(machine: Machine, rows: Any) -> Any:
    return np.any(rows)


@any_in_warp.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> Any:
    from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr

    from remora.ir.build import attribute
    from remora.tlx.lower.layouts import wgmma_accumulator

    (rows,) = op.operands
    (count,) = rows.type.get_shape()
    held = count // 32  # by a thread: 16 rows of each warp are in 8 groups of 4 lanes
    layout = wgmma_accumulator(count, 64, attribute("f16"), 4)
    kind = attribute(f"tensor<{count}xi1, #ttg.slice<{{dim = 1, parent = {layout}}}>>")
    rows = builder.value("ttg.convert_layout", [rows], kind)
    struct = attribute(f"!llvm.struct<({', '.join(['i1'] * held)})>")
    cast = builder.value("builtin.unrealized_conversion_cast", [rows], struct)
    found = None
    for i in range(held):
        one = builder.value(
            "llvm.extractvalue", [cast], attribute("i1"),
            {"position": attribute(f"array<i64: {i}>")},
        )  # fmt: skip
        found = one if found is None else builder.value("arith.ori", [found, one], one.type)
    number = builder.value("arith.extui", [found], attribute("i32"))
    voted = builder.value(
        "llvm.inline_asm", [number], attribute("i32"),
        {
            "asm_string": StringAttr(
                "{\n\t.reg .pred %any;\n\tsetp.ne.b32 %any, $1, 0;\n"
                "\tvote.sync.any.pred %any, %any, -1;\n\tselp.b32 $0, 1, 0, %any;\n\t}"
            ),
            "constraints": StringAttr("=r,r"),
            "has_side_effects": UnitAttr(),
        },
    )  # fmt: skip
    zero = builder.constant(0)
    return builder.value(
        "arith.cmpi", [voted, zero], attribute("i1"), {"predicate": IntegerAttr(1, 64)}
    )
