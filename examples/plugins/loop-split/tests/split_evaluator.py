"""Runs the part of scf, arith and tt that the tests write, on xDSL's operations.

Scalars are Python ints, signed except for i1; tensors are arrays of them. What
a kernel loads and stores, and with which mask, is noted in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import Block, Operation, SSAValue

from remora.ir.build import inherent, op_name


def width_of(kind: Any) -> int:
    element = kind.element_type if isinstance(kind, TensorType) else kind
    assert isinstance(element, IntegerType), kind
    return element.width.data


def wrapped(value: Any, width: int) -> Any:
    """The number modulo 2 ** width, signed; i1 is 0 or 1."""
    if width == 1:
        return value & 1
    half = 1 << (width - 1)
    return ((value + half) & ((1 << width) - 1)) - half


def unsigned(value: Any, width: int) -> Any:
    return value & ((1 << width) - 1)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY = {
    "addi": lambda a, b, w: a + b,
    "subi": lambda a, b, w: a - b,
    "muli": lambda a, b, w: a * b,
    "andi": lambda a, b, w: a & b,
    "ori": lambda a, b, w: a | b,
    "xori": lambda a, b, w: a ^ b,
    "shli": lambda a, b, w: a << b,
    "shrsi": lambda a, b, w: a >> b,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "divsi": lambda a, b, w: _quotient(a, b),
    "remsi": lambda a, b, w: a - b * _quotient(a, b),
    "divui": lambda a, b, w: unsigned(a, w) // unsigned(b, w),
    "remui": lambda a, b, w: unsigned(a, w) % unsigned(b, w),
}
_COMPARE = [
    lambda a, b: a == b, lambda a, b: a != b,
    lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b,
]  # fmt: skip


class TooLong(Exception):
    """The kernel runs more iterations than a test wants."""


class Evaluator:
    """One run of one function.

    log: each effect: its name, the address, the elements that take part and the values.
    passes_end: whether a loop's variable left its type after the last iteration.
    """

    def __init__(self, most: int = 4000) -> None:
        self.values: dict[SSAValue, Any] = {}
        self.log: list[Any] = []
        self.passes_end = False
        self.left = most

    def call(self, module: Operation, arguments: list[int]) -> list[Any]:
        """The function's results."""
        (function,) = (op for op in module.walk() if op_name(op) == "tt.func")
        return self.block(function.regions[0].block, arguments)

    def block(self, block: Block, arguments: list[Any]) -> list[Any]:
        """What the block's terminator passes on."""
        self.values.update(zip(block.args, arguments, strict=True))
        for op in block.ops:
            operands = [self.values[operand] for operand in op.operands]
            name = op_name(op)
            if name in ("scf.yield", "tt.return"):
                return operands
            results = self.op(name.partition(".")[2], name, op, operands)
            self.values.update(zip(op.results, results, strict=True))
        return []

    def op(self, short: str, name: str, op: Operation, operands: list[Any]) -> list[Any]:
        rule = getattr(self, name.replace(".", "_"), None)
        if rule is not None:
            return list(rule(op, *operands))
        width = width_of(op.results[0].type)
        if short in ("minsi", "maxsi"):
            result = _BINARY[short](*operands)
            return [result if isinstance(result, np.ndarray) else int(result)]
        return [wrapped(_BINARY[short](*operands, width), width)]

    def arith_constant(self, op: Operation) -> Any:
        value: Any = inherent(op, "value")
        if not isinstance(op.results[0].type, TensorType):
            yield wrapped(int(value.value.data), width_of(op.results[0].type))
            return
        numbers = np.array([int(n) for n in value.iter_values()], dtype=object)
        shape = op.results[0].type.get_shape()
        yield wrapped(
            np.broadcast_to(numbers.reshape(-1)[: int(np.prod(shape))], shape),
            width_of(op.results[0].type),
        )

    def arith_cmpi(self, op: Operation, a: Any, b: Any) -> Any:
        predicate: Any = inherent(op, "predicate")
        number = predicate.value.data
        if number >= 6:
            width = width_of(op.operands[0].type)
            a, b, number = unsigned(a, width), unsigned(b, width), number - 4
        result = _COMPARE[number](a, b)
        yield result.astype(object) * 1 if isinstance(result, np.ndarray) else int(result)

    def arith_select(self, op: Operation, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, np.ndarray):
            yield np.where(condition.astype(bool), a, b)
        else:
            yield a if condition else b

    def arith_extsi(self, op: Operation, a: Any) -> Any:
        yield a

    def arith_extui(self, op: Operation, a: Any) -> Any:
        yield unsigned(a, width_of(op.operands[0].type))

    def arith_trunci(self, op: Operation, a: Any) -> Any:
        yield wrapped(a, width_of(op.results[0].type))

    def tt_make_range(self, op: Operation) -> Any:
        start, end = (inherent(op, name).value.data for name in ("start", "end"))
        yield np.array(range(start, end), dtype=object)

    def tt_splat(self, op: Operation, a: Any) -> Any:
        yield np.full(op.results[0].type.get_shape(), a, dtype=object)

    def tt_expand_dims(self, op: Operation, a: Any) -> Any:
        yield np.expand_dims(a, inherent(op, "axis").value.data)

    def tt_broadcast(self, op: Operation, a: Any) -> Any:
        yield np.broadcast_to(a, op.results[0].type.get_shape())

    def scf_for(self, op: Operation, lower: int, upper: int, step: int, *carried: Any) -> Any:
        assert step > 0
        values = list(carried)
        variable = lower
        while variable < upper:
            self.left -= 1
            if self.left < 0:
                raise TooLong
            values = self.block(op.regions[0].block, [variable, *values])
            variable += step
        self.passes_end |= variable != wrapped(variable, width_of(op.operands[0].type))
        return values

    def scf_if(self, op: Operation, condition: int) -> Any:
        region = op.regions[0 if condition else 1]
        return self.block(region.block, []) if region.blocks else []

    def tt_store(self, op: Operation, address: Any, value: Any, mask: Any = None) -> Any:
        self._note("store", address, value, mask)
        return []

    def tt_load(self, op: Operation, address: Any, mask: Any = None, other: Any = None) -> Any:
        # Memory holds its address.
        self._note("load", address, address, mask)
        if mask is None:
            yield address
        else:
            yield np.where(mask.astype(bool), address, other)

    def _note(self, what: str, address: Any, value: Any, mask: Any) -> None:
        if isinstance(value, np.ndarray):
            taking = np.ones_like(value) if mask is None else mask
            lanes = zip(np.ravel(address), np.ravel(taking), np.ravel(value), strict=True)
            value = [(i, int(a), int(v)) for i, (a, t, v) in enumerate(lanes) if t]
        elif mask is not None and not mask:
            value = []
        self.log.append((what, value))
