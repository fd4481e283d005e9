"""Between MLIR's generic form and xDSL."""

from __future__ import annotations

from functools import cache
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError

from remora.errors import IRParseError


@cache
def context() -> Context:
    """The xDSL context that passes get: builtin, and everything else unregistered."""
    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    return context


def read(text: str) -> ModuleOp:
    """Parse a module in MLIR's generic form.

    Raises:
        IRParseError: the text is not a module in the generic form.
    """
    try:
        return Parser(context(), text).parse_module()
    except ParseError as error:
        raise IRParseError(f"xDSL cannot read the module: {error}") from error


def write(module: ModuleOp, *, locations: bool = True) -> str:
    """Print a module in MLIR's generic form, with its locations."""
    stream = StringIO()
    Printer(stream, print_generic_format=True, print_debuginfo=locations).print_op(module)
    return stream.getvalue()
