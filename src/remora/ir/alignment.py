"""How many elements of a tensor follow each other, and how they are aligned.

A small counterpart of Triton's own axis analysis, on xDSL: for each dimension
of an integer or pointer tensor the length of the runs of consecutive numbers
(contiguity), of the runs of equal numbers (constancy), and a power of two that
divides the first number of each run (divisibility; bytes for pointers). What
it does not know is 1: callers lose speed, never correctness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from remora.ir.build import inherent, op_name

_LARGEST = 1 << 30


@dataclass(frozen=True)
class Axis:
    """One tensor's runs, per dimension; ``()`` dimensions for a scalar is one dimension of 1.

    value: the number, where the whole tensor is one known constant.
    """

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    value: int | None = None

    def first(self, dim: int, run: int) -> int:
        """A divisor of every ``run``-th number: where new runs of that length begin."""
        if self.contiguity[dim] in (1, run):
            return self.divisibility[dim]
        return math.gcd(self.divisibility[dim], _power(run))

    def meet(self, other: Axis) -> Axis:
        """What holds for both."""
        runs = tuple(map(math.gcd, self.contiguity, other.contiguity))
        return Axis(
            runs,
            tuple(
                math.gcd(self.first(dim, run), other.first(dim, run))
                for dim, run in enumerate(runs)
            ),
            tuple(map(math.gcd, self.constancy, other.constancy)),
            self.value if self.value == other.value else None,
        )


def _power(number: int) -> int:
    """The largest power of two that divides a number."""
    return _LARGEST if number == 0 else min(number & -number, _LARGEST)


def shape_of(kind: Attribute) -> tuple[int, ...]:
    """The shape of a tensor type; (1,) for a scalar."""
    return kind.get_shape() if isinstance(kind, TensorType) else (1,)


def element_bytes(pointer: Attribute) -> int:
    """Bytes of the elements that a (tensor of) pointer type points to."""
    element = pointer.element_type if isinstance(pointer, TensorType) else pointer
    text = str(element)
    inner = text[text.index("<") + 1 : text.rindex(">")].partition(",")[0]
    digits = "".join(c if c.isdigit() else " " for c in inner).split()
    width = 8 if inner.startswith("f8") else int(digits[0]) if digits else 64
    return max(width // 8, 1)


class Alignment:
    """The analysis of one function, on demand and cached."""

    def __init__(self) -> None:
        self._known: dict[SSAValue, Axis] = {}

    def of(self, value: SSAValue) -> Axis:
        """The runs of a value."""
        known = self._known.get(value)
        if known is None:
            self._known[value] = known = self._compute(value)
        return known

    def _unknown(self, value: SSAValue) -> Axis:
        ones = (1,) * len(shape_of(value.type))
        return Axis(ones, ones, ones)

    def _compute(self, value: SSAValue) -> Axis:
        if isinstance(value, BlockArgument):
            return self._argument(value)
        op = value.owner
        assert isinstance(op, Operation)
        rule = getattr(self, "_" + op_name(op).replace(".", "_"), None)
        if rule is None or len(op.results) != 1:
            return self._unknown(value)
        axis: Axis = rule(op)
        return axis

    def _argument(self, value: BlockArgument) -> Axis:
        parent = value.block.parent_op()
        unknown = self._unknown(value)
        if parent is None:
            return unknown
        if op_name(parent) == "tt.func":
            return self._parameter(parent, value.index) or unknown
        if op_name(parent) == "scf.for" and value.index >= 1:
            # Assume what holds at the start, and see whether an iteration keeps it.
            axis = self.of(parent.operands[value.index + 2])
            terminator = value.block.last_op
            assert terminator is not None
            for _ in range(4):
                trial = Alignment()
                trial._known = {**self._known, value: axis}
                after = axis.meet(trial.of(terminator.operands[value.index - 1]))
                if after == axis:
                    return axis
                axis = after
        if op_name(parent) == "scf.for" and value.index == 0:
            start, step = self.of(parent.operands[0]), self.of(parent.operands[2])
            divisibility = math.gcd(start.divisibility[0], step.divisibility[0])
            return Axis((1,), (divisibility,), (1,))
        return unknown

    def _parameter(self, function: Operation, index: int) -> Axis | None:
        attributes: Any = inherent(function, "arg_attrs")
        if attributes is None:
            return None
        own = attributes.data[index].data.get("tt.divisibility")
        return None if own is None else Axis((1,), (_power(own.value.data),), (1,))

    def _arith_constant(self, op: Operation) -> Axis:
        shape = shape_of(op.results[0].type)
        value: Any = inherent(op, "value")
        element = op.results[0].type
        element = element.element_type if isinstance(element, TensorType) else element
        if not isinstance(element, IntegerType):
            return self._unknown(op.results[0])
        if isinstance(op.results[0].type, TensorType):
            if not value.is_splat():
                return self._unknown(op.results[0])
            number = int(next(iter(value.iter_values())))
        else:
            number = int(value.value.data)
        return Axis((1,) * len(shape), (_power(number),) * len(shape), shape, number)

    def _tt_make_range(self, op: Operation) -> Axis:
        start: Any = inherent(op, "start")
        (size,) = shape_of(op.results[0].type)
        return Axis((size,), (_power(start.value.data),), (1,))

    def _tt_splat(self, op: Operation) -> Axis:
        shape = shape_of(op.results[0].type)
        axis = self.of(op.operands[0])
        return Axis((1,) * len(shape), axis.divisibility * len(shape), shape, axis.value)

    def _tt_expand_dims(self, op: Operation) -> Axis:
        axis = self.of(op.operands[0])
        where: Any = inherent(op, "axis")
        at = where.value.data
        divisibility = min(axis.divisibility) if axis.value is None else axis.divisibility[0]

        def put(values: tuple[int, ...], new: int) -> tuple[int, ...]:
            return (*values[:at], new, *values[at:])

        if max(axis.contiguity) > 1:
            # Along a new dimension of 1 each run is one of the old numbers.
            divisibility = 1
        return Axis(
            put(axis.contiguity, 1), put(axis.divisibility, divisibility),
            put(axis.constancy, 1), axis.value,
        )  # fmt: skip

    def _tt_broadcast(self, op: Operation) -> Axis:
        axis = self.of(op.operands[0])
        old, new = shape_of(op.operands[0].type), shape_of(op.results[0].type)
        grown = [o != n for o, n in zip(old, new, strict=True)]
        return Axis(
            tuple(1 if g else c for g, c in zip(grown, axis.contiguity, strict=True)),
            axis.divisibility,
            tuple(n if g else c for g, n, c in zip(grown, new, axis.constancy, strict=True)),
            axis.value,
        )

    def _same(self, op: Operation) -> Axis:
        return self.of(op.operands[0])

    _ttg_convert_layout = _arith_extsi = _arith_extui = _same

    def _arith_addi(self, op: Operation) -> Axis:
        return self._sum(op, 1, subtract=False)

    def _arith_subi(self, op: Operation) -> Axis:
        return self._sum(op, 1, subtract=True)

    def _tt_addptr(self, op: Operation) -> Axis:
        return self._sum(op, element_bytes(op.results[0].type), subtract=False)

    def _sum(self, op: Operation, scale: int, *, subtract: bool) -> Axis:
        a, b = self.of(op.operands[0]), self.of(op.operands[1])
        runs = []
        for i in range(len(a.contiguity)):
            contiguity = math.gcd(a.contiguity[i], b.constancy[i])
            if not subtract:
                contiguity = max(contiguity, math.gcd(a.constancy[i], b.contiguity[i]))
            constancy = math.gcd(a.constancy[i], b.constancy[i])
            divisibility = math.gcd(
                a.first(i, contiguity), min(b.first(i, contiguity) * scale, _LARGEST)
            )
            runs.append((contiguity, divisibility, constancy))
        value = None
        if a.value is not None and b.value is not None:
            value = a.value - b.value if subtract else a.value + scale * b.value
        contiguities, divisibilities, constancies = zip(*runs, strict=True)
        return Axis(contiguities, divisibilities, constancies, value)

    def _arith_muli(self, op: Operation) -> Axis:
        a, b = self.of(op.operands[0]), self.of(op.operands[1])
        runs = []
        for i in range(len(a.contiguity)):
            one = b.value == 1
            other = a.value == 1
            contiguity = a.contiguity[i] if one else b.contiguity[i] if other else 1
            divisor = 1
            for axis, unit in ((a, one), (b, other)):
                own = axis.divisibility[i]
                if axis.contiguity[i] > 1 and not unit:
                    own = 1  # inside a run the numbers are no multiples
                divisor *= own
            runs.append(
                (contiguity, min(divisor, _LARGEST), math.gcd(a.constancy[i], b.constancy[i]))
            )
        value = a.value * b.value if a.value is not None and b.value is not None else None
        contiguities, divisibilities, constancies = zip(*runs, strict=True)
        return Axis(contiguities, divisibilities, constancies, value)

    def _arith_cmpi(self, op: Operation) -> Axis:
        a, b = self.of(op.operands[0]), self.of(op.operands[1])
        predicate: Any = inherent(op, "predicate")
        # lt and ge: a run below a bound that divides it is below it as a whole;
        # le and gt: the same for a bound on the other side.
        left = predicate.value.data in (2, 5, 6, 9)
        right = predicate.value.data in (3, 4, 7, 8)
        constancies = []
        for i in range(len(a.constancy)):
            constancy = math.gcd(a.constancy[i], b.constancy[i])
            if left:
                run = math.gcd(a.contiguity[i], b.constancy[i])
                aligned = math.gcd(a.first(i, run), b.divisibility[i])
                constancy = max(constancy, math.gcd(run, aligned))
            if right:
                run = math.gcd(b.contiguity[i], a.constancy[i])
                aligned = math.gcd(b.first(i, run), a.divisibility[i])
                constancy = max(constancy, math.gcd(run, aligned))
            constancies.append(constancy)
        ones = (1,) * len(constancies)
        return Axis(ones, ones, tuple(constancies))

    def _bitwise(self, op: Operation) -> Axis:
        a, b = self.of(op.operands[0]), self.of(op.operands[1])
        ones = (1,) * len(a.constancy)
        return Axis(ones, ones, tuple(map(math.gcd, a.constancy, b.constancy)))

    _arith_andi = _arith_ori = _arith_xori = _bitwise

    def _remainder(self, op: Operation) -> Axis:
        """Of numbers that are not negative, as Triton's own analysis takes it."""
        a, b = self.of(op.operands[0]), self.of(op.operands[1])
        runs = []
        for i in range(len(a.contiguity)):
            # A run that starts at a multiple of its length does not wrap at another one.
            run = math.gcd(a.contiguity[i], a.divisibility[i], b.constancy[i], b.divisibility[i])
            divisibility = math.gcd(a.first(i, run), b.first(i, run))
            runs.append((run, divisibility, math.gcd(a.constancy[i], b.constancy[i])))
        contiguities, divisibilities, constancies = zip(*runs, strict=True)
        return Axis(contiguities, divisibilities, constancies)

    _arith_remsi = _arith_remui = _remainder


def copy_bytes(alignment: Alignment, pointer: SSAValue, mask: SSAValue | None, dim: int) -> int:
    """Bytes that a copy can move at once along a dimension: aligned, contiguous, one mask."""
    axis = alignment.of(pointer)
    width = element_bytes(pointer.type)
    elements = min(axis.contiguity[dim], max(axis.divisibility[dim] // width, 1))
    if mask is not None:
        elements = min(elements, alignment.of(mask).constancy[dim])
    return elements * width
