"""Products in the layouts that the author names."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from remora.ir.build import op_name


def named(value: SSAValue) -> SSAValue | None:
    """The value in the layout that the author required of it; None where it is the compiler's.

    ``tlx.require_layout`` converts to a layout and back: looks behind the way back.
    """
    while isinstance(value.owner, Operation) and op_name(value.owner) == "ttg.convert_layout":
        value = value.owner.operands[0]
        if not str(value.type.encoding).startswith("#ttg.blocked"):  # type: ignore[attr-defined]
            return value
    return None
