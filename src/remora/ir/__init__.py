"""Triton's IR in xDSL: a module's text to xDSL and back, exactly.

``read`` and ``write`` are each other's inverse on what MLIR prints in the
generic form with the local scope: dialects are not modelled, attributes and
types that xDSL does not know keep their text, and what xDSL would not carry
exactly comes as a ``TextAttr`` or ``TextType``. The order of a value's uses is
in no text: ``Contents``, ``UseOrder`` and ``restore_uses`` carry that.
"""

from remora.ir.attributes import TextAttr, TextType, text_of
from remora.ir.text import context, forget, read, write
from remora.ir.uses import Contents, UseOrder, restore_uses

__all__ = [
    "Contents",
    "TextAttr",
    "TextType",
    "UseOrder",
    "context",
    "forget",
    "read",
    "restore_uses",
    "text_of",
    "write",
]
