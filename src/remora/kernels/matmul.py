"""``matmul``: the matrix product, by the kernel that fits the device."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import triton
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError
from remora.kernels import tuning
from remora.kernels.config import Config
from remora.kernels.gemm_blackwell import gemm_blackwell, launch_blackwell
from remora.kernels.gemm_cdna import gemm_direct, gemm_staged
from remora.kernels.gemm_hopper import gemm_pipelined
from remora.kernels.gemm_specialized import gemm_specialized
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

    Sizes are bytes of an element; a stage is 48 KiB, or of two CTAs 32 KiB in each.
    """
    ctas, stages = (2, 6) if m > 128 else (1, 4)
    subtiles = 8 if result_bytes > 2 else 4
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
        return Config(256, 256, depth, 8, stages, 8)
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

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit, or the device
            has no kernel.
    """
    import torch

    product = product_of(a, b, scale_a is not None or scale_b is not None, out_dtype)
    if 0 in product.c.shape:
        return product.result
    extra = _Extra(
        scale_of("scale_a", scale_a, product.a, product.m),
        scale_of("scale_b", scale_b, product.b, product.n), epilogue, tuple(epilogue_args),
    )  # fmt: skip
    on_gpu = a.device.type == "cuda"
    with torch.cuda.device(a.device) if on_gpu else contextlib.nullcontext():
        kernel, config = _choose(product, extra, config)
        _run(kernel, product, config, extra)
    return product.result


@dataclass(frozen=True)
class _Extra:
    """What is done to the sums."""

    scale_a: Any
    scale_b: Any
    epilogue: Any
    args: tuple[Any, ...]

    def arguments(self) -> dict[str, Any]:
        """The kernels' arguments."""
        return {
            "scale_a": self.scale_a, "scale_b": self.scale_b, "args": self.args,
            "EPILOGUE": self.epilogue,
        }  # fmt: skip

    @property
    def name(self) -> str:
        """What tells it from others in measurements that are kept; empty where nothing is done."""
        scales = [f"{n}:{s[1:]}" for n, s in (("a", self.scale_a), ("b", self.scale_b)) if s]
        if self.epilogue is None:
            return " ".join(scales)
        kinds = [str(getattr(x, "dtype", type(x).__name__)) for x in self.args]
        return " ".join([*scales, self.epilogue.cache_key, *kinds])


def _run(kernel: Any, product: Product, config: Config, extra: _Extra) -> None:
    """Launch the kernel that a configuration asks for; ``kernel`` is the pipelined one."""
    if config.schedule == "blackwell":
        launch_blackwell(product, config, extra == _Extra(None, None, None, ()))
    elif config.schedule == "pipelined":
        _pipelined(kernel, product, config, extra)
    else:
        _check_described(product)
        _specialized(product, config, extra)


def _ceil(extent: int, part: int) -> int:
    """How many parts there are: triton.cdiv takes 10 us."""
    return -(-extent // part)


def _pipelined(kernel: Any, product: Product, config: Config, extra: _Extra) -> None:
    tiles = _ceil(product.m, config.block_m) * _ceil(product.n, config.block_n)
    kernel[(tiles * product.batches,)](
        product.a.tensor, product.b.tensor, product.c, product.m, product.n, product.k,
        *product.a.strides(), *product.b.strides(), *product.c_strides(), **extra.arguments(),
        **config.arguments(), ACC=product.accumulator, INDEX=product.index,
        num_warps=config.num_warps,
    )  # fmt: skip


def _check_described(product: Product) -> None:
    """Refuse operands that the kernels whose warps have tasks of their own cannot take."""
    for name, x in (("a", product.a), ("b", product.b)):
        if x.described is None:
            raise KernelArgumentError(
                f"{name} cannot be copied by descriptor: its strides are {x.tensor.stride()}",
                where=_WHERE,
                hint="rows or columns have to be contiguous, a multiple of 16 bytes apart, and "
                "begin at one; or use another schedule",
            )
    for name, along_k, x in (("a", "rows", product.a), ("b", "columns", product.b)):
        if x.tensor.element_size() != 2 and x.by_column == (name == "a"):
            raise KernelArgumentError(
                f"{name} is of {x.tensor.dtype} and its {along_k} are not contiguous",
                where=_WHERE,
                hint=f"store it by {along_k}, or use another schedule",
            )
    if product.k == 0:
        raise KernelArgumentError("K is 0", where=_WHERE, hint="use another schedule")


def _specialized(product: Product, config: Config, extra: _Extra) -> None:
    """Launch a kernel whose warps have tasks of their own, with as many stages as fit."""
    key = (
        config, extra.epilogue, product.a.tensor.dtype, product.c.dtype, product.c_described,
        tuple(type(x) for x in extra.args),
    )  # fmt: skip
    config = replace(config, stages=_FITTING.get(key, config.stages))
    while True:
        try:
            _launch(product, config, extra)
        except OutOfResources:
            # What an epilogue loads, and what the copy engine does not store, goes through it.
            if config.stages <= 2 or (extra.epilogue is None and product.c_described):
                raise
            config = replace(config, stages=config.stages - 1)
        else:
            _FITTING[key] = config.stages
            return


#: Stages with which a kernel fits into shared memory.
_FITTING: dict[Any, int] = {}


def _launch(product: Product, config: Config, extra: _Extra) -> None:
    import torch

    cooperative = config.schedule == "cooperative"
    cluster_m, cluster_n = config.cluster
    rows = config.block_m // 2 if cooperative else config.block_m
    a, b, c = product.a, product.b, product.c
    c_block = [rows, config.block_n // config.subtiles]
    if product.batches > 1:
        c_block = [1, *c_block]
    size = cluster_m * cluster_n
    tiles = product.batches * (
        _ceil(product.m, config.block_m * cluster_m) * _ceil(product.n, config.block_n * cluster_n)
    )
    programs = torch.cuda.get_device_properties(c.device).multi_processor_count
    clusters = max(min(programs, config.programs or programs) // size, 1)
    steps = _ceil(product.k, config.block_k)
    split_tiles = 0
    if config.stream_k and tiles % clusters:
        clusters = min(clusters, tiles * steps)
        split_tiles = min(tiles, tiles % clusters + clusters)
    clusters = clusters if split_tiles else min(tiles, clusters)
    late = config.late_store and product.c_described and steps >= config.subtiles
    partials = flags = None
    if split_tiles:
        partials, flags = _workspace(c.device, clusters * size, config.block_m * config.block_n)
    gemm_specialized[(clusters * size,)](
        a.descriptor(min(rows, config.block_m // cluster_n), config.block_k),
        b.descriptor(config.block_k, config.block_n // cluster_m),
        TensorDescriptor.from_tensor(c, c_block) if product.c_described else c,
        **extra.arguments(), partials=partials, flags=flags,
        M=product.m, N=product.n, K=product.k, batches=product.batches,
        **dict(zip(("stride_cb", "stride_cm", "stride_cn"), product.c_strides(), strict=True)),
        split_tiles=split_tiles, **config.arguments(), SUBTILES=config.subtiles,
        A_BY_COLUMN=a.by_column, B_BY_COLUMN=b.by_column, A_BATCHED=a.batched,
        B_BATCHED=b.batched, C_DESCRIBED=product.c_described, ACC=product.accumulator,
        PINGPONG=not cooperative, CLUSTER_M=cluster_m, CLUSTER_N=cluster_n,
        STREAM_K=split_tiles > 0, LATE=late, INDEX=product.index,
        num_warps=4, ctas_per_cga=(size, 1, 1),
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


def can_be_specialized(product: Product) -> bool:
    """Whether the kernels whose warps have tasks of their own take a product."""
    try:
        _check_described(product)
    except KernelArgumentError:
        return False
    return True


def _choose(product: Product, extra: _Extra, config: Config | str | None) -> tuple[Any, Config]:
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
    if target.backend == "cuda" and target.arch == 90:
        return gemm_pipelined, given or _for_hopper(product, extra, measured=config == "auto")
    if target.backend == "cuda" and target.arch in (100, 103):
        return gemm_blackwell, given or blackwell_config(product.m, size, product.c.element_size())
    if target.backend == "hip" and target.arch in ("gfx942", "gfx950"):
        m, n, k = product.m, product.n, product.k
        chosen = given or cdna_config(m, n, k, size, target.arch)
        return cdna_kernel(chosen, target.arch), chosen
    raise KernelArgumentError(
        f"there is no kernel for {target.backend}:{target.arch}",
        where=_WHERE,
        hint="Hopper (cuda:90), Blackwell (cuda:100), CDNA 3 (hip:gfx942) or CDNA 4 (hip:gfx950)",
    )


def _for_hopper(product: Product, extra: _Extra, *, measured: bool) -> Config:
    """The configuration that is chosen, or measured."""
    import torch

    problem = tuning.problem_of(product, can_be_specialized(product), extra.name)
    device = tuning.this_device(product.c.device.index)
    # While a CUDA graph is captured nothing can be measured.
    if not measured or torch.cuda.is_current_stream_capturing():
        return tuning.choose(problem, device)

    def run(config: Config) -> None:
        with torch.cuda.device(product.c.device):  # in other threads too
            other = replace(product, c=torch.empty_like(product.c))
            _run(gemm_pipelined, other, config, extra)

    return tuning.tune(problem, device, run, tuning.gpu_timer)
