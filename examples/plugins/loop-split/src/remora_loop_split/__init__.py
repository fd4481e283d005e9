"""Loop splitting, a plugin for Remora: see the README beside the package."""

from __future__ import annotations

import remora

SPLIT_LOOPS = "remora_loop_split.split:SplitLoops"


def pipeline(**arguments: int) -> remora.Pipeline:
    """The pipeline that splits loops, with the arguments of ``SplitLoops``.

    It runs once functions are inlined, and before the stock canonicalisation,
    which takes out the branches and masks that became constant. The modules
    without a loop are not read.
    """
    split = remora.PassRef(SPLIT_LOOPS, arguments=tuple(arguments.items()), trigger="scf.for")
    return remora.Pipeline("loop-split").insert(split, before="ttir/canonicalizer")


plugin = remora.Plugin(
    "loop-split",
    version="0.1.0",
    passes=[remora.PassRef(SPLIT_LOOPS)],
    pipelines=[pipeline()],
)
