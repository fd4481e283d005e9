"""Builds operations of Triton's dialects in xDSL, whose definitions xDSL does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from xdsl.dialects.builtin import IntegerAttr, IntegerType, StringAttr, UnregisteredOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from remora.ir.constants import ExactParser
from remora.ir.text import context


@cache
def attribute(text: str) -> Attribute:
    """An attribute or a type from its MLIR text, for example ``!ttg.async.token``."""
    return ExactParser(context(), text).parse_attribute()


def i32(value: int) -> IntegerAttr[Any]:
    """``value : i32``."""
    return IntegerAttr(value, IntegerType(32))


def boolean(value: bool) -> IntegerAttr[Any]:
    """``true`` or ``false``."""
    return IntegerAttr(int(value), IntegerType(1))


@cache
def _op_class(name: str) -> type[Any]:
    return UnregisteredOp.with_name(name)


def op_name(op: Operation) -> str:
    """The operation's MLIR name, also where xDSL has no definition of it."""
    name = op.attributes.get("op_name__")
    return name.data if isinstance(name, StringAttr) else op.name


def inherent(op: Operation, name: str) -> Any:
    """A property of an operation, wherever its text had it; None where it has none."""
    found = op.properties.get(name)
    return op.attributes.get(name) if found is None else found


class Builder:
    """Inserts operations before or after a place, all with one location."""

    def __init__(self, point: InsertPoint, location: Any) -> None:
        self.point = point
        self.location = location

    @classmethod
    def before(cls, op: Operation) -> Builder:
        """Insert before ``op``, with its location."""
        return cls(InsertPoint.before(op), op.location)

    @classmethod
    def after(cls, op: Operation) -> Builder:
        """Insert after ``op``, with its location; further operations follow in order."""
        return cls(InsertPoint.after(op), op.location)

    def op(
        self,
        name: str,
        operands: Sequence[SSAValue] = (),
        results: Sequence[Attribute] = (),
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Any] = (),
    ) -> Operation:
        """Insert ``name`` in the generic form; its attributes may be MLIR properties."""
        cls = _op_class(name)
        # Properties may be written as attributes: MLIR's parser sorts them out.
        new: Operation = cls.create(
            operands=list(operands),
            result_types=list(results),
            attributes=dict(attributes or {}),
            regions=list(regions),
            location=self.location,
        )
        Rewriter.insert_op(new, self.point)
        return new

    def value(
        self,
        name: str,
        operands: Sequence[SSAValue],
        result: Attribute,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> SSAValue:
        """Insert an operation with one result and return the result."""
        return self.op(name, operands, [result], attributes).results[0]

    def constant(self, value: int, width: int = 32) -> SSAValue:
        """``arith.constant`` of an integer of ``width`` bits."""
        kind = IntegerType(width)
        return self.value("arith.constant", [], kind, {"value": IntegerAttr(value, kind)})


def set_type(value: SSAValue, new_type: Attribute) -> None:
    """Change the type of a value in place."""
    value._type = new_type  # xDSL's own rewriter does the same


def erase(op: Operation) -> None:
    """Take an operation without uses out of its block."""
    Rewriter.erase_op(op)
