"""Cluster launch control under the reference meaning: run by ``test_meaning.py``."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import remora.tlx as tlx
from remora import errors

assert triton.knobs.runtime.interpret


@tlx.jit
def tiles(out, places, ASK: tl.constexpr, ALL: tl.constexpr):
    context = tlx.clc_create_context(1)
    tile = tl.program_id(0)
    to_produce = 1
    to_consume = 0
    while tile != -1:
        if ASK:
            tlx.clc_producer(context, to_produce)
        to_produce ^= 1
        tl.store(out + tile, tl.load(out + tile) + tile)
        if ALL:
            tile, y, z = tlx.clc_consumer(context, to_consume, return_3d=True)
            tl.store(places, y + z)
        else:
            tile = tlx.clc_consumer(context, to_consume)  # consumed
        to_consume ^= 1


@pytest.mark.parametrize("every_axis", [False, True])
def test_every_tile_is_done_once(every_axis: bool) -> None:
    out, places = torch.zeros(8, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    tiles[(8,)](out, places, True, every_axis)
    assert out.tolist() == list(range(8))
    assert places.item() == (-2 if every_axis else 0)


@tlx.jit
def shared(out, order, MULTI: tl.constexpr):
    """Tiles of clusters; order: who did it, and as which of its tiles."""
    CTAS: tl.constexpr = 2 if MULTI else 1
    context = tlx.clc_create_context(2 * CTAS, num_stages=2)
    me = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    with tlx.async_tasks():
        with tlx.async_task(num_warps=1):
            x, y, step = tl.program_id(0), tl.program_id(1), 0
            while x != -1:
                tlx.clc_producer(context, (step // 2 & 1) ^ 1, multi_ctas=MULTI, k=step % 2)
                x, y, _ = tlx.clc_consumer(
                    context, step // 2 & 1, multi_ctas=MULTI, k=step % 2, return_3d=True
                )
                step += 1
        with tlx.async_task("default"):
            x, y, step = tl.program_id(0), tl.program_id(1), 0
            while x != -1:
                tile = x + tl.num_programs(0) * y
                tl.store(out + tile, tl.load(out + tile) + 1)
                tl.store(order + 2 * tile, me)
                tl.store(order + 2 * tile + 1, step)
                x, y, _ = tlx.clc_consumer(
                    context, step // 2 & 1, multi_ctas=MULTI, k=step % 2, return_3d=True
                )
                step += 1


@pytest.mark.parametrize("several", [False, True])
def test_a_cluster_takes_the_places_of_others(several: bool) -> None:
    out = torch.zeros(3, 4, dtype=torch.int32)
    order = torch.full((12, 2), -1, dtype=torch.int32)
    size = (2, 1, 1) if several else (1, 1, 1)
    shared[(4, 3)](out, order, several, ctas_per_cga=size)
    assert (out == 1).all()
    # The first cluster runs all tiles: each of its CTAs those in its own place.
    assert order[:, 0].tolist() == [i % size[0] for i in range(12)]
    assert sorted(order[:: size[0], 1].tolist()) == list(range(12 // size[0]))


def test_a_kernel_whose_programs_triton_starts() -> None:
    """Nobody takes another's place there, and every program runs its tile."""
    out, places = torch.zeros(8, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    triton.jit(tiles.fn)[(8,)](out, places, True, True)
    assert out.tolist() == list(range(8))
    assert places.item() == -2


def test_an_answer_that_nobody_asked_for() -> None:
    out = torch.zeros(8, dtype=torch.int32)
    with pytest.raises(Exception, match="never ends") as caught:
        tiles[(1,)](out, out, False, False)
    error = errors.WaitNeverEnds.of(caught.value)
    assert error is not None
    assert "0 phases" in error.what
