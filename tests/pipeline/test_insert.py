"""Python passes in the middle of a stage: where they run, and what they see."""

from __future__ import annotations

import pytest
from compiling import (
    SEEN,
    TARGETS,
    Look,
    Multiply,
    axpy,
    code_of,
    compile_kernel,
    dot,
    parse,
    stages_of,
)
from triton.backends.compiler import Language

from remora import host, ir
from remora.errors import AnchorNotFound, PipelineError
from remora.pipeline import PassRef, Pipeline, anchors, record, use


def plain(module) -> str:
    """The text that a Python pass sees of a Triton module."""
    return ir.write(ir.read(host.generic_text(module)), locations=False)


def after_each_pass(module, passes) -> list[str]:
    """The module's text before the first stock pass, and after each: run one by one."""
    from triton._C.libtriton import ir as triton_ir

    texts = [plain(module)]
    for stock in passes:
        manager = triton_ir.pass_manager(module.context)
        stock.add_to(manager)
        manager.run(module, "test")
        texts.append(plain(module))
    return texts


@pytest.mark.parametrize("kernel", [axpy, dot], ids=lambda k: k.fn.__name__)
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx950"])
def test_runs_at_its_place(target, kernel, fresh_cache):
    """At every place of ttir the pass sees what the stock passes up to there have made."""
    stock = compile_kernel(target, kernel, 32)
    passes = record(stages_of(target)[2]["ttir"])
    expected = after_each_pass(parse(stock.asm["source"], target), passes)
    assert expected[0] != expected[-1]

    names = list(anchors(passes))
    pipeline = Pipeline("everywhere").insert(Look("start"), at="ttir/start")
    for name in names:
        pipeline = pipeline.insert(Look(f"before {name}"), before=f"ttir/{name}")
        pipeline = pipeline.insert(Look(f"after {name}"), after=f"ttir/{name}")
    pipeline = pipeline.insert(Look("end"), at="ttir/end")
    SEEN.clear()
    with use(pipeline):
        edited = compile_kernel(target, kernel, 32)

    seen = dict(SEEN)
    assert len(seen) == len(SEEN) == 2 * len(names) + 2
    assert seen["start"] == expected[0]
    assert seen["end"] == expected[-1]
    for index, name in enumerate(names):
        assert seen[f"before {name}"] == expected[index], name
        assert seen[f"after {name}"] == expected[index + 1], name
    assert code_of(edited) == code_of(stock)


@pytest.mark.parametrize("stage", ["ttgir", "llir"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_place_of_a_stage(target, stage, fresh_cache):
    """Looking between any two passes of a stage changes no byte of the code."""
    stock = compile_kernel(target, dot, 32)
    names = list(anchors(record(stages_of(target)[2][stage])))
    pipeline = Pipeline("everywhere")
    for name in names:
        pipeline = pipeline.insert(Look(name), before=f"{stage}/{name}")
    pipeline = pipeline.insert(Look("end"), at=f"{stage}/end")
    SEEN.clear()
    with use(pipeline):
        edited = compile_kernel(target, dot, 32)
    assert [tag for tag, _ in SEEN] == [*names, "end"]
    assert code_of(edited) == code_of(stock)
    if stage == "ttgir":
        seen = dict(SEEN)
        assert "ttg.num-warps" not in seen["convert_to_ttgpuir"]
        assert "ttg.num-warps" in seen["coalesce"]
        assert seen["end"] == plain(parse(stock.asm["ttgir"], target))


def test_inserts_at_one_place_run_in_their_order(fresh_cache):
    pipeline = Pipeline("order")
    for tag in "abc":
        pipeline = pipeline.insert(Look(tag), after="ttir/cse")
    SEEN.clear()
    with use(pipeline, Pipeline("later").insert(Look("d"), after="ttir/cse")):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["a", "b", "c", "d"]


def test_two_stages(fresh_cache):
    pipeline = (
        Pipeline("two")
        .insert(Look("late"), after="ttgir/coalesce")
        .insert(Look("early"), before="ttir/inliner")
    )
    SEEN.clear()
    with use(pipeline):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["early", "late"]


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("stage", ["ttir", "ttgir"])
def test_what_a_pass_changes_reaches_the_machine(target, stage, fresh_cache):
    stock = compile_kernel(target)
    with use(Pipeline("multiply").insert(Multiply(), at=f"{stage}/end")):
        edited = compile_kernel(target)
    assembly = "ptx" if target.startswith("cuda") else "amdgcn"
    assert "arith.addf" in stock.asm["ttgir"]
    assert "arith.addf" not in edited.asm["ttgir"]
    assert edited.asm[assembly] != stock.asm[assembly]


def test_a_pass_by_name_is_imported_when_it_runs(fresh_cache):
    pipeline = Pipeline("named").insert(
        PassRef("compiling:Look", (("tag", "by name"),)), after="ttir/cse"
    )
    SEEN.clear()
    with use(pipeline):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["by name"]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (PassRef("nowhere:Look"), "cannot be imported: ModuleNotFoundError"),
        (PassRef("compiling:Nothing"), "cannot be imported: AttributeError"),
        (PassRef("compiling:Look", (("colour", 3),)), "cannot be made: TypeError"),
    ],
)
def test_a_wrong_reference(reference, words, fresh_cache):
    pipeline = Pipeline("wrong").insert(reference, after="ttir/cse")
    with use(pipeline), pytest.raises(PipelineError, match=words):
        compile_kernel("cuda:90")
    compile_kernel("cuda:90")


def test_an_unknown_anchor_names_the_nearest(fresh_cache):
    pipeline = Pipeline("typo").insert(Look(), after="ttir/cs")
    with use(pipeline), pytest.raises(AnchorNotFound, match="ttir/cs does not exist") as caught:
        compile_kernel("cuda:90")
    assert "ttir/cse" in caught.value.hint
    compile_kernel("cuda:90")


def test_a_repeated_anchor_without_its_number(fresh_cache):
    pipeline = Pipeline("twice").insert(Look(), after="ttgir/canonicalizer")
    with use(pipeline), pytest.raises(AnchorNotFound, match="runs more than once") as caught:
        compile_kernel("cuda:90")
    assert "ttgir/canonicalizer#1" in caught.value.hint


@pytest.mark.parametrize("stage", ["ttirr", "glir"])
def test_a_stage_that_is_not(stage, fresh_cache):
    pipeline = Pipeline("nowhere").insert(Look(), at=f"{stage}/start")
    with use(pipeline), pytest.raises(AnchorNotFound, match=f"'{stage}' does not exist") as caught:
        compile_kernel("cuda:90")
    assert caught.value.hint.startswith("stages with passes: ttir, ttgir, llir;")


@pytest.mark.parametrize(
    ("target", "stage"), [("cuda:90", "ptx"), ("cuda:90", "cubin"), ("hip:gfx950", "amdgcn")]
)
def test_a_stage_of_text(target, stage, fresh_cache):
    pipeline = Pipeline("text").insert(Look(), at=f"{stage}/start")
    with use(pipeline), pytest.raises(AnchorNotFound, match="holds text and runs no pass"):
        compile_kernel(target)


def test_a_pass_with_a_trigger_does_not_disturb_a_language_without_its_stage():
    """A plugin's ttir pass is in force while a Gluon kernel, which has no ttir, compiles."""
    with use(Pipeline("p").insert(PassRef("compiling:Look", trigger="word"), at="ttir/start")):
        for target in TARGETS:
            assert "llir" in stages_of(target, Language.GLUON)[2]
    with (
        use(Pipeline("p").insert(Look(), at="ttir/start")),
        pytest.raises(AnchorNotFound, match="'ttir' does not exist"),
    ):
        stages_of("cuda:90", Language.GLUON)


def test_without_its_trigger_a_module_goes_through_the_stock_stage(fresh_cache, monkeypatch):
    from remora.pipeline import editing

    SEEN.clear()
    stock = compile_kernel("cuda:90")
    waiting = PassRef("compiling:Look", (("tag", "x"),), trigger="tt.histogram")
    with monkeypatch.context() as patched, use(Pipeline("w").insert(waiting, at="ttir/start")):
        patched.setattr(editing, "instrument", lambda *_: pytest.fail("the stage was rebuilt"))
        edited = compile_kernel("cuda:90")
    assert SEEN == []
    assert code_of(edited) == code_of(stock)

    present = PassRef("compiling:Look", (("tag", "x"),), trigger="tt.load")
    with use(Pipeline("p").insert(present, at="ttir/start")):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["x"]


def test_only_the_triggered_of_two_runs(fresh_cache):
    pipeline = (
        Pipeline("two")
        .insert(PassRef("compiling:Look", (("tag", "no"),), trigger="tt.histogram"), at="ttir/end")
        .insert(PassRef("compiling:Look", (("tag", "yes"),), trigger="tt.load"), at="ttir/end")
    )
    SEEN.clear()
    with use(pipeline):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["yes"]


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"before": "ttir/cse", "after": "ttir/cse"},
        {"before": "cse"},
        {"after": "ttir/"},
        {"after": "/cse"},
        {"after": ""},
        {"at": "ttir"},
        {"at": "ttir/cse"},
        {"at": "ttir/"},
    ],
)
def test_a_place_that_is_none(place):
    with pytest.raises(PipelineError) as caught:
        Pipeline("mine").insert(Look(), **place)
    assert "pipeline 'mine', insert of look" in caught.value.where


@pytest.mark.parametrize("subject", ["cse", Look, None, lambda module: None])
def test_not_a_pass(subject):
    for make in (
        lambda: Pipeline("mine").insert(subject, at="ttir/start"),
        lambda: Pipeline("mine").replace("ttir/cse", subject),
        lambda: Pipeline("mine").passes("ttir", subject),
    ):
        with pytest.raises(PipelineError, match="is not a pass") as caught:
            make()
        assert "remora.stock(name)" in caught.value.hint


@pytest.mark.parametrize("wrong", ["look", None, Look()])
def test_use_takes_pipelines(wrong):
    with pytest.raises(PipelineError, match="use takes pipelines"), use(wrong):
        pass


def test_a_pipeline_is_a_value():
    empty = Pipeline("mine")
    one = empty.insert(Look(), at="ttir/start")
    assert empty.edits == ()
    assert len(one.edits) == 1


def test_options_reach_the_edited_stage(fresh_cache):
    with use(Pipeline("look").insert(Look(), at="ttgir/start")):
        edited = compile_kernel("cuda:90", num_warps=8)
    assert edited.metadata.num_warps == 8
    assert '"ttg.num-warps" = 8' in edited.asm["ttgir"]
