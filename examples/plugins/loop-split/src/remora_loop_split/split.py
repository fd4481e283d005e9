"""The pass: one loop becomes two, in which a comparison is constant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

import remora
from remora.ir.attributes import text_of
from remora.ir.build import Builder, attribute, erase, op_name
from remora_loop_split.affine import Constraint, LoopForms
from remora_loop_split.carried import advance, advanced
from remora_loop_split.comparisons import EQUAL, Comparison, comparisons
from remora_loop_split.ranges import Range, Ranges, constant_of, is_signed, signed, width_of
from remora_loop_split.wide import Wide, WideArithmetic


@dataclass(frozen=True)
class SplitLoops(remora.ModulePass):
    """Splits ``scf.for`` where a comparison of its variable with an invariant changes.

    max_splits: how often one loop is split at most; each adds a loop.
    min_body: a loop whose body has fewer operations is left as it is.
    """

    name = "loop-split"
    max_splits: int = 1
    min_body: int = 4

    def apply(self, ctx: Any, module: Any) -> None:
        """Split the module's loops, inner ones first."""
        ranges = Ranges()
        loops = [op for op in module.walk() if op_name(op) == "scf.for"]
        for loop in reversed(loops):
            if self._is_eligible(loop, ranges):
                _split(loop, ranges, self.max_splits)

    def _is_eligible(self, loop: Operation, ranges: Ranges) -> bool:
        if not is_signed(loop) or (width_of(loop.operands[0].type) or 0) < 8:
            return False
        if ranges.of(loop.operands[2]).low < 1 or _is_cut_by_triton(loop):
            return False
        return sum(1 for _ in loop.regions[0].walk()) >= self.min_body


def _is_cut_by_triton(loop: Operation) -> bool:
    """Whether stock passes take this loop, or one around it, apart: they expect one loop."""
    op: Operation | None = loop
    while op is not None:
        if "tt.warp_specialize" in op.attributes or "tt.flatten" in op.attributes:
            return True
        op = op.parent_op()
    return False


@dataclass
class _Part:
    """A loop, and its copies of the values that the pass keeps an eye on.

    done: the results of comparisons that are not to be looked at again.
    """

    loop: Operation
    done: set[SSAValue] = field(default_factory=set)
    copies: dict[SSAValue, SSAValue] = field(default_factory=dict)

    def copy(self, value: SSAValue) -> SSAValue:
        """The value here that stands for one of the loop that was split."""
        return self.copies.get(value, value)


def _split(loop: Operation, ranges: Ranges, budget: int) -> None:
    """Split a loop, and what comes of it, ``budget`` times at most."""
    parts = [_Part(loop)]
    while parts and budget > 0:
        splitter = _Splitter(parts.pop(0), ranges)
        for first in splitter.candidates:
            if first.is_ordered:
                new = splitter.at_order(first)
            else:
                new = splitter.at_equality(first, budget)
            if new:
                budget -= len(new) - 1
                parts += new
                break


class _Splitter:
    """Splits one loop at one comparison, or finds that it cannot."""

    def __init__(self, part: _Part, ranges: Ranges) -> None:
        self.part = part
        self.loop = part.loop
        self.ranges = ranges
        self.variable = ranges.induction_variable(self.loop)
        self.forms = LoopForms(self.loop)
        self.wide = WideArithmetic(self.loop, self.forms)
        found = comparisons(self.loop, self.forms, ranges)
        self.candidates = [c for c in found if c.op.results[0] not in part.done]

    def at_order(self, first: Comparison) -> list[_Part]:
        """Split where an ordered comparison changes. The new loops; none if it is not split.

        A comparison of scalars is constant in both loops if it is known not to
        wrap. One of tensors is constant in the loop in which all elements are
        alike, and the other loop keeps it; so does a scalar one that may wrap.
        """
        truth = first.prefix_truth if first.is_uniform else first.truth
        inside = [first.holds(truth)]
        outside: list[Constraint] = []
        prefix = inside[0].slope > 0
        if first.is_uniform and self._never_wraps(first):
            outside = [first.holds(not truth)]
        else:
            for other in self.candidates:
                if other.is_ordered:
                    truth = other.truth
                    if other.is_uniform:
                        truth = other.prefix_truth == prefix
                    if (other.holds(truth).slope > 0) == prefix:
                        inside += [other.holds(truth), *other.limits()]
        place = self._end_of_prefix(inside) if prefix else self._start_of_suffix(inside)
        if self._is_trivial(place):
            return []
        self._leave_alone(first)
        before, after = _split_at(self.part, place)
        self._fold(before, inside if prefix else outside)
        self._fold(after, outside if prefix else inside)
        return [before, after]

    def at_equality(self, first: Comparison, budget: int) -> list[_Part]:
        """Split before and after the iteration in which two scalars are equal.

        Where that is the first or the last iteration two loops are enough.
        """
        if not (first.is_uniform and self._never_wraps(first)):
            return []
        form = first.difference
        form = form if form.slope > 0 else form.times(-1)
        below = Constraint(form.slope, form.terms, form.high + 1)
        up_to = Constraint(form.slope, form.terms, form.high)
        start, end = self._threshold(below), self._threshold(up_to)
        lower = self.wide.read(self.loop.operands[0])
        at_first = isinstance(start, int) and isinstance(lower, int) and start <= lower
        at_last = _ends_with(self.loop, up_to)
        if (at_first and at_last) or budget + at_first + at_last < 2:
            return []
        self._leave_alone(first)
        parts = [self.part]
        for place in ([] if at_first else [start]) + ([] if at_last else [end]):
            loop = parts[-1].loop
            wide = WideArithmetic(loop, LoopForms(loop))
            parts[-1:] = _split_at(parts[-1], _clamped(place, loop, wide))
        truths = [True] if at_first else [False, True]
        truths += [] if at_last else [False]
        for part, truth in zip(parts, truths, strict=True):
            _make_constant(part.copy(first.op.results[0]), truth == (first.predicate == EQUAL))
        return parts

    def _leave_alone(self, first: Comparison) -> None:
        """Do not look at a comparison again, nor at those in branches if it decides branches."""
        done = {
            c.op.results[0] for c in self.candidates if first.branches and c.depth > first.depth
        }
        self.part.done |= done | {first.op.results[0]}

    def _never_wraps(self, comparison: Comparison) -> bool:
        """Whether the two sides have their forms in every iteration of a loop that ends.

        Stock Triton's loops add the step before they compare: one whose
        variable would leave its type after the last iteration does not end.
        """
        largest = signed(width_of(self.loop.operands[0].type) or 64).high
        step = self.ranges.of(self.loop.operands[2]).low
        counted = self.variable.meet(Range(self.variable.low, largest - step))
        return all(limit.most(self.ranges, counted) <= 0 for limit in comparison.limits())

    def _always(self, constraint: Constraint) -> bool:
        return constraint.most(self.ranges, self.variable) <= 0

    def _open(self, constraints: Iterable[Constraint]) -> list[Constraint]:
        """Those that do not hold by themselves; of several on one line the strictest."""
        strictest: list[Constraint] = []
        for constraint in constraints:
            if self._always(constraint):
                continue
            for index, known in enumerate(strictest):
                if constraint.same_line(known):
                    strictest[index] = max(known, constraint, key=lambda c: c.number)
                    break
            else:
                strictest.append(constraint)
        return strictest

    def _threshold(self, constraint: Constraint) -> Wide:
        """The number below which the variable satisfies a constraint, or from which on it does."""
        wide, slope = self.wide, constraint.slope
        if slope > 0:
            return wide.floor(
                wide.amount(replace(constraint, number=constraint.number - slope), -1), slope
            )
        # Rounded up: the quotient of what is less than one divisor more, rounded down.
        return wide.floor(
            wide.amount(replace(constraint, number=constraint.number - slope - 1)), -slope
        )

    def _end_of_prefix(self, constraints: Iterable[Constraint]) -> Wide:
        """Where the iterations end, from the first on, in which all constraints hold."""
        lower, upper, _ = self.loop.operands[:3]
        start, place = self.wide.read(lower), self.wide.read(upper)
        guards = []
        for constraint in self._open(constraints):
            if constraint.slope > 0:
                place = self.wide.least(place, self._threshold(constraint))
            else:  # what holds at the first iteration holds at the later ones
                guards.append(constraint.at(lower))
        for guard in filter(self._may_fail, guards):
            place = self.wide.where_positive(self.wide.amount(guard), start, place)
        return self.wide.greatest(place, start)

    def _start_of_suffix(self, constraints: Iterable[Constraint]) -> Wide:
        """Where the iterations start, up to the last, in which all constraints hold."""
        lower, upper, _ = self.loop.operands[:3]
        place, end = self.wide.read(lower), self.wide.read(upper)
        guards = []
        for constraint in self._open(constraints):
            if constraint.slope < 0:
                place = self.wide.greatest(place, self._threshold(constraint))
            else:  # what holds at the last iteration holds at the earlier ones
                guards.append(constraint.at(upper, -1))
        for guard in filter(self._may_fail, guards):
            place = self.wide.where_positive(self.wide.amount(guard), end, place)
        return _clamped(place, self.loop, self.wide)

    def _may_fail(self, guard: Constraint) -> bool:
        return guard.most(self.ranges, Range(0, 0)) > 0

    def _is_trivial(self, place: Wide) -> bool:
        """Whether one of the two loops is known to be empty."""
        lower, upper = (self.wide.read(operand) for operand in self.loop.operands[:2])
        return (
            place is lower or place is upper or (isinstance(place, int) and place in (lower, upper))
        )

    def _fold(self, part: _Part, known: Sequence[Constraint]) -> None:
        """Make the comparisons constant that follow from what is known in a part."""
        for comparison in self.candidates:
            for truth in (True, False) if comparison.is_ordered else ():
                needed = [comparison.holds(truth)]
                if not (comparison.is_uniform and self._never_wraps(comparison)):
                    needed += comparison.limits()
                if all(self._follows(constraint, known) for constraint in needed):
                    _make_constant(part.copy(comparison.op.results[0]), truth)
                    break

    def _follows(self, constraint: Constraint, known: Sequence[Constraint]) -> bool:
        if self._always(constraint):
            return True
        return any(constraint.same_line(k) and constraint.number <= k.number for k in known)


def _clamped(place: Wide, loop: Operation, wide: WideArithmetic) -> Wide:
    """A place of the loop: from its lower bound to its upper one, or the lower if it is empty."""
    lower, upper = wide.read(loop.operands[0]), wide.read(loop.operands[1])
    return wide.greatest(wide.least(place, upper), lower)


def _split_at(part: _Part, place: Wide) -> tuple[_Part, _Part]:
    """Two loops that do the iterations before ``place``, and those from there on.

    place: from the lower bound to the upper one.
    """
    first = part.loop
    forms = LoopForms(first)
    wide = WideArithmetic(first, forms)
    lower, upper, step = first.operands[:3]
    kind = lower.type
    end = wide.value(place, kind)
    second_lower, second_upper = end, upper
    count = wide.less(place, wide.read(lower))
    if constant_of(step) != 1:
        count = wide.steps(count, wide.read(step))
        # As a multiple of the step, which tells the stock passes how it is aligned.
        start = wide.add(wide.read(lower), wide.product(count, wide.read(step)))
        # Past the upper bound it may not be a number of the type: no iteration then.
        remains = wide.is_less(start, wide.read(upper))
        second_lower = wide.value(start, kind)
        second_upper = wide.select(remains, upper, second_lower)
    copies: dict[SSAValue, SSAValue] = {}
    second = first.clone(copies)
    Rewriter.insert_op(second, InsertPoint.after(first))
    first.operands[1] = end
    second.operands[0], second.operands[1] = second_lower, second_upper
    between = WideArithmetic(second, forms)
    for index, (result, last) in enumerate(zip(first.results, second.results, strict=True)):
        result.replace_uses_with_if(last, lambda use: use.operation is not second)
        # A result that is not used costs nothing: the stock software pipelining
        # would carry a pointer, and select it, through every iteration.
        additions = advance(first, forms, index)
        if additions is None:
            second.operands[3 + index] = result
        else:
            start_value = first.operands[3 + index]
            second.operands[3 + index] = advanced(start_value, additions, count, between)
    # Copies of copies: what stood for a value in the loop stands for it in both.
    copied = {value: copies.get(here, here) for value, here in part.copies.items()}
    done = {copies[value] for value in part.done if value in copies}
    return part, _Part(second, done, {**copies, **copied})


def _make_constant(comparison: SSAValue, truth: bool) -> None:
    """Put a constant in a comparison's place."""
    op = comparison.owner
    assert isinstance(op, Operation)
    text = "true" if truth else "false"
    if isinstance(comparison.type, TensorType):
        text = f"dense<{text}> : {text_of(comparison.type)}"
    new = Builder.before(op).value(
        "arith.constant", [], comparison.type, {"value": attribute(text)}
    )
    comparison.replace_all_uses_with(new)
    erase(op)


def _ends_with(loop: Operation, constraint: Constraint) -> bool:
    """Whether a constraint says, in every loop that runs, that the variable is below the bound."""
    if constraint.slope != 1 or len(constraint.terms) != 1:
        return False
    ((value, factor),) = constraint.terms
    root, offset = _root(value)
    bound, bound_offset = _root(loop.operands[1])
    # variable - value + number <= 0, that is variable < value - number + 1
    return factor == -1 and root is bound and offset - constraint.number + 1 == bound_offset


def _root(value: SSAValue) -> tuple[SSAValue, int]:
    """A scalar as another one plus a number."""
    op = value.owner
    if isinstance(op, Operation) and op_name(op) in ("arith.addi", "arith.subi"):
        number = constant_of(op.operands[1])
        if number is not None:
            root, offset = _root(op.operands[0])
            return root, offset + (number if op_name(op) == "arith.addi" else -number)
    return value, 0
