"""A kernel is compiled again when something that can change its code has changed: one at a time."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from compiling import Look, code_of, compile_kernel
from launching import Pointer, add_one, standing_in

import remora
from remora.errors import PipelineError
from remora.pipeline import PassRef, Pipeline, stock, use

# --- on disk, from process to process ------------------------------------------------------------

PACKAGE = {
    "cached_package/__init__.py": "",
    "cached_package/helper.py": "def constant():\n    return 1\n",
    "cached_package/passes.py": """
from dataclasses import dataclass
import remora
from cached_package.helper import constant
import beside
import withversion

@dataclass(frozen=True)
class Mine(remora.ModulePass):
    name = "mine"
    number: int = 0

    def apply(self, ctx, module):
        assert constant() and beside.VALUE
""",
    "beside.py": "VALUE = 1\n",
    "withversion.py": "",
    "withversion-1.0.dist-info/METADATA": "Name: withversion\nVersion: 1.0\n",
    "withversion-1.0.dist-info/RECORD": "withversion.py,,\n",
    "withversion-1.0.dist-info/top_level.txt": "withversion\n",
    "unrelated.py": "VALUE = 1\n",
    "main.py": """
import json, sys
sys.path.insert(0, {tests!r})
import remora
from compiling import compile_kernel
from cached_package.passes import Mine
from remora import PassRef, Pipeline, stock
from triton import knobs

compiled = []
knobs.compilation.listener = lambda *, cache_hit, **_: compiled.append(not cache_hit)

def edited(text, compile_):
    return compile_(text) + "// 1\\n"

one = Pipeline("one").insert(Mine(1), after="ttir/cse")
two = Pipeline("two").insert(PassRef("cached_package.passes:Mine"), at="ttir/end")
three = Pipeline("three").override("ptx", edited)
for p in (one, two, three):
    with remora.use(p):
        compile_kernel("cuda:90")
compile_kernel("cuda:90")
print(json.dumps(compiled))
""",
}


@pytest.fixture
def program(tmp_path):
    """Runs main.py in a process of its own; which of its four kernels were compiled."""
    folder = tmp_path / "program"

    def write(name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{tests!r}", repr(str(Path(__file__).parents[1]))))

    for name, text in PACKAGE.items():
        write(name, text)

    def run() -> list[bool]:
        done = subprocess.run(
            [sys.executable, "main.py"],
            cwd=folder,
            env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        compiled: list[bool] = json.loads(done.stdout.splitlines()[-1])
        return compiled

    run.write = write  # type: ignore[attr-defined]
    return run


def test_one_change_at_a_time(program):
    def replaced(name: str, old: str, new: str) -> None:
        assert old in PACKAGE[name]
        program.write(name, PACKAGE[name].replace(old, new))

    # Mine(1), a reference to Mine, the function of main.py, no pipeline.
    assert program() == [True, True, True, True]
    assert program() == [False] * 4  # nothing changed
    replaced("unrelated.py", "1", "2")
    assert program() == [False] * 4  # nothing that matters
    replaced("cached_package/helper.py", "return 1", "return 2")
    assert program() == [True, True, False, False]  # a function that the pass calls
    replaced("cached_package/passes.py", "assert", "assert True and")
    assert program() == [True, True, False, False]  # the pass
    replaced("beside.py", "1", "2")
    assert program() == [True, True, False, False]  # a file that it imports
    replaced("main.py", "// 1", "// 2")
    # An override in a script is recompiled with the script; so is its kernel under Triton itself.
    assert program() == [False, False, True, False]
    program.write("withversion-1.0.dist-info/METADATA", "Name: withversion\nVersion: 1.1\n")
    assert program()[:2] == [True, True]  # the version of what it imports
    assert program() == [False] * 4


# --- in one process, in memory and on disk -------------------------------------------------------


def compilations(kernel: Any, pipelines: list[Pipeline]) -> list[bool]:
    """Which launches compiled: each pipeline is launched twice, in memory and past it."""
    from triton import knobs

    hits: list[bool] = []
    result = []
    with knobs.compilation.scope(), standing_in():
        knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
        for pipeline in pipelines:
            hits.clear()
            for _ in range(2):
                with use(pipeline):
                    kernel[(1,)](Pointer(), 5, BLOCK=32)
            assert len(hits) <= 1  # the second launch finds it in memory
            result.append(hits == [False])
    return result


def after(subject: Any, place: str = "ttir/cse") -> Pipeline:
    return Pipeline("p").insert(subject, after=place)


DIFFERENT = {
    "argument": (after(Look("a")), after(Look("b"))),
    "pass": (after(Look("a")), after(stock("common.cse"))),
    "stock argument": (after(stock("ttgpuir.f32_dot_tc", True), "ttgir/coalesce"),
                       after(stock("ttgpuir.f32_dot_tc", False), "ttgir/coalesce")),
    "place": (after(Look("a")), after(Look("a"), "ttir/inliner")),
    "side": (after(Look("a")), Pipeline("p").insert(Look("a"), before="ttir/cse")),
    "order": (after(Look("a")) + after(Look("b")), after(Look("b")) + after(Look("a"))),
    "number": (after(Look("a")), after(Look("a")) + after(Look("a"))),
    "kind": (Pipeline("p").disable("ttir/cse"), Pipeline("p").replace("ttir/cse", Look("a"))),
    "condition": (after(Look("a")), after(Look("a")).when(kernel="k*")),
    "pattern": (after(Look("a")).when(kernel="k*"), after(Look("a")).when(kernel="*")),
    "predicate": (after(Look("a")).when(module=lambda t: "addf" in t),
                  after(Look("a")).when(module=lambda t: "mulf" in t)),
    "lambda's constant": (Pipeline("p").override("ptx", lambda t, c: c(t) + "// 1\n"),
                          Pipeline("p").override("ptx", lambda t, c: c(t) + "// 2\n")),
    "inner lambda's constant": (
        Pipeline("p").override("ptx", lambda t, c: (lambda s: s + "// 1\n")(c(t))),
        Pipeline("p").override("ptx", lambda t, c: (lambda s: s + "// 2\n")(c(t)))),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_compiled_again(one, other, fresh_cache):
    assert compilations(add_one(), [one, other, one, other]) == [True, True, False, False]


def commented(word: str) -> Pipeline:
    return Pipeline("c").override("ptx", lambda text, compile_: compile_(text) + f"// {word}\n")


def prefixed(text: Any, compile_: Any, *, word: str) -> Any:
    return compile_(text) + f"// {word}\n"


SAME = {
    "the same again": (after(Look("a")), after(Look("a"))),
    "another name": (after(Look("a")), Pipeline("other name").insert(Look("a"), after="ttir/cse")),
    "closure value": (commented("a"), commented("a")),
    "partial": (Pipeline("p").override("ptx", functools.partial(prefixed, word="x")),
                Pipeline("p").override("ptx", functools.partial(prefixed, word="x"))),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_what_is_the_same_is_not(one, other, fresh_cache):
    assert compilations(add_one(), [one, other]) == [True, False]


def test_values_that_functions_close_over(fresh_cache):
    pipelines = [commented("a"), commented("b"), commented("a")]
    assert compilations(add_one(), pipelines) == [True, True, False]
    partials = [
        Pipeline("p").override("ptx", functools.partial(prefixed, word=w)) for w in ("x", "y")
    ]
    assert compilations(add_one(), partials) == [True, True]


def test_the_same_key_in_memory_whatever_came_before(fresh_cache):
    """A number in order of use would differ from process to process: preload keeps keys."""
    with use(after(Look("a"))):
        from triton import knobs

        first = knobs.runtime.add_stages_inspection_hook()
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from compiling import Look; import remora; from triton import knobs\n"
        "with remora.use(remora.Pipeline('z').disable('ttir/cse')): pass\n"
        "with remora.use(remora.Pipeline('p').insert(Look('a'), after='ttir/cse')):\n"
        "    print(*knobs.runtime.add_stages_inspection_hook())\n"
    )
    keys = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        keys.add(done.stdout.strip())
    assert keys == {" ".join(first)}


# --- what can be part of a key -------------------------------------------------------------------


@dataclass(frozen=True)
class Holds(remora.ModulePass):
    name: ClassVar[str] = "holds"
    value: Any = None

    def apply(self, ctx: Any, module: Any) -> None:
        pass


class Sets(remora.ModulePass):
    """No dataclass of its own: its argument is an attribute."""

    name = "sets"

    def __init__(self, value: Any) -> None:
        object.__setattr__(self, "value", value)

    def apply(self, ctx: Any, module: Any) -> None:
        pass


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Keyed:
    def __init__(self, key: str) -> None:
        self.lock, self.cache_key = threading.Lock(), key


def key(subject: Any) -> str:
    return after(subject).key


@pytest.mark.parametrize("make", [Holds, Sets])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (b"a", b"b"),
        (Plain(1), Plain(2)),
        (Plain([1]), Plain([2])),
        (Keyed("a"), Keyed("b")),
        (len, max),
        (Plain, Keyed),
        (lambda: 1, lambda: 2),
        (Plain(1).__init__, Plain(2).__init__),
    ],
)
def test_arguments_of_every_kind(make, one, other):
    assert key(make(one)) != key(make(other))
    assert key(make(one)) == key(make(one))


def test_sets_have_no_order():
    letters = [f"letter {i}" for i in range(50)]
    backwards = letters[::-1]
    assert key(Holds(set(letters))) == key(Holds(set(backwards)))


def test_arrays_count_as_a_whole():
    numpy = pytest.importorskip("numpy")
    one, other = numpy.zeros(5000), numpy.zeros(5000)
    other[2500] = 1
    assert repr(one) == repr(other)
    assert key(Holds(one)) != key(Holds(other))
    assert key(Holds(one)) == key(Holds(one.copy()))


def test_a_pass_that_is_not_hashable(fresh_cache):
    with pytest.raises(TypeError):
        hash(Holds([1]))
    assert key(Holds([1])) != key(Holds([2]))
    with use(after(Holds([1]))):
        assert "cubin" in compile_kernel("cuda:90").asm


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (threading.Lock(), "cannot be pickled"),
        ((n for n in range(3)), "cannot be pickled"),
        (Plain(threading.Lock()), "value of Plain: <unlocked _thread.lock object"),
        ({"a": [threading.Lock()]}, "cannot be pickled"),
    ],
)
def test_what_has_no_content_is_refused(value, words, fresh_cache):
    stock_code = code_of(compile_kernel("cuda:90"))
    pipeline = Pipeline("mine").insert(Holds(value), after="ttir/cse")
    with pytest.raises(PipelineError) as caught, use(pipeline):
        compile_kernel("cuda:90")
    assert "value of Holds: " in caught.value.what
    assert words in caught.value.what
    assert caught.value.where == "insert of holds after ttir/cse (pipeline mine)"
    assert "cache_key" in caught.value.hint
    assert code_of(compile_kernel("cuda:90")) == stock_code


def test_a_value_that_holds_itself():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PipelineError, match="holds itself"):
        key(Holds(endless))


def made_by_exec(body: str) -> Any:
    """A pass as a notebook makes it: its module has no file."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import remora\n"
        "def helper(): return 1\n"
        "class Mine(remora.ModulePass):\n"
        "    name = 'mine'\n"
        f"    def apply(self, ctx, module): {body}\n",
        scope,
    )
    return scope


def test_passes_of_a_notebook():
    one, other = (made_by_exec(f"return helper() + {n}")["Mine"]() for n in (1, 2))
    assert key(one) != key(other)
    assert key(one) == key(made_by_exec("return helper() + 1")["Mine"]())


def test_functions_that_a_notebook_s_pass_calls():
    scopes = [made_by_exec("return helper()") for _ in range(2)]
    exec("def helper(): return 2", scopes[1])
    assert key(scopes[0]["Mine"]()) != key(scopes[1]["Mine"]())


def test_a_reference_s_trigger_and_more_modules():
    keys = {
        after(reference).key
        for reference in (
            PassRef("compiling:Look"),
            PassRef("compiling:Look", trigger="x"),
            PassRef("compiling:Look", also=("json",)),
        )
    }
    assert len(keys) == 3
