"""Launches without a GPU: a driver that compiles for a target and launches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget


class Launcher:
    """What Triton makes for each kernel, to launch it."""

    def __init__(self, *args: Any) -> None:
        pass

    def __call__(self, *args: Any) -> None:
        pass


class Utilities:
    """What Triton asks of a driver's library."""

    @staticmethod
    def load_binary(*args: Any) -> tuple[int, ...]:
        return 1, 1, 32, 0, 1024

    @staticmethod
    def unload_module(*args: Any) -> None:
        pass

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}


class Driver:
    """Stands in for a GPU's driver."""

    launcher_cls = Launcher
    utils = Utilities

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> None:
        return None

    def get_benchmarker(self) -> Any:
        """For the autotuner: every configuration takes as long."""

        def benchmark(call: Any, *, quantiles: Any = None, **_: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return benchmark


class Pointer:
    """An argument of a kernel, aligned to 16 bytes."""

    dtype = "float32"

    def data_ptr(self) -> int:
        return 16


def add_one() -> Any:
    """A new kernel: none of its launches is in memory."""

    @triton.jit
    def kernel(x, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at, at < n) + 1.0, at < n)

    return kernel


@contextmanager
def standing_in(target: GPUTarget = GPUTarget("cuda", 90, 32)) -> Iterator[None]:  # noqa: B008
    """Launches inside go to the stand-in."""
    config = triton.runtime.driver
    before = config._active
    config.set_active(Driver(target))
    try:
        yield
    finally:
        config._active = before
