"""xDSL's parser for attributes and types, exact on constants."""

from __future__ import annotations

import math
from typing import Any

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyDenseElement,
    AnyFloat,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    IntegerType,
    MemRefType,
    RankedStructure,
    TensorType,
    VectorType,
)
from xdsl.parser import Parser
from xdsl.utils.mlir_lexer import MLIRTokenKind

from remora.ir.scan import NotAsPrinted, piece_end


class ExactParser(Parser):
    """xDSL's parser, with dense constants as MLIR reads them, and splats in no time."""

    def at_end(self) -> bool:
        """Whether the whole text has been read."""
        return self._current_token.kind == MLIRTokenKind.EOF

    def _raw_scan_balanced(self, pos: int) -> int:
        # As xDSL's, which goes by character.
        content = self.lexer.input.content
        try:
            end = piece_end(content, pos)
            while content.startswith(",", end):
                end = piece_end(content, end + 1)
        except NotAsPrinted:
            return super()._raw_scan_balanced(pos)
        return end if content.startswith(">", end) else super()._raw_scan_balanced(pos)

    def _parse_dense_literal_type(self) -> RankedStructure[Any]:
        # As xDSL's, without its constraint on the element's type: the constant
        # itself tells, and building the constraint costs a millisecond.
        type = self.parse_type()
        if (
            not isinstance(type, MemRefType | TensorType | VectorType)
            or DYNAMIC_INDEX in type.get_shape()
        ):
            self.raise_error("Expected a memref, vector or tensor type of a static shape")
        return type

    def parse_dense_int_or_fp_elements_attr(
        self, type: RankedStructure[AnyDenseElement] | None
    ) -> DenseIntOrFPElementsAttr[Any]:
        """Parse a dense constant; a float written in hexadecimal is its bits."""
        start = self._current_token.span.start
        self.parse_punctuation("<", " in dense attribute")
        if self._current_token.kind not in (MLIRTokenKind.STRING_LIT, MLIRTokenKind.GREATER):
            elements, shape = self._parse_tensor_literal()
            self.parse_punctuation(">", " in dense attribute")
            found = type
            if found is None:
                self.parse_punctuation(":", " in dense attribute")
                found = self._parse_dense_literal_type()
            if not isinstance(found.get_element_type(), ComplexType):
                if shape and shape != list(found.get_shape()):
                    self.raise_error("Shape mismatch in dense literal", start)
                data = b"".join(self._element_bits(e, found.get_element_type()) for e in elements)
                count = 1 if shape else math.prod(found.get_shape())
                return DenseIntOrFPElementsAttr(found, BytesAttr(data * count))
        self._resume_from(start)
        return super().parse_dense_int_or_fp_elements_attr(type)

    def _element_bits(self, element: Any, kind: Any) -> bytes:
        """The bytes of an element of a dense constant, little-endian."""
        if isinstance(kind, AnyFloat) and "0x" in element.span.text:
            bits = int(element.value)
            if bits < 0 or bits.bit_length() > kind.bitwidth:
                self.raise_error("Hexadecimal float constant out of range for type", element.span)
            return bits.to_bytes(kind.compile_time_size, "little")
        value = element.to_type(self, kind)
        if isinstance(kind, IntegerType):
            value = kind.get_normalized_value(value)
        packed: bytes = kind.pack([value])
        return packed
