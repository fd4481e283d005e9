"""Scalars whose value is known though they are tensors.

Triton's code generator makes a tensor of a constant that is assigned to a name, unless the name
is annotated as ``tl.constexpr``. Existing kernels use such names where a constant is needed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

_ARITHMETIC: dict[str, Callable[..., int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divsi": lambda a, b: int(a / b),
    "arith.extsi": lambda a: a,
    "arith.trunci": lambda a: a,
}


def known_integer(module: Any, value: Any) -> int | None:
    """The value of a scalar integer that is computed of constants only; None where it is not.

    Args:
        module: the ``libtriton.ir.module`` that holds it. value: a ``libtriton.ir.value``.
    """
    definitions: dict[int, Any] = {}

    def remember(op: Any) -> None:
        if op.get_num_results() == 1:
            definitions[op.get_result(0).id()] = op

    module.walk(remember)

    def evaluate(wanted: Any) -> int | None:
        op: Any = definitions.get(wanted.id())
        name = op.get_name() if op is not None else ""
        if name == "arith.constant":
            number: int | None = op.get_int_attr("value")
            return number
        if name not in _ARITHMETIC:
            return None
        operands = [evaluate(op.get_operand(i)) for i in range(op.get_num_operands())]
        if None in operands or (name == "arith.divsi" and not operands[1]):
            return None
        return _ARITHMETIC[name](*operands)

    return evaluate(value)
