"""Which pipelines are in force, where, and for how long."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from compiling import SEEN, TARGETS, Look, Multiply, Raises, axpy, code_of, compile_kernel, threads
from triton import knobs

from remora.pipeline import Pipeline, active, use

pytestmark = pytest.mark.usefixtures("no_hook")

LOOK = Pipeline("look").insert(Look("outer"), at="ttir/end")
LOOK_TOO = Pipeline("look too").insert(Look("inner"), at="ttir/end")
MULTIPLY = Pipeline("multiply").insert(Multiply(), at="ttir/end")


def hook():
    return knobs.runtime.add_stages_inspection_hook


def tags() -> list[str]:
    SEEN.clear()
    compile_kernel("cuda:90")
    return [tag for tag, _ in SEEN]


def test_nested(always_compile):
    assert tags() == []
    with use(LOOK):
        assert tags() == ["outer"]
        with use(LOOK_TOO):
            assert tags() == ["outer", "inner"]
            assert active.pipelines() == (LOOK, LOOK_TOO)
        assert tags() == ["outer"]
    assert tags() == []


def test_made_before_they_are_entered(always_compile):
    outer, inner = use(LOOK), use(LOOK_TOO)
    with outer, inner:
        assert active.pipelines() == (LOOK, LOOK_TOO)


def test_several_at_once(always_compile):
    with use(LOOK_TOO, LOOK):
        assert tags() == ["inner", "outer"]


def test_process_wide_ones_come_first(always_compile):
    active.add(LOOK)
    active.add(LOOK)  # again does nothing
    try:
        with use(LOOK_TOO):
            assert tags() == ["outer", "inner"]
    finally:
        active.remove(LOOK)
        active.remove(LOOK)
    assert tags() == []


def test_one_thread_does_not_see_another_s():
    inside, checked = threading.Event(), threading.Event()

    def with_pipeline() -> tuple:
        with use(LOOK):
            inside.set()
            assert checked.wait(30)
            return active.pipelines()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(with_pipeline)
        assert inside.wait(30)
        mine, key = active.pipelines(), hook()()
        checked.set()
        assert other.result() == (LOOK,)
    assert mine == ()
    assert key == ("", "")


def test_threads_compile_with_pipelines_of_their_own(always_compile):
    stock = code_of(compile_kernel("cuda:90"))
    with use(MULTIPLY):
        changed = code_of(compile_kernel("cuda:90"))
    assert changed != stock

    def compile_again(number: int) -> bool:
        if number % 2:
            with use(MULTIPLY):
                return code_of(compile_kernel("cuda:90")) == changed
        return code_of(compile_kernel("cuda:90")) == stock

    with threads(4) as pool:
        assert all(pool.map(compile_again, range(8)))


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_off_means_off(target, always_compile):
    before = code_of(compile_kernel(target))
    with use(MULTIPLY):
        assert hook() is not None
        changed = code_of(compile_kernel(target))
    assert hook() is None
    after = code_of(compile_kernel(target))
    assert before == after != changed


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_pipeline_changes_nothing(target, always_compile):
    stock = code_of(compile_kernel(target))
    with use(Pipeline("empty")):
        assert code_of(compile_kernel(target)) == stock


def test_keys_of_many_pipelines_are_not_kept_for_ever():
    for _ in range(600):
        with use(Pipeline("passing")):
            assert hook()()[0].startswith("remora:")
    assert len(active.scope.get().inner) <= 256


@pytest.mark.gpu
def test_a_launch_uses_what_is_in_force():
    import torch

    x, y = torch.full((128,), 3.0, device="cuda"), torch.full((128,), 5.0, device="cuda")

    def launch() -> float:
        result = y.clone()
        axpy[(1,)](x, result, 128, BLOCK=128)
        return result[0].item()

    assert launch() == 11.0
    with use(MULTIPLY):
        assert launch() == 30.0
    assert launch() == 11.0


def test_the_hook_goes_after_an_error(always_compile):
    with pytest.raises(RuntimeError, match="the user's"), use(LOOK):
        raise RuntimeError("the user's")
    with (
        pytest.raises(Exception, match="broken"),
        use(Pipeline("b").insert(Raises(), at="ttir/end")),
    ):
        compile_kernel("cuda:90")
    assert hook() is None
    assert active.pipelines() == ()
