"""Code that only some elements' lanes run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import WrongDtype, WrongShape, WrongType
from remora.tlx.hints import on_amd
from remora.tlx.storage import LOWERED_IN


@op("tlx.warp_predicate", lowered_in=LOWERED_IN)
def warp_predicate(
    call: Call, predicate: Any, inits: Any, body: Any, args: Any = (), wave_uniform: Any = False
) -> Any:
    """``body(*inits, *args)`` where ``predicate`` holds, ``inits`` elsewhere.

    Args:
        predicate: i1: a scalar, or a tensor whose shape is the first dimensions of the values'.
        inits: a tensor, or a tuple of them.
        body: a ``@triton.jit`` function that returns as many values, of the same types.
        args: further arguments.
        wave_uniform: constant: whether all lanes of a warp have the same predicate; no effect.

    Returns:
        one value or a tuple, as ``inits``.

    All lanes compute; loads, stores and atomics of ``body`` reach memory where the predicate
    holds. Of those the pointers have the predicate's shape, or begin with it.
    """
    on_amd(call, "tl.where, and masks of tl.store")
    call.constant("wave_uniform", wave_uniform, bool)
    predicate = call.tensor("predicate", predicate, dtypes=(tl.int1,))
    values = _several(call, "inits", inits)
    given = [*values, *_several(call, "args", args, tensors=False)]
    body = tl._unwrap_if_constexpr(body)
    if call.interpreted:
        with _masked_stores(call, predicate):
            results = body(*given)
    else:
        if not hasattr(body, "params"):
            call.fail(
                WrongType, f"body has to be a @triton.jit function, it is {body!r}", hint="name one"
            )
        call.emit([predicate], edge="begin")
        results = call.generator.call_JitFunction(body, given, kwargs={})
        call.emit([], edge="end")
    found = _several(call, "what body returns", results)
    if len(found) != len(values):
        call.fail(
            WrongShape,
            f"body returns {len(found)} values for {len(values)}",
            hint="return the new value of each of inits",
        )
    chosen = [_chosen(call, predicate, *pair) for pair in zip(found, values, strict=True)]
    return chosen[0] if isinstance(tl._unwrap_if_constexpr(inits), tl.tensor) else tl.tuple(chosen)


def _several(call: Call, name: str, given: Any, *, tensors: bool = True) -> list[Any]:
    """A value, or several, as a list."""
    given = tl._unwrap_if_constexpr(given)
    if isinstance(given, tl.tuple):
        given = given.values
    values = list(given) if isinstance(given, (tuple, list)) else [given]
    if tensors and (not values or not all(isinstance(v, tl.tensor) for v in values)):
        call.fail(
            WrongType,
            f"{name} has to be a tensor or several, it is {describe(given)}",
            hint="give what body computes anew",
        )
    return values


def _chosen(call: Call, predicate: Any, new: Any, old: Any) -> Any:
    """The new value where the predicate holds."""
    if new.dtype != old.dtype:
        call.fail(
            WrongDtype, f"body returns {new.dtype} for {old.dtype}", hint="convert it in body"
        )
    if predicate.type.is_block():
        shape = [tl._unwrap_if_constexpr(d) for d in predicate.shape]
        whole = [tl._unwrap_if_constexpr(d) for d in old.shape]
        if shape != whole[: len(shape)]:
            call.fail(
                WrongShape,
                f"predicate is of shape {tuple(shape)}, a value of {tuple(whole)}",
                hint="the predicate's shape is that of the values, or begins it",
            )
        for dim in range(len(shape), len(whole)):
            predicate = call.semantic.expand_dims(predicate, dim)
        predicate = call.semantic.broadcast_impl_shape(predicate, whole)
    return call.semantic.where(predicate, new, old)


@contextmanager
def _masked_stores(call: Call, predicate: Any) -> Iterator[None]:
    """Within it the interpreter stores where the predicate holds."""
    builder = call.semantic.builder
    stock, holds = builder.create_masked_store, predicate.handle.data

    def store(ptrs: Any, value: Any, mask: Any, *policy: Any) -> Any:
        wanted = np.reshape(holds, (*holds.shape, *(1,) * (mask.data.ndim - holds.ndim)))
        kept = type(mask)(mask.data & wanted.astype(bool), mask.dtype)
        return stock(ptrs, value, kept, *policy)

    builder.create_masked_store = store
    try:
        yield
    finally:
        del builder.create_masked_store


@warp_predicate.reference
def _nothing(machine: Machine, *predicate: Any, edge: str) -> None:
    """The values are chosen by Triton's own operations."""
