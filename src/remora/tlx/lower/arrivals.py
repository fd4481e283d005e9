"""Arrivals at barriers of other CTAs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from remora.dsl.lowering import CustomOp, Lowering, reached
from remora.ir.build import Builder, attribute, boolean, i32, op_name
from remora.tlx.clusters import remote_view
from remora.tlx.lower.assembly import barrier, execute, shared_address
from remora.tlx_plugin import FROM_HOPPER_ON


def computed(builder: Builder, instruction: str, operands: list[SSAValue]) -> SSAValue:
    """An i32 that an instruction without effects computes of i32s: ``$0`` from ``$1``, ..."""
    return builder.value(
        "tt.elementwise_inline_asm", operands, attribute("i32"),
        {
            "asm_string": StringAttr(instruction),
            "constraints": StringAttr(",".join(["=r", *("r" for _ in operands)])),
            "packed_element": i32(1),
            "pure": boolean(True),
        },
    )  # fmt: skip


def mapped(builder: Builder, address: SSAValue, rank: SSAValue) -> SSAValue:
    """The address, in the cluster's shared memory, of what another CTA has at an address."""
    return computed(builder, "mapa.shared::cluster.u32 $0, $1, $2;", [address, rank])


@remote_view.lowering(*FROM_HOPPER_ON)
def lower_view(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``mapa``: another CTA's barrier is its address."""
    bar, rank = op.operands
    lowering.analysis.reached.append(bar)
    return mapped(builder, shared_address(builder, bar), rank)


def arrive_remotely(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``mbarrier.arrive`` in the cluster: one thread after all of the task, or each thread."""
    address, count = op.operands[0], op.attributes["arrive_count"]
    if len(op.operands) > 1:
        lowering.analysis.reached.append(address)
        address = mapped(builder, shared_address(builder, address), op.operands[1])
    arrive = f"mbarrier.arrive{_release(lowering)}.shared::cluster.b64 _, [$0], {count};"
    if op.attributes["is_warp_barrier"]:
        execute(builder, arrive, [address])
        return
    if not _follows_an_arrival(builder, address):
        barrier(builder)
    execute(
        builder,
        "{\n\t.reg .pred %first;\n\t.reg .b32 %thread;\n"
        "\tmov.u32 %thread, %laneid;\n"
        "\tor.b32 %thread, %thread, $1;\n"
        "\tsetp.eq.u32 %first, %thread, 0;\n"
        f"\t@%first {arrive}\n\t}}",
        [address, builder.value("ttg.warp_id", [], attribute("i32"))],
    )


def _release(lowering: Lowering) -> str:
    """What an arrival at another CTA's barrier orders for the threads that wait there.

    By PTX's default what its own CTA sees, which is all that a buffer's turn needs: copies and
    products go through the asynchronous proxy. Ordinary stores into another CTA's memory need
    the cluster's order; it costs a memory barrier of the whole GPU at each arrival (on an H200
    a product's loop took 1.5 times as long).
    """
    stores = any(op.name == "tlx.remote_shmem_store" for op in lowering.ops)
    return ".release.cluster" if stores else ""


def _follows_an_arrival(builder: Builder, address: SSAValue) -> bool:
    """Whether all of the task have met for an arrival, and nothing was done since."""
    before: Any = address.owner if isinstance(address.owner, Operation) else None
    while before is not None and op_name(before) != "llvm.inline_asm":
        if op_name(before) not in _WITHOUT_EFFECT:
            return False
        before = before.prev_op
    return before is not None and "mbarrier.arrive" in before.attributes["asm_string"].data


# What the address of another CTA's barrier is computed by.
_WITHOUT_EFFECT = {
    "arith.addi", "arith.constant", "arith.divsi", "arith.muli", "arith.remsi",
    "builtin.unrealized_conversion_cast", "llvm.extractvalue", "llvm.ptrtoint",
    "ttg.memdesc_index", "ttg.warp_id", "tt.elementwise_inline_asm",
}  # fmt: skip


def root_of(value: SSAValue) -> Any:
    """The allocation behind a lowered buffer or barrier: its ``ttg.local_alloc``, or None."""

    def behind(current: SSAValue) -> Iterator[SSAValue]:
        owner = current.owner
        if isinstance(owner, Operation):
            if op_name(owner).startswith("ttg.memdesc_"):
                yield owner.operands[0]
            return
        assert isinstance(current, BlockArgument)
        parent = owner.parent_op()
        assert parent is not None
        if op_name(parent) == "ttg.warp_specialize.partitions":
            yield parent.operands[current.index]
        elif op_name(parent) == "scf.for" and current.index:
            yield parent.operands[current.index + 2]

    for current in reached(value, behind):
        owner = current.owner
        if isinstance(owner, Operation) and op_name(owner) == "ttg.local_alloc":
            return owner
    return None
