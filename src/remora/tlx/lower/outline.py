"""Cuts tasks out of the kernel: each becomes a function, called in its place.

At the very start of ``ttir``, before a pass moves anything across the ends of a
task. A function marked ``noinline`` stays whole through the stock passes, and
``specialize`` puts it back as a partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from remora.dsl.lowering import decode
from remora.dsl.regions import Span, spans
from remora.errors import CannotCapture, LanguageError
from remora.ir.build import Builder, attribute, boolean, erase, inherent, op_name
from remora.ir.locations import source_line

#: What a task's function has: its number in its set, from 0; how many there are; its
#: number among its replicas; warps (0: the program's); registers of a thread (0: not said).
TASK = "tlx.task"

# Computed again in a task that uses the result: no memory is read or written.
_PURE = ("arith.", "math.")
_PURE_OPS = frozenset((
    "tt.addptr", "tt.bitcast", "tt.broadcast", "tt.cat", "tt.clampf", "tt.expand_dims",
    "tt.fp_to_fp", "tt.get_num_programs", "tt.get_program_id", "tt.int_to_ptr", "tt.join",
    "tt.make_range", "tt.mulhiui", "tt.precise_divf", "tt.precise_sqrt", "tt.ptr_to_int",
    "tt.reshape", "tt.splat", "tt.split", "tt.trans", "tt.unsplat",
    "scf.if", "scf.for", "scf.yield", "tt.func", "tt.return",
))  # fmt: skip


@dataclass(frozen=True)
class OutlineTasks(ModulePass):
    """See the module."""

    name = "tlx-outline-tasks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Make a function of each task."""
        functions = {
            f.properties["sym_name"].data: f  # type: ignore[attr-defined]
            for f in op.ops
            if op_name(f) == "tt.func"
        }
        ops = decode(op)
        tasks = list(spans(ops, "tlx.async_task"))
        sets = list(spans(ops, "tlx.async_tasks"))
        count = 0
        for tasks_span in sets:
            inside = set(tasks_span.body())
            own = [t for t in tasks if t.begin.op in inside]
            # The default task is the first: its region is the operation's own.
            own.sort(key=lambda t: not _is_default(t))
            _check_between(tasks_span, own)
            if all(_is_default(task) for task in own):
                continue  # the program's warps run it where it stands
            for number, task in enumerate(own):
                function = _Outliner(functions, task).run(f"tlx.task.{count}", tasks_span)
                function.attributes[TASK] = attribute(
                    f"array<i32: {number}, {len(own)}, {task.attributes['copy']}, "
                    f"{task.attributes['num_warps'] or 0}, {task.attributes['num_regs'] or 0}>"
                )
                if _is_default(task):
                    function.attributes["tlx.default"] = attribute("unit")
                op.body.block.add_op(function)
                count += 1
        for span in (*tasks, *sets):
            for marker in (span.begin, span.end):
                erase(marker.op)
        _erase_declarations(op)


def _is_default(task: Span) -> bool:
    """Whether the program's own warps run it: its other copies have warps of their own."""
    return bool(task.attributes["default"]) and task.attributes["copy"] == 0


def _check_between(tasks: Span, own: list[Span]) -> None:
    """Refuse code with effects between tasks."""
    in_tasks = {op for task in own for op in (task.begin.op, task.end.op, *task.body())}
    for op in tasks.body():
        if op not in in_tasks and not _is_pure(op, {}):
            raise LanguageError(
                "tlx.async_tasks: only tasks may stand in it",
                where=source_line(op.location),
                hint="move this before or after the tasks, or into one of them",
            )


def _erase_declarations(module: ModuleOp) -> None:
    """Take out the functions that stood for the regions' ends."""
    for op in list(module.ops):
        name = op.properties.get("sym_name")
        if isinstance(name, StringAttr) and name.data.startswith(
            ("remora:tlx.async_task@", "remora:tlx.async_tasks@")
        ):
            erase(op)


class _Outliner:
    """Moves one task into a function."""

    def __init__(self, functions: dict[str, Operation], task: Span) -> None:
        self.functions = functions
        self.task = task
        self.ops = task.body()
        self.inside = {inner for op in self.ops for inner in op.walk()}
        self.captures: dict[SSAValue, SSAValue] = {}
        self.again: dict[SSAValue, SSAValue] = {}  # computed again within the task
        self.block = Block()

    def run(self, name: str, tasks: Span) -> Operation:
        """The function; the task's place in the kernel becomes a call of it."""
        self._check_results()
        outer: dict[SSAValue, list[tuple[Operation, int]]] = {}  # in the order of first uses
        for op in (inner for own in self.ops for inner in own.walk()):
            for index, value in enumerate(op.operands):
                if not self._is_inside(value):
                    outer.setdefault(value, []).append((op, index))
        self.start = self.ops[0] if self.ops else None
        for op in self.ops:
            op.detach()
            self.block.add_op(op)
        for value, uses in outer.items():
            new = self._value(value, uses[0][0])
            for op, index in uses:
                op.operands[index] = new
        end = Builder(InsertPoint.at_end(self.block), self.task.end.op.location)
        end.op("tt.return")
        kinds = [v.type for v in self.captures]
        # Calls in the order of the tasks, where the whole set ends.
        call = Builder.before(tasks.end.op)
        call.location = self.task.begin.op.location
        call.op("tt.call", list(self.captures), [], {"callee": SymbolRefAttr(name)})
        function = Builder(InsertPoint.at_end(Block()), self.task.begin.op.location).op(
            "tt.func", [], [],
            {
                "function_type": FunctionType.from_lists(kinds, []),
                "sym_name": StringAttr(name),
                "sym_visibility": StringAttr("private"),
                "noinline": boolean(True),
            },
            [Region(self.block)],
        )  # fmt: skip
        function.detach()
        return function

    def _is_inside(self, value: SSAValue) -> bool:
        owner = value.owner
        if isinstance(owner, Block):
            holder = owner.parent_op()
            return holder is not None and holder in self.inside
        return owner in self.inside

    def _check_results(self) -> None:
        for op in self.ops:
            for use in (use for result in op.results for use in result.uses):
                if use.operation not in self.inside:
                    raise LanguageError(
                        "a value of a task is used outside of it",
                        where=f"{source_line(use.operation.location)}; it is from "
                        f"{source_line(op.location)}",
                        hint="store it in a buffer or in global memory",
                    )

    def _value(self, value: SSAValue, use: Operation) -> SSAValue:
        """What a value from outside is in the task."""
        if value in self.again:
            return self.again[value]
        owner = value.owner
        constant = isinstance(owner, Operation) and op_name(owner) == "arith.constant"
        if constant or isinstance(value.type, TensorType):
            if not isinstance(owner, Operation) or not _is_pure(owner, self.functions):
                raise CannotCapture(
                    f"a task cannot capture {_named(value)}, a tensor that is not computed from "
                    "scalars alone",
                    where=f"{source_line(use.location)}; the tensor is from "
                    f"{source_line(owner.location) if isinstance(owner, Operation) else '?'}",
                    hint="load it within the task, or hand it over in a buffer with "
                    "tlx.local_store and tlx.local_load",
                )
            mapper = {operand: self._value(operand, use) for operand in _operands(owner)}
            copy = owner.clone(mapper)
            if self.start is None:
                self.block.add_op(copy)
            else:
                Rewriter.insert_op(copy, InsertPoint.before(self.start))
            for old_result, new_result in zip(owner.results, copy.results, strict=True):
                self.again[old_result] = new_result
            return self.again[value]
        argument = self.block.insert_arg(value.type, len(self.block.args))
        argument.location = getattr(value, "location", None) or use.location
        self.captures[value] = argument
        self.again[value] = argument
        return argument


def _operands(op: Operation) -> Iterable[SSAValue]:
    """The values from outside that an operation, with its regions, uses."""
    inside = set(op.walk())
    for inner in inside:
        for value in inner.operands:
            owner = value.owner
            holder = owner.parent_op() if isinstance(owner, Block) else owner
            if holder not in inside:
                yield value


def _is_pure(op: Operation, functions: dict[str, Operation]) -> bool:
    """Whether an operation, and a function that it calls, reads and writes no memory."""
    for inner in op.walk():
        name = op_name(inner)
        if name == "tt.call":
            callee = inherent(inner, "callee")
            function = functions.get(callee.root_reference.data)
            if (
                function is None
                or not function.regions[0].blocks
                or not _is_pure(function, functions)
            ):
                return False
        elif name not in _PURE_OPS and not name.startswith(_PURE):
            return False
    return True


def _named(value: SSAValue) -> str:
    location: Any = getattr(value.owner, "location", None)
    name = getattr(location, "desc", None)
    return repr(name.data) if isinstance(name, StringAttr) else "this value"
