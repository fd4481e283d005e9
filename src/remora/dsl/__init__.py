"""New words of the language from Python: operations, their handles and their three faces."""

from remora.dsl.op import Call, Op, Target, describe, find_op, kernel_line, op
from remora.dsl.regions import Region, Span, open_regions, region, spans
from remora.dsl.values import Handle, HandleType

__all__ = [
    "Call",
    "Handle",
    "HandleType",
    "Op",
    "Region",
    "Span",
    "Target",
    "describe",
    "find_op",
    "kernel_line",
    "op",
    "open_regions",
    "region",
    "spans",
]
