"""How an operation of our own travels through stock Triton until it is lowered.

As a call of a private function without a body, whose symbol says all about it:
``remora:NAME@MODULE:RESULTS:ATTRIBUTES:TYPES``. MODULE declares the operation,
RESULTS has a letter for each result (``h`` for a handle, ``v`` for another
value), ATTRIBUTES is a Python literal, and TYPES only keeps symbols of
different signatures apart.

Where the conversion from TTIR to TTGIR does not give such a function's tensors
their layouts (Triton 3.7), an operation over tensors travels as a ``tt.print``
that takes its operands, followed by an impure ``tt.extern_elementwise`` for
each result; both carry the symbol.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remora.errors import PluginError
from remora.host import features

PREFIX = "remora:"


@dataclass(frozen=True)
class Symbol:
    """What a symbol says of an operation.

    declared_in: the module that declares it.
    results: a letter for each result: ``h`` for a handle, ``v`` for another value.
    """

    name: str
    declared_in: str
    results: str
    attributes: dict[str, Any]


def encode(
    symbol: Symbol, operand_types: Sequence[str] = (), result_types: Sequence[str] = ()
) -> str:
    """The text of a symbol.

    Raises:
        PluginError: an attribute is not a constant that can be written down.
    """
    literal = ascii(dict(sorted(symbol.attributes.items())))
    try:
        _evaluate(literal)
    except (ValueError, SyntaxError) as error:
        raise PluginError(
            f"the attributes of {symbol.name} cannot be written down: {literal}",
            hint="give numbers, strings, None, and tuples, lists and dicts of them",
        ) from error
    types = f"{','.join(operand_types)}->{','.join(result_types)}"
    return f"{PREFIX}{symbol.name}@{symbol.declared_in}:{symbol.results}:{literal}:{types}"


def decode(text: str) -> Symbol:
    """What a symbol's text says."""
    _, qualified, results, rest = text.split(":", 3)
    name, _, declared_in = qualified.partition("@")
    return Symbol(name, declared_in, results, _evaluate(rest[: rest.rindex("}:") + 1]))


class _NonFinite(ast.NodeTransformer):
    """``inf`` and ``nan``, which Python prints and does not read."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def _evaluate(literal: str) -> Any:
    return ast.literal_eval(_NonFinite().visit(ast.parse(literal, mode="eval")))


def emit(
    symbol: Symbol, operands: Sequence[Any], result_types: Sequence[Any], *, generator: Any
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
    text = encode(symbol, [*map(str, operand_types)], [*map(str, result_types)])
    tensors = any(str(t).startswith("tensor<") for t in (*operand_types, *result_types))
    if tensors and not features().calls_carry_tensors:
        return _emit_without_call(text, operands, result_types, builder)
    if module.has_function(text):
        function = module.get_function(text)
    else:
        function = _declare(text, operand_types, result_types, generator)
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
