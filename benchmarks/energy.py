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
from typing import Any


class Meter:
    """Counts of the first GPU."""

    def __init__(self) -> None:
        self.nvml: Any = None
        with suppress(Exception):  # an NVMLError has no common base in old releases
            import pynvml

            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)
            self.nvml = pynvml

    def joules(self) -> float:
        """Since the driver was loaded."""
        return self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1e3

    def over(self, launch: Callable[[], Any], seconds: float) -> dict[str, float]:
        """What launches take, back to back for some seconds.

        Returns:
            ms, of a launch; and where it is counted: joules of a launch, watts, clock_mhz
            (median over the time) and celsius.
        """
        import torch

        launch()
        torch.cuda.synchronize()
        started = time.perf_counter()
        launch()
        torch.cuda.synchronize()
        once = max(time.perf_counter() - started, 1e-5)
        burst = max(1, int(0.02 / once))
        samples: list[tuple[int, float, int]] = []
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(samples, done))
        watcher.start()
        count, before = 0, self.joules() if self.nvml else 0.0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for _ in range(burst):
                launch()
            count += burst
            torch.cuda.synchronize()
        spent = time.perf_counter() - started
        found = {"ms": spent / count * 1e3}
        if self.nvml:
            found["joules"] = (self.joules() - before) / count
        done.set()
        watcher.join()
        if samples:
            # The driver's power is an average over the time before.
            later = samples[len(samples) // 2 :]
            for i, name in enumerate(("clock_mhz", "watts", "celsius")):
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
