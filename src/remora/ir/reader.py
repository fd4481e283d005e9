"""Reads MLIR's generic form: as xDSL's parser does, but exactly, and faster.

MLIR prints an operation on a line, and the same types, attributes and
locations again and again. The parser here cuts a line into such pieces and
looks them up; a piece that is new goes through xDSL's parser once, and its
attribute is used only if it prints as the piece was written. Otherwise the
piece is carried as text. What is not laid out as MLIR prints it (by hand, with
comments or aliases) is left to xDSL's parser as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from xdsl.context import Context
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser.core import UnresolvedOperand
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from remora.ir.constants import ExactParser
from remora.ir.pieces import Pieces, Signature
from remora.ir.scan import NotAsPrinted, after, piece_end, split_location

_HEAD = re.compile(
    r'(?:%([\w$.\-]+)(?::(\d+))? = )?"([^"\\\n]+)"\(([^()\n]*)\)(?:\[([^\]\n]*)\])?([^\n]*)'
)
_SPACE = re.compile(r"\s*")
_OPERAND = re.compile(r"%([\w$.\-]+)(?:#(\d+))?")
_ARGUMENT = re.compile(r"%([\w$.\-]+): ")


class ModuleParser(ExactParser):
    """xDSL's parser for the generic form, which looks up the pieces that it saw before."""

    def __init__(self, context: Context, text: str, pieces: Pieces) -> None:
        super().__init__(context, text)
        self.pieces = pieces

    def _parse_block_body(self, block: Block) -> None:
        # As xDSL's, which makes a token for each line to see whether an operation follows.
        content = self.lexer.input.content
        at = self._current_token.span.start
        while True:
            head = _HEAD.match(content, at)
            if head is not None and not _opens_region(head):
                try:
                    block.add_op(self._parse_printed(head))
                except NotAsPrinted:
                    pass
                else:
                    at = _SPACE.match(content, head.end()).end()  # type: ignore[union-attr]
                    continue
            self._resume_from(at)
            op = self.parse_optional_operation()
            if op is None:
                return
            block.add_op(op)
            at = self._current_token.span.start

    def parse_operation(self) -> Operation:
        """Parse an operation, by pieces if its line is laid out as MLIR prints it."""
        start = self._current_token.span.start
        head = _HEAD.match(self.lexer.input.content, start)
        if head is not None:
            try:
                op = self._parse_printed(head)
            except NotAsPrinted:
                self._resume_from(start)
            else:
                if not _opens_region(head):
                    self._resume_from(head.end())
                return op
        return super().parse_operation()

    def _parse_printed(self, head: re.Match[str]) -> Operation:
        """The operation that begins with ``head``.

        Tokens go on after it if it has regions; otherwise its line is all, and
        they stay where they were.
        """
        name, size, op_name, operand_text, successor_text, rest = head.groups()
        operands = _operands(operand_text)
        rest = rest.strip()
        if _opens_region(head):
            signature = self.pieces.signature(rest[:-2].rstrip())
            if signature.attributes or signature.inputs:
                raise NotAsPrinted
            self._resume_from(head.end() - 2)
            regions = self.parse_region_list()
            tail, location = self._parse_tail()
        else:
            before, location_text = split_location(rest)
            location = self.pieces.location(location_text) if location_text else None
            signature = tail = self.pieces.signature(before)
            regions = []
        if len(operands) != len(tail.inputs):
            self.raise_error(
                f"expected {len(tail.inputs)} operand types but had {len(operands)}", head.start()
            )
        op_type = self._get_op_by_name(op_name)
        properties, attributes = dict(signature.properties), dict(tail.attributes)
        if issubclass(op_type, IRDLOperation):
            for key in op_type.get_irdl_definition().properties:
                if key in attributes and key not in properties:
                    properties[key] = attributes.pop(key)
        op = op_type.create(
            operands=[
                self._operand(*operand, type, head)
                for operand, type in zip(operands, tail.inputs, strict=True)
            ],
            result_types=tail.outputs,
            properties=properties,
            attributes=attributes,
            location=location,
            successors=self._successors(successor_text, head),
            regions=regions,
        )
        if name is not None:
            if len(op.results) != int(size or 1):
                self.raise_error(
                    f"Operation has {len(op.results)} results, but was given {size or 1} to bind.",
                    head.start(),
                )
            self._register_ssa_definition(name, op.results, self._span(head))
        return op

    def _parse_tail(self) -> tuple[Signature, Any]:
        """What follows an operation's regions, to the end of the line."""
        content, start = self.lexer.input.content, self._current_token.span.start
        end = content.find("\n", start)
        line = content[start : end if end >= 0 else len(content)].rstrip()
        before, location_text = split_location(line)
        try:
            location = self.pieces.location(location_text) if location_text else None
            signature = self.pieces.signature(before)
        except NotAsPrinted:
            attributes = self.parse_optional_attr_dict()
            self.parse_punctuation(":", "function type signature expected")
            types = self.parse_function_type()
            location = self.parse_optional_location()
            signature = Signature({}, attributes, types.inputs.data, types.outputs.data)
        else:
            self._resume_from(start + len(line))
        return signature, location

    def _span(self, match: re.Match[str]) -> Span[str]:
        return Span(match.start(), match.end(), self.lexer.input)

    def _operand(
        self, name: str, index: int, type: Attribute, head: re.Match[str]
    ) -> SSAValue[Attribute]:
        values = self.ssa_values.get(name)
        if values is not None and index < len(values) and values[index].type is type:
            return values[index]
        start = self.lexer.input.content.index("%" + name, head.start(4))
        span = Span(start, start + 1 + len(name), self.lexer.input)
        return self.resolve_operand(UnresolvedOperand(span, index), type)

    def _successors(self, text: str | None, head: re.Match[str]) -> Sequence[Block]:
        if not text:
            return ()
        blocks, at = [], head.start(5)
        for name in text.split(", "):
            blocks.append(self._get_block_from_name(Span(at, at + len(name), self.lexer.input)))
            at += len(name) + 2
        return blocks

    def _parse_optional_block_arg_list(self, block: Block) -> Block | None:
        if self._current_token.kind != MLIRTokenKind.L_PAREN:
            return None
        start = self._current_token.span.start
        try:
            arguments, end = self._printed_arguments(start + 1)
        except NotAsPrinted:
            self._resume_from(start)
            return super()._parse_optional_block_arg_list(block)
        for name, type, location in arguments:
            argument = block.insert_arg(type, len(block.args), location)
            self._register_ssa_definition(name, (argument,), self._current_token.span)
        self._resume_from(end)
        return block

    def _printed_arguments(self, at: int) -> tuple[list[tuple[str, Attribute, Any]], int]:
        """Name, type and location of the arguments at ``at``, and where their list ends."""
        line_end = self.lexer.input.content.find("\n", at)
        text = self.lexer.input.content[at:line_end]
        arguments: list[tuple[str, Attribute, Any]] = []
        start = 0
        while True:
            name = _ARGUMENT.match(text, start)
            if name is None:
                raise NotAsPrinted
            end = piece_end(text, name.end())
            before, location_text = split_location(text[name.end() : end])
            location = self.pieces.location(location_text) if location_text else None
            arguments.append((name[1], self.pieces.type(before), location))
            if text.startswith(")", end):
                return arguments, at + end + 1
            start = after(text, end, ", ")


def _opens_region(head: re.Match[str]) -> bool:
    """Whether an operation's first line ends within it."""
    return head[6].rstrip().endswith("({")


def _operands(text: str) -> list[tuple[str, int]]:
    """Name and index of each operand."""
    operands = []
    for word in text.split(", ") if text else ():
        match = _OPERAND.fullmatch(word)
        if match is None:
            raise NotAsPrinted
        operands.append((match[1], int(match[2] or 0)))
    return operands
