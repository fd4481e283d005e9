"""Lowerings of barriers and fences: Triton's mbarrier operations, and PTX for the rest."""

from __future__ import annotations

from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.ir.build import Builder, boolean, i32
from remora.tlx.barriers import (
    alloc_barriers,
    alloc_warp_barrier,
    barrier_arrive,
    barrier_expect_bytes,
    barrier_wait,
    fence,
    fence_async_shared,
    named_barrier_arrive,
    named_barrier_wait,
)
from remora.tlx.lower.arrivals import arrive_remotely
from remora.tlx.lower.assembly import execute, intrinsic, shared_address
from remora.tlx.lower.lifetimes import keep_to_the_end
from remora.tlx.lower.shared import segments
from remora.tlx_plugin import FROM_HOPPER_ON


@alloc_barriers.lowering(*FROM_HOPPER_ON)
@alloc_warp_barrier.lowering(*FROM_HOPPER_ON)
def lower_alloc(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.local_alloc``, and ``ttng.init_barrier`` for each barrier.

    Stock Triton puts a barrier of all warps between the initialisation and what uses it.
    """
    analysis = lowering.analysis
    barriers = builder.value("ttg.local_alloc", [], analysis.memdesc_of(op))
    one = analysis.one_of(op)
    for number in range(op.attributes["num"]):
        view = builder.value("ttg.memdesc_index", [barriers, builder.constant(number)], one)
        builder.op("ttng.init_barrier", [view], [], {"count": i32(op.attributes["arrive_count"])})
    # Stock Triton sees no access in a thread's arrival; of memory that holds a barrier only that
    # barrier may be made.
    keep_to_the_end(op.op, barriers)
    return barriers


def _predicate(op: CustomOp, builder: Builder, index: int) -> SSAValue:
    operands = op.operands
    return operands[index] if len(operands) > index else builder.constant(1, 1)


@barrier_expect_bytes.lowering(*FROM_HOPPER_ON)
def lower_expect(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.barrier_expect``: one thread arrives."""
    operands = [op.operands[0], _predicate(op, builder, 1)]
    builder.op("ttng.barrier_expect", operands, [], {"size": i32(op.attributes["size"])})


@barrier_wait.lowering(*FROM_HOPPER_ON)
def lower_wait(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.wait_barrier``."""
    operands = [*op.operands[:2], _predicate(op, builder, 2)]
    builder.op("ttng.wait_barrier", operands, [], {"operandSegmentSizes": segments(1, 1, 1, 0)})


@barrier_arrive.lowering(*FROM_HOPPER_ON)
def lower_arrive(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.arrive_barrier``, one thread after all of the task; or an arrival of each thread."""
    bar, count = op.operands[0], op.attributes["arrive_count"]
    if op.attributes.get("remote"):
        arrive_remotely(op, builder, lowering)
        return
    if not op.attributes["is_warp_barrier"]:
        builder.op("ttng.arrive_barrier", [bar], [], {"count": i32(count)})
        return
    counted = f", {count}" if count > 1 else ""
    address = shared_address(builder, bar)
    execute(builder, f"mbarrier.arrive.shared::cta.b64 _, [$0]{counted};", [address])


@named_barrier_wait.lowering("cuda")
def lower_named_wait(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``bar.sync``."""
    intrinsic(builder, "llvm.nvvm.barrier.cta.sync.aligned.count", _named(op, builder))


@named_barrier_arrive.lowering("cuda")
def lower_named_arrive(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``bar.arrive``."""
    intrinsic(builder, "llvm.nvvm.barrier.cta.arrive.aligned.count", _named(op, builder))


def _named(op: CustomOp, builder: Builder) -> list[SSAValue]:
    """The barrier's number, and how many threads."""
    given, operands = (op.attributes["id"], op.attributes["threads"]), iter(op.operands)
    return [next(operands) if v is None else builder.constant(v) for v in given]


@fence.lowering("cuda")
@fence_async_shared.lowering("cuda")
def lower_fence(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.fence_async_shared``, or a fence of the memory model."""
    scope = op.attributes["scope"]
    if scope == "async_shared":
        builder.op("ttng.fence_async_shared", [], [], {"bCluster": boolean(False)})
    else:
        execute(builder, f"fence.acq_rel.{scope};")
