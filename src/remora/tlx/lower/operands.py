"""Loads of products' operands give them as the matrix unit takes them, also along loops.

Once stock Triton has chosen the layouts of products, on CDNA. A tile that is loaded in one
iteration and multiplied in the next would otherwise be carried as something else and go
through shared memory once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from remora.dsl.lowering import carried_to
from remora.ir.build import erase, op_name, set_type
from remora.tlx.lower.analysis import joined_into, joins


@dataclass(frozen=True)
class LoadAsOperands(ModulePass):
    """See the module."""

    name = "tlx-load-as-operands"
    trigger = "remora:tlx."

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Give loads, and all that they become, the layout that all of their uses convert to."""
        for load in [o for o in op.walk() if _is_source(o)]:
            if load.parent is None:
                continue  # taken out with another one
            values, entries, uses = _closure(load)
            wanted = {use.results[0].type for use in uses}
            if len(wanted) != 1 or not _is_operand(kind := wanted.pop()):
                continue
            converted = [e for e in entries if op_name(e) == "ttg.convert_layout"]
            if any(e.operands[0].type != kind for e in converted):
                continue
            for value in values:
                set_type(value, kind)
            for redundant in (*uses, *converted):
                redundant.results[0].replace_all_uses_with(redundant.operands[0])
                erase(redundant)


def _is_source(op: Operation) -> bool:
    """A load from shared memory, or a value that is in an operand's layout and leaves it."""
    if op_name(op) == "ttg.convert_layout":
        return _is_operand(op.operands[0].type) and not _is_operand(op.results[0].type)
    return op_name(op) == "ttg.local_load"


def _is_operand(kind: Attribute) -> bool:
    encoding: Any = getattr(kind, "encoding", None)
    return str(encoding).startswith("#ttg.dot_op<")


def _closure(
    load: Operation,
) -> tuple[list[SSAValue], list[Operation], list[Operation]]:
    """What a load and others become together by control flow: values, loads, conversions of them.

    No conversions where something else reads one of the values or becomes one of them.
    """
    values: dict[SSAValue, None] = {}
    entries: dict[Operation, None] = {}
    uses: dict[Operation, None] = {}
    work: list[SSAValue] = [load.results[0]]
    while work:
        value = work.pop()
        if value in values:
            continue
        values[value] = None
        further = list(carried_to(value))
        for use in value.uses:
            if op_name(use.operation) == "ttg.convert_layout":
                uses[use.operation] = None
            elif not joins(use.operation, use.index):
                return [], [], []
        owner = value.owner
        if isinstance(owner, Operation) and _is_source(owner):
            entries[owner] = None
            sources: list[SSAValue] = []
        else:
            sources = [op.operands[index] for op, index in joined_into(value)]
            if not sources:
                return [], [], []
        work += [*further, *sources]
    return list(values), list(entries), list(uses)
