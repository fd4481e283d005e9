"""Cluster launch control: PTX, in tasks and clusters, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, instructions, line_of
from tlx.test_refused import refused

import remora
import remora.tlx as tlx
from remora import errors


@triton.jit
def following(context, phase, MULTI: tl.constexpr):
    """The context goes through functions."""
    return tlx.clc_consumer(context, phase, multi_ctas=MULTI)


@triton.jit
def tiles(out, STAGES: tl.constexpr, MULTI: tl.constexpr, ALL: tl.constexpr):
    context = tlx.clc_create_context(num_consumers=1, num_stages=STAGES)
    tile = tl.program_id(0)
    k = 0
    to_produce = 1
    to_consume = 0
    while tile != -1:
        tlx.clc_producer(context, to_produce, multi_ctas=MULTI, k=k)
        tl.store(out + tile, tile)
        if ALL:
            tile, y, z = tlx.clc_consumer(context, to_consume, MULTI, k, return_3d=True)
            tl.store(out + y + z, tile)
        else:
            tile = tlx.clc_consumer(context, to_consume, multi_ctas=MULTI, k=k)
        k = (k + 1) % STAGES
        to_produce = to_produce ^ (k == 0)
        to_consume = to_consume ^ (k == 0)


@triton.jit
def tasks(out):
    """Three tasks that follow the same tiles; the first asks for them."""
    context = tlx.clc_create_context(num_consumers=3)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tile = tl.program_id(0)
            to_produce = 1
            phase = 0
            while tile != -1:
                tlx.clc_producer(context, to_produce)
                to_produce ^= 1
                tl.store(out + tile, tile)
                tile = following(context, phase, False)
                phase ^= 1
        with tlx.async_task(num_warps=1, replicate=2):
            tile = tl.program_id(0)
            phase = 0
            while tile != -1:
                tl.store(out + tile + 1024, tile)
                tile = following(context, phase, False)
                phase ^= 1


def ptx(kernel: Any, cluster: tuple[int, int, int] = (1, 1, 1), **given: Any) -> str:
    with remora.use(tlx.in_clusters(cluster)):
        return build(kernel, "cuda:100", out="*i32", **given).asm["ptx"]


def test_a_program_asks_and_reads() -> None:
    text = ptx(tiles, STAGES=1, MULTI=False, ALL=False)
    (asked,) = instructions(text, r"clusterlaunchcontrol\.try_cancel[^;]*;")
    assert "multicast" not in asked
    assert "mbarrier::complete_tx::bytes.b128" in asked
    assert instructions(text, r"@once clusterlaunchcontrol\.try_cancel")
    (bytes_,) = instructions(text, r"expect_tx\.shared::cta\.b64 _, \[\S+\], (\d+);")
    assert bytes_ == "16"
    read = re.search(
        r"ld\.shared\.b128 answer, \[(\S+)\];.*?is_canceled\.pred\.b128 taken, answer;.*?"
        r"@taken clusterlaunchcontrol\.query_cancel\.get_first_ctaid\.v4\.b32\.b128 \{.*?"
        r"fence\.proxy\.async\.shared::cta;.*?mbarrier\.arrive\.shared::cta",
        text, re.DOTALL,
    )  # fmt: skip
    assert read is not None
    # It reads where the answer is written.
    assert f"[{read[1]}]" in asked


def test_all_axes() -> None:
    text = ptx(tiles, STAGES=1, MULTI=False, ALL=True)
    read = instructions(text, r"get_first_ctaid\.v4\.b32\.b128 \{([^}]*)\}")
    assert [re.sub(r"%\w+", "axis", each) for each in read] == [
        "axis, _, _, _", "_, axis, _, _", "_, _, axis, _",
    ]  # fmt: skip


def test_stages_have_answers_and_barriers_of_their_own() -> None:
    text = ptx(tiles, STAGES=4, MULTI=False, ALL=False)
    assert len(instructions(text, r"mbarrier\.init")) == 8


def test_a_cluster_asks_once_and_all_read() -> None:
    text = ptx(tiles, (2, 1, 1), STAGES=1, MULTI=True, ALL=False)
    (asked,) = instructions(text, r"clusterlaunchcontrol\.try_cancel[^;]*;")
    assert "multicast::cluster::all" in asked
    # The first CTA's barrier counts the consumers of all.
    assert instructions(text, r"mapa\.shared::cluster\.u32")
    assert instructions(text, r"mbarrier\.arrive\.shared::cluster")
    # This CTA's place in the cluster is added to the first's.
    assert instructions(text, r"mov\.u32 place, %cluster_ctaid\.x")
    # Barriers are there before another CTA's answer is, and memory until its arrivals are.
    assert text.index("barrier.cluster.wait") < text.index("try_cancel")
    assert text.rindex("barrier.cluster.wait") > text.index("query_cancel")


def test_tasks_follow_the_same_tiles() -> None:
    text = ptx(tasks)
    assert len(instructions(text, r"clusterlaunchcontrol\.try_cancel")) == 1
    assert len(instructions(text, r"query_cancel\.is_canceled")) == 3
    assert instructions(text, r"mbarrier\.init\.shared::cta\.b64 \[\S+\], 3;")


@triton.jit
def wrong(out, WHAT: tl.constexpr):
    if WHAT == "consumers":
        tlx.clc_create_context(0)  # consumers
    context = tlx.clc_create_context(1)  # target
    if WHAT == "context":
        tlx.clc_producer(out, 1)  # context
    if WHAT == "phase":
        tlx.clc_consumer(context)  # phase
    if WHAT == "stage":
        tlx.clc_producer(context, 1, k=1)  # stage
    if WHAT == "run time":
        tlx.clc_producer(context, 1, multi_ctas=tl.load(out) > 0)  # run time


@pytest.mark.parametrize(("what", "target", "kind"), [
    ("target", "cuda:90", errors.UnsupportedByTarget),
    ("target", "hip:gfx950", errors.UnsupportedByTarget),
    ("consumers", "cuda:100", errors.WrongShape),
    ("context", "cuda:100", errors.WrongType),
    ("phase", "cuda:100", errors.WrongType),
    ("stage", "cuda:100", errors.BufferIndexError),
    ("run time", "cuda:100", errors.NotConstant),
])  # fmt: skip
def test_refused(what: str, target: str, kind: type[errors.RemoraError]) -> None:
    error = refused(kind, wrong, target, out="*i32", WHAT=what)
    assert line_of(wrong, f"# {what}") in error.where
    assert error.hint
