"""Cluster launch control under the reference meaning: run by ``test_meaning.py``."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import remora.tlx as tlx
from remora import errors

assert triton.knobs.runtime.interpret


@triton.jit
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


def test_an_answer_that_nobody_asked_for() -> None:
    out = torch.zeros(8, dtype=torch.int32)
    with pytest.raises(Exception, match="never ends") as caught:
        tiles[(1,)](out, out, False, False)
    error = errors.WaitNeverEnds.of(caught.value)
    assert error is not None
    assert "0 phases" in error.what
