"""Blackwell's matrix unit (tcgen05): products with sums in tensor memory, copies to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, describe, op
from remora.dsl.reference import Machine
from remora.errors import UnsupportedByTarget, WrongDtype, WrongShape, WrongType
from remora.host import features
from remora.tlx.barriers import Barrier, barrier, predicate
from remora.tlx.buffers import LOWERED_IN, view
from remora.tlx.ranks import pair_of
from remora.tlx.targets import require_pair, require_tensor_memory
from remora.tlx.types import LANES, are_scales, bits

#: What it does is in order: products, copies, and the arrivals that follow them.
QUEUE = "tcgen05"

# What it multiplies, and the sums it has for each (PTX ISA, tcgen05.mma).
_SUMS = {
    tl.float16: (tl.float32, tl.float16),
    tl.bfloat16: (tl.float32,),
    tl.float32: (tl.float32,),
    tl.float8e4nv: (tl.float32, tl.float16),
    tl.float8e5: (tl.float32, tl.float16),
    tl.int8: (tl.int32,),
}


def is_tensor_product(call: Call, acc: Any) -> bool:
    """Whether an ``async_dot`` is one of this matrix unit."""
    if call.interpreted:
        acc = tl._unwrap_if_constexpr(acc)
        return acc is not None and not isinstance(acc, tl.tensor)
    return call.target.backend == "cuda" and int(call.target.arch) // 10 == 10


def product(
    call: Call, A: Any, B: Any, acc: Any, use_acc: Any, pred: Any, mBarriers: Any,
    two_ctas: Any, force_async: Any, input_precision: Any,
) -> Any:  # fmt: skip
    """``tlx.async_dot`` with its sum in tensor memory; see there."""
    pair = call.constant("two_ctas", two_ctas, bool)
    a, b = _operand(call, "A", A), _operand(call, "B", B)
    total = sum_of(call, acc)
    _check_shapes(call, a, b, total, pair)
    _check_dtypes(call, a, b, total, input_precision, pair)
    matrices = [a, b, total]
    return emit_product(call, tensor_dot, matrices, use_acc, pred, mBarriers, pair, force_async)


def emit_product(
    call: Call, op: Any, operands: list[Any], use_acc: Any, pred: Any, mBarriers: Any,
    pair: bool, force_async: Any, **attributes: Any,
) -> Any:  # fmt: skip
    """Emit a product whose matrices have been checked.

    op: what is emitted; its operands are ``operands``, the third of which is the sum, the
    barriers, then what is not constant of use_acc and pred.

    Returns:
        the sum's buffer.
    """
    if pair:
        require_pair(call)
    bars = barriers(call, mBarriers)
    is_async = call.constant("force_async", force_async, bool) or bool(bars)
    if pair and not is_async:
        call.fail(
            WrongType,
            "a product of two CTAs has neither mBarriers nor force_async: nothing waits for it",
            hint="mBarriers=[...], or force_async=True and tlx.tcgen05_commit(..., two_ctas=True)",
        )
    flag = tl._unwrap_if_constexpr(use_acc)
    flag = True if flag is None else flag
    accumulates: bool | None = bool(flag) if isinstance(flag, bool | int) else None
    when = predicate(call, pred)
    if when is not None:
        given = [] if accumulates is not None else predicate(call, flag)
        op(
            [*operands, *bars, *(given or ()), *when],
            {"barriers": len(bars), "use_acc": accumulates, "pred": bool(when), "pair": pair,
             "is_async": is_async, **attributes},
            _semantic=call.semantic, _generator=call.generator,
        )  # fmt: skip
    return operands[2]


def barriers(call: Call, given: Any) -> list[Any]:
    """The barriers of ``mBarriers``, or of one that stands for a list."""
    given = tl._unwrap_if_constexpr(given)
    if given is None:
        return []
    listed = given if isinstance(given, tuple | list | tl.tuple) else [given]
    return [barrier(call, f"mBarriers[{i}]", b) for i, b in enumerate(listed)]


def _operand(call: Call, name: str, value: Any) -> Any:
    value = tl._unwrap_if_constexpr(value)
    if isinstance(value, tl.tensor):
        places = "tensor or shared memory" if name == "A" else "shared memory"
        call.fail(
            WrongType,
            f"{name} has to be a buffer in {places}, it is {value.type}",
            hint="store it with tlx.local_store first",
        )
    return view(call, name, value, tensor_memory=name == "A")


def sum_of(call: Call, acc: Any) -> Any:
    """Check that an argument is one buffer in tensor memory, for a sum."""
    acc = tl._unwrap_if_constexpr(acc)
    if acc is None or isinstance(acc, tl.tensor):
        call.fail(
            WrongType,
            f"acc has to be a buffer in tensor memory, it is {describe(acc)}",
            hint="tlx.local_alloc((M, N), tl.float32, 1, tlx.storage_kind.tmem); use_acc=False "
            "begins a sum, tlx.local_load reads it",
        )
    total = view(call, "acc", acc, tensor_memory=True)
    if not total.type.in_tensor_memory:
        call.fail(
            WrongType,
            f"acc has to be in tensor memory, it is {total.type}",
            hint="allocate it with storage=tlx.storage_kind.tmem",
        )
    return total


def _check_shapes(call: Call, a: Any, b: Any, total: Any, pair: bool) -> None:
    for name, x in (("A", a), ("B", b), ("acc", total)):
        if len(x.shape) != 2:
            call.fail(WrongShape, f"{name} is of shape {x.shape}", hint="products are of matrices")
    (m, k), (k_, part) = a.shape, b.shape
    n = part * 2 if pair else part
    if k != k_ or total.shape != (m, n):
        halves = ", half of N: the other CTA has the rest" * pair
        call.fail(
            WrongShape,
            f"A is of shape {a.shape}, B of {b.shape} and acc of {total.shape}",
            hint=f"A is (M, K), B is (K, N){halves}, acc is (M, N)",
        )
    if m not in (64, 128):
        call.fail(
            WrongShape,
            f"M has to be 64 or 128, it is {m}",
            hint="several products make a larger one, tl.dot a smaller one",
        )
    if pair and m == 64 and a.type.in_tensor_memory:
        call.fail(
            WrongShape,
            "two CTAs read an A of 64 rows each from shared memory, not from tensor memory",
            hint="leave it in shared memory, or give each CTA 128 rows",
        )
    least = 32 if pair else 16 if m == 128 else 8
    most = 512 if m == 128 and not pair else 256
    if n % least or n > most:
        call.fail(
            WrongShape,
            f"N has to be a multiple of {least} up to {most}, it is {n}",
            hint="several products make a larger one",
        )
    step = 256 // bits(a.dtype)
    if k % step:
        call.fail(
            WrongShape,
            f"K has to be a multiple of {step} for {a.dtype}, it is {k}",
            hint="the matrix unit multiplies 32 bytes of K at a time",
        )


def _check_dtypes(call: Call, a: Any, b: Any, total: Any, input_precision: Any, pair: bool) -> None:
    for name, x in (("A", a), ("B", b)):
        if x.dtype not in _SUMS:
            call.fail(
                WrongDtype,
                f"{name} is of {x.dtype}, which the matrix unit does not multiply",
                hint="one of " + ", ".join(map(str, _SUMS)),
            )
    if a.dtype == tl.int8 and not call.interpreted and int(call.target.arch) != 100:
        call.fail(
            UnsupportedByTarget,
            f"tcgen05 of sm_{call.target.arch} multiplies no int8",
            hint="load both operands with tlx.local_load and use tl.dot",
        )
    if a.dtype != b.dtype and not (a.dtype.is_fp8() and b.dtype.is_fp8()):
        call.fail(
            WrongDtype,
            f"A is of {a.dtype} and B of {b.dtype}",
            hint="convert one of them; only fp8e4nv and fp8e5 may mix",
        )
    if total.dtype not in _SUMS[a.dtype]:
        call.fail(
            WrongDtype,
            f"acc is of {total.dtype}, products of {a.dtype} are summed in "
            + " or ".join(map(str, _SUMS[a.dtype])),
            hint=f"allocate it with tl.{_SUMS[a.dtype][0].name}",
        )
    precision = tl._unwrap_if_constexpr(input_precision)
    if a.dtype == tl.float32 and precision not in (None, "tf32"):
        call.fail(
            UnsupportedByTarget,
            f"tcgen05 multiplies fp32 only as tf32, not with input_precision={precision!r}",
            hint="load both operands with tlx.local_load and use tl.dot",
        )
    if a.dtype == tl.int8 and not call.interpreted and not pair:
        found = features()
        if not found.integers_in_tensor_memory:
            call.fail(
                UnsupportedByTarget,
                f"Triton {found.version} has no product of int8 by one CTA in tensor memory",
                hint="Triton 3.8 has; two CTAs (two_ctas=True) have one with this release too",
            )


@op("tlx.tensor_dot", lowered_in=LOWERED_IN)
def tensor_dot(call: Call, operands: Any, attributes: Any) -> None:
    """What ``async_dot`` with its sum in tensor memory becomes; see ``emit_product``."""
    call.emit(operands, **attributes)


tensor_dot.__name__ = "async_dot"  # the word that messages name


@tensor_dot.reference
def _multiply(
    machine: Machine,
    a: Any,
    b: Any,
    total: Any,
    *rest: Any,
    barriers: int,
    use_acc: bool | None,
    pred: bool,
    pair: bool,
    is_async: bool,
) -> None:
    later_product(
        machine, [a, total], [b], rest, barriers, use_acc, pred, pair, is_async,
        lambda rows, columns: _wide(rows) @ np.hstack([_wide(part) for part in columns]),
    )  # fmt: skip


def later_product(
    machine: Machine, own: list[Any], columns: list[Any], rest: Any, barriers: int,
    use_acc: bool | None, pred: bool, pair: bool, is_async: bool, multiply: Any,
) -> None:  # fmt: skip
    """A product in flight, and its arrivals.

    own: what a CTA has for its rows, the last of which is the sum. columns: B. rest: the
    barriers, then what is not constant of use_acc and pred. multiply: gives the product of
    what is in ``own`` but the sum, and of B's parts, of which a pair has two.
    """
    bars, flags = rest[:barriers], [bool(f) for f in rest[barriers:]]
    accumulates = flags[0] if use_acc is None else use_acc
    if pred and not flags[-1]:
        return
    programs = _issuing(machine, pair)
    if not programs:  # the other CTA's is the product
        return
    halves = [machine.array_elsewhere(b, program) for program in programs for b in columns]
    rows = [[machine.array_elsewhere(x, program) for x in own] for program in programs]

    def run() -> None:
        for *given, total in rows:
            product = multiply(*given, halves)
            if accumulates:
                product = product + total.astype(product.dtype)
            total[...] = product.astype(total.dtype)

    totals = [total for *_, total in rows]
    reads = [*halves, *(x for given in rows for x in given[: None if accumulates else -1])]
    machine.later(QUEUE, run, reads=reads, writes=totals, in_order=True)
    machine.close_group(QUEUE)
    for bar in bars:
        commit(machine, bar, pair)
    if not is_async:
        machine.wait(QUEUE, 0)


def _issuing(machine: Machine, pair: bool) -> Sequence[Any]:
    """The programs that an instruction of this one is of: none, where it is the other's."""
    if not pair:
        return [machine.strand.place]
    programs = pair_of(machine)
    return programs if programs[0] == machine.strand.place else []


def commit(machine: Machine, bar: Barrier, pair: bool) -> None:
    """An arrival at a barrier after all that is in the matrix unit; of a pair, at both CTAs'."""
    for program in _issuing(machine, pair):
        _commit_to(machine, machine.elsewhere(bar, program))


def _commit_to(machine: Machine, bar: Barrier) -> None:
    queue = machine.queue(QUEUE)
    bar.commits.append(queue)

    def arrive() -> None:
        bar.commits.remove(queue)
        bar.arrive(effect.clock)

    effect = machine.later(QUEUE, arrive, in_order=True)
    machine.close_group(QUEUE)


def _wide(array: Any) -> Any:
    """int32 of integers; else fp32, of which the low 13 bits of the mantissa do not count."""
    if array.dtype == np.int8:
        return array.astype(np.int32)
    if array.dtype != np.float32:
        return array.astype(np.float32)
    raw = np.ascontiguousarray(array).view(np.uint32) & np.uint32(0xFFFFE000)
    return raw.view(np.float32)


@op("tlx.tcgen05_commit", lowered_in=LOWERED_IN)
def tcgen05_commit(call: Call, mBarrier: Any, two_ctas: Any = False) -> None:
    """Arrive at a barrier, once, when all products and copies so far are done.

    Args:
        mBarrier: one barrier.
        two_ctas: constant. True: they are of two CTAs: the first one's arrive at the barriers that
            both have in that place.

    "So far": those that this task began.
    """
    require_tensor_memory(call)
    given = barrier(call, "mBarrier", mBarrier)
    pair = call.constant("two_ctas", two_ctas, bool)
    if pair:
        require_pair(call)
    call.emit([given], pair=pair)


@tcgen05_commit.reference
def _commit(machine: Machine, bar: Barrier, pair: bool) -> None:
    commit(machine, bar, pair)


@op("tlx.tmem_copy", lowered_in=LOWERED_IN)
def tmem_copy(call: Call, src: Any, dst: Any) -> None:
    """Copy from shared to tensor memory, asynchronously.

    Args:
        src: one buffer in shared memory, of dst's shape. Of scales any shape of as many bytes but
            dst's own, in the order in which the matrix unit reads them, 32 rows of 16 bytes at a
            time; n of those, (32 n, 16), may be fewer than there are: the first 4 n scales of each
            of 128 rows.
        dst: one buffer in tensor memory, of elements of the same width.

    Products that come after it in the task read what it copied; for others
    ``tcgen05_commit`` says when it is done.
    """
    require_tensor_memory(call)
    source, to = view(call, "src", src), view(call, "dst", dst, tensor_memory=True)
    if not to.type.in_tensor_memory:
        call.fail(
            WrongType,
            f"dst has to be in tensor memory, it is {to.type}",
            hint="allocate it with storage=tlx.storage_kind.tmem",
        )
    if bits(source.dtype) != bits(to.dtype):
        call.fail(
            WrongDtype,
            f"src is of {source.dtype}, dst of {to.dtype}",
            hint="give both elements of one width",
        )
    scales = 0
    if are_scales(to.dtype):
        scales = _scales_copied(call, source, to)
    elif source.shape != to.shape:
        call.fail(
            WrongShape,
            f"src is of shape {source.shape}, dst of {to.shape}",
            hint="a copy fills a whole buffer",
        )
    else:
        _check_copied(call, to)
    call.emit([source, to], scales=scales)


def _check_copied(call: Call, to: Any) -> None:
    """Check a matrix that stock Triton can copy: its rows in all lanes, swizzled, in 32 bits."""
    rows, length = to.shape
    if rows != LANES:
        call.fail(
            WrongShape,
            f"dst has {rows} rows, a copy fills {LANES} lanes",
            hint="tlx.local_load from src, and tlx.local_store, bring fewer rows",
        )
    if bits(to.dtype) != 32:
        call.fail(
            WrongDtype,
            f"dst is of {to.dtype}, copies are of 32 bits",
            hint="tlx.local_reinterpret reads both buffers as tl.float32, with fewer columns",
        )
    if length < 8:
        call.fail(
            WrongShape,
            f"dst has {length} columns, a copy is of 8 at least",
            hint="tlx.local_load from src, and tlx.local_store, bring fewer columns",
        )


#: What the matrix unit reads of scales at a time: 32 rows of 16 bytes, as 128 rows by 4.
_GROUP = (32, 16)


def _scales_copied(call: Call, source: Any, to: Any) -> int:
    """How many scales of each row a copy brings."""
    rows, length = whole_rows(to.shape)
    size = int(np.prod(source.shape))
    packed = len(source.shape) == 2 and source.shape[1] == _GROUP[1] and not source.shape[0] % 32
    fits = size == rows * length or (packed and to.shape[0] == 128 and size < rows * length)
    if not fits or (source.shape == to.shape and not packed):
        call.fail(
            WrongShape,
            f"src is of shape {source.shape}, dst of {to.shape}",
            hint="scales are copied in the order in which the unit reads them, (32 n, 16) or "
            "(1, rows // 128, scales // 4, 2, 256); tlx.local_store takes (rows, scales)",
        )
    return size // rows


@tmem_copy.reference
def _copy(machine: Machine, source: Any, to: Any, scales: int) -> None:
    def run() -> None:
        if not scales:
            to[...] = source
            return
        rows, length = whole_rows(to.shape)
        new = unpacked(source, (rows, scales))
        if scales == length:
            to[...] = new.reshape(to.shape)
        else:
            to[:, :scales] = new

    machine.later(QUEUE, run, reads=[source], writes=[to], in_order=True)
    machine.close_group(QUEUE)


def whole_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of scales as the matrix unit has them: fewer rows than 128 are 128 of fewer."""
    rows, length = shape
    return (rows, length) if rows >= 128 else (128, rows * length // 128)


def unpacked(source: Any, shape: tuple[int, int]) -> Any:
    """Scales (M, K) from the order in which the matrix unit reads them.

    Blocks of 128 rows by 4 follow each other along K; in one, 32 rows by 4 times 4.
    """
    rows, length = shape
    blocks = np.ascontiguousarray(source).reshape(rows // 128, length // 4, 32, 4, 4)
    return blocks.transpose(0, 3, 2, 1, 4).reshape(rows, length)
