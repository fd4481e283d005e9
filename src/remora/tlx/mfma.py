"""Words for AMD's matrix cores: products in fragments, and their pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import WrongDtype, WrongShape, WrongType
from remora.tlx.hints import on_amd, register_class
from remora.tlx.layouts import plain
from remora.tlx.storage import LOWERED_IN

Array = np.ndarray[Any, Any]

#: The sums that the matrix cores have for operands of a type (CDNA 3 and CDNA 4 instruction set
#: references); fp8e5b16 and fp8e4b8 are gfx942's.
ACCUMULATORS = {
    tl.float16: tl.float32,
    tl.bfloat16: tl.float32,
    tl.float32: tl.float32,
    tl.float64: tl.float64,
    tl.float8e4nv: tl.float32,
    tl.float8e5: tl.float32,
    tl.float8e4b8: tl.float32,
    tl.float8e5b16: tl.float32,
    tl.int8: tl.int32,
}


@op("tlx.amd_scheduled_mfma", lowered_in=LOWERED_IN)
def amd_scheduled_mfma(
    call: Call, a: Any, b: Any, acc: Any, accumulator_role: Any, resident_operand: Any = None,
    accumulator_register_class: Any = None, initialize: Any = False,
) -> Any:  # fmt: skip
    """``a @ b + acc``, or ``a @ b``, by MFMA in the layouts that were required of the operands.

    Args:
        a, b: (M, K) and (K, N), tensors: with ``dot_operand_layout`` where one is required.
            Of three dimensions, (B, M, K) and (B, K, N), they are B products.
        acc: (M, N), or (B, M, N): with ``amd_mfma_layout``.
        accumulator_role: constant: ``"transient"``, of this phase of the kernel, or
            ``"persistent"``, carried on; no effect on the code.
        resident_operand: constant: 0, 1 or None: the operand that stays in registers; no effect.
        accumulator_register_class: constant: ``"agpr"``, ``"vgpr"`` or None: where the sum is.
        initialize: constant. True: ``acc`` is left out of the sum.

    Returns:
        the sum, of acc's shape and dtype.
    """
    on_amd(call, "tl.dot(a, b, acc)")
    role = call.constant("accumulator_role", accumulator_role, str)
    if role not in ("transient", "persistent"):
        call.fail(WrongType, f"accumulator_role is {role!r}", hint='"transient" or "persistent"')
    resident = tl._unwrap_if_constexpr(resident_operand)
    if resident is not None and call.constant("resident_operand", resident) not in (0, 1):
        call.fail(WrongShape, f"resident_operand is {resident}", hint="0 is A, 1 is B")
    kind = tl._unwrap_if_constexpr(accumulator_register_class)
    if kind is not None:
        kind = register_class(call, "accumulator_register_class", kind)
    a, b, acc = _operands(call, a, b, acc)
    first = call.constant("initialize", initialize, bool)
    return call.emit([a, b, acc], [acc.type], register_class=kind, initialize=first)


def _operands(call: Call, a: Any, b: Any, acc: Any) -> tuple[Any, Any, Any]:
    a, b, acc = call.tensor("a", a), call.tensor("b", b), call.tensor("acc", acc)
    shapes = [tuple(tl._unwrap_if_constexpr(d) for d in x.shape) for x in (a, b, acc)]
    ranks = {len(s) for s in shapes}
    fit = ranks in ({2}, {3}) and (*shapes[0], *shapes[1]) == (
        *shapes[2][:-1], shapes[0][-1], *shapes[2][:-2], shapes[0][-1], shapes[2][-1],
    )  # fmt: skip
    if not fit:
        call.fail(
            WrongShape,
            "a, b and acc are of shapes " + ", ".join(map(str, shapes)),
            hint="a is (M, K), b is (K, N), acc is (M, N); or all have a first dimension more",
        )
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in ACCUMULATORS:
            call.fail(
                WrongDtype,
                f"{name} is of {x.dtype}, which the matrix cores do not multiply",
                hint="one of " + ", ".join(map(str, ACCUMULATORS)),
            )
    if acc.dtype != ACCUMULATORS[a.dtype]:
        call.fail(
            WrongDtype,
            f"acc is of {acc.dtype}",
            hint=f"the sum of products of {a.dtype} is of {ACCUMULATORS[a.dtype]}",
        )
    return a, b, acc


@amd_scheduled_mfma.reference
def _product(
    machine: Machine, a: Array, b: Array, acc: Array, register_class: Any, initialize: bool
) -> Array:
    product = a.astype(acc.dtype) @ b.astype(acc.dtype)
    return product if initialize else product + acc


@op("tlx.amd_mfma_commit", lowered_in=LOWERED_IN)
def amd_mfma_commit(call: Call, value: Any, preserve: Any = None) -> Any:
    """The products before this place are issued before it; their values as they are.

    Args:
        value: a tensor or a tuple of them: sums.
        preserve: a tensor that is handed on too.

    Returns:
        ``value``; with ``preserve`` a tuple of all of them.
    """
    on_amd(call, "leave it out")
    value = tl._unwrap_if_constexpr(value)
    single = isinstance(value, tl.tensor)
    given = (value,) if single else value.values if isinstance(value, tl.tuple) else value
    if not isinstance(given, (tuple, list)) or not given:
        call.fail(
            WrongType,
            f"value has to be a tensor or a tuple of them, it is {describe(value)}",
            hint="give the sums",
        )
    values = [call.tensor("value", v) for v in given]
    call.emit()
    if tl._unwrap_if_constexpr(preserve) is None:
        return values[0] if single else tl.tuple(values)
    return tl.tuple([*values, call.tensor("preserve", preserve)])


@amd_mfma_commit.reference
def _committed(machine: Machine) -> None:
    """Products are done at once."""


@op("tlx.extract_slice", lowered_in=LOWERED_IN)
def extract_slice(call: Call, source: Any, shape: Any, offsets: Any) -> Any:
    """The part of a tensor that begins at ``offsets``: no element leaves its thread.

    Args:
        source: a tensor.
        shape: constant, powers of two.
        offsets: constant, multiples of ``shape`` or of what the layout repeats in.

    In a layout that was required of the source, shape and offsets have to be multiples of what
    the warps hold together once; in others the part may go through shared memory.
    """
    on_amd(call, "store it to a buffer, and load a tlx.local_slice of that")
    tensor = call.tensor("source", source)
    extents = call.shape("shape", shape)
    whole = tuple(tl._unwrap_if_constexpr(d) for d in tensor.shape)
    begins = plain(offsets)
    if not isinstance(begins, tuple) or not (len(begins) == len(extents) == len(whole)):
        call.fail(
            WrongShape,
            f"the source is of shape {whole}, shape is {extents}, offsets are {begins}",
            hint="one number for each dimension",
        )
    for dim, (begin, extent, size) in enumerate(zip(begins, extents, whole, strict=True)):
        if call.constant(f"offsets[{dim}]", begin) < 0 or begin + extent > size:
            call.fail(
                WrongShape,
                f"elements {begin} to {begin + extent} of dimension {dim}, which has {size}",
                hint="the slice has to lie within the source",
            )
        if extent & (extent - 1):
            call.fail(WrongShape, f"shape is {extents}", hint="give powers of two")
    return call.emit(
        [tensor], [tl.block_type(tensor.dtype, list(extents))], shape=extents, offsets=begins
    )


@extract_slice.reference
def _part(machine: Machine, source: Array, shape: Any, offsets: Any) -> Array:
    return source[tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))]
