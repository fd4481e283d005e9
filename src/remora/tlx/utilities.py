"""Small words: sizes and names of types, the thread and its clock, votes of a warp."""

from __future__ import annotations

import time
from typing import Any

import ml_dtypes
import numpy as np
import triton
from triton import language
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine, numpy_dtype
from remora.errors import WrongDtype, WrongShape, WrongType
from remora.tlx.buffers import DTYPES
from remora.tlx.storage import LOWERED_IN
from remora.tlx.types import bits
from remora.tlx_plugin import BLACKWELL

Array = np.ndarray[Any, Any]

_LANES = 32


def _element_type(call: Call, dtype: Any) -> Any:
    dtype = tl._unwrap_if_constexpr(dtype)
    if not isinstance(dtype, tl.dtype):
        call.fail(
            WrongType,
            f"dtype has to be an element type, it is {dtype!r}",
            hint="tlx.dtype_of(x) gives one",
        )
    return dtype


@op("tlx.size_of")
def size_of(call: Call, dtype: Any) -> Any:
    """Bytes of an element, a constant."""
    return tl.constexpr(bits(_element_type(call, dtype)) // 8)


@op("tlx.get_fp8_format_name")
def get_fp8_format_name(call: Call, dtype: Any) -> Any:
    """``"e5m2"`` for fp8e5, ``"e4m3"`` for fp8e4nv, a constant."""
    names = {tl.float8e5: "e5m2", tl.float8e4nv: "e4m3"}
    dtype = _element_type(call, dtype)
    if dtype not in names:
        call.fail(
            WrongDtype,
            f"{dtype} has no such name",
            hint="one of " + ", ".join(map(str, names)),
        )
    return tl.constexpr(names[dtype])


def is_hip(_semantic: Any = None, _generator: Any = None) -> bool:
    """Whether the target is AMD's: in a kernel its own, elsewhere that of the machine."""
    if _semantic is not None:
        return getattr(_semantic.builder.options, "backend_name", "") == "hip"
    try:
        target = triton.runtime.driver.active.get_current_target()  # type: ignore[attr-defined]
    except Exception:  # no GPU, or no driver for it
        return False
    return bool(target.backend == "hip")


vars(is_hip)["__triton_builtin__"] = True


@op("tlx.num_warps")
def num_warps(call: Call) -> Any:
    """Warps that run the kernel, a constant; under the reference meaning see ``tlx.jit``."""
    return tl.constexpr(call.num_warps)


# --- threads -------------------------------------------------------------------------------------


def _assembly(
    call: Call, text: str, constraints: str, args: list[Any], dtype: Any, *, pure: bool
) -> Any:
    """An instruction for each element of tensors, or for a scalar."""
    return tl.inline_asm_elementwise(
        text, constraints, args, dtype, is_pure=pure, pack=1, _semantic=call.semantic
    )


def _on_nvidia(call: Call, instead: str) -> None:
    call.require_target("cuda", reason="it is an instruction of NVIDIA's", instead=instead)


@op("tlx.thread_id", lowered_in=LOWERED_IN)
def thread_id(call: Call, axis: Any) -> Any:
    """The index of the thread in its CTA along an axis, i32; 0 under the reference meaning.

    Args:
        axis: constant: 0, 1 or 2. Threads lie along 0.
    """
    which = call.constant("axis", axis)
    if which not in (0, 1, 2):
        call.fail(WrongShape, f"axis has to be 0, 1 or 2, it is {which}", hint="threads lie on 0")
    if call.interpreted or call.target.backend == "hip":
        return call.emit([], [tl.int32], axis=which)
    return _assembly(call, f"mov.u32 $0, %tid.{'xyz'[which]};", "=r", [], tl.int32, pure=True)


@thread_id.reference
def _first_thread(machine: Machine, axis: int) -> Any:
    return np.int32(0)


@op("tlx.clock64")
def clock64(call: Call) -> Any:
    """A counter of clock cycles of the multiprocessor, i64; under the reference meaning, ns."""
    if call.interpreted:
        return call.emit([], [tl.int64])
    _on_nvidia(call, "measure from outside")
    return _assembly(call, "mov.u64 $0, %clock64;", "=l", [], tl.int64, pure=False)


@clock64.reference
def _clock(machine: Machine) -> Any:
    return np.int64(time.perf_counter_ns())


# --- warps ---------------------------------------------------------------------------------------


@op("tlx.vote_ballot_sync")
def vote_ballot_sync(call: Call, mask: Any, pred: Any) -> Any:
    """Who of a warp says yes: bit ``i`` is that of lane ``i``.

    Args:
        mask: constant, 32 bits: the lanes that take part.
        pred: a scalar or a tensor; what is not 0 is yes.

    Returns:
        i32, of the shape of ``pred``: each element has the ballot of its warp. Which elements are
        a warp's is the layout's choice; under the reference meaning, 32 that follow each other.
    """
    lanes = call.constant("mask", mask) & 0xFFFFFFFF
    _on_nvidia(call, "tl.max(pred.to(tl.int32)) says whether any is")
    value = call.tensor("pred", pred)
    if value.dtype != tl.int1:
        value = call.semantic.not_equal(value, call.semantic.to_tensor(0))
    if call.interpreted:
        kind = value.type.with_element_ty(tl.int32) if value.type.is_block() else tl.int32
        return call.emit([value], [kind], mask=lanes)
    value = call.semantic.cast(value, tl.int32)
    text = (
        "{\n\t.reg .pred yes;\n\tsetp.ne.b32 yes, $1, 0;\n\t"
        f"vote.sync.ballot.b32 $0, yes, {lanes:#x};\n}}"
    )
    return _assembly(call, text, "=r,r", [value], tl.int32, pure=False)


def _warps(value: Array) -> Array:
    """Elements as warps of 32 lanes: fewer repeat."""
    flat = value.reshape(-1)
    flat = np.resize(flat, max(_LANES, flat.size))
    return flat.reshape(-1, _LANES)


def _spread(warps: Array, like: Array) -> Array:
    """A value of each warp, for each of its elements."""
    return np.repeat(warps, _LANES)[: like.size].reshape(like.shape)


@vote_ballot_sync.reference
def _ballot(machine: Machine, pred: Array, mask: int) -> Array:
    weights = np.uint64(1) << np.arange(_LANES, dtype=np.uint64)
    ballots = (_warps(pred).astype(np.uint64) * weights).sum(1) & np.uint64(mask)
    return _spread(ballots.astype(np.uint32).view(np.int32), pred)


_REDUCTIONS = {"max": (np.fmax, "max"), "min": (np.fmin, "min")}


@op("tlx.warp_redux")
def warp_redux(call: Call, x: Any, op: Any) -> Any:
    """The largest or smallest value of each warp, in each of its lanes.

    Args:
        x: fp32. op: constant: ``"max"``, ``"min"``, ``"abs_max"`` or ``"abs_min"``.

    NaN counts as missing. Which elements are a warp's: see ``vote_ballot_sync``.
    """
    kind = call.constant("op", op, str)
    if kind.removeprefix("abs_") not in _REDUCTIONS:
        call.fail(
            WrongType,
            f"op has to be max, min, abs_max or abs_min, it is {kind}",
            hint='op="max"',
        )
    _on_nvidia(call, "tl.max and tl.min reduce whole tensors")
    value = call.tensor("x", x, dtypes=(tl.float32,))
    if call.interpreted:
        return call.emit([value], [value.type], kind=kind)
    first = "abs.f32 value, $1" if kind.startswith("abs") else "mov.b32 value, $1"
    name = _REDUCTIONS[kind.removeprefix("abs_")][1]
    # Five exchanges: redux.sync takes fp32 from Blackwell on.
    steps = "".join(
        f"shfl.sync.bfly.b32 other, value, {step}, 31, -1;\n\t{name}.f32 value, value, other;\n\t"
        for step in (16, 8, 4, 2, 1)
    )
    text = f"{{\n\t.reg .b32 value, other;\n\t{first};\n\t{steps}mov.b32 $0, value;\n}}"
    return _assembly(call, text, "=f,f", [value], tl.float32, pure=False)


@warp_redux.reference
def _redux(machine: Machine, x: Array, kind: str) -> Array:
    values = np.abs(x) if kind.startswith("abs") else x
    reduce: Any = _REDUCTIONS[kind.removeprefix("abs_")][0]
    return _spread(reduce.reduce(_warps(values), axis=1), x)


@triton.jit
def warp_any(pred):  # type: ignore[no-untyped-def]
    """Whether any element is not 0, in any warp: a scalar, so that all threads branch alike."""
    if len(pred.shape) == 0:
        result = pred != 0
    else:
        result = language.max((pred != 0).to(language.int32).reshape(pred.numel), 0) != 0
    return result


@triton.jit
def warp_all(pred):  # type: ignore[no-untyped-def]
    """Whether no element is 0, in any warp: a scalar, so that all threads branch alike."""
    if len(pred.shape) == 0:
        result = pred != 0
    else:
        result = language.min((pred != 0).to(language.int32).reshape(pred.numel), 0) != 0
    return result


# --- rounding ------------------------------------------------------------------------------------

#: Bits of the mantissa, PTX's name of the type, and how many one instruction makes.
_ROUNDED = {
    tl.float8e5: (2, "e5m2x4", 4),
    tl.float8e4nv: (3, "e4m3x4", 4),
    tl.float16: (10, "f16x2", 2),
    tl.bfloat16: (7, "bf16x2", 2),
}


@op("tlx.stoch_round")
def stoch_round(call: Call, src: Any, dst_ty: Any, rand_bits: Any) -> Any:
    """Round fp32 up or down at random, as often as the value is near to either.

    Args:
        src: fp32, a tensor or a scalar.
        dst_ty: fp8e5, fp8e4nv, fp16 or bf16. What is larger than its largest number becomes that
            number, infinities too.
        rand_bits: int32 or uint32, of src's shape: 32 random bits for each element.

    Blackwell's ``cvt.rs``. It takes 16 bits a pair or four of elements: of two neighbours
    each gives its low 16 bits, of four the first and the third, each for itself and, in
    reverse, for the next one. So of fp8 neighbours' roundings are not independent.
    """
    call.require_target(
        *BLACKWELL,
        reason="stochastic rounding is an instruction of Blackwell's",
        instead="x.to(dtype) rounds to the nearest",
    )
    value = call.tensor("src", src, dtypes=(tl.float32,))
    shape = tuple(tl._unwrap_if_constexpr(d) for d in value.shape)
    noise = call.tensor("rand_bits", rand_bits, shape=shape, dtypes=(tl.int32, tl.uint32))
    dtype = _element_type(call, dst_ty)
    if dtype not in _ROUNDED:
        call.fail(WrongDtype, f"dst_ty is {dtype}", hint="one of " + ", ".join(map(str, _ROUNDED)))
    if call.interpreted:
        kind = value.type.with_element_ty(dtype) if value.type.is_block() else dtype
        return call.emit([value, noise], [kind], dtype=str(dtype))
    _, name, count = _ROUNDED[dtype]
    # The first source goes into the highest bits.
    values = [f"${1 + i}" for i in reversed(range(count))]
    low, high = f"${1 + count}", f"${1 + count + count // 2}"
    sources = ", ".join(values) if count == 2 else "{" + ", ".join(values) + "}"
    text = (
        f"{{\n\t.reg .b32 bits;\n\tprmt.b32 bits, {low}, {high}, 0x5410;\n"
        f"\tcvt.rs.satfinite.{name}.f32 $0, {sources}, bits;\n}}"
    )
    constraints = ",".join(["=r", *["f"] * count, *["r"] * count])
    return tl.inline_asm_elementwise(
        text, constraints, [value, noise], dtype, is_pure=True, pack=count, _semantic=call.semantic
    )


@stoch_round.reference
def _rounded(machine: Machine, value: Array, noise: Array, dtype: str) -> Array:
    kind = DTYPES[dtype]
    target = numpy_dtype(kind)
    dropped = np.uint32((1 << (23 - _ROUNDED[kind][0])) - 1)
    raw = value.astype(np.float32).view(np.uint32) + (noise.astype(np.uint32) & dropped)
    exact = np.where(np.isfinite(value), (raw & ~dropped).view(np.float32), value)
    most = np.float32(ml_dtypes.finfo(target).max)
    result: Array = np.clip(exact, -most, most).astype(target)
    return result
