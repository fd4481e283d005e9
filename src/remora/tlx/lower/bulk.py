"""Lowerings of bulk copies: ``cp.async.bulk``, which stock Triton has no operation for."""

from __future__ import annotations

from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.ir.build import Builder, attribute
from remora.tlx.bulk import async_store, bulk_load
from remora.tlx.lower.analysis import TlxAnalysis, Use, wants
from remora.tlx.lower.assembly import barrier, execute, execute_once, shared_address
from remora.tlx.lower.layouts import SwizzledShared
from remora.tlx.lower.shared import token
from remora.tlx_plugin import FROM_HOPPER_ON


@wants("tlx.async_store")
def _stored(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> SwizzledShared | None:
    # The bytes are copied in the order in which they are; of one dimension there is only one.
    row_major = tuple(reversed(range(len(shape))))
    return SwizzledShared.plain(row_major) if use.operand == 1 and len(shape) > 1 else None


def _address(builder: Builder, pointer: SSAValue) -> SSAValue:
    return builder.value("tt.ptr_to_int", [pointer], attribute("i64"))


@bulk_load.lowering(*FROM_HOPPER_ON)
def lower_load(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``cp.async.bulk``, by one thread when all of the task are done with the buffer."""
    pointer, buffer, bar, size = op.operands
    barrier(builder)
    execute_once(
        builder,
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
        [
            shared_address(builder, buffer),
            _address(builder, pointer),
            size,
            shared_address(builder, bar),
        ],
    )
    return token(builder)


@async_store.lowering(*FROM_HOPPER_ON)
def lower_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``cp.async.bulk``, by one thread when all of the task have written; a group."""
    pointer, buffer, size = op.operands
    rank = len(lowering.analysis.described(buffer).shape)
    barrier(builder)
    execute_once(
        builder,
        "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;",
        [_address(builder, pointer), shared_address(builder, buffer, rank), size],
    )
    execute(builder, "cp.async.bulk.commit_group;")
