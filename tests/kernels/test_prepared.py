"""Launches that are prepared once: what they hand to Triton's launcher."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from launching import Launcher, Pointer, Utilities, standing_in
from triton.backends.nvidia import driver as nvidia

from remora.kernels.prepared import Described, Launch, Launches, Part, Whole


@triton.jit
def fill(x, n, value, SIZE: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(x + at, value, (at < n) | (not MASKED))


class At(Pointer):
    """A tensor at an address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def test_the_second_launch_is_as_the_first_one_but_for_its_addresses(fresh_cache: Path) -> None:
    seen: list[Any] = []

    class Recording(Launcher):
        def __init__(self, source: Any, metadata: Any) -> None:
            """Nothing to keep."""

        def __call__(self, *arguments: Any) -> None:
            seen.append(arguments)

    launch = Launch(fill, 5, (Whole(1), 48, 2.0), SIZE=64, MASKED=True, num_warps=2)
    tensors = At(16), At(32)
    with standing_in():
        triton.runtime.driver.active.launcher_cls = Recording
        for _ in range(2):
            launch(tensors, [x.address for x in tensors], 0)
        fill[(5,)](tensors[1], 48, 2.0, SIZE=64, MASKED=True, num_warps=2)
    first, second, stock = seen
    assert len(first) == len(second) == len(stock)
    for arguments in first, second:
        assert arguments[:3] == stock[:3] == (5, 1, 1)
        assert arguments[4] is stock[4]  # the function
    assert first[9:] == stock[9:] == (tensors[1], 48, 2.0, 64, True)
    assert second[9:] == (32, 48, 2.0, 64, True)


def test_descriptors_follow_their_tensors() -> None:
    seen: list[Any] = []

    class Compiled:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *arguments, stream: seen.append((grid, arguments, stream))

    part = Part(1, 512, torch.float16, 4096).after(1024)
    launch = Launch(fill, 3, (Described(part, (2, 8, 16), (1, 8, 8)), part, 7), SIZE=8, MASKED=1)
    launch._compiled = Compiled()
    for address in (1 << 12, 1 << 12, 1 << 13):
        launch((), [0, address], "stream")
    for (grid, (described, *rest), stream), address in zip(
        seen, (1 << 12, 1 << 12, 1 << 13), strict=True
    ):
        assert (grid, stream) == ((3, 1, 1), "stream")
        assert rest == [address + 512 + 2048, 7, 8, 1]
        assert described.base.data_ptr() == address + 512 + 2048
        assert (described.shape, described.strides) == ([2, 8, 16], [128, 16, 1])
        assert described.block_shape == [1, 8, 8]


@triton.jit
def copy_row(pairs, x, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(x + at, pairs.load([0, 0]).reshape(SIZE), at < n)


class OnDevice(At):
    dtype, device = torch.float32, torch.device("cuda", 0)


class KernelArgument:
    """Of Triton's C extension, which needs CUDA's driver."""

    def __init__(self, nested_tuple: Any, type: int) -> None:
        self.place = nested_tuple, type

    def __eq__(self, other: Any) -> bool:
        return self.place == other.place


def test_a_known_launch_hands_on_what_tritons_launcher_does(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed, encoded, told = list[Any](), list[int](), list[Any]()

    class Library(Utilities):
        launch = staticmethod(lambda *given: handed.append(given))
        build_signature_metadata = staticmethod(lambda types: bytes(len(types)))

        @staticmethod
        def fill_tma_descriptor_tiled(address: int, *_: Any) -> str:
            encoded.append(address)
            return f"descriptor of {address}"

    monkeypatch.setattr(nvidia, "PyKernelArg", KernelArgument, raising=False)
    for number, name in enumerate(("ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE")):
        monkeypatch.setattr(nvidia, name, number, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    launches = Launches(2)
    pairs = Described(Whole(1), (4, 64), (1, 64))
    launches.add(copy_row, 7, pairs, Whole(2), 60, SIZE=64, num_warps=2)
    launches.add(fill, 5, Whole(1), 48, 2.0, SIZE=64, MASKED=True)
    tensors, others = ([OnDevice(n << 12) for n in places] for places in ((1, 2, 3), (1, 4, 3)))
    hooks = triton.knobs.runtime.launch_enter_hook
    with standing_in():
        active = triton.runtime.driver.active
        active.launcher_cls, active.utils = nvidia.CudaLauncher, Library
        active.get_current_stream = lambda device: 17
        for given in (tensors, tensors, tensors, others, others):
            launches(given)
        hooks.add(told.append)
        try:
            launches(tensors)
        finally:
            hooks.remove(told.append)

    def seen(call: int, kernel: int) -> Any:
        """All but the hooks, and what they are told."""
        given = handed[2 * call + kernel]
        arguments = [x.data_ptr() if isinstance(x, At) else x for x in given[-1]]
        return (*given[:8], *given[11:-1], arguments)

    assert len(handed) == 2 * 6
    row, filled = seen(0, 0), seen(0, 1)  # Triton's own
    assert row[:4] == (7, 1, 1, 17)
    assert row[-1] == ["descriptor of 8192", 4, 64, 64, 1, 3 << 12, 60, 64]
    assert filled[:4] == (5, 1, 1, 17)
    assert filled[-1] == [2 << 12, 48, 2.0, 64, True]
    for call in (1, 2, 5):
        assert (seen(call, 0), seen(call, 1)) == (row, filled)
    for call in (3, 4):
        assert seen(call, 0)[-1] == ["descriptor of 16384", 4, 64, 64, 1, 3 << 12, 60, 64]
        assert seen(call, 1)[-1] == [4 << 12, 48, 2.0, 64, True]
    assert all(given[8:11] == (None, None, None) for given in handed[2:10])
    # By Triton, once here for each address, and by Triton for those who want to be told.
    assert encoded == [2 << 12, 2 << 12, 4 << 12, 2 << 12]
    assert handed[10][9] is hooks


def test_scratch_memory() -> None:
    launches = Launches(3)
    parts = [launches.room(n, torch.int16) for n in (5, 128, 129, 1)]
    assert [p.offset for p in parts] == [0, 256, 512, 1024]
    assert launches.bytes == 1280
    memory = torch.arange(1280, dtype=torch.uint8)
    for x in parts:
        assert torch.equal(
            x.of([None, None, None, memory]),
            memory[x.offset : x.offset + 2 * x.count].view(torch.int16),
        )
