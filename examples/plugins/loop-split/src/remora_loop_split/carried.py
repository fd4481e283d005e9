"""What a loop carries that only advances: known after any number of iterations."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from remora.ir.build import op_name
from remora_loop_split.affine import LoopForms
from remora_loop_split.ranges import constant_of, width_of
from remora_loop_split.wide import Wide, WideArithmetic

_I64 = IntegerType(64)


def advance(loop: Operation, forms: LoopForms, index: int) -> list[tuple[str, SSAValue]] | None:
    """The additions by which a carried value becomes that of the next iteration.

    index: which of the carried values. Each addition is ``arith.addi`` or
    ``tt.addptr`` and a scalar, or a tensor of one number, that does not change
    in the loop. None where there is anything else.
    """
    block = loop.regions[0].block
    argument, terminator = block.args[index + 1], block.last_op
    assert terminator is not None
    value, additions = terminator.operands[index], []
    while value is not argument:
        op = value.owner
        if not isinstance(op, Operation) or op_name(op) not in ("arith.addi", "tt.addptr"):
            return None
        if op.parent_block() is not block:
            return None
        amount = op.operands[1]
        if _scalar(amount, forms) is None:
            return None
        additions.append((op_name(op), amount))
        value = op.operands[0]
    return additions or None


def _scalar(amount: SSAValue, forms: LoopForms) -> SSAValue | int | None:
    """The invariant scalar that every element of an amount is."""
    number = constant_of(amount)
    if number is not None:
        return number
    if not isinstance(amount.type, TensorType):
        invariant = width_of(amount.type) is not None and forms.invariant(amount)
        return amount if invariant else None
    op = amount.owner
    if isinstance(op, Operation) and op_name(op) in ("tt.splat", "tt.broadcast"):
        return _scalar(op.operands[0], forms)
    return None


def advanced(
    start: SSAValue, additions: list[tuple[str, SSAValue]], count: Wide, wide: WideArithmetic
) -> SSAValue:
    """A carried value after ``count`` iterations."""
    for name, amount in additions:
        scalar = _scalar(amount, wide.forms)
        assert scalar is not None
        one = scalar if isinstance(scalar, int) else wide.read(scalar)
        total = wide.product(count, one)
        # A pointer may go farther than the type of one step reaches.
        element: Any = _I64 if name == "tt.addptr" else _element(start.type)
        offset = wide.value(total, element)
        if isinstance(start.type, TensorType):
            kind = TensorType(element, start.type.get_shape(), start.type.encoding)
            offset = wide.build.value("tt.splat", [offset], kind)
        start = wide.build.value(name, [start, offset], start.type)
    return start


def _element(kind: Attribute) -> Attribute:
    return kind.element_type if isinstance(kind, TensorType) else kind
