"""``attention`` on CDNA and Blackwell: which kernel it launches, and what that is compiled to."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton
from launching import Launcher, standing_in

from remora.analysis import of_kernel
from remora.host import features
from remora.host.targets import gpu_target
from remora.kernels import attention, attention_elsewhere
from remora.kernels.attention_cdna import attention_cdna

pytestmark = pytest.mark.skipif(not features().copies_to_lds, reason="from Triton 3.8 on")


@contextmanager
def launches(target: str) -> Iterator[list[tuple[str, tuple[int, ...], tuple[Any, ...]]]]:
    """The kernel, grid and arguments of each launch; compiled for the target."""
    seen: list[Any] = []

    class Recording(Launcher):
        def __init__(self, source: Any, metadata: Any) -> None:
            self.name = source.name

        def __call__(self, *arguments: Any) -> None:
            seen.append((self.name, arguments[:3], arguments[9:]))

    with standing_in(gpu_target(target)):
        triton.runtime.driver.active.launcher_cls = Recording
        yield seen


class Kernel:
    """Stands in for a kernel: is launched and not compiled."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name, self.seen = name, seen

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **constants: self.seen.append((self.name, grid, args, constants))


def operands(
    dim: int = 128, queries: int = 512, keys: int = 512, key_heads: int = 4, dtype: Any = None
) -> list[Any]:
    """On no device: (2, 4, queries, dim), (2, key_heads, keys, dim) twice."""
    make = {"dtype": dtype or torch.float16, "device": "meta"}
    shapes = [(2, 4, queries, dim)] + [(2, key_heads, keys, dim)] * 2
    return [torch.empty(shape, **make) for shape in shapes]


def turned() -> list[Any]:
    """With a last dimension that is not contiguous."""
    return [x.mT.contiguous().mT for x in operands()]


@pytest.mark.parametrize(("given", "more", "on_cdna", "on_blackwell"), [
    (operands(), {}, "cdna", "blackwell"),
    (operands(64, 70, 333, 2, torch.bfloat16), {}, "cdna", "blackwell"),
    (operands(), {"causal": True}, "cdna", "blackwell"),
    (operands(queries=8), {"causal": True, "lower_right": True}, "cdna", "blackwell"),
    (operands(keys=8), {"causal": True, "lower_right": True}, "cdna", "plain"),  # see no key
    (operands(), {"window": (None, 3)}, "cdna", "blackwell"),
    (operands(), {"window": (3, 0)}, "plain", "plain"),
    (operands(96), {}, "plain", "plain"),
    (operands(256), {}, "plain", "plain"),
    (turned(), {}, "plain", "blackwell"),  # copied first
])  # fmt: skip
@pytest.mark.parametrize("target", ["hip:gfx942", "hip:gfx950", "cuda:100"])
def test_the_kernel(
    target: str, given: Any, more: Any, on_cdna: str, on_blackwell: str, monkeypatch: Any
) -> None:
    seen: list[Any] = []
    for module, name in (
        (attention_elsewhere, "attention_cdna"), (attention_elsewhere, "attention_blackwell"),
        (sys.modules["remora.kernels.attention"], "attention_plain"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, Kernel(name, seen))
    with standing_in(gpu_target(target)):
        result, sums = attention(*given, **more, return_sums=True)
    assert (result.shape, sums.shape) == (given[0].shape, given[0].shape[:-1])
    ((name, grid, _, constants),) = seen
    assert name == "attention_" + (on_cdna if target.startswith("hip") else on_blackwell)
    # Heads and batch, on two sides of the grid or on one.
    assert grid[1:] == ((4, 2) if name == "attention_plain" else (8,))
    if name != "attention_plain":
        assert constants["GROUP"] == 4 // given[1].shape[1]


@pytest.mark.parametrize("target", ["hip:gfx942", "cuda:100"])
def test_more_heads_than_a_side_of_a_grid(target: str, monkeypatch: Any) -> None:
    seen: list[Any] = []
    for name in ("attention_cdna", "attention_blackwell"):
        monkeypatch.setattr(attention_elsewhere, name, Kernel(name, seen))
    q, k, v = (torch.empty(40_000, h, 8, 64, dtype=torch.float16, device="meta") for h in (4, 2, 2))
    with standing_in(gpu_target(target)):
        attention(q, k, v)
    assert [grid for _, grid, _, _ in seen] == [(1, 65_532), (1, 65_532), (1, 28_936)]


@pytest.mark.parametrize(("dim", "target", "given"), [
    (128, "hip:gfx942", {}), (64, "hip:gfx950", {}), (64, "hip:gfx942", {}),
    (64, "hip:gfx942", {"queries": 300, "keys": 333, "key_heads": 2}),
])  # fmt: skip
def test_compiled_for_cdna(dim: int, target: str, given: dict[str, int]) -> None:
    attention_cdna.device_caches.clear()
    with launches(target) as seen:
        attention(*operands(dim, **given), causal=True)
    ((name, launched_on, _),) = seen
    assert (name, launched_on) == ("attention_cdna", (2, 8, 1))
    ((compiled,),) = [list(c[0].values()) for c in attention_cdna.device_caches.values()]
    assembly = compiled.asm["amdgcn"]
    # Products read eight bytes or more; values are turned on their way to shared memory.
    assert "ds_read_u16" not in assembly
    # Nothing is spilled to memory.
    assert re.findall(r"\.private_segment_fixed_size: (\d+)", assembly) == ["0"]
    assert re.findall(r"\.vgpr_spill_count: +(\d+)", assembly) == ["0"]
    # Sums are where vector instructions scale them: no registers are for products only.
    assert re.findall(r"\.agpr_count: +(\d+)", assembly) == ["0"]
    assert "v_accvgpr" not in assembly
    # With a block's softmax, vector instructions and products take about as long at 128.
    loop = max(of_kernel(compiled).loops, key=lambda one: one.flops)
    assert loop.cycles["vector"] < (1.05 if dim == 128 else 2.0) * loop.cycles["matrix"]


@pytest.mark.parametrize("dim", [64])
def test_compiled_for_blackwell(dim: int) -> None:
    with launches("cuda:100") as seen:
        attention(*operands(dim, 300, 333, 2))
    ((name, grid, arguments),) = seen
    assert (name, grid) == ("attention_blackwell", (2, 8, 1))
    assert arguments[6:10] == (4, 300, 333, 333)
