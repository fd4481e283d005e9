"""Attributes that xDSL has no class for, and the text of every attribute as MLIR prints it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import StringIO
from typing import Any, TypeAlias

from xdsl.dialects.builtin import (
    AnyFloat,
    BuiltinAttribute,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerType,
    StringAttr,
    i1,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.printer import Printer

_Element: TypeAlias = AnyFloat | IntegerType | IndexType


@irdl_attr_definition
class TextAttr(ParametrizedAttribute, BuiltinAttribute):
    """An attribute or a location that xDSL cannot carry exactly: its text, as MLIR wrote it.

    A pass may move it, compare it and read ``text.data``. Dense constants and
    scalars, not-a-numbers and infinities among them, are not of this kind
    unless a Python float cannot hold them: they are xDSL's ``FloatAttr`` and
    ``DenseIntOrFPElementsAttr``.
    """

    name = "remora.text"
    text: StringAttr = param_def()  # type: ignore[assignment]

    def print_builtin(self, printer: Printer) -> None:
        printer.print_string(self.text.data)


@irdl_attr_definition
class TextType(ParametrizedAttribute, BuiltinAttribute, TypeAttribute):
    """A type that xDSL cannot carry exactly: see ``TextAttr``."""

    name = "remora.text_type"
    text: StringAttr = param_def()  # type: ignore[assignment]

    def print_builtin(self, printer: Printer) -> None:
        printer.print_string(self.text.data)


# The bits of the significand, the hidden one included.
_PRECISION = {
    "f64": 53, "f32": 24, "tf32": 11, "f16": 11, "bf16": 8,
    "f8E5M2": 3, "f8E5M2FNUZ": 3, "f8E4M3": 4, "f8E4M3FN": 4, "f8E4M3FNUZ": 4,
    "f8E4M3B11FNUZ": 4, "f8E3M4": 5, "f8E8M0FNU": 1,
    "f6E2M3FN": 4, "f6E3M2FN": 3, "f4E2M1FN": 2,
}  # fmt: skip


def float_text(raw: bytes, kind: AnyFloat) -> str:
    """A float as MLIR prints it.

    Args:
        raw: its bits, little-endian, in the type's storage size.
        kind: its type.

    Six digits where they give the value back, else as many as the type needs,
    else (infinity, not a number, and what would read as an integer) its bits.
    """
    (value,) = kind.unpack(raw, 1)
    if value == 0.0:
        return f"{value:.6e}"
    if math.isfinite(value):
        short = _scientific(*_digits(value, 6), places=6)
        if kind.pack([float(short)]) == raw:
            return short
        precision = 2 + _PRECISION[kind.name] * 59 // 196
        if "." in (natural := _natural(*_digits(value, precision), precision)):
            return natural
    return f"0x{int.from_bytes(raw, 'little'):X}"


def _digits(value: float, precision: int) -> tuple[str, str, int]:
    """Sign, decimal digits and the exponent of the last, as LLVM's ``APFloat::toString`` has them.

    precision: the most digits. LLVM cuts what surely is too long before it
    rounds, and rounds half up: so does this.
    """
    numerator, denominator = abs(value).as_integer_ratio()
    exponent = 1 - denominator.bit_length()
    significand = numerator * 5**-exponent
    enough = (precision * 196 + 58) // 59
    if (cut := (significand.bit_length() - enough) * 59 // 196) > 0:
        significand //= 10**cut
        exponent += cut
    if (cut := len(str(significand)) - precision) > 0:
        significand = (significand + 5 * 10 ** (cut - 1)) // 10**cut
        exponent += cut
    figures = str(significand)
    digits = figures.rstrip("0")
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    return sign, digits, exponent + len(figures) - len(digits)


def _scientific(sign: str, digits: str, exponent: int, *, places: int) -> str:
    """The float with so many decimal places and an exponent of two digits."""
    power = exponent + len(digits) - 1
    return f"{sign}{digits[0]}.{digits[1:].ljust(places, '0')}e{power:+03d}"


def _natural(sign: str, digits: str, exponent: int, precision: int) -> str:
    """The float as it is written where neither precision nor form is asked for."""
    point = len(digits) + exponent
    if 0 <= exponent <= 3 and point <= precision:
        return sign + digits + "0" * exponent
    if exponent < 0 < point:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if exponent < 0 and 1 - point <= 3:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1:+d}"


class AttributePrinter(Printer):
    """xDSL's printer, with floats as MLIR prints them, and splats in no time."""

    def print_float(self, value: float, type: AnyFloat) -> None:
        """Print a scalar; see ``float_text``."""
        self.print_string(float_text(type.pack([value]), type))

    def print_attribute(self, attribute: Attribute) -> None:
        """Print an attribute, a dense constant from its bits."""
        if isinstance(attribute, DenseIntOrFPElementsAttr):
            kind = attribute.get_element_type()
            if isinstance(kind, AnyFloat | IntegerType | IndexType):
                self.print_string(f"dense<{_dense_text(attribute, kind)}> : ")
                attribute = attribute.type
        super().print_attribute(attribute)


def _dense_text(dense: DenseIntOrFPElementsAttr[Any], kind: _Element) -> str:
    """What stands between ``dense<`` and ``>``."""
    data, size = dense.data.data, kind.compile_time_size
    count = len(data) // size
    if not data:
        return ""
    if data == data[:size] * count:
        return _element_text(data[:size], kind)
    if count > 100:
        return f'"0x{data.hex().upper()}"'
    elements = [_element_text(data[i : i + size], kind) for i in range(0, len(data), size)]
    return _nested(elements, dense.get_shape())


def _element_text(raw: bytes, kind: _Element) -> str:
    if isinstance(kind, AnyFloat):
        return float_text(raw, kind)
    (value,) = kind.unpack(raw, 1)
    return ("true" if value else "false") if kind == i1 else str(value)


def _nested(elements: Sequence[str], shape: Sequence[int]) -> str:
    if len(shape) > 1:
        step = len(elements) // shape[0]
        parts = range(0, len(elements), step)
        elements = [_nested(elements[i : i + step], shape[1:]) for i in parts]
    return f"[{', '.join(elements)}]"


# The text of attributes printed or read before. By identity: hashing an
# attribute costs more than printing it. The entry keeps the attribute alive,
# so that its id is not given to another.
_texts: dict[int, tuple[Attribute, str]] = {}
_MOST_TEXTS = 1 << 15


def remember_text(attribute: Attribute, text: str) -> None:
    """Note an attribute's text, known from where it was read."""
    if len(_texts) >= _MOST_TEXTS:
        _texts.clear()
    _texts[id(attribute)] = attribute, text


def forget_texts() -> None:
    """Forget the texts noted."""
    _texts.clear()


def text_of(attribute: Attribute) -> str:
    """The text of an attribute, a type or a location, as MLIR prints it."""
    known = _texts.get(id(attribute))
    if known is not None:
        return known[1]
    stream = StringIO()
    AttributePrinter(stream).print_attribute(attribute)
    text = stream.getvalue()
    remember_text(attribute, text)
    return text
