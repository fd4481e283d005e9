"""Source lines out of MLIR's locations."""

from __future__ import annotations

from typing import Any

from xdsl.dialects import builtin


def source_line(location: Any) -> str:
    """``file:line`` of a location; of the innermost call, with its callers after it."""
    if isinstance(location, builtin.FileLineColLoc):
        return f"{location.filename.data}:{location.line.data}"
    if isinstance(location, builtin.NameLoc):
        return source_line(location.location)
    if isinstance(location, builtin.CallSiteLoc):
        return f"{source_line(location.callee)}, called at {source_line(location.caller)}"
    if isinstance(location, builtin.FusedLoc) and isinstance(location.locations, builtin.ArrayAttr):
        return next((t for t in map(source_line, location.locations) if t != "?"), "?")
    return "?"
