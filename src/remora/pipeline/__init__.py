"""Stages, anchors and edits of Triton's compiler, and running them."""

from remora.pipeline.active import active, use
from remora.pipeline.attaching import attach
from remora.pipeline.edits import Check, Disable, Edit, Insert, Override, Passes, Pipeline, Replace
from remora.pipeline.runner import run_pass
from remora.pipeline.stage import StockPass, anchors, record
from remora.pipeline.subjects import PassRef, StockRef, stock

__all__ = [
    "Check",
    "Disable",
    "Edit",
    "Insert",
    "Override",
    "PassRef",
    "Passes",
    "Pipeline",
    "Replace",
    "StockPass",
    "StockRef",
    "active",
    "anchors",
    "attach",
    "record",
    "run_pass",
    "stock",
    "use",
]
