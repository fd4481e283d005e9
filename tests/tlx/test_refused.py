"""Bad input: the class of the catalogue, the kernel's own line, and a way out."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import build, line_of

import remora.tlx as tlx
from remora import errors


@triton.jit
def buffers(p, q, i, n, B: tl.constexpr, WHAT: tl.constexpr):
    buf = tlx.local_alloc((B,), tlx.dtype_of(p), 4)
    wide = tlx.local_alloc((B,), tl.float32, 4)
    small = tlx.local_alloc((B // 2,), tlx.dtype_of(p), 4)
    at = tl.arange(0, B)
    v = tlx.local_view(buf, 0)
    if WHAT == "float index":
        v = tlx.local_view(buf, 1.5)  # float index
    if WHAT == "bool index":
        v = tlx.local_view(buf, True)  # bool index
    if WHAT == "tensor index":
        v = tlx.local_view(buf, at)  # tensor index
    if WHAT == "token index":
        v = tlx.local_view(buf, tlx.async_load_commit_group())  # token index
    if WHAT == "index too large":
        v = tlx.local_view(buf, 4)  # index too large
    if WHAT == "negative index":
        v = tlx.local_view(buf, -1)  # negative index
    if WHAT == "view of a view":
        matrices = tlx.local_alloc((B, B), tlx.dtype_of(p), 1)
        tlx.local_view(tlx.local_view(matrices, 0), 0)  # view of a view
    if WHAT == "view of a pointer":
        v = tlx.local_view(p, 0)  # view of a pointer
    if WHAT == "store of a wrong shape":
        tlx.local_store(v, tl.load(p + tl.arange(0, B // 2)))  # store of a wrong shape
    if WHAT == "store of a scalar":
        tlx.local_store(v, 3.0)  # store of a scalar
    if WHAT == "store of a wrong dtype":
        tlx.local_store(v, tl.load(p + at).to(tl.float32))  # store of a wrong dtype
    if WHAT == "store into all":
        tlx.local_store(buf, tl.load(p + at))  # store into all
    if WHAT == "store the wrong way":
        tlx.local_store(tl.load(p + at), v)  # store the wrong way
    if WHAT == "store without a value":
        tlx.local_store(v)  # store without a value
    if WHAT == "store with too much":
        tlx.local_store(v, tl.load(p + at), twice=True)  # store with too much
    if WHAT == "loop changes dtype":
        for _ in range(n):  # loop changes dtype
            v = tlx.local_view(wide, 0)
        tlx.local_store(v, tl.load(p + at))
    if WHAT == "loop changes shape":
        for _ in range(n):  # loop changes shape
            v = tlx.local_view(small, 0)
        tlx.local_store(v, tl.load(p + at))
    if WHAT == "while changes dtype":
        while n > 0:  # while changes dtype
            v = tlx.local_view(wide, n)
            n -= 1
        tlx.local_store(v, tl.load(p + at))
    if WHAT == "shape not constant":
        tlx.local_alloc((n,), tl.float16, 2)  # shape not constant
    if WHAT == "shape not a tuple":
        tlx.local_alloc(B, tl.float16, 2)  # shape not a tuple
    if WHAT == "shape not a power":
        tlx.local_alloc((B, 3), tl.float16, 2)  # shape not a power
    if WHAT == "shape empty":
        tlx.local_alloc((0,), tl.float16, 2)  # shape empty
    if WHAT == "num not constant":
        tlx.local_alloc((B,), tl.float16, n)  # num not constant
    if WHAT == "num zero":
        tlx.local_alloc((B,), tl.float16, 0)  # num zero
    if WHAT == "dtype of one bit":
        tlx.local_alloc((B,), tl.int1, 2)  # dtype of one bit
    if WHAT == "dtype a string":
        tlx.local_alloc((B,), "fp16", 2)  # dtype a string
    if WHAT == "tensor memory":
        tlx.local_alloc((B,), tl.float16, 2, tlx.storage_kind.tmem)  # tensor memory
    if WHAT == "storage a string":
        tlx.local_alloc((B,), tl.float16, 2, "smem")  # storage a string
    if WHAT == "token a buffer":
        tlx.local_load(v, v)  # token a buffer
    if WHAT == "group of buffers":
        tlx.async_load_commit_group([v])  # group of buffers
    if WHAT == "pendings not constant":
        tlx.async_load_wait_group(n)  # pendings not constant
    if WHAT == "pendings negative":
        tlx.async_load_wait_group(-1)  # pendings negative
    if WHAT == "pendings a bool":
        tlx.async_load_wait_group(True)  # pendings a bool
    if WHAT == "copy of numbers":
        tlx.async_load(at, v)  # copy of numbers
    if WHAT == "copy of a pointer":
        tlx.async_load(p, v)  # copy of a pointer
    if WHAT == "copy of a wrong dtype":
        tlx.async_load(q + at, v)  # copy of a wrong dtype
    if WHAT == "copy of a wrong shape":
        tlx.async_load(p + tl.arange(0, B // 2), v)  # copy of a wrong shape
    if WHAT == "mask of a wrong shape":
        tlx.async_load(p + at, v, mask=tl.arange(0, B // 2) < n)  # mask of a wrong shape
    if WHAT == "mask of a wrong dtype":
        tlx.async_load(p + at, v, mask=at)  # mask of a wrong dtype
    if WHAT == "other without a mask":
        tlx.async_load(p + at, v, other=1.0)  # other without a mask
    if WHAT == "bulk":
        tlx.async_load(p + at, v, bulk=True)  # bulk


BUFFERS = {
    "float index": errors.WrongType,
    "bool index": errors.WrongType,
    "tensor index": errors.WrongType,
    "token index": errors.WrongType,
    "index too large": errors.BufferIndexError,
    "negative index": errors.BufferIndexError,
    "view of a view": errors.WrongType,
    "view of a pointer": errors.WrongType,
    "store of a wrong shape": errors.WrongShape,
    "store of a scalar": errors.WrongShape,
    "store of a wrong dtype": errors.WrongDtype,
    "store into all": errors.WrongType,
    "store the wrong way": errors.WrongType,
    "store without a value": errors.WrongType,
    "store with too much": errors.WrongType,
    "loop changes dtype": errors.LoopTypeChanged,
    "loop changes shape": errors.LoopTypeChanged,
    "while changes dtype": errors.LoopTypeChanged,
    "shape not constant": errors.NotConstant,
    "shape not a tuple": errors.WrongType,
    "shape not a power": errors.WrongShape,
    "shape empty": errors.WrongShape,
    "num not constant": errors.NotConstant,
    "num zero": errors.WrongShape,
    "dtype of one bit": errors.WrongDtype,
    "dtype a string": errors.WrongDtype,
    "tensor memory": errors.UnsupportedByTarget,
    "storage a string": errors.WrongType,
    "token a buffer": errors.WrongType,
    "group of buffers": errors.WrongType,
    "pendings not constant": errors.NotConstant,
    "pendings negative": errors.WrongShape,
    "pendings a bool": errors.WrongType,
    "copy of numbers": errors.WrongType,
    "copy of a pointer": errors.WrongType,
    "copy of a wrong dtype": errors.WrongDtype,
    "copy of a wrong shape": errors.WrongShape,
    "mask of a wrong shape": errors.WrongShape,
    "mask of a wrong dtype": errors.WrongDtype,
    "other without a mask": errors.WrongType,
    "bulk": errors.WrongType,
}


@triton.jit
def products(p, q, r, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHAT: tl.constexpr):
    a = tlx.local_alloc((M, K), tlx.dtype_of(p), 2)
    b = tlx.local_alloc((K, N), tlx.dtype_of(q), 2)
    av = tlx.local_view(a, 0)
    bv = tlx.local_view(b, 0)
    rows = tl.arange(0, M)[:, None]
    x = tl.load(p + rows * K + tl.arange(0, K)[None, :])
    out = r + rows * N + tl.arange(0, N)[None, :]
    acc = tl.zeros((M, N), tl.float32)
    if WHAT == "good":
        tl.store(out, tlx.async_dot_wait(0, tlx.async_dot(av, bv, acc)))  # good
    if WHAT == "read in flight":
        acc = tlx.async_dot(av, bv, acc)
        tl.store(out, acc)  # read in flight
    if WHAT == "summed in flight":
        acc = tlx.async_dot(av, bv, acc)
        total = tl.sum(acc, 1)  # summed in flight
        acc = tlx.async_dot_wait(0, acc)
        tl.store(r + tl.arange(0, M), total)
    if WHAT == "wait leaves it in flight":
        acc = tlx.async_dot_wait(1, tlx.async_dot(av, bv, acc))
        tl.store(out, acc)  # wait leaves it in flight
    if WHAT == "loop leaves it in flight":
        for i in range(n):
            acc = tlx.async_dot(tlx.local_view(a, i % 2), tlx.local_view(b, i % 2), acc)
            acc = tlx.async_dot_wait(1, acc)
        tl.store(out, acc)  # loop leaves it in flight
    if WHAT == "wait for no product":
        acc = tlx.async_dot_wait(0, acc)  # wait for no product
    if WHAT == "wait for a buffer":
        tlx.async_dot_wait(0, av)  # wait for a buffer
    if WHAT == "wait not constant":
        tlx.async_dot_wait(n, tlx.async_dot(av, bv, acc))  # wait not constant
    if WHAT == "B in registers":
        tlx.async_dot(av, x, acc)  # B in registers
    if WHAT == "allocations":
        tlx.async_dot(a, b, acc)  # allocations
    if WHAT == "pred":
        tlx.async_dot(av, bv, acc, pred=n > 0)  # pred
    if WHAT == "two CTAs":
        tlx.async_dot(av, bv, acc, two_ctas=True)  # two CTAs
    if WHAT == "use_acc a tensor":
        tlx.async_dot(av, bv, acc, use_acc=acc)  # use_acc a tensor
    if WHAT == "acc of a wrong shape":
        tlx.async_dot(av, bv, tl.zeros((M, 2 * N), tl.float32))  # acc of a wrong shape
    if WHAT == "acc of a wrong dtype":
        tlx.async_dot(av, bv, acc.to(tl.bfloat16))  # acc of a wrong dtype
    if WHAT == "transposed":
        tlx.async_dot(bv, av, acc)  # transposed
    if WHAT == "exact fp32":
        tlx.async_dot(av, bv, acc, input_precision="ieee")  # exact fp32
    if WHAT == "two layouts":
        tl.store(out, tlx.async_dot_wait(0, tlx.async_dot(av, bv, acc)))  # two layouts
        tl.store(out, tlx.async_dot_wait(0, tlx.async_dot(bv, av, acc)))


FP16 = {"p": "*fp16", "q": "*fp16", "r": "*fp32", "n": "i32", "M": 64, "N": 64, "K": 64}
PRODUCTS: dict[str, tuple[type[errors.RemoraError], dict[str, Any]]] = {
    "read in flight": (errors.AccumulatorInFlight, {}),
    "summed in flight": (errors.AccumulatorInFlight, {}),
    "wait leaves it in flight": (errors.AccumulatorInFlight, {}),
    "loop leaves it in flight": (errors.AccumulatorInFlight, {}),
    "wait for no product": (errors.WrongType, {}),
    "wait for a buffer": (errors.WrongType, {}),
    "wait not constant": (errors.NotConstant, {}),
    "B in registers": (errors.WrongType, {}),
    "allocations": (errors.WrongType, {}),
    "pred": (errors.UnsupportedByTarget, {}),
    "two CTAs": (errors.UnsupportedByTarget, {}),
    "use_acc a tensor": (errors.WrongType, {}),
    "acc of a wrong shape": (errors.WrongShape, {}),
    "acc of a wrong dtype": (errors.WrongDtype, {}),
    "transposed": (errors.WrongShape, {"M": 64, "N": 128}),
    "exact fp32": (errors.UnsupportedByTarget, {"p": "*fp32", "q": "*fp32"}),
    "two layouts": (errors.ConflictingLayouts, {"p": "*fp8e5", "q": "*fp8e5"}),
}
GOOD = {
    "K": (errors.WrongShape, {"K": 8}),
    "M": (errors.WrongShape, {"M": 32}),
    "N": (errors.WrongShape, {"N": 4}),
    "warps": (errors.WrongShape, {"options": {"num_warps": 2}}),
    "dtype": (errors.WrongDtype, {"p": "*u8", "q": "*u8"}),
    "fp64": (errors.WrongDtype, {"p": "*fp64", "q": "*fp64"}),
    "mixed": (errors.WrongDtype, {"q": "*bf16"}),
    "integers": (errors.WrongDtype, {"p": "*i8", "q": "*i8"}),
    "fp8 K": (errors.WrongShape, {"p": "*fp8e4nv", "q": "*fp8e4nv", "K": 16}),
    "hip:gfx942": (errors.UnsupportedByTarget, {"target": "hip:gfx942"}),
    "hip:gfx950": (errors.UnsupportedByTarget, {"target": "hip:gfx950"}),
    "cuda:80": (errors.UnsupportedByTarget, {"target": "cuda:80"}),
    "cuda:100": (errors.WrongType, {"target": "cuda:100"}),
}


def refused(kind: type[errors.RemoraError], kernel: Any, target: str, **given: Any) -> Any:
    """The catalogue's error behind what the compilation raised; it says where and what to do."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps what it meets
        build(kernel, target, **given)
    error = kind.of(caught.value)
    assert error is not None, f"{type(caught.value).__name__}: {caught.value}"
    assert type(error) is kind or kind is errors.OutOfSharedMemory
    assert error.what
    assert error.hint
    return error


@pytest.mark.parametrize("what", BUFFERS)
def test_buffers_and_copies(what: str) -> None:
    error = refused(
        BUFFERS[what], buffers, "cuda:90", p="*fp16", q="*fp32", i="i32", n="i32", B=128, WHAT=what
    )
    assert line_of(buffers, f"# {what}") in error.where


def test_on_amd_as_on_nvidia() -> None:
    given = {"p": "*fp16", "q": "*fp32", "i": "i32", "n": "i32", "B": 128}
    for what in ("float index", "store of a wrong dtype", "loop changes dtype"):
        error = refused(BUFFERS[what], buffers, "hip:gfx942", WHAT=what, **given)
        assert line_of(buffers, f"# {what}") in error.where


@pytest.mark.parametrize("what", PRODUCTS)
def test_products(what: str) -> None:
    kind, given = PRODUCTS[what]
    error = refused(kind, products, "cuda:90", WHAT=what, **{**FP16, **given})
    assert line_of(products, f"# {what}") in error.where


@pytest.mark.parametrize("what", GOOD)
def test_products_that_the_matrix_unit_lacks(what: str) -> None:
    kind, changed = GOOD[what]
    given = {"target": "cuda:90", **FP16, **changed}
    error = refused(kind, products, WHAT="good", **given)
    assert line_of(products, "# good") in error.where


def test_two_uses_that_disagree_are_both_named() -> None:
    given = {**FP16, "p": "*fp8e5", "q": "*fp8e5"}  # K has to be contiguous in either operand
    error = refused(errors.ConflictingLayouts, products, "cuda:90", WHAT="two layouts", **given)
    file, line = line_of(products, "# two layouts").rsplit(":", 1)
    assert f"{file}:{line}" in error.where
    assert f"{file}:{int(line) + 1}" in error.where
    assert line_of(products, "a = tlx.local_alloc") in error.where


def test_too_much_shared_memory_is_summed_buffer_by_buffer() -> None:
    given = {**FP16, "M": 128, "N": 256, "K": 256}
    error = refused(errors.OutOfSharedMemory, products, "cuda:90", WHAT="good", **given)
    numbers = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) bytes", error.what)]
    assert numbers == [393216, 2 * 128 * 256 * 2, 2 * 256 * 256 * 2, 393216]
    assert line_of(products, "b = tlx.local_alloc") in error.where
    for name in "ab":
        assert line_of(products, f"{name} = tlx.local_alloc") in error.what
    from triton.runtime.errors import OutOfResources

    assert isinstance(error, OutOfResources)  # which @triton.autotune survives
    assert error.required == 393216
    assert error.limit == 232448


def test_amd_s_shared_memory_is_smaller() -> None:
    @triton.jit
    def kernel(p, B: tl.constexpr, NUM: tl.constexpr):
        buf = tlx.local_alloc((B,), tlx.dtype_of(p), NUM)
        at = tl.arange(0, B)
        tlx.local_store(tlx.local_view(buf, 0), tl.load(p + at))
        tl.store(p + at, tlx.local_load(tlx.local_view(buf, 0)))

    error = refused(errors.OutOfSharedMemory, kernel, "hip:gfx942", p="*fp32", B=4096, NUM=5)
    assert (error.required, error.limit) == (5 * 4096 * 4, 65536)
    assert build(kernel, "hip:gfx950", p="*fp32", B=4096, NUM=5).metadata.shared == 5 * 4096 * 4


def test_after_an_error_the_process_compiles_on() -> None:
    refused(errors.AccumulatorInFlight, products, "cuda:90", WHAT="read in flight", **FP16)
    assert "wgmma" in build(products, "cuda:90", WHAT="good", **FP16).asm["ptx"]


@triton.jit(noinline=True)
def takes(buffer, q, B: tl.constexpr):
    tl.store(q + tl.arange(0, B), tlx.local_load(buffer))


@triton.jit(noinline=True)
def gives(B: tl.constexpr):
    return tlx.local_alloc((B,), tl.float16, 2)  # returned


@triton.jit
def calls(q, B: tl.constexpr, RETURNED: tl.constexpr):
    if RETURNED:
        buf = gives(B)
    else:
        buf = tlx.local_alloc((B,), tl.float16, 2)
        takes(tlx.local_view(buf, 0), q, B)  # passed
    tl.store(q + tl.arange(0, B), tlx.local_load(tlx.local_view(buf, 0)))


def test_handles_do_not_cross_functions_that_are_not_inlined() -> None:
    error = refused(errors.WrongType, calls, "cuda:90", q="*fp16", B=128, RETURNED=False)
    assert error.where == line_of(calls, "# passed")
    error = refused(errors.WrongType, calls, "cuda:90", q="*fp16", B=128, RETURNED=True)
    assert error.where.startswith(line_of(gives, "# returned").rsplit(":", 1)[0])
    assert "noinline" in error.hint


def test_outside_a_kernel() -> None:
    with pytest.raises(errors.NeedsCompiler, match="outside a kernel") as caught:
        tlx.local_alloc((128,), tl.float16, 2)
    assert caught.value.hint


def test_a_message_says_what_a_variable_was() -> None:
    """Triton's own check of branches speaks of buffers as we do."""

    @triton.jit
    def kernel(q, n, B: tl.constexpr):
        buf = tlx.local_alloc((B,), tl.float16, 2)
        if n > 0:
            buf = tlx.local_alloc((B,), tl.float32, 2)
        tl.store(q + tl.arange(0, B), tlx.local_load(tlx.local_view(buf, 0)))

    with pytest.raises(triton.CompilationError, match="an allocation of 2 buffers of 128 fp16"):
        build(kernel, "cuda:90", q="*fp16", n="i32", B=128)
