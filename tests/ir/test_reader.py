"""Reading goes by lines as MLIR prints them, and by tokens where a text is not laid out so."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from compiling import context_for

from remora import host, ir
from remora.errors import IRParseError

LINES = [
    '%0 = "arith.constant"() <{value = 1 : i32}> : () -> i32 loc(unknown)',
    '%1 = "arith.addi"(%0, %0) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32',
    '%2 = "arith.muli"(%1, %0) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32',
]


def module_of(body: str) -> str:
    return f"""
"builtin.module"() ({{
  "tt.func"() <{{function_type = () -> (), sym_name = "f"}}> ({{
    {body}
    "tt.return"() : () -> ()
  }}) : () -> ()
}}) : () -> ()"""


def names(text: str) -> list[str]:
    """The operations of the function, as read."""
    function = next(op for op in ir.read(text).walk() if "sym_name" in op.properties)
    return [
        op.attributes["op_name__"].data  # type: ignore[attr-defined]
        for block in function.regions[0].blocks
        for op in block.ops
    ]


@pytest.mark.parametrize(
    "between",
    ["\n    ", "\n\n\n", " ", "\n// a comment\n", " // a comment\n    ", "\t\n \t"],
    ids=["printed", "blank lines", "one line", "comment line", "comment", "tabs"],
)
def test_what_stands_between_operations_does_not_matter(between: str) -> None:
    text = module_of(between.join(LINES))
    assert names(text) == ["arith.constant", "arith.addi", "arith.muli", "tt.return"]
    through_mlir = host.generic_text(host.parse_text(text, context_for("cuda:90")))
    assert ir.write(ir.read(text), locations=False) == ir.write(
        ir.read(through_mlir), locations=False
    )


def test_a_line_that_is_not_as_printed_among_lines_that_are() -> None:
    odd = '%1 = "arith.addi"(%0 , %0) <{overflowFlags=#arith.overflow<none>}> : (i32, i32) -> i32'
    assert names(module_of("\n".join([LINES[0], odd, LINES[2]]))) == names(
        module_of("\n".join(LINES))
    )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_is_at_its_line(place: int) -> None:
    lines = list(LINES)
    lines[place] = lines[place].replace('"(', '"(%nowhere, ', 1)
    with pytest.raises(IRParseError):
        ir.read(module_of("\n    ".join(lines)))


@pytest.fixture
def collector() -> Iterator[None]:
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_left_as_it_was(on: bool, collector: None) -> None:
    (gc.enable if on else gc.disable)()
    module = ir.read(module_of("\n".join(LINES)))
    assert gc.isenabled() == on
    ir.write(module)
    assert gc.isenabled() == on
    with pytest.raises(IRParseError):
        ir.read("not a module")
    assert gc.isenabled() == on
