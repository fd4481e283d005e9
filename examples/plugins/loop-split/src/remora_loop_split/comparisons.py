"""The comparisons of a loop that splitting it would decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from remora.ir.build import inherent, op_name
from remora_loop_split.affine import Affine, Constraint, Known, LoopForms
from remora_loop_split.ranges import Range, Ranges, constant_of, signed, unsigned, width_of

# arith.cmpi's predicate of equality; that of inequality is 1.
EQUAL = 0
# arith.cmpi's predicates: for each ordered one how it is written with "<" or
# "<=" (sides exchanged, equality allowed), and which one is its negation.
_ORDERED = {
    2: (False, False), 3: (False, True), 4: (True, False), 5: (True, True),
    6: (False, False), 7: (False, True), 8: (True, False), 9: (True, True),
}  # fmt: skip
_NEGATION = {2: 5, 5: 2, 3: 4, 4: 3, 6: 9, 9: 6, 7: 8, 8: 7}
_UNSIGNED = range(6, 10)

# Through these the truth of a whole mask stays what it is.
_PASSES_ON = frozenset(
    ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "ttg.convert_layout",
     "arith.andi", "arith.ori")
)  # fmt: skip
# The place of the mask among the segments of operands.
_MASKED = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2, "ttg.async_copy_global_to_local": 2}


@dataclass(frozen=True)
class Comparison:
    """An ``arith.cmpi`` whose two sides are known in terms of the induction variable.

    truth: what it has to be for all elements to be worth a loop.
    depth: in how many branches of the loop's body it stands.
    branches: whether an ``scf.if`` depends on it.
    """

    op: Operation
    left: Known
    right: Known
    truth: bool
    depth: int
    branches: bool

    @property
    def predicate(self) -> int:
        """MLIR's number of it."""
        attribute: Any = inherent(self.op, "predicate")
        return int(attribute.value.data)

    @property
    def difference(self) -> Affine:
        """Left minus right."""
        return self.left.form - self.right.form

    @property
    def is_uniform(self) -> bool:
        """Whether all elements compare alike, so that it is true or false as a whole."""
        return all(k.form.low == k.form.high for k in (self.left, self.right))

    @property
    def is_ordered(self) -> bool:
        """Whether it is no (in)equality."""
        return self.predicate in _ORDERED

    @property
    def prefix_truth(self) -> bool:
        """What it is in the first iterations, if it is uniform and ordered."""
        return self.holds(True).slope > 0

    def holds(self, truth: bool) -> Constraint:
        """What has to hold for it to be ``truth`` in every element. For ordered predicates."""
        exchanged, or_equal = _ORDERED[self.predicate if truth else _NEGATION[self.predicate]]
        form = self.difference.times(-1) if exchanged else self.difference
        return Constraint.not_positive(form + Affine(0, (), 1 - or_equal, 1 - or_equal))

    def limits(self) -> Iterator[Constraint]:
        """What has to hold for the two sides to have their forms: nothing wraps."""
        width = width_of(self.op.operands[0].type) or 64
        numbers = unsigned(width) if self.predicate in _UNSIGNED else signed(width)
        for side in (self.left, self.right):
            for form, among in (*side.limits, (side.form, numbers)):
                yield from _among(form, among)


def _among(form: Affine, numbers: Range) -> Iterator[Constraint]:
    yield Constraint(form.slope, form.terms, form.high - numbers.high)
    low = form.times(-1)
    yield Constraint(low.slope, low.terms, low.high + numbers.low)


def comparisons(loop: Operation, forms: LoopForms, ranges: Ranges) -> list[Comparison]:
    """Those on the induction variable that branches or masks depend on, outermost first."""
    variable = ranges.induction_variable(loop)
    found = []
    for op in loop.regions[0].walk():
        if op_name(op) != "arith.cmpi" or (width_of(op.operands[0].type) or 0) < 8:
            continue
        left, right = forms.of(op.operands[0]), forms.of(op.operands[1])
        if left is None or right is None:
            continue
        wanted, branches = _wanted(op.results[0])
        if not wanted:
            continue
        truth = True in wanted
        comparison = Comparison(op, left, right, truth, _depth(op, loop), branches)
        difference = comparison.difference
        line = Constraint.not_positive(difference)
        if not difference.slope or not line.fits(ranges, variable):
            continue
        limits = comparison.limits()
        if not all(c.most(ranges, variable) <= 0 or c.fits(ranges, variable) for c in limits):
            continue
        found.append(comparison)
    return sorted(found, key=lambda c: (c.depth, not c.branches))


def _depth(op: Operation, loop: Operation) -> int:
    depth, parent = 0, op.parent_op()
    while parent is not None and parent is not loop:
        depth, parent = depth + 1, parent.parent_op()
    return depth


def _wanted(condition: SSAValue) -> tuple[set[bool], bool]:
    """Which truths of a mask make code simpler, and whether a branch is among that."""
    wanted: set[bool] = set()
    branches = False
    seen: set[tuple[SSAValue, bool]] = set()
    work = [(condition, True)]
    while work:
        value, straight = work.pop()
        if (value, straight) in seen:
            continue
        seen.add((value, straight))
        for use in value.uses:
            user, name = use.operation, op_name(use.operation)
            if name in _PASSES_ON:
                work.append((user.results[0], straight))
            elif name == "arith.xori" and _is_not(user):
                work.append((user.results[0], not straight))
            elif name == "scf.if":
                wanted |= {True, False}
                branches = True
            elif name == "arith.select" and use.index == 0:
                if isinstance(value.type, TensorType):
                    wanted.add(straight == _keeps_when_true(user))
                else:
                    wanted |= {True, False}
            elif name in _MASKED and use.index == _mask_index(user, name):
                wanted.add(straight)
    return wanted, branches


def _is_not(op: Operation) -> bool:
    return any(constant_of(operand) in (1, -1) for operand in op.operands)


def _keeps_when_true(select: Operation) -> bool:
    """Whether the branch of a select that is computed, not a constant, is the one of true."""
    return not (_is_constant(select.operands[1]) and not _is_constant(select.operands[2]))


def _is_constant(value: SSAValue) -> bool:
    op = value.owner
    if not isinstance(op, Operation):
        return False
    if op_name(op) in ("tt.splat", "tt.broadcast"):
        return _is_constant(op.operands[0])
    return op_name(op) == "arith.constant"


def _mask_index(op: Operation, name: str) -> int:
    """The index of the mask among the operands; -1 where there is none."""
    place = _MASKED[name]
    segments: Any = inherent(op, "operandSegmentSizes")
    if segments is None:
        return place if len(op.operands) > place else -1
    sizes = [int(size) for size in segments.get_values()]
    return sum(sizes[:place]) if place < len(sizes) and sizes[place] else -1
