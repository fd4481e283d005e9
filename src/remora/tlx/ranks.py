"""CTAs of a cluster by their rank."""

from __future__ import annotations

import math
from typing import Any

from triton.language import core as tl

from remora.dsl import Call
from remora.dsl.reference import Machine
from remora.errors import UnsupportedByTarget, WrongShape
from remora.tlx.launch import cluster_in_force, reference_cluster
from remora.tlx_plugin import FROM_HOPPER_ON


def require_clusters(call: Call) -> None:
    """Refuse targets whose CTAs do not reach each other's shared memory."""
    call.require_target(
        *FROM_HOPPER_ON,
        reason="clusters of CTAs are Hopper's and later NVIDIA GPUs'",
        instead="let each CTA work alone, or meet in global memory",
    )


def rank_of(call: Call, name: str, value: Any) -> Any:
    """Check the rank of a CTA: an integer; where it is constant, one that a cluster can have."""
    require_clusters(call)
    constant = tl._unwrap_if_constexpr(value)
    size = cluster_in_force()
    if isinstance(constant, int) and not 0 <= constant < math.prod(size):
        call.fail(
            WrongShape,
            f"{name} has to be the rank of a CTA of the cluster, it is {constant}; clusters are "
            f"{size} here",
            hint="ranks are 0 to tlx.cluster_size_1d() - 1; the launch option ctas_per_cga makes "
            "clusters larger",
        )
    return call.integer(name, value)


def place() -> tuple[int, int]:
    """Under the reference meaning: the running program's rank, and CTAs of its cluster."""
    from triton.runtime.interpreter import interpreter_builder

    size = reference_cluster.get()
    x, y, z = (p % n for p, n in zip(interpreter_builder.grid_idx, size, strict=True))
    return x + size[0] * (y + size[1] * z), math.prod(size)


def require_own(machine: Machine, rank: Any) -> None:
    """Refuse another CTA's memory under the reference meaning."""
    own, _ = place()
    if int(rank) != own:
        machine.call.fail(
            UnsupportedByTarget,
            f"CTA {own} cannot reach CTA {int(rank)}: under the reference meaning CTAs run one "
            "after the other",
            hint="run it on a GPU, or with clusters of one CTA",
        )
