"""What the alignment analysis claims holds: random programs, evaluated in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import ir
from remora.ir.alignment import Alignment, Axis, copy_bytes

EXTENTS = (1, 2, 4, 8, 16)
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
BYTES = 2  # of the elements that pointers point to


@dataclass
class Program:
    """A function's text, and what each of its values is; the numbers behind pointers are bytes.

    seen: every array that a value was, for a value in a loop one for each iteration.
    """

    parameters: list[tuple[str, int, int, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    seen: dict[str, list[Any]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def name(self) -> str:
        return f"%v{len(self.seen)}"

    def text(self) -> str:
        attributes = ", ".join(f"{{tt.divisibility = {d} : i32}}" for _, _, d, _ in self.parameters)
        types = ", ".join(kind for *_, kind in self.parameters)
        arguments = ", ".join(f"{name}: {kind}" for name, _, _, kind in self.parameters)
        body = "\n".join(self.lines)
        return (
            '"builtin.module"() ({\n"tt.func"() <{'
            f"arg_attrs = [{attributes}], function_type = ({types}) -> (), "
            'sym_name = "f", sym_visibility = "public"}> ({\n'
            f'^bb0({arguments}):\n{body}\n"tt.return"() : () -> ()\n'
            "}) : () -> ()\n}) : () -> ()\n"
        )


def tensor(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>" if shape else element


class Writer:
    """Adds operations over values that it can evaluate."""

    def __init__(self, program: Program, draw: Any) -> None:
        self.program = program
        self.draw = draw

    def add(self, line: str, array: Any, element: str = "i32") -> str:
        name = self.program.name()
        array = np.asarray(array)
        self.program.lines.append(f"{name} = {line}")
        self.program.seen[name] = [array]
        self.program.kinds[name] = tensor(array.shape, element)
        return name

    def array(self, name: str) -> Any:
        return self.program.seen[name][-1]

    def pick(self, wanted: Any) -> str | None:
        names = [n for n in self.program.seen if wanted(self.program.kinds[n], self.array(n))]
        return self.draw(st.sampled_from(names)) if names else None

    def parameter(self, element: str = "i32") -> None:
        divisor = self.draw(st.sampled_from((1, 2, 4, 8, 16)))
        number = divisor * self.draw(st.integers(0, 9))
        if element != "i32":
            number *= BYTES  # as every element in memory is aligned to its own size
        name = self.program.name()
        self.program.parameters.append((name, number, divisor, element))
        self.program.seen[name] = [np.asarray(number)]
        self.program.kinds[name] = element

    def make_range(self) -> None:
        start = self.draw(st.sampled_from((0, 4, 8, 3)))
        size = self.draw(st.sampled_from(EXTENTS))
        self.add(
            f'"tt.make_range"() <{{start = {start} : i32, end = {start + size} : i32}}> '
            f": () -> {tensor((size,), 'i32')}",
            np.arange(start, start + size),
        )

    def constant(self) -> None:
        number = self.draw(st.sampled_from((0, 1, 2, 3, 4, 6, 8, 12, 16)))
        shape = self.draw(st.sampled_from([(), (4,), (8,), (16,), (1, 8), (8, 1), (4, 8)]))
        kind = tensor(shape, "i32")
        value = f"dense<{number}> : {kind}" if shape else f"{number} : i32"
        self.add(f'"arith.constant"() <{{value = {value}}}> : () -> {kind}', np.full(shape, number))

    def splat(self) -> None:
        source = self.pick(lambda kind, array: array.ndim == 0)
        if source is None:
            return
        shape = self.draw(st.sampled_from([(4,), (8,), (16,), (1, 8), (8, 1), (4, 8)]))
        element = self.program.kinds[source]
        self.add(
            f'"tt.splat"({source}) : ({element}) -> {tensor(shape, element)}',
            np.full(shape, self.array(source)),
            element,
        )

    def expand(self) -> None:
        source = self.pick(lambda kind, array: array.ndim == 1)
        if source is None:
            return
        axis = self.draw(st.sampled_from((0, 1)))
        array = np.expand_dims(self.array(source), axis)
        element = self.element(source)
        self.add(
            f'"tt.expand_dims"({source}) <{{axis = {axis} : i32}}> : '
            f"({self.program.kinds[source]}) -> {tensor(array.shape, element)}",
            array,
            element,
        )

    def broadcast(self) -> None:
        source = self.pick(lambda kind, array: array.ndim == 2 and 1 in array.shape)
        if source is None:
            return
        extent = self.draw(st.sampled_from(EXTENTS))
        shape = tuple(extent if n == 1 else n for n in self.array(source).shape)
        element = self.element(source)
        self.add(
            f'"tt.broadcast"({source}) : ({self.program.kinds[source]}) '
            f"-> {tensor(shape, element)}",
            np.broadcast_to(self.array(source), shape),
            element,
        )

    def element(self, name: str) -> str:
        kind = self.program.kinds[name]
        return "!tt.ptr<f16>" if "!" in kind else kind.removesuffix(">").split("x")[-1]

    def pair(self, element: str = "i32") -> tuple[str, str] | None:
        first = self.pick(lambda kind, array: kind.endswith((f"x{element}>", element)))
        if first is None:
            return None
        kind = self.program.kinds[first]
        second = self.pick(lambda other, array: other == kind)
        return None if second is None else (first, second)

    def arithmetic(self) -> None:
        pair = self.pair()
        if pair is None:
            return
        a, b = map(self.array, pair)
        name = self.draw(st.sampled_from(("addi", "subi", "muli", "remsi", "remui")))
        if name.startswith("rem") and ((b <= 0).any() or (a < 0).any()):
            return
        function = {"addi": np.add, "subi": np.subtract, "muli": np.multiply}
        result = function.get(name, np.remainder)(a, b)
        if np.abs(result).max(initial=0) >= 1 << 30:
            return
        kind = self.program.kinds[pair[0]]
        self.add(f'"arith.{name}"({pair[0]}, {pair[1]}) : ({kind}, {kind}) -> {kind}', result)

    def compare(self) -> None:
        pair = self.pair()
        if pair is None:
            return
        a, b = map(self.array, pair)
        predicate = self.draw(st.sampled_from(PREDICATES))
        if predicate[0] == "u" and min(a.min(), b.min()) < 0:
            return
        result = COMPARE[predicate if predicate in COMPARE else predicate[1:]](a, b)
        kind = self.program.kinds[pair[0]]
        self.add(
            f'"arith.cmpi"({pair[0]}, {pair[1]}) '
            f"<{{predicate = {PREDICATES.index(predicate)} : i64}}> : ({kind}, {kind}) -> "
            f"{tensor(result.shape, 'i1')}",
            result,
            "i1",
        )

    def both(self) -> None:
        pair = self.pair("i1")
        if pair is None:
            return
        kind = self.program.kinds[pair[0]]
        name, function = self.draw(
            st.sampled_from((("andi", np.logical_and), ("ori", np.logical_or)))
        )
        self.add(
            f'"arith.{name}"({pair[0]}, {pair[1]}) : ({kind}, {kind}) -> {kind}',
            function(*map(self.array, pair)),
            "i1",
        )

    def extend(self) -> None:
        source = self.pick(lambda kind, array: "i32" in kind and (array >= 0).all())
        if source is None:
            return
        name = self.draw(st.sampled_from(("extsi", "extui")))
        kind = self.program.kinds[source]
        self.add(
            f'"arith.{name}"({source}) : ({kind}) -> {kind.replace("i32", "i64")}',
            self.array(source),
            "i64",
        )

    def loop(self) -> None:
        """Two variables go around, perhaps exchanged, each changed by what does not."""
        pair = self.pair("!tt.ptr<f16>" if self.draw(st.booleans()) else "i32")
        if pair is None:
            return
        program, kind = self.program, self.program.kinds[pair[0]]
        name, unit = ("tt.addptr", BYTES) if "!tt.ptr" in kind else ("arith.addi", 1)
        shape = self.array(pair[0]).shape
        step = self.pick(
            lambda other, array: array.shape == shape and other.removesuffix(">").endswith("i32")
        )
        if step is None:
            return
        start, stride = self.draw(st.sampled_from(((0, 1), (0, 8), (4, 8), (3, 4))))
        results = program.name()
        program.seen[results] = []  # only takes the name
        program.kinds[results] = ""
        induction, first, second, moved = (f"{results}_{n}" for n in ("i", "a", "b", "c"))
        bounds = [self.constant_of(n) for n in (start, start + 3 * stride, stride)]
        order = self.draw(
            st.sampled_from(((moved, second), (second, moved), (moved, first), (moved, moved)))
        )
        program.lines.append(
            f'{results}:2 = "scf.for"({", ".join((*bounds, *pair))}) ({{\n'
            f"^bb0({induction}: i32, {first}: {kind}, {second}: {kind}):\n"
            f'{moved} = "{name}"({first}, {step}) : ({kind}, {program.kinds[step]}) -> {kind}\n'
            f'"scf.yield"({order[0]}, {order[1]}) : ({kind}, {kind}) -> ()\n'
            f"}}) : (i32, i32, i32, {kind}, {kind}) -> ({kind}, {kind})"
        )
        del program.seen[results], program.kinds[results]
        now = {first: self.array(pair[0]), second: self.array(pair[1])}
        seen: dict[str, list[Any]] = {n: [] for n in (induction, first, second, moved)}
        for iteration in range(3):
            now[induction] = np.asarray(start + iteration * stride)
            now[moved] = now[first] + unit * self.array(step)
            for n, arrays in seen.items():
                arrays.append(now[n])
            now[first], now[second] = (now[n] for n in order)
        program.seen.update(seen)
        program.kinds.update({induction: "i32", first: kind, second: kind, moved: kind})

    def constant_of(self, number: int) -> str:
        return self.add(f'"arith.constant"() <{{value = {number} : i32}}> : () -> i32', number)

    def address(self) -> None:
        pointer = self.pick(lambda kind, array: "!tt.ptr" in kind)
        if pointer is None:
            return
        shape = self.array(pointer).shape
        offset = self.pick(
            lambda kind, array: array.shape == shape and ("i32" in kind or "i64" in kind)
        )
        if offset is None:
            return
        kind = self.program.kinds[pointer]
        self.add(
            f'"tt.addptr"({pointer}, {offset}) : ({kind}, {self.program.kinds[offset]}) -> {kind}',
            self.array(pointer) + BYTES * self.array(offset),
            "!tt.ptr<f16>",
        )


@st.composite
def programs(draw: Any) -> Program:
    program = Program()
    writer = Writer(program, draw)
    writer.parameter()
    writer.parameter()
    writer.parameter("!tt.ptr<f16>")
    for _ in range(draw(st.integers(2, 5))):
        draw(st.sampled_from((writer.make_range, writer.constant, writer.splat)))()
    steps = (
        writer.make_range, writer.constant, writer.splat, writer.expand, writer.broadcast,
        writer.arithmetic, writer.arithmetic, writer.arithmetic, writer.compare, writer.both,
        writer.extend, writer.address,
    )  # fmt: skip
    for _ in range(draw(st.integers(4, 24))):
        draw(st.sampled_from(steps))()
    if draw(st.booleans()):
        writer.loop()
    return program


def check(axis: Axis, array: Any, unit: int, what: str) -> None:
    """That the claims of an axis hold of numbers."""
    shape = array.shape or (1,)
    array = array.reshape(shape).astype(np.int64)
    if axis.value is not None:
        assert (array == axis.value).all(), f"{what}: value {axis.value} of {array}"
    for dim, extent in enumerate(shape):
        lines = np.moveaxis(array, dim, -1).reshape(-1, extent)
        run, equal = axis.contiguity[dim], axis.constancy[dim]
        assert extent % run == 0, f"{what}: {axis}"
        assert extent % equal == 0, f"{what}: {axis}"
        runs = lines.reshape(-1, run)
        steps = runs - runs[:, :1]
        assert (steps == unit * np.arange(run)).all(), f"{what}: contiguity {axis} of\n{array}"
        divisor = axis.divisibility[dim]
        assert (runs[:, 0] % divisor == 0).all(), f"{what}: divisibility {axis} of\n{array}"
        groups = lines.reshape(-1, equal)
        assert (groups == groups[:, :1]).all(), f"{what}: constancy {axis} of\n{array}"


def values_of(module: Any) -> dict[str, Any]:
    """The values of a function that ``Program.text`` made, by name."""
    found = {}
    for op in module.walk():
        regions = [block for region in op.regions for block in region.blocks]
        for value in [*op.results, *(a for block in regions for a in block.args)]:
            if value.name_hint:
                found[f"%{value.name_hint}"] = value
    return found


@settings(max_examples=400)
@given(programs())
def test_what_is_claimed_holds(program: Program) -> None:
    text = program.text()
    values = values_of(ir.read(text))
    analysis = Alignment()
    for name, arrays in program.seen.items():
        unit = BYTES if "!tt.ptr" in program.kinds[name] else 1
        for array in arrays:
            check(analysis.of(values[name]), array, unit, f"{name} in\n{text}\n")


@settings(max_examples=100)
@given(programs())
def test_a_copy_moves_what_is_aligned_contiguous_and_under_one_mask(program: Program) -> None:
    text = program.text()
    values = values_of(ir.read(text))
    kinds = program.kinds
    pointers = [n for n in program.seen if "!tt.ptr" in kinds[n] and kinds[n].startswith("tensor")]
    for name in pointers:
        shape = program.seen[name][0].shape
        masks = [n for n in program.seen if kinds[n] == tensor(shape, "i1")]
        for mask, dim in [(m, d) for m in (None, *masks) for d in range(len(shape))]:
            moved = copy_bytes(Alignment(), values[name], mask and values[mask], dim)
            elements, left = divmod(moved, BYTES)
            assert not left
            for array in program.seen[name]:
                runs = np.moveaxis(array, dim, -1).reshape(-1, elements)
                assert (runs - runs[:, :1] == BYTES * np.arange(elements)).all(), text
                assert (runs[:, 0] % moved == 0).all(), text
            if mask:
                runs = np.moveaxis(program.seen[mask][0], dim, -1).reshape(-1, elements)
                assert (runs == runs[:, :1]).all(), text


def in_a_loop(before: str, kind: str, first: str, second: str, body: str, yielded: str) -> str:
    """A loop over two variables, ``%a`` and ``%b``; ``%p`` and ``%n`` are divisible by 16."""
    return f"""\"builtin.module"() ({{
"tt.func"() <{{arg_attrs = [{{tt.divisibility = 16 : i32}}, {{tt.divisibility = 16 : i32}}],
  function_type = (!tt.ptr<f16>, i32) -> (), sym_name = "f", sym_visibility = "public"}}> ({{
^bb0(%p: !tt.ptr<f16>, %n: i32):
{before}
%one = "arith.constant"() <{{value = 1 : i32}}> : () -> i32
%last:2 = "scf.for"(%one, %n, %one, {first}, {second}) ({{
^bb0(%i: i32, %a: {kind}, %b: {kind}):
{body}
"scf.yield"({yielded}) : ({kind}, {kind}) -> ()
}}) : (i32, i32, i32, {kind}, {kind}) -> ({kind}, {kind})
"tt.return"() : () -> ()
}}) : () -> ()
}}) : () -> ()
"""


RANGE = '"tt.make_range"() <{start = 0 : i32, end = 64 : i32}> : () -> tensor<64xi32>'


def test_a_loop_keeps_the_alignment_of_its_addresses() -> None:
    """The addresses of a pipelined product: as aligned in the loop as before it."""
    kind = "tensor<64x!tt.ptr<f16>>"
    add = f'"tt.addptr"(%base, %range) : ({kind}, tensor<64xi32>) -> {kind}'
    text = in_a_loop(
        f'%range = {RANGE}\n%base = "tt.splat"(%p) : (!tt.ptr<f16>) -> {kind}\n'
        f'%at = {add}\n%step = "tt.splat"(%n) : (i32) -> tensor<64xi32>',
        kind, "%at", "%at",
        f'%next = "tt.addptr"(%a, %step) : ({kind}, tensor<64xi32>) -> {kind}',
        "%next, %b",
    )  # fmt: skip
    now = values_of(ir.read(text))["%a"]
    assert Alignment().of(now) == Axis((64,), (16,), (1,))
    assert copy_bytes(Alignment(), now, None, 0) == 16


def test_a_variable_that_takes_another_s_place_has_what_both_have() -> None:
    kind = "tensor<64xi32>"
    text = in_a_loop(
        f'%range = {RANGE}\n%same = "tt.splat"(%n) : (i32) -> {kind}',
        kind, "%same", "%range", "", "%b, %b",
    )  # fmt: skip
    values = values_of(ir.read(text))
    assert Alignment().of(values["%same"]) == Axis((1,), (16,), (64,))
    assert Alignment().of(values["%a"]) == Axis((1,), (1,), (1,))
