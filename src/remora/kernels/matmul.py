"""``matmul``: the matrix product, by the kernel that fits the device."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import triton

from remora.errors import KernelArgumentError
from remora.kernels import tuning
from remora.kernels.config import Config
from remora.kernels.gemm_cdna import gemm_direct, gemm_staged
from remora.kernels.gemm_hopper import gemm_pipelined
from remora.kernels.gemm_stock import gemm_stock
from remora.kernels.launches import (
    TCGEN05_TURNS,
    WGMMA_TURNS,
    Extra,
    Launch,
    check_described,
    launched,
    parts_of,
    pipelined,
)
from remora.kernels.operands import Product, product_of, scale_of

_WHERE = "remora.kernels.matmul"


def hopper_config(m: int, n: int, k: int, element_bytes: int) -> Config:
    """The configuration for Hopper: tiles no larger than the result asks for."""
    config = Config(128, 256, 128 // element_bytes, 8, 3, 8)
    if m <= 64:
        config = replace(config, block_m=64, block_n=256, num_warps=4)
    if n <= 128:
        config = replace(config, block_n=128 if n > 64 else 64, num_warps=4)
    return config


def specialized_config(element_bytes: int, result_bytes: int) -> Config:
    """The configuration for Hopper where the copy engine takes all three matrices.

    Sizes are bytes of an element; four stages and the result's buffers have to fit
    into shared memory.
    """
    stages = 4 if result_bytes <= 2 else 3
    return Config(128, 256, 128 // element_bytes, 8, stages, 4, "cooperative", 2)


def blackwell_config(m: int, element_bytes: int, result_bytes: int) -> Config:
    """The configuration for Blackwell: two CTAs share a tile, where there are rows for both.

    Sizes are bytes of an element; a stage is 48 KiB, or of two CTAs 32 KiB in each. Beside the
    stages the result has 32 KiB.
    """
    ctas, stages = (2, 6) if m > 128 else (1, 4)
    subtiles = 4 * parts_of(result_bytes, 2)
    return Config(
        128, 256, 128 // element_bytes, 8, stages, 4, "blackwell", subtiles, cluster=(ctas, 1)
    )


def cdna_config(m: int, n: int, k: int, element_bytes: int, arch: str) -> Config:
    """The configuration for CDNA; shared memory is 64 KiB, on gfx950 160 KiB.

    Two groups of 4 warps where the tiles are large: one multiplies while the other moves memory.
    """
    depth = 64 // element_bytes
    stages = 2 if arch == "gfx942" else 4
    if m > 128 and n > 128:
        # CDNA 4 has no tf32: products of fp32 are many, and 256 x 256 spills registers.
        columns = 128 if (arch, element_bytes) == ("gfx950", 4) else 256
        return Config(256, columns, depth, 8, stages, 8)
    return Config(128, 128, depth * 2, 8, stages, 4)


def cdna_kernel(config: Config, arch: str) -> Any:
    """The kernel for CDNA: copies go straight to shared memory where the target has them."""
    direct = arch == "gfx950" and config.stages >= 3  # what its pipeline needs
    return gemm_direct if direct else gemm_staged


def matmul(
    a: Any, b: Any, *, scale_a: Any = None, scale_b: Any = None, epilogue: Any = None,
    epilogue_args: tuple[Any, ...] = (), out_dtype: Any = None,
    config: Config | Literal["auto"] | None = None,
) -> Any:  # fmt: skip
    """``a @ b`` with a TLX kernel.

    Args:
        a: (M, K) or (batch, M, K), a torch tensor of any strides: fp16, bf16, fp32 (multiplied
            as tf32 on Hopper), fp8e4m3, fp8e5m2 or int8.
        b: (K, N) or (batch, K, N), of a's dtype and on its device. One matrix, or a batch of
            one, multiplies each matrix of the other.
        scale_a, scale_b: fp32 on their device: one number, or one for each row of a (M of
            them, or batch x M) or column of b (N, or batch x N), that the sums are multiplied
            by.
        epilogue: a ``@triton.jit`` function of (sums, rows, columns, ``*epilogue_args``) that
            gives what is stored in the place of sums, fp32 (int32 for int8 without scales):

                @triton.jit
                def bias_gelu_residual(acc, rows, columns, bias, residual, stride):
                    x = acc + tl.load(bias + columns)
                    x = 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))
                    return x + tl.load(residual + rows * stride + columns)

            It sees a part of a tile at a time. rows (.., 1) and columns (1, ..) are the places
            of acc's elements; rows go on from matrix to matrix of a batch. Those past the
            end are the last ones again, so that loads need no mask; what it stores itself
            would be stored there more than once. They are int64 where a tensor has 2**31
            elements.
        epilogue_args: tensors, numbers, ``tl.constexpr``: what it is called with.
        out_dtype: of the result; a's by default, fp16 for fp8, int32 for int8 (fp16 with
            scales).
        config: how to cut it; by default what ``tuning.choose`` says. ``"auto"``: what is
            fastest, which on Hopper is measured the first time and kept for later processes.

    Returns:
        (M, N) or (batch, M, N), sums in fp32 (int32 for int8), rounded to ``out_dtype``.
        Sums over K = 0 are zero. NaN and infinity propagate as in IEEE arithmetic.

    Launched on the tensors' device, on its current stream. On the CPU it runs with the
    reference meaning, where ``TRITON_INTERPRET=1`` was set before triton was imported.
    On Hopper an operand whose rows, or columns, are not a multiple of 16 bytes apart is copied
    first where that is faster, and one of fp32 or 8 bits whose K is not contiguous.

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit, or the device
            has no kernel.
    """
    import torch

    key = _key(a, b, scale_a, scale_b, epilogue, out_dtype, config)
    if config == "auto" and _is_capturing():
        key = None  # nothing is measured now, but later
    known = _KNOWN.get(key)
    if known is not None:
        c = torch.empty(known.shape, dtype=known.dtype, device=a.device)
        extra = Extra(
            scale_a if known.scale_a is None else (scale_a.contiguous(), *known.scale_a[1:]),
            scale_b if known.scale_b is None else (scale_b.contiguous(), *known.scale_b[1:]),
            epilogue, tuple(epilogue_args),
        )  # fmt: skip
        with _on(a.device):
            known.launch(a, b, c, extra)
        return c
    product = product_of(a, b, scale_a is not None or scale_b is not None, out_dtype)
    if 0 in product.c.shape:
        return product.result
    extra = Extra(
        scale_of("scale_a", scale_a, product.a, product.m),
        scale_of("scale_b", scale_b, product.b, product.n), epilogue, tuple(epilogue_args),
    )  # fmt: skip
    with _on(a.device):
        kernel, config = _choose(product, extra, config)
        launch = _run(kernel, product, config, extra)
    if key is not None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        strides = [s if s is None else (None, *s[1:]) for s in (extra.scale_a, extra.scale_b)]
        result = product.result
        _KNOWN[key] = _Known(launch, tuple(result.shape), result.dtype, *strides)
    return product.result


@dataclass(frozen=True)
class _Known:
    """How a product of tensors of one kind was launched. scale_a, scale_b: without the pointers."""

    launch: Launch
    shape: tuple[int, ...]
    dtype: Any
    scale_a: Any
    scale_b: Any


#: Launches of this process: what stays the same from call to call is worked out once.
_KNOWN: dict[Any, _Known] = {}
_MOST_KNOWN = 4096


def _key(*given: Any) -> Any:
    """What products have in common that are launched alike; None: they are worked out anew."""
    try:
        key = tuning.measured, *(
            (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16)
            if hasattr(x, "data_ptr")
            else x
            for x in given
        )  # fmt: skip
        hash(key)
    except (TypeError, RuntimeError):
        return None
    return key


def _is_capturing() -> bool:
    """Whether a CUDA graph is captured."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _on(device: Any) -> Any:
    """Launches go to the current device."""
    import torch

    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def _run(kernel: Any, product: Product, config: Config, extra: Extra) -> Launch:
    """Launch the kernel that a configuration asks for; ``kernel`` is the pipelined one."""
    if config.schedule == "pipelined":
        launch = pipelined(kernel, product, config, extra)
        launch(product.a.tensor, product.b.tensor, product.c, extra)
        return launch
    return launched(product, config, extra)


def can_be_specialized(product: Product, turned: tuple[int, ...] = WGMMA_TURNS) -> bool:
    """Whether the kernels whose warps have tasks of their own take a product.

    turned: see ``check_described``.
    """
    try:
        check_described(product, turned)
    except KernelArgumentError:
        return False
    return True


def _choose(product: Product, extra: Extra, config: Config | str | None) -> tuple[Any, Config]:
    """The kernel for the device that the operands are on, and its configuration."""
    given = config if isinstance(config, Config) else None
    if given is None and config not in (None, "auto"):
        raise KernelArgumentError(
            f"config is {config!r}",
            where=_WHERE,
            hint="give a Config, 'auto' to measure, or None to have one chosen",
        )
    size = product.a.tensor.element_size()
    if product.c.device.type == "cpu":
        if not triton.knobs.runtime.interpret:
            raise KernelArgumentError(
                "a and b are on the CPU",
                where=_WHERE,
                hint="move them to the GPU, or set TRITON_INTERPRET=1 before triton is imported "
                "to run with the reference meaning",
            )
        return gemm_pipelined, given or Config(64, 64, 128 // size, 4, 3, 4)
    target = triton.runtime.driver.active.get_current_target()
    _check_schedule(given, target)
    if target.backend == "cuda" and target.arch == 90:
        return gemm_pipelined, given or _for_hopper(product, extra, measured=config == "auto")
    if target.backend == "cuda" and target.arch in (100, 103):
        return gemm_stock, given or _for_blackwell(product, extra, target.arch)
    if target.backend == "hip" and target.arch in ("gfx942", "gfx950"):
        m, n, k = product.m, product.n, product.k
        chosen = given or cdna_config(m, n, k, size, target.arch)
        return cdna_kernel(chosen, target.arch), chosen
    raise KernelArgumentError(
        f"there is no kernel for {target.backend}:{target.arch}",
        where=_WHERE,
        hint="Hopper (cuda:90), Blackwell (cuda:100), CDNA 3 (hip:gfx942) or CDNA 4 (hip:gfx950)",
    )


def _check_schedule(given: Config | None, target: Any) -> None:
    """Refuse a schedule that the target has no kernel for."""
    if given is None or given.schedule == "pipelined":
        return
    there = {
        90: ("cooperative", "pingpong", "split", "narrow"),
        100: ("blackwell",),
        103: ("blackwell",),
    }
    schedules = there.get(target.arch, ())
    if given.schedule not in schedules:
        raise KernelArgumentError(
            f"config.schedule is {given.schedule!r}, on {target.backend}:{target.arch}",
            where=_WHERE,
            hint="there are " + ", ".join(map(repr, ("pipelined", *schedules))),
        )


def _for_blackwell(product: Product, extra: Extra, arch: int) -> Config:
    """The configuration that is chosen: plain Triton's where the matrix unit is not reached."""
    size = product.a.tensor.element_size()
    integers = not product.a.tensor.dtype.is_floating_point
    if not can_be_specialized(product, TCGEN05_TURNS) or (integers and arch != 100):
        return Config(128, 128, 128 // size, 8, 3, 8)
    config = blackwell_config(product.m, size, product.c.element_size())
    # What an epilogue loads takes registers beside the sums.
    return config if extra.epilogue is None else replace(config, subtiles=2 * config.subtiles)


def _for_hopper(product: Product, extra: Extra, *, measured: bool) -> Config:
    """The configuration that is chosen, or measured."""
    import torch

    problem = tuning.problem_of(product, can_be_specialized(product), extra.name)
    device = tuning.this_device(product.c.device.index)
    # While a CUDA graph is captured nothing can be measured.
    if not measured or _is_capturing():
        return tuning.choose(problem, device)

    def run(config: Config) -> None:
        with torch.cuda.device(product.c.device):  # in other threads too
            other = replace(product, c=torch.empty_like(product.c))
            _run(gemm_pipelined, other, config, extra)

    return tuning.tune(problem, device, run, tuning.gpu_timer)
