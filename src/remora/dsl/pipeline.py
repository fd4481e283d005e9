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


def is_lowered(module: str) -> bool:
    """Whether a pipeline in force lowers what ``module`` declares, and has it in its key."""
    from remora.pipeline.active import active

    package = module.partition(".")[0]
    subjects = (e.subject for p in active.pipelines() for e in p.edits)
    for subject in subjects:
        for one in subject if isinstance(subject, tuple) else (subject,):
            if isinstance(one, PassRef) and one.target == LOWER_OPERATIONS:
                known = one.also
            else:  # a plugin may lower its operations with a pass of its own
                known = (one.module_name if isinstance(one, PassRef) else type(one).__module__,)
            if package in {name.partition(".")[0] for name in known}:
                return True
    return False
