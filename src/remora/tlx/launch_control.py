"""Cluster launch control: a running cluster takes the place of one that has not begun.

A kernel with a program for each tile becomes a persistent one whose tiles the machine hands
out: a cluster asks for another one's place (producer), and all its tasks read whose it is
(consumers).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import WrongShape, WrongType
from remora.tlx.barriers import (
    Barrier,
    alloc_barriers,
    barrier,
    barrier_arrive,
    barrier_expect_bytes,
    barrier_wait,
)
from remora.tlx.buffers import LOWERED_IN, local_alloc, local_view, view
from remora.tlx.clusters import cluster_cta_rank
from remora.tlx.launch import cluster_in_force, reference_cluster, reference_clusters
from remora.tlx.ranks import grid, place, program_of
from remora.tlx_plugin import BLACKWELL

# Bytes of an answer (PTX ISA, clusterlaunchcontrol.try_cancel): two 64-bit words here.
_ANSWER = 16


def require_launch_control(call: Call) -> None:
    """Refuse targets whose launches cannot be cancelled."""
    call.require_target(
        *BLACKWELL,
        reason="cluster launch control is Blackwell's",
        instead="loop over the tiles: for tile in range(tl.program_id(0), tiles, "
        "tl.num_programs(0)), with as many programs as the machine has multiprocessors",
    )


class CLCPipelineContext(tl.base_value):
    """Answers, and the barriers around them; what ``clc_create_context`` returns."""

    def __init__(self, empty: Any, full: Any, responses: Any) -> None:
        self._clc_mbars_empty = empty
        self._clc_mbars_full = full
        self._clc_responses = responses
        self.type = ContextType(empty.type, full.type, responses.type)

    @property
    def _parts(self) -> tuple[Any, Any, Any]:
        return self._clc_mbars_empty, self._clc_mbars_full, self._clc_responses

    def _flatten_ir(self, handles: list[Any]) -> None:
        for part in self._parts:
            part._flatten_ir(handles)

    def _set_name(self, builder: Any, name: str) -> None:
        for part in self._parts:
            part._set_name(builder, name)


@dataclass(frozen=True)
class ContextType(tl.base_type):
    """The type of a context: those of its barriers and answers."""

    empty: Any
    full: Any
    responses: Any

    @property
    def _parts(self) -> tuple[Any, Any, Any]:
        return self.empty, self.full, self.responses

    def _unflatten_ir(self, handles: list[Any], cursor: int) -> tuple[CLCPipelineContext, int]:
        values = []
        for part in self._parts:
            value, cursor = part._unflatten_ir(handles, cursor)
            values.append(value)
        return CLCPipelineContext(*values), cursor

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        for part in self._parts:
            part._flatten_ir_types(builder, out)

    def __str__(self) -> str:
        return f"a launch control context of {self.full.num} stages"

    def mangle(self) -> str:
        """A name for functions that take a context."""
        return "Clc" + "_".join(part.mangle() for part in self._parts)


def _inner(call: Call) -> dict[str, Any]:
    """What words get that this one is made of."""
    return {"_semantic": call.semantic, "_generator": call.generator}


@op("tlx.clc_create_context", lowered_in=LOWERED_IN)
def clc_create_context(call: Call, num_consumers: Any, num_stages: Any = 1) -> Any:
    """A context for ``clc_producer`` and ``clc_consumer``.

    Args:
        num_consumers: tasks that call ``clc_consumer`` for each answer, those of all CTAs of
            the cluster, constant.
        num_stages: answers that can be under way at once, constant.
    """
    require_launch_control(call)
    for name, value in (("num_consumers", num_consumers), ("num_stages", num_stages)):
        if (given := call.constant(name, value)) < 1:
            call.fail(WrongShape, f"{name} has to be at least 1, it is {given}", hint=f"{name}=1")
    inner = _inner(call)
    return CLCPipelineContext(
        alloc_barriers(num_stages, num_consumers, **inner),
        alloc_barriers(num_stages, 1, **inner),
        local_alloc((2,), tl.int64, num_stages, **inner),
    )


def _stage(call: Call, context: Any, phase: Any, name: str, k: Any) -> tuple[Any, Any, Any]:
    """The barriers and the answer of one stage."""
    require_launch_control(call)
    if not isinstance(context, CLCPipelineContext):
        call.fail(
            WrongType,
            f"context has to be a launch control context, it is {describe(context)}",
            hint="tlx.clc_create_context(num_consumers) gives one",
        )
    if tl._unwrap_if_constexpr(phase) is None:
        call.fail(
            WrongType,
            f"{name} is missing",
            hint="a phase, 0 or 1, that changes from one round of the stages to the next; the "
            "producer's begins with 1, a consumer's with 0",
        )
    empty, full, answer = (local_view(part, k, **_inner(call)) for part in context._parts)
    return empty, full, answer


def _several(call: Call, multi_ctas: Any) -> bool:
    """Whether all CTAs of a cluster have one answer."""
    if tl._unwrap_if_constexpr(multi_ctas) is None:
        return math.prod(cluster_in_force()) > 1
    return bool(call.constant("multi_ctas", multi_ctas, bool))


@op("tlx.clc_producer", lowered_in=LOWERED_IN)
def clc_producer(
    call: Call, context: Any, p_producer: Any = None, multi_ctas: Any = None, k: Any = 0
) -> None:
    """Ask for the place of a cluster that has not begun, when the stage is empty.

    Args:
        context: what ``clc_create_context`` gave.
        p_producer: the phase of the stage's empty barrier, 1 first: 0 or 1, constant or not.
        multi_ctas: whether the first CTA of the cluster asks, and all get the answer, constant;
            None: where clusters are of several CTAs. Every CTA calls the word.
        k: the stage.

    One task calls it. Its answer has to be consumed before the program ends.
    """
    several = _several(call, multi_ctas)
    empty, full, answer = _stage(call, context, p_producer, "p_producer", k)
    inner = _inner(call)
    first = None
    if several:
        first = call.semantic.equal(cluster_cta_rank(**inner), call.semantic.to_tensor(0))
    barrier_wait(empty, p_producer, first, **inner)
    barrier_expect_bytes(full, _ANSWER, **inner)
    clc_issue(answer, full, several, **inner)


@op("tlx.clc_issue", lowered_in=LOWERED_IN)
def clc_issue(call: Call, response: Any, barrier_: Any, multi_ctas: Any = False) -> None:
    """``clusterlaunchcontrol.try_cancel``: part of ``clc_producer``.

    Args:
        response: a buffer of 2 int64. barrier_: one barrier; the answer counts 16 bytes.
        multi_ctas: constant: the cluster's first CTA asks, all get the answer.
    """
    require_launch_control(call)
    several = call.constant("multi_ctas", multi_ctas, bool)
    call.emit(
        [view(call, "response", response), barrier(call, "barrier_", barrier_)], several=several
    )


@clc_issue.reference
def _issue(machine: Machine, response: Any, bar: Barrier, several: bool) -> None:
    """The next cluster's place is taken; or none, where the launch does not know its clusters."""
    own = machine.strand.place
    programs = [own]
    if several:
        programs = [program_of(machine, rank) for rank in range(place()[1])]
        if own != programs[0]:  # the first one asks, for all
            return
    clusters = reference_clusters.get()
    taken = clusters.take() if clusters is not None else None
    answer = 0 if taken is None else 1 + int(np.ravel_multi_index(taken, grid()))
    for program in programs:
        to = machine.array_elsewhere(response, program)
        machine.elsewhere(bar, program).later(
            machine, functools.partial(to.fill, answer), _ANSWER, writes=[to]
        )


@op("tlx.clc_consumer", lowered_in=LOWERED_IN)
def clc_consumer(
    call: Call,
    context: Any,
    p_consumer: Any = None,
    multi_ctas: Any = None,
    k: Any = 0,
    return_3d: Any = False,
) -> Any:
    """The program whose place this one has taken, or -1; the stage is empty for this task.

    Args:
        context, multi_ctas, k: as of ``clc_producer``.
        p_consumer: the phase of the stage's full barrier, 0 first: 0 or 1, constant or not.
        return_3d: constant: return the place on all axes of the grid, (x, y, z).

    Returns:
        its ``program_id(0)``, an int32: of a cluster of several CTAs the one in this CTA's
        place. Or three of them, of all axes.

    Under the reference meaning one cluster runs at a time, so that it takes the places of all that
    follow; but -1 where the kernel is not a ``tlx.jit`` one: its programs are started by Triton.
    """
    several = _several(call, multi_ctas)
    axes = 3 if call.constant("return_3d", return_3d, bool) else 1
    empty, full, answer = _stage(call, context, p_consumer, "p_consumer", k)
    inner = _inner(call)
    barrier_wait(full, p_consumer, **inner)
    place = tuple(clc_query(answer, axis, **inner) for axis in range(axes))
    if several:
        barrier_arrive(empty, 1, 0, **inner)
    else:
        barrier_arrive(empty, **inner)
    return tl.tuple(place) if axes == 3 else place[0]


@op("tlx.clc_query", lowered_in=LOWERED_IN)
def clc_query(call: Call, response: Any, axis: Any = 0) -> Any:
    """Read an answer: part of ``clc_consumer``.

    Args:
        response: a buffer of 2 int64, as ``clc_issue`` filled it. axis: of the grid, constant.
    """
    require_launch_control(call)
    return call.emit(
        [view(call, "response", response)], [tl.int32], axis=call.constant("axis", axis)
    )


@clc_query.reference
def _taken(machine: Machine, response: Any, axis: int) -> int:
    machine.touch(reads=[response])
    if not response[0]:
        return -1
    first = np.unravel_index(int(response[0]) - 1, grid())
    return int(first[axis]) + machine.strand.place[axis] % reference_cluster.get()[axis]
