"""Stages of warp pipelines: borders for stock Triton's own pass."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from remora.dsl.lowering import CustomOp, Lowering
from remora.dsl.regions import spans
from remora.errors import LanguageError
from remora.ir.build import Builder, i32, op_name
from remora.ir.locations import source_line
from remora.tlx.lower.hints import scheduling_mask
from remora.tlx.stages import warp_pipeline_stage

_LOOPS = ("scf.for", "scf.while")
#: What holds all warps of a program, or a warp until its copies are there.
_MEETINGS = ("tlx.async_load_wait_group", "ttg.barrier", "gpu.barrier", "ttg.async_wait")


@warp_pipeline_stage.lowering("hip")
def lower_stage(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """The border at the end of a stage: a scheduling barrier with its label and priority."""
    if op.attributes["edge"] == "begin":
        return
    priority = op.attributes["priority"]
    builder.op(
        "rocdl.sched.barrier", [], [],
        {
            "mask": scheduling_mask(0),
            "triton.warp_pipeline.border": StringAttr(op.attributes["label"]),
            **({} if priority is None else {"triton.warp_pipeline.priority": i32(priority)}),
        },
    )  # fmt: skip


def check_stages(lowering: Lowering) -> None:
    """Refuse stages that stock Triton could not keep apart."""
    stages: dict[Operation, int] = {}
    by_part = {part: op for op in lowering.ops for part in op.parts}
    for span in spans(lowering.ops, "tlx.warp_pipeline_stage"):
        begin = span.begin
        loop = begin.op.parent_op()
        if loop is None or op_name(loop) != "scf.for":
            raise LanguageError(
                "tlx.warp_pipeline_stage: a stage has to stand in the body of a for loop itself",
                where=begin.where,
                hint="not in a branch, a while loop or outside of loops",
            )
        stages[loop] = stages.get(loop, 0) + 1
        for each in span.body():
            for inner in each.walk():
                custom = by_part.get(inner)
                name = custom.name if custom else op_name(inner)
                if name in _LOOPS or name in _MEETINGS:
                    what = "a loop" if name in _LOOPS else "a wait or a barrier"
                    raise LanguageError(
                        f"tlx.warp_pipeline_stage: there is {what} within a stage, "
                        f"which begins at {begin.where}",
                        where=source_line(inner.location),
                        hint="waits and barriers stand between stages, loops around them",
                    )
    for loop, count in stages.items():
        if count < 2:
            raise LanguageError(
                "tlx.warp_pipeline_stage: there is one stage in the loop",
                where=source_line(loop.location),
                hint="at least two: what one group of warps does while the other does the rest",
            )
