"""Pipelines of single kernels, through launches to a driver that launches nothing."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import triton
import triton.language as tl
from compiling import SEEN, Look, Multiply, threads
from gluon_kernels import scale
from launching import Pointer, add_one, standing_in
from triton import knobs
from triton.runtime.interpreter import InterpretedFunction

import remora
from remora.errors import PipelineError
from remora.pipeline import Pipeline, active, attached

MARK = Pipeline("mark").insert(Look("marked"), at="ttir/end")
OTHER = Pipeline("other").insert(Look("other"), at="ttir/end")


@pytest.fixture(autouse=True)
def _driver(fresh_cache, no_hook, hook_as_before):
    SEEN.clear()
    with standing_in():
        yield


@pytest.fixture
def no_mode_is_left():
    """Triton 3.7 leaves its asynchronous mode active after an error."""
    yield
    from triton.runtime._async_compile import active_mode

    active_mode.set(None)


def launch(kernel, **constants) -> list[str]:
    """What ran while a launch was compiled."""
    SEEN.clear()
    kernel[(1,)](Pointer(), 5, **constants)
    return [tag for tag, _ in SEEN]


def test_for_one_kernel_always():
    kernel, plain = remora.attach(MARK)(add_one()), add_one()
    assert launch(kernel, BLOCK=32) == ["marked"]
    assert launch(kernel, BLOCK=32) == []  # it is in the memory cache
    assert launch(kernel, BLOCK=64) == ["marked"]
    assert launch(plain, BLOCK=32) == []
    assert active.pipelines() == ()


TUNE = triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=[])
HEUR = triton.heuristics({"BLOCK": lambda arguments: 128})
ATTACH = remora.attach(MARK)
ORDERS = {
    "attach, autotune": ([ATTACH, TUNE], 2),
    "autotune, attach": ([TUNE, ATTACH], 2),
    "attach, heuristics": ([ATTACH, HEUR], 1),
    "heuristics, attach": ([HEUR, ATTACH], 1),
    "attach, autotune, heuristics": ([ATTACH, TUNE, triton.heuristics({})], 2),
    "autotune, attach, heuristics": ([TUNE, ATTACH, triton.heuristics({})], 2),
    "autotune, heuristics, attach": ([TUNE, triton.heuristics({}), ATTACH], 2),
    "heuristics, attach, autotune": ([triton.heuristics({}), ATTACH, TUNE], 2),
}


@pytest.mark.parametrize(("decorators", "compiled"), ORDERS.values(), ids=ORDERS)
def test_in_any_order(decorators, compiled):
    kernel = add_one()
    for decorate in reversed(decorators):
        kernel = decorate(kernel)
    assert launch(kernel) == ["marked"] * compiled
    assert attached(kernel) == (MARK,)


@pytest.mark.parametrize("decorators", [[ATTACH, TUNE], [TUNE, ATTACH]])
def test_warmup(decorators):
    kernel = add_one()
    for decorate in reversed(decorators):
        kernel = decorate(kernel)
    kernel.warmup(Pointer(), 5, grid=(1,))
    assert [tag for tag, _ in SEEN] == ["marked", "marked"]


def test_twice_and_within_use():
    kernel = remora.attach(OTHER)(remora.attach(MARK)(add_one()))
    assert launch(kernel, BLOCK=32) == ["other", "marked"]
    with remora.use(OTHER, MARK):
        assert launch(kernel, BLOCK=64) == ["other", "marked"]  # each once
    assert attached(kernel) == (OTHER, MARK)


def test_a_launch_is_stock_triton_s():
    """The hook, which every launch would ask, is there only while the kernel compiles."""
    kernel = remora.attach(MARK)(add_one())
    assert launch(kernel, BLOCK=32) == ["marked"]
    assert knobs.runtime.add_stages_inspection_hook is None
    assert type(kernel).run is triton.runtime.JITFunction.run
    assert vars(kernel).get("run") is None


def test_after_a_launch_without():
    kernel = add_one()
    assert launch(kernel, BLOCK=32) == []
    remora.attach(MARK)(kernel)
    assert launch(kernel, BLOCK=32) == ["marked"]
    remora.attach(OTHER)(kernel)
    assert launch(kernel, BLOCK=32) == ["other", "marked"]


@pytest.mark.parametrize("companion", [TUNE, HEUR], ids=["autotune", "heuristics"])
def test_a_function_of_two_kernels(companion):
    """What is attached to one kernel leaves the function, and another made of it, as they were."""
    function = add_one()
    kernel, other = remora.attach(MARK)(companion(function)), companion(function)
    assert set(launch(kernel)) == {"marked"}
    assert launch(other) == []
    assert launch(function, BLOCK=16) == []
    assert attached(other) == attached(function) == ()
    kernel = remora.attach(OTHER)(kernel)
    assert set(launch(kernel)) == {"other", "marked"}


def test_the_function_s_own_key_is_as_before():
    """Kernels that call it are not compiled anew when its pipelines change."""
    kernel = add_one()
    before = kernel.cache_key
    remora.attach(MARK)(kernel).hash = None
    assert kernel.cache_key == before


def test_given_to_another_kernel():
    @triton.jit
    def outer(x, n, inner: tl.constexpr, BLOCK: tl.constexpr):
        inner(x, n, BLOCK)

    assert launch(outer, inner=remora.attach(MARK)(add_one()), BLOCK=32) == []


def test_gluon():
    mark = Pipeline("mark").insert(Look("marked"), at="ttgir/end")
    kernel = remora.attach(mark)(copy.copy(scale))
    SEEN.clear()
    kernel[(1,)](Pointer(), Pointer(), THREADS=32)
    assert [tag for tag, _ in SEEN] == ["marked"]
    assert kernel.is_gluon()
    assert attached(scale) == ()


def test_interpreted():
    """Triton's interpreter compiles nothing; the decorator may stay."""
    function = InterpretedFunction(add_one().fn)
    assert remora.attach(MARK)(function) is function
    assert attached(function) == (MARK,)


def test_called_from_another_kernel():
    """What another kernel calls is compiled with that kernel's pipelines."""
    inner = remora.attach(MARK)(add_one())

    @triton.jit
    def outer(x, n, BLOCK: tl.constexpr):
        inner(x, n, BLOCK)

    assert launch(outer, BLOCK=32) == []
    assert launch(remora.attach(OTHER)(outer), BLOCK=32) == ["other"]
    assert launch(inner, BLOCK=32) == ["marked"]


def test_after_an_error():
    kernel = remora.attach(MARK)(add_one())
    with pytest.raises(Exception, match="BLOCK"):
        launch(kernel)
    assert active.pipelines() == ()
    assert launch(kernel, BLOCK=32) == ["marked"]


@pytest.mark.parametrize("pipelines", [(), ("mark",), (MARK, None)])
def test_not_pipelines(pipelines):
    with pytest.raises(PipelineError, match="attach takes pipelines"):
        remora.attach(*pipelines)


def test_not_a_kernel():
    with pytest.raises(PipelineError, match="is not a kernel"):
        remora.attach(MARK)(lambda x: x)


# --- threads, asynchronous compilation, processes ------------------------------------------------


def test_threads_with_pipelines_of_their_own():
    kernel = add_one()
    ready = threading.Barrier(4)

    def with_tag(tag: str) -> tuple[str, str]:
        pipeline = Pipeline(tag).override("ptx", lambda text, compile_: compile_(text) + f"//{tag}")
        with remora.use(pipeline):
            ready.wait(60)
            compiled = [kernel[(1,)](Pointer(), 5, BLOCK=32) for _ in range(3)]
        return tag, {c.asm["ptx"].rpartition("//")[2] for c in compiled}

    with threads(4) as pool:
        for tag, seen in pool.map(with_tag, "abcd"):
            assert seen == {tag}
    assert "//a" not in kernel[(1,)](Pointer(), 5, BLOCK=32).asm["ptx"]


def marked_by(tag: str) -> Pipeline:
    return Pipeline(tag).insert(Look(tag), at="ttir/end")


asynchronous = pytest.mark.skipif(
    not hasattr(triton, "AsyncCompileMode"), reason="this release has no asynchronous mode"
)


@asynchronous
def test_asynchronous_compilation():
    kernel, tagged = add_one(), remora.attach(MARK)(add_one())
    with threads(2) as pool, triton.AsyncCompileMode(pool):
        plain = kernel.warmup(Pointer(), 5, BLOCK=32, grid=(1,))
        with remora.use(Pipeline("m").insert(Multiply(), at="ttir/end")):
            multiplied = kernel.warmup(Pointer(), 5, BLOCK=32, grid=(1,))
        again = kernel.warmup(Pointer(), 5, BLOCK=32, grid=(1,))
        tagged.warmup(Pointer(), 5, BLOCK=32, grid=(1,))
    assert "arith.addf" in plain.asm["ttir"]
    assert "arith.mulf" in multiplied.asm["ttir"]
    assert "arith.addf" in again.asm["ttir"]
    assert [tag for tag, _ in SEEN] == ["marked"]


@asynchronous
def test_what_compiles_after_use_has_ended():
    """A worker that starts late still compiles with what was in force at the launch."""
    start = threading.Event()
    with ThreadPoolExecutor(1) as pool, triton.AsyncCompileMode(pool):
        pool.submit(start.wait, 60)
        with remora.use(MARK):
            add_one().warmup(Pointer(), 5, BLOCK=32, grid=(1,))
        assert knobs.runtime.add_stages_inspection_hook is None
        start.set()
    assert [tag for tag, _ in SEEN] == ["marked"]
    assert knobs.runtime.add_stages_inspection_hook is None


@asynchronous
@pytest.mark.usefixtures("no_mode_is_left")
def test_asynchronous_errors_are_those_of_the_launch():
    broken = Pipeline("b").disable("ttir/nothing")
    with (
        pytest.raises(remora.errors.AnchorNotFound),
        ThreadPoolExecutor(1) as pool,
        triton.AsyncCompileMode(pool),
        remora.use(broken),
    ):
        add_one().warmup(Pointer(), 5, BLOCK=32, grid=(1,))


def in_a_child() -> None:
    """In another process: under use, and attached; exit code 3 if a pass did not run."""
    with standing_in():
        with remora.use(OTHER):
            used = launch(add_one(), BLOCK=32)
        tagged = launch(remora.attach(MARK)(add_one()), BLOCK=32)
        plain = launch(add_one(), BLOCK=32)
    if (used, tagged, plain) != (["other"], ["marked"], []):
        os._exit(3)


def in_a_fork(function) -> bool:
    """What a function says in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 4
        try:
            code = 0 if function() else 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_after_fork():
    with remora.use(MARK):
        assert in_a_fork(lambda: launch(add_one(), BLOCK=32) == ["marked"])
    kernel = remora.attach(OTHER)(add_one())
    assert in_a_fork(lambda: launch(kernel, BLOCK=32) == ["other"])


def test_a_fork_while_another_thread_installs_the_hook():
    """The child could not install it if the lock stayed with a thread that it does not have."""
    held, go_on = threading.Event(), threading.Event()

    def slow_hook(*stages):
        held.set()
        go_on.wait(60)
        return ("", "")

    def install() -> None:
        with remora.use(OTHER):
            pass

    def forked() -> None:
        results.append(in_a_fork(lambda: launch(kernel, BLOCK=32) == ["marked"]))

    results: list[bool] = []
    kernel = remora.attach(MARK)(add_one())
    knobs.runtime.add_stages_inspection_hook = slow_hook
    other = threading.Thread(target=install)
    other.start()
    try:
        assert held.wait(60)
        forking = threading.Thread(target=forked)
        forking.start()
        forking.join(0.2)  # without more ado it would fork now
        go_on.set()
        forking.join(60)
        assert results == [True]
    finally:
        go_on.set()
        other.join(60)
        knobs.runtime.add_stages_inspection_hook = None


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_worker_processes(method, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "child"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    if method == "spawn":  # the module has to be importable by its name there
        code = (
            f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
            "import multiprocessing, test_attach\n"
            "if __name__ == '__main__':\n"
            "    p = multiprocessing.get_context('spawn').Process(target=test_attach.in_a_child)\n"
            "    p.start(); p.join(); sys.exit(p.exitcode)\n"
        )
        script = tmp_path / "main.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    process = multiprocessing.get_context("fork").Process(target=in_a_child)
    process.start()
    process.join(120)
    assert process.exitcode == 0


# --- hooks of others -----------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
def test_beside_a_hook_of_somebody_else(before):
    """Set before ours or after it; in the latter case it calls the one that it found."""
    seen: list[str] = []
    found = None

    def theirs(backend=None, stages=None, options=None, language=None, capability=None):
        key = found(backend, stages, options, language, capability) if found else ("", "")
        if stages is not None:
            seen.append("theirs")
        return ("theirs" + (key or ("", ""))[0], "theirs" + (key or ("", ""))[1])

    mine = knobs.runtime.add_stages_inspection_hook
    kernel = add_one()
    try:
        if before:
            knobs.runtime.add_stages_inspection_hook = theirs
            with remora.use(MARK):
                assert launch(kernel, BLOCK=32) == ["marked"]
            assert launch(kernel, BLOCK=32) == []
        else:
            with remora.use(MARK):
                found = knobs.runtime.add_stages_inspection_hook
                knobs.runtime.add_stages_inspection_hook = theirs
                assert launch(kernel, BLOCK=32) == ["marked"]
            assert launch(kernel, BLOCK=32) == []
        assert seen == ["theirs", "theirs"]
    finally:
        knobs.runtime.add_stages_inspection_hook = mine


def test_a_hook_set_after_attach_that_calls_no_other():
    kernel = remora.attach(MARK)(add_one())
    seen: list[str] = []

    def theirs(backend=None, stages=None, options=None, language=None, capability=None):
        seen.append("key" if stages is None else "stages")
        return ("theirs", "theirs")

    knobs.runtime.add_stages_inspection_hook = theirs
    try:
        assert launch(kernel, BLOCK=32) == ["marked"]
        assert knobs.runtime.add_stages_inspection_hook is theirs
        assert "stages" in seen
    finally:
        knobs.runtime.add_stages_inspection_hook = None
