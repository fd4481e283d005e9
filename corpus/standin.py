"""A GPU that is not there, so that packages of Triton kernels run their own wrappers.

``install`` changes this process, and this process only: torch says that it has
an H200 and keeps its tensors on the CPU, Triton has a driver for ``cuda:90``,
an autotuner takes its first configuration, and a kernel that is launched is
written down instead of compiled. Wrappers then choose arguments, constants and
options as they would for a user; results are whatever the memory held.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any

CAPABILITY = (9, 0)
NAME = "NVIDIA H200"
SHARED = 232448


class _Utils:
    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": SHARED,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1980000,
            "mem_clock_rate": 3201000,
            "mem_bus_width": 6144,
        }


class Driver:
    """What Triton asks a driver for up to a launch."""

    utils = _Utils()

    def __init__(self, target: str) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        from remora.host.targets import gpu_target

        return gpu_target(self.target)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda *args, **kwargs: [1.0, 1.0, 1.0]  # every configuration is as fast

    def get_empty_cache_for_benchmark(self) -> Any:
        return SimpleNamespace(zero_=lambda: None)

    def clear_cache(self, cache: Any) -> None:
        pass


class Kernel:
    """What a launch gives back."""

    n_regs, n_spills, n_max_threads = 32, 0, 1024
    metadata = SimpleNamespace(shared=0, num_warps=4, num_stages=3, name="kernel")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None

    def run(self, *args: Any, **kwargs: Any) -> None:
        pass

    def launch_metadata(self, *args: Any) -> None:
        return None

    def _init_handles(self) -> None:
        pass

    function = None
    packed_metadata = None


def install(launched: Callable[..., None], target: str = "cuda:90") -> None:
    """Put the stand-in in force; ``launched`` gets what each launch would compile.

    With a target of ``hip`` packages import their functions for that; what torch
    says of the GPU is as before.
    """
    os.environ["GEMS_VENDOR"] = "nvidia" if target.startswith("cuda") else "amd"
    _torch(target)
    _triton(launched, target)


def _triton(launched: Callable[..., None], target: str) -> None:
    import triton.testing
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    driver.set_active(Driver(target))

    def compiled(
        self: Any,
        key: Any,
        signature: Any,
        device: Any,
        constexprs: Any,
        options: Any,
        attrs: Any,
        warmup: Any,
    ) -> Kernel:
        launched(self, signature, constexprs, attrs, options)
        kernel = Kernel()
        self.device_caches[device][0][key] = kernel
        return kernel

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False))
        self.nargs = named
        config = self.prune_configs(kwargs)[0] if len(self.configs) > 1 else self.configs[0]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**named, **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, **kwargs, **config.all_kwargs())

    JITFunction._do_compile = compiled  # type: ignore[method-assign]
    Autotuner.run = first  # type: ignore[method-assign]
    triton.testing.do_bench = lambda *args, **kwargs: [1.0, 1.0, 1.0]
    triton.set_allocator(lambda size, alignment, stream: None)


#: Functions of torch, and methods of its tensors, that take a device.
FACTORIES = [
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "scalar_tensor",
    "tensor",
    "as_tensor",
    "zeros",
    "zeros_like",
    "asarray",
    "normal",
    "tril_indices",
    "triu_indices",
]
METHODS = [
    "to",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
]


def _torch(target: str) -> None:
    import torch

    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")

    def on_cpu(value: Any) -> Any:
        wanted = isinstance(value, str) and value.partition(":")[0] == "cuda"
        return cpu if wanted or isinstance(value, torch.device) else value

    zeros, new_zeros = torch.zeros, torch.Tensor.new_zeros

    def moved(function: Any) -> Any:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") is not None:
                kwargs["device"] = cpu
            kwargs.pop("pin_memory", None)
            if function in (zeros, new_zeros):
                kwargs.pop("memory_format", None)
            return function(*map(on_cpu, args), **kwargs)

        return call

    # Not a torch function mode: autograd's backward passes run without it.
    for name in FACTORIES:
        setattr(torch, name, moved(getattr(torch, name)))
    for name in METHODS:
        setattr(torch.Tensor, name, moved(getattr(torch.Tensor, name)))
    # What no kernel wrote is zero, so that a wrapper that reads it goes the same way each time.
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    torch.Tensor.new_empty = torch.Tensor.new_zeros  # type: ignore[assignment]
    torch.manual_seed(0)
    for name in ("cuda", "pin_memory", "record_stream"):
        setattr(torch.Tensor, name, lambda self, *args, **kwargs: self)
    torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment]
    torch.Tensor.device = property(lambda self: cuda)  # type: ignore[assignment]
    torch.Tensor.get_device = lambda self: 0  # type: ignore[assignment]

    properties = SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=132,
        total_memory=141 << 30,
        warp_size=32,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=SHARED,
        shared_memory_per_multiprocessor=233472,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        L2_cache_size=60 << 20,
        gcnArchName="",
    )

    class Anything:
        cuda_stream = 0
        stream_id = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *args: Any) -> None:
            return None

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: None

    @contextmanager
    def nothing(*args: Any, **kwargs: Any) -> Any:
        yield

    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: NAME,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "current_stream": lambda device=None: Anything(),
        "default_stream": lambda device=None: Anything(),
        "Stream": Anything,
        "Event": Anything,
        "device": nothing,
        "stream": nothing,
        "_DeviceGuard": nothing,
    }.items():
        setattr(torch.cuda, name, value)
    if target.startswith("cuda"):
        torch.version.cuda = "12.8"
    else:
        torch.version.hip = "7.0"
    torch.compile = lambda model=None, **kwargs: model or (lambda function: function)  # type: ignore
    torch.cuda.default_generators = (_Generator(),)
    custom = torch.amp.custom_fwd, torch.amp.custom_bwd
    torch.cuda.amp.custom_fwd, torch.cuda.amp.custom_bwd = (
        _for_cuda(custom[0]),
        _for_cuda(custom[1]),
    )


class _Generator:
    """Philox's state on a GPU: a seed and an offset."""

    def get_state(self) -> Any:
        import torch

        return torch.zeros(2, dtype=torch.int64).view(torch.uint8)

    def set_state(self, state: Any) -> None:
        pass


def _for_cuda(decorator: Any) -> Any:
    def decorate(function: Any = None, **kwargs: Any) -> Any:
        return decorator(function, device_type="cuda", **kwargs)

    return decorate
