"""Warp specialisation: tasks, each run by warps of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from triton.language import core as tl

from remora.dsl import Call, Region, op, open_regions, region
from remora.dsl.reference import Machine
from remora.errors import TasksDoNotFit, UnsupportedByTarget, WrongShape, WrongType
from remora.tlx.buffers import LOWERED_IN
from remora.tlx_plugin import FROM_HOPPER_ON

# A CTA has at most 1,024 threads and a multiprocessor 65,536 registers (CUDA C++
# Programming Guide, technical specifications); setmaxnreg takes 24 to 256 (PTX ISA),
# and ptxas gives a thread at most 255: 240 is the largest multiple of 8 in use.
_MAX_WARPS = 32
_REGISTERS = 1 << 16
_FEWEST, _MOST = 24, 240


@region("tlx.async_tasks")
def async_tasks(
    call: Call,
    warp_specialize: Any = True,
    exclusive: Any = False,
    no_ending_cluster_sync: Any = False,
) -> Region:
    """A set of tasks that run at the same time, each by warps of its own.

    Its body holds ``with tlx.async_task(...)`` statements and nothing else that
    has an effect. All tasks are done where it ends. What a task uses of the code
    before is captured: scalars, pointers, descriptors, buffers and barriers are
    handed over, tensors are computed again. The arguments have no effect.
    """
    call.require_target(
        *FROM_HOPPER_ON,
        reason="its warps cannot be given code and registers of their own",
        instead="write one loop for all warps; see tlx.async_load for copies in flight",
    )
    for name, value in (
        ("warp_specialize", warp_specialize),
        ("exclusive", exclusive),
        ("no_ending_cluster_sync", no_ending_cluster_sync),
    ):
        call.constant(name, value, bool)
    return Region(call, on_open=_check_alone, on_close=None if call.interpreted else _check_sums)


@async_tasks.reference
@contextmanager
def _together(machine: Machine, tasks: Region) -> Iterator[None]:
    """Run the tasks against each other, where the statement begins."""
    bodies: list[tuple[str, Callable[[], None]]] = []

    def spawn(task: Any, run: Callable[[], None]) -> None:
        if not isinstance(task, Region) or task.call.op is not async_task:
            tasks.call.fail(
                WrongType,
                "between tasks nothing stands",
                hint="write `with tlx.async_task(...):` for each task, and nothing else",
            )
        line = task.call.where.rpartition(":")[2]
        copy = f", copy {task.copy}" * (task.copies > 1)
        bodies.append((f"the task at line {line}{copy}", run))

    tasks.run_apart(spawn)
    machine.fork(bodies)
    tasks.is_over = True
    yield


def _check_alone(tasks: Region) -> None:
    if any(r.call.op is async_tasks for r in open_regions(tasks.call)):
        tasks.call.fail(
            UnsupportedByTarget,
            "tasks cannot be divided into tasks",
            hint="one async_tasks with more tasks, or several one after the other",
        )


@region("tlx.async_task")
def async_task(
    call: Call,
    *kind: Any,
    num_warps: Any = None,
    num_regs: Any = None,
    registers: Any = None,
    replicate: Any = 1,
    warp_group_start_id: Any = None,
) -> Region:
    """One task of ``async_tasks``.

    Args:
        kind: ``"default"`` for the task of the program's own warps, once in an
            ``async_tasks``; nothing for one with warps of its own.
        num_warps: a power of two; not for the default task, which has the program's.
        num_regs, registers: of a thread, 24 to 240, a multiple of 8; by default
            an even share. The default task has what the others leave.
        replicate: how many copies of the task there are, each with ``num_warps``
            warps; ``async_task_replica_id()`` tells them apart. Of a default task the
            program's own warps run the first.
        warp_group_start_id: accepted; warps are numbered in the order of the tasks.
    """
    default = _is_default(call, kind)
    if registers is not None and num_regs is None:
        num_regs = registers
    regs = tl._unwrap_if_constexpr(num_regs)
    if regs is not None:
        regs = call.constant("num_regs", regs)
        if not _FEWEST <= regs <= _MOST or regs % 8:
            call.fail(
                WrongShape,
                f"num_regs has to be a multiple of 8 from {_FEWEST} to {_MOST}, it is {regs}",
                hint=f"{max(_FEWEST, min(_MOST, regs // 8 * 8))} is the nearest",
            )
    copies = call.constant("replicate", replicate)
    if copies < 1:
        call.fail(WrongShape, f"replicate has to be at least 1, it is {copies}", hint="1")
    if tl._unwrap_if_constexpr(warp_group_start_id) is not None:
        call.constant("warp_group_start_id", warp_group_start_id)
    warps = tl._unwrap_if_constexpr(num_warps)
    if default:
        warps = None if warps is None else call.constant("num_warps", warps)
        if warps is not None and not call.interpreted and warps != call.num_warps:
            call.fail(
                WrongShape,
                f"the default task has the program's {call.num_warps} warps, not {warps}",
                hint="leave num_warps out",
            )
        return Region(
            call,
            copies=copies,
            on_open=_check_place,
            default=True,
            num_warps=None,
            num_regs=regs,
        )
    if warps is None:
        call.fail(WrongType, "num_warps is missing", hint='num_warps=4, or async_task("default")')
    warps = call.constant("num_warps", warps)
    if warps < 1 or warps & (warps - 1):
        call.fail(
            WrongShape,
            f"num_warps has to be a power of two, it is {warps}",
            hint=f"{1 << max(warps, 1).bit_length() - 1}, or {1 << max(warps, 1).bit_length()}",
        )
    return Region(
        call, copies=copies, on_open=_check_place, default=False, num_warps=warps, num_regs=regs
    )


def _check_place(task: Region) -> None:
    within = open_regions(task.call)
    if not within or within[-1].call.op is not async_tasks:
        task.call.fail(
            WrongType,
            "a task stands in async_tasks",
            hint="write `with tlx.async_tasks():` around the tasks",
        )
    others = (r for r in within[-1].inner if r is not task)
    if task.attributes["default"] and any(r.attributes["default"] for r in others):
        task.call.fail(WrongType, "there is a default task already", hint="give it num_warps")


def _is_default(call: Call, kind: tuple[Any, ...]) -> bool:
    if not kind:
        return False
    if len(kind) == 1 and tl._unwrap_if_constexpr(kind[0]) == "default":
        return True
    given = ", ".join(repr(tl._unwrap_if_constexpr(k)) for k in kind)
    call.fail(
        WrongType,
        f'a task is "default" or has num_warps, it is given {given}',
        hint='async_task("default") or async_task(num_warps=4)',
    )
    return False


def _check_sums(tasks: Region) -> None:
    """Refuse tasks that want more warps or registers than there are."""
    program = tasks.call.num_warps
    rows = [(r, r.attributes["num_warps"] or program) for r in tasks.inner]
    has_default = any(r.attributes["default"] for r in tasks.inner)
    total = 0 if has_default else program  # whose warps wait for the others
    total += sum(warps for _, warps in rows)
    listed = " + ".join(str(warps) for _, warps in rows)
    if total > _MAX_WARPS:
        tasks.call.fail(
            TasksDoNotFit,
            f"the tasks want {listed} = {total} warps, a CTA has at most {_MAX_WARPS}",
            hint="fewer copies (replicate), or fewer warps",
        )
    asked = [(r.attributes["num_regs"], w) for r, w in rows if r.attributes["num_regs"]]
    registers = sum(regs * warps * 32 for regs, warps in asked)
    rest = (total - sum(warps for _, warps in asked)) * 32 * _FEWEST
    if registers + rest > _REGISTERS:
        each = " + ".join(f"{warps} x 32 x {regs}" for regs, warps in asked)
        tasks.call.fail(
            TasksDoNotFit,
            f"the tasks want {each} = {registers:,} registers"
            + (f", and the others at least {rest:,}" if rest else "")
            + f"; a multiprocessor has {_REGISTERS:,}",
            hint="lower num_regs",
        )


@op("tlx.async_task_replica_id", lowered_in=LOWERED_IN)
def async_task_replica_id(call: Call) -> Any:
    """Which copy of its task runs, counted from 0.

    A constant in the task's own code; in functions that it calls, a scalar that is
    known when the task is compiled.
    """
    tasks = [r for r in open_regions(call) if r.call.op is async_task]
    if not tasks:
        call.fail(
            WrongType,
            "there are replicas in a task only",
            hint="use it within `with tlx.async_task(...):`",
        )
    if call.interpreted or call.generator is tasks[-1].call.generator:
        return tl.constexpr(tasks[-1].copy)
    return call.emit([], [tl.int32])
