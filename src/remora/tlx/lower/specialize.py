"""Puts tasks back as the partitions of ``ttg.warp_specialize``.

Right after the conversion to TTGIR. The stock conversion gives every tensor the
program's warps; the function of a task that has others is converted once more,
in a module of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from remora import ir
from remora.dsl.lowering import CustomOp, decode, integer_attribute
from remora.errors import LanguageError, UnsupportedByTarget, WrongShape
from remora.host import convert_to_ttgir, features
from remora.ir.build import Builder, erase, inherent, op_name
from remora.ir.locations import source_line
from remora.tlx.lower.outline import TASK


@dataclass
class _Task:
    """A task's function.

    number, of: its place in its set, from 0. copy: among its replicas. warps: 0 for the
    program's. registers: of a thread, 0 where it was not said.
    """

    function: Operation
    number: int
    of: int
    copy: int
    warps: int
    registers: int

    @property
    def default(self) -> bool:
        """Whether the program's own warps run it."""
        return "tlx.default" in self.function.attributes


@dataclass(frozen=True)
class SpecializeWarps(ModulePass):
    """See the module."""

    name = "tlx-specialize-warps"
    trigger = f"{TASK} = "

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Make a ``ttg.warp_specialize`` of each set of calls of tasks."""
        tasks = {}
        for function in op.ops:
            found: Any = function.attributes.get(TASK)
            if found is not None:
                name: Any = function.properties["sym_name"]
                tasks[name.data] = _Task(function, *found.get_values())
        by_function = {task.function: task for task in tasks.values()}
        customs = decode(op)
        first = [task for task in tasks.values() if task.number == 0]
        _check_barriers(customs, max((task.of - task.default for task in first), default=0))
        for custom in customs:
            if custom.name == "tlx.async_task_replica_id":
                holder = by_function.get(_function_of(custom.op))
                if holder is not None:
                    custom.replace([Builder.before(custom.op).constant(holder.copy)])
        program = integer_attribute(op, "ttg.num-warps")
        for task in tasks.values():
            if task.warps not in (0, program):
                _check_ctas(op, task)
                _convert_again(op, task)
        for call in list(op.walk()):
            found_task = _called(call, tasks)
            if found_task is not None and found_task.number == 0:
                _specialize(call, tasks, program)
        for task in tasks.values():
            erase(task.function)


def _check_barriers(ops: list[CustomOp], partitions: int) -> None:
    """Refuse hardware barriers that stock Triton's partitions synchronise with.

    The program's warps take the first, all tasks meet at the second, and each partition has one.
    """
    for op in ops:
        number = op.attributes.get("id") if op.name.startswith("tlx.named_barrier_") else None
        if number is not None and number < partitions + 2:
            raise WrongShape(
                f"{op.name}: bar is {number}; with {partitions} tasks beside the program's own "
                f"warps the named barriers 0 to {partitions + 1} are the compiler's",
                where=op.where,
                hint="take them from 15 down",
            )


def _check_ctas(module: ModuleOp, task: _Task) -> None:
    """Refuse what the stock pass ``plan_cta`` would fail on."""
    ctas = integer_attribute(module, "ttg.num-ctas")
    if ctas > 1 and not features().plans_ctas_by_region:
        raise UnsupportedByTarget(
            f"tlx.async_task: a task of {task.warps} warps in a program of {ctas} CTAs "
            "needs Triton 3.9",
            where=source_line(task.function.location),
            hint="give it num_warps as the program has, or launch clusters of programs: "
            "ctas_per_cga instead of num_ctas",
        )


def _function_of(op: Operation) -> Operation:
    while op_name(op) != "tt.func":
        holder = op.parent_op()
        assert holder is not None
        op = holder
    return op


def _called(op: Operation, tasks: dict[str, _Task]) -> _Task | None:
    if op_name(op) != "tt.call":
        return None
    callee = inherent(op, "callee")
    return tasks.get(callee.root_reference.data)


def _convert_again(module: ModuleOp, task: _Task) -> None:
    """Give a task's tensors the layouts that its own warps want."""
    alone = ModuleOp([task.function.clone()])
    name: Any = task.function.properties["sym_name"]
    # What stands for operations: a function has one signature, which has layouts.
    declared = {_name(f): f for f in module.ops if not f.regions[0].blocks}
    copied: set[str] = set()
    for op in list(alone.walk()):
        if op_name(op) == "ttg.convert_layout":
            op.results[0].replace_all_uses_with(op.operands[0])
            erase(op)
        elif op_name(op) == "tt.call":
            callee = inherent(op, "callee").root_reference.data
            if callee not in declared:
                raise LanguageError(
                    f"tlx.async_task: a function marked noinline is called, {callee}; it has "
                    "the program's warps and not the task's",
                    where=source_line(op.location),
                    hint="remove noinline=True from the function",
                )
            renamed = f"{callee}/{task.warps}"
            table = op.properties if "callee" in op.properties else op.attributes
            table["callee"] = SymbolRefAttr(renamed)
            if renamed not in copied:
                copy = declared[callee].clone()
                copy.properties["sym_name"] = StringAttr(renamed)
                alone.body.block.add_op(copy)
                copied.add(renamed)
    target: Any = module.attributes["ttg.target"]
    text = convert_to_ttgir(
        _without_layouts(ir.write(alone)),
        target.data,
        task.warps,
        integer_attribute(module, "ttg.threads-per-warp"),
        integer_attribute(module, "ttg.num-ctas"),
    )
    known = {_name(f) for f in module.ops}
    for function in list(ir.read(text).ops):
        if _name(function) == name.data:
            function.detach()
            Rewriter.insert_op(function, InsertPoint.before(task.function))
            erase(task.function)
            task.function = function
        elif _name(function) not in known:
            function.detach()
            module.body.block.add_op(function)


def _name(function: Operation) -> str:
    name: Any = function.properties["sym_name"]
    return str(name.data)


def _without_layouts(text: str) -> str:
    """A function of TTGIR, right after the conversion, as TTIR."""
    changes = 1
    while changes:  # a layout within a layout: #ttg.slice<{dim = 1, parent = #ttg.blocked<...>}>
        text, changes = re.subn(r"= #ttg\.\w+<\{[^<>]*\}>", "= 0", text)
    return re.sub(r", #ttg\.\w+<\{[^<>]*\}>", "", text)


def _specialize(first: Operation, tasks: dict[str, _Task], program: int) -> None:
    """Replace a set's calls by the operation."""
    calls = [first]
    task = _called(first, tasks)
    assert task is not None
    while len(calls) < task.of:
        following = calls[-1].next_op
        while following is not None and _called(following, tasks) is None:
            following = following.next_op
        assert following is not None
        calls.append(following)
    own = [(_called(call, tasks), call) for call in calls]
    default = [(t, c) for t, c in own if t is not None and t.default]
    others = [(t, c) for t, c in own if t is not None and not t.default]
    captures = list(dict.fromkeys(v for _, call in others for v in call.operands))
    builder = Builder.before(calls[-1])
    builder.location = first.location
    if default:
        task, call = default[0]
        region = _body(task, "ttg.warp_yield")
        block = region.blocks[0]
        for argument, value in zip(list(block.args), call.operands, strict=True):
            argument.replace_all_uses_with(value)
            block.erase_arg(argument)
    else:
        region = Region(_block("ttg.warp_yield", builder, [], []))
    partitions = []
    for task, call in others:
        body = _body(task, "ttg.warp_return")
        _take_captures(body, call, captures)
        partitions.append(body)
    warps = [task.warps or program for task, _ in others]
    attributes: dict[str, Attribute] = {"partitionNumWarps": _integers(warps)}
    registers = _registers([task.registers for task, _ in others], warps, program)
    if registers:
        attributes["requestedRegisters"] = _integers(registers)
    holder = _block("ttg.warp_specialize.partitions", builder, captures, partitions)
    builder.op("ttg.warp_specialize", [], [], attributes, [region, Region(holder)])
    for call in calls:
        erase(call)


def _integers(values: list[int]) -> Attribute:
    return DenseArrayBase.from_list(IntegerType(32), values)


def _registers(asked: list[int], warps: list[int], program: int) -> list[int]:
    """Registers of a thread for each partition; none where none was asked for.

    A task that does not say has an even share of what is left.
    """
    if not any(asked):
        return []
    rest = (1 << 16) // 32 - sum(a * w for a, w in zip(asked, warps, strict=True))
    sharing = program + sum(w for a, w in zip(asked, warps, strict=True) if not a)
    share = max(24, min(240, rest // sharing // 8 * 8))
    return [a or share for a in asked]


def _body(task: _Task, terminator: str) -> Region:
    """A copy of a task's body: a loop that was unrolled has several."""
    region = Region()
    task.function.regions[0].clone_into(region)
    for block in region.blocks:
        last = block.last_op
        assert last is not None
        if op_name(last) == "tt.return":
            Builder.before(last).op(terminator)
            erase(last)
    return region


def _take_captures(body: Region, call: Operation, captures: list[SSAValue]) -> None:
    """Give a partition's body every capture as an argument, as each partition has to."""
    block = body.blocks[0]
    old = list(block.args)
    new = {v: block.insert_arg(v.type, len(block.args)) for v in captures}
    for argument, value in zip(old, call.operands, strict=True):
        new[value].location = argument.location
        argument.replace_all_uses_with(new[value])
        block.erase_arg(argument)


def _block(name: str, builder: Builder, operands: list[SSAValue], regions: list[Region]) -> Block:
    """A block of one operation."""
    block = Block()
    inner = Builder(InsertPoint.at_end(block), builder.location)
    inner.op(name, operands, [], None, regions)
    return block
