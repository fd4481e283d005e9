"""Turns the operations that travelled as calls into what their lowerings say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from remora.dsl import carrier
from remora.dsl.op import Target, find_op
from remora.errors import (
    LoopTypeChanged,
    PluginError,
    RemoraError,
    UnsupportedByTarget,
    WrongType,
)
from remora.ir.build import Builder, erase, inherent, op_name, set_type
from remora.ir.locations import source_line


@dataclass
class CustomOp:
    """An operation of a plugin in a module: what stands for it, decoded.

    parts: the operations that carry it, the one with its operands first.
    """

    symbol: carrier.Symbol
    parts: list[Operation]
    results: list[SSAValue] = field(init=False)

    def __post_init__(self) -> None:
        carriers = self.parts if len(self.parts) == 1 else self.parts[1:]
        self.results = [r for part in carriers for r in part.results]

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.symbol.name

    @property
    def attributes(self) -> dict[str, Any]:
        """The constants that the operation was made with."""
        return self.symbol.attributes

    @property
    def handles(self) -> list[SSAValue]:
        """Those of the results that are handles."""
        kinds = zip(self.results, self.symbol.results, strict=True)
        return [result for result, kind in kinds if kind == "h"]

    @property
    def operands(self) -> list[SSAValue]:
        """The operands, as they are now."""
        return list(self.parts[0].operands)

    @property
    def op(self) -> Operation:
        """The operation that holds the place in the block."""
        return self.parts[0]

    @property
    def where(self) -> str:
        """The kernel's line."""
        return source_line(self.op.location)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def replace(self, values: Sequence[SSAValue]) -> None:
        """Put values in the place of the results and take the operation out."""
        for old, new in zip(self.results, values, strict=True):
            old.replace_all_uses_with(new)
        for part in reversed(self.parts):
            erase(part)


def _symbol(op: Operation) -> str:
    """The symbol of an operation that carries one of ours, else ""."""
    name = op_name(op)
    key = {"tt.call": "callee", "tt.print": "prefix", "tt.extern_elementwise": "symbol"}.get(name)
    if key is None:
        return ""
    value = inherent(op, key)
    if isinstance(value, SymbolRefAttr):
        text = value.root_reference.data
    else:
        text = value.data if isinstance(value, StringAttr) else ""
    return text if text.startswith(carrier.PREFIX) else ""


def decode(module: ModuleOp) -> list[CustomOp]:
    """The operations of plugins in a module, in program order."""
    found: list[CustomOp] = []
    # Results that travel apart follow their operands' carrier in its block.
    awaited: list[tuple[str, int, CustomOp]] = []
    for op in list(module.walk()):
        symbol = _symbol(op)
        if not symbol:
            continue
        if op_name(op) == "tt.extern_elementwise":
            expected, left, owner = awaited.pop()
            if expected != symbol:
                raise PluginError(f"a result of {symbol} has lost its operation")
            owner.parts.append(op)
            owner.results = [r for part in owner.parts[1:] for r in part.results]
            if left > 1:
                awaited.append((symbol, left - 1, owner))
            continue
        custom = CustomOp(carrier.decode(symbol), [op])
        found.append(custom)
        results = custom.symbol.results
        if op_name(op) == "tt.print" and results:
            awaited.append((symbol, len(results), custom))
    return found


def target_of(module: ModuleOp) -> Target:
    """The target that a TTGIR module is for."""
    text = module.attributes.get("ttg.target")
    if not isinstance(text, StringAttr):
        raise PluginError("the module has no ttg.target: it is not TTGIR")
    backend, _, arch = text.data.partition(":")
    return Target(backend, int(arch) if arch.isdigit() else arch)


def integer_attribute(module: ModuleOp, name: str) -> int:
    """An integer attribute of the module, such as ``ttg.num-warps``."""
    value: Any = module.attributes[name]
    return int(value.value.data)


class Analysis(Protocol):
    """What a plugin works out over a whole module before its operations are lowered."""

    def __init__(self, lowering: Lowering) -> None: ...

    def replaced(self, old: SSAValue, new: SSAValue) -> None:
        """Called when a result of an operation has been lowered to a value."""
        ...

    def finish(self) -> None:
        """Called when every operation has been lowered."""
        ...


class Lowering:
    """The lowering of one module.

    module: the module. target: what it is for. num_warps: warps of a program.
    ops: every operation of a plugin, in program order.
    analysis: what ``analyses`` made for the plugin whose operation is lowered.
    """

    def __init__(self, module: ModuleOp) -> None:
        self.module = module
        self.target = target_of(module)
        self.num_warps = integer_attribute(module, "ttg.num-warps")
        self.ops = decode(module)
        self.analysis: Any = None

    def num_warps_at(self, op: Operation) -> int:
        """Warps that run an operation: its partition's, or the program's."""
        region = op.parent_region()
        while region is not None and (parent := region.parent) is not None:
            if op_name(parent) == "ttg.warp_specialize.partitions":
                whole = parent.parent_op()
                assert whole is not None
                warps: Any = inherent(whole, "partitionNumWarps")
                return int(warps.get_values()[parent.regions.index(region)])
            region = parent.parent_region()
        return self.num_warps

    def run(self) -> None:
        """Lower every operation; remove the functions that stood for them."""
        for custom in self.ops:
            check_handles(custom)
        chosen = {name: self._choose(name) for name in {op.name for op in self.ops}}
        plugins = dict.fromkeys(op.name.partition(".")[0] for op in self.ops)
        made = {p: _analyses[p](self) for p in plugins if p in _analyses}
        for custom in self.ops:
            self.analysis = made.get(custom.name.partition(".")[0])
            self._lower(custom, chosen[custom.name])
        for analysis in made.values():
            analysis.finish()
        for op in list(self.module.ops):
            name = op.properties.get("sym_name")
            if isinstance(name, StringAttr) and name.data.startswith(carrier.PREFIX):
                erase(op)

    def _choose(self, name: str) -> Callable[..., Any]:
        """The lowering of an operation for this target."""
        first = next(op for op in self.ops if op.name == name)
        where = first.where
        declared_in = first.symbol.declared_in
        declared = find_op(name, declared_in)
        if declared is None:
            raise PluginError(
                f"the operation {name} is not declared in this process",
                where=where,
                hint=f"import {declared_in}, which declares it",
            )
        function = declared.lowering_for(self.target)
        if function is None:
            raise UnsupportedByTarget(
                f"{name}: the target {self.target} has no such operation",
                where=where,
                hint="it has lowerings for " + (", ".join(declared.lowerings) or "no target"),
            )
        return function

    def _lower(self, custom: CustomOp, function: Callable[..., Any]) -> None:
        values = self._lowered(custom, function)
        for old, new in zip(custom.results, values, strict=True):
            if old.type != new.type:
                retype(old, new.type)
            if self.analysis is not None:
                self.analysis.replaced(old, new)
        custom.replace(values)

    def _lowered(self, custom: CustomOp, function: Callable[..., Any]) -> Sequence[SSAValue]:
        """What a lowering makes of an operation's results."""
        try:
            returned = function(custom, Builder.before(custom.op), self)
        except RemoraError:
            raise
        except Exception as error:
            raise PluginError(
                f"the lowering of {custom.name} for {self.target} raised "
                f"{type(error).__name__}: {error}",
                where=custom.where,
            ) from error
        values = [] if returned is None else returned
        values = [values] if isinstance(values, SSAValue) else values
        listed = isinstance(values, (list, tuple)) and all(isinstance(v, SSAValue) for v in values)
        if not listed or len(values) != len(custom.results):
            what = f"{len(values)} values" if listed else repr(returned)
            raise PluginError(
                f"the lowering of {custom.name} for {self.target} returned {what} for "
                f"{len(custom.results)} results",
                where=custom.where,
                hint="return an SSAValue for each result, as builder.value gives them",
            )
        return values


_analyses: dict[str, type[Analysis]] = {}


def analysis(plugin: str) -> Any:
    """Register a class as the whole-module analysis of a plugin's lowerings."""

    def register(cls: type[Analysis]) -> type[Analysis]:
        _analyses[plugin] = cls
        return cls

    return register


def carried_to(value: SSAValue) -> Iterable[SSAValue]:
    """The values that a value becomes by control flow alone, one step on.

    Follows loops, branches and selects between two values as wholes; a call of
    another function ends it.
    """
    for use in list(value.uses):
        yield from carried_by(use.operation, use.index)


def reached(
    value: SSAValue, onward: Callable[[SSAValue], Iterable[SSAValue]] = carried_to
) -> Iterator[SSAValue]:
    """A value and all that ``onward`` leads to, step by step; each once."""
    seen: set[SSAValue] = set()
    work = [value]
    while work:
        current = work.pop()
        if current not in seen:
            seen.add(current)
            yield current
            work.extend(onward(current))


def carried_by(op: Operation, index: int) -> Iterable[SSAValue]:
    """The values that one operand of an operation becomes; see ``carried_to``."""
    name = op_name(op)
    if name == "scf.for" and index >= 3:
        yield op.regions[0].blocks[0].args[index - 2]
        yield op.results[index - 3]
    elif name == "scf.while":
        yield op.regions[0].blocks[0].args[index]
    elif name == "scf.condition" and index >= 1:
        parent = op.parent_op()
        assert parent is not None
        yield parent.regions[1].blocks[0].args[index - 1]
        yield parent.results[index - 1]
    elif name == "scf.yield":
        yield from _yielded(op, index)
    elif selects_whole(op) and index >= 1:
        yield op.results[0]
    elif name in ("cf.br", "cf.cond_br"):
        yield from _branched(op, index)
    elif name == "ttg.warp_specialize.partitions":
        yield from (region.blocks[0].args[index] for region in op.regions)


def branches_to(argument: BlockArgument) -> Iterable[tuple[Operation, int]]:
    """The branches that give a block's argument, with the operand's index."""
    region = argument.block.parent
    assert region is not None
    for block in region.blocks:
        last = block.last_op
        for index in range(len(last.operands) if last is not None and last.successors else 0):
            assert last is not None
            if argument in _branched(last, index):
                yield last, index


def selects_whole(op: Operation) -> bool:
    """Whether an operation is an ``arith.select`` between two values, not element by element."""
    return op_name(op) == "arith.select" and not isinstance(op.operands[0].type, TensorType)


def _yielded(op: Operation, index: int) -> Iterable[SSAValue]:
    parent = op.parent_op()
    assert parent is not None
    name = op_name(parent)
    if name == "scf.for":
        yield parent.regions[0].blocks[0].args[index + 1]
        yield parent.results[index]
    elif name == "scf.while":
        yield parent.regions[0].blocks[0].args[index]
    elif parent.results:
        yield parent.results[index]


def _branched(op: Operation, index: int) -> Iterable[SSAValue]:
    if op_name(op) == "cf.br":
        yield op.successors[0].args[index]
        return
    sizes: Any = inherent(op, "operandSegmentSizes")
    _, first, _ = sizes.get_values()
    position = index - 1
    if position < 0:
        return
    if position < first:
        yield op.successors[0].args[position]
    else:
        yield op.successors[1].args[position - first]


def retype(value: SSAValue, new_type: Attribute) -> None:
    """Give a value, and all that it becomes by control flow, another type.

    Selects become branches: not every type can be selected.

    Raises:
        LoopTypeChanged: a loop or branch joins values of two different types.
    """
    retyped: dict[SSAValue, None] = {}
    work = [value]
    while work:
        current = work.pop()
        if current in retyped:
            continue
        retyped[current] = None
        set_type(current, new_type)
        for use in list(current.uses):
            if selects_whole(use.operation) and use.index >= 1:
                _select_to_if(use.operation)
        work.extend(carried_to(current))


def check_handles(custom: CustomOp) -> None:
    """Check that no handle enters or leaves a function: what is not inlined takes numbers only.

    Raises:
        WrongType: one does, at the line of the call or the return.
    """
    seen: dict[SSAValue, None] = {}
    work = list(custom.handles)
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen[value] = None
        work.extend(carried_to(value))
        for use in value.uses:
            name = op_name(use.operation)
            if name == "tt.return" or (name == "tt.call" and not _symbol(use.operation)):
                what = "returned by" if name == "tt.return" else "passed to"
                raise WrongType(
                    f"what {custom.name} gave cannot be {what} a function marked noinline",
                    where=source_line(use.operation.location),
                    hint="remove noinline=True from the function",
                )


def check_joins(lowering_module: ModuleOp) -> None:
    """Check that loops and branches join values of one type.

    Raises:
        LoopTypeChanged: they do not; names the loop and the two types.
    """
    for op in lowering_module.walk():
        name = op_name(op)
        if name == "scf.yield":
            parent = op.parent_op()
            assert parent is not None
            if op_name(parent) == "scf.for":
                expected: Sequence[SSAValue] = parent.regions[0].blocks[0].args[1:]
            elif op_name(parent) == "scf.while":
                expected = parent.regions[0].blocks[0].args
            else:
                expected = parent.results
            _check_types(op.operands, expected, parent)
        elif name == "scf.for":
            _check_types(op.operands[3:], op.regions[0].blocks[0].args[1:], op)
        elif name == "scf.while":
            _check_types(op.operands, op.regions[0].blocks[0].args, op)
        elif name == "cf.br":
            _check_types(op.operands, op.successors[0].args, op)


def _check_types(given: Sequence[SSAValue], expected: Sequence[SSAValue], op: Operation) -> None:
    for new, old in zip(given, expected, strict=True):
        if new.type != old.type:
            raise LoopTypeChanged(
                f"a loop or a branch gives one variable two types: {_short(old.type)} and "
                f"{_short(new.type)}",
                where=f"{source_line(op.location)}; the latter is from {origin(new)}",
                hint="use one type, for buffers one shape and dtype, or another variable",
            )


def _short(kind: Attribute) -> str:
    """A type without its layout."""
    text = str(kind)
    head, comma, _ = text.partition(", #")
    return head + ">" if comma else text


def origin(value: SSAValue) -> str:
    """The source line that a value comes from."""
    if isinstance(value, BlockArgument):
        return source_line(value.location)
    owner = value.owner
    return source_line(owner.location) if isinstance(owner, Operation) else "?"


def _select_to_if(op: Operation) -> None:
    """``arith.select`` of a handle as ``scf.if``."""
    condition, first, second = op.operands
    regions = []
    for value in (first, second):
        block = Block()
        Builder(InsertPoint.at_end(block), op.location).op("scf.yield", [value])
        regions.append(Region(block))
    branch = Builder.before(op).op("scf.if", [condition], [op.results[0].type], None, regions)
    op.results[0].replace_all_uses_with(branch.results[0])
    erase(op)


@dataclass(frozen=True)
class LowerOperations(ModulePass):
    """Lowers the operations of all plugins, by the lowerings declared with them."""

    name = "lower-operations"
    trigger = carrier.PREFIX

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every operation of a plugin that the module holds."""
        lowering = Lowering(op)
        lowering.run()
        check_joins(op)
