"""Random loops do the same before and after the pass, effect by effect."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from compiling import parse
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from remora_loop_split.split import SplitLoops

from remora import host, ir
from remora.pipeline import run_pass

_spec = importlib.util.spec_from_file_location(
    "split_evaluator", Path(__file__).with_name("split_evaluator.py")
)
assert _spec is not None
assert _spec.loader is not None
evaluator: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(evaluator)

LANES = 8
EXAMPLES = int(os.environ.get("LOOP_SPLIT_EXAMPLES", "100"))
LEAST, MOST = -(1 << 31), (1 << 31) - 1
PREDICATES = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]

near_the_ends = st.one_of(
    st.integers(-40, 40),
    st.integers(LEAST, LEAST + 300),
    st.integers(MOST - 300, MOST),
    st.integers(LEAST, MOST),
)


class Writer:
    """Writes a kernel, an operation a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def value(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def constant(self, number: int, kind: str = "i32") -> str:
        return self.value(f"arith.constant {number} : {kind}")

    def put(self, text: str) -> None:
        self.lines.append(text)


TILE = f"tensor<{LANES}xi32>"
BITS = f"tensor<{LANES}xi1>"


class Kernel:
    """A kernel of a few nested loops, drawn by hypothesis.

    Arguments: the bounds of the comparisons, then those of the loops.
    """

    def __init__(self, draw: Any, direct: bool) -> None:
        self.draw = draw
        self.direct = direct
        self.write = Writer()
        self.arguments: list[int] = []
        self.variables: list[tuple[str, range]] = []
        result = self.loop(depth=0)
        parameters = ", ".join(f"%a{i}: i32" for i in range(len(self.arguments)))
        self.text = (
            f"module {{ tt.func public @kernel(%p: !tt.ptr<i32>, %q: {TILE[:-4]}x!tt.ptr<i32>>"
            f"{', ' if parameters else ''}{parameters}) -> i32 {{\n"
            + "\n".join(self.write.lines)
            + f"\ntt.return {result} : i32 }} }}"
        ).replace("xx", "x")

    def scalar(self, number: int) -> str:
        """A scalar of this value: a constant, or an argument."""
        if self.draw(st.booleans()):
            return self.write.constant(number)
        self.arguments.append(number)
        return f"%a{len(self.arguments) - 1}"

    def loop(self, depth: int) -> str:
        draw, write = self.draw, self.write
        step = draw(st.one_of(st.integers(1, 5), st.sampled_from([8, 64, 1 << 20, 1 << 30])))
        lower = draw(near_the_ends)
        trips = draw(st.integers(-2, 12 if depth == 0 else 4))
        upper = max(LEAST, min(MOST, lower + trips * step + draw(st.integers(-3, 3))))
        numbers = range(lower, upper, step)
        low, high = self.scalar(lower), self.scalar(upper)
        by = write.constant(step)
        if draw(st.integers(0, 3)) == 3:  # known to be positive, and no more
            self.arguments.append(step)
            one = write.constant(1)
            by = write.value(f"arith.maxsi %a{len(self.arguments) - 1}, {one} : i32")
        start = write.constant(draw(st.integers(0, 9)))
        pace = self.scalar(draw(near_the_ends))
        lanes = write.value(f"arith.constant dense<{draw(near_the_ends)}> : {TILE}")
        write.count += 1
        number = write.count
        i, x, y, z = (f"%{name}{number}" for name in "ixyz")
        write.put(
            f"%r{number}:3 = scf.for {i} = {low} to {high} step {by} iter_args({x} = {start}, "
            f"{y} = {start}, {z} = {lanes}) -> (i32, i32, {TILE}) : i32 {{"
        )
        self.variables.append((i, numbers))
        total = x
        for _ in range(draw(st.integers(1, 3))):
            total = self.statement(total, depth)
        # Two values that only advance, and are looked at in each iteration.
        write.put(f"tt.store %p, {y} : !tt.ptr<i32>")
        write.put(f"tt.store %q, {z} : {TILE[:-4]}x!tt.ptr<i32>>")
        y = write.value(f"arith.addi {y}, {pace} : i32")
        z = write.value(f"arith.addi {z}, {lanes} : {TILE}")
        spread = write.value(f"tt.splat {pace} : i32 -> {TILE}")
        z = write.value(f"arith.addi {z}, {spread} : {TILE}")
        write.put(f"scf.yield {total}, {y}, {z} : i32, i32, {TILE} }} {{tt.num_stages = 2 : i32}}")
        self.variables.pop()
        write.put(f"tt.store %q, %r{number}#2 : {TILE[:-4]}x!tt.ptr<i32>>")
        return write.value(f"arith.addi %r{number}#0, %r{number}#1 : i32")

    def statement(self, total: str, depth: int) -> str:
        """Something that depends on a comparison; the total after it."""
        draw, write = self.draw, self.write
        kinds = ["if", "select", "mask", "hide", "not", "both"] + ["loop"] * (depth < 1)
        kind = draw(st.sampled_from(kinds))
        if kind == "loop":
            inner = self.loop(depth + 1)
            return write.value(f"arith.addi {total}, {inner} : i32")
        if kind == "if":
            condition = self.compare(tile=False)
            write.count += 1
            name = f"%s{write.count}"
            write.put(f"{name} = scf.if {condition} -> (i32) {{")
            write.put(f"tt.store %p, {total} : !tt.ptr<i32>")
            inner = total
            if draw(st.integers(0, 3)) == 3:
                inner = self.statement(total, depth=9)
            write.put(f"scf.yield {inner} : i32 }} else {{")
            other = write.value(f"arith.addi {total}, {self.variables[-1][0]} : i32")
            write.put(f"tt.store %p, {other} : !tt.ptr<i32>")
            write.put(f"scf.yield {other} : i32 }}")
            return name
        if kind == "select":
            condition = self.compare(tile=False)
            three = write.constant(3)
            other = write.value(f"arith.muli {total}, {three} : i32")
            return write.value(f"arith.select {condition}, {other}, {self.variables[-1][0]} : i32")
        mask = self.compare(tile=True)
        seven = write.value(f"arith.constant dense<7> : {TILE}")
        if kind in ("not", "both"):
            other = (
                write.value(f"arith.constant dense<true> : {BITS}")
                if kind == "not"
                else self.compare(tile=True)
            )
            mask = write.value(
                f"arith.{'xori' if kind == 'not' else 'andi'} {mask}, {other} : {BITS}"
            )
        if kind == "hide":
            spread = write.value(f"tt.splat {total} : i32 -> {TILE}")
            hidden = write.value(f"arith.select {mask}, {seven}, {spread} : {BITS}, {TILE}")
            write.put(f"tt.store %q, {hidden} : {TILE[:-4]}x!tt.ptr<i32>>")
            return total
        loaded = write.value(f"tt.load %q, {mask}, {seven} : {TILE[:-4]}x!tt.ptr<i32>>")
        write.put(f"tt.store %q, {loaded}, {mask} : {TILE[:-4]}x!tt.ptr<i32>>")
        return total

    def compare(self, tile: bool) -> str:
        """A comparison of something that depends on a loop's variable with a bound near it."""
        draw, write = self.draw, self.write
        variable, numbers = draw(st.sampled_from(self.variables))
        factor = 1 if self.direct else draw(st.sampled_from([1, 1, 1, -1, 2, -3, 64]))
        offset = 0 if self.direct else draw(st.sampled_from([0, 0, 1, -1, 5, 64, -64, MOST]))
        value = variable
        if factor != 1:
            value = write.value(f"arith.muli {value}, {write.constant(factor)} : i32")
        if offset:
            value = write.value(f"arith.addi {value}, {self.scalar(offset)} : i32")
        at = draw(st.sampled_from(list(numbers) or [0])) * factor + offset
        bound = at + draw(st.sampled_from([0, 0, 1, -1, 2, -2, 7, -7, 8, -9]))
        bound = evaluator.wrapped(bound, 32) if draw(st.integers(0, 5)) else draw(near_the_ends)
        limit = self.scalar(bound)
        if not self.direct and draw(st.integers(0, 4)) == 4:
            # An invariant that is computed in the loop.
            zero = self.scalar(0)
            limit = write.value(f"arith.addi {limit}, {zero} : i32")
        predicate = draw(st.sampled_from(PREDICATES))
        kind, wide = "i32", not tile and draw(st.integers(0, 5)) == 5
        if tile:
            lanes = write.value(f"tt.make_range {{end = {LANES} : i32, start = 0 : i32}} : {TILE}")
            value, limit = (write.value(f"tt.splat {v} : i32 -> {TILE}") for v in (value, limit))
            if draw(st.booleans()):
                value = write.value(f"arith.addi {value}, {lanes} : {TILE}")
            else:
                limit = write.value(f"arith.subi {limit}, {lanes} : {TILE}")
            kind = TILE
        elif wide:
            extend = draw(st.sampled_from(["extsi", "extui"]))
            value = write.value(f"arith.{extend} {value} : i32 to i64")
            limit = write.value(f"arith.{extend} {limit} : i32 to i64")
            kind = "i64"
        sides = (value, limit) if draw(st.booleans()) else (limit, value)
        return write.value(f"arith.cmpi {predicate}, {', '.join(sides)} : {kind}")


@st.composite
def kernels(draw: Any, direct: bool) -> Kernel:
    return Kernel(draw, direct)


def run(module: Any, kernel: Kernel | Fixed) -> Any:
    """Results, effects, and whether a loop's variable left its type."""
    machine = evaluator.Evaluator()
    lanes = evaluator.np.array(range(100, 100 + LANES), dtype=object)
    xdsl_module = ir.read(host.generic_text(module))
    results = machine.call(xdsl_module, [0, lanes, *kernel.arguments])
    return results, machine.log, machine.passes_end


def loops_of(module: Any) -> int:
    return str(module).count("scf.for")


def check(kernel: Kernel | Fixed, splits: int) -> None:
    module = parse(kernel.text)
    try:
        results, log, passes_end = run(module, kernel)
    except evaluator.TooLong:
        assume(False)
    # Where its variable leaves its type, a loop of stock Triton does not end.
    if not kernel.direct:
        assume(not passes_end)
    new = run_pass(SplitLoops(max_splits=splits, min_body=0), module, place="a test")
    if isinstance(kernel, Kernel):
        event(f"{loops_of(new) - loops_of(module)} loops more")
    after = run(new, kernel)
    assert after[0] == results
    assert after[1] == log


_settings = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@_settings
@given(kernels(direct=False), st.sampled_from([1, 1, 2, 3]))
def test_affine(kernel: Kernel, splits: int) -> None:
    check(kernel, splits)


@_settings
@given(kernels(direct=True), st.sampled_from([1, 2, 3]))
def test_variable_itself_up_to_the_largest_number(kernel: Kernel, splits: int) -> None:
    check(kernel, splits)


@dataclass
class Fixed:
    """A kernel that is written out."""

    text: str
    arguments: list[int]
    direct: bool = True


WRAPS = """
module {{ tt.func public @kernel(%p: !tt.ptr<i32>, %q: tensor<8x!tt.ptr<i32>>, %b: i32) -> i32 {{
  %low = arith.constant {low} : i32
  %high = arith.constant {high} : i32
  %one = arith.constant 1 : i32
  %lanes = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32>
  %bound = tt.splat %b : i32 -> tensor<8xi32>
  scf.for %i = %low to %high step %one : i32 {{
    %s = tt.splat %i : i32 -> tensor<8xi32>
    %at = arith.{operation} %s, %lanes : tensor<8xi32>
    %mask = arith.cmpi {predicate}, %at, %bound : tensor<8xi32>
    tt.store %q, %at, %mask : tensor<8x!tt.ptr<i32>>
  }}
  tt.return %b : i32 }} }}
"""


@pytest.mark.parametrize("predicate", PREDICATES[2:])
@pytest.mark.parametrize("operation", ["addi", "subi"])
@pytest.mark.parametrize("low", [LEAST, LEAST + 3, -4, 0, MOST - 20])
def test_lanes_that_wrap(predicate: str, operation: str, low: int) -> None:
    text = WRAPS.format(low=low, high=low + 20, operation=operation, predicate=predicate)
    for bound in (LEAST, LEAST + 9, -5, 0, 6, low + 9, MOST - 9, MOST):
        check(Fixed(text, [min(bound, MOST)]), splits=1)
