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
    trigger = "remora:tlx.local_load"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Give loads, and all that they become, the layout that all of their uses convert to."""
        for load in [o for o in op.walk() if op_name(o) == "ttg.local_load"]:
            values, uses = _closure(load)
            wanted = {use.results[0].type for use in uses}
            if len(wanted) != 1 or not _is_operand(kind := wanted.pop()):
                continue
            for value in values:
                set_type(value, kind)
            for use in uses:
                use.results[0].replace_all_uses_with(use.operands[0])
                erase(use)


def _is_operand(kind: Attribute) -> bool:
    encoding: Any = getattr(kind, "encoding", None)
    return str(encoding).startswith("#ttg.dot_op<")


def _closure(load: Operation) -> tuple[list[SSAValue], list[Operation]]:
    """What a load and other loads become together by control flow, and the conversions of it.

    No conversions where something else reads one of the values or becomes one of them.
    """
    values: dict[SSAValue, None] = {}
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
                return [], []
        owner = value.owner
        if isinstance(owner, Operation) and op_name(owner) == "ttg.local_load":
            sources: list[SSAValue] = []
        else:
            sources = [op.operands[index] for op, index in joined_into(value)]
            if not sources:
                return [], []
        work += [*further, *sources]
    return list(values), list(uses)
