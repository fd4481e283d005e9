"""Waits for copies to LDS, as the author wrote them.

Stock software pipelining, and after it the schedule of two groups of warps, recount every
``ttg.async_wait`` of a module. So a wait is a marker until both are past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from remora.ir.build import Builder, attribute, boolean, erase, i32, inherent, op_name

_MARK = "; wait for all groups but "
_TOKEN = attribute("!ttg.async.token")


def mark(builder: Builder, pendings: int) -> None:
    """Put a marker: an instruction that has effects, so that nothing passes it."""
    builder.op(
        "tt.elementwise_inline_asm", [], [attribute("i32")],
        {
            "asm_string": StringAttr(f"{_MARK}{pendings}"),
            "constraints": StringAttr("=r"),
            "packed_element": i32(1),
            "pure": boolean(False),
        },
    )  # fmt: skip


@dataclass(frozen=True)
class WaitAsWritten(ModulePass):
    """See the module."""

    name = "tlx-wait-as-written"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Make waits of the markers."""
        for each in list(op.walk()):
            if (pendings := _marked(each)) is not None:
                builder = Builder.before(each)
                builder.op("ttg.async_wait", [], [_TOKEN], {"num": i32(pendings)})
                erase(each)


def _marked(op: Operation) -> int | None:
    if op_name(op) != "tt.elementwise_inline_asm":
        return None
    text: Any = inherent(op, "asm_string")
    return int(text.data.removeprefix(_MARK)) if text.data.startswith(_MARK) else None
