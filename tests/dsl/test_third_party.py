"""A third party's operations, on every target: made from nothing but ``remora``'s public face."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from dsl import mine
from tlx.building import build, line_of

import remora
from remora import errors

TARGETS = ("cuda:80", "cuda:90", "hip:gfx942", "hip:gfx950")


@pytest.fixture(autouse=True)
def in_force() -> Iterator[None]:
    mine.NOTED.clear()
    with remora.use(mine.pipeline):
        yield


@triton.jit
def tensors(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    first, second = mine.split(mine.scale(tl.load(x + at), factor=0.1))
    tl.store(y + at, first - second)
    tl.store(y + B, mine.scale(tl.load(x), 3))


@pytest.mark.parametrize("target", TARGETS)
def test_tensors_and_two_results(target: str) -> None:
    compiled = build(tensors, target, x="*fp32", y="*fp32", B=256)
    text = compiled.asm["ttgir"]
    assert "remora:" not in text
    assert ("4.000000e+00" in text) == (target == "hip:gfx950")  # the most exact target wins
    assert ("2.000000e+00" in text) == (target != "hip:gfx950")
    assert re.search(r"1\.000000e-01|0x3DCCCCCD", text)


@triton.jit
def notes(x, B: tl.constexpr):
    mine.note(1, -2, 3.5, -1e-9, None, True, False, text='say "so": {a}: \\ @x, }:->\n\t')
    mine.note(("a", (1, -2.5), None), "é ∑ 🐟", text="")
    mine.note(float("inf"), float("-inf"))
    for _ in range(tl.load(x)):
        mine.note(B)
    tl.store(x, 1)


@pytest.mark.parametrize("target", TARGETS)
def test_attributes_of_every_kind(target: str) -> None:
    build(notes, target, x="*i32", B=4, options={"num_warps": 1})
    assert [n["values"] for n in mine.NOTED[:3]] == [
        (1, -2, 3.5, -1e-9, None, True, False),
        (("a", (1, -2.5), None), "é ∑ 🐟"),
        (float("inf"), float("-inf")),
    ]
    assert mine.NOTED[0]["text"] == 'say "so": {a}: \\ @x, }:->\n\t'
    assert [type(v) for v in mine.NOTED[0]["values"]] == [
        int, int, float, float, type(None), bool, bool,
    ]  # fmt: skip
    assert mine.NOTED[3]["values"] == (4,)


@triton.jit
def passed_on(c, n):
    c, value = mine.bump(c)
    if n > 7:
        c, value = mine.bump(c)
    return value, (c, n)


@triton.jit
def counters(x, n, WHAT: tl.constexpr):
    c = mine.counter(n, 3)
    d = mine.counter(7, step=3)
    total = 0
    for i in range(n):
        value, state = passed_on(c, i)
        total += value
        c = state[0]
        if i % 5 == 0:
            c, d = d, c
    while total < n:
        c, value = mine.bump(c)
        total += value
    c = c if WHAT else d
    c, value = mine.bump(c)
    tl.store(x, total + value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("what", [True, False])
def test_handles_go_everywhere(target: str, what: bool) -> None:
    text = build(counters, target, x="*i32", n="i32", WHAT=what).asm["ttgir"]
    assert "remora:" not in text
    assert "i64" not in text.replace(": i64", "")  # handles have become what they stand for


# --- what is wrong -------------------------------------------------------------------------------


@triton.jit
def wrong(x, y, n, WHAT: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + at)
    if WHAT == "nowhere":
        value = mine.nowhere(value)  # nowhere
    if WHAT == "elsewhere":
        value = mine.elsewhere(value)  # elsewhere
    if WHAT == "raises":
        value = mine.raises(value)  # raises
    if WHAT == "too many":
        value = mine.too_many(value)  # too many
    if WHAT == "nothing":
        value = mine.nothing(value)  # nothing
    if WHAT == "an operation":
        value = mine.an_operation(value)  # an operation
    if WHAT == "another type":
        value = mine.another_type(value)  # another type
    if WHAT == "attribute":
        mine.note(tl.float32)  # attribute
    if WHAT == "not a counter":
        mine.bump(n)  # not a counter
    if WHAT == "still":
        mine.bump(mine.counter(n, 0))  # still
    if WHAT == "not constant":
        value = mine.scale(value, n)  # not constant
    if WHAT == "dtype":
        mine.scale(at)  # dtype
    tl.store(y + at, value)


@pytest.mark.parametrize(("what", "kind", "message"), [
    ("nowhere", errors.UnsupportedByTarget, "no such operation"),
    ("elsewhere", errors.UnsupportedByTarget, "no such operation"),
    ("raises", errors.PluginError, "raised ZeroDivisionError: on purpose"),
    ("too many", errors.PluginError, "returned 2 values for 1 results"),
    ("nothing", errors.PluginError, "returned 0 values for 1 results"),
    ("an operation", errors.PluginError, "for 1 results"),
    ("attribute", errors.PluginError, "cannot be written down"),
    ("not a counter", errors.WrongType, "has to be a counter, it is int32"),
    ("still", errors.WrongDtype, "stands still"),
    ("not constant", errors.NotConstant, "factor has to be known"),
    ("dtype", errors.WrongDtype, "of fp32"),
])  # fmt: skip
def test_what_is_wrong_is_said_at_the_kernel_s_line(
    what: str, kind: type[errors.RemoraError], message: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps what it meets
        build(wrong, "cuda:90", x="*fp32", y="*fp32", n="i32", WHAT=what, B=128)
    error = kind.of(caught.value)
    assert error is not None, caught.value
    assert message in error.what
    if what != "attribute":
        assert line_of(wrong, f"# {what}") in error.where
    assert build(tensors, "cuda:90", x="*fp32", y="*fp32", B=128)


def test_a_value_of_a_type_that_its_uses_do_not_take() -> None:
    with pytest.raises(errors.InvalidIR):
        build(wrong, "cuda:90", x="*fp32", y="*fp32", n="i32", WHAT="another type", B=128)


def test_an_operation_for_another_target() -> None:
    given = {"x": "*fp32", "y": "*fp32", "n": "i32", "WHAT": "elsewhere", "B": 128}
    assert build(wrong, "hip:gfx942", **given)


def test_two_operations_of_one_name() -> None:
    with pytest.raises(errors.PluginError, match="exists already") as caught:

        @remora.op("mine.scale")
        def other(call: Any) -> None:
            """Another."""

    assert "dsl.mine" in caught.value.where
    assert caught.value.hint


def test_two_operations_of_one_name_in_one_file() -> None:
    @remora.op("here.first")
    def one(call: Any) -> None:
        """One."""

    with pytest.raises(errors.PluginError, match="exists already"):

        @remora.op("here.first")
        def two(call: Any) -> None:
            """Two."""

    def again() -> None:
        @remora.op("here.second")
        def same(call: Any) -> None:
            """A module that is loaded again."""

    again()
    again()


@pytest.mark.parametrize("name", ["scale", "mine.", ".scale", "mine.two words", "mine.a.b", ""])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(errors.PluginError, match="not a name"):
        remora.op(name)(lambda call: None)


def test_two_faces_of_one_kind() -> None:
    @remora.op("here.faces")
    def faces(call: Any) -> None:
        """Two of each."""

    faces.reference(lambda machine: None)
    with pytest.raises(errors.PluginError, match="has a reference meaning"):
        faces.reference(lambda machine: None)
    faces.lowering("cuda", "hip")(lambda *_: None)
    with pytest.raises(errors.PluginError, match="two lowerings for hip"):
        faces.lowering("hip")(lambda *_: None)


def test_without_its_pipeline_an_operation_is_refused() -> None:
    """Another plugin's pass could lower it, but the kernel's key would not know its file."""
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import remora.tlx
from dsl.test_third_party import tensors
from tlx.building import build
from remora.errors import PluginError
try:
    build(tensors, "cuda:90", x="*fp32", y="*fp32", B=128)
except Exception as error:
    print(PluginError.of(error))
"""
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script, tests], capture_output=True, text=True, check=False
    )
    assert "mine.scale: no pipeline in force lowers it" in done.stdout, done.stderr
    assert 'lowering_pipeline("mine", "dsl.mine")' in done.stdout


# --- the key -------------------------------------------------------------------------------------

_PLUGIN = """
import remora, triton, triton.language as tl

@remora.op("theirs.change")
def change(call, x):
    return call.emit([x], [x.type])

@change.lowering("cuda")
def lower(op, builder, lowering):
    (x,) = op.operands
    return builder.value("arith.{operation}", [x, x], x.type)

pipeline = remora.lowering_pipeline("theirs", __name__)

@triton.jit
def kernel(x, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(x + at, change(tl.load(x + at)))
"""

_BUILD = """
import sys
sys.path[:0] = sys.argv[1:3]
import remora, theirs
from tlx.building import build
with remora.use(theirs.pipeline):
    compiled = build(theirs.kernel, "cuda:90", x="*fp32", B=128)
print(compiled.hash, "mul.f32" in compiled.asm["ptx"])
"""


def test_a_kernel_is_compiled_anew_when_the_file_of_an_operation_changes(tmp_path: Path) -> None:
    def run(operation: str) -> list[str]:
        (tmp_path / "theirs.py").write_text(_PLUGIN.replace("{operation}", operation))
        return subprocess.run(
            [sys.executable, "-c", _BUILD, str(tmp_path), str(Path(__file__).parents[1])],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        ).stdout.split()  # fmt: skip

    added, multiplied = run("addf"), run("mulf")
    assert (added[1], multiplied[1]) == ("False", "True")
    assert added[0] != multiplied[0]
    assert run("addf") == added
