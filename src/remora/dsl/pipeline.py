"""The pipeline that lowers a plugin's operations."""

from __future__ import annotations

from remora.dsl.carrier import PREFIX
from remora.pipeline import PassRef, Pipeline

LOWER_OPERATIONS = "remora.dsl.lowering:LowerOperations"

#: What a module contains as long as it holds an operation of a plugin.
TRIGGER = PREFIX


def lowering_pipeline(name: str, *modules: str) -> Pipeline:
    """The pipeline that lowers operations declared with ``remora.op``.

    Args:
        name: the pipeline's.
        modules: those that declare the operations and their lowerings; a kernel
            is compiled anew when their packages' content changes.

    The operations are lowered in ``ttgir`` after ``coalesce``: tensors have
    layouts then, and loads have those that their addresses want.
    """
    lower = PassRef(LOWER_OPERATIONS, trigger=TRIGGER, also=modules)
    return Pipeline(name).insert(lower, after="ttgir/coalesce")
