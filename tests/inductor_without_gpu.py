"""Run by ``tests/test_inductor.py``: ``torch.compile`` for a GPU that is not there.

torch is built for the CPU. In this process it is told of an H200, so that Inductor
goes all the way: it traces, generates its kernels, and has Triton compile them.
Only the launch at the end fails. Prints, for each case, the tags in every
kernel's PTX, as JSON.
"""

from __future__ import annotations

import json
import sys
import tomllib
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from launching import Driver
from torch._dynamo import device_interface
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config, scheduler
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.fx_passes import misc_patterns
from torch._inductor.runtime import triton_helpers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _triton
from triton.backends.compiler import GPUTarget

import remora
from remora import inductor

NO_GPU = "compiled without CUDA support"
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
GROUP = "torch_dynamo_backends"


class Properties:
    """Of an H200."""

    name, gcnArchName = "NVIDIA H200", ""
    major, minor, warp_size, multi_processor_count = 9, 0, 32, 132
    regs_per_multiprocessor, max_threads_per_multi_processor = 65536, 2048
    max_threads_per_block, total_memory, L2_cache_size = 1024, 141 << 30, 60 << 20
    shared_memory_per_block_optin, shared_memory_per_multiprocessor = 232448, 233472


class Interface(device_interface.CudaInterface):
    """What Dynamo and Inductor ask of CUDA while they compile."""

    class Worker(device_interface.CudaInterface.Worker):
        current_device = staticmethod(lambda: 0)
        get_device_properties = staticmethod(lambda device=None: Properties)

    current_device = staticmethod(lambda: 0)
    exchange_device = maybe_exchange_device = staticmethod(lambda device: 0)
    get_compute_capability = staticmethod(lambda device=None: 90)
    get_device_properties = staticmethod(lambda device=None: Properties)
    get_raw_stream = staticmethod(lambda device: 0)
    is_available = staticmethod(lambda: True)
    is_bf16_supported = staticmethod(lambda including_emulation=False: True)
    is_triton_capable = staticmethod(lambda device=None: True)
    raise_if_triton_unavailable = staticmethod(lambda device=None: None)
    set_device = staticmethod(lambda device: None)
    synchronize = staticmethod(lambda device=None: None)


class Triton(Driver):
    """The driver, as Inductor asks for it."""

    def get_active_torch_device(self) -> Any:
        return torch.device("cuda", 0)


def stand_in() -> None:
    """Let torch and Triton believe in the GPU, until something is launched."""
    triton.runtime.driver.set_active(Triton(GPUTarget("cuda", 90, 32)))
    device_interface.get_interface_for_device("cpu")  # registers torch's own first
    device_interface.register_interface_for_device("cuda", Interface)
    device_interface.register_interface_for_device("cuda:0", Interface)
    torch.cuda.get_device_properties = lambda device=None: Properties
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.version.cuda = "12.8"
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    triton_helpers.set_driver_to_gpu = lambda: None
    _triton.has_triton = scheduler.has_triton = lambda: True
    misc_patterns._misc_patterns_init = lambda device=None: None  # it computes on the device


def tagged(tag: str) -> remora.Pipeline:
    return remora.Pipeline(tag).override(
        "ptx", lambda text, compile_: f"{compile_(text)}\n//!{tag}"
    )


def new_kernel() -> Any:
    @triton.jit
    def twice(x, out, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)

    return twice


PLAIN, OWN = new_kernel(), remora.attach(tagged("own"))(new_kernel())
CONFIGS = [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})]
OVER = remora.attach(tagged("own"))(triton.autotune(CONFIGS, key=[])(new_kernel()))
UNDER = triton.autotune(CONFIGS, key=[])(remora.attach(tagged("own"))(new_kernel()))


@remora.attach(tagged("inner"))
@triton.jit
def inner(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)


@triton.jit
def outer(x, out, n, BLOCK: tl.constexpr):
    inner(x, out, n, BLOCK)


def user(kernel: Any) -> Any:
    """A function that launches a kernel, and nothing else."""
    given = {} if hasattr(kernel, "configs") else {"BLOCK": 128}

    def function(x: Any) -> Any:
        out = torch.empty_like(x)
        kernel[(1,)](x, out, 128, **given)
        return out

    return function


def mixed(x: Any) -> Any:
    """With kernels of Inductor's around the user's."""
    return torch.cos(user(OWN)(torch.sin(x)))


def kernels(function: Any, backend: Any = "inductor", use: tuple[Any, ...] = ()) -> Any:
    """Compile a function; kernel to the tags in its PTX, of each configuration."""
    torch._dynamo.reset()
    PyCodeCache.modules.clear()
    compiled = torch.compile(function, backend=backend)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = torch.empty(128, device="cuda")
    with remora.use(*use) if use else nullcontext(), mode:
        try:
            compiled(x)
        except RuntimeError as error:
            if NO_GPU not in str(error):
                raise
    found: dict[str, list[list[str]]] = {}
    for module in PyCodeCache.modules:
        for name, value in vars(module).items():
            for result in getattr(value, "compile_results", ()):
                ptx = result.kernel.asm["ptx"].splitlines()
                found.setdefault(name.rstrip("_0123456789"), []).append(
                    [line[3:] for line in ptx if line.startswith("//!")]
                )
    return found


def main() -> None:
    stand_in()
    settings = {
        "compile_threads": 1, "use_static_triton_launcher": False, "fx_graph_cache": True,
    }  # fmt: skip
    with config.patch(settings), functorch_config.patch(enable_autograd_cache=False):
        cases = {
            "plain": kernels(user(PLAIN)),
            "attached": kernels(user(OWN)),
            "attached over autotune": kernels(user(OVER)),
            "attached under autotune": kernels(user(UNDER)),
            "called": kernels(user(outer)),
            "called, attached": kernels(user(remora.attach(tagged("outer"))(outer))),
            "mixed": kernels(mixed),
            "mixed, use": kernels(mixed, inductor.backend, (tagged("a"),)),
            "mixed, another": kernels(mixed, inductor.backend, (tagged("b"),)),
            "mixed, no use": kernels(mixed, inductor.backend),
        }
        try:
            cases["error"] = kernels(torch.tan, use=(tagged("c"),))
        except Exception as error:
            cases["error"] = str(error)
        cases["after the error"] = kernels(torch.tan)
        from remora import tlx

        cases["with TLX in force"] = kernels(torch.atan)
        tlx.plugin.deactivate()
        before = counters["inductor"]["fxgraph_cache_hit"]
        cases["mixed, use again"] = kernels(mixed, inductor.backend, (tagged("a"),))
        cases["hits"] = counters["inductor"]["fxgraph_cache_hit"] - before
    with config.patch(settings | {"compile_threads": 2, "fx_graph_cache": False}):
        AsyncCompile.wait_pool_ready()
        assert AsyncCompile.use_process_pool()
        cases["attached, workers"] = kernels(user(OWN))
        AsyncCompile.process_pool().shutdown()
    backends = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][GROUP]
    loaded = EntryPoint("remora", backends["remora"], GROUP).load()
    cases["named"] = loaded is inductor.backend
    json.dump(cases, sys.stdout)


if __name__ == "__main__":
    main()
