"""Between which numbers a scalar lies, as far as the operations say so by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from remora.ir.build import inherent, op_name

_DEEPEST = 100


@dataclass(frozen=True)
class Range:
    """All integers from ``low`` to ``high``, both of them possible."""

    low: int
    high: int

    @property
    def magnitude(self) -> int:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def within(self, other: Range) -> bool:
        """Whether every number is in ``other``."""
        return other.low <= self.low and self.high <= other.high

    def meet(self, other: Range) -> Range:
        """The numbers in both; as it is where there are none (code that never runs)."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Range(low, high) if low <= high else self

    def join(self, other: Range) -> Range:
        """The least range with the numbers of both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Range) -> Range:
        return Range(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Range) -> Range:
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Range(min(corners), max(corners))


def width_of(kind: Attribute) -> int | None:
    """The bits of a (tensor of) signless integer type; None for another type."""
    element = kind.element_type if isinstance(kind, TensorType) else kind
    return element.width.data if isinstance(element, IntegerType) else None


def signed(width: int) -> Range:
    """The signed numbers of a width."""
    return Range(-(1 << (width - 1)), (1 << (width - 1)) - 1)


def unsigned(width: int) -> Range:
    """The unsigned numbers of a width."""
    return Range(0, (1 << width) - 1)


def constant_of(value: SSAValue) -> int | None:
    """The number that a scalar, or every element of a tensor, is known to be."""
    op = value.owner
    if not isinstance(op, Operation) or width_of(value.type) is None:
        return None
    if op_name(op) == "tt.splat":
        return constant_of(op.operands[0])
    if op_name(op) != "arith.constant":
        return None
    constant: Any = inherent(op, "value")
    if not isinstance(value.type, TensorType):
        return int(constant.value.data)
    if not (hasattr(constant, "is_splat") and constant.is_splat()):
        return None
    return int(next(iter(constant.iter_values())))


class Ranges:
    """The ranges of the scalars of a module, on demand and cached. Signed."""

    def __init__(self) -> None:
        self._known: dict[SSAValue, Range] = {}
        self._depth = 0

    def of(self, value: SSAValue) -> Range:
        """The range of a scalar integer."""
        known = self._known.get(value)
        if known is None:
            whole = signed(width_of(value.type) or 64)
            self._depth += 1
            # Longer chains of operations are not followed.
            known = self._compute(value) if self._depth <= _DEEPEST else None
            self._depth -= 1
            # What leaves the type wraps: it can be anything.
            known = known if known is not None and known.within(whole) else whole
            self._known[value] = known
        return known

    def induction_variable(self, loop: Operation) -> Range:
        """The range of a loop's variable, wherever its body runs."""
        lower, upper = self.of(loop.operands[0]), self.of(loop.operands[1])
        return Range(lower.low, max(lower.low, upper.high - 1))

    def _compute(self, value: SSAValue) -> Range | None:
        number = constant_of(value)
        if number is not None:
            return Range(number, number)
        if isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if loop is not None and op_name(loop) == "scf.for" and value.index == 0:
                return self.induction_variable(loop) if is_signed(loop) else None
            return None
        op = value.owner
        assert isinstance(op, Operation)
        rule = getattr(self, "_" + op_name(op).replace(".", "_"), None)
        if rule is None or width_of(value.type) is None:
            return None
        found: Range | None = rule(op)
        return found

    def _operands(self, op: Operation) -> tuple[Range, Range]:
        return self.of(op.operands[0]), self.of(op.operands[1])

    def _tt_get_program_id(self, op: Operation) -> Range:
        return Range(0, (1 << 31) - 1)

    def _tt_get_num_programs(self, op: Operation) -> Range:
        return Range(1, (1 << 31) - 1)

    def _arith_addi(self, op: Operation) -> Range:
        a, b = self._operands(op)
        return a + b

    def _arith_subi(self, op: Operation) -> Range:
        a, b = self._operands(op)
        return a - b

    def _arith_muli(self, op: Operation) -> Range:
        a, b = self._operands(op)
        return a * b

    def _arith_minsi(self, op: Operation) -> Range:
        a, b = self._operands(op)
        return Range(min(a.low, b.low), min(a.high, b.high))

    def _arith_maxsi(self, op: Operation) -> Range:
        a, b = self._operands(op)
        return Range(max(a.low, b.low), max(a.high, b.high))

    def _arith_divsi(self, op: Operation) -> Range | None:
        a, divisor = self.of(op.operands[0]), constant_of(op.operands[1])
        if divisor is None or divisor <= 0:
            return None
        return Range(_truncated(a.low, divisor), _truncated(a.high, divisor))

    def _arith_remsi(self, op: Operation) -> Range | None:
        a, divisor = self.of(op.operands[0]), constant_of(op.operands[1])
        if divisor is None or divisor <= 0:
            return None
        least = 0 if a.low >= 0 else max(a.low, 1 - divisor)
        return Range(least, max(0, min(a.high, divisor - 1)))

    def _arith_extsi(self, op: Operation) -> Range:
        return self.of(op.operands[0])

    def _arith_extui(self, op: Operation) -> Range:
        inner = self.of(op.operands[0])
        return inner if inner.low >= 0 else unsigned(width_of(op.operands[0].type) or 64)

    def _arith_trunci(self, op: Operation) -> Range:
        return self.of(op.operands[0])

    def _arith_andi(self, op: Operation) -> Range | None:
        highs = [r.high for r in self._operands(op) if r.low >= 0]
        return Range(0, min(highs)) if highs else None

    def _arith_select(self, op: Operation) -> Range:
        return self.of(op.operands[1]).join(self.of(op.operands[2]))


def _truncated(number: int, divisor: int) -> int:
    """The quotient rounded towards zero, as the hardware has it."""
    return number // divisor if number >= 0 else -(-number // divisor)


def is_signed(loop: Operation) -> bool:
    """Whether an ``scf.for`` compares its bounds as signed numbers."""
    return inherent(loop, "unsignedCmp") is None
