"""Writes a module as MLIR's generic printer does, names and comments included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.dialects.builtin import FunctionType, StringAttr, UnitAttr, UnregisteredOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.utils.mlir_lexer import MLIRLexer

from remora.ir.attributes import text_of


class Writer:
    """Writes one operation and all that is in it.

    Values and blocks are numbered as MLIR numbers them; name hints are not
    printed, so that the text depends on the module alone.
    """

    def __init__(self, *, locations: bool) -> None:
        self.locations = locations
        self.values: dict[SSAValue, str] = {}
        self.blocks: dict[Block, int] = {}
        self.parts: list[str] = []

    def write(self, op: Operation) -> str:
        """The text of an operation that stands alone."""
        self._number(op)
        self._write_op(op, "")
        return "".join(self.parts)

    def _number(self, op: Operation) -> None:
        """Name all values and blocks: a region's own before those nested in it, last nest first."""
        values, arguments = 0, 0
        stack = list(op.regions)
        values += self._name_results(op, values)
        while stack:
            region = stack.pop()
            for index, block in enumerate(region.blocks):
                self.blocks[block] = index
                for argument in block.args:
                    if index == 0:
                        self.values[argument] = f"%arg{arguments}"
                        arguments += 1
                    else:
                        self.values[argument] = f"%{values}"
                        values += 1
                for inner in block.ops:
                    values += self._name_results(inner, values)
                    stack.extend(inner.regions)

    def _name_results(self, op: Operation, number: int) -> int:
        """Name an operation's results; how many numbers that took."""
        results = op.results
        if len(results) == 1:
            self.values[results[0]] = f"%{number}"
        else:
            for index, result in enumerate(results):
                self.values[result] = f"%{number}#{index}"
        return 1 if results else 0

    def _value(self, value: SSAValue) -> str:
        return self.values.get(value, "<<UNKNOWN SSA VALUE>>")

    def _write_op(self, op: Operation, indent: str) -> None:
        put = self.parts.append
        results = op.results
        if len(results) == 1:
            put(f"{self.values[results[0]]} = ")
        elif results:
            put(f"{self.values[results[0]].partition('#')[0]}:{len(results)} = ")
        attributes: Mapping[str, Attribute] = op.attributes
        if isinstance(op, UnregisteredOp):
            attributes = {k: v for k, v in attributes.items() if k != "op_name__"}
            put(f'"{op.op_name.data}"(')
        else:
            put(f'"{op.name}"(')
        put(", ".join(map(self._value, op.operands)))
        put(")")
        if op.successors:
            put(f"[{', '.join(map(self._block, op.successors))}]")
        if op.properties:
            put(f" <{_dictionary(op.properties)}>")
        if op.regions:
            put(" (")
            for index, region in enumerate(op.regions):
                put(", {\n" if index else "{\n")
                self._write_region(region, indent)
            put(")")
        if attributes:
            put(" " + _dictionary(attributes))
        put(f" : {_signature(op)}")
        if self.locations:
            put(" " + text_of(op.location))

    def _write_region(self, region: Region, indent: str) -> None:
        put = self.parts.append
        inner = indent + "  "
        for index, block in enumerate(region.blocks):
            if index or block.args or not block.first_op:
                put(f"{indent}{self._header(block)}\n")
            for op in block.ops:
                put(inner)
                self._write_op(op, inner)
                put("\n")
        put(indent + "}")

    def _block(self, block: Block) -> str:
        index = self.blocks.get(block)
        return "INVALIDBLOCK" if index is None else f"^bb{index}"

    def _header(self, block: Block) -> str:
        text = self._block(block)
        if block.args:
            text += f"({', '.join(map(self._argument, block.args))})"
        before = sorted(self.blocks.get(b, -1) for b in block.predecessors())
        if len(before) == 1:
            return f"{text}:  // pred: ^bb{before[0]}"
        if before:
            return f"{text}:  // {len(before)} preds: {', '.join(f'^bb{i}' for i in before)}"
        return f"{text}:  // no predecessors" if self.blocks[block] else f"{text}:"

    def _argument(self, argument: BlockArgument) -> str:
        text = f"{self.values[argument]}: {text_of(argument.type)}"
        return f"{text} {text_of(argument.location)}" if self.locations else text


def _signature(op: Operation) -> str:
    results = list(op.result_types)
    text = _types(results)
    if len(results) != 1 or isinstance(results[0], FunctionType):
        text = f"({text})"
    return f"({_types(op.operand_types)}) -> {text}"


def _types(types: Iterable[Attribute]) -> str:
    return ", ".join(map(text_of, types))


def _dictionary(attributes: Mapping[str, Attribute]) -> str:
    entries = []
    for name, value in attributes.items():
        key = name if MLIRLexer.bare_identifier_regex.fullmatch(name) else text_of(StringAttr(name))
        entries.append(key if isinstance(value, UnitAttr) else f"{key} = {text_of(value)}")
    return f"{{{', '.join(entries)}}}"
