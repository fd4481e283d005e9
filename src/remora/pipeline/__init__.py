"""Stages, anchors and edits of Triton's compiler, and running them."""

from remora.pipeline.active import active, use
from remora.pipeline.attaching import attach, attached
from remora.pipeline.edits import Check, Disable, Edit, Insert, Override, Passes, Pipeline, Replace
from remora.pipeline.overview import overview
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
    "attached",
    "overview",
    "record",
    "run_pass",
    "stock",
    "use",
]
