"""Masks for what a predicated body does to memory."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.dsl.regions import spans
from remora.errors import WrongShape
from remora.ir.build import Builder, attribute, inherent, op_name
from remora.ir.locations import source_line
from remora.tlx.lower.layouts import with_encoding
from remora.tlx.lower.shared import segments
from remora.tlx.predicates import warp_predicate

_I1 = attribute("i1")


@warp_predicate.lowering("hip")
def lower_predicate(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """At its begin: masks for loads, stores and atomics up to its end."""
    if op.attributes["edge"] == "end":
        return
    span = next(s for s in spans(lowering.ops, op.name) if s.begin is op)
    for each in span.body():
        for inner in list(each.walk()):
            if op_name(inner) in ("tt.load", "tt.store", "tt.atomic_rmw"):
                _mask(inner, op.operands[0])


def _mask(op: Operation, predicate: SSAValue) -> None:
    """And the predicate to the mask of an operation on memory."""
    name, operands = op_name(op), list(op.operands)
    before = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}[name]  # operands before the mask
    masked = (inherent(op, "operandSegmentSizes").get_values()[1] if name == "tt.load"
              else len(operands) > before)  # fmt: skip
    builder = Builder.before(op)
    here = _like(predicate, operands[0].type, builder, op)
    if masked:
        here = builder.value("arith.andi", [operands[before], here], here.type)
    operands[before : before + bool(masked)] = [here]
    op.operands = operands
    if name == "tt.load":
        sizes = inherent(op, "operandSegmentSizes").get_values()
        said = op.properties if "operandSegmentSizes" in op.properties else op.attributes
        said["operandSegmentSizes"] = segments(1, 1, sizes[2])


def _like(predicate: SSAValue, pointers: Attribute, builder: Builder, op: Operation) -> SSAValue:
    """The predicate in the shape and layout of pointers."""
    kind: Any = predicate.type
    if not isinstance(pointers, TensorType):
        if isinstance(kind, TensorType):
            _refuse(kind.get_shape(), (), op)
        return predicate
    wanted = with_encoding(TensorType(_I1, pointers.get_shape()), str(pointers.encoding))
    if not isinstance(kind, TensorType):
        return builder.value("tt.splat", [predicate], wanted)
    shape, whole = kind.get_shape(), pointers.get_shape()
    if shape != whole[: len(shape)]:
        _refuse(shape, whole, op)
    layouts = [str(pointers.encoding)]
    for dim in range(len(whole) - 1, len(shape) - 1, -1):
        layouts.append(f"#ttg.slice<{{dim = {dim}, parent = {layouts[-1]}}}>")
    here = with_encoding(kind, layouts.pop())
    if kind != here:
        predicate = builder.value("ttg.convert_layout", [predicate], here)
    while layouts:
        dims = len(predicate.type.get_shape())  # type: ignore[attr-defined]
        grown = TensorType(_I1, (*shape, *(1,) * (dims + 1 - len(shape))))
        axis = attribute(f"{dims} : i32")
        laid = with_encoding(grown, layouts.pop())
        predicate = builder.value("tt.expand_dims", [predicate], laid, {"axis": axis})
    if predicate.type != wanted:
        predicate = builder.value("tt.broadcast", [predicate], wanted)
    return predicate


def _refuse(shape: tuple[int, ...], pointers: tuple[int, ...], op: Operation) -> None:
    raise WrongShape(
        f"tlx.warp_predicate: the predicate is of shape {shape}, pointers of {pointers}",
        where=source_line(op.location),
        hint="pointers of body have the predicate's shape, or begin with it",
    )
