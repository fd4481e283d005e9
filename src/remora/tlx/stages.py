"""Stages of a loop that two groups of warps run one apart."""

from __future__ import annotations

from typing import Any

from triton.language import core as tl

from remora.dsl import Call, Region, region
from remora.errors import WrongShape, WrongType
from remora.tlx.storage import LOWERED_IN


class Stage(Region):
    """A ``with`` whose body stays where it is: names that it assigns live on."""

    def __enter__(self) -> Stage:
        if not self.call.interpreted:
            self._mark("begin")
        return self

    def __exit__(self, *error: object) -> None:
        if not self.call.interpreted and error[0] is None:
            self._mark("end")


@region("tlx.warp_pipeline_stage", lowered_in=LOWERED_IN)
def warp_pipeline_stage(call: Call, label: Any = None, priority: Any = None) -> Any:
    """A stage of a loop: one group of 4 warps runs it while the other runs the next one.

    ``with tlx.warp_pipeline_stage("compute", priority=0):``, at least twice in a loop, one after
    the other, in its body itself. Barriers between the stages keep the groups one stage apart;
    of 4 warps there is one group, and only the priorities are left. No loop, barrier or wait
    within a stage: waits stand between stages. Buffers have to be as many as the distance asks
    for: the groups are not held back from each other's buffers.

    Args:
        label: constant, for messages.
        priority: constant, 0 to 3: of the warps that run the stage (``s_setprio``); None: 0
            where another stage has one.

    AMD's; no effect under the reference meaning.
    """
    call.require_target(
        "hip",
        reason="stages that groups of warps run apart are AMD's",
        instead="tlx.async_tasks gives warps tasks of their own",
    )
    label = tl._unwrap_if_constexpr(label)
    if label is not None and not isinstance(label, str):
        call.fail(WrongType, f"label has to be str, it is {label!r}", hint='give "compute"')
    priority = tl._unwrap_if_constexpr(priority)
    if priority is not None and call.constant("priority", priority) not in range(4):
        call.fail(
            WrongShape, f"priority has to be 0 to 3, it is {priority}", hint="3 is the highest"
        )
    return Stage(call, label=label or "stage", priority=priority)
