"""Compiler plugins for stock Triton, in Python: passes, dialects, operations, pipelines."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from remora import errors
from remora.errors import RemoraError

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

    from remora.dsl.op import op
    from remora.dsl.pipeline import lowering_pipeline
    from remora.native.loading import load_native
    from remora.pipeline import PassRef, Pipeline, attach, stock, use
    from remora.plugins import Plugin

__version__ = "0.1.0"

# Loaded when first asked for, so that importing remora stays cheap.
_LAZY = {
    "ModulePass": "xdsl.passes",
    "PassRef": "remora.pipeline",
    "Pipeline": "remora.pipeline",
    "Plugin": "remora.plugins",
    "attach": "remora.pipeline",
    "load_native": "remora.native.loading",
    "lowering_pipeline": "remora.dsl.pipeline",
    "op": "remora.dsl",
    "stock": "remora.pipeline",
    "use": "remora.pipeline",
}

__all__ = [
    "ModulePass",
    "PassRef",
    "Pipeline",
    "Plugin",
    "RemoraError",
    "attach",
    "errors",
    "load_native",
    "lowering_pipeline",
    "op",
    "stock",
    "use",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'remora' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


if os.environ.get("TRITON_PLUGIN_PATHS"):
    # Before Triton reads it: some releases abort the process on a bad file.
    from remora.native.loading import natives

    natives.adopt_variable()
