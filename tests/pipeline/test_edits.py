"""Every kind of edit: that it does what it says, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
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
from gluon_kernels import compile_gluon
from triton.backends.compiler import Language

from remora import host
from remora.errors import (
    AnchorNotFound,
    ContradictingEdits,
    InvalidIR,
    OverrideRaised,
    OverrideReturned,
    PipelineError,
)
from remora.pipeline import Pipeline, anchors, record, stock, use

BOTH = ["cuda:90", "hip:gfx950"]


def assembly(target: str) -> str:
    return "ptx" if target.startswith("cuda") else "amdgcn"


def binary(target: str) -> str:
    return "cubin" if target.startswith("cuda") else "hsaco"


def by_hand(target: str, text: str, passes: list[Any]) -> str:
    """A module's text after stock passes, run without Remora."""
    from triton._C.libtriton import ir

    module = parse(text, target)
    manager = ir.pass_manager(module.context)
    for stock_pass in passes:
        stock_pass.add_to(manager)
    manager.run(module, "by hand")
    return host.generic_text(module, locations=False)


def edited(target: str, text: str, stage: str, pipeline: Pipeline, folder: Any) -> str:
    """The same through a stage with edits: Triton compiles from a file."""
    before = {"ttgir": "ttir", "llir": "ttgir"}[stage]
    path = folder / f"module.{before}"
    path.write_text(text)
    with use(pipeline):
        compiled = triton.compile(str(path), target=TARGETS[target])
    return host.generic_text(parse(compiled.asm[stage], target), locations=False)


# --- disable, replace, stock passes -------------------------------------------------------------

LEFT_OUT = {
    "cuda:80": ["prefetch", "pipeline"],
    "cuda:90": ["coalesce", "pipeline", "reduce_data_duplication", "remove_layout_conversions#3"],
    "cuda:100": ["warp_specialize"],
    "hip:gfx942": ["in_thread_transpose"],
    "hip:gfx950": ["coalesce", "pipeline", "convert_to_buffer_ops", "canonicalize_pointers"],
}


def names_of(target: str, stage: str) -> list[str]:
    return list(anchors(record(stages_of(target)[2][stage])))


@pytest.mark.parametrize(
    ("target", "anchor"), [(t, a) for t, several in LEFT_OUT.items() for a in several]
)
def test_disable_is_the_list_without_the_pass(target, anchor, fresh_cache, tmp_path):
    text = compile_kernel(target, dot, 32).asm["ttir"]
    passes = record(stages_of(target)[2]["ttgir"])
    without = [
        p for p, name in zip(passes, names_of(target, "ttgir"), strict=True) if name != anchor
    ]
    assert len(without) == len(passes) - 1
    pipeline = Pipeline("without").disable(f"ttgir/{anchor}")
    assert edited(target, text, "ttgir", pipeline, tmp_path) == by_hand(target, text, without)


@pytest.mark.parametrize("target", BOTH)
def test_replace_by_a_python_pass(target, fresh_cache):
    SEEN.clear()
    with use(Pipeline("r").replace("ttgir/coalesce", Look("instead"))):
        replaced = compile_kernel(target, dot, 32)
    assert [tag for tag, _ in SEEN] == ["instead"]
    with use(Pipeline("d").disable("ttgir/coalesce")):
        assert code_of(compile_kernel(target, dot, 32)) == code_of(replaced)


@pytest.mark.parametrize("target", BOTH)
def test_replace_by_the_same_stock_pass_changes_nothing(target, fresh_cache):
    plain = code_of(compile_kernel(target, dot, 32))
    conversion = next(p for p in record(stages_of(target)[2]["ttgir"]) if "convert_to" in p.name)
    same = stock("ttir.convert_to_ttgpuir", *conversion.arguments)
    with use(Pipeline("r").replace("ttgir/convert_to_ttgpuir", same)):
        assert code_of(compile_kernel(target, dot, 32)) == plain
    eight_warps = (conversion.arguments[0], 8, *conversion.arguments[2:])
    with use(
        Pipeline("r").replace("ttgir/convert_to_ttgpuir", stock("convert_to_ttgpuir", *eight_warps))
    ):
        assert '"ttg.num-warps" = 8' in compile_kernel(target, dot, 32).asm["ttgir"]


@pytest.mark.parametrize("target", BOTH)
def test_insert_of_stock_passes(target, fresh_cache, tmp_path):
    text = compile_kernel(target, dot, 32).asm["ttir"]
    passes = record(stages_of(target)[2]["ttgir"])
    at = next(i for i, p in enumerate(passes) if p.name == "coalesce") + 1
    unroll, cse = stock("ttir.loop_unroll"), stock("common.cse")
    expected = by_hand(target, text, [*passes[:at], unroll, cse, *passes[at:]])
    pipeline = (
        Pipeline("more").insert(unroll, after="ttgir/coalesce").insert(cse, after="ttgir/coalesce")
    )
    assert edited(target, text, "ttgir", pipeline, tmp_path) == expected


@pytest.mark.parametrize("target", BOTH)
def test_passes_of_one_s_own(target, fresh_cache, tmp_path):
    """The announcement's full pipeline: a conversion, and what one wants of the rest."""
    text = compile_kernel(target).asm["ttir"]
    recorded = {p.name: p for p in record(stages_of(target)[2]["ttgir"])}
    wanted = ["convert_to_ttgpuir", "coalesce", "remove_layout_conversions", "cse"]
    own = [stock(name, *recorded[name].arguments) for name in wanted]
    pipeline = Pipeline("own").passes("ttgir", *own)
    expected = by_hand(target, text, [recorded[name] for name in wanted])
    assert edited(target, text, "ttgir", pipeline, tmp_path) == expected
    with use(pipeline):
        assert binary(target) in compile_kernel(target).asm


def test_passes_mixed_with_python(fresh_cache):
    SEEN.clear()
    names = ["inliner", "canonicalizer", "cse"]
    mixed = [Look("first"), *(stock(f"common.{n}") for n in names), Look("last")]
    with use(Pipeline("own").passes("ttir", *mixed)):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["first", "last"]


def test_no_pass_at_all(fresh_cache):
    with use(Pipeline("none").passes("ttir")):
        compiled = compile_kernel("cuda:90")
    assert compiled.asm["ttir"].count("arith.addi") == parse(
        compiled.asm["source"]
    ).str_nodebug().count("arith.addi")


@pytest.mark.parametrize(
    ("reference", "what", "hint"),
    [
        (
            stock("common.cse", 3),
            "'common.cse' does not take these arguments",
            "takes no arguments",
        ),
        (
            stock("convert_to_ttgpuir"),
            "does not take these arguments",
            "it takes str, int, int, int",
        ),
        (stock("convert_to_ttgpuir", 1, 2, 3, 4), "does not take these", "it takes str, int"),
        (stock("common.csee"), "no stock pass 'common.csee'", "common.cse"),
        (stock("canonicalizer"), "several stock passes are named 'canonicalizer'", "gluon.canon"),
    ],
)
def test_a_wrong_stock_pass(reference, what, hint, fresh_cache):
    with (
        use(Pipeline("wrong").insert(reference, at="ttir/start")),
        pytest.raises(PipelineError) as caught,
    ):
        compile_kernel("cuda:90")
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert "cubin" in compile_kernel("cuda:90").asm


# --- override ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("stage", ["ttir", "ttgir"])
def test_override_of_a_module(target, stage, fresh_cache):
    plain = code_of(compile_kernel(target))
    calls = []

    def look(module, compile_):
        calls.append(str(module))
        return compile_(module)

    with use(Pipeline("o").override(stage, look)):
        assert code_of(compile_kernel(target)) == plain
    assert len(calls) == 1


def test_override_by_another_module(fresh_cache):
    """A function may parse what it returns itself."""

    def multiplied(module, compile_):
        from triton._C.libtriton import ir

        text = str(compile_(module)).replace("arith.addf", "arith.mulf")
        path = fresh_cache.parent / "other.mlir"
        path.write_text(text)
        return ir.parse_mlir_module(str(path), module.context)

    with use(Pipeline("o").override("ttgir", multiplied)):
        compiled = compile_kernel("cuda:90")
    assert "arith.mulf" in compiled.asm["ttgir"]
    assert "mul.f32" in compiled.asm["ptx"]


@pytest.mark.parametrize("target", BOTH)
def test_override_of_text(target, fresh_cache):
    stage = assembly(target)

    def commented(text, compile_):
        return compile_(text) + "\n// overridden\n"

    plain = compile_kernel(target)
    with use(Pipeline("o").override(stage, commented)):
        compiled = compile_kernel(target)
    assert compiled.asm[stage].endswith("// overridden\n")
    assert binary(target) in compiled.asm
    assert plain.asm[stage] in compiled.asm[stage]


@pytest.mark.parametrize("target", BOTH)
def test_override_of_llvm_ir(target, fresh_cache):
    def subtracted(module, compile_):
        return re.sub(r"= fadd ", "= fsub ", compile_(module))

    def fused(module, compile_):
        return re.sub(r"= fmul |= tail call float @llvm.fma", lambda m: m[0], compile_(module))

    with use(Pipeline("a").override("llir", subtracted), Pipeline("b").override("llir", fused)):
        compiled = compile_kernel(target)
    assert "fadd" not in compiled.asm["llir"]


@pytest.mark.parametrize("target", BOTH)
def test_override_of_the_binary(target, fresh_cache):
    stage = binary(target)

    def longer(text, compile_):
        return compile_(text) + b"REMORA"

    with use(Pipeline("o").override(stage, longer)):
        assert compile_kernel(target).asm[stage].endswith(b"REMORA")


def test_the_later_override_is_around_the_earlier(fresh_cache):
    def add(word):
        return lambda text, compile_: compile_(text) + f"// {word}\n"

    pipeline = Pipeline("o").override("ptx", add("inner")).override("ptx", add("outer"))
    with use(pipeline):
        assert compile_kernel("cuda:90").asm["ptx"].endswith("// inner\n// outer\n")


def test_override_and_edits_of_passes(fresh_cache):
    """compile_ is the stage with the other edits."""
    SEEN.clear()
    pipeline = (
        Pipeline("o")
        .override("ttgir", lambda module, compile_: compile_(module))
        .insert(Look("inside"), at="ttgir/start")
    )
    with use(pipeline):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["inside"]


@pytest.mark.parametrize(
    ("stage", "result", "words"),
    [
        ("ttir", "text", "returned str, the stage makes module"),
        ("ttgir", None, "returned NoneType, the stage makes module"),
        ("llir", b"", "returned bytes, the stage makes str"),
        ("ptx", None, "returned NoneType, the stage makes str"),
        ("cubin", "text", "returned str, the stage makes bytes"),
    ],
)
def test_an_override_that_returns_another_kind(stage, result, words, fresh_cache):
    plain = code_of(compile_kernel("cuda:90"))
    with (
        use(Pipeline("bad").override(stage, lambda value, compile_: result)),
        pytest.raises(OverrideReturned, match=words) as caught,
    ):
        compile_kernel("cuda:90")
    assert f"override of {stage} by" in caught.value.where
    assert "pipeline bad" in caught.value.where
    assert code_of(compile_kernel("cuda:90")) == plain


@pytest.mark.parametrize("stage", ["ttir", "ptx"])
def test_an_override_that_raises(stage, fresh_cache):
    def broken(value, compile_):
        raise KeyError("lost")

    with (
        use(Pipeline("bad").override(stage, broken)),
        pytest.raises(OverrideRaised, match="raised KeyError: 'lost'") as caught,
    ):
        compile_kernel("cuda:90")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "broken (pipeline bad)" in caught.value.where


def test_an_override_that_leaves_invalid_ir(fresh_cache):
    def other_warps(module, compile_):
        from triton._C.libtriton import ir

        compiled = compile_(module)  # the layouts in it are of 4 warps
        compiled.set_attr("ttg.num-warps", ir.builder(module.context).get_int32_attr(32))
        return compiled

    with (
        use(Pipeline("bad").override("ttgir", other_warps)),
        pytest.raises(InvalidIR, match="warps") as caught,
    ):
        compile_kernel("cuda:90")
    assert "override of ttgir" in caught.value.where


def test_an_override_is_a_function():
    with pytest.raises(PipelineError, match="is not a function"):
        Pipeline("bad").override("ptx", "text")  # type: ignore[arg-type]


# --- sums and contradictions ---------------------------------------------------------------------


def test_a_sum_keeps_the_order(fresh_cache):
    a, b = (Pipeline(t).insert(Look(t), after="ttir/cse") for t in "ab")
    for total, expected in ((a + b, ["a", "b"]), (b + a, ["b", "a"])):
        SEEN.clear()
        with use(total):
            compile_kernel("cuda:90")
        assert [tag for tag, _ in SEEN] == expected
    assert (a + b).name == "a + b"
    assert (a + b).key != (b + a).key
    with pytest.raises(TypeError):
        a + 1  # type: ignore[operator]


CSE = stock("common.cse")
CONTRADICTIONS = [
    (
        Pipeline("a").replace("ttgir/coalesce", CSE),
        Pipeline("b").replace("ttgir/coalesce", Look()),
        ["replace ttgir/coalesce by stock pass common.cse (pipeline a)", "look (pipeline b)"],
    ),
    (
        Pipeline("a").replace("ttgir/coalesce", CSE),
        Pipeline("b").disable("ttgir/coalesce"),
        ["replace ttgir/coalesce", "disable ttgir/coalesce (pipeline b)"],
    ),
    (
        Pipeline("a").passes("ttgir", CSE),
        Pipeline("b").insert(Look(), at="ttgir/end"),
        ["passes of ttgir: stock pass common.cse (pipeline a)", "insert of look (at the end"],
    ),
    (
        Pipeline("a").passes("ttgir", CSE),
        Pipeline("b").passes("ttgir"),
        ["(pipeline a)", "(pipeline b)"],
    ),
]


@pytest.mark.parametrize(("a", "b", "words"), CONTRADICTIONS)
def test_contradictions_name_both(a, b, words, fresh_cache):
    for total in ((a, b), (a + b,)):
        with use(*total), pytest.raises(ContradictingEdits) as caught:
            compile_kernel("cuda:90")
        for word in words:
            assert word.replace("(at the end", "at the end") in caught.value.what
        assert caught.value.where == "ttgir"


def test_what_does_not_contradict(fresh_cache):
    SEEN.clear()
    one = Pipeline("a").disable("ttgir/coalesce")
    two = Pipeline("b").disable("ttgir/coalesce").insert(Look("x"), before="ttgir/coalesce")
    with use(one, two):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["x"]


def test_a_pipeline_in_force_twice_is_in_force_once(fresh_cache):
    SEEN.clear()
    pipeline = (
        Pipeline("once").insert(Look("x"), at="ttir/end").replace("ttgir/coalesce", Look("y"))
    )
    with use(pipeline), use(pipeline, pipeline):
        compile_kernel("cuda:90")
    assert [tag for tag, _ in SEEN] == ["x", "y"]


# --- conditions ----------------------------------------------------------------------------------

MULTIPLY = Pipeline("multiply").insert(Multiply(), at="ttir/end")


def changes(pipeline: Pipeline, target: str = "cuda:90", kernel: Any = axpy) -> bool:
    """Whether the pipeline does something to a kernel."""
    block = 128 if kernel is axpy else 32
    plain = code_of(compile_kernel(target, kernel, block))
    with use(pipeline):
        return code_of(compile_kernel(target, kernel, block)) != plain


@pytest.mark.parametrize(
    ("given", "target", "expected"),
    [
        ("cuda", "cuda:90", True),
        ("cuda:90", "cuda:90", True),
        ("cuda:9", "cuda:90", False),
        (("cuda:80", "hip:gfx942"), "cuda:90", False),
        ("hip", "cuda:90", False),
        ("hip:gfx950", "hip:gfx950", True),
        ("cuda", "hip:gfx950", False),
        (("hip:gfx942", "cuda"), "hip:gfx942", True),
    ],
)
def test_for_a_target(given, target, expected, fresh_cache):
    assert changes(MULTIPLY.when(target=given), target) is expected


def test_for_a_release(fresh_cache):
    release = host.features().version
    assert changes(MULTIPLY.when(triton=(release, "2.*")))
    assert changes(MULTIPLY.when(triton="3.*"))
    assert not changes(MULTIPLY.when(triton="2.*"))


def test_for_a_kernel(fresh_cache):
    assert changes(MULTIPLY.when(kernel="axpy"))
    assert changes(MULTIPLY.when(kernel="a*"))
    assert not changes(MULTIPLY.when(kernel="a"))
    assert not changes(MULTIPLY.when(kernel="dot"))


@pytest.mark.parametrize("stage", ["ptx", "cubin", "llir"])
def test_for_a_kernel_in_a_stage_of_text(stage, fresh_cache):
    calls = []

    def look(value, compile_):
        calls.append(stage)
        return compile_(value)

    pipeline = Pipeline("text").override(stage, look).when(kernel="ax*")
    with use(pipeline):
        compile_kernel("cuda:90")
        compile_kernel("cuda:90", dot, 32)
    assert calls == [stage]


def test_for_a_module(fresh_cache):
    assert changes(MULTIPLY.when(module=lambda text: "arith.addf" in text))
    assert not changes(MULTIPLY.when(module=lambda text: "tt.dot" in text))
    look = Pipeline("l").insert(Look("d"), at="ttgir/start").when(module=lambda t: "tt.dot" in t)
    SEEN.clear()
    with use(look):
        compile_kernel("cuda:90")
        compile_kernel("cuda:90", dot, 32)
    assert [tag for tag, _ in SEEN] == ["d"]


def test_conditions_of_the_text_that_a_stage_gets(fresh_cache):
    calls = []

    def comment(text, compile_):
        calls.append(1)
        return compile_(text)

    with use(Pipeline("p").override("ptx", comment).when(module=lambda t: "define" in t)):
        compile_kernel("cuda:90")
    assert calls == [1]


def test_conditions_exclude_a_contradiction(fresh_cache):
    one = Pipeline("a").replace("ttgir/coalesce", Look()).when(target="cuda")
    two = Pipeline("b").disable("ttgir/coalesce").when(target="hip")
    for target in BOTH:
        with use(one + two):
            compile_kernel(target)


def test_two_conditions_on_one_thing():
    assert MULTIPLY.when(target="cuda").when(kernel="a*").edits[0].when.kernel == "a*"
    with pytest.raises(PipelineError, match="two conditions on target"):
        MULTIPLY.when(target="cuda").when(target="hip")


def test_a_predicate_that_raises(fresh_cache):
    def broken(text):
        raise KeyError("lost")

    with use(MULTIPLY.when(module=broken)), pytest.raises(PipelineError) as caught:
        compile_kernel("cuda:90")
    assert "the condition raised KeyError: 'lost'" in caught.value.what
    assert "insert of multiply at the end of ttir (pipeline multiply)" in caught.value.where


# --- places that are not there -------------------------------------------------------------------


def test_an_edit_that_does_not_fit_the_target(fresh_cache):
    cases = [
        (Pipeline("p").override("amdgcn", lambda t, c: c(t)), "the stage 'amdgcn' does not exist"),
        (Pipeline("p").disable("ptx/x"), "the stage 'ptx' holds text and runs no pass"),
        (Pipeline("p").passes("nowhere"), "the stage 'nowhere' does not exist for cuda:90"),
        (Pipeline("p").disable("ttgir/block_pingpong"), "ttgir/block_pingpong does not exist"),
    ]
    for pipeline, words in cases:
        with use(pipeline), pytest.raises(AnchorNotFound, match=re.escape(words)):
            compile_kernel("cuda:90")
        with use(pipeline.when(target="hip")):
            compile_kernel("cuda:90")


def test_an_anchor_of_another_release(fresh_cache):
    renamed = "plan_cta" if "plan_cta" not in names_of("cuda:90", "ttgir") else "assign_cga_layouts"
    with use(Pipeline("p").disable(f"ttgir/{renamed}")), pytest.raises(AnchorNotFound) as caught:
        compile_kernel("cuda:90")
    assert ("3.9 has ttgir/assign_cga_layouts" in caught.value.hint) or (
        "before 3.9 it was ttgir/plan_cta" in caught.value.hint
    )


# --- Gluon ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_gluon(target, fresh_cache):
    plain = compile_gluon(target)
    names = list(anchors(record(stages_of(target, Language.GLUON)[2]["ttgir"])))
    pipeline = Pipeline("everywhere")
    for name in names:
        pipeline = pipeline.insert(Look(name), before=f"ttgir/{name}")
    SEEN.clear()
    with use(pipeline):
        assert code_of(compile_gluon(target)) == code_of(plain)
    assert [tag for tag, _ in SEEN] == names
    with use(Pipeline("m").insert(Multiply(), at="ttgir/end").when(kernel="scale")):
        assert code_of(compile_gluon(target)) != code_of(plain)
    with use(Pipeline("d").disable("ttgir/loop_aware_cse").replace("ttgir/sccp", CSE)):
        compile_gluon(target)
    with use(Pipeline("o").override(assembly(target), lambda t, c: c(t) + "// gluon\n")):
        assert compile_gluon(target).asm[assembly(target)].endswith("// gluon\n")
    with (
        use(Pipeline("t").insert(Look(), at="ttir/end")),
        pytest.raises(AnchorNotFound, match="'ttir' does not exist"),
    ):
        compile_gluon(target)
