"""The stock passes of each stage, and the names under which edits find them."""

from __future__ import annotations

import pytest
from compiling import SEEN, TARGETS, Look, compile_kernel, dot, stages_of
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.compiler import Language

import remora
from remora.errors import AnchorNotFound, PipelineError
from remora.pipeline import Pipeline, StockPass, anchors, record, use
from remora.pipeline.plan import Plan

# Some that every release has, by stage.
TRITON_STAGES = {
    "ttir": {"inliner", "canonicalizer", "combine", "cse", "symbol_dce", "loop_unroll"},
    "ttgir": {"convert_to_ttgpuir", "coalesce", "accelerate_matmul", "pipeline", "cse"},
    "llir": {"scf_to_cf", "inliner", "to_llvmir"},
}
GLUON_STAGES = {
    "ttgir": {"inliner", "resolve_auto_encodings", "sccp", "loop_aware_cse"},
    "llir": TRITON_STAGES["llir"],
}


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("target", TARGETS)
def test_every_stage_with_passes_is_recorded(target, language):
    _, _, stages = stages_of(target, language)
    for stage, expected in (TRITON_STAGES if language is Language.TRITON else GLUON_STAGES).items():
        names = list(anchors(record(stages[stage])))
        assert expected <= {name.partition("#")[0] for name in names}
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("target", TARGETS)
def test_recording_leaves_the_backend_alone(target):
    from triton.backends import backends

    module = backends["nvidia" if target.startswith("cuda") else "amd"].compiler
    before = {k: id(v) for k, v in vars(__import__(module.__module__, fromlist="_")).items()}
    _, _, stages = stages_of(target)
    record(stages["ttgir"])
    after = {k: id(v) for k, v in vars(__import__(module.__module__, fromlist="_")).items()}
    assert before == after


def test_recording_twice_gives_the_same():
    _, _, stages = stages_of("cuda:90")
    first, second = ([p.name for p in record(stages["ttgir"])] for _ in range(2))
    assert first == second


def test_a_built_in_function_is_no_stage():
    with pytest.raises(PipelineError, match="has to be a Python function"):
        record(len)


@pytest.mark.parametrize("target", ["cuda:90", "cuda:100", "hip:gfx942", "hip:gfx950"])
def test_the_dry_run_lists_what_really_runs(target, fresh_cache):
    """A Python pass at the end of each stage runs only if the stage ran the listed passes."""
    SEEN.clear()
    pipeline = Pipeline("ends")
    for stage in TRITON_STAGES:
        pipeline = pipeline.insert(Look(stage), at=f"{stage}/end")
    with use(pipeline):
        compile_kernel(target, dot, 32)
    assert [tag for tag, _ in SEEN] == list(TRITON_STAGES)


@given(st.lists(st.sampled_from("abcd"), max_size=12))
def test_numbering(names):
    named = list(anchors([StockPass(name, lambda manager: None, ()) for name in names]))
    assert [n.partition("#")[0] for n in named] == names
    assert len(set(named)) == len(named)
    for name in set(names):
        numbers = [n.partition("#")[2] for n in named if n.partition("#")[0] == name]
        expected = [str(i + 1) for i in range(len(numbers))] if len(numbers) > 1 else [""]
        assert numbers == expected


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.data())
def test_position(names, data):
    named = list(anchors([StockPass(name, lambda manager: None, ()) for name in names]))
    index = data.draw(st.integers(0, len(named) - 1))
    look = Look()
    pipeline = remora.Pipeline("look").insert(look, before=f"ttir/{named[index]}")
    assert Plan.of(named, pipeline.edits).due == {index: [look]}
    pipeline = remora.Pipeline("look").insert(look, after=f"ttir/{named[index]}")
    assert Plan.of(named, pipeline.edits).due == {index + 1: [look]}
    pipeline = remora.Pipeline("look").insert(look, at="ttir/start")
    assert Plan.of(named, pipeline.edits).due == {0: [look]}
    pipeline = remora.Pipeline("look").insert(look, at="ttir/end")
    assert Plan.of(named, pipeline.edits).due == {len(named): [look]}


def plan(names: list[str], **place: str) -> Plan:
    """Where an insert goes in a stage whose passes go by ``names``."""
    return Plan.of(names, remora.Pipeline("look").insert(Look(), **place).edits)


def test_an_unknown_anchor_gives_the_nearest():
    with pytest.raises(AnchorNotFound, match="ttir/loop_unrol does not exist") as caught:
        plan(["inliner", "loop_unroll", "cse"], after="ttir/loop_unrol")
    assert caught.value.hint == "nearest: ttir/loop_unroll"
    assert "look after ttir/loop_unrol" in caught.value.where


def test_an_anchor_like_none_gives_all():
    with pytest.raises(AnchorNotFound) as caught:
        plan(["inliner", "cse"], after="ttir/zzz")
    assert caught.value.hint == "the stage ttir runs: inliner, cse"


def test_a_repeated_anchor_wants_its_number():
    with pytest.raises(AnchorNotFound, match="ttir/cse runs more than once") as caught:
        plan(["cse#1", "inliner", "cse#2"], before="ttir/cse")
    assert caught.value.hint == "nearest: ttir/cse#1, ttir/cse#2"


def test_a_stage_without_passes_takes_no_insert():
    with pytest.raises(AnchorNotFound, match="the stage glir runs no pass"):
        plan([], at="glir/start")
    with pytest.raises(AnchorNotFound, match="the stage glir runs no pass"):
        Plan.of([], Pipeline("own").passes("glir", Look()).edits)
