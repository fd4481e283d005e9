"""``grouped_matmul``: several matrix products in one launch."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError
from remora.kernels.config import multiprocessors
from remora.kernels.gemm_cdna import multiply_staged
from remora.kernels.gemm_grouped import FILLED, fill_table, gemm_grouped, packed
from remora.kernels.gemm_grouped_specialized import gemm_grouped_specialized
from remora.kernels.gemm_hopper import multiply_pipelined
from remora.kernels.matmul import Config, cdna_config, hopper_config
from remora.kernels.operands import _DTYPES, _extent, can_be_described

_WHERE = "remora.kernels.grouped_matmul"

# Bytes of shared memory that a program of Hopper has for buffers (227 KiB; the rest: barriers).
_SHARED = (227 << 10) - 1024


def grouped_matmul(
    a: Any, b: Any, offs: Any = None, *, scale_a: Any = None, scale_b: Any = None,
    out_dtype: Any = None,
) -> Any:  # fmt: skip
    """Several matrix products in one launch, differentiable.

    Args:
        a, b: torch tensors on one device, of one dtype: fp16, bf16, fp32 (as tf32), fp8
            (e4m3fn, e5m2) or int8; any strides. With ``offs`` one of
            (T, K) and (E, K, N): the rows of ``a`` in E groups, each times its own matrix;
            (M, T) and (T, N): the sums over T in E groups.
            Without: lists of as many matrices, (M, K) and (K, N), of any shapes.
        offs: (E,), int32, on the same device: where each group ends within T; the first
            begins at 0. It is not read by the host: one that is smaller than one before
            it counts as that one, one larger than T as T.
        scale_a, scale_b: fp32, (T,) and (E, N): what each row of the result, and each column of
            a group's, is multiplied by, before it is rounded. Both or none, with (T, K) and
            (E, K, N); there are no gradients then.
        out_dtype: of the result; by default that of the operands (fp16 for fp8, and for int8
            with scales; int32 for int8).

    Returns:
        (T, N), zero in rows past the last offset; (E, M, N); or a list of (M, N). Sums in
        fp32 (int32 for int8), rounded to ``out_dtype``.

    It is the operator ``torch.ops.remora.grouped_matmul`` (``grouped_matmul_list`` of lists),
    with ``torch.compile``, CUDA graphs and autograd (fp16, bf16, fp32). On the CPU it runs with
    the reference meaning, where ``TRITON_INTERPRET=1`` was set before triton was imported.

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit, or the device has no kernel.
    """
    from remora.kernels import grouped_operators

    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        if any(x is not None for x in (offs, scale_a, scale_b)):
            raise KernelArgumentError(
                "there are offsets or scales for lists of matrices",
                where=_WHERE,
                hint="leave them out, or give two tensors",
            )
        check_list(a, b)
        return grouped_operators.grouped_matmul_list(list(a), list(b), out_dtype)
    check(a, b, offs, scale_a, scale_b)
    return grouped_operators.grouped_matmul(a, b, offs, scale_a, scale_b, out_dtype)


def check(a: Any, b: Any, offs: Any, scale_a: Any, scale_b: Any) -> None:
    """Refuse tensors that do not fit together; shapes and dtypes alone are looked at."""
    import torch

    for name, x in (("a", a), ("b", b), ("offs", offs)):
        if not isinstance(x, torch.Tensor):
            raise KernelArgumentError(
                f"{name} has to be a torch tensor, it is {type(x).__name__}",
                where=_WHERE,
                hint="where groups end is in offs; without it a and b are lists of matrices",
            )
    if (a.dim(), b.dim()) not in ((2, 3), (2, 2)):
        raise KernelArgumentError(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}",
            where=_WHERE,
            hint="(T, K) and (E, K, N), groups of rows, or (M, T) and (T, N), groups of the sum; "
            "for groups of columns transpose both and the result; without groups use torch.bmm",
        )
    if a.shape[1] != b.shape[-2]:
        raise KernelArgumentError(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}",
            where=_WHERE,
            hint="a's columns have to be as many as b's rows",
        )
    if offs.dtype != torch.int32 or offs.dim() != 1:
        raise KernelArgumentError(
            f"offs is {tuple(offs.shape)} of {offs.dtype}",
            where=_WHERE,
            hint="one dimension of torch.int32: where each group ends",
        )
    if b.dim() == 3 and offs.shape[0] != b.shape[0]:
        raise KernelArgumentError(
            f"there are {offs.shape[0]} offsets and {b.shape[0]} matrices in b",
            where=_WHERE,
            hint="an offset for each: where its group of rows ends",
        )
    _check_kinds("a", a, "b", b)
    if offs.device != a.device:
        raise KernelArgumentError(f"a is on {a.device} and offs on {offs.device}", where=_WHERE)
    if scale_a is None and scale_b is None:
        return
    wanted = ((a.shape[0],), (b.shape[0], b.shape[-1])) if b.dim() == 3 else ()
    for name, x, shape in zip(("scale_a", "scale_b"), (scale_a, scale_b), wanted, strict=False):
        fits = isinstance(x, torch.Tensor) and (x.shape, x.dtype) == (shape, torch.float32)
        if not fits or x.device != a.device:
            given = (
                f"{tuple(x.shape)} of {x.dtype} on {x.device}"
                if isinstance(x, torch.Tensor)
                else type(x).__name__
            )
            raise KernelArgumentError(
                f"{name} is {given}",
                where=_WHERE,
                hint=f"both scales or none; this one is {shape} of torch.float32 on {a.device}",
            )
    if not wanted:
        raise KernelArgumentError(
            "there are scales for groups of the sum", where=_WHERE, hint="scale the operands"
        )


def check_list(a: Any, b: Any) -> None:
    """Refuse lists of matrices that do not fit together."""
    import torch

    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, (list, tuple)):
            raise KernelArgumentError(
                f"{name} has to be a list as the other operand is, it is {type(x).__name__}",
                where=_WHERE,
            )
        for i, matrix in enumerate(x):
            if not isinstance(matrix, torch.Tensor) or matrix.dim() != 2:
                kind = (
                    f"{matrix.dim()} dimensions"
                    if isinstance(matrix, torch.Tensor)
                    else type(matrix).__name__
                )
                raise KernelArgumentError(
                    f"{name}[{i}] has to be a torch tensor of 2 dimensions, it is {kind}",
                    where=_WHERE,
                )
    if len(a) != len(b):
        raise KernelArgumentError(
            f"a has {len(a)} matrices and b has {len(b)}", where=_WHERE, hint="one for each"
        )
    for i, (left, right) in enumerate(zip(a, b, strict=True)):
        if left.shape[1] != right.shape[0]:
            raise KernelArgumentError(
                f"a[{i}] is {tuple(left.shape)} and b[{i}] is {tuple(right.shape)}",
                where=_WHERE,
                hint="a's columns have to be as many as b's rows",
            )
        _check_kinds(f"a[{i}]", left, f"b[{i}]", right)
        _check_kinds("a[0]", a[0], f"a[{i}]", left)


def _check_kinds(name: str, x: Any, other_name: str, other: Any) -> None:
    if x.dtype != other.dtype or _name(x.dtype) not in _DTYPES:
        raise KernelArgumentError(
            f"{name} is of {x.dtype} and {other_name} of {other.dtype}",
            where=_WHERE,
            hint="both of one of " + ", ".join(_DTYPES),
        )
    if x.device != other.device:
        raise KernelArgumentError(
            f"{name} is on {x.device} and {other_name} on {other.device}", where=_WHERE
        )


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def result_dtype(dtype: Any, out_dtype: Any, scaled: bool = False) -> Any:
    """The dtype of a result."""
    import torch

    if out_dtype is not None:
        return out_dtype
    default = _DTYPES[_name(dtype)][1]
    return getattr(torch, "float16" if scaled and default == "int32" else default)


@dataclass(frozen=True)
class Groups:
    """What a launch works on.

    kind: of groups, as ``gemm_grouped`` has them. a, b, c: the operands and the result, of a list
    the first ones. offs: where groups end, or the table of a list. sizes: the number of groups,
    M, N and K; of a list the largest ones. shortest: the least K of a product. index: the type
    of elements' indices. scale_a, scale_b: as ``finished`` takes them.
    """

    kind: str
    a: Any
    b: Any
    c: Any
    offs: Any
    sizes: tuple[int, int, int, int]
    shortest: int
    index: Any
    scale_a: Any = None
    scale_b: Any = None


def multiply_groups(a: Any, b: Any, offs: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
    """``grouped_matmul`` of tensors that were checked."""
    import torch

    groups, kind = len(offs), "rows" if b.dim() == 3 else "depth"
    shape = (a.shape[0], b.shape[2]) if kind == "rows" else (groups, a.shape[0], b.shape[1])
    dtype = result_dtype(a.dtype, out_dtype, scale_a is not None)
    c = torch.empty(shape, dtype=dtype, device=a.device)
    if c.numel() == 0:
        return c
    if 0 in (groups, a.shape[1]):
        return c.zero_()
    sizes = (groups, a.shape[0], b.shape[-1], a.shape[1])
    work = Groups(kind, a, b, c, offs.contiguous(), sizes, a.shape[1], _index(a, b, c))
    if scale_a is not None:
        of_rows, of_columns = (scale_a.contiguous(), 0, 1), (scale_b.contiguous(), b.shape[-1], 1)
        work = replace(work, scale_a=of_rows, scale_b=of_columns)
    target, b_by_column = _target(a), _by_column(b)
    if target == "cuda:90" and _can_be_specialized(a, b, c, kind):
        _launch_specialized(work, kind == "depth", b_by_column)
    else:
        _launch(work, target)
    return c


def multiply_list(a: Sequence[Any], b: Sequence[Any], out_dtype: Any) -> list[Any]:
    """``grouped_matmul`` of lists that were checked."""
    import torch

    out = [
        torch.empty(
            (x.shape[0], y.shape[1]), dtype=result_dtype(x.dtype, out_dtype), device=x.device
        )
        for x, y in zip(a, b, strict=True)
    ]
    for c, x in zip(out, a, strict=True):
        if x.shape[1] == 0:
            c.zero_()
    products = [(x, y, c) for x, y, c in zip(a, b, out, strict=True) if c.numel() and x.shape[1]]
    if not products:
        return out
    target = _target(a[0])
    x, y, c = products[0]
    sizes = (
        len(products),
        max(c.shape[0] for _, _, c in products),
        max(c.shape[1] for _, _, c in products),
        max(a.shape[1] for a, _, _ in products),
    )
    index = _index(*(x for product in products for x in product))
    shortest = min(a.shape[1] for a, _, _ in products)
    work = Groups("list", x, y, c, _table(products), sizes, shortest, index)
    orders = {(_by_column(x), _by_column(y)) for x, y, _ in products}
    fit = len(orders) == 1 and all(_can_be_specialized(*p, "list") for p in products)
    if target == "cuda:90" and fit:
        _launch_specialized(work, *orders.pop())
    else:
        _launch(work, target)
    return out


def _index(*tensors: Any) -> Any:
    """The type of elements' indices."""
    return tl.int64 if any(_extent(x) >= 1 << 31 for x in tensors) else tl.int32


def _by_column(x: Any) -> bool:
    return bool(x.stride(-2) == 1 and x.stride(-1) != 1)


def _table(products: Sequence[tuple[Any, Any, Any]]) -> Any:
    """The table of a list, on its device."""
    import torch

    rows = [
        number
        for a, b, c in products
        for number in (
            a.data_ptr(), b.data_ptr(), c.data_ptr(), *c.shape, a.shape[1], *a.stride(), *b.stride()
        )
    ]  # fmt: skip
    device = products[0][0].device
    if device.type == "cpu":
        return torch.tensor(rows)
    rows += [0] * (-len(rows) % FILLED)
    table = torch.empty(len(rows), dtype=torch.int64, device=device)
    for at in range(0, len(rows), FILLED):
        fill_table[(1,)](table[at:], tuple(map(packed, rows[at : at + FILLED])), num_warps=1)
    return table


def _target(x: Any) -> str:
    """The target of the device that a tensor is on; ``"cpu"`` for the reference meaning."""
    if x.device.type == "cpu":
        if not triton.knobs.runtime.interpret:
            raise KernelArgumentError(
                "the operands are on the CPU",
                where=_WHERE,
                hint="move them to the GPU, or set TRITON_INTERPRET=1 before triton is imported "
                "to run with the reference meaning",
            )
        return "cpu"
    target = triton.runtime.driver.active.get_current_target()
    name = f"{target.backend}:{target.arch}"
    if name not in ("cuda:90", "hip:gfx942", "hip:gfx950"):
        raise KernelArgumentError(
            f"there is no kernel for {name}",
            where=_WHERE,
            hint="Hopper (cuda:90), CDNA 3 (hip:gfx942) or CDNA 4 (hip:gfx950)",
        )
    return name


def _can_be_specialized(a: Any, b: Any, c: Any, kind: str) -> bool:
    """Whether the copy engine takes a product's operands, in the orders that its kind needs."""
    by_column = _by_column(b)
    turned = kind == "depth" or (kind == "list" and _by_column(a))
    if a.element_size() != 2 and (turned or not by_column):
        return False  # the matrix unit reads them with K contiguous
    if kind == "depth" and by_column:
        return False  # a group may begin between two multiples of 16 bytes
    operands = (a.mT if turned else a, b.mT if by_column else b)
    return all(map(can_be_described, operands)) and c.shape[-1] * c.element_size() % 16 == 0


def specialized_config(n: int, element_bytes: int, result_bytes: int) -> Config:
    """The configuration for Hopper where the copy engine takes all operands.

    n: the largest number of a group's columns. Sizes are bytes of an element. The stages fill
    what the result's two buffers leave of shared memory.
    """
    block_n = 256 if n > 128 else 128
    left = _SHARED - 64 * block_n * result_bytes
    return Config(
        128, block_n, 128 // element_bytes, 8, left // ((128 + block_n) * 128), 4, "cooperative", 2
    )


def _launch_specialized(
    work: Groups, a_by_column: bool, b_by_column: bool, config: Config | None = None
) -> None:
    """Launch the kernel whose warps have tasks of their own."""
    import torch

    a, b, c, kind, (groups, m, n, _) = work.a, work.b, work.c, work.kind, work.sizes
    config = config or specialized_config(n, a.element_size(), c.element_size())
    rows, b_block = config.block_m // 2, [config.block_k, config.block_n]
    descriptors: list[Any] = [None, None, None]
    if kind == "rows":
        tf32 = a.dtype == torch.float32
        descriptors[0] = TensorDescriptor.from_tensor(
            a, [rows, config.block_k], round_f32_to_tf32=tf32
        )
        descriptors[1] = TensorDescriptor.from_tensor(
            b.mT if b_by_column else b, [1, *(b_block[::-1] if b_by_column else b_block)],
            round_f32_to_tf32=tf32,
        )  # fmt: skip
    if kind != "list":
        block = [rows, config.block_n // config.subtiles]
        descriptors[2] = TensorDescriptor.from_tensor(c.view(-1, n), block)
    # Groups of rows may each end with a tile that is not whole; of the others each has all tiles.
    tiles = (
        triton.cdiv(m, config.block_m) + groups
        if kind == "rows"
        else (groups * triton.cdiv(m, config.block_m))
    )
    programs = min(tiles * triton.cdiv(n, config.block_n), multiprocessors(a.device))
    # A tile of 4 bytes an element would fill the registers that it waits in.
    late = (
        kind != "depth" and c.element_size() <= 2
        and work.shortest > (config.subtiles - 1) * config.block_k
    )  # fmt: skip
    taken = torch.zeros(1, dtype=torch.int32, device=a.device)
    _with_allocator(
        a.device,
        lambda: gemm_grouped_specialized[(programs,)](
            *descriptors, a, b, c, work.scale_a, work.scale_b, work.offs, taken, *work.sizes,
            a.stride(1), b.stride(0), **config.arguments(), SUBTILES=config.subtiles,
            A_BY_COLUMN=a_by_column, B_BY_COLUMN=b_by_column, ACC=_DTYPES[_name(a.dtype)][0],
            KIND=kind, LATE=late, INDEX=work.index, num_warps=4,
        ),
    )  # fmt: skip


def _with_allocator(device: Any, launch: Callable[[], Any]) -> None:
    """Launch a kernel that makes descriptors: they need room, from PyTorch, for this launch."""
    import torch

    def run() -> None:
        triton.set_allocator(
            lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device)
        )
        launch()

    # An allocator is a context's: the caller keeps the one that was set before.
    contextvars.copy_context().run(run)


def plain_config(
    target: str, n: int, element_bytes: int, result_bytes: int, kind: str
) -> tuple[Config, Any, int]:
    """The configuration for any strides, how a tile is summed, and the buffers for that.

    Sizes are bytes of an element of the operands and of the result.
    """
    if target == "cpu":
        return Config(64, 64, 128 // element_bytes, 4, 3, 4), multiply_pipelined, 3
    if target == "cuda:90":
        # The buffers serve all tiles: a result that is laid out anew to be stored has room of its
        # own beside them, of 4 bytes an element 128 KiB in a tile of 128 x 256.
        config = hopper_config(128, n if result_bytes <= 2 else min(n, 128), 0, element_bytes)
        return config, multiply_pipelined, config.stages
    # Tiles of at most 128 x 128: larger ones spill, as addresses take registers; those of a list,
    # whose strides nobody knows, are one an element.
    config = cdna_config(128, n, 0, element_bytes, target[4:])
    config = replace(config, block_m=64, block_n=64) if kind == "list" else config
    return config, multiply_staged, config.stages - 1


def _launch(work: Groups, target: str) -> None:
    """Launch the kernel that takes any strides."""
    a, b, c, kind = work.a, work.b, work.c, work.kind
    config, multiply, buffers = plain_config(
        target, work.sizes[2], a.element_size(), c.element_size(), kind
    )
    constants = config.arguments()
    del constants["STAGES"]
    programs = multiprocessors(a.device)
    # A list's strides are in its table.
    of_b = (0, *b.stride()) if b.dim() == 2 else b.stride()
    strides = (0,) * 5 if kind == "list" else (*a.stride(), *of_b)
    gemm_grouped[(programs,)](
        a, b, c, work.scale_a, work.scale_b, work.offs, *work.sizes, *strides, **constants,
        BUFFERS=buffers, ACC=_DTYPES[_name(a.dtype)][0], KIND=kind, MULTIPLY=multiply,
        INDEX=work.index, num_warps=config.num_warps,
    )  # fmt: skip
