"""What a value inside a loop is in terms of the induction variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, Operation, SSAValue

from remora.ir.build import inherent, op_name
from remora_loop_split.ranges import Range, Ranges, constant_of, signed, unsigned, width_of

# Two numbers of this size add up to one of 64 bits.
_MOST = 1 << 62

# Longer chains of operations, and longer sums, are not followed.
_DEEPEST = 100
_MOST_TERMS = 8

# Scalar operations that may be computed before the loop instead: they have no
# effect, and no operand makes them undefined.
_HOISTABLE = frozenset(
    f"arith.{name}"
    for name in (
        "addi", "andi", "cmpi", "constant", "extsi", "extui", "maxsi", "maxui", "minsi", "minui",
        "muli", "ori", "select", "subi", "trunci", "xori",
    )
) | {"tt.get_program_id", "tt.get_num_programs"}  # fmt: skip
_DIVISIONS = frozenset(("arith.divsi", "arith.divui", "arith.remsi", "arith.remui"))

# A tensor operation whose elements are those of its operand, in another place.
_REARRANGES = frozenset(
    ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "ttg.convert_layout")
)

_T = TypeVar("_T")

Terms = tuple[tuple[SSAValue, int], ...]


@dataclass(frozen=True)
class Affine:
    """``slope`` times the induction variable, plus scalars times factors, plus a number.

    terms: scalars that do not change in the loop, read as signed, and their factors.
    low, high: the number is between these; they differ where the elements of a
        tensor do. It is a value of integers without end: nothing wraps.
    """

    slope: int
    terms: Terms
    low: int
    high: int

    def __add__(self, other: Affine) -> Affine:
        factors = dict(self.terms)
        for value, factor in other.terms:
            factors[value] = factors.get(value, 0) + factor
        return Affine(
            self.slope + other.slope,
            tuple((value, factor) for value, factor in factors.items() if factor),
            self.low + other.low,
            self.high + other.high,
        )

    def times(self, factor: int) -> Affine:
        """The product with a number."""
        ends = (self.low * factor, self.high * factor)
        terms = tuple((value, old * factor) for value, old in self.terms) if factor else ()
        return Affine(self.slope * factor, terms, min(ends), max(ends))

    def __sub__(self, other: Affine) -> Affine:
        return self + other.times(-1)

    @property
    def number(self) -> int | None:
        """The number that it is, where it is one."""
        alone = not self.slope and not self.terms and self.low == self.high
        return self.low if alone else None


@dataclass(frozen=True)
class Constraint:
    """``slope * variable + terms + number <= 0``."""

    slope: int
    terms: Terms
    number: int

    @classmethod
    def not_positive(cls, form: Affine) -> Constraint:
        """That every element of ``form`` is at most 0."""
        return cls(form.slope, form.terms, form.high)

    def at(self, lower_bound: SSAValue, offset: int = 0) -> Constraint:
        """What it says where the variable is a bound plus ``offset``."""
        bound = constant_of(lower_bound)
        terms: Terms = () if bound is not None else ((lower_bound, 1),)
        number = offset + (bound or 0)
        form = Affine(0, self.terms, self.number, self.number)
        return Constraint.not_positive(form + Affine(0, terms, number, number).times(self.slope))

    def most(self, ranges: Ranges, variable: Range) -> int:
        """The largest number that the left side can be."""
        total = Range(self.number, self.number) + Range(self.slope, self.slope) * variable
        for value, factor in self.terms:
            total = total + ranges.of(value) * Range(factor, factor)
        return total.high

    def fits(self, ranges: Ranges, variable: Range) -> bool:
        """Whether it can be evaluated in 64 bits without wrapping."""
        size = abs(self.number) + abs(self.slope) * (variable.magnitude + 1)
        size += sum(abs(factor) * ranges.of(value).magnitude for value, factor in self.terms)
        return size < _MOST

    def same_line(self, other: Constraint) -> bool:
        """Whether the two differ in the number alone."""
        return self.slope == other.slope and dict(self.terms) == dict(other.terms)


@dataclass(frozen=True)
class Known:
    """A value's form, which it has where ``limits`` hold.

    limits: each form with the numbers that its elements must be among.
    """

    form: Affine
    limits: tuple[tuple[Affine, Range], ...] = ()


class LoopForms:
    """The forms of the values in one loop, on demand and cached."""

    def __init__(self, loop: Operation) -> None:
        self.loop = loop
        self.variable = loop.regions[0].block.args[0]
        self._known: dict[SSAValue, Known | None] = {}
        self._invariant: dict[SSAValue, bool] = {}
        self._depth = 0

    def of(self, value: SSAValue) -> Known | None:
        """The form of an integer or of a tensor of them; None where it has none."""
        if value not in self._known:
            known = self._deeper(self._compute, value, None)
            if known and max(len(known.form.terms), len(known.limits)) > _MOST_TERMS:
                known = None
            self._known[value] = known
        return self._known[value]

    def _deeper(self, rule: Callable[[SSAValue], _T], value: SSAValue, too_deep: _T) -> _T:
        if self._depth >= _DEEPEST:
            return too_deep
        self._depth += 1
        try:
            return rule(value)
        finally:
            self._depth -= 1

    def invariant(self, value: SSAValue) -> bool:
        """Whether a scalar can be computed before the loop."""
        known = self._invariant.get(value)
        if known is None:
            known = self._invariant[value] = self._deeper(self._is_invariant, value, False)
        return known

    def _is_invariant(self, value: SSAValue) -> bool:
        if not self.is_inside(value):
            return True
        op = value.owner
        if not isinstance(op, Operation) or isinstance(value.type, TensorType):
            return False
        if op_name(op) in _DIVISIONS:
            return (constant_of(op.operands[1]) or 0) > 0 and self.invariant(op.operands[0])
        return op_name(op) in _HOISTABLE and all(map(self.invariant, op.operands))

    def is_inside(self, value: SSAValue) -> bool:
        """Whether a value is defined in the loop's body."""
        block = value.block if isinstance(value, BlockArgument) else value.owner.parent_block()
        while block is not None:
            parent = block.parent_op()
            if parent is self.loop:
                return True
            block = parent.parent_block() if parent is not None else None
        return False

    def _compute(self, value: SSAValue) -> Known | None:
        width = width_of(value.type)
        if width is None:
            return None
        if value is self.variable:
            return Known(Affine(1, (), 0, 0))
        number = constant_of(value)
        if number is not None:
            return Known(Affine(0, (), number, number))
        if not isinstance(value.type, TensorType) and self.invariant(value):
            return Known(Affine(0, ((value, 1),), 0, 0))
        if isinstance(value, BlockArgument):
            return None
        op = value.owner
        assert isinstance(op, Operation)
        name = op_name(op)
        if name == "tt.make_range":
            start: Any = inherent(op, "start")
            end: Any = inherent(op, "end")
            return Known(Affine(0, (), start.value.data, end.value.data - 1))
        if name in _REARRANGES:
            return self.of(op.operands[0])
        if name in ("arith.addi", "arith.subi", "arith.muli", "arith.shli"):
            return self._arithmetic(name, op, width)
        if name in ("arith.extsi", "arith.extui", "arith.trunci"):
            return self._cast(name, op)
        return None

    def _arithmetic(self, name: str, op: Operation, width: int) -> Known | None:
        a, b = self.of(op.operands[0]), self.of(op.operands[1])
        if a is None or b is None:
            return None
        limits = tuple(dict.fromkeys((*a.limits, *b.limits)))
        if name == "arith.addi":
            return Known(a.form + b.form, limits)
        if name == "arith.subi":
            return Known(a.form - b.form, limits)
        number, form = b.form.number, a.form
        if name == "arith.shli":
            number = 1 << number if number is not None and 0 <= number < width else None
        elif number is None:
            number, form = a.form.number, b.form
        return None if number is None else Known(form.times(number), limits)

    def _cast(self, name: str, op: Operation) -> Known | None:
        inner = self.of(op.operands[0])
        width = width_of(op.operands[0].type)
        if inner is None or width is None or name == "arith.trunci":
            return inner
        numbers = signed(width) if name == "arith.extsi" else unsigned(width)
        return Known(inner.form, (*inner.limits, (inner.form, numbers)))
