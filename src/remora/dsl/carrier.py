"""How an operation of our own travels through stock Triton until it is lowered.

As a call of a private function without a body, whose symbol says all about it:
``remora:NAME@MODULE:N:ATTRIBUTES:TYPES``. MODULE declares the operation, N is
the number of its results, ATTRIBUTES is a Python literal, and TYPES only keeps
symbols of different signatures apart.

Where the conversion from TTIR to TTGIR does not give such a function's tensors
their layouts (Triton 3.7), an operation over tensors travels as a ``tt.print``
that takes its operands, followed by an impure ``tt.extern_elementwise`` for
each result; both carry the symbol.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from remora.host import features

PREFIX = "remora:"


def encode(
    name: str,
    module: str,
    attributes: dict[str, Any],
    operand_types: Sequence[str] = (),
    result_types: Sequence[str] = (),
) -> str:
    """The symbol of an operation that ``module`` declares."""
    types = f"{','.join(operand_types)}->{','.join(result_types)}"
    literal = repr(dict(sorted(attributes.items())))
    return f"{PREFIX}{name}@{module}:{len(result_types)}:{literal}:{types}"


def decode(symbol: str) -> tuple[str, str, int, dict[str, Any]]:
    """Name, module, number of results and attributes from a symbol."""
    _, qualified, results, rest = symbol.split(":", 3)
    name, _, module = qualified.partition("@")
    return name, module, int(results), ast.literal_eval(rest[: rest.rindex("}:") + 1])


def emit(
    name: str,
    declared_in: str,
    attributes: dict[str, Any],
    operands: Sequence[Any],
    result_types: Sequence[Any],
    *,
    generator: Any,
) -> list[Any]:
    """Emit an operation at the builder's insertion point.

    Args:
        operands: ``ir.value`` of each operand.
        result_types: ``ir.type`` of each result.
        generator: the code generator of the kernel.

    Returns:
        the ``ir.value`` of each result.
    """
    builder, module = generator.builder, generator.module
    operand_types = [v.get_type() for v in operands]
    symbol = encode(
        name, declared_in, attributes, [*map(str, operand_types)], [*map(str, result_types)]
    )
    tensors = any(str(t).startswith("tensor<") for t in (*operand_types, *result_types))
    if tensors and not features().calls_carry_tensors:
        return _emit_without_call(symbol, operands, result_types, builder)
    if module.has_function(symbol):
        function = module.get_function(symbol)
    else:
        function = _declare(symbol, operand_types, result_types, generator)
    call = builder.call(function, list(operands))
    return [call.get_result(i) for i in range(call.get_num_results())]


def _declare(
    symbol: str, operand_types: Sequence[Any], result_types: Sequence[Any], generator: Any
) -> Any:
    """Add the private function ``symbol``, without a body, to the module."""
    from triton._C.libtriton import ir

    # A builder without an insertion point: one that has a point would put the
    # function there, in the middle of the kernel.
    builder = ir.builder(generator.context)
    builder.set_loc(generator.builder.get_loc())
    kind = builder.get_function_ty(list(operand_types), list(result_types))
    function = builder.get_or_insert_function(generator.module, symbol, kind, "private", False)
    generator.module.push_back(function)
    return function


def _emit_without_call(
    symbol: str, operands: Sequence[Any], result_types: Sequence[Any], builder: Any
) -> list[Any]:
    builder.create_print(symbol, False, list(operands), [0] * len(operands))
    results = []
    for kind in result_types:
        # Any operand of the result's shape will do; it is not read.
        operand = builder.get_int32(0)
        shape = re.fullmatch(r"tensor<((?:\d+x)+).*>", str(kind))
        if shape:
            extents = [int(n) for n in shape.group(1).rstrip("x").split("x")]
            operand = builder.create_splat(
                builder.get_block_ty(builder.get_int32_ty(), extents), operand
            )
        results.append(builder.create_extern_elementwise("", "", symbol, [operand], kind, False))
    return results
