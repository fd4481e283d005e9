"""Arithmetic of 64 bits before a loop: on numbers where they are known, else in operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xdsl.dialects.builtin import IntegerAttr, IntegerType
from xdsl.ir import Operation, SSAValue

from remora.ir.build import Builder
from remora_loop_split.affine import Constraint, LoopForms
from remora_loop_split.ranges import constant_of, signed, width_of

Wide = int | SSAValue

_I1, _I64 = IntegerType(1), IntegerType(64)

# arith.cmpi's predicate "signed less than" (MLIR's documentation of arith).
_SLT = 2


class WideArithmetic:
    """Emits operations before a loop. A result is an int where all operands are."""

    def __init__(self, loop: Operation, forms: LoopForms) -> None:
        self.build = Builder.before(loop)
        self.forms = forms
        self._read: dict[SSAValue, Wide] = {}
        self._constants: dict[tuple[int, Any], SSAValue] = {}
        self._copies: dict[SSAValue, SSAValue] = {}

    def read(self, value: SSAValue) -> Wide:
        """A scalar as a signed number; it is computed before the loop if it is not yet."""
        if value not in self._read:
            number = constant_of(value)
            self._read[value] = self._extended(value) if number is None else number
        return self._read[value]

    def _extended(self, value: SSAValue) -> SSAValue:
        value = self._before_loop(value)
        return value if width_of(value.type) == 64 else self._op("extsi", [value])

    def _before_loop(self, value: SSAValue) -> SSAValue:
        """The value, or a copy of what computes it."""
        if not self.forms.is_inside(value):
            return value
        copy = self._copies.get(value)
        if copy is None:
            op: Any = value.owner
            operands = [self._before_loop(operand) for operand in op.operands]
            new = op.clone(dict(zip(op.operands, operands, strict=True)))
            point = self.build.point
            assert point.insert_before is not None
            point.block.insert_op_before(new, point.insert_before)
            copy = self._copies[value] = new.results[0]
        return copy

    def _op(self, name: str, operands: Iterable[SSAValue], kind: Any = _I64) -> SSAValue:
        return self.build.value(f"arith.{name}", list(operands), kind)

    def _both(self, name: str, a: Wide, b: Wide) -> SSAValue:
        return self._op(name, [self.value(a), self.value(b)])

    def value(self, wide: Wide, kind: Any = _I64) -> SSAValue:
        """As a value of an integer type, modulo its size."""
        if isinstance(wide, int):
            half = signed(kind.width.data).high + 1
            wide = (wide + half) % (2 * half) - half
            constant = self._constants.get((wide, kind))
            if constant is None:
                attributes = {"value": IntegerAttr(wide, kind)}
                constant = self.build.value("arith.constant", [], kind, attributes)
                self._constants[wide, kind] = constant
            return constant
        return wide if kind == _I64 else self._op("trunci", [wide], kind)

    def add(self, a: Wide, b: Wide) -> Wide:
        """a + b"""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        return a if b == 0 else self._both("addi", a, b)

    def times(self, a: Wide, factor: int) -> Wide:
        """a * factor"""
        if isinstance(a, int) or factor == 0:
            return factor * a if isinstance(a, int) else 0
        return a if factor == 1 else self._both("muli", a, factor)

    def less(self, a: Wide, b: Wide) -> Wide:
        """a - b"""
        if isinstance(b, int):
            return self.add(a, -b)
        return self._both("subi", a, b)

    def least(self, a: Wide, b: Wide) -> Wide:
        """The smaller one."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return a if a is b else self._both("minsi", a, b)

    def greatest(self, a: Wide, b: Wide) -> Wide:
        """The larger one."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return a if a is b else self._both("maxsi", a, b)

    def floor(self, a: Wide, divisor: int) -> Wide:
        """a / divisor, which is positive, rounded down."""
        if isinstance(a, int):
            return a // divisor
        if divisor & (divisor - 1) == 0:
            return a if divisor == 1 else self._both("shrsi", a, divisor.bit_length() - 1)
        # The hardware rounds towards zero.
        quotient = self._both("divsi", a, divisor)
        rest = self.less(a, self.times(quotient, divisor))
        return self.where_positive(self.times(rest, -1), self.add(quotient, -1), quotient)

    def steps(self, distance: Wide, step: Wide) -> Wide:
        """How many steps reach a distance that is not negative: distance / step, rounded up."""
        if isinstance(step, int):
            return self.floor(self.add(distance, step - 1), step)
        return self._both("divui", self.add(self.add(distance, step), -1), step)

    def product(self, a: Wide, b: Wide) -> Wide:
        """a * b"""
        if isinstance(b, int):
            return self.times(a, b)
        return self.times(b, a) if isinstance(a, int) else self._both("muli", a, b)

    def is_less(self, a: Wide, b: Wide) -> SSAValue:
        """Whether a < b, as a value."""
        attributes = {"predicate": IntegerAttr(_SLT, _I64)}
        return self.build.value("arith.cmpi", [self.value(a), self.value(b)], _I1, attributes)

    def select(self, condition: SSAValue, then: SSAValue, otherwise: SSAValue) -> SSAValue:
        """One of two values."""
        return self._op("select", [condition, then, otherwise], then.type)

    def where_positive(self, amount: Wide, then: Wide, otherwise: Wide) -> Wide:
        """``then`` where ``amount > 0``."""
        if isinstance(amount, int):
            return then if amount > 0 else otherwise
        condition = self.is_less(0, amount)
        return self.select(condition, self.value(then), self.value(otherwise))

    def amount(self, constraint: Constraint, sign: int = 1) -> Wide:
        """The left side of a constraint without the induction variable, times 1 or -1."""
        total: Wide = constraint.number * sign
        for value, factor in constraint.terms:
            product = self.times(self.read(value), abs(factor))
            positive = factor * sign > 0
            total = self.add(total, product) if positive else self.less(total, product)
        return total
