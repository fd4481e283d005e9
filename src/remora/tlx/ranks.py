"""CTAs of a cluster by their rank."""

from __future__ import annotations

import math
from typing import Any

from triton.language import core as tl

from remora.dsl import Call
from remora.dsl.reference import Machine
from remora.errors import WrongShape
from remora.tlx.launch import cluster_in_force, reference_cluster
from remora.tlx_plugin import FROM_HOPPER_ON

#: A program, by its place in the grid.
Program = tuple[int, int, int]


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

    return _rank(interpreter_builder.grid_idx), math.prod(reference_cluster.get())


def grid() -> Program:
    """Under the reference meaning: the grid's extents."""
    from triton.runtime.interpreter import interpreter_builder

    extents: Program = interpreter_builder.grid_dim
    return extents


def _rank(program: Program) -> int:
    size = reference_cluster.get()
    x, y, z = (p % n for p, n in zip(program, size, strict=True))
    return x + size[0] * (y + size[1] * z)


def program_of(machine: Machine, rank: Any) -> Program:
    """Under the reference meaning: the program, by its place in the grid, of a rank."""
    size, at = reference_cluster.get(), machine.strand.place
    number = int(rank)
    if not 0 <= number < math.prod(size):
        machine.call.fail(
            WrongShape,
            f"there is no CTA {number} in a cluster of {math.prod(size)}",
            hint="ranks are 0 to tlx.cluster_size_1d() - 1; the launch says ctas_per_cga",
        )
    offsets = (number % size[0], number // size[0] % size[1], number // size[0] // size[1])
    x, y, z = (p - p % n + o for p, n, o in zip(at, size, offsets, strict=True))
    return x, y, z


def pair_of(machine: Machine) -> tuple[Program, Program]:
    """The programs of the pair that the running one is in: of even rank, and the next.

    Raises:
        WrongShape: there is no such pair.
    """
    first = _rank(machine.strand.place) & ~1
    return program_of(machine, first), program_of(machine, first + 1)


def first_of_pair(machine: Machine, program: Program) -> Program:
    """The program of even rank of a program's pair."""
    return program_of(machine, _rank(program) & ~1)
