"""Stages, anchors and edits of Triton's compiler, and running them."""

from remora.pipeline.active import active, use
from remora.pipeline.edits import Check, Insert, PassRef, Pipeline
from remora.pipeline.runner import run_pass
from remora.pipeline.stage import StockPass, anchors, record

__all__ = [
    "Check",
    "Insert",
    "PassRef",
    "Pipeline",
    "StockPass",
    "active",
    "anchors",
    "record",
    "run_pass",
    "use",
]
