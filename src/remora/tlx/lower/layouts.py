"""The encodings that TLX's lowerings give to buffers and products, as MLIR text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import Attribute

from remora.dsl import Target
from remora.errors import ConflictingLayouts
from remora.ir.build import attribute
from remora.tlx.lower.tensor_layouts import TensorLayout, TensorMatrix, TensorScales
from remora.tlx.types import COLUMN_BYTES, LANES, columns

_LIST = r"\[([\d, ]*)\]"

SHARED = "#ttg.shared_memory"


@dataclass(frozen=True)
class NvmmaShared:
    """The shared layout that wgmma reads and TMA copies: rows swizzled in units of 16 bytes.

    transposed: the last dimension but one is the contiguous one. rank: dimensions. padded: of
    each 16 bytes 8 are used, by 16 elements of fp4, as Blackwell reads them beside fp8.
    """

    swizzling: int
    transposed: bool
    bits: int
    rank: int = 2
    padded: bool = False
    memory: ClassVar[str] = SHARED

    @classmethod
    def of(cls, shape: tuple[int, ...], bits: int, transposed: bool) -> NvmmaShared:
        """The widest swizzle that the contiguous dimension fills."""
        contiguous = shape[0] if transposed else shape[1]
        row = contiguous * bits // 8
        swizzling = next((s for s in (128, 64, 32) if row >= s), 0)
        return cls(swizzling, transposed, bits)

    @classmethod
    def of_copies(cls, shape: tuple[int, ...], bits: int) -> NvmmaShared:
        """What stock Triton gives a tensor descriptor whose blocks have that shape."""
        row = shape[-1] * bits // 8
        swizzling = next((s for s in (128, 64, 32) if row % s == 0), 0)
        return cls(swizzling if math.prod(shape[:-1]) >= 8 else 0, False, bits, len(shape))

    def piece(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The part of a box that one instruction of TMA copies."""
        *outer, inner = (min(extent, 256) for extent in shape)
        return (*outer, min(inner, self.swizzling * 8 // self.bits) if self.swizzling else inner)

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions, the contiguous one first."""
        first, second, *others = (*reversed(range(self.rank)), -1)
        order = (second, first, *others) if self.transposed else (first, second, *others)
        return order[: self.rank]

    def permuted(self, dims: tuple[int, ...]) -> NvmmaShared:
        """The layout of the view whose dimension ``j`` is this one's ``dims[j]``."""
        same = tuple(range(self.rank))
        if dims == same:
            return self
        if dims != (*same[:-2], same[-1], same[-2]):
            raise ConflictingLayouts(
                f"a buffer that TMA copies is transposed by {dims}",
                hint="of such a buffer only the last two dimensions can be exchanged",
            )
        return replace(self, transposed=not self.transposed)

    @property
    def alignment(self) -> int:
        """Bytes to which a buffer has to be aligned."""
        return max(self.swizzling * 8, 128)

    def __str__(self) -> str:
        return (
            f"#ttg.nvmma_shared<{{swizzlingByteWidth = {self.swizzling}, "
            f"transposed = {str(self.transposed).lower()}, elementBitWidth = {self.bits}"
            + (", fp4Padded = true" if self.padded else "")
            + (f", rank = {self.rank}" if self.rank != 2 else "")
            + "}>"
        )


@dataclass(frozen=True)
class SwizzledShared:
    """A shared layout whose rows are permuted in vectors of ``vec`` elements."""

    vec: int
    per_phase: int
    max_phase: int
    order: tuple[int, ...]
    memory: ClassVar[str] = SHARED

    @classmethod
    def plain(cls, order: tuple[int, ...]) -> SwizzledShared:
        """No swizzle."""
        return cls(1, 1, 1, order)

    @classmethod
    def for_operand(
        cls, shape: tuple[int, ...], bits: int, vec: int, order: tuple[int, ...], banks: int
    ) -> SwizzledShared:
        """Without bank conflicts when 16 lanes each read ``vec`` elements of 16 rows.

        banks: of 4 bytes each.
        """
        inner = shape[order[0]]
        row = banks * 32 // bits  # elements that one row of banks holds
        per_phase = max(1, row // inner)
        max_phase = max(1, min(16 // per_phase, inner // vec))
        return cls(vec, per_phase, max_phase, order)

    def permuted(self, dims: tuple[int, ...]) -> SwizzledShared:
        """The layout of the view whose dimension ``j`` is this one's ``dims[j]``."""
        return replace(self, order=tuple(dims.index(o) for o in self.order))

    @property
    def alignment(self) -> int:
        """Bytes to which a buffer has to be aligned."""
        return 16

    def __str__(self) -> str:
        return (
            f"#ttg.swizzled_shared<{{vec = {self.vec}, perPhase = {self.per_phase}, "
            f"maxPhase = {self.max_phase}, order = {list(self.order)}}}>"
        )


@dataclass(frozen=True)
class LinearShared:
    """A shared layout that says where each bit of an offset goes.

    offsets: for each bit of the offset, in elements, the step along each dimension.
    paddings: (interval, padding) pairs, in elements; none: ``#ttg.shared_linear``.
    alignment: in bytes.
    """

    offsets: tuple[tuple[int, ...], ...]
    paddings: tuple[tuple[int, int], ...] = ()
    alignment: int = 16
    memory: ClassVar[str] = SHARED

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions, the contiguous one first."""
        moved = (next((d for d, step in enumerate(basis) if step), 0) for basis in self.offsets)
        return tuple(dict.fromkeys((*moved, *range(len(self.offsets[0]) - 1, -1, -1))))

    def permuted(self, dims: tuple[int, ...]) -> LinearShared:
        """The layout of the view whose dimension ``j`` is this one's ``dims[j]``."""
        return replace(self, offsets=tuple(tuple(b[d] for d in dims) for b in self.offsets))

    def __str__(self) -> str:
        offsets = [list(basis) for basis in self.offsets]
        if not self.paddings:
            return (
                f"#ttg.shared_linear<{{offset = {offsets}, block = []}}, "
                f"alignment = {self.alignment}>"
            )
        pairs = ", ".join(f"{interval}:+{padding}" for interval, padding in self.paddings)
        return f"#ttg.padded_shared<[{pairs}] {{offset = {offsets}, block = []}}>"


SharedLayout = NvmmaShared | SwizzledShared | LinearShared
Layout = SharedLayout | TensorLayout


def can_read(wanted: Layout, given: Layout) -> bool:
    """Whether what wants one layout reads another one too.

    The matrix unit reads any swizzle where it could have the widest, and elements of 16 bits in
    either order. What a product reads or writes in tensor memory only has to have its stride.
    """
    if isinstance(wanted, TensorMatrix) and isinstance(given, TensorMatrix):
        return (wanted.stride, wanted.halved) == (given.stride, given.halved)
    if not isinstance(wanted, NvmmaShared) or not isinstance(given, NvmmaShared):
        return wanted == given
    swizzled = given.swizzling > 0 or wanted.swizzling == 0
    ordered = given.transposed == wanted.transposed or wanted.bits == 16
    same = (given.bits, given.rank) == (wanted.bits, wanted.rank)
    return same and swizzled and ordered


def shared_layout(text: str) -> SharedLayout:
    """A shared layout from the text that it prints."""
    numbers = {k: int(v) for k, v in re.findall(r"(\w+) = (\d+)", text)}
    if text.startswith("#ttg.nvmma_shared"):
        transposed = "transposed = true" in text
        return NvmmaShared(
            numbers["swizzlingByteWidth"], transposed, numbers["elementBitWidth"],
            numbers.get("rank", 2), "fp4Padded = true" in text,
        )  # fmt: skip
    if text.startswith("#ttg.swizzled_shared"):
        order = tuple(map(int, re.findall(r"\d+", text.partition("order = ")[2])))
        return SwizzledShared(numbers["vec"], numbers["perPhase"], numbers["maxPhase"], order)
    rows = re.findall(r"\[([\d, ]+)\]", text.partition("offset = ")[2].partition("block")[0])
    return LinearShared(
        tuple(tuple(map(int, row.split(","))) for row in rows),
        tuple((int(a), int(b)) for a, b in re.findall(r"(\d+):\+(\d+)", text)),
        numbers.get("alignment", 16),
    )


@dataclass(frozen=True)
class MemDesc:
    """What the type of a buffer says, or of ``num`` of them.

    allocated: the shape of the memory that a slice is a part of; None: ``shape``.
    layout: None while it is not known.
    """

    shape: tuple[int, ...]
    element: Attribute
    layout: Layout | None = None
    num: int = 0
    allocated: tuple[int, ...] | None = None

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape that the layout is laid over: a slice is a part of it."""
        return self.allocated or self.shape

    @property
    def shared(self) -> SharedLayout:
        """The layout of a buffer that is known to be in shared memory, and to have one."""
        assert self.layout is not None
        assert not isinstance(self.layout, TensorMatrix | TensorScales)
        return self.layout

    @property
    def in_tensor_memory(self) -> bool:
        """Whether the buffer is in tensor memory."""
        return isinstance(self.layout, TensorMatrix | TensorScales)

    @property
    def bits(self) -> int:
        """The width of an element."""
        width: int = self.element.bitwidth  # type: ignore[attr-defined]
        return width

    @property
    def bytes(self) -> int:
        """Bytes of one buffer; in tensor memory, of the columns that it takes."""
        if isinstance(self.layout, TensorMatrix):
            laid = self.layout.laid(self.shape)
            return columns(laid, self.bits * self.layout.stride) * COLUMN_BYTES
        if isinstance(self.layout, TensorScales):
            return columns(self.shape, self.bits, scales=True) * COLUMN_BYTES
        padded = isinstance(self.layout, NvmmaShared) and self.layout.padded
        return math.prod(self.shape) * self.bits // 8 * (2 if padded else 1)

    @property
    def as_columns(self) -> MemDesc:
        """The columns that one buffer of scales takes, as a matrix."""
        shape = (LANES, columns(self.shape, self.bits, scales=True))
        return MemDesc(shape, attribute("i32"), TensorMatrix.of(shape))

    @property
    def type(self) -> Attribute:
        """The MLIR type.

        Several buffers of scales are what one of them is read of, ``as_columns``: a type of scales
        has two dimensions.
        """
        assert self.layout is not None
        if self.num and isinstance(self.layout, TensorScales):
            return replace(self.as_columns, num=self.num).type
        return memdesc(self.shape, self.element, self.layout, self.num, self.allocated)


def memdesc(
    shape: tuple[int, ...],
    element: Attribute,
    layout: Layout,
    num: int = 0,
    allocated: tuple[int, ...] | None = None,
) -> Attribute:
    """The type of one buffer, or of ``num`` of them; ``allocated`` as of ``MemDesc``."""
    if isinstance(layout, TensorMatrix):
        shape = layout.laid(shape)
    extents = "x".join(map(str, (*((num,) if num else ()), *shape)))
    whole = f", {'x'.join(map(str, allocated))}" if allocated not in (None, shape) else ""
    return attribute(
        f"!ttg.memdesc<{extents}x{element}, {layout}, {layout.memory}, mutable{whole}>"
    )


def element_type(dtype: str) -> Attribute:
    """The MLIR type of an element type that ``str(tl.dtype)`` names."""
    special = {
        "fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64", "fp8e4nv": "f8E4M3FN",
        "fp8e5": "f8E5M2", "fp8e4b8": "f8E4M3FNUZ", "fp8e5b16": "f8E5M2FNUZ",
    }  # fmt: skip
    return attribute(special.get(dtype) or "i" + dtype.lstrip("uint"))


def wgmma_accumulator(m: int, n: int, element: Attribute, num_warps: int) -> str:
    """The layout of a warp group product's accumulator.

    Warps are laid along M as far as it goes (16 rows a warp, 64 a group), the
    rest along N; an instruction takes at most 256 columns (of the integers,
    Triton's lowering takes at most 224, so that a power of two is 128).
    """
    width: int = element.bitwidth  # type: ignore[attr-defined]
    widest = 128 if isinstance(element, IntegerType) else 256
    along_m = 4
    while along_m < num_warps and along_m * 2 * 16 <= m:
        along_m *= 2
    along_n = num_warps // along_m
    columns = max(n // along_n, 8)
    columns = max(c for c in range(8, min(columns, widest) + 1, 8) if columns % c == 0)
    return (
        "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, "
        f"warpsPerCTA = [{along_m}, {along_n}], instrShape = [16, {columns}, {256 // width}]}}>"
    )


def dot_operand(index: int, parent: str, bits: int) -> str:
    """The layout of a product's operand in registers."""
    return f"#ttg.dot_op<{{opIdx = {index}, parent = {parent}, kWidth = {32 // bits}}}>"


def with_encoding(kind: TensorType[Any], encoding: str) -> TensorType[Any]:
    """The tensor type with another layout."""
    return TensorType(kind.element_type, kind.get_shape(), attribute(encoding))


def order_of(kind: Attribute) -> tuple[int, ...] | None:
    """The order of a tensor's blocked layout, the contiguous dimension first."""
    if not isinstance(kind, TensorType):
        return None
    found = re.search(r"#ttg\.blocked<\{.*order = " + _LIST, str(kind.encoding))
    return tuple(int(n) for n in found.group(1).split(",")) if found else None


def run_of(kind: Attribute, dim: int) -> int:
    """Elements that follow each other along a dimension in one thread; 1 where it is unknown."""
    encoding = str(kind.encoding) if isinstance(kind, TensorType) else ""
    found = re.search(r"^#ttg\.blocked<\{sizePerThread = " + _LIST, encoding)
    return int(found.group(1).split(",")[dim]) if found else 1


def mfma_vector(target: Target, bits: int) -> int:
    """Elements of K that a lane of a matrix instruction reads at once (kWidth)."""
    if bits >= 32:
        return max(1, 64 // bits) if target.arch == "gfx950" else 1
    return (128 if target.arch == "gfx950" else 64) // bits
