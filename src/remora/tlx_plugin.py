"""TLX as a plugin like any other: what the entry point names.

Beside the package and not in it: importing ``remora.tlx`` puts TLX in force,
finding out that it exists does not.
"""

from __future__ import annotations

from remora.pipeline import PassRef, Pipeline
from remora.plugins import Plugin

OPERATIONS = (
    "local_alloc",
    "local_view",
    "local_load",
    "local_store",
    "async_load",
    "async_load_commit_group",
    "async_load_wait_group",
    "async_dot",
    "async_dot_wait",
    "dtype_of",
)

LOWER = PassRef("remora.dsl.lowering:LowerOperations", trigger="remora:")

# After coalesce: the loads that carry asynchronous copies then have the layout
# that their addresses want.
pipeline = Pipeline("tlx").insert(LOWER, after="ttgir/coalesce")

plugin = Plugin(
    name="tlx",
    version="0.1.0",
    passes=(LOWER,),
    ops=tuple(f"remora.tlx:{name}" for name in OPERATIONS),
    pipelines=(pipeline,),
)
