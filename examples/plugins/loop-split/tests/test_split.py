"""The pass and its plugin beside what the other files show."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import remora_loop_split
from compiling import TARGETS, parse, stages_of
from remora_loop_split.split import SplitLoops

import remora
from remora.pipeline import run_pass

KERNEL = """
module {{
  tt.func public @kernel(%p: !tt.ptr<{kind}>, %n: i32, %b: i32) {{
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    {before}
    scf.for %i = %zero to %n step %one : i32 {{
      {inside}
      scf.if %c {{
        tt.store %p, %x : !tt.ptr<{kind}>
      }}
      scf.yield
    }} {attributes}
    tt.return
  }}
}}
"""


def split(inside: str, before: str = "", attributes: str = "", kind: str = "i32") -> str:
    """What the pass makes of a loop."""
    text = KERNEL.format(inside=inside, before=before, attributes=attributes, kind=kind)
    return str(run_pass(SplitLoops(min_body=0), parse(text), place="a test"))


def test_plugin() -> None:
    plugin = remora_loop_split.plugin
    assert plugin.name == "loop-split"
    assert [p.load() for p in plugin.passes if isinstance(p, remora.PassRef)] == [SplitLoops()]
    plugin.activate()
    assert plugin.is_active
    plugin.deactivate()
    assert not plugin.is_active


@pytest.mark.parametrize("target", TARGETS)
def test_the_place_is_there(target: str) -> None:
    from remora.pipeline.stage import anchors, record

    _, _, stages = stages_of(target)
    names = list(anchors(record(stages["ttir"])))
    (edit,) = remora_loop_split.pipeline(max_splits=2).edits
    assert edit.place == "before ttir/canonicalizer"
    assert names.index("inliner") < names.index("canonicalizer") < names.index("loop_unroll")


def test_attributes_are_on_both_loops() -> None:
    attributes = '{tt.num_stages = 5 : i32, tt.disallow_acc_multi_buffer, mine = "kept"}'
    new = split(
        "%c = arith.cmpi slt, %i, %b : i32\n%x = arith.addi %i, %b : i32", attributes=attributes
    )
    found = re.findall(r"} \{(.*)\}", new)
    assert len(found) == 2
    assert found[0] == found[1]
    assert all(word in found[0] for word in ("tt.num_stages = 5", "multi_buffer", '"kept"'))


def test_a_bound_computed_in_the_loop() -> None:
    new = split(
        "%m = arith.muli %b, %n : i32\n%c = arith.cmpi slt, %i, %m : i32\n"
        "%x = arith.addi %i, %b : i32"
    )
    assert new.count("scf.for") == 2
    assert new.index("arith.muli") < new.index("scf.for")


def test_a_comparison_that_may_wrap_is_kept_where_it_may() -> None:
    """n - 3 i can pass the least number, for an n below zero; the first loop ends before."""
    new = split(
        "%three = arith.constant 3 : i32\n%x = arith.muli %i, %three : i32\n"
        "%left = arith.subi %b, %x : i32\n%c = arith.cmpi sgt, %left, %zero : i32"
    )
    first, second = new.split("scf.for")[1:]
    assert "arith.cmpi" not in first
    assert "arith.cmpi sgt" in second


@pytest.mark.parametrize("attribute", ["tt.warp_specialize", "tt.flatten"])
def test_loops_that_triton_takes_apart_are_left_alone(attribute: str) -> None:
    inner = """%x = arith.addi %i, %b : i32
      %c = arith.cmpi slt, %i, %b : i32
      scf.for %j = %zero to %n step %one : i32 {
        %d = arith.cmpi slt, %j, %b : i32
        scf.if %d {
          tt.store %p, %j : !tt.ptr<i32>
        }
      }"""
    assert split(inner, attributes=f"{{{attribute}}}").count("scf.for") == 2
    assert split(inner).count("scf.for") > 2


def test_sixty_four_bits_of_known_size() -> None:
    new = split(
        "%x = arith.extsi %i : i32 to i64\n%c = arith.cmpi slt, %x, %wide : i64",
        before="%wide = arith.extsi %b : i32 to i64",
        kind="i64",
    )
    assert new.count("scf.for") == 2
    comparisons = re.findall(r"arith.cmpi \w+, %arg3", new)
    assert not comparisons


def chain(length: int) -> str:
    lines = ["%y0 = arith.addi %i, %b : i32"]
    lines += [f"%y{k + 1} = arith.addi %y{k}, %y{k} : i32" for k in range(length)]
    lines += [f"%x = arith.addi %y{length}, %b : i32", "%c = arith.cmpi slt, %x, %b : i32"]
    return "\n".join(lines)


def test_long_chains_are_not_followed() -> None:
    assert split(chain(2000)).count("scf.for") == 1


def test_time_grows_with_the_size() -> None:
    def seconds(length: int) -> float:
        module: Any = parse(
            KERNEL.format(inside=chain(length), before="", attributes="", kind="i32")
        )
        started = time.perf_counter()
        run_pass(SplitLoops(), module, place="a test")
        return time.perf_counter() - started

    seconds(10)
    short = min(seconds(1000) for _ in range(2))
    assert min(seconds(4000) for _ in range(2)) < 12 * short
