"""The keys of Triton's caches: they change with all that can change the code."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from compiling import Look, Raises, code_of, compile_kernel
from hypothesis import given
from hypothesis import strategies as st

from remora.pipeline import PassRef, Pipeline, content, use

PLACES = [
    {"before": "ttir/cse"},
    {"after": "ttir/cse"},
    {"after": "ttir/cse#2"},
    {"after": "ttgir/cse"},
    {"at": "ttir/start"},
    {"at": "ttir/end"},
    {"at": "ttgir/end"},
]
PASSES = st.sampled_from([Look(), Look("a"), Look("b"), Raises(), Raises(1)])
EDITS = st.lists(st.tuples(PASSES, st.sampled_from(range(len(PLACES)))), max_size=4)


def pipeline_of(edits, name="mine") -> Pipeline:
    pipeline = Pipeline(name)
    for value, place in edits:
        pipeline = pipeline.insert(value, **PLACES[place])
    return pipeline


@given(EDITS, EDITS)
def test_the_key_is_of_passes_arguments_places_and_order(one, other):
    same = [(repr(p), at) for p, at in one] == [(repr(p), at) for p, at in other]
    assert (pipeline_of(one).key == pipeline_of(other, "another name").key) is same


@pytest.mark.parametrize(
    "other",
    [
        PassRef("compiling:Raises"),
        PassRef("compiling:Look", (("tag", "a"),)),
        PassRef("compiling:Look", trigger="tt.load"),
    ],
)
def test_the_key_of_a_reference(other):
    one = Pipeline("p").insert(PassRef("compiling:Look"), at="ttir/end")
    assert one.key != Pipeline("p").insert(other, at="ttir/end").key


def test_the_key_is_of_the_source(tmp_path, monkeypatch):
    """Of every module of the pass's package, also one that the pass only imports."""
    package = tmp_path / "keyed_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("VALUE = 1\n")
    (package / "passes.py").write_text(
        "from dataclasses import dataclass\n"
        "import remora\n"
        "from keyed_package.helper import VALUE\n"
        "@dataclass(frozen=True)\n"
        "class Mine(remora.ModulePass):\n"
        "    name = 'mine'\n"
        "    def apply(self, ctx, module): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def keys() -> tuple[str, str]:
        content._hash_of.cache_clear()
        importlib.invalidate_caches()
        for name in [n for n in sys.modules if n.startswith("keyed_package")]:
            del sys.modules[name]
        reference = Pipeline("p").insert(PassRef("keyed_package.passes:Mine"), at="ttir/end")
        mine = importlib.import_module("keyed_package.passes").Mine()
        return reference.key, Pipeline("p").insert(mine, at="ttir/end").key

    first = keys()
    assert keys() == first
    (package / "helper.py").write_text("VALUE = 2\n")
    second = keys()
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_changed_argument_compiles_again(fresh_cache):
    def folders() -> int:
        return len(list(fresh_cache.glob("*/*.cubin")))

    compile_kernel("cuda:90")
    assert folders() == 1
    for expected, tag in ((2, "a"), (2, "a"), (3, "b")):
        with use(Pipeline("p").insert(Look(tag), at="ttir/end")):
            compile_kernel("cuda:90")
        assert folders() == expected
    compile_kernel("cuda:90")
    assert folders() == 3


def test_a_cached_kernel_is_the_same(fresh_cache):
    pipeline = Pipeline("p").insert(Look("a"), at="ttir/end")
    with use(pipeline):
        first = code_of(compile_kernel("cuda:90"))
        assert code_of(compile_kernel("cuda:90")) == first


def test_the_distributions_are_those_that_python_finds():
    found = content._distributions()
    for top, names in importlib.metadata.packages_distributions().items():
        assert {d.name for d in found[top]} == set(names), top


def test_threads_that_compile_make_a_key_once(monkeypatch):
    from remora.pipeline import edits

    made = []

    def slowly(edits):
        made.append(edits)
        time.sleep(0.05)
        return "key"

    monkeypatch.setattr(edits, "content_hash", slowly)
    pipeline = Pipeline("p").insert(Look(), at="ttir/end")
    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(lambda _: pipeline.key, range(6))) == {"key"}
    assert len(made) == 1
