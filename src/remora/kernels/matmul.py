"""``matmul``: the matrix product, by the kernel that fits the device."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError
from remora.kernels import tuning
from remora.kernels.config import Config
from remora.kernels.gemm_cdna import gemm_staged
from remora.kernels.gemm_hopper import gemm_pipelined
from remora.kernels.gemm_specialized import gemm_specialized

# Element type of the operands: accumulator, default type of the result.
_DTYPES = {
    "float16": (tl.float32, "float16"),
    "bfloat16": (tl.float32, "bfloat16"),
    "float32": (tl.float32, "float32"),
    "float8_e4m3fn": (tl.float32, "float16"),
    "float8_e5m2": (tl.float32, "float16"),
    "int8": (tl.int32, "int32"),
}


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


def cdna_config(m: int, n: int, k: int, element_bytes: int, arch: str) -> Config:
    """The configuration for CDNA; shared memory is 64 KiB, on gfx950 160 KiB."""
    depth = 128 // element_bytes
    config = Config(128, 128, depth, 8, 2 if arch == "gfx942" else 3, 4)
    if arch == "gfx950" and m > 128 and n > 128:
        config = replace(config, block_m=256, block_n=256, stages=2, num_warps=8)
    return config


def matmul(
    a: Any, b: Any, *, out_dtype: Any = None, config: Config | Literal["auto"] | None = None
) -> Any:
    """``a @ b`` with a TLX kernel.

    Args:
        a: (M, K), a torch tensor of any strides: fp16, bf16, fp32 (multiplied as
            tf32 on Hopper), fp8e4m3, fp8e5m2 or int8.
        b: (K, N), of a's dtype and on its device.
        out_dtype: of the result; a's by default, fp16 for fp8, int32 for int8.
        config: how to cut it; chosen by ``tuning.choose`` by default. ``"auto"``: measured
            the first time, on Hopper, and kept for later processes.

    Returns:
        (M, N), sums in fp32 (int32 for int8), rounded to ``out_dtype``.

    On the CPU it runs with the reference meaning, where ``TRITON_INTERPRET=1``
    was set before triton was imported.

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit, or the device
            has no kernel.
    """
    import torch

    where = "remora.kernels.matmul"
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor) or x.dim() != 2:
            kind = f"{x.dim()} dimensions" if isinstance(x, torch.Tensor) else type(x).__name__
            raise KernelArgumentError(
                f"{name} has to be a torch tensor of 2 dimensions, it is {kind}", where=where
            )
    if a.shape[1] != b.shape[0]:
        raise KernelArgumentError(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}",
            where=where,
            hint="a's columns have to be as many as b's rows",
        )
    name = str(a.dtype).removeprefix("torch.")
    if a.dtype != b.dtype or name not in _DTYPES:
        raise KernelArgumentError(
            f"a is of {a.dtype} and b of {b.dtype}",
            where=where,
            hint="both of one of " + ", ".join(_DTYPES),
        )
    if a.device != b.device:
        raise KernelArgumentError(f"a is on {a.device} and b on {b.device}", where=where)
    accumulator, default = _DTYPES[name]
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(
        (m, n), device=a.device, dtype=getattr(torch, default) if out_dtype is None else out_dtype
    )
    if 0 in (m, n):
        return c
    if k == 0:
        return c.zero_()
    kernel, chosen = _choose(a, m, n, k, where)
    launch = partial(_launch, kernel, a, b, accumulator=accumulator, where=where)
    if a.device.type == "cuda" and kernel is gemm_pipelined:
        chosen = tuning.configuration(config, a, b, c, launch)
    elif isinstance(config, Config):
        chosen = config
    launch(c, chosen)
    return c


def _launch(
    kernel: Any, a: Any, b: Any, c: Any, config: Config, *, accumulator: Any, where: str
) -> None:
    """Write the product into ``c``."""
    if config.schedule != "pipelined":
        _specialized(a, b, c, config, accumulator, where)
        return
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n),)
    kernel[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(),
        **config.arguments(), ACC=accumulator, num_warps=config.num_warps,
    )  # fmt: skip


def _specialized(a: Any, b: Any, c: Any, config: Config, accumulator: Any, where: str) -> None:
    """Launch a kernel whose warps have tasks of their own: operands by descriptor."""
    import torch

    by_column = b.stride(0) == 1 and b.stride(1) != 1
    for name, x in (("a", a), ("b", b.T if by_column else b), ("c", c)):
        if not tuning.can_be_described(x):
            raise KernelArgumentError(
                f"{name} cannot be copied by descriptor: its strides are {x.stride()}",
                where=where,
                hint="rows have to be contiguous, 16 bytes apart; or use another schedule",
            )
    if a.element_size() != 2 and not by_column:
        raise KernelArgumentError(
            f"b is of {b.dtype} and stored by rows", where=where, hint="store it by columns"
        )
    cooperative = config.schedule == "cooperative"
    cluster_m, cluster_n = config.cluster
    rows = config.block_m // 2 if cooperative else config.block_m
    a_block = [min(rows, config.block_m // cluster_n), config.block_k]
    b_block = [config.block_k, config.block_n // cluster_m]
    descriptors = [
        TensorDescriptor.from_tensor(a, a_block),
        TensorDescriptor.from_tensor(
            b.T if by_column else b, b_block[::-1] if by_column else b_block
        ),
        TensorDescriptor.from_tensor(c, [rows, config.block_n // config.subtiles]),
    ]
    size = cluster_m * cluster_n
    tiles = triton.cdiv(c.shape[0], config.block_m * cluster_m) * triton.cdiv(
        c.shape[1], config.block_n * cluster_n
    )
    programs = torch.cuda.get_device_properties(a.device).multi_processor_count
    clusters = min(programs, config.programs or programs) // size
    split_tiles = 0
    if config.stream_k and tiles % clusters:
        clusters = min(clusters, tiles * triton.cdiv(a.shape[1], config.block_k))
        split_tiles = min(tiles, tiles % clusters + clusters)
    clusters = clusters if split_tiles else min(tiles, clusters)
    partials = flags = c  # not used
    if split_tiles:
        partials, flags = _workspace(a.device, clusters * size, config.block_m * config.block_n)
    gemm_specialized[(clusters * size,)](
        *descriptors, partials, flags, c.shape[0], c.shape[1], a.shape[1], split_tiles,
        **config.arguments(), SUBTILES=config.subtiles, B_BY_COLUMN=by_column, ACC=accumulator,
        PINGPONG=not cooperative, CLUSTER_M=cluster_m, CLUSTER_N=cluster_n,
        STREAM_K=split_tiles > 0, num_warps=4, ctas_per_cga=(size, 1, 1),
    )  # fmt: skip


_FLAGS: dict[tuple[Any, int], Any] = {}


def _workspace(device: Any, programs: int, elements: int) -> tuple[Any, Any]:
    """Room for the sums that programs give to others, and for their flags, which are down.

    The kernel lowers each flag that it raises: one set serves all launches of a stream.
    """
    import torch

    partials = torch.empty(programs * elements, dtype=torch.float32, device=device)
    if torch.cuda.is_current_stream_capturing():
        # A graph may run beside the stream that it was captured on.
        return partials, torch.zeros(2 * programs, dtype=torch.int32, device=device)
    key = device, torch.cuda.current_stream(device).cuda_stream
    if key not in _FLAGS or _FLAGS[key].numel() < 2 * programs:
        _FLAGS[key] = torch.zeros(2 * programs, dtype=torch.int32, device=device)
    return partials, _FLAGS[key]


def _choose(a: Any, m: int, n: int, k: int, where: str) -> tuple[Any, Config]:
    """The kernel for the device that ``a`` is on, and its configuration."""
    size = a.element_size()
    if a.device.type == "cpu":
        if not triton.knobs.runtime.interpret:
            raise KernelArgumentError(
                "a and b are on the CPU",
                where=where,
                hint="move them to the GPU, or set TRITON_INTERPRET=1 before triton is imported "
                "to run with the reference meaning",
            )
        return gemm_pipelined, Config(64, 64, 128 // size, 4, 3, 4)
    target = triton.runtime.driver.active.get_current_target()
    if target.backend == "cuda" and target.arch == 90:
        return gemm_pipelined, hopper_config(m, n, k, size)
    if target.backend == "hip" and target.arch in ("gfx942", "gfx950"):
        return gemm_staged, cdna_config(m, n, k, size, target.arch)
    raise KernelArgumentError(
        f"there is no kernel for {target.backend}:{target.arch}",
        where=where,
        hint="Hopper (cuda:90), CDNA 3 (hip:gfx942) or CDNA 4 (hip:gfx950)",
    )
