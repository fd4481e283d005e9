"""What the GPU's driver counts while something runs: energy, power, clock, temperature.

Through NVML, by package ``nvidia-ml-py``; without it, or where the driver does not count, the
numbers are left out.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any


class Meter:
    """Counts of CUDA's first GPU."""

    def __init__(self) -> None:
        self.nvml: Any = None
        with suppress(Exception):  # an NVMLError has no common base in old releases
            import pynvml
            import torch

            pynvml.nvmlInit()
            # The driver counts GPUs that CUDA does not show, too.
            uuid = torch.cuda.get_device_properties(0).uuid
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)
            self.nvml = pynvml

    def joules(self) -> float:
        """Since the driver was loaded."""
        return self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1e3

    def power_limit(self) -> float:
        """Watts."""
        return self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1e3

    def highest_clock(self) -> float:
        """Of a multiprocessor, MHz."""
        return self.nvml.nvmlDeviceGetMaxClockInfo(self.handle, self.nvml.NVML_CLOCK_SM)

    def events(self, launch: Callable[[], Any], ms: float) -> dict[str, float]:
        """What a launch takes, of launches back to back for some milliseconds.

        The first quarter is left out: the clock is on its way to what the power allows.

        Returns:
            ms: the median, by CUDA events between launches; low_ms and high_ms: a fifth are
            below and above. Where it is counted: joules of a launch, watts, clock_mhz and
            celsius.
        """
        import torch

        for _ in range(3):
            launch()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(5):
            launch()
        torch.cuda.synchronize()
        once = max((time.perf_counter() - started) / 5, 1e-5)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(max(5, int(ms / once / 1e3)))]
        found: dict[str, float] = {}
        samples: list[tuple[int, float, int]] = []
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(samples, done))
        watcher.start()
        before = self.joules() if self.nvml else 0.0
        marks[0].record()
        for mark in marks[1:]:
            launch()
            mark.record()
        torch.cuda.synchronize()
        if self.nvml:
            found["joules"] = (self.joules() - before) / (len(marks) - 1)
        done.set()
        watcher.join()
        each = [a.elapsed_time(b) for a, b in pairwise(marks)]
        each = sorted(each[len(each) // 4 :])
        fifth = len(each) // 5
        found |= {
            "ms": statistics.median(each), "low_ms": each[fifth], "high_ms": each[-1 - fifth]
        }  # fmt: skip
        # The driver's power is an average over the time before.
        later = samples[len(samples) // 2 :]
        for i, name in enumerate(("clock_mhz", "watts", "celsius") if later else ()):
            found[name] = statistics.median(sample[i] for sample in later)
        return found

    def _watch(self, samples: list[tuple[int, float, int]], done: threading.Event) -> None:
        while self.nvml and not done.wait(0.02):
            with suppress(self.nvml.NVMLError):
                samples.append((
                    self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM),
                    self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3,
                    self.nvml.nvmlDeviceGetTemperature(
                        self.handle, self.nvml.NVML_TEMPERATURE_GPU
                    ),
                ))  # fmt: skip
