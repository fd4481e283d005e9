"""Global memory through AMD's buffer instructions: one pointer, and an offset for each element."""

from __future__ import annotations

from typing import Any

from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.errors import UnsupportedByTarget, WrongDtype, WrongShape, WrongType
from remora.tlx.buffers import view
from remora.tlx.copies import async_load, masked
from remora.tlx.hints import on_amd
from remora.tlx.storage import LOWERED_IN
from remora.tlx.types import TokenType, bits

#: The cache policies of a load and a store, as Triton names them.
_LOADS = ("", ".ca", ".cg", ".cs", ".cv")
_STORES = ("", ".wb", ".cg", ".cs", ".wt")


def _pointer(call: Call, base: Any) -> Any:
    base = tl._unwrap_if_constexpr(base)
    if not isinstance(base, tl.tensor) or base.type.is_block() or not base.dtype.is_ptr():
        call.fail(
            WrongType,
            f"the base has to be one pointer, it is {describe(base)}",
            hint="give the kernel's argument; offsets say where the elements are",
        )
    return base


def _offsets(call: Call, offsets: Any) -> Any:
    offsets = call.tensor("offsets", offsets)
    if not offsets.type.is_block() or offsets.dtype not in (tl.int32, tl.uint32):
        call.fail(
            WrongDtype,
            f"offsets have to be a tensor of 32-bit integers, they are {offsets.type}",
            hint="count elements from the base: offsets.to(tl.int32)",
        )
    return offsets


def _contiguity(call: Call, contiguity: Any) -> int:
    number: int = call.constant("contiguity", contiguity)
    if number < 1 or number & (number - 1):
        call.fail(WrongShape, f"contiguity is {number}", hint="give a power of two: 1, 2, 4, ...")
    return number


def _policy(call: Call, cache: Any, known: tuple[str, ...]) -> str:
    cache = tl._unwrap_if_constexpr(cache) or ""
    if cache not in known:
        names = ", ".join(repr(k) for k in known)
        call.fail(WrongType, f"the cache modifier is {cache!r}", hint=f"one of {names}")
    return str(cache)


def _place(call: Call, base: Any, offsets: Any, mask: Any, other: Any, cache: str) -> Any:
    """A load of the elements: it carries mask and other to the lowering, and finds a layout.

    It is volatile, so that no stock pass moves or merges it; the lowering takes it out.
    """
    pointers = call.semantic.add(base, offsets, False)
    return tl.load(
        pointers, mask=mask, other=other, cache_modifier=cache, volatile=True,
        _semantic=call.semantic,
    )  # fmt: skip


@op("tlx.buffer_load", lowered_in=LOWERED_IN)
def buffer_load(
    call: Call, base: Any, offsets: Any, mask: Any = None, other: Any = None, cache: Any = None,
    contiguity: Any = 1,
) -> Any:  # fmt: skip
    """``base[offsets]`` by buffer loads, whose base is in scalar registers.

    Args:
        base: one pointer, the same in all lanes (``assume_uniform`` for one that was loaded).
        offsets: a tensor of i32, in elements; at least 0, and under 2 GiB.
        mask: where it is false, ``other`` is returned, or zero.
        other: a number or a tensor.
        cache: as of ``tl.load``.
        contiguity: constant: elements that a lane's offsets are known to have in a row, aligned.

    Returns:
        a tensor of the shape of ``offsets``, in their layout where one was required.
    """
    on_amd(call, "tl.load(base + offsets, mask, other)")
    base, offsets = _pointer(call, base), _offsets(call, offsets)
    width = _contiguity(call, contiguity)
    shape = tuple(tl._unwrap_if_constexpr(d) for d in offsets.shape)
    mask, other = masked(call, shape, base.dtype.element_ty, mask, other)
    loaded = _place(call, base, offsets, mask, other, _policy(call, cache, _LOADS))
    if call.interpreted:
        return loaded
    return call.emit([loaded, base, offsets], [loaded.type], contiguity=width)


@op("tlx.buffer_store", lowered_in=LOWERED_IN)
def buffer_store(
    call: Call, value: Any, base: Any, offsets: Any, mask: Any = None, cache: Any = None,
    contiguity: Any = 1,
) -> Any:  # fmt: skip
    """Store a tensor of the shape of ``offsets``; arguments as of ``buffer_load``."""
    on_amd(call, "tl.store(base + offsets, value, mask)")
    base, offsets = _pointer(call, base), _offsets(call, offsets)
    width, policy = _contiguity(call, contiguity), _policy(call, cache, _STORES)
    shape = tuple(tl._unwrap_if_constexpr(d) for d in offsets.shape)
    mask, _ = masked(call, shape, base.dtype.element_ty, mask, None)
    value = _value(call, value, base.dtype.element_ty, shape)
    if call.interpreted:
        pointers = call.semantic.add(base, offsets, False)
        return tl.store(pointers, value, mask=mask, _semantic=call.semantic)
    loaded = _place(call, base, offsets, mask, None, "")
    return call.emit([loaded, base, offsets, value], contiguity=width, cache=policy)


def _value(call: Call, value: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    tensor = call.semantic.cast(call.tensor("value", value), dtype)
    return call.semantic.broadcast_impl_shape(tensor, list(shape))


#: What buffer atomics add, by target (CDNA 3 and CDNA 4 instruction set references); 16 bits in
#: pairs.
_ADDS = {
    "gfx942": (tl.float16, tl.float32, tl.float64, tl.int32, tl.uint32, tl.int64, tl.uint64),
    "gfx950": (
        tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.int32, tl.uint32, tl.int64, tl.uint64,
    ),
}  # fmt: skip

#: In the order of mlir::triton::MemSemantic and MemSyncScope.
_SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("gpu", "cta", "sys")


@op("tlx.buffer_atomic_add", lowered_in=LOWERED_IN)
def buffer_atomic_add(
    call: Call, ptr: Any, offsets: Any, value: Any, mask: Any = None, sem: Any = None,
    scope: Any = None, contiguity: Any = 1,
) -> Any:  # fmt: skip
    """Add to ``ptr[offsets]``, each element at once; arguments as of ``buffer_load``.

    Args:
        value: fp16, bf16 (gfx950), fp32, fp64, or an integer of 32 or 64 bits. Of 16 bits two are
            added at once: ``contiguity`` has to be 2 at least, and the mask one for both.
        sem: ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"`` (None).
        scope: ``"cta"``, ``"gpu"`` (None) or ``"sys"``.

    Returns:
        what was there before.
    """
    on_amd(call, "tl.atomic_add(ptr + offsets, value, mask)")
    ptr, offsets = _pointer(call, ptr), _offsets(call, offsets)
    width, dtype = _contiguity(call, contiguity), ptr.dtype.element_ty
    if not call.interpreted and dtype not in _ADDS.get(str(call.target.arch), ()):
        call.fail(
            UnsupportedByTarget,
            f"the target {call.target} has no buffer atomic that adds {dtype}",
            hint="tl.atomic_add(ptr + offsets, value, mask)",
        )
    if not call.interpreted and bits(dtype) == 16 and width < 2:
        call.fail(
            WrongShape,
            f"of {dtype} two elements are added at once, contiguity is {width}",
            hint="contiguity=2, with offsets that come in pairs; or tl.atomic_add",
        )
    order = tl._unwrap_if_constexpr(sem) or "acq_rel"
    reach = tl._unwrap_if_constexpr(scope) or "gpu"
    for name, given, known in (("sem", order, _SEMANTICS), ("scope", reach, _SCOPES)):
        if given not in known:
            call.fail(WrongType, f"{name} is {given!r}", hint=f"one of {', '.join(known)}")
    shape = tuple(tl._unwrap_if_constexpr(d) for d in offsets.shape)
    mask, _ = masked(call, shape, dtype, mask, None)
    value = _value(call, value, dtype, shape)
    if call.interpreted:
        pointers = call.semantic.add(ptr, offsets, False)
        return tl.atomic_add(pointers, value, mask=mask, _semantic=call.semantic)
    loaded = _place(call, ptr, offsets, mask, None, "")
    return call.emit(
        [loaded, ptr, offsets, value], [loaded.type],
        contiguity=width, sem=_SEMANTICS.index(order) + 1, scope=_SCOPES.index(reach) + 1,
        kind="f" if dtype.is_floating() else "i",
    )  # fmt: skip


@op("tlx.buffer_load_to_local", lowered_in=LOWERED_IN)
def buffer_load_to_local(
    call: Call, dest: Any, ptr: Any, offsets: Any, mask: Any = None, other: Any = None,
    cache_modifier: Any = "", contiguity: Any = 1,
) -> Any:  # fmt: skip
    """Copy ``ptr[offsets]`` into a buffer by buffer loads straight to LDS, asynchronously.

    Args:
        dest: one buffer, of the shape of ``offsets``.
        ptr, offsets, mask, other, cache_modifier, contiguity: as of ``buffer_load``.

    Returns:
        a token: the copy is in the next group, as ``async_load`` is.

    A lane copies 16 or 4 bytes (gfx942: 4) that follow each other under one mask; where that
    cannot be shown the use is refused. ``async_load`` takes any.
    """
    on_amd(call, "tlx.async_load(ptr + offsets, dest, mask, other)")
    buffer, ptr = view(call, "dest", dest), _pointer(call, ptr)
    offsets, width = _offsets(call, offsets), _contiguity(call, contiguity)
    if ptr.dtype.element_ty != buffer.dtype:
        call.fail(
            WrongDtype,
            f"ptr points to {ptr.dtype.element_ty}, the buffer is of {buffer.dtype}",
            hint="allocate the buffer with tlx.dtype_of(ptr)",
        )
    shape = tuple(tl._unwrap_if_constexpr(d) for d in offsets.shape)
    if shape != buffer.shape:
        call.fail(
            WrongShape,
            f"offsets are of shape {shape}, the buffer of {buffer.shape}",
            hint="a copy fills a whole buffer",
        )
    policy = _policy(call, cache_modifier, _LOADS)
    if call.interpreted:
        pointers = call.semantic.add(ptr, offsets, False)
        return async_load(pointers, dest, mask, other, _semantic=call.semantic)
    mask, other = masked(call, buffer.shape, buffer.dtype, mask, other)
    loaded = _place(call, ptr, offsets, mask, other, policy)
    return call.emit([loaded, buffer, ptr, offsets], [TokenType()], contiguity=width)
