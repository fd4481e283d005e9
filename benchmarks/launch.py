"""What a launch costs on the CPU: stock Triton, Remora, and hooks as others write them.

    python benchmarks/launch.py [--launches 100000] [--json FILE] [--peer PYTHON]

Without a GPU a driver stands in that launches nothing, so that the time is
Triton's own and the hook's. The ways of launching take turns, a thousand
launches each, so that none has a quieter machine than the others; the time of a
way is the median of its turns, in CPU time of the thread. Stock is measured twice: the
second is the noise. The peer, triton-utlx, is in a virtual environment of its own,
whose Python is given: its hook is compared with stock Triton in its own process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget

TURN = 1000


class Launcher:
    """What Triton makes for each kernel."""

    def __init__(self, *args: Any) -> None: ...

    def __call__(self, *args: Any) -> None: ...


class Utilities:
    """A driver's library."""

    @staticmethod
    def load_binary(*args: Any) -> tuple[int, ...]:
        return 1, 1, 32, 0, 1024

    @staticmethod
    def unload_module(*args: Any) -> None: ...

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}


class StandIn:
    """A driver that launches nothing."""

    launcher_cls, utils = Launcher, Utilities

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> None:
        return None


class Pointer:
    """An argument for the stand-in."""

    dtype = "float32"

    def data_ptr(self) -> int:
        return 16


def argument() -> tuple[Any, str]:
    """A pointer to launch with, and what it is launched on."""
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return torch.zeros(64, device="cuda"), torch.cuda.get_device_name()
    triton.runtime.driver.set_active(StandIn())
    return Pointer(), "a stand-in for the driver"


def new_kernel() -> Any:
    @triton.jit
    def kernel(x, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), n.to(tl.float32))

    return kernel


@contextmanager
def hook(function: Any) -> Iterator[None]:
    """Another's hook in force."""
    before = knobs.runtime.add_stages_inspection_hook
    knobs.runtime.add_stages_inspection_hook = function
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = before


def constant_hook(*stages: Any) -> tuple[str, str]:
    """Says that it is there, and no more."""
    return "constant", "constant"


def hashing_hook(*stages: Any) -> tuple[str, str]:
    """As Triton's plugin documentation shows it: reads and hashes its file on each launch."""
    text = Path(__file__).read_text()
    return text, hashlib.sha256(text.encode()).hexdigest()


def ways() -> dict[str, tuple[Any, Any]]:
    """Name, context, and kernel of each way of launching."""
    import remora
    from remora.tlx_plugin import plugin

    pipeline = remora.Pipeline("launch").insert(remora.stock("common.cse"), at="ttir/end")
    kernel, attached = new_kernel(), remora.attach(pipeline)(new_kernel())
    remoras = knobs.runtime.add_stages_inspection_hook  # attaching installs it

    @contextmanager
    def tlx() -> Iterator[None]:
        with hook(None):
            plugin.activate()
            try:
                yield
            finally:
                plugin.deactivate()

    @contextmanager
    def using() -> Iterator[None]:
        with hook(None), remora.use(pipeline):
            yield

    return {
        "stock": (lambda: hook(None), kernel),
        "stock again": (lambda: hook(None), kernel),
        "use(pipeline)": (using, kernel),
        "TLX active": (tlx, kernel),
        "attached pipeline": (lambda: hook(remoras), attached),
        "beside an attached kernel": (lambda: hook(remoras), kernel),
        "a hook of constants": (lambda: hook(constant_hook), kernel),
        "a hook that hashes its file": (lambda: hook(hashing_hook), kernel),
    }


def microseconds(launch: Callable[[], Any]) -> float:
    """CPU time of this thread for a launch, over one turn."""
    started = time.thread_time()
    for _ in range(TURN):
        launch()
    return (time.thread_time() - started) / TURN * 1e6


def ways_of_the_peer() -> dict[str, tuple[Any, Any]]:
    """In a process of the peer's: stock, and with the hook that importing it sets."""
    import utlx_plugin  # noqa: F401

    kernel, theirs = new_kernel(), knobs.runtime.add_stages_inspection_hook
    return {
        "stock": (lambda: hook(None), kernel),
        "stock again": (lambda: hook(None), kernel),
        "the peer's hook": (lambda: hook(theirs), kernel),
    }


def measure(launches: int, all_ways: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Launch in every way, in turn."""
    pointer, where = argument()
    turns: dict[str, list[float]] = {}
    for turn in range(launches // TURN + 1):
        for name, (context, kernel) in all_ways.items():
            grid = kernel[(1,)]
            with context():
                grid(pointer, 5, BLOCK=32)  # compiled, and warm
                took = microseconds(lambda grid=grid: grid(pointer, 5, BLOCK=32))
            if turn:  # the first is to warm up
                turns.setdefault(name, []).append(took)
    typical = {name: statistics.median(several) for name, several in turns.items()}
    stock = typical["stock"]
    return {
        "launches": launches,
        "on": where,
        "ways": {
            name: {
                "ratio": round(took / stock, 3),
                "more_us": round(took - stock, 3),
                "us": round(took, 3),
            }
            for name, took in typical.items()
        },
    }


def show(result: dict[str, Any]) -> None:
    print(f"Triton {result['machine']['triton']}, {result['launches']} launches, {result['on']}")
    for name, row in result["ways"].items():
        print(f"{row['ratio']:7.3f}  {row['more_us']:+8.2f} us  {row['us']:8.2f} us  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", metavar="PYTHON", help="of an environment with triton-utlx")
    parser.add_argument("--of-the-peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of_the_peer:
        result = machine.record() | measure(arguments.launches, ways_of_the_peer())
        print(json.dumps(result))
        return
    result = machine.record() | measure(arguments.launches, ways())
    show(result)
    if arguments.peer:
        command = ["--of-the-peer", "--launches", str(arguments.launches)]
        result["peer"] = machine.answer(arguments.peer, __file__, *command)
        show(result["peer"])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
