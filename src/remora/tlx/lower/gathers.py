"""Lowerings of ``local_gather`` and ``local_scatter``: stock Triton's, which know any layout."""

from __future__ import annotations

from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.ir.build import Builder, i32
from remora.tlx.gathers import local_gather, local_scatter


@local_gather.lowering("cuda", "hip")
def lower_gather(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.local_gather``."""
    kind = op.results[0].type
    return builder.value(
        "ttg.local_gather", op.operands, kind, {"axis": i32(op.attributes["axis"])}
    )


@local_scatter.lowering("cuda", "hip")
def lower_scatter(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttg.local_scatter``."""
    builder.op("ttg.local_scatter", op.operands, [], {"axis": i32(op.attributes["axis"])})
