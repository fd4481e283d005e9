"""Between MLIR's generic form and xDSL."""

from __future__ import annotations

from functools import cache
from threading import Lock

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.utils.exceptions import ParseError

from remora.errors import IRParseError
from remora.ir.attributes import forget_texts
from remora.ir.collector import paused
from remora.ir.pieces import Pieces
from remora.ir.reader import ModuleParser
from remora.ir.writer import Writer

# The context grows while a text is read, and two threads must not make two
# classes of one unregistered type.
_reading = Lock()


@cache
def context() -> Context:
    """The xDSL context that passes get: builtin, and everything else unregistered."""
    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    return context


@cache
def _pieces() -> Pieces:
    return Pieces(context())


def read(text: str) -> ModuleOp:
    """Parse a module in MLIR's generic form.

    What MLIR printed comes back from ``write`` to the byte. A text that MLIR
    did not print may spell its attributes in other ways; where xDSL's value
    of one cannot be shown to be the same it comes as a ``TextAttr``. Send such
    a text through MLIR first (``host.parse_text``, ``host.generic_text``).

    Raises:
        IRParseError: the text is not a module in the generic form.
    """
    try:
        with _reading, paused():
            pieces = _pieces()
            pieces.refresh()
            return ModuleParser(context(), text, pieces).parse_module()
    except ParseError as error:
        raise IRParseError(f"xDSL cannot read the module: {error}") from error


def write(module: ModuleOp, *, locations: bool = True) -> str:
    """Print a module in MLIR's generic form, as MLIR prints it, with its locations."""
    with paused():
        return Writer(locations=locations).write(module)


def forget() -> None:
    """Forget the attributes read before: the next ``read`` takes as long as the first."""
    _pieces.cache_clear()
    forget_texts()
