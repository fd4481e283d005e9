"""What a matrix product is given: checked, and as the kernels take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError

_WHERE = "remora.kernels.matmul"

# Element type of the operands: accumulator, default type of the result.
_DTYPES = {
    "float16": (tl.float32, "float16"),
    "bfloat16": (tl.float32, "bfloat16"),
    "float32": (tl.float32, "float32"),
    "float8_e4m3fn": (tl.float32, "float16"),
    "float8_e5m2": (tl.float32, "float16"),
    "int8": (tl.int32, "int32"),
}


@dataclass(frozen=True)
class Operand:
    """A matrix, or a batch of them.

    tensor: of 2 dimensions, or of 3. by_column: it is stored by columns. described: as the
    copy engine takes it, its last dimension contiguous; None where it cannot.
    """

    tensor: Any
    by_column: bool
    described: Any

    @property
    def batched(self) -> bool:
        """Whether each product has a matrix of its own."""
        return bool(self.tensor.dim() == 3)

    @property
    def rounded(self) -> bool:
        """Whether the copy engine rounds it to tf32, whose bits the matrix units cut off."""
        return self.tensor.element_size() == 4 and self.tensor.is_floating_point()

    def strides(self) -> tuple[int, int, int]:
        """From matrix to matrix, row to row and column to column, in elements."""
        stride = self.tensor.stride()
        return stride if self.batched else (0, *stride)

    def descriptor(self, rows: int, columns: int) -> TensorDescriptor:
        """A descriptor of blocks of rows and columns; in the order that they are stored in."""
        block = [columns, rows] if self.by_column else [rows, columns]
        block = [1, *block] if self.batched else block
        return TensorDescriptor.from_tensor(self.described, block, round_f32_to_tf32=self.rounded)


@dataclass(frozen=True)
class Product:
    """``c = a @ b``. result: c, of the shape that the caller expects."""

    a: Operand
    b: Operand
    c: Any
    result: Any
    accumulator: Any

    @property
    def m(self) -> int:
        """Rows of the result."""
        return int(self.c.shape[-2])

    @property
    def n(self) -> int:
        """Columns of the result."""
        return int(self.c.shape[-1])

    @property
    def k(self) -> int:
        """Products in each sum."""
        return int(self.a.tensor.shape[-1])

    @property
    def batches(self) -> int:
        """How many products."""
        return int(self.c.shape[0]) if self.c.dim() == 3 else 1

    @property
    def c_described(self) -> bool:
        """Whether the copy engine takes the result."""
        return can_be_described(self.c)

    def c_strides(self) -> tuple[int, int, int]:
        """As ``Operand.strides``."""
        return self.c.stride() if self.c.dim() == 3 else (0, *self.c.stride())

    @property
    def index(self) -> Any:
        """The type of indices of elements."""
        tensors = (self.a.tensor, self.b.tensor, self.c)
        return tl.int64 if any(_extent(x) >= 1 << 31 for x in tensors) else tl.int32


def _extent(x: Any) -> int:
    """From the first element to the last one, in elements."""
    return sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1


def can_be_described(x: Any) -> bool:
    """Whether the copy engine takes matrices: rows contiguous, multiples of 16 bytes apart."""
    size = x.element_size()
    if x.stride(-1) != 1 or x.stride(-2) < x.shape[-1] or x.data_ptr() % 16:
        return False
    # 40 bits of bytes: CUDA driver API, cuTensorMapEncodeTiled.
    return all(s * size % 16 == 0 and 0 < s * size < 1 << 40 for s in x.stride()[:-1])


def operand_of(x: Any) -> Operand:
    """A tensor of two or three dimensions, as the kernels take it."""
    if x.dim() == 3 and x.stride(0) == 0 and x.shape[0]:
        x = x[0]
    by_column = bool(x.stride(-2) == 1 and x.stride(-1) != 1)
    rows = x.mT if by_column else x
    return Operand(x, by_column, rows if can_be_described(rows) else None)


def result_of(a: Any, b: Any, scaled: bool, out_dtype: Any) -> tuple[tuple[Any, ...], Any]:
    """Check the operands of ``matmul``: shape and dtype of the result. Tensors need no data.

    Raises:
        KernelArgumentError: see ``matmul``.
    """
    import torch

    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor) or x.dim() not in (2, 3):
            kind = f"{x.dim()} dimensions" if isinstance(x, torch.Tensor) else type(x).__name__
            raise KernelArgumentError(
                f"{name} has to be a torch tensor of 2 or 3 dimensions, it is {kind}", where=_WHERE
            )
    if a.shape[-1] != b.shape[-2]:
        raise KernelArgumentError(
            f"a is {tuple(a.shape)} and b is {tuple(b.shape)}",
            where=_WHERE,
            hint="a's columns have to be as many as b's rows",
        )
    batches = [x.shape[0] for x in (a, b) if x.dim() == 3]
    several = [n for n in batches if n != 1]
    if len(several) == 2 and several[0] != several[1]:
        raise KernelArgumentError(
            f"a has {a.shape[0]} matrices and b {b.shape[0]}",
            where=_WHERE,
            hint="as many in both, or one in one of them",
        )
    name = str(a.dtype).removeprefix("torch.")
    if a.dtype != b.dtype or name not in _DTYPES:
        raise KernelArgumentError(
            f"a is of {a.dtype} and b of {b.dtype}",
            where=_WHERE,
            hint="both of one of " + ", ".join(_DTYPES),
        )
    if a.device != b.device:
        raise KernelArgumentError(f"a is on {a.device} and b on {b.device}", where=_WHERE)
    default = _DTYPES[name][1]
    if scaled and default == "int32":
        default = "float16"
    batch = (several or batches)[:1]
    dtype = getattr(torch, default) if out_dtype is None else out_dtype
    return (*batch, a.shape[-2], b.shape[-1]), dtype


def product_of(a: Any, b: Any, scaled: bool, out_dtype: Any) -> Product:
    """Check the operands of ``matmul``, and make the result, not written yet.

    Raises:
        KernelArgumentError: see ``matmul``.
    """
    import torch

    shape, dtype = result_of(a, b, scaled, out_dtype)
    result = torch.empty(shape, dtype=dtype, device=a.device)
    c = result
    a, b = (x[0] if x.dim() == 3 and x.shape[0] == 1 else x for x in (a, b))
    if shape[:-2] == (1,):
        c = result[0]
    elif a.dim() == 3 and b.dim() == 2 and _can_be_flattened(a):
        # One matrix for all: their rows are those of one product.
        a, c = a.flatten(0, 1), result.flatten(0, 1)
    accumulator = _DTYPES[str(a.dtype).removeprefix("torch.")][0]
    return Product(operand_of(a), operand_of(b), c, result, accumulator)


def _can_be_flattened(a: Any) -> bool:
    return bool(a.stride(0) == a.shape[1] * a.stride(1))


def scale_of(name: str, scale: Any, operand: Operand, extent: int) -> Any:
    """A scale as ``finished`` takes it.

    Raises:
        KernelArgumentError: it is not fp32 on the operand's device, one number or one for each
            of its ``extent`` rows or columns.
    """
    import torch

    if scale is None:
        return None
    if not isinstance(scale, torch.Tensor):
        raise KernelArgumentError(
            f"{name} has to be a torch tensor, it is {type(scale).__name__}", where=_WHERE
        )
    if scale.dtype != torch.float32 or scale.device != operand.tensor.device:
        raise KernelArgumentError(
            f"{name} is of {scale.dtype} on {scale.device}",
            where=_WHERE,
            hint=f"fp32 on {operand.tensor.device}",
        )
    numbers = extent * (operand.tensor.shape[0] if operand.batched else 1)
    if scale.numel() == 1:
        return scale, 0, 0
    if scale.numel() != numbers:
        raise KernelArgumentError(
            f"{name} has {scale.numel()} numbers",
            where=_WHERE,
            hint=f"1, or {numbers}: one for each {'row' if name.endswith('a') else 'column'}",
        )
    return scale.contiguous(), extent if operand.batched else 0, 1
