"""Lowerings for NVIDIA: ``cp.async`` and ``wgmma``."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, StringAttr, TensorType
from xdsl.ir import Operation, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import WrongType
from remora.host import features
from remora.ir.alignment import copy_bytes, element_bytes
from remora.ir.build import Builder, attribute, boolean, i32, inherent, op_name
from remora.tlx.copies import async_load, async_load_commit_group, async_load_wait_group
from remora.tlx.dots import async_dot, async_dot_wait
from remora.tlx.lower.assembly import barrier
from remora.tlx.lower.layouts import dot_operand, run_of, with_encoding
from remora.tlx.lower.shared import (
    carrying_load,
    erase_load,
    load_now,
    masked_load,
    segments,
    token,
)

_TOKEN = attribute("!ttg.async.token")

# The least that cp.async moves.
_LEAST_BYTES = 4

# tt.InputPrecision: the only one that wgmma has for fp32; others ignore it.
_TF32 = 0


def has_copies(lowering: Lowering) -> bool:
    """Whether the target has ``cp.async`` (compute capability 8.0)."""
    return int(lowering.target.arch) >= 80


@async_load.lowering("cuda")
def lower_async_load(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.async_copy_global_to_local``, or through registers where that cannot be."""
    load = carrying_load(op)
    pointer, mask, other = masked_load(load)
    contiguous = lowering.analysis.layout_of(op.operands[1]).order[0]
    known = copy_bytes(lowering.analysis.alignment, pointer, mask, contiguous)
    size = min(known, run_of(pointer.type, contiguous) * element_bytes(pointer.type))
    if not has_copies(lowering) or size < _LEAST_BYTES or not _is_zero(other):
        load_now(op, load, builder)
    else:
        operands = [v for v in (pointer, op.operands[1], mask, other) if v is not None]
        policy = {
            k: v for k, v in load.properties.items() if k in ("cache", "evict", "cachePolicy")
        }
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


def _is_zero(other: SSAValue | None) -> bool:
    """Whether masked elements become zero, as the copy engine makes them."""
    if other is None:
        return True
    owner = other.owner
    while isinstance(owner, Operation) and op_name(owner) in ("ttg.convert_layout", "tt.splat"):
        owner = owner.operands[0].owner
    if not isinstance(owner, Operation) or op_name(owner) != "arith.constant":
        return False
    value: Any = inherent(owner, "value")
    if not isinstance(value, DenseIntOrFPElementsAttr):
        number = value.value.data
    elif value.is_splat():
        number = next(iter(value.iter_values()))
    else:
        return False
    return f"{number:g}" == "0"  # and not -0.0


@async_load_commit_group.lowering("cuda")
def lower_commit(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttg.async_commit_group``."""
    if has_copies(lowering):
        builder.op("ttg.async_commit_group", [], [_TOKEN])
    return token(builder)


@async_load_wait_group.lowering("cuda")
def lower_wait(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """The wait as an instruction, and a barrier so that all threads see the data.

    Not ``ttg.async_wait``: stock software pipelining recounts every one of a
    module, to 0 where it has no tokens, and merges them.
    """
    if has_copies(lowering):
        instruction = f"cp.async.wait_group {op.attributes['pendings']};"
        _wait(builder, instruction, fence=lowering.analysis.has_products)
    return token(builder)


def wait_for_all_copies(builder: Builder, fence: bool) -> None:
    """Wait for every copy, also those whose group was not closed.

    fence: as of ``_wait``.
    """
    _wait(builder, "cp.async.wait_all;", fence=fence)


def _wait(builder: Builder, instruction: str, *, fence: bool) -> None:
    """Wait for copies, and let all threads see them.

    fence: let the matrix unit see them too. Each thread makes its own copies
        visible before the barrier (PTX ISA, memory consistency model, proxies).
    """
    builder.op(
        "tt.elementwise_inline_asm", [], [attribute("i32")],
        {
            "asm_string": StringAttr(f"{instruction}\n\tmov.u32 $0, 0;"),
            "constraints": StringAttr("=r"),
            "packed_element": i32(1),
            "pure": boolean(False),
        },
    )  # fmt: skip
    if fence:
        builder.op("ttng.fence_async_shared", [], [], {"bCluster": boolean(False)})
    barrier(builder)


@async_dot.lowering("cuda:90")
def lower_dot(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttng.warp_group_dot``, asynchronous."""
    a, b, acc = op.operands[:3]
    kind = lowering.analysis.accumulator_type(op)
    if acc.type != kind:
        acc = builder.value("ttg.convert_layout", [acc], kind)
    if isinstance(a.type, TensorType):
        element: Any = a.type.element_type
        layout = dot_operand(0, str(kind.encoding), element.bitwidth)
        a = builder.value("ttg.convert_layout", [a], with_encoding(a.type, layout))
    use_acc = op.operands[3] if len(op.operands) > 3 else None
    if use_acc is None:
        use_acc = builder.constant(int(op.attributes["use_acc"]), 1)
    product = builder.value(
        "ttng.warp_group_dot", [a, b, acc, use_acc], kind,
        {
            "inputPrecision": i32(_TF32),
            "maxNumImpreciseAcc": i32(op.attributes["imprecise"]),
            "isAsync": boolean(True),
        },
    )  # fmt: skip
    if op.op not in lowering.analysis.chained:
        return product
    return builder.value("ttng.warp_group_dot_wait", [product], kind, {"pendings": i32(0)})


@async_dot_wait.lowering("cuda:90")
def lower_dot_wait(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``ttng.warp_group_dot_wait``, which threads the product through itself.

    With several warp groups also a barrier: a product of another group may still
    read shared memory that is written next.
    """
    (product,) = op.operands
    if not lowering.analysis.is_product(product):
        raise WrongType(
            "tlx.async_dot_wait: x has to come from tlx.async_dot",
            where=op.where,
            hint="wait for the value that tlx.async_dot returned, before anything computes with it",
        )
    values = list(dict.fromkeys((product, *lowering.analysis.handed_on.get(op, ()))))
    wait = builder.op(
        "ttng.warp_group_dot_wait", values, [v.type for v in values],
        {"pendings": i32(op.attributes["pendings"])},
    )  # fmt: skip
    lowering.analysis.hand_on(wait)
    result = wait.results[0]
    if lowering.num_warps_at(op.op) > 4 and not features().dot_wait_synchronises:
        barrier(builder)
    return result
