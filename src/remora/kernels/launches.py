"""How a product is launched, worked out once for all products of one kind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import triton
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import DriverError, KernelArgumentError
from remora.kernels.config import Config, multiprocessors
from remora.kernels.copies import with_aligned_rows
from remora.kernels.cost import helpers_of
from remora.kernels.gemm_blackwell import gemm_blackwell
from remora.kernels.gemm_narrow import gemm_narrow
from remora.kernels.gemm_specialized import gemm_specialized
from remora.kernels.gemm_split import gemm_split
from remora.kernels.operands import Operand, Product, operand_of

_WHERE = "remora.kernels.matmul"


@dataclass(frozen=True)
class Extra:
    """What is done to the sums; see ``finished``."""

    scale_a: Any = None
    scale_b: Any = None
    epilogue: Any = None
    args: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """What tells it from others in measurements that are kept; empty where nothing is done."""
        scales = [f"{n}:{s[1:]}" for n, s in (("a", self.scale_a), ("b", self.scale_b)) if s]
        if self.epilogue is None:
            return " ".join(scales)
        kinds = [str(getattr(x, "dtype", type(x).__name__)) for x in self.args]
        return " ".join([*scales, self.epilogue.cache_key, *kinds])


#: Called with a, b, c and what is done to the sums. Of the tensors only the memory counts:
#: shapes and strides are those that it was made for.
Launch = Callable[[Any, Any, Any, Extra], None]


def parts_of(extent: int, part: int) -> int:
    """How many parts there are: triton.cdiv takes 10 us."""
    return -(-extent // part)


def pipelined(kernel: Any, product: Product, config: Config, extra: Extra) -> Launch:
    """The launch of a kernel that takes any strides."""
    tiles = parts_of(product.m, config.block_m) * parts_of(product.n, config.block_n)
    grid = (tiles * product.batches,)
    numbers = (
        product.m, product.n, product.k, *product.a.strides(), *product.b.strides(),
        *product.c_strides(),
    )  # fmt: skip
    constants = {
        **config.arguments(), "ACC": product.accumulator, "EPILOGUE": extra.epilogue,
        "INDEX": product.index, "num_warps": config.num_warps,
    }  # fmt: skip

    def launch(a: Any, b: Any, c: Any, extra: Extra) -> None:
        kernel[grid](a, b, c, *numbers, extra.scale_a, extra.scale_b, extra.args, **constants)

    return launch


#: Bytes of the elements of which the unit multiplies matrices whose K is not contiguous: wgmma,
#: tcgen05.
WGMMA_TURNS, TCGEN05_TURNS = (2,), (1, 2)


def _is_turned(operand: Operand, name: str) -> bool:
    """Whether K is not what is contiguous of a or b."""
    return operand.by_column == (name == "a")


def _needs_a_copy(operand: Operand, name: str) -> bool:
    """Whether ``check_described`` refuses an operand on Hopper."""
    size = operand.tensor.element_size()
    return operand.described is None or (_is_turned(operand, name) and size not in WGMMA_TURNS)


_ELSE = "or let Config(copies=True) copy it first, or use schedule='pipelined'"


def check_described(product: Product, turned: tuple[int, ...] = WGMMA_TURNS) -> None:
    """Refuse operands that the kernels whose warps have tasks of their own cannot take.

    turned: bytes of elements whose K need not be contiguous.

    Raises:
        KernelArgumentError: says which, and why.
    """
    for name, x in (("a", product.a), ("b", product.b)):
        if x.described is None:
            raise KernelArgumentError(
                f"{name} cannot be copied by descriptor: its strides are {x.tensor.stride()}",
                where=_WHERE,
                hint="rows or columns have to be contiguous, a multiple of 16 bytes apart, and "
                f"begin at one; {_ELSE}",
            )
    for name, along_k, x in (("a", "rows", product.a), ("b", "columns", product.b)):
        if _is_turned(x, name) and x.tensor.element_size() not in turned:
            raise KernelArgumentError(
                f"{name} is of {x.tensor.dtype} and its {along_k} are not contiguous",
                where=_WHERE,
                hint=f"store it by {along_k}; {_ELSE}",
            )
    if product.k == 0:
        raise KernelArgumentError("K is 0", where=_WHERE, hint="use another schedule")


def _check_shares(product: Product, config: Config, rows: int) -> None:
    """Refuse clusters whose programs copy less of a row than the 128 bytes that are swizzled."""
    m, n = config.block_m // config.cluster[1], config.block_n // config.cluster[0]
    shares = (
        ("cluster[1]", product.a.by_column, rows, m),
        ("cluster[0]", not product.b.by_column, config.block_n, n),
    )
    size = product.a.tensor.element_size()
    for name, along_rows, whole, share in shares:
        if along_rows and share < whole and share * size < 128:
            raise KernelArgumentError(
                f"config.{name}: each program would copy {share * size} bytes of a row",
                where=_WHERE,
                hint="128 bytes at least: use a smaller cluster or a larger tile",
            )


def _descriptor_of(operand: Operand, rows: int, columns: int) -> Callable[[Any], TensorDescriptor]:
    """Makes an operand's descriptor, of blocks in the order that it is stored in."""
    block = [columns, rows] if operand.by_column else [rows, columns]
    return _descriptor(operand.described, block, rounded=operand.rounded)


def _descriptor(
    x: Any, block: list[int], rounded: bool = False
) -> Callable[[Any], TensorDescriptor]:
    shape, strides = list(x.shape), list(x.stride())
    block = [1] * (x.dim() - 2) + block
    return lambda tensor: TensorDescriptor(tensor, shape, strides, block, round_f32_to_tf32=rounded)


def specialized(product: Product, config: Config, extra: Extra) -> Launch:
    """The launch of the kernel whose warps have tasks of their own.

    Raises:
        KernelArgumentError: it cannot take the operands.
    """
    check_described(product)
    cooperative = config.schedule == "cooperative"
    cluster_m, cluster_n = config.cluster
    rows = config.block_m // 2 if cooperative else config.block_m
    _check_shares(product, config, rows)
    a, b, c = product.a, product.b, product.c
    described = product.c_described
    a_desc = _descriptor_of(a, min(rows, config.block_m // cluster_n), config.block_k)
    b_desc = _descriptor_of(b, config.block_k, config.block_n // cluster_m)
    c_block = [rows, config.block_n // config.subtiles]
    c_desc = _descriptor(c, c_block) if described else lambda tensor: tensor
    size = cluster_m * cluster_n
    tiles = product.batches * (
        parts_of(product.m, config.block_m * cluster_m)
        * parts_of(product.n, config.block_n * cluster_n)
    )
    programs = multiprocessors(c.device)
    clusters = max(min(programs, config.programs or programs) // size, 1)
    if size > 2 and c.device.type != "cpu":
        clusters = min(clusters, _clusters_at_a_time(c.device.index, size))
    split_tiles = 0
    if config.stream_k and tiles % clusters:
        clusters = min(clusters, tiles * parts_of(product.k, config.block_k))
        split_tiles = min(tiles, tiles % clusters + clusters)
    clusters = clusters if split_tiles else _even(tiles, clusters)
    grid = (clusters * size,)
    given = dict(
        M=product.m, N=product.n, K=product.k, batches=product.batches, split_tiles=split_tiles,
        **dict(zip(("stride_cb", "stride_cm", "stride_cn"), product.c_strides(), strict=True)),
        **config.arguments(), SUBTILES=config.subtiles, A_BY_COLUMN=a.by_column,
        B_BY_COLUMN=b.by_column, A_BATCHED=a.batched, B_BATCHED=b.batched, C_DESCRIBED=described,
        ACC=product.accumulator, PINGPONG=not cooperative, CLUSTER_M=cluster_m,
        CLUSTER_N=cluster_n, STREAM_K=split_tiles > 0, LATE=config.late_store and described,
        KEEP=config.keep, TURN=config.turn, EPILOGUE=extra.epilogue, INDEX=product.index,
        num_warps=4, ctas_per_cga=(size, 1, 1), launch_pdl=config.early,
    )  # fmt: skip
    room = clusters * size, config.block_m * config.block_n

    def launch(a: Any, b: Any, c: Any, extra: Extra) -> None:
        partials, flags = _workspace(c.device, *room) if split_tiles else (None, None)
        gemm_specialized[grid](
            a_desc(a), b_desc(b), c_desc(c), extra.scale_a, extra.scale_b, extra.args,
            partials, flags, **given,
        )  # fmt: skip

    return launch


def split(product: Product, config: Config, extra: Extra) -> Launch:
    """The launch of the kernel of which two programs share a tile, each with half of K.

    Raises:
        KernelArgumentError: it cannot take the operands.
    """
    check_described(product)
    a, b, c = product.a, product.b, product.c
    if a.tensor.element_size() != 2 or not product.c_described:
        raise KernelArgumentError(
            f"operands of {a.tensor.dtype}, rows of the result {c.stride(-2)} apart",
            where=_WHERE,
            hint="schedule='split' takes 16-bit elements, and a result whose rows are a multiple "
            "of 16 bytes apart",
        )
    if product.batches > 1 or product.k <= config.block_k:
        raise KernelArgumentError(
            f"{product.batches} products with K of {product.k}",
            where=_WHERE,
            hint=f"schedule='split' takes one, with K of more than {config.block_k}",
        )
    a_desc = _descriptor_of(a, 64, 64)
    b_desc = _descriptor_of(b, 64, config.block_n)
    c_desc = _descriptor(c, [64, 64])
    tiles = parts_of(product.m, 128) * parts_of(product.n, config.block_n)
    helpers, each, helped = 0, 0, 0
    if config.stream_k:
        steps = parts_of(product.k, 64)
        helpers, each, helped = helpers_of(tiles, steps, multiprocessors(c.device))
    grid = (helpers + tiles * 2,)
    given = {
        "M": product.m, "N": product.n, "K": product.k, "helped": helped, "helpers": helpers,
        "BLOCK_N": config.block_n, "STAGES": config.stages, "A_BY_COLUMN": a.by_column,
        "B_BY_COLUMN": b.by_column, "HELP": each, "KEEP": config.keep,
        "EPILOGUE": extra.epilogue, "INDEX": product.index, "num_warps": 4,
        "ctas_per_cga": (2, 1, 1),
    }  # fmt: skip

    def launch(a: Any, b: Any, c: Any, extra: Extra) -> None:
        room = _workspace(c.device, tiles * 2, 64 * config.block_n) if each else (None, None)
        gemm_split[grid](
            a_desc(a), b_desc(b), c_desc(c), extra.scale_a, extra.scale_b, extra.args, *room,
            **given,
        )  # fmt: skip

    return launch


def narrow(product: Product, config: Config, extra: Extra) -> Launch:
    """The launch of the kernel for few rows or tiles, which programs of a cluster cut along K.

    Raises:
        KernelArgumentError: it cannot take the operands.
    """
    check_described(product)
    a, b, c = product.a, product.b, product.c
    share = config.cluster[0]
    if product.batches > 1 or parts_of(product.k, config.block_k) < share:
        raise KernelArgumentError(
            f"{product.batches} products with K of {product.k}",
            where=_WHERE,
            hint=f"schedule='narrow' takes one, with {share} steps of {config.block_k} or more",
        )
    a_desc = _descriptor_of(a, config.block_m, config.block_k)
    b_desc = _descriptor_of(b, config.block_k, config.block_n)
    tiles = parts_of(product.m, config.block_m) * parts_of(product.n, config.block_n)
    clusters = tiles if share > 1 else _even(tiles, multiprocessors(c.device))
    grid = (clusters * share,)
    _, stride_cm, stride_cn = product.c_strides()
    given = {
        "M": product.m, "N": product.n, "K": product.k, "stride_cm": stride_cm,
        "stride_cn": stride_cn, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k, "STAGES": config.stages, "A_BY_COLUMN": a.by_column,
        "B_BY_COLUMN": b.by_column, "ACC": product.accumulator, "SHARE": share,
        "KEEP": config.keep, "EPILOGUE": extra.epilogue, "INDEX": product.index, "num_warps": 4,
        "ctas_per_cga": (share, 1, 1), "launch_pdl": config.early,
    }  # fmt: skip

    def launch(a: Any, b: Any, c: Any, extra: Extra) -> None:
        gemm_narrow[grid](
            a_desc(a), b_desc(b), c, extra.scale_a, extra.scale_b, extra.args, **given
        )

    return launch


def blackwell(product: Product, config: Config, extra: Extra) -> Launch:
    """The launch of the kernel for Blackwell; a cluster of (2, 1) is a pair.

    Raises:
        KernelArgumentError: it cannot take the operands.
    """
    check_described(product, TCGEN05_TURNS)
    a, b, c = product.a, product.b, product.c
    described = product.c_described
    ctas = config.cluster[0]
    a_desc = _descriptor_of(a, config.block_m, config.block_k)
    b_desc = _descriptor_of(b, config.block_k, config.block_n // ctas)
    c_block = [config.block_m, config.block_n // config.subtiles]
    c_desc = _descriptor(c, c_block) if described else lambda tensor: tensor
    tiles = parts_of(product.m, config.block_m * ctas) * parts_of(product.n, config.block_n)
    grid = (product.batches * tiles * ctas,)
    given = dict(
        M=product.m, N=product.n, K=product.k,
        **dict(zip(("stride_cb", "stride_cm", "stride_cn"), product.c_strides(), strict=True)),
        **config.arguments(), SUBTILES=config.subtiles, A_BY_COLUMN=a.by_column,
        B_BY_COLUMN=b.by_column, A_BATCHED=a.batched, B_BATCHED=b.batched, C_DESCRIBED=described,
        ACC=product.accumulator, PAIR=ctas == 2, EPILOGUE=extra.epilogue, INDEX=product.index,
        num_warps=4, ctas_per_cga=(ctas, 1, 1),
    )  # fmt: skip

    def launch(a: Any, b: Any, c: Any, extra: Extra) -> None:
        gemm_blackwell[grid](
            a_desc(a), b_desc(b), c_desc(c), extra.scale_a, extra.scale_b, extra.args, **given
        )

    return launch


def _even(tiles: int, clusters: int) -> int:
    """How many clusters are launched for so many tiles, each in turn, at most ``clusters``.

    A few less where they have as many rounds: all of them the same number of tiles. On an H200,
    at its power limit, 128 programs of 132 were 1 to 2 % faster where both have 16 or 32 rounds
    (docs/kernels.md). Not many less: what memory bounds wants all multiprocessors.
    """
    clusters = min(tiles, clusters)
    even = parts_of(tiles, parts_of(tiles, clusters))
    return even if even >= 0.95 * clusters else clusters


@triton.jit
def _nothing():
    """For what the driver says of any kernel."""


@cache
def _clusters_at_a_time(device: int, size: int) -> int:
    """How many clusters run at a time whose programs take a multiprocessor each.

    A cluster's programs are in one group of multiprocessors (GPC), whose number a size may not
    divide: 132 multiprocessors hold less than 33 clusters of 4. A persistent kernel that launched
    more would run the last ones after all others.
    """
    kernel = _nothing.warmup(grid=(1,), num_warps=4)
    kernel._init_handles()
    shared = 200 << 10  # no two programs on one multiprocessor
    utilities = triton.runtime.driver.active.utils
    return int(utilities.cuOccupancyMaxActiveClusters(kernel.function, shared, size))


def _of_copies(product: Product, config: Config, extra: Extra) -> Launch:
    """Launch a product of copies, of those operands that need one."""
    a, b = product.a.tensor, product.b.tensor
    of_a = _needs_a_copy(product.a, "a"), a.shape, a.stride()
    of_b = _needs_a_copy(product.b, "b"), b.mT.shape, b.mT.stride()

    def copied(x: Any, needed: bool, shape: Any, stride: Any) -> Any:
        # A later tensor's memory may be seen in other dimensions.
        return with_aligned_rows(x.as_strided(shape, stride)) if needed else None

    def launch(a: Any, b: Any, c: Any, extra: Extra) -> None:
        a_copy, b_copy = copied(a, *of_a), copied(b, *of_b)
        inner(a if a_copy is None else a_copy, b if b_copy is None else b_copy.mT, c, extra)

    a_copy, b_copy = copied(a, *of_a), copied(b, *of_b)
    like = replace(
        product,
        a=product.a if a_copy is None else operand_of(a_copy),
        b=product.b if b_copy is None else operand_of(b_copy.mT),
    )
    inner = launched(like, replace(config, copies=False), extra)
    return launch


def launched(product: Product, config: Config, extra: Extra) -> Launch:
    """Launch what its schedule asks for, with as many stages as fit; what was launched."""
    if config.copies:
        return _of_copies(product, config, extra)
    # Scales, what an epilogue loads, and what the copy engine does not store, go through shared
    # memory.
    may_be_less = extra != Extra() or not product.c_described
    own = {"blackwell": blackwell, "split": split, "narrow": narrow}
    prepare = own.get(config.schedule, specialized)
    while True:
        launch = prepare(product, config, extra)
        try:
            launch(product.a.tensor, product.b.tensor, product.c, extra)
        except OutOfResources:
            if config.stages <= 2 or not may_be_less:
                raise
            config = replace(config, stages=config.stages - 1)
        else:
            return launch


#: For each stream: the capture of a graph that they are for, and flags.
_FLAGS: dict[tuple[Any, int, bool], tuple[int, Any]] = {}


def _workspace(device: Any, programs: int, elements: int) -> tuple[Any, Any]:
    """Room for the sums that programs give to others, and for their flags, which are down.

    The kernel lowers each flag that it raises: one set serves all launches of a stream, and one
    those of a graph that are captured on a stream: the graph may run beside that stream.
    """
    import torch

    partials = torch.empty(programs * elements, dtype=torch.float32, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    capturing = torch.cuda.is_current_stream_capturing()
    capture = _capture_on(stream) if capturing else 0
    known, flags = _FLAGS.get((device, stream, capturing), (capture, None))
    if known != capture or flags is None or flags.numel() < 2 * programs:
        flags = torch.zeros(2 * programs, dtype=torch.int32, device=device)
        # A graph lowers them at its beginning, so that nobody has to keep them after the capture.
        _FLAGS[device, stream, capturing] = capture, flags
    return partials, flags


def _capture_on(stream: int) -> int:
    """The number of the capture that a stream takes part in.

    Raises:
        DriverError: the driver does not say.
    """
    status, number = ctypes.c_int(), ctypes.c_uint64()
    # PyTorch does not say. The name has stood for these parameters since CUDA 11.3.
    ask = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    error = ask(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    if error:
        raise DriverError(
            f"cuStreamGetCaptureInfo_v2 gave error {error}",
            where=_WHERE,
            hint="see CUresult in CUDA's cuda.h; after 900 to 908 capture the graph again, other "
            "errors are of an earlier launch",
        )
    return number.value
