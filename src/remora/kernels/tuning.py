"""Which configuration a product runs with.

Known from earlier measurements on this machine (kept on disk), else from the table that comes
with Remora, else by the count of ``cost``. ``tune`` measures, and keeps what it found.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import triton

import remora
from remora.errors import KernelArgumentError
from remora.kernels import cost
from remora.kernels.config import Config
from remora.kernels.cost import Problem
from remora.kernels.operands import Product

_HERE = Path(__file__).parent

#: The form of what is kept on disk.
_FORMAT = 1


@dataclass(frozen=True)
class Device:
    """What a measurement holds for. name: the driver's. arch: ``cuda:90``."""

    name: str
    arch: str
    units: int


@cache
def this_device(index: int = 0) -> Device:
    """A CUDA device by its number."""
    import torch

    found = torch.cuda.get_device_properties(index)
    target = triton.runtime.driver.active.get_current_target()
    return Device(found.name, f"{target.backend}:{target.arch}", found.multi_processor_count)


def problem_of(product: Product, described: bool, epilogue: str) -> Problem:
    """The problem that a product of tensors is."""
    a, b, c = product.a.tensor, product.b.tensor, product.c
    dtype, out_dtype = (str(x.dtype).removeprefix("torch.") for x in (a, c))
    return Problem(
        product.m, product.n, product.k, dtype, out_dtype, (_order(a), _order(b)), described,
        product.batches, epilogue,
    )  # fmt: skip


def _order(x: Any) -> str:
    """How a matrix is stored."""
    return "row" if x.stride(-1) == 1 else "column" if x.stride(-2) == 1 else "strided"


# --- what is known --------------------------------------------------------------------------------


def choose(problem: Problem, device: Device) -> Config:
    """The configuration for a product, without measuring; the same for each call of a process
    until ``tune`` finds a better one."""
    key = problem, device
    if key not in chosen:
        chosen[key] = (
            Kept(problem, device).read()
            or _measured(problem, device)
            or cost.candidates(problem, most=1)[0]
        )
    return chosen[key]


def _measured(problem: Problem, device: Device) -> Config | None:
    """The table's row of a product, or else of the same one stored by rows, without an epilogue."""
    alike = replace(problem, epilogue="")
    keys = [problem, alike]
    if problem.size == 2 and problem.described:
        keys.append(replace(alike, orders=("row", "row")))
    table = _table(device)
    return next((table[key] for key in keys if key in table), None)


#: How often ``tune`` has changed what is chosen.
measured = 0

#: What products run with in this process, in the order in which they were first asked for.
chosen: dict[tuple[Problem, Device], Config] = {}


@cache
def _table(device: Device) -> dict[Problem, Config]:
    """What comes with Remora, of a device; bf16 as fp16, which costs the same."""
    table = json.loads((_HERE / "measured.json").read_text())
    found: dict[Problem, Config] = {}
    for row in table["rows"] if table["device"] == asdict(device) else ():
        values = row["problem"] | {"orders": tuple(row["problem"]["orders"])}
        problem, config = Problem(**values), config_of(row["config"])
        found[problem] = config
        if (problem.dtype, problem.out_dtype) == ("float16", "float16"):
            alike = replace(problem, dtype="bfloat16", out_dtype="bfloat16")
            found.setdefault(alike, config)
    return found


def config_of(values: dict[str, Any]) -> Config:
    """A configuration from JSON."""
    return Config(**values | {"cluster": tuple(values["cluster"])})


class Kept:
    """What was measured for a product on a device, as a file in the user's cache.

    It holds for one release of Triton and of Remora, and one content of the kernels. The file is
    a line with the SHA-256 of the rest, and the rest as JSON.
    """

    def __init__(self, problem: Problem, device: Device) -> None:
        self.key = {
            "format": _FORMAT, "problem": asdict(problem), "device": asdict(device),
            "triton": triton.__version__, "remora": remora.__version__, "kernels": _kernels(),
        }  # fmt: skip
        self.key["problem"]["orders"] = list(problem.orders)  # as JSON has it
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()
        self.file = folder / "remora" / "matmul" / f"{name}.json"

    def read(self) -> Config | None:
        """The fastest configuration; None, with a warning, where the file is damaged."""
        try:
            digest, _, content = self.file.read_bytes().partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(content).hexdigest().encode() == digest:
            values = json.loads(content)
            if values["key"] == self.key:
                return config_of(values["config"])
        warnings.warn(
            f"{self.file} is damaged and ignored; config='auto' measures again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None

    def write(self, config: Config, measured: dict[Config, float]) -> None:
        """Keep it, whole or not at all; without a folder to write to it is measured again."""
        rows = [{"config": asdict(c), "seconds": s} for c, s in measured.items()]
        values = {"key": self.key, "config": asdict(config), "measured": rows}
        content = json.dumps(values).encode()
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.file.parent, delete=False) as new:
                new.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            os.replace(new.name, self.file)


@cache
def _kernels() -> str:
    """The content of the kernels."""
    digest = hashlib.sha256()
    for file in sorted(_HERE.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


# --- what is measured -----------------------------------------------------------------------------


def tune(
    problem: Problem,
    device: Device,
    run: Callable[[Config], Any],
    timer: Timer,
) -> Config:
    """The fastest of the candidates, measured unless that is kept from before.

    Args:
        run: computes the product with a configuration; the first call compiles.
        timer: gives for a function another one, which says how many seconds it takes.

    Raises:
        KernelArgumentError: no candidate runs; the first one's error is its cause.
    """
    global measured
    with _tuning:  # measurements would disturb each other
        kept = Kept(problem, device)
        best = kept.read()
        if best is None:
            tried = cost.candidates(problem)
            runnable = compile_together(tried, run)
            seconds = measure(runnable, run, timer)
            best = min(seconds, key=seconds.__getitem__)
            kept.write(best, seconds)
        chosen[problem, device] = best
        measured = measured + 1
        return best


Timer = Callable[[Callable[[], Any]], Callable[[], float]]

_tuning = threading.Lock()


def compile_together(tried: Sequence[Config], run: Callable[[Config], Any]) -> list[Config]:
    """Run each, at the same time; those that ran.

    In threads: three quarters of a compilation are in LLVM and ptxas, which run side by side.
    What fails beside others is tried alone: parses that run side by side may fail in CPython
    3.11 ("AST constructor recursion depth mismatch").

    Raises:
        KernelArgumentError: none ran.
    """
    errors: list[Exception] = []

    def attempt(config: Config, context: contextvars.Context) -> bool:
        try:
            context.run(run, config)
        except Exception as error:
            errors.append(error)
            return False
        return True

    # A pipeline that is in use holds for the threads too.
    contexts = [contextvars.copy_context() for _ in tried]
    with ThreadPoolExecutor(len(tried)) as pool:
        together = list(pool.map(attempt, tried, contexts))
    ran = [
        config
        for config, context, did in zip(tried, contexts, together, strict=True)
        if did or attempt(config, context)
    ]
    if not ran:
        raise KernelArgumentError(
            f"none of {len(tried)} configurations runs",
            where="remora.kernels.tuning",
            hint="the first one's error is this error's cause",
        ) from errors[0]
    return ran


#: Seconds after which no new round of measurements begins, and the most rounds.
_LONGEST, _ROUNDS = 5.0, 7


def measure(
    configs: Sequence[Config], run: Callable[[Config], Any], timer: Timer
) -> dict[Config, float]:
    """Median seconds of each.

    In turn, round after round, each round beginning with another one: what the chip's clock
    and temperature do meets all alike.
    """
    started = time.perf_counter()
    timers = {c: timer(partial(run, c)) for c in configs}
    samples: dict[Config, list[float]] = {c: [] for c in configs}
    for turn in range(_ROUNDS):
        first = turn % len(configs)
        for config in (*configs[first:], *configs[:first]):
            samples[config].append(timers[config]())
        if time.perf_counter() - started > _LONGEST:
            break
    return {config: median(several) for config, several in samples.items()}


def timed(run: Callable[[], Any], times: int) -> float:
    """Seconds of one of so many launches back to back, by CUDA events."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / times


def gpu_timer(function: Callable[[], Any]) -> Callable[[], float]:
    """Times about 20 ms of launches back to back, by CUDA events; seconds of one.

    Launches that the CPU could not keep up with are replayed from a CUDA graph.
    """
    import torch

    once = max(timed(function, 3), 1e-6)
    times = max(1, min(1000, int(0.02 / once)))
    if once > _LAUNCH:
        return partial(timed, function, times)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(times):
                function()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return lambda: timed(graph.replay, 1) / times


#: Seconds of a call under which launches, not the GPU, may be what is timed.
_LAUNCH = 2e-3
