"""xDSL dialects that plugins bring: loaded into the context that passes get.

Their operations are then seen by passes as what the dialect defines, instead
of as unregistered ones. A dialect once loaded stays for the process.
"""

from __future__ import annotations

import importlib
from typing import Any

from remora.errors import PluginError

_wanted: list[Any] = []


def want(dialect: Any) -> None:
    """Have a dialect (an ``xdsl.ir.Dialect``, or "package.module:Name" of one) for passes."""
    if dialect not in _wanted:
        _wanted.append(dialect)


def load_wanted(context: Any) -> None:
    """Load what is wanted and not there yet into an ``xdsl.context.Context``.

    Raises:
        PluginError: a dialect cannot be imported, or is none.
    """
    from xdsl.ir import Dialect

    for wanted in _wanted:
        dialect = _resolve(wanted) if isinstance(wanted, str) else wanted
        if not isinstance(dialect, Dialect):
            raise PluginError(
                f"{wanted!r} is not a dialect",
                hint="give an xdsl.ir.Dialect with its operations and attributes",
            )
        if dialect.name not in {d.name for d in context.loaded_dialects}:
            context.load_dialect(dialect)


def _resolve(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"the dialect {reference!r} cannot be imported: {error}",
            hint='write "package.module:Name"',
        ) from error
