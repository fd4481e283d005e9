"""Block-scaled products of Blackwell's matrix unit: mxfp8, mxfp4, nvfp4.

A block of elements along K shares a scale: 32 and a power of two (ue8m0) in the formats of the
OCP's microscaling specification, 16 and an fp8 number (ue4m3) in nvfp4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import triton
from triton import language
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine
from remora.errors import WrongDtype, WrongShape, WrongType
from remora.tlx.buffers import LOWERED_IN, local_store, view
from remora.tlx.targets import require_tensor_memory
from remora.tlx.tcgen05 import emit_product, later_product, sum_of, unpacked, whole_rows

Array = np.ndarray[Any, Any]

#: The element types of a format, how many elements a byte holds, and tt.ScaleDotElemType.
FORMATS = {
    "e4m3": ((tl.float8e4nv,), 1, 0),
    "e5m2": ((tl.float8e5,), 1, 1),
    "e2m1": ((tl.uint8, tl.int8), 2, 4),
}

# The unit reads scales 128 rows by 4 at a time (PTX ISA, tcgen05.mma: scale factors).
_ROWS, _SCALES = 128, 4

# What e2m1 holds: a sign, and one of eight magnitudes.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@op("tlx.async_dot_scaled", lowered_in=LOWERED_IN)
def async_dot_scaled(
    call: Call,
    A: Any,
    B: Any,
    acc: Any,
    A_scale: Any,
    A_format: Any,
    B_scale: Any,
    B_format: Any,
    use_acc: Any = None,
    pred: Any = None,
    mBarriers: Any = None,
    two_ctas: Any = False,
    force_async: Any = False,
    out_dtype: Any = tl.float32,
) -> Any:
    """``(A * A_scale) @ (B * B_scale) + acc``, asynchronously: Blackwell's scaled tcgen05.

    Args:
        A: (M, K), M 128, in shared memory; of fp8 also in tensor memory.
        B: (K, N) in shared memory, N a multiple of 16 up to 256. Of e2m1 two elements are a byte
            of uint8, the first one in its low half, (M, K // 2) and (K // 2, N), and K is
            contiguous in both.
        acc: (M, N), fp32, in tensor memory: it becomes the sum.
        A_scale: of each row of A a scale for each block along K. In tensor memory (M, blocks)
            of uint8; in shared memory the same bytes in the order in which the unit reads
            them, 128 rows by 4 at a time and in those 32 rows by 4 by 4: for example
            (1, M // 128, blocks // 4, 2, 256).
        B_scale: the same, of each column of B: (N, blocks). Of fewer columns than 128, too, where
            ``local_store`` put them; ``tmem_copy`` brings as many bytes as 128 have.
        A_format, B_format: constants: "e4m3", "e5m2" (mxfp8) or "e2m1". e2m1 beside fp8 lies in
            shared memory 8 bytes of 16: a buffer takes twice its bytes. K is a multiple of 128
            then.
        use_acc, pred, mBarriers, force_async: as of ``async_dot``.
        two_ctas: as of ``async_dot``: B is half of N, the other CTA has the rest; the scales are
            of all of N, in both CTAs.
        out_dtype: no effect: the sum is fp32.

    Returns:
        ``acc``.

    Blocks are 32 with ue8m0 scales, uint8; or 16 where both are e2m1, with ue4m3 scales, uint8 or
    (in shared memory) fp8e4nv. A row has a multiple of four scales, of which those past K do not
    count, and there are those of 128 rows at least. K is a multiple of 32 of fp8, of 64 of e2m1.
    """
    require_tensor_memory(call)
    pair = call.constant("two_ctas", two_ctas, bool)
    a, b = view(call, "A", A, tensor_memory=True), view(call, "B", B)
    total = sum_of(call, acc)
    formats = [_format(call, n, f, x) for n, f, x in (("A", A_format, a), ("B", B_format, b))]
    if a.type.in_tensor_memory and formats[0] == "e2m1":
        call.fail(
            WrongType,
            "A is in tensor memory, and of e2m1",
            hint="keep it in tlx.storage_kind.smem",
        )
    m, n, k = _check_shapes(call, a, b, total, formats, pair)
    scales = [
        view(call, name, given, tensor_memory=True)
        for name, given in (("A_scale", A_scale), ("B_scale", B_scale))
    ]
    blocks = {
        _block(call, name, x, rows, k, formats, pair)
        for name, x, rows in (("A_scale", scales[0], m), ("B_scale", scales[1], n))
    }
    if len(blocks) > 1:
        call.fail(
            WrongShape,
            f"A_scale is {scales[0].type} and B_scale {scales[1].type}: of blocks of 16 and of 32",
            hint="give both scales for blocks of one length",
        )
    block = blocks.pop()
    exact = tuple(_is_exact(x.type, rows, k, block) for x, rows in zip(scales, (m, n), strict=True))
    return emit_product(
        call, tensor_dot_scaled, [a, b, total, *scales], use_acc, pred, mBarriers,
        pair, force_async, formats=tuple(formats), block=block, exact=exact,
    )  # fmt: skip


def is_mixed(formats: Sequence[str]) -> bool:
    """Whether e2m1 is multiplied by fp8."""
    return (formats[0] == "e2m1") != (formats[1] == "e2m1")


def _format(call: Call, name: str, given: Any, operand: Any) -> str:
    """The format of an operand, which its element type fits."""
    text: str = call.constant(f"{name}_format", given, str)
    if text not in FORMATS:
        call.fail(
            WrongType,
            f"{name}_format has to be one of {', '.join(FORMATS)}, it is {text!r}",
            hint="tlx.get_fp8_format_name(dtype) names that of an fp8 type",
        )
    allowed = FORMATS[text][0]
    if operand.dtype not in allowed:
        call.fail(
            WrongDtype,
            f"{name} is of {operand.dtype}, {name}_format is {text}",
            hint=f"{text} is in buffers of {allowed[0]}; tlx.local_reinterpret reads another type",
        )
    return text


def _check_shapes(
    call: Call, a: Any, b: Any, total: Any, formats: list[str], pair: bool
) -> tuple[int, int, int]:
    """M, N and K in elements."""
    packed = [FORMATS[name][1] for name in formats]
    fits = len(a.shape) == len(b.shape) == 2 and a.shape[1] * packed[0] == b.shape[0] * packed[1]
    if not fits:
        call.fail(
            WrongShape,
            f"A is of shape {a.shape} and B of {b.shape}",
            hint="A is (M, K) and B is (K, N); of e2m1 K is half as much",
        )
    (m, k), n = a.shape, b.shape[1] * (2 if pair else 1)
    k *= packed[0]
    # Beside fp8 rows of e2m1 are 128 bytes, swizzled, of which half are used.
    step = 128 if is_mixed(formats) else 32 * packed[0]
    if k % step:
        call.fail(
            WrongShape,
            f"K has to be a multiple of {step}, it is {k}",
            hint="beside fp8 e2m1 lies in rows of 128 elements"
            if is_mixed(formats)
            else "one instruction multiplies as many",
        )
    if total.shape != (m, n):
        call.fail(
            WrongShape, f"acc is of shape {total.shape}, the product of {(m, n)}", hint="(M, N)"
        )
    if total.dtype != tl.float32:
        call.fail(
            WrongDtype,
            f"acc is of {total.dtype}, block-scaled products are summed in fp32",
            hint="allocate it with tl.float32",
        )
    least = 32 if pair else 16
    if m != _ROWS or n % least or n > 256:
        call.fail(
            WrongShape,
            f"M has to be 128 and N a multiple of {least} up to 256, they are {m} and {n}",
            hint="several products make a larger one",
        )
    return m, n, k


def _block(
    call: Call, name: str, scale: Any, rows: int, k: int, formats: list[str], pair: bool
) -> int:  # fmt: skip
    """How many elements share a scale: 16 or 32."""
    kind = scale.type
    nvfp4 = kind.dtype == tl.float8e4nv
    if not nvfp4 and kind.dtype not in (tl.uint8, tl.int8):
        call.fail(
            WrongDtype,
            f"{name} is of {kind.dtype}",
            hint="scales are uint8; of nvfp4 fp8e4nv too, in shared memory",
        )
    if nvfp4 and kind.in_tensor_memory:
        call.fail(
            WrongDtype,
            f"{name} is of fp8e4nv in tensor memory",
            hint="allocate scales in tensor memory with tl.uint8: their bytes are what counts",
        )
    allowed = (16, 32) if formats == ["e2m1", "e2m1"] else (32,)
    sizes = {block: _size(rows, k, block) for block in allowed}
    fits = [
        block
        for block, size in sizes.items()
        if not (nvfp4 and block != 16)
        and (
            (not pair and _is_exact(kind, rows, k, block))
            or (
                int(np.prod(kind.shape)) == size[0] * size[1]
                and (not kind.in_tensor_memory or _same_order(whole_rows(kind.shape), size))
            )
        )
    ]
    if not fits:
        wanted = " or ".join(f"{size} for blocks of {block}" for block, size in sizes.items())
        call.fail(
            WrongShape,
            f"{name} is {kind}; the scales of {rows} rows of {k} elements, of {formats[0]} and "
            f"{formats[1]}, are {wanted}",
            hint="in tensor memory of that shape; in shared memory as many bytes, in the unit's "
            "order",
        )
    return fits[0]


def _is_exact(kind: Any, rows: int, k: int, block: int) -> bool:
    """Whether scales in tensor memory are of so many rows, and not the bytes of 128."""
    return bool(kind.in_tensor_memory and kind.shape == (rows, _size(rows, k, block)[1]))


def _size(rows: int, k: int, block: int) -> tuple[int, int]:
    """Rows and blocks of scales as the unit reads them: 128 rows by 4 at a time."""
    return max(rows, _ROWS), -(-k // (_SCALES * block)) * _SCALES


def _same_order(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether scales of two shapes lie in tensor memory alike: one after the other, or the same."""
    return one == other or all(_ROWS in size[:1] or _SCALES in size[1:] for size in (one, other))


@op("tlx.tensor_dot_scaled", lowered_in=LOWERED_IN)
def tensor_dot_scaled(call: Call, operands: Any, attributes: Any) -> None:
    """What ``async_dot_scaled`` becomes; see ``emit_product``."""
    call.emit(operands, **attributes)


@tensor_dot_scaled.reference
def _multiply(
    machine: Machine, a: Array, b: Array, total: Array, a_scale: Array, b_scale: Array, *rest: Any,
    barriers: int, use_acc: bool | None, pred: bool, pair: bool, is_async: bool,
    formats: tuple[str, str], block: int, exact: tuple[bool, bool],
) -> None:  # fmt: skip
    def multiply(rows: Array, row_scale: Array, column_scale: Array, columns: list[Array]) -> Array:
        x = _numbers(rows, formats[0])
        y = np.vstack([_numbers(part.T, formats[1]) for part in columns])
        # Two's powers change no bit of the sum's terms; ue4m3 scales are in fp32 too.
        x = x * np.repeat(_scales(row_scale, x.shape, block), block, axis=1)
        y = y * np.repeat(_scales(column_scale, y.shape, block), block, axis=1)
        product: Array = x @ y.T
        return product

    later_product(
        machine, [a, a_scale, b_scale, total], [b], rest, barriers, use_acc, pred, pair, is_async,
        multiply,
    )  # fmt: skip


def _numbers(matrix: Array, format_: str) -> Array:
    """A matrix with K along its second dimension, in fp32."""
    if format_ != "e2m1":
        return matrix.astype(np.float32)
    raw = np.ascontiguousarray(matrix).view(np.uint8)
    halves = np.stack([raw & 15, raw >> 4], axis=2).reshape(raw.shape[0], -1)
    numbers: Array = np.where(halves & 8, -_E2M1[halves & 7], _E2M1[halves & 7])
    return numbers


def _scales(scales: Array, shape: tuple[int, ...], block: int) -> Array:
    """(rows, blocks) in fp32."""
    size = _size(shape[0], shape[1], block)
    raw = scales.view(np.uint8)
    if raw.ndim == 2 and raw.shape == (shape[0], size[1]):
        pass
    elif raw.ndim == 2:
        whole = whole_rows(raw.shape)
        raw = raw.reshape(whole)
        if whole != size:
            blocks = raw.reshape(-1, _ROWS, whole[1] // _SCALES, _SCALES).swapaxes(1, 2)
            raw = blocks.reshape(-1, size[1] // _SCALES, _ROWS, _SCALES).swapaxes(1, 2)
            raw = raw.reshape(size)
    else:
        raw = unpacked(raw, size)
    kind = ml_dtypes.float8_e4m3fn if block == 16 else ml_dtypes.float8_e8m0fnu
    count = shape[1] // block
    return np.ascontiguousarray(raw[: shape[0], :count]).view(kind).astype(np.float32)


@triton.jit
def _to_mxfp8_block(
    data_input, data_out_tile, scale_out_tile, VEC_SIZE: tl.constexpr, dtype: tl.constexpr
):  # type: ignore[no-untyped-def]
    """Convert fp32 to mxfp8, into buffers.

    data_input: (M, K), a tensor. data_out_tile: a buffer of its shape, of ``dtype``: fp8e4nv or
    fp8e5. scale_out_tile: a buffer (M, K // 32) of uint8: the least power of two with which
    all of a block fit. VEC_SIZE: 32.
    """
    language.static_assert(VEC_SIZE == 32, "a block of mxfp8 is 32 elements")
    M: tl.constexpr = data_input.shape[0]
    BLOCKS: tl.constexpr = data_input.shape[1] // VEC_SIZE
    LARGEST: tl.constexpr = 8 if dtype == tl.float8e4nv else 15
    blocks = language.reshape(data_input, (M, BLOCKS, VEC_SIZE))
    most = language.max(language.abs(blocks), 2)
    # One exponent more where the mantissa is above 1.75: 0x600000 of 0x7fffff.
    exponent = ((most.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - LARGEST
    exponent = language.minimum(language.maximum(exponent, 0), 253)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = blocks * language.reshape(inverse, (M, BLOCKS, 1))
    local_store(data_out_tile, language.reshape(scaled, (M, BLOCKS * VEC_SIZE)).to(dtype))
    local_store(scale_out_tile, exponent.to(tl.uint8))
