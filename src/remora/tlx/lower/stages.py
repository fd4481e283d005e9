"""Stages of warp pipelines: borders for stock Triton's own pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from remora.dsl.lowering import CustomOp, Lowering
from remora.dsl.regions import Span, spans
from remora.errors import LanguageError
from remora.ir.build import Builder, i32, op_name
from remora.ir.locations import source_line
from remora.tlx.lower.hints import scheduling_mask
from remora.tlx.stages import warp_pipeline_stage

_LOOPS = ("scf.for", "scf.while")
#: What beside arithmetic gives addresses and masks.
_ADDRESSES = (
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.addptr", "ttg.convert_layout",
    "tlx.local_view", "tlx.local_trans",
)  # fmt: skip
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
    """Refuse stages that stock Triton could not keep apart; waits at their ends move out."""
    stages: dict[Operation, list[Span]] = {}
    by_part = {part: op for op in lowering.ops for part in op.parts}

    def name_of(op: Operation) -> str:
        custom = by_part.get(op)
        return custom.name if custom else op_name(op)

    for span in spans(lowering.ops, "tlx.warp_pipeline_stage"):
        begin = span.begin
        loop = begin.op.parent_op()
        if loop is None or op_name(loop) != "scf.for":
            raise LanguageError(
                "tlx.warp_pipeline_stage: a stage has to stand in the body of a for loop itself",
                where=begin.where,
                hint="not in a branch, a while loop or outside of loops",
            )
        stages.setdefault(loop, []).append(span)
        _move_out(span, name_of)
        for each in span.body():
            for inner in each.walk():
                name = name_of(inner)
                if name in _LOOPS or name in _MEETINGS:
                    what = "a loop" if name in _LOOPS else "a wait or a barrier"
                    raise LanguageError(
                        f"tlx.warp_pipeline_stage: there is {what} within a stage, "
                        f"which begins at {begin.where}",
                        where=source_line(inner.location),
                        hint="waits and barriers stand between stages, or at their ends; loops "
                        "around them",
                    )
    for loop, within in stages.items():
        if len(within) < 2:
            raise LanguageError(
                "tlx.warp_pipeline_stage: there is one stage in the loop",
                where=source_line(loop.location),
                hint="at least two: what one group of warps does while the other does the rest",
            )
        for one, other in pairwise(within):
            meetings = [op for op in _between(one, other) if name_of(op) in _MEETINGS]
            if len(meetings) > 1:
                raise LanguageError(
                    f"tlx.warp_pipeline_stage: {len(meetings)} waits or barriers between this "
                    f"stage and the one before it, which begins at {one.begin.where}",
                    where=other.begin.where,
                    hint="one alone: the wait with the smaller count waits for both",
                )


def _between(one: Span, other: Span) -> Iterator[Operation]:
    """The operations from the end of one stage to the beginning of another."""
    op = one.end.op.next_op
    while op is not None and op is not other.begin.op:
        yield op
        op = op.next_op


def _move_out(span: Span, name_of: Callable[[Operation], str]) -> None:
    """Move waits and barriers with which a stage begins or ends to before and after it."""
    body = span.body()
    first = next((op for op in body if _does_something(op, name_of)), None)
    while first is not None and name_of(first) in _MEETINGS:
        first.detach()
        Rewriter.insert_op(first, InsertPoint.before(span.begin.op))
        body = span.body()
        first = next((op for op in body if _does_something(op, name_of)), None)
    last = next((op for op in reversed(body) if _does_something(op, name_of)), None)
    point = InsertPoint.after(span.end.op)
    while last is not None and name_of(last) in _MEETINGS and not any(r.uses for r in last.results):
        last.detach()
        Rewriter.insert_op(last, point)
        point = InsertPoint.before(last)
        last = next((op for op in reversed(span.body()) if _does_something(op, name_of)), None)


def _does_something(op: Operation, name_of: Callable[[Operation], str]) -> bool:
    """Whether more than numbers and addresses come of an operation."""
    name = name_of(op)
    return not name.startswith(("arith.", "math.")) and name not in _ADDRESSES
