"""Passes for the tests of `remora opt`."""

from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnregisteredOp, i32

import remora


def called(module, name):
    """The operations of a name."""
    return [
        op for op in module.walk() if isinstance(op, UnregisteredOp) and op.op_name.data == name
    ]


@dataclass(frozen=True)
class Annotate(remora.ModulePass):
    """Write a note on every operation of a name."""

    name = "annotate"

    op: str
    note: str = "seen"
    level: int | None = None

    def apply(self, ctx, module):
        for op in called(module, self.op):
            op.attributes["note"] = StringAttr(self.note)
            if self.level is not None:
                op.attributes["level"] = IntegerAttr(self.level, i32)


@dataclass(frozen=True)
class DropStores(remora.ModulePass):
    """Erase every store."""

    name = "drop-stores"

    def apply(self, ctx, module):
        for op in called(module, "tt.store"):
            op.detach()
            op.erase()


@dataclass(frozen=True)
class Unfinished(remora.ModulePass):
    """Leave functions without a return."""

    name = "unfinished"

    def apply(self, ctx, module):
        for op in called(module, "tt.return"):
            op.detach()
            op.erase()
