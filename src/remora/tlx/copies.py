"""Asynchronous copies from global to shared memory, in groups."""

from __future__ import annotations

from typing import Any

from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import WrongDtype, WrongShape, WrongType
from remora.tlx.buffers import LOWERED_IN, view
from remora.tlx.bulk import bulk_load, check_bulk_load
from remora.tlx.types import TokenType

_QUEUE = "cp.async"


@op("tlx.async_load", lowered_in=LOWERED_IN)
def async_load(
    call: Call,
    src: Any,
    result: Any,
    mask: Any = None,
    other: Any = None,
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    is_volatile: Any = False,
    bulk: Any = False,
    bulk_size: Any = None,
    barrier: Any = None,
) -> Any:
    """Copy from global memory into a buffer, asynchronously.

    Args:
        src: a tensor of pointers of the buffer's shape and dtype.
        result: one buffer.
        mask: i1, of a shape that broadcasts to the buffer's; where it is false,
            ``other`` is written, or zero.
        other: a number or a tensor that broadcasts to the buffer's shape.
        cache_modifier, eviction_policy, is_volatile: as of ``tl.load``.
        bulk: constant. True: a bulk copy of contiguous bytes: ``src`` is one pointer, the
            buffer has one dimension, there is no mask, and ``barrier_wait`` waits for it.
        bulk_size: bytes of a bulk copy, constant or not, a multiple of 16; None: the
            buffer's.
        barrier: one barrier, whose phase gets the bytes of a bulk copy.

    Returns:
        a token. The copy is done after ``async_load_commit_group`` and an
        ``async_load_wait_group`` that waits for its group.

    Where the copy engine cannot do it (elements that are not contiguous in runs
    of 4 bytes at least; an ``other`` that is not zero; a target without such
    copies) the data goes through registers, and is there at once.
    """
    if call.constant("bulk", bulk, bool):
        return _bulk(call, src, result, mask, other, bulk_size, barrier)
    for name, value in (("bulk_size", bulk_size), ("barrier", barrier)):
        if tl._unwrap_if_constexpr(value) is not None:
            call.fail(WrongType, f"{name} is of bulk copies", hint="give bulk=True too")
    buffer = view(call, "result", result)
    src = tl._unwrap_if_constexpr(src)
    if not isinstance(src, tl.tensor) or not src.type.is_block() or not src.dtype.is_ptr():
        call.fail(
            WrongType,
            f"src has to be a tensor of pointers, it is {describe(src)}",
            hint="pointer + tl.arange(0, N) is one",
        )
    if src.dtype.element_ty != buffer.dtype:
        call.fail(
            WrongDtype,
            f"src points to {src.dtype.element_ty}, the buffer is of {buffer.dtype}",
            hint="allocate the buffer with tlx.dtype_of(pointer)",
        )
    shape = tuple(tl._unwrap_if_constexpr(d) for d in src.shape)
    if shape != buffer.shape:
        call.fail(
            WrongShape,
            f"src is of shape {shape}, the buffer of {buffer.shape}",
            hint="a copy fills a whole buffer",
        )
    volatile = call.constant("is_volatile", is_volatile, bool)
    mask, other = masked(call, buffer.shape, buffer.dtype, mask, other)
    for name, policy, allowed in (
        ("cache_modifier", cache_modifier, ("", ".ca", ".cg", ".cs", ".cv")),
        ("eviction_policy", eviction_policy, ("", "evict_first", "evict_last")),
    ):
        if tl._unwrap_if_constexpr(policy) not in allowed:
            there = ", ".join(map(repr, allowed))
            call.fail(
                WrongType,
                f"{name} has to be one of {there}, it is {describe(policy)}",
                hint=f"leave {name} out",
            )
    # Triton's own load carries pointers, mask and policy to the lowering; it is
    # volatile so that no stock pass moves or merges it.
    loaded = tl.load(
        src, mask=mask, other=other, cache_modifier=cache_modifier,
        eviction_policy=eviction_policy, volatile=True, _semantic=call.semantic,
    )  # fmt: skip
    return call.emit([loaded, buffer], [TokenType()], is_volatile=volatile)


def _bulk(
    call: Call, src: Any, result: Any, mask: Any, other: Any, bulk_size: Any, barrier: Any
) -> Any:
    """A bulk copy, which is an operation of its own."""
    for name, value in (("mask", mask), ("other", other)):
        if tl._unwrap_if_constexpr(value) is not None:
            call.fail(WrongType, f"a bulk copy takes no {name}", hint=f"leave {name} out")
    operands = check_bulk_load(call, src, result, bulk_size, barrier)
    return Call(bulk_load, call.semantic, call.generator).emit(operands, [TokenType()])


def masked(
    call: Call, whole: tuple[int, ...], dtype: Any, mask: Any, other: Any
) -> tuple[Any, Any]:
    """Check mask and other of a load of a shape and dtype: each fits."""
    mask, other = tl._unwrap_if_constexpr(mask), tl._unwrap_if_constexpr(other)
    if mask is None:
        if other is not None:
            call.fail(
                WrongType,
                "other is given and mask is not",
                hint="other is what is written where the mask is false",
            )
        return None, None
    mask = call.tensor("mask", mask, dtypes=(tl.int1,))
    if isinstance(other, int) and dtype.is_floating():
        other = float(other)  # Triton converts no integer to fp8
    for name, value in (("mask", mask), ("other", other)):
        if not isinstance(value, tl.tensor):
            continue
        shape = tuple(tl._unwrap_if_constexpr(d) for d in value.shape)
        # A scalar fits every shape.
        fits = len(shape) == len(whole) and all(
            d in (1, extent) for d, extent in zip(shape, whole, strict=True)
        )
        if shape and not fits:
            call.fail(
                WrongShape,
                f"{name} is of shape {shape}, what is loaded of {whole}",
                hint="each extent has to be that of what is loaded, or 1",
            )
    return mask, other


@async_load.reference
def _load(machine: Machine, value: Any, buffer: Any, is_volatile: bool) -> None:
    def copy() -> None:
        buffer[...] = value

    machine.later(_QUEUE, copy, writes=[buffer])


def _tokens(call: Call, tokens: Any) -> None:
    """Check a token, or a list of them."""
    tokens = tl._unwrap_if_constexpr(tokens)
    if tokens is None:
        return
    if isinstance(tokens, tl.tuple):
        tokens = tokens.values
    for token in tokens if isinstance(tokens, (tuple, list)) else (tokens,):
        call.handle("tokens", token, TokenType)


@op("tlx.async_load_commit_group", lowered_in=LOWERED_IN)
def async_load_commit_group(call: Call, tokens: Any = None) -> Any:
    """Close a group: all copies since the last group was closed.

    Args:
        tokens: of the copies; says what the group comes after.

    Returns:
        a token for the group.
    """
    _tokens(call, tokens)
    return call.emit([], [TokenType()])


@async_load_commit_group.reference
def _commit(machine: Machine) -> None:
    machine.close_group(_QUEUE)


@op("tlx.async_load_wait_group", lowered_in=LOWERED_IN)
def async_load_wait_group(call: Call, pendings: Any, tokens: Any = None) -> Any:
    """Wait until at most ``pendings`` groups are in flight, and let all threads see the rest.

    Args:
        pendings: constant, at least 0. It reaches the machine as it is written.
        tokens: says what the wait comes after.

    Returns:
        a token.
    """
    count = call.constant("pendings", pendings)
    if count < 0:
        call.fail(
            WrongShape, f"pendings has to be at least 0, it is {count}", hint="0 waits for all"
        )
    _tokens(call, tokens)
    return call.emit([], [TokenType()], pendings=count)


@async_load_wait_group.reference
def _wait(machine: Machine, pendings: int) -> None:
    machine.wait(_QUEUE, pendings)
