"""Layouts that an author can name, of buffers and of tensors, and the words that take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

from triton.language import core as tl

from remora.dsl import Call, Handle, describe, kernel_line, op
from remora.dsl.reference import Machine
from remora.errors import UnsupportedByTarget, WrongShape, WrongType
from remora.tlx.storage import LOWERED_IN
from remora.tlx.types import BufferType, bits


def plain(value: Any) -> Any:
    """A value without ``tl.constexpr``, its lists and tuples as tuples."""
    value = tl._unwrap_if_constexpr(value)
    if isinstance(value, tl.tuple):
        value = value.values
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


def _check(holds: bool, what: str, hint: str) -> None:
    if not holds:
        raise WrongShape(what, where=kernel_line(), hint=hint)


def _is_power(number: Any) -> bool:
    return isinstance(number, int) and number > 0 and not number & (number - 1)


def in_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a layout that kernels may call."""

    @wraps(function)
    def called(*args: Any, _semantic: Any = None, _generator: Any = None, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    vars(called)["__triton_builtin__"] = True
    return called


class layout_encoding(tl.base_value):
    """A layout: a value that is compared, hashed and printed by what it says."""

    def __new__(cls, *args: Any, **kwargs: Any) -> layout_encoding:
        if args or kwargs:  # a copy is made without
            taken = signature(cls.__init__)
            try:
                taken.bind(None, *args, **kwargs)
            except TypeError as error:
                raise WrongType(
                    f"tlx.{cls.__name__}: {error}", where=kernel_line(), hint=str(taken)
                ) from error
        return super().__new__(cls)

    def __init__(self, **said: Any) -> None:
        self.__dict__.update({name: plain(value) for name, value in said.items()})
        self.type = tl.constexpr_type(self)  # a kernel's variable that is no tensor
        # Triton lets kernels read a global that says so.
        self.__dict__["__triton_builtin__"] = True

    def _said(self) -> tuple[Any, ...]:
        own = ("__triton_builtin__", "type")
        return tuple(sorted((k, v) for k, v in vars(self).items() if k not in own))

    def _flatten_ir(self, handles: list[Any]) -> None:
        """A layout is no value of the program."""

    def _set_name(self, builder: Any, name: str) -> None:
        """Nothing bears the name."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._said() == other._said()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self._said())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._said())})"


# --- of buffers ----------------------------------------------------------------------------------


class shared_layout_encoding(layout_encoding):
    """A layout of a buffer in shared memory."""

    def text(self, shape: tuple[int, ...]) -> str:
        """The MLIR attribute for a buffer of a shape."""
        raise NotImplementedError


def _one_cta(name: str, *counts: Any) -> None:
    for count in counts:
        flat = count if isinstance(count, tuple) else (count,)
        _check(
            all(n in (0, 1) for n in flat),
            f"{name} is split over several CTAs: {count}",
            "each CTA has a buffer of its own: give ones",
        )


class swizzled_shared_layout_encoding(shared_layout_encoding):
    """Rows whose vectors of ``vectorSize`` elements are permuted.

    The permutation goes by the row: it changes each ``perPhase`` rows, ``maxPhase`` times.
    order: dimensions, the contiguous one first.
    """

    def __init__(
        self, vectorSize: Any, perPhase: Any, maxPhase: Any, order: Any, numCTAs: Any = None,
        numCTAsPerCGA: Any = None, numCTASplit: Any = None, numCTAOrder: Any = None,
    ) -> None:  # fmt: skip
        order = plain(order)
        ones = (1,) * len(order)
        super().__init__(
            vectorSize=vectorSize, perPhase=perPhase, maxPhase=maxPhase, order=order,
            numCTAs=numCTAs or ones, numCTAsPerCGA=numCTAsPerCGA or ones,
            numCTASplit=numCTASplit or ones, numCTAOrder=numCTAOrder or ones,
        )  # fmt: skip
        for name in ("vectorSize", "perPhase", "maxPhase"):
            number = vars(self)[name]
            _check(_is_power(number), f"{name} is {number}", "give a power of two")

    @classmethod
    @in_kernels
    def make_default(cls, rank: Any) -> swizzled_shared_layout_encoding:
        """Row-major, without a permutation."""
        return cls(1, 1, 1, tuple(range(plain(rank) - 1, -1, -1)))

    @in_kernels
    def make_permute(self, dims: Any) -> swizzled_shared_layout_encoding:
        """The layout of the buffer with its dimensions permuted."""
        s: Any = self
        order = tuple(plain(dims).index(o) for o in s.order)
        return type(self)(s.vectorSize, s.perPhase, s.maxPhase, order)

    def text(self, shape: tuple[int, ...]) -> str:
        """See ``shared_layout_encoding``."""
        s: Any = self
        _one_cta("the layout", s.numCTAsPerCGA, s.numCTASplit)
        _check_order(s.order, shape)
        return (
            f"#ttg.swizzled_shared<{{vec = {s.vectorSize}, perPhase = {s.perPhase}, "
            f"maxPhase = {s.maxPhase}, order = {list(s.order)}}}>"
        )


def _check_order(order: tuple[int, ...], shape: tuple[int, ...]) -> None:
    _check(
        sorted(order) == list(range(len(shape))),
        f"order {order} is no order of the dimensions of {shape}",
        "name each dimension, the contiguous one first",
    )


class nv_mma_shared_layout_encoding(shared_layout_encoding):
    """What the matrix unit and TMA read: rows swizzled as widely as ``shape`` fills.

    order: dimensions, the contiguous one first. swizzled: False: no swizzle.
    """

    def __init__(
        self, shape: Any, order: Any, elemType: Any, numCTAsPerCGA: Any, numCTASplit: Any,
        numCTAOrder: Any, fp4Padded: Any, swizzled: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            shape=shape, order=order, elemType=elemType, numCTAsPerCGA=numCTAsPerCGA,
            numCTASplit=numCTASplit, numCTAOrder=numCTAOrder, fp4Padded=fp4Padded,
            swizzled=swizzled,
        )  # fmt: skip

    @classmethod
    @in_kernels
    def make_default(
        cls, shape: Any, elemType: Any, fp4Padded: Any = False
    ) -> nv_mma_shared_layout_encoding:
        """Row-major."""
        shape = plain(shape)
        ones = (1,) * len(shape)
        order = tuple(range(len(shape) - 1, -1, -1))
        return cls(shape, order, elemType, ones, ones, ones, fp4Padded, True)

    @in_kernels
    def make_permute(self, dims: Any) -> nv_mma_shared_layout_encoding:
        """The layout of the buffer with its dimensions permuted."""
        s: Any = self
        dims = plain(dims)
        order = tuple(dims.index(o) for o in s.order)
        shape = tuple(s.shape[d] for d in dims)
        return type(self)(
            shape, order, s.elemType, s.numCTAsPerCGA, s.numCTASplit, s.numCTAOrder, s.fp4Padded,
            s.swizzled,
        )  # fmt: skip

    @property
    def swizzling(self) -> int:
        """The swizzle's width, in bytes."""
        s: Any = self
        row = s.shape[s.order[0]] * bits(s.elemType) * (2 if s.fp4Padded else 1) // 8
        rows = math.prod(s.shape) // s.shape[s.order[0]]
        if not s.swizzled or rows < 8:
            return 0
        return next((width for width in (128, 64, 32) if row % width == 0), 0)

    def text(self, shape: tuple[int, ...]) -> str:
        """See ``shared_layout_encoding``."""
        s: Any = self
        _one_cta("the layout", s.numCTAsPerCGA, s.numCTASplit)
        _check_order(s.order, shape)
        _check(len(shape) == 2, f"a buffer of {shape} is no matrix", "give it two dimensions")
        _check(not s.fp4Padded, "padded fp4 is Blackwell's", "leave fp4Padded out")
        transposed = str(s.order[0] == 0).lower()
        return (
            f"#ttg.nvmma_shared<{{swizzlingByteWidth = {self.swizzling}, "
            f"transposed = {transposed}, elementBitWidth = {bits(s.elemType)}}}>"
        )

    @in_kernels
    def tile_to_shape(
        self, tile_shape: Any, alignment: Any = 1024
    ) -> shared_linear_layout_encoding:
        """The same, as a ``shared_linear_layout_encoding`` of a shape."""
        return shared_linear_layout_encoding.from_nv_mma(self, tile_shape, alignment)

    @in_kernels
    def make_shared_linear(
        self, alignment: Any = 1024, tile_shape: Any = None
    ) -> shared_linear_layout_encoding:
        """``tile_to_shape`` of its own shape."""
        return self.tile_to_shape(plain(tile_shape) or vars(self)["shape"], alignment)

    def offset_bases(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """For each bit of an offset into a buffer, the step along each dimension."""
        s: Any = self
        inner, outer = s.order[0], s.order[1]
        width = bits(s.elemType)
        row = (self.swizzling or 16) * 8 // width  # elements in a row of a panel
        steps: list[list[int]] = []

        def step(dim: int, size: int, also: int = 0) -> None:
            basis = [0] * len(shape)
            basis[dim] = size
            basis[inner] ^= also
            steps.append(basis)

        vector, phases = 128 // width, max(self.swizzling, 16) // 16
        per_phase = 128 // max(self.swizzling, 16)
        for bit in range(row.bit_length() - 1):
            step(inner, 1 << bit)
        for bit in range(shape[outer].bit_length() - 1):
            phase = (1 << bit) // per_phase % phases
            step(outer, 1 << bit, phase * vector)
        for bit in range((shape[inner] // row).bit_length() - 1):
            step(inner, row << bit)
        return tuple(map(tuple, steps))


class padded_shared_layout_encoding(shared_layout_encoding):
    """A linear layout with ``paddings[i]`` elements left out after each ``intervals[i]``."""

    def __init__(
        self, intervals: Any, paddings: Any, order: Any, shape: Any, numCTAsPerCGA: Any = None,
        numCTASplit: Any = None, numCTAOrder: Any = None, offset_bases: Any = None,
        block_bases: Any = None,
    ) -> None:  # fmt: skip
        shape = plain(shape)
        ones = (1,) * len(shape)
        super().__init__(
            intervals=intervals, paddings=paddings, order=order, shape=shape,
            numCTAsPerCGA=numCTAsPerCGA or ones, numCTASplit=numCTASplit or ones,
            numCTAOrder=numCTAOrder or tuple(range(len(shape))), offset_bases=offset_bases,
            block_bases=block_bases,
        )  # fmt: skip
        s: Any = self
        _check(
            len(s.intervals) == len(s.paddings),
            f"{len(s.intervals)} intervals and {len(s.paddings)} paddings",
            "give each interval its padding",
        )
        _check(
            all(map(_is_power, (*s.intervals, *s.paddings))),
            f"intervals are {s.intervals} and paddings {s.paddings}",
            "give powers of two",
        )

    @staticmethod
    @in_kernels
    def with_bases(
        interval_padding_pairs: Any, offset_bases: Any, shape: Any, block_bases: Any = None
    ) -> padded_shared_layout_encoding:
        """From (interval, padding) pairs and, for each bit of an offset, the step it makes."""
        pairs, shape = plain(interval_padding_pairs), plain(shape)
        order = tuple(range(len(shape) - 1, -1, -1))
        return padded_shared_layout_encoding(
            tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), order, shape,
            offset_bases=offset_bases, block_bases=block_bases or (),
        )  # fmt: skip

    @staticmethod
    @in_kernels
    def with_identity_for(
        interval_padding_pairs: Any, shape: Any, order: Any = None
    ) -> padded_shared_layout_encoding:
        """From (interval, padding) pairs and the order of the dimensions."""
        pairs, shape = plain(interval_padding_pairs), plain(shape)
        order = plain(order) or tuple(range(len(shape) - 1, -1, -1))
        return padded_shared_layout_encoding(
            tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), order, shape
        )

    @in_kernels
    def make_permute(self, dims: Any) -> padded_shared_layout_encoding:
        """The layout of the buffer with its dimensions permuted."""
        s: Any = self
        dims = plain(dims)
        return type(self)(
            s.intervals, s.paddings, tuple(dims.index(o) for o in s.order),
            tuple(s.shape[d] for d in dims), offset_bases=_permuted(s.offset_bases, dims),
            block_bases=_permuted(s.block_bases, dims),
        )  # fmt: skip

    def text(self, shape: tuple[int, ...]) -> str:
        """See ``shared_layout_encoding``."""
        s: Any = self
        _check(s.shape == shape, f"the layout is of {s.shape}, the buffer of {shape}", "one shape")
        offsets = s.offset_bases
        if offsets is None:
            _check_order(s.order, shape)
            offsets = tuple(
                tuple(1 << bit if d == dim else 0 for d in range(len(shape)))
                for dim in s.order
                for bit in range(shape[dim].bit_length() - 1)
            )
        _check_bases(offsets, shape)
        _check(not s.block_bases, "the layout is split over several CTAs", "give no block_bases")
        pairs = ", ".join(f"{i}:+{p}" for i, p in zip(s.intervals, s.paddings, strict=True))
        return f"#ttg.padded_shared<[{pairs}] {{offset = {_lists(offsets)}, block = []}}>"


class shared_linear_layout_encoding(shared_layout_encoding):
    """For each bit of an offset, the step that it makes along each dimension.

    alignment: of the buffer, in bytes.
    """

    def __init__(self, offset_bases: Any, block_bases: Any = None, alignment: Any = 16) -> None:
        super().__init__(
            offset_bases=offset_bases, block_bases=block_bases or (), alignment=alignment
        )
        s: Any = self
        _check(bool(s.offset_bases), "the layout has no bits", "give offset_bases")
        _check(_is_power(s.alignment), f"alignment is {s.alignment}", "give a power of two")

    @classmethod
    @in_kernels
    def from_nv_mma(
        cls, atom_layout: Any, tile_shape: Any, alignment: Any = 1024
    ) -> shared_linear_layout_encoding:
        """The layout of a buffer of ``tile_shape`` with the swizzle of ``atom_layout``."""
        atom = plain(atom_layout)
        return cls(atom.offset_bases(plain(tile_shape)), alignment=alignment)

    @in_kernels
    def make_permute(self, dims: Any) -> shared_linear_layout_encoding:
        """The layout of the buffer with its dimensions permuted."""
        s: Any = self
        return type(self)(
            _permuted(s.offset_bases, plain(dims)), _permuted(s.block_bases, plain(dims)),
            s.alignment,
        )  # fmt: skip

    def text(self, shape: tuple[int, ...]) -> str:
        """See ``shared_layout_encoding``."""
        s: Any = self
        _check_bases(s.offset_bases, shape)
        _check(not s.block_bases, "the layout is split over several CTAs", "give no block_bases")
        return (
            f"#ttg.shared_linear<{{offset = {_lists(s.offset_bases)}, block = []}}, "
            f"alignment = {s.alignment}>"
        )


def _permuted(bases: Any, dims: Sequence[int]) -> Any:
    return bases and tuple(tuple(basis[d] for d in dims) for basis in bases)


def _lists(bases: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(basis) for basis in bases]


def _check_bases(bases: Sequence[Sequence[int]], shape: tuple[int, ...]) -> None:
    """Check that a linear layout gives each element of a shape one place."""
    fits = all(len(b) == len(shape) for b in bases) and all(
        0 <= step < extent for b in bases for step, extent in zip(b, shape, strict=True)
    )
    reached = {(0,) * len(shape)}
    for basis in bases if fits else ():
        reached |= {tuple(x ^ step for x, step in zip(r, basis, strict=True)) for r in reached}
    _check(
        fits and 1 << len(bases) == len(reached) == math.prod(shape),
        f"the {len(bases)} bases do not give each element of {shape} a place of its own",
        "an offset has as many bits as the buffer's extents together",
    )


class swizzled_layout(layout_encoding):
    """CuTe's ``Swizzle<bits, base, shift>`` of a buffer in shared memory.

    2**bits phases, vectors of 2**base elements; order: dimensions, the contiguous one first.
    """

    def __init__(self, bits: Any, base: Any = 0, shift: Any = 0, order: Any = None) -> None:
        super().__init__(bits=bits, base=base, shift=shift, order=order)

    @classmethod
    @in_kernels
    def make_default(cls, rank: Any) -> swizzled_layout:
        """Row-major, without a permutation."""
        return cls(0, 0, 0, tuple(range(plain(rank) - 1, -1, -1)))

    @property
    def maxPhase(self) -> int:
        """The number of phases."""
        return 1 << int(vars(self)["bits"])

    @property
    def vectorSize(self) -> int:
        """Elements that stay together."""
        return 1 << int(vars(self)["base"])

    def encoding(self, shape: tuple[int, ...]) -> swizzled_shared_layout_encoding:
        """What it is for a buffer of a shape."""
        s: Any = self
        order = s.order or tuple(range(len(shape) - 1, -1, -1))
        _check_order(order, shape)
        per_phase, rest = (1, 0)
        if self.maxPhase > 1:
            per_phase, rest = divmod(1 << (s.shift + s.base), shape[order[0]])
        _check(
            per_phase > 0 and not rest,
            f"{self} begins within a row of {shape[order[0]]} elements",
            f"shift + base has to be at least log2({shape[order[0]]})",
        )
        return swizzled_shared_layout_encoding(self.vectorSize, per_phase, self.maxPhase, order)


class tensor_memory_layout_encoding(layout_encoding):
    """A layout of Blackwell's tensor memory."""

    def __init__(
        self, blockM: Any, blockN: Any, colStride: Any, CTASplitM: Any, CTASplitN: Any
    ) -> None:
        super().__init__(
            blockM=blockM, blockN=blockN, colStride=colStride, CTASplitM=CTASplitM,
            CTASplitN=CTASplitN,
        )  # fmt: skip

    @classmethod
    @in_kernels
    def make_default(cls, shape: Any) -> tensor_memory_layout_encoding:
        """Of a matrix."""
        rows, columns = plain(shape)
        return cls(rows, columns, 1, 1, 1)

    @in_kernels
    def make_permute(self, dims: Any) -> tensor_memory_layout_encoding:
        """Itself."""
        return self

    def text(self, shape: tuple[int, ...]) -> str:
        """The MLIR attribute for a matrix of a shape."""
        s: Any = self
        _one_cta("the layout", s.CTASplitM, s.CTASplitN)
        _check(
            s.blockM == shape[0] and _is_power(s.blockN) and s.blockN <= shape[1],
            f"blocks of {s.blockM} by {s.blockN} are none of a matrix of {shape}",
            "give blockM all rows, and blockN columns that divide it",
        )
        _check(s.colStride in (1, 2, 4), f"colStride is {s.colStride}", "give 1, 2 or 4")
        return (
            f"#ttng.tensor_memory_encoding<blockM = {s.blockM}, blockN = {s.blockN}, "
            f"colStride = {s.colStride}>"
        )


class tensor_memory_scales_layout_encoding(layout_encoding):
    """The layout of scales in Blackwell's tensor memory."""

    def __init__(self, CTASplitM: Any = 1, CTASplitN: Any = 1) -> None:
        super().__init__(CTASplitM=CTASplitM, CTASplitN=CTASplitN)

    @classmethod
    @in_kernels
    def make_default(cls) -> tensor_memory_scales_layout_encoding:
        """Of one CTA."""
        return cls()

    def text(self, shape: tuple[int, ...]) -> str:
        """The MLIR attribute."""
        s: Any = self
        _one_cta("the layout", s.CTASplitM, s.CTASplitN)
        return "#ttng.tensor_memory_scales_encoding<>"


def shared_text(call: Call, layout: Any, shape: tuple[int, ...], dtype: Any) -> str | None:
    """The MLIR text of a shared layout that was given; None where none was."""
    layout = tl._unwrap_if_constexpr(layout)
    if layout is None:
        return None
    if isinstance(layout, (tensor_memory_layout_encoding, tensor_memory_scales_layout_encoding)):
        call.fail(
            UnsupportedByTarget,
            f"{layout} is a layout of Blackwell's tensor memory, the buffer is in shared memory",
            hint="leave layout out: it follows from the uses; or storage=tlx.storage_kind.tmem",
        )
    if not isinstance(layout, (shared_layout_encoding, swizzled_layout)):
        call.fail(
            WrongType,
            f"layout has to be a layout of shared memory, it is {describe(layout)}",
            hint="leave layout out: it follows from the uses",
        )
    try:
        if isinstance(layout, swizzled_layout):
            layout = layout.encoding(shape)
        element = vars(layout).get("elemType", dtype)
        if bits(element) != bits(dtype):
            raise WrongShape(
                f"the layout is of {element}, the buffer of {dtype}", hint="give it one type"
            )
        return layout.text(shape)
    except WrongShape as error:
        call.fail(WrongShape, f"layout: {error.what}", hint=error.hint or "")


# --- of tensors ----------------------------------------------------------------------------------


class register_layout(layout_encoding):
    """A layout of a tensor in registers."""

    def text(self, call: Call, shape: tuple[int, ...]) -> str:
        """The MLIR attribute for a tensor of a shape."""
        raise NotImplementedError


class layout(register_layout):
    """A tensor's layout as CuTe writes it: ``shape=(thread, value)``, ``stride=(thread, value)``.

    Each is a tuple of modes: an extent, a power of two, and the step between its elements in the
    row-major tensor. The threads' bits are the lanes', then the warps'.
    """

    def __init__(self, shape: Any = None, stride: Any = None) -> None:
        shape, stride = plain(shape), plain(stride)
        _check(
            isinstance(shape, tuple) and isinstance(stride, tuple)
            and len(shape) == len(stride) == 2
            and all(isinstance(modes, tuple) for modes in (*shape, *stride))
            and all(len(a) == len(b) for a, b in zip(shape, stride, strict=True))
            and all(_is_power(extent) for modes in shape for extent in modes),
            f"shape {shape} and stride {stride} are not (thread, value) modes of powers of two",
            "shape=((32, 4), (8,)), stride=((8, 256), (1,))",
        )  # fmt: skip
        super().__init__(shape=shape, stride=stride)

    def text(self, call: Call, shape: tuple[int, ...]) -> str:
        """See ``register_layout``."""
        s: Any = self

        def steps(mode: int) -> list[list[int]]:
            flat = [
                stride << bit
                for extent, stride in zip(s.shape[mode], s.stride[mode], strict=True)
                for bit in range(extent.bit_length() - 1)
            ]
            return [
                [step // math.prod(shape[d + 1 :]) % shape[d] for d in range(len(shape))]
                for step in flat
            ]

        threads, values = steps(0), steps(1)
        lanes = 6 if call.target.backend == "hip" and call.target.arch in _WIDE else 5
        warps = 1 << (len(threads) - lanes) if len(threads) >= lanes else 0
        if warps != call.num_warps:
            call.fail(
                WrongShape,
                f"the layout is of {1 << len(threads)} threads, the program has "
                f"{call.num_warps << lanes}",
                hint="give the threads' modes as many elements as there are threads",
            )
        return (
            f"#ttg.linear<{{register = {values}, lane = {threads[:lanes]}, "
            f"warp = {threads[lanes:]}, block = []}}>"
        )


#: Targets whose warps have 64 lanes.
_WIDE = ("gfx90a", "gfx942", "gfx950")


class amd_mfma_layout_encoding(register_layout):
    """A product of AMD's matrix cores."""

    def text(self, call: Call, shape: tuple[int, ...]) -> str:
        """See ``register_layout``."""
        if call.target.backend != "hip":
            call.fail(
                UnsupportedByTarget,
                f"{call.target} has no MFMA",
                hint="leave the layout out: it follows from the uses",
            )
        s: Any = self
        if math.prod(s.warps_per_cta) != call.num_warps:
            call.fail(
                WrongShape,
                f"the layout is of {math.prod(s.warps_per_cta)} warps, the program has "
                f"{call.num_warps}",
                hint="give warps_per_cta whose product is num_warps",
            )
        if len(s.warps_per_cta) != len(shape):
            call.fail(
                WrongShape,
                f"the layout is of {len(s.warps_per_cta)} dimensions, the tensor of shape {shape}",
                hint="tlx.slice_layout is of one less than its parent",
            )
        return (
            f"#ttg.amd_mfma<{{version = {s.version}, warpsPerCTA = {list(s.warps_per_cta)}, "
            f"instrShape = {list(s.instr_shape)}, isTransposed = {str(s.transposed).lower()}}}>"
        )


class dot_operand_layout_encoding(register_layout):
    """An operand of a product."""

    def text(self, call: Call, shape: tuple[int, ...]) -> str:
        """See ``register_layout``."""
        s: Any = self
        parent = s.parent.text(call, shape)
        return f"#ttg.dot_op<{{opIdx = {s.op_idx}, parent = {parent}, kWidth = {s.k_width}}}>"


class slice_layout_encoding(register_layout):
    """A layout without one dimension, which a reduction along it leaves."""

    def text(self, call: Call, shape: tuple[int, ...]) -> str:
        """See ``register_layout``."""
        s: Any = self
        if not 0 <= s.dim <= len(shape):
            call.fail(
                WrongShape,
                f"slice_layout leaves out dimension {s.dim} of {len(shape) + 1}",
                hint="dimensions are counted from 0",
            )
        whole = (*shape[: s.dim], 1, *shape[s.dim :])
        return f"#ttg.slice<{{dim = {s.dim}, parent = {s.parent.text(call, whole)}}}>"


def _register_layout(call: Call, name: str, value: Any) -> Any:
    value = tl._unwrap_if_constexpr(value)
    if not isinstance(value, register_layout):
        call.fail(
            WrongType,
            f"{name} has to be a layout of tensors, it is {describe(value)}",
            hint="tlx.layout, tlx.amd_mfma_layout, tlx.dot_operand_layout and tlx.slice_layout "
            "give one",
        )
    return value


def register_text(call: Call, value: Any, shape: tuple[int, ...]) -> str | None:
    """The MLIR text of a layout of a tensor that was given; None where none was."""
    if tl._unwrap_if_constexpr(value) is None:
        return None
    chosen = _register_layout(call, "layout", value)
    return None if call.interpreted else str(chosen.text(call, shape))


@op("tlx.amd_mfma_layout")
def amd_mfma_layout(
    call: Call, version: Any, instr_shape: Any, transposed: Any = False, warps_per_cta: Any = None
) -> Any:
    """The layout of a product of AMD's matrix cores.

    Args:
        version: of the instructions (3: gfx942, 4: gfx950). instr_shape: (M, N, K) of one.
        transposed: whether the result is stored transposed.
        warps_per_cta: the grid of warps; None: all along M.
    """
    shape = plain(instr_shape)
    if not isinstance(shape, tuple) or len(shape) != 3:
        call.fail(WrongShape, f"instr_shape is {shape!r}", hint="give (M, N, K)")
    warps = plain(warps_per_cta) or (call.num_warps, 1)
    if not isinstance(warps, tuple) or len(warps) not in (2, 3):
        call.fail(WrongShape, f"warps_per_cta is {warps}", hint="give (M, N), or (B, M, N)")
    for name, given in (("instr_shape", shape), ("warps_per_cta", warps)):
        if not all(isinstance(x, int) and x > 0 for x in given):
            call.fail(WrongShape, f"{name} is {given}", hint="give integers above 0")
    if not 1 <= call.constant("version", version) <= 4:
        call.fail(
            UnsupportedByTarget,
            f"there are no matrix cores of version {plain(version)}",
            hint="version=3 is of gfx942, 4 of gfx950",
        )
    return tl.constexpr(
        amd_mfma_layout_encoding(
            version=call.constant("version", version), instr_shape=shape,
            transposed=call.constant("transposed", transposed, bool), warps_per_cta=warps,
        )
    )  # fmt: skip


@op("tlx.dot_operand_layout")
def dot_operand_layout(call: Call, op_idx: Any, parent: Any, k_width: Any = None) -> Any:
    """The layout of operand ``op_idx`` (0 or 1) of a product with layout ``parent``.

    k_width: elements of K that a lane reads at once.
    """
    index = call.constant("op_idx", op_idx)
    if index not in (0, 1):
        call.fail(WrongShape, f"op_idx has to be 0 or 1, it is {index}", hint="0 is A, 1 is B")
    width = call.constant("k_width", k_width)
    if not _is_power(width):
        call.fail(WrongShape, f"k_width is {width}", hint="give a power of two")
    return tl.constexpr(
        dot_operand_layout_encoding(
            op_idx=index, parent=_register_layout(call, "parent", parent), k_width=width
        )
    )


@op("tlx.slice_layout")
def slice_layout(call: Call, parent: Any, dim: Any) -> Any:
    """``parent`` without dimension ``dim``."""
    return tl.constexpr(
        slice_layout_encoding(
            parent=_register_layout(call, "parent", parent), dim=call.constant("dim", dim)
        )
    )


@op("tlx.require_layout", lowered_in=LOWERED_IN)
def require_layout(
    call: Call, src: Any, layout: Any, pin: Any = False, late_address_compute: Any = False
) -> Any:
    """Ask for a layout of a tensor; its values stay what they are.

    Args:
        src: a tensor.
        layout: of tensors.
        pin, late_address_compute: no effect.

    The compiler carries the layout on to where it is cheapest to leave it.
    """
    value = call.tensor("src", src)
    call.constant("pin", pin, bool)
    call.constant("late_address_compute", late_address_compute, bool)
    shape = tuple(tl._unwrap_if_constexpr(d) for d in value.shape)
    chosen = _register_layout(call, "layout", layout)
    return call.emit([value], [value.type], layout=register_text(call, chosen, shape))


@require_layout.reference
def _required(machine: Machine, value: Any, layout: Any) -> Any:
    return value


@op("tlx.release_layout")
def release_layout(call: Call, src: Any, relaxed: Any = False) -> Any:
    """``src`` itself: its layout is the compiler's to choose from here on."""
    call.constant("relaxed", relaxed, bool)
    return src


@op("tlx.assert_same_layout", lowered_in=LOWERED_IN)
def assert_same_layout(call: Call, lhs: Any, rhs: Any) -> Any:
    """Check that two buffers have one layout.

    Of tensors nothing is checked: their layouts are the compiler's until the end.
    """
    lhs, rhs = tl._unwrap_if_constexpr(lhs), tl._unwrap_if_constexpr(rhs)
    for name, value in (("lhs", lhs), ("rhs", rhs)):
        buffer = isinstance(value, Handle) and isinstance(value.type, BufferType)
        if not buffer and not isinstance(value, (tl.tensor, layout_encoding)):
            call.fail(
                WrongType,
                f"{name} has to be a tensor, a buffer or a layout, it is {describe(value)}",
                hint="tlx.assert_same_layout(a, b)",
            )
    if isinstance(lhs, Handle) and isinstance(rhs, Handle):
        return call.emit([lhs, rhs])
    if isinstance(lhs, Handle) and isinstance(rhs, (shared_layout_encoding, swizzled_layout)):
        kind: Any = lhs.type
        return call.emit([lhs], layout=shared_text(call, rhs, kind.shape, kind.dtype))
    return None


@assert_same_layout.reference
def _same(machine: Machine, *buffers: Any, layout: Any = None) -> None:
    """A layout changes no meaning."""


@op("tlx.zeros")
def zeros(call: Call, shape: Any, dtype: Any, layout: Any = None) -> Any:
    """A tensor of zeros, in a layout if one is named."""
    extents = call.shape("shape", shape)
    value = call.semantic.full(list(extents), 0, tl._unwrap_if_constexpr(dtype))
    if tl._unwrap_if_constexpr(layout) is None:
        return value
    return require_layout(value, layout, _semantic=call.semantic, _generator=call.generator)
