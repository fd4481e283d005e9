"""Asynchronous matrix products of a warp group."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import UnsupportedByTarget, WrongDtype, WrongShape, WrongType
from remora.tlx.buffers import LOWERED_IN, view
from remora.tlx.tcgen05 import is_tensor_product, product
from remora.tlx.types import bits

_QUEUE = "wgmma"

# What wgmma multiplies, and the accumulators it has for each (PTX ISA, wgmma.mma_async).
_ACCUMULATORS = {
    tl.float16: (tl.float32, tl.float16),
    tl.bfloat16: (tl.float32,),
    tl.float32: (tl.float32,),
    tl.float8e4nv: (tl.float32,),
    tl.float8e5: (tl.float32,),
    tl.int8: (tl.int32,),
}


def _operand(call: Call, name: str, value: Any) -> Any:
    """A matrix operand: one buffer, or for A a tensor."""
    value = tl._unwrap_if_constexpr(value)
    if name == "A" and isinstance(value, tl.tensor) and value.type.is_block():
        return value
    if isinstance(value, tl.tensor):
        call.fail(
            WrongType,
            f"{name} has to be a buffer, it is {value.type}",
            hint="store it with tlx.local_store first",
        )
    return view(call, name, value)


def _flag(call: Call, name: str, value: Any) -> Any:
    """A constant bool, or a scalar i1 tensor."""
    value = tl._unwrap_if_constexpr(value)
    if isinstance(value, (bool, int)):
        return bool(value)
    if isinstance(value, tl.tensor) and not value.type.is_block():
        return value if value.dtype == tl.int1 else value.to(tl.int1, _semantic=call.semantic)
    call.fail(
        WrongType,
        f"{name} has to be a boolean, it is {describe(value)}",
        hint="give True, False or a comparison of scalars",
    )
    return None


@op("tlx.async_dot", lowered_in=LOWERED_IN)
def async_dot(
    call: Call,
    A: Any,
    B: Any,
    acc: Any = None,
    use_acc: Any = None,
    pred: Any = None,
    mBarriers: Any = None,
    two_ctas: Any = False,
    force_async: Any = False,
    input_precision: Any = None,
    out_dtype: Any = tl.float32,
) -> Any:
    """``A @ B + acc``, asynchronously: Hopper's wgmma, Blackwell's tcgen05.

    Args:
        A: (M, K) in a buffer; on Hopper also in registers (a tensor), on Blackwell also in
            tensor memory.
        B: (K, N) in a buffer in shared memory.
        acc: (M, N). On Hopper a tensor, zeros where it is left out; on Blackwell a buffer in
            tensor memory, which becomes the sum.
        use_acc: a boolean, constant or not: False leaves ``acc`` out of the sum.
        pred: Blackwell's: a boolean; False: nothing happens.
        mBarriers: Blackwell's: barriers, at each of which one arrival follows the product, and
            all those before it in the task.
        two_ctas: Blackwell's, constant: one product of two CTAs of a cluster, of even rank and
            the next: each has its rows of A and acc, and half of B's columns. The first one's
            is the product; its barriers are both CTAs'.
        force_async: Blackwell's, constant: without barriers the product is done when it
            returns, unless this is True: ``tcgen05_commit`` says when it is. One of two CTAs
            has barriers, or this.
        input_precision: "tf32" for fp32 operands; no other is to be had.
        out_dtype: Hopper's: of the sum where ``acc`` is left out.

    Returns:
        On Hopper the sum, (M, N): nothing may read it before ``async_dot_wait``. On Blackwell
        ``acc``.

    Hopper: M is a multiple of 64, N of 8, K of 32 bytes. Operands: fp16, bf16, fp32 (as
    tf32), fp8e4nv, fp8e5, int8, both of one type (fp8 may mix).
    Blackwell: M is 64 or 128, N a multiple of 8 or 16, K of 32 bytes. Operands as Hopper's, but
    for sm_103, which has no int8.
    """
    if is_tensor_product(call, acc):
        return product(
            call, A, B, acc, use_acc, pred, mBarriers, two_ctas, force_async, input_precision
        )
    call.require_target(
        "cuda:90",
        reason="asynchronous products are Hopper's (wgmma) and Blackwell's (tcgen05)",
        instead="load both operands with tlx.local_load and use tl.dot",
    )
    for name, value in (("pred", pred), ("mBarriers", mBarriers)):
        value = tl._unwrap_if_constexpr(value)
        empty = isinstance(value, (tuple, list, tl.tuple)) and len(value) == 0
        if value is not None and not empty:
            call.fail(UnsupportedByTarget, f"{name} is Blackwell's", hint=f"leave {name} out")
    if call.constant("two_ctas", two_ctas, bool):
        call.fail(UnsupportedByTarget, "two_ctas is Blackwell's", hint="leave two_ctas out")
    call.constant("force_async", force_async, bool)
    a, b = _operand(call, "A", A), _operand(call, "B", B)
    m, n = _check_shapes(call, a, b)
    _check_dtypes(call, a, b, input_precision)
    allowed = _ACCUMULATORS[a.dtype]
    if tl._unwrap_if_constexpr(acc) is None:
        kind = tl._unwrap_if_constexpr(out_dtype)
        kind = tl.int32 if a.dtype.is_int() else kind
        acc = call.semantic.full([m, n], 0, kind)
    acc = call.tensor("acc", acc, shape=(m, n), dtypes=allowed)
    use_acc = tl._unwrap_if_constexpr(use_acc)
    flag = True if use_acc is None else _flag(call, "use_acc", use_acc)
    operands = [a, b, acc]
    if not isinstance(flag, bool):
        operands.append(flag)
    # How many sums of fp8 products the matrix unit may keep in its own precision.
    fp8 = bits(a.dtype) == 8 and not a.dtype.is_int()
    limit = (
        0
        if call.interpreted or not fp8
        else (call.semantic.builder.options.max_num_imprecise_acc_default)
    )
    return call.emit(
        operands, [acc.type], use_acc=flag if isinstance(flag, bool) else None, imprecise=limit
    )


def _check_shapes(call: Call, a: Any, b: Any) -> tuple[int, int]:
    """M and N, after the checks."""
    shapes = [tuple(tl._unwrap_if_constexpr(d) for d in x.shape) for x in (a, b)]
    if any(len(s) != 2 for s in shapes) or shapes[0][1] != shapes[1][0]:
        call.fail(
            WrongShape,
            f"A is of shape {shapes[0]} and B of {shapes[1]}",
            hint="A is (M, K) and B is (K, N)",
        )
    (m, k), (_, n) = shapes
    if m % 64:
        call.fail(WrongShape, f"M has to be a multiple of 64, it is {m}", hint="use tl.dot")
    if n % 8:
        call.fail(WrongShape, f"N has to be a multiple of 8, it is {n}", hint="use tl.dot")
    step = 256 // bits(a.dtype)
    if k % step:
        call.fail(
            WrongShape,
            f"K has to be a multiple of {step} for {a.dtype}, it is {k}",
            hint="the matrix unit multiplies 32 bytes of K at a time",
        )
    if call.num_warps % 4:
        call.fail(
            WrongShape,
            f"a product takes whole warp groups of 4 warps, not {call.num_warps}",
            hint="launch with num_warps=4 or a multiple",
        )
    return m, n


def _check_dtypes(call: Call, a: Any, b: Any, input_precision: Any) -> None:
    for name, x in (("A", a), ("B", b)):
        if x.dtype not in _ACCUMULATORS:
            call.fail(
                WrongDtype,
                f"{name} is of {x.dtype}, which the matrix unit does not multiply",
                hint="one of " + ", ".join(map(str, _ACCUMULATORS)),
            )
    mixable = (tl.float8e4nv, tl.float8e5)
    if a.dtype != b.dtype and not (a.dtype in mixable and b.dtype in mixable):
        call.fail(
            WrongDtype,
            f"A is of {a.dtype} and B of {b.dtype}",
            hint="convert one of them; only fp8e4nv and fp8e5 may mix",
        )
    precision = tl._unwrap_if_constexpr(input_precision)
    if precision not in (None, "tf32") and a.dtype == tl.float32:
        call.fail(
            UnsupportedByTarget,
            f"wgmma multiplies fp32 only as tf32, not with input_precision={precision!r}",
            hint="load both operands with tlx.local_load and use tl.dot",
        )


def _tf32(array: Any) -> Any:
    """fp32 as the matrix unit reads it: the low 13 bits of the mantissa do not count."""
    raw = np.ascontiguousarray(array, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return raw.view(np.float32)


@async_dot.reference
def _dot(
    machine: Machine,
    a: Any,
    b: Any,
    acc: Any,
    flag: Any = None,
    *,
    use_acc: bool | None,
    imprecise: int,
) -> Any:
    # Poison (NaN, or a large number) until the product is waited for.
    result = np.full(acc.shape, np.nan if acc.dtype.kind == "f" else 0x7F7F7F7F, acc.dtype)
    accumulate = bool(flag) if use_acc is None else use_acc

    def multiply() -> None:
        wide = np.int32 if acc.dtype.kind == "i" else np.float32
        x, y = (_tf32(v) if v.dtype == np.float32 else v.astype(wide) for v in (a, b))
        product = x @ y
        result[...] = (product + acc if accumulate else product).astype(acc.dtype)

    machine.later(_QUEUE, multiply, reads=[a, b])
    machine.close_group(_QUEUE)
    return result


@op("tlx.async_dot_wait", lowered_in=LOWERED_IN)
def async_dot_wait(call: Call, pendings: Any, x: Any) -> Any:
    """Wait until at most ``pendings`` products are in flight.

    Args:
        pendings: constant, at least 0. It reaches the machine as it is written.
        x: the product that is used after the wait.

    Returns:
        ``x``, to be used from here on.
    """
    call.require_target(
        "cuda:90",
        reason="a wait for products in registers is Hopper's (wgmma)",
        instead="on Blackwell wait for a barrier of async_dot's mBarriers, with "
        "tlx.barrier_wait; tl.dot is done when it returns",
    )
    count = call.constant("pendings", pendings)
    if count < 0:
        call.fail(
            WrongShape, f"pendings has to be at least 0, it is {count}", hint="0 waits for all"
        )
    x = tl._unwrap_if_constexpr(x)
    if not isinstance(x, tl.tensor) or not x.type.is_block():
        call.fail(
            WrongType,
            f"x has to be a result of tlx.async_dot, it is {describe(x)}",
            hint="wait for the value that tlx.async_dot returned",
        )
    return call.emit([x], [x.type], pendings=count)


@async_dot_wait.reference
def _wait(machine: Machine, x: Any, pendings: int) -> Any:
    machine.wait(_QUEUE, pendings)
    return x
