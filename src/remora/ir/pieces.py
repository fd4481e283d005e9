"""The pieces that lines of MLIR's generic form are made of, each parsed once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    NameLoc,
    NoneAttr,
    StringAttr,
    UnitAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import StringLiteral

from remora.ir.attributes import TextAttr, TextType, remember_text, text_of
from remora.ir.constants import ExactParser
from remora.ir.scan import STRING, NotAsPrinted, after, piece_end, same_but_for_spelling

_KEY = re.compile(rf"([A-Za-z_][\w$.]*|{STRING})( = )?")
_LOCATION = re.compile(rf"unknown|callsite\(|fused|({STRING})(?::(\d+):(\d+)(?! to))?")

_Piece = TypeVar("_Piece")


@dataclass(frozen=True)
class Signature:
    """What stands on an operation's line after its operands and before its location."""

    properties: dict[str, Attribute]
    attributes: dict[str, Attribute]
    inputs: tuple[Attribute, ...]
    outputs: tuple[Attribute, ...]


class Pieces:
    """The pieces read before, for one context. Attributes are immutable, so they are shared."""

    _MOST = 1 << 14

    def __init__(self, context: Context) -> None:
        self.context = context
        self._attributes: dict[str, Attribute] = {}
        self._types: dict[str, Attribute] = {}
        self._locations: dict[str, Attribute] = {}
        self._signatures: dict[str, Signature] = {}
        self._dialects: tuple[str, ...] = ()

    def refresh(self) -> None:
        """Forget what was read before the context learned another dialect."""
        dialects = tuple(self.context.registered_dialect_names)
        if dialects != self._dialects:
            self._dialects = dialects
            for known in (self._attributes, self._types, self._locations, self._signatures):
                known.clear()

    def _look_up(
        self, known: dict[str, _Piece], text: str, parse: Callable[[str], _Piece]
    ) -> _Piece:
        piece = known.get(text)
        if piece is None:
            if len(known) >= self._MOST:
                known.clear()
            piece = known[text] = parse(text)
        return piece

    def attribute(self, text: str) -> Attribute:
        """The attribute that ``text`` is: ``TextAttr`` if xDSL cannot carry it exactly."""
        return self._look_up(self._attributes, text, partial(self._exact, is_type=False))

    def type(self, text: str) -> Attribute:
        """The type that ``text`` is: ``TextType`` if xDSL cannot carry it exactly."""
        return self._look_up(self._types, text, partial(self._exact, is_type=True))

    def location(self, text: str) -> Any:
        """The location ``loc(...)`` that ``text`` is: ``TextAttr`` if xDSL has none like it."""
        return self._look_up(self._locations, text, self._location)

    def signature(self, text: str) -> Signature:
        """What ``<{properties}> {attributes} : types -> types``, each part optional, says."""
        return self._look_up(self._signatures, text, self._signature)

    def _exact(self, text: str, is_type: bool) -> Attribute:
        try:
            parser = ExactParser(self.context, text)
            attribute = parser.parse_type() if is_type else parser.parse_attribute()
            if not parser.at_end():
                raise NotAsPrinted
            printed = text_of(attribute)
            if printed == text or same_but_for_spelling(text, printed):
                return attribute
        except NotAsPrinted:
            raise
        except Exception:  # xDSL gives up in many ways; MLIR judges what is carried as text
            pass
        return TextType(StringAttr(text)) if is_type else TextAttr(StringAttr(text))

    def _location(self, text: str) -> Attribute:
        if not (text.startswith("loc(") and text.endswith(")")):
            raise NotAsPrinted
        try:
            location, end = self._bare_location(text, 4)
            after(text, end, ")")
        except (NotAsPrinted, UnicodeDecodeError):
            location, end = TextAttr(StringAttr(text)), piece_end(text, 4)
        if end != len(text) - 1:
            raise NotAsPrinted
        remember_text(location, text)
        return location

    def _bare_location(self, text: str, start: int) -> tuple[Any, int]:
        """The location at ``start``, and where it ends."""
        match = _LOCATION.match(text, start)
        if match is None:
            raise NotAsPrinted
        end = match.end()
        if match[0] == "unknown":
            return UnknownLoc(), end
        if match[0] == "callsite(":
            callee, end = self._bare_location(text, end)
            caller, end = self._bare_location(text, after(text, end, " at "))
            return CallSiteLoc(callee, caller), after(text, end, ")")
        if match[0] == "fused":
            return self._fused_location(text, end)
        string = _string(match[1])
        if match[2]:
            return FileLineColLoc(string, IntAttr(int(match[2])), IntAttr(int(match[3]))), end
        if not text.startswith("(", end):
            return NameLoc(string, NoneAttr()), end
        child, end = self._bare_location(text, end + 1)
        return NameLoc(string, child), after(text, end, ")")

    def _fused_location(self, text: str, end: int) -> tuple[Any, int]:
        metadata: Attribute = NoneAttr()
        if text.startswith("<", end):
            start, end = end + 1, piece_end(text, end + 1)
            metadata = self.attribute(text[start:end])
            end = after(text, end, ">")
        locations: list[Attribute] = []
        separator = "["
        while not locations or not text.startswith("]", end):
            location, end = self._bare_location(text, after(text, end, separator))
            locations.append(location)
            separator = ", "
        return FusedLoc(ArrayAttr(locations), metadata), end + 1

    def _signature(self, text: str) -> Signature:
        properties: dict[str, Attribute] = {}
        attributes: dict[str, Attribute] = {}
        inputs: list[Attribute] = []
        outputs: list[Attribute] = []
        at = 0
        if text.startswith("<{", at):
            properties, at = self._dictionary(text, at + 1)
            at = after(text, at, ">")
            at += text.startswith(" ", at)
        if text.startswith("{", at):
            attributes, at = self._dictionary(text, at)
            at += text.startswith(" ", at)
        if at < len(text):
            inputs, at = self._type_list(text, after(text, at, ": "))
            at = after(text, at, " -> ")
            if text.startswith("(", at):
                outputs, at = self._type_list(text, at)
            else:
                start, at = at, piece_end(text, at)
                outputs = [self.type(text[start:at])]
        if at != len(text):
            raise NotAsPrinted
        return Signature(properties, attributes, tuple(inputs), tuple(outputs))

    def _dictionary(self, text: str, start: int) -> tuple[dict[str, Attribute], int]:
        """The dictionary ``{...}`` at ``start``, and where it ends."""
        entries: dict[str, Attribute] = {}
        at = start + 1
        while text[at : at + 1] != "}":
            key = _KEY.match(text, at)
            if key is None:
                raise NotAsPrinted
            name = _string(key[1]).data if key[1].startswith('"') else key[1]
            at = piece_end(text, key.end())
            if bool(key[2]) == (at == key.end()) or name in entries:
                raise NotAsPrinted
            entries[name] = self.attribute(text[key.end() : at]) if key[2] else UnitAttr()
            if text.startswith(", ", at):
                at += 2
        return entries, at + 1

    def _type_list(self, text: str, start: int) -> tuple[list[Attribute], int]:
        """The types in parentheses at ``start``, and where they end."""
        at = after(text, start, "(")
        types: list[Attribute] = []
        while text[at : at + 1] != ")":
            begin, at = at, piece_end(text, at)
            if at == begin:
                raise NotAsPrinted
            types.append(self.type(text[begin:at]))
            if text.startswith(", ", at):
                at += 2
        return types, at + 1


def _string(literal: str) -> StringAttr:
    """The string that a literal with quotes stands for, if MLIR would write it so."""
    if "\\" not in literal:
        string = StringAttr(literal[1:-1])
    else:
        span: Input[str] = Input(literal, "")
        string = StringAttr(StringLiteral(0, len(literal), span).string_contents)
    if ("\\" in literal or not literal.isprintable()) and text_of(string) != literal:
        raise NotAsPrinted
    return string
