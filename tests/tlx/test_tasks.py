"""Warp specialisation: partitions, captures, replicas, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, line_of

import remora.tlx as tlx
from remora.errors import (
    CannotCapture,
    LanguageError,
    TasksDoNotFit,
    UnsupportedByTarget,
    WrongShape,
    WrongType,
)
from remora.host import features


def partitions(compiled: Any) -> list[tuple[int, str]]:
    """Warps and body of each partition in TTGIR."""
    found = re.split(r"\n    +partition\d+", compiled.asm["ttgir"])[1:]
    return [(int(re.search(r"num_warps\((\d+)\)", body)[1]), body) for body in found]


def registers(compiled: Any) -> list[int]:
    """What the partitions ask for."""
    found = re.search(r"requestedRegisters = array<i32: ([\d, ]*)>", compiled.asm["ttgir"])
    return [int(n) for n in found[1].split(",")] if found else []


def default_body(compiled: Any) -> str:
    """What the program's own warps run."""
    return re.search(r"default \{(.*?)ttg.warp_yield", compiled.asm["ttgir"], re.DOTALL)[1]


@triton.jit
def by_one_warp(p):
    with tlx.async_tasks():
        with tlx.async_task("default"):
            pass
        with tlx.async_task(num_warps=1):
            at = tl.program_id(0) * 256 + tl.arange(0, 256)
            tl.store(p + at, at.to(tl.float32))


def test_a_program_of_two_ctas() -> None:
    if features().plans_ctas_by_region:
        compiled = build(by_one_warp, "cuda:90", options={"num_ctas": 2}, p="*fp32")
        ((warps, _),) = partitions(compiled)
        assert warps == 1
        assert 'num-ctas" = 2' in compiled.asm["ttgir"]
    else:
        with pytest.raises(UnsupportedByTarget, match="1 warps in a program of 2 CTAs") as refused:
            build(by_one_warp, "cuda:90", options={"num_ctas": 2}, p="*fp32")
        assert line_of(by_one_warp, "num_warps=1") in str(refused.value)


@triton.jit
def shifted(x):
    return x + tlx.async_task_replica_id()


@triton.jit
def replicas(p, q, n, WARPS: tl.constexpr, COPIES: tl.constexpr, REGS: tl.constexpr = None):
    at = tl.arange(0, 128)
    buffers = tlx.local_alloc((128,), tl.float32, COPIES)
    rounds = tl.cdiv(n, 3)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            acc = tl.zeros((128,), tl.float32)
            for i in range(rounds):
                acc += tl.load(p + at + i)
            tl.store(q + at, acc)
        with tlx.async_task(num_warps=WARPS, replicate=COPIES, num_regs=REGS):
            copy = tlx.async_task_replica_id()
            acc = tl.load(p + at + copy)
            view = tlx.local_view(buffers, copy)
            tlx.local_store(view, acc + shifted(rounds))
            tl.store(q + at + 128 * (copy + 1), tlx.local_load(view))
    tl.store(q + at + 128 * (COPIES + 1), 1.0)


@pytest.mark.parametrize(("warps", "copies"), [(1, 1), (1, 3), (2, 2), (4, 2), (8, 1), (4, 7)])
def test_partitions(warps: int, copies: int) -> None:
    compiled = build(replicas, "cuda:90", p="*fp32", q="*fp32", n="i32", WARPS=warps, COPIES=copies)
    found = partitions(compiled)
    assert [w for w, _ in found] == [warps] * copies
    for _, body in found:
        # Its tensors have the layouts of its own warps, its replica's number is a constant.
        layouts = set(re.findall(r"tensor<128xf32, (#\w+)>", body))
        for layout in layouts:
            definition = re.search(rf"^{layout} = (.*)$", compiled.asm["ttgir"], re.MULTILINE)[1]
            assert f"warpsPerCTA = [{warps}]" in definition
        assert "tt.call" not in body
    assert "scf.for" in default_body(compiled)
    # Whole warp groups: the rest of the last one idles.
    assert compiled.metadata.num_warps == 4 + -(-warps * copies // 4) * 4
    assert not registers(compiled)


def test_registers() -> None:
    compiled = build(
        replicas, "cuda:90", p="*fp32", q="*fp32", n="i32", WARPS=4, COPIES=2, REGS=232
    )
    assert registers(compiled) == [232, 232]
    assert "setmaxnreg.dec.sync.aligned.u32 \t" in compiled.asm["ptx"]
    assert "232;" in compiled.asm["ptx"]


@triton.jit
def default_copies(p, q, COPIES: tl.constexpr, OTHERS: tl.constexpr):
    at = tl.arange(0, 128)
    with tlx.async_tasks():
        with tlx.async_task("default", replicate=COPIES, registers=120):
            copy = tlx.async_task_replica_id()
            tl.store(q + copy * 128 + at, tl.load(p + at) + copy)
        if OTHERS:
            with tlx.async_task(num_warps=1, registers=96, replicate=2):
                tl.store(q + (8 + tlx.async_task_replica_id()) * 128 + at, 1.0)


def test_copies_of_the_default_task() -> None:
    compiled = build(default_copies, "cuda:90", p="*fp32", q="*fp32", COPIES=3, OTHERS=True)
    # The program's warps run the first copy, and the others have as many.
    assert [w for w, _ in partitions(compiled)] == [4, 4, 1, 1]
    assert registers(compiled) == [120, 120, 96, 96]
    bodies = [default_body(compiled), *(body for _, body in partitions(compiled)[:2])]
    added = [re.findall(r"dense<(\d)\.0", body) for body in bodies]
    assert added in ([[], ["1"], ["2"]], [["0"], ["1"], ["2"]])


def test_a_default_task_alone_is_code_of_the_program() -> None:
    compiled = build(default_copies, "cuda:90", p="*fp32", q="*fp32", COPIES=1, OTHERS=False)
    assert "ttg.warp_specialize" not in compiled.asm["ttgir"]
    assert compiled.asm["ttgir"].count("tt.store") == 1
    assert compiled.metadata.num_warps == 4


@triton.jit
def meet(q, number, COPIES: tl.constexpr, FIXED: tl.constexpr, DEFAULT: tl.constexpr):
    with tlx.async_tasks():
        if DEFAULT:
            with tlx.async_task("default"):
                tlx.named_barrier_arrive(number if FIXED is None else FIXED, 256)
        with tlx.async_task(num_warps=4, replicate=COPIES):
            tlx.named_barrier_wait(15, 256)
            tl.store(q, 1)


@pytest.mark.parametrize(("fixed", "copies", "default", "taken"), [
    (0, 1, True, 3), (2, 1, True, 3), (3, 1, True, 0), (4, 3, True, 5), (5, 3, True, 0),
    (None, 3, True, 0), (9, 7, True, 0), (None, 7, False, 0),
])  # fmt: skip
def test_barriers_that_tasks_synchronise_with(fixed, copies, default, taken) -> None:
    given = {"q": "*i32", "number": "i32", "COPIES": copies, "FIXED": fixed, "DEFAULT": default}
    if not taken:
        assert "15, 256" in build(meet, "cuda:90", **given).asm["ptx"]
        return
    with pytest.raises(Exception, match=f"barriers 0 to {copies + 1} are the compiler's") as caught:
        build(meet, "cuda:90", **given)
    error = WrongShape.of(caught.value)
    assert error is not None
    assert line_of(meet, "named_barrier_arrive") in error.where


@triton.jit
def shares(q, A: tl.constexpr, B: tl.constexpr):
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q, 1)
        with tlx.async_task(num_warps=4, num_regs=A):
            tl.store(q + 1, 2)
        with tlx.async_task(num_warps=4, registers=B):
            tl.store(q + 2, 3)


@pytest.mark.parametrize(("a", "b", "expected"), [
    (None, None, []), (24, 240, [24, 240]), (64, None, [64, 224]), (None, 240, [136, 240]),
])  # fmt: skip
def test_a_task_that_does_not_say_has_a_share(a: Any, b: Any, expected: list[int]) -> None:
    assert registers(build(shares, "cuda:90", q="*i32", A=a, B=b)) == expected


@triton.jit
def captures(p, q, n, flag, LOADED: tl.constexpr):
    at = tl.arange(0, 64)
    pointers = p + (at[:, None] * 64 + at[None, :])
    mask = at[:, None] < n
    ones = tl.full((64, 64), 1.0, tl.float32)
    if LOADED:
        ones = tl.load(pointers)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q, n)
        with tlx.async_task(num_warps=2):
            if flag:
                tl.store(pointers, ones, mask=mask)


def test_tensors_are_computed_again() -> None:
    compiled = build(captures, "cuda:90", p="*fp32", q="*i32", n="i32", flag="i1", LOADED=False)
    ((_, body),) = partitions(compiled)
    assert "tt.make_range" in body
    header = body.partition("num_warps")[0]
    assert "tensor" not in header


def test_a_loaded_tensor_cannot_be_captured() -> None:
    with pytest.raises(CannotCapture, match="cannot capture 'ones'") as caught:
        build(captures, "cuda:90", p="*fp32", q="*i32", n="i32", flag="i1", LOADED=True)
    assert line_of(captures, "tl.store(pointers") in caught.value.where
    assert line_of(captures, "ones = tl.load") in caught.value.where


@triton.jit
def many(p, q, n):
    at = tl.arange(0, 128)
    for i in range(n):
        with tlx.async_tasks():
            with tlx.async_task("default"):
                x = tl.load(p + at + i)
                tl.store(q + at, x)
            with tlx.async_task(num_warps=4):
                x = tl.load(p + at - i)
                tl.store(q + at, x)
    if n > 3:
        with tlx.async_tasks():
            with tlx.async_task(num_warps=1):
                x = n
                while x > 0:
                    tl.store(q + x, 0.0)
                    x -= 1
    twice(q, n)
    twice(q, n + 1)


@triton.jit
def twice(q, n):
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q + n, 1.0)
        with tlx.async_task(num_warps=1):
            tl.store(q + n, 2.0)


def test_in_loops_branches_and_functions() -> None:
    compiled = build(many, "cuda:90", p="*fp32", q="*fp32", n="i32")
    assert compiled.asm["ttgir"].count("ttg.warp_specialize(") == 4
    assert [w for w, _ in partitions(compiled)] == [4, 1, 1, 1]


@triton.jit
def combined(q):
    with tlx.async_tasks(), tlx.async_task(num_warps=1, replicate=2):
        tl.store(q + tlx.async_task_replica_id(), 1)


def test_one_with_for_both() -> None:
    assert len(partitions(build(combined, "cuda:90", q="*i32"))) == 2


@triton.jit
def reads_after(q, n, BEFORE: tl.constexpr):
    if BEFORE:
        x = n
    with tlx.async_tasks():
        with tlx.async_task("default"):
            x = n + 1
            tl.store(q, x)
        with tlx.async_task(num_warps=1):
            tl.store(q + 1, n)
    tl.store(q + 2, x)


def test_a_name_that_a_task_assigns_is_its_own() -> None:
    with pytest.raises(triton.CompilationError, match="x is not defined"):
        build(reads_after, "cuda:90", q="*i32", n="i32", BEFORE=False)
    with pytest.raises(triton.CompilationError) as caught:
        build(reads_after, "cuda:90", q="*i32", n="i32", BEFORE=True)
    error = LanguageError.of(caught.value)
    assert error is not None
    assert "x was assigned within tlx.async_task" in error.what
    assert line_of(reads_after, "tl.store(q + 2") in error.where


@triton.jit
def between(q, n):
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q, n)
        tl.store(q, n + 5)
        with tlx.async_task(num_warps=1):
            tl.store(q + 1, n)


def test_code_between_tasks() -> None:
    with pytest.raises(LanguageError, match="only tasks may stand in it") as caught:
        build(between, "cuda:90", q="*i32", n="i32")
    assert line_of(between, "tl.store(q, n + 5)") in caught.value.where


@triton.jit
def one(
    q, WARPS: tl.constexpr = 4, REGS: tl.constexpr = None, COPIES: tl.constexpr = 1,
    KIND: tl.constexpr = None,
):  # fmt: skip
    with tlx.async_tasks():
        if KIND is None:
            with tlx.async_task(num_warps=WARPS, num_regs=REGS, replicate=COPIES):
                tl.store(q, 1)
        else:
            with tlx.async_task(KIND, num_warps=WARPS, replicate=COPIES):
                tl.store(q, 1)


@pytest.mark.parametrize(("given", "kind", "message"), [
    ({"WARPS": 3}, WrongShape, "power of two, it is 3"),
    ({"WARPS": 0}, WrongShape, "power of two, it is 0"),
    ({"WARPS": None}, WrongType, "num_warps is missing"),
    ({"WARPS": 4.0}, WrongType, "num_warps has to be int"),
    ({"REGS": 16}, WrongShape, "from 24 to 240, it is 16"),
    ({"REGS": 248}, WrongShape, "from 24 to 240, it is 248"),
    ({"REGS": 100}, WrongShape, "multiple of 8 from 24 to 240, it is 100"),
    ({"COPIES": 0}, WrongShape, "replicate has to be at least 1"),
    ({"WARPS": 16, "COPIES": 2}, TasksDoNotFit, r"16 \+ 16 = 36 warps, a CTA has at most 32"),
    ({"WARPS": 4, "COPIES": 3, "REGS": 240}, TasksDoNotFit,
     r"4 x 32 x 240 \+ 4 x 32 x 240 \+ 4 x 32 x 240 = 92,160 registers, and the others at least"),
    ({"KIND": "other"}, WrongType, "a task is \"default\" or has num_warps, it is given 'other'"),
    ({"KIND": "default", "WARPS": 8}, WrongShape, "has the program's 4 warps, not 8"),
])  # fmt: skip
def test_refused(given: dict[str, Any], kind: type[LanguageError], message: str) -> None:
    with pytest.raises(triton.CompilationError) as caught:
        build(one, "cuda:90", q="*i32", **given)
    error = kind.of(caught.value)
    assert error is not None
    assert re.search(message, error.what), error.what
    assert "test_tasks.py" in error.where


@triton.jit
def alone(q):
    with tlx.async_task(num_warps=4):
        tl.store(q, 1)


@triton.jit
def nested(q):
    with tlx.async_tasks():
        with tlx.async_task(num_warps=4):
            with tlx.async_tasks():
                with tlx.async_task(num_warps=4):
                    tl.store(q, 1)


@triton.jit
def two_defaults(q):
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q, 1)
        with tlx.async_task("default"):
            tl.store(q, 1)


@triton.jit
def no_task(q):
    tl.store(q, tlx.async_task_replica_id())


@triton.jit
def small_product(q):
    a = tlx.local_alloc((64, 64), tl.float16, 1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q, 1)
        with tlx.async_task(num_warps=2):
            acc = tlx.async_dot(tlx.local_view(a, 0), tlx.local_view(a, 0))
            acc = tlx.async_dot_wait(0, acc)
            tl.store(q, tl.sum(tl.sum(acc, 0), 0).to(tl.int32))


@pytest.mark.parametrize(("kernel", "kind", "message"), [
    (alone, WrongType, "a task stands in async_tasks"),
    (nested, UnsupportedByTarget, "tasks cannot be divided into tasks"),
    (two_defaults, WrongType, "there is a default task already"),
    (no_task, WrongType, "there are replicas in a task only"),
    (small_product, WrongShape, "whole warp groups of 4 warps, not 2"),
])  # fmt: skip
def test_refused_where_it_stands(kernel: Any, kind: type[LanguageError], message: str) -> None:
    with pytest.raises(triton.CompilationError) as caught:
        build(kernel, "cuda:90", q="*i32")
    error = kind.of(caught.value)
    assert error is not None
    assert message in error.what


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942", "hip:gfx950"])
def test_targets_without(target: str) -> None:
    with pytest.raises(triton.CompilationError) as caught:
        build(one, target, q="*i32")
    assert UnsupportedByTarget.of(caught.value) is not None


def test_a_failed_compilation_leaves_nothing_behind() -> None:
    with pytest.raises(triton.CompilationError):
        build(small_product, "cuda:90", q="*i32")
    with pytest.raises(triton.CompilationError) as caught:
        build(no_task, "cuda:90", q="*i32")
    assert WrongType.of(caught.value) is not None
    assert len(partitions(build(combined, "cuda:90", q="*i32"))) == 2


@triton.jit
def unrolled(q):
    for i in tl.static_range(2):
        with tlx.async_tasks():
            with tlx.async_task("default"):
                tl.store(q, i)
            with tlx.async_task(num_warps=1 + i):
                tl.store(q + 1, i)
    for i in tl.range(0, 2, loop_unroll_factor=2):
        with tlx.async_tasks():
            with tlx.async_task("default"):
                tl.store(q, i)
            with tlx.async_task(num_warps=4):
                tl.store(q + 1, i)


def test_in_unrolled_loops() -> None:
    found = partitions(build(unrolled, "cuda:90", q="*i32"))
    assert [w for w, _ in found] == [1, 2, 4, 4]


@triton.jit
def copies_in_a_task(p, q, n, WAITED: tl.constexpr):
    at = tl.arange(0, 128)
    buffers = tlx.local_alloc((128,), tl.float32, 2)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q, 1.0)
        with tlx.async_task(num_warps=2):
            for i in range(n):
                view = tlx.local_view(buffers, i % 2)
                tlx.async_load(p + at + i * 128, view)
                tlx.async_load_commit_group()
                tlx.async_load_wait_group(1)
                tl.store(q + at, tlx.local_load(tlx.local_view(buffers, (i + 1) % 2)))
            if WAITED:
                tlx.async_load_wait_group(0)


@pytest.mark.parametrize("waited", [False, True])
def test_a_task_waits_for_the_copies_that_it_leaves(waited: bool) -> None:
    compiled = build(copies_in_a_task, "cuda:90", p="*fp32", q="*fp32", n="i32", WAITED=waited)
    ((_, body),) = partitions(compiled)
    assert body.count("cp.async.wait_all") == (0 if waited else 1)
    assert body.count("cp.async.wait_group 0") == (1 if waited else 0)
    assert compiled.asm["ttgir"].count("cp.async.wait_all") == body.count("cp.async.wait_all")


@triton.jit
def buffers_of_a_task(p, q, n):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(q, 1.0)
        with tlx.async_task(num_warps=4):
            for i in range(n):
                a = tlx.local_alloc((64, 64), tl.float16, 1)
                tlx.local_store(a[0], tl.load(p + at + i))
                tlx.fence_async_shared()
                acc = tlx.async_dot(a[0], a[0])
                acc = tlx.async_dot_wait(0, acc)
                tl.store(q + at, acc)


def test_buffers_within_a_task() -> None:
    compiled = build(buffers_of_a_task, "cuda:90", p="*fp16", q="*fp32", n="i32")
    ((_, body),) = partitions(compiled)
    assert "ttg.local_alloc" in body
    assert "wgmma" in compiled.asm["ptx"]


@triton.jit
def advanced_in_each(q, n, AFTER: tl.constexpr):
    i = tl.program_id(0)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            while i < n:
                tl.store(q + i, 1)
                i += 2
        with tlx.async_task(num_warps=1, replicate=2):
            while i < n:
                tl.store(q + i, 2 + tlx.async_task_replica_id())
                i += 3
    if AFTER:
        tl.store(q, i)


def test_each_task_starts_with_the_values_from_before() -> None:
    compiled = build(advanced_in_each, "cuda:90", q="*i32", n="i32", AFTER=False)
    assert compiled.asm["ttgir"].count("scf.while") == 3
    with pytest.raises(triton.CompilationError) as caught:
        build(advanced_in_each, "cuda:90", q="*i32", n="i32", AFTER=True)
    error = LanguageError.of(caught.value)
    assert error is not None
    assert "i was assigned within tlx.async_task" in error.what


@triton.jit
def only_the_default(q):
    with tlx.async_tasks(), tlx.async_task("default"):
        tl.store(q, shifted(7))


def test_a_default_task_alone_runs_where_it_stands() -> None:
    compiled = build(only_the_default, "cuda:90", q="*i32")
    assert not partitions(compiled)
    assert "arith.constant 7 : i32" in compiled.asm["ttgir"]
