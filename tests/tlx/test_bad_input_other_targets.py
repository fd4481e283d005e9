"""Bad input on CDNA, Hopper and Blackwell: the catalogue's class, the kernel's line, a way out.

What a target lacks, and what there is instead; what its units cannot read; more memory than it
has. ``test_refused.py`` and the tests of each word have what is wrong everywhere.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import triton
import triton.language as tl
from tlx.building import RELEASE, build, line_of
from tlx.test_refused import refused

import remora
import remora.tlx as tlx
from remora import errors
from remora.tlx.limits import TlxOutOfTensorMemory

CDNA, HOPPER, BLACKWELL = ("hip:gfx942", "hip:gfx950"), "cuda:90", "cuda:100"
NVIDIA = (HOPPER, BLACKWELL)


def needs_3_8(target: str) -> None:
    if target.startswith("hip") and RELEASE < (3, 8):
        pytest.skip("AMD's words are there from Triton 3.8 on")


def given(target: str) -> dict[str, Any]:
    d = "*fp16" if target.startswith("hip") else "tensordesc<fp16[64,64]>"
    return {"p": "*fp16", "q": "*fp32", "d": d, "n": "i32"}


# --- operations of another target ----------------------------------------------------------------


@triton.jit
def elsewhere(p, q, d, n, WHAT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    line = tl.arange(0, 128)
    a = tlx.local_alloc((64, 64), tl.float16, 2)
    x = tl.load(q + line)
    if WHAT == "tmem":
        tlx.local_alloc((64, 64), tl.float32, 1, tlx.storage_kind.tmem)  # tmem
    if WHAT == "tmem_copy":
        tlx.tmem_copy(a[0], a[1])  # tmem_copy
    if WHAT == "tcgen05_commit":
        tlx.tcgen05_commit(None)  # tcgen05_commit
    if WHAT == "async_dot":
        tlx.async_dot(a[0], a[1])  # async_dot
    if WHAT == "async_dot_scaled":
        tlx.async_dot_scaled(a[0], a[1], None, None, "e4m3", None, "e4m3")  # async_dot_scaled
    if WHAT == "async_dot_wait":
        tlx.async_dot_wait(0, x)  # async_dot_wait
    if WHAT == "two_ctas":
        tlx.async_dot(a[0], a[1], two_ctas=True)  # two_ctas
    if WHAT == "clc_create_context":
        tlx.clc_create_context(1)  # clc_create_context
    if WHAT == "stoch_round":
        tlx.stoch_round(x, tl.float16, line.to(tl.uint32))  # stoch_round
    if WHAT == "alloc_barriers":
        tlx.alloc_barriers(1)  # alloc_barriers
    if WHAT == "async_descriptor_load":
        tlx.async_descriptor_load(d, a[0], [0, 0], None)  # async_descriptor_load
    if WHAT == "async_descriptor_store":
        tlx.async_descriptor_store(d, a[0], [0, 0])  # async_descriptor_store
    if WHAT == "async_descriptor_store_wait":
        tlx.async_descriptor_store_wait(0)  # async_descriptor_store_wait
    if WHAT == "prefetch":
        tlx.prefetch(p)  # prefetch
    if WHAT == "prefetch_tensor":
        tlx.async_descriptor_prefetch_tensor(d, [0, 0])  # prefetch_tensor
    if WHAT == "allocate_tensor_descriptor":
        tlx.allocate_tensor_descriptor(1)  # allocate_tensor_descriptor
    if WHAT == "async_store":
        tlx.async_store(p, a[0], 16)  # async_store
    if WHAT == "bulk":
        tlx.async_load(p, a[0], bulk=True)  # bulk
    if WHAT == "named_barrier_wait":
        tlx.named_barrier_wait(9, 128)  # named_barrier_wait
    if WHAT == "fence":
        tlx.fence("gpu")  # fence
    if WHAT == "fence_async_shared":
        tlx.fence_async_shared()  # fence_async_shared
    if WHAT == "cluster_cta_rank":
        tlx.cluster_cta_rank()  # cluster_cta_rank
    if WHAT == "remote_shmem_store":
        tlx.remote_shmem_store(a[0], tl.load(p + at), 0)  # remote_shmem_store
    if WHAT == "vote_ballot_sync":
        tlx.vote_ballot_sync(0xFFFFFFFF, n > 0)  # vote_ballot_sync
    if WHAT == "clock64":
        tlx.clock64()  # clock64
    if WHAT == "async_tasks":
        with tlx.async_tasks():  # async_tasks
            with tlx.async_task("default"):
                tl.store(q, 1.0)
    if WHAT == "buffer_load":
        tlx.buffer_load(p, line)  # buffer_load
    if WHAT == "buffer_store":
        tlx.buffer_store(x, q, line)  # buffer_store
    if WHAT == "buffer_atomic_add":
        tlx.buffer_atomic_add(q, line, x)  # buffer_atomic_add
    if WHAT == "buffer_load_to_local":
        tlx.buffer_load_to_local(a[0], p, at)  # buffer_load_to_local
    if WHAT == "warp_pipeline_stage":
        for _ in range(n):
            with tlx.warp_pipeline_stage("one"):  # warp_pipeline_stage
                tl.store(q, 1.0)
    if WHAT == "amd_sched_barrier":
        tlx.amd_sched_barrier(0)  # amd_sched_barrier
    if WHAT == "amd_setprio":
        tlx.amd_setprio(1)  # amd_setprio
    if WHAT == "amd_register_resident":
        tlx.amd_register_resident(x, "vgpr")  # amd_register_resident
    if WHAT == "amd_mfma_layout":
        mfma: tl.constexpr = tlx.amd_mfma_layout(3, [32, 32, 8], True, [4, 1])
        tlx.require_layout(tl.load(p + at), mfma)  # amd_mfma_layout
    if WHAT == "amd_scheduled_mfma":
        tlx.amd_scheduled_mfma(x, x, x, "transient")  # amd_scheduled_mfma
    if WHAT == "extract_slice":
        tlx.extract_slice(tl.load(p + at), (32, 64), (0, 0))  # extract_slice
    if WHAT == "warp_predicate":
        tlx.warp_predicate(n > 0, x, None)  # warp_predicate


#: Words, the targets that lack them, and what the way out names.
ELSEWHERE = {
    "tmem": ((*CDNA, HOPPER), "storage_kind.smem"), "tmem_copy": ((*CDNA, HOPPER), "tl.dot"),
    "tcgen05_commit": ((*CDNA, HOPPER), "tl.dot"),
    "async_dot_scaled": ((*CDNA, HOPPER), "tlx.async_dot returns them"),
    "async_dot": (CDNA, "tl.dot"), "async_dot_wait": ((*CDNA, BLACKWELL), "tlx.barrier_wait"),
    "two_ctas": ((*CDNA, HOPPER), ""), "clc_create_context": ((*CDNA, HOPPER), "tl.num_programs"),
    "stoch_round": ((*CDNA, HOPPER), "x.to(dtype)"), "alloc_barriers": (CDNA, "tlx.async_load"),
    "async_descriptor_load": (CDNA, "tlx.async_load"), "async_descriptor_store": (CDNA, "tl.store"),
    "async_descriptor_store_wait": (CDNA, "leave the wait out"),
    "prefetch_tensor": (CDNA, "leave the prefetch out"),
    "allocate_tensor_descriptor": (CDNA, "make_tensor_descriptor(None"),
    "async_store": (CDNA, "tl.store"), "bulk": (CDNA, "leave bulk out"),
    "prefetch": (CDNA, "leave the prefetch out"), "named_barrier_wait": (CDNA, "tl.debug_barrier"),
    "fence": (CDNA, "tl.atomic_add"), "fence_async_shared": (CDNA, "leave the fence out"),
    "cluster_cta_rank": (CDNA, "global memory"), "remote_shmem_store": (CDNA, "global memory"),
    "vote_ballot_sync": (CDNA, "tl.max"), "clock64": (CDNA, "outside"),
    "async_tasks": (CDNA, "one loop for all warps"), "buffer_load": (NVIDIA, "tl.load(base"),
    "buffer_store": (NVIDIA, "tl.store(base"), "buffer_atomic_add": (NVIDIA, "tl.atomic_add(ptr"),
    "buffer_load_to_local": (NVIDIA, "tlx.async_load"),
    "warp_pipeline_stage": (NVIDIA, "tlx.async_tasks"), "amd_sched_barrier": (NVIDIA, "ptxas"),
    "amd_setprio": (NVIDIA, "leave it out"), "amd_register_resident": (NVIDIA, "leave it out"),
    "amd_mfma_layout": (NVIDIA, "leave the layout out"), "amd_scheduled_mfma": (NVIDIA, "tl.dot"),
    "extract_slice": (NVIDIA, "tlx.local_slice"), "warp_predicate": (NVIDIA, "tl.where"),
}  # fmt: skip


@pytest.mark.parametrize("word", ELSEWHERE)
def test_a_word_of_another_target(word: str) -> None:
    targets, way_out = ELSEWHERE[word]
    for target in targets:
        error = refused(errors.UnsupportedByTarget, elsewhere, target, **given(target), WHAT=word)
        assert error.where == f"{line_of(elsewhere, f'# {word}')}, in elsewhere"
        assert target in error.what or "Blackwell's" in error.what
        assert way_out in error.hint


def test_a_word_that_there_is_not() -> None:
    @triton.jit
    def kernel(q):
        tlx.dump_layout(q)  # no such word

    for target in (*CDNA, *NVIDIA):
        error = refused(errors.MissingWord, kernel, target, q="*fp32")
        # Triton 3.7 asks for the name before it compiles.
        assert RELEASE < (3, 8) or line_of(kernel, "# no such word") in error.where


# --- layouts, shapes, types -----------------------------------------------------------------------


@triton.jit
def units(p, q, d, n, WHAT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    x = tl.load(p + at)
    plain: tl.constexpr = tlx.swizzled_shared_layout_encoding(1, 1, 1, [1, 0])
    if WHAT == "wgmma reads":
        a = tlx.local_alloc((64, 64), tl.float16, 2, layout=plain)
        tl.store(q + at, tlx.async_dot_wait(0, tlx.async_dot(a[0], a[1])))  # wgmma reads
    if WHAT == "tcgen05 reads":
        a = tlx.local_alloc((64, 64), tl.float16, 2, layout=plain)
        acc = tlx.local_alloc((64, 64), tl.float32, 1, tlx.storage_kind.tmem)
        tlx.async_dot(a[0], a[1], acc[0], use_acc=False)  # tcgen05 reads
    if WHAT == "TMA fills":
        a = tlx.local_alloc((64, 64), tl.float16, 2, layout=plain)
        bar = tlx.alloc_barriers(1)
        tlx.async_descriptor_load(d, a[0], [0, 0], bar[0])  # TMA fills
    if WHAT == "tensor memory's":
        tmem: tl.constexpr = tlx.tensor_memory_layout_encoding(64, 64, 1, 1, 1)
        tlx.local_alloc((64, 64), tl.float16, 1, layout=tmem)  # tensor memory's
    if WHAT == "wgmma M":
        a = tlx.local_alloc((32, 64), tl.float16, 1)
        b = tlx.local_alloc((64, 64), tl.float16, 1)
        tlx.async_dot(a[0], b[0])  # wgmma M
    if WHAT == "tcgen05 M":
        a = tlx.local_alloc((256, 64), tl.float16, 1)
        b = tlx.local_alloc((64, 64), tl.float16, 1)
        acc = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
        tlx.async_dot(a[0], b[0], acc[0])  # tcgen05 M
    if WHAT == "fp64":
        a = tlx.local_alloc((64, 64), tl.float64, 1)
        tlx.async_dot(a[0], a[0])  # fp64
    if WHAT == "copied rows":
        a = tlx.local_alloc((64, 64), tl.float32, 1)
        acc = tlx.local_alloc((64, 64), tl.float32, 1, tlx.storage_kind.tmem)
        tlx.tmem_copy(a[0], acc[0])  # copied rows
    if WHAT == "copied type":
        a = tlx.local_alloc((128, 64), tl.float16, 1)
        half = tlx.local_alloc((128, 64), tl.float16, 1, tlx.storage_kind.tmem)
        tlx.tmem_copy(a[0], half[0])  # copied type
    if WHAT == "copied columns":
        a = tlx.local_alloc((128, 4), tl.float32, 1)
        few = tlx.local_alloc((128, 4), tl.float32, 1, tlx.storage_kind.tmem)
        tlx.tmem_copy(a[0], few[0])  # copied columns
    if WHAT == "MFMA of 17":
        odd: tl.constexpr = tlx.amd_mfma_layout(3, [17, 17, 3], True, [4, 1])
        u = tlx.require_layout(x, tlx.dot_operand_layout(0, odd, 4))
        v = tlx.require_layout(x, tlx.dot_operand_layout(1, odd, 4))
        tl.store(q + at, tl.dot(u, v, tlx.zeros((64, 64), tl.float32, odd)))  # MFMA of 17
    if WHAT == "MFMA of gfx950":
        late: tl.constexpr = tlx.amd_mfma_layout(4, [32, 32, 16], True, [4, 1])
        u = tlx.require_layout(x, tlx.dot_operand_layout(0, late, 8))
        v = tlx.require_layout(x, tlx.dot_operand_layout(1, late, 8))
        tl.store(q + at, tl.dot(u, v, tlx.zeros((64, 64), tl.float32, late)))  # MFMA of gfx950
    if WHAT == "B as A":
        good: tl.constexpr = tlx.amd_mfma_layout(3, [32, 32, 8], True, [4, 1])
        u = tlx.require_layout(x, tlx.dot_operand_layout(0, good, 4))
        tl.store(q + at, tl.dot(u, u, tlx.zeros((64, 64), tl.float32, good)))  # B as A
    if WHAT == "warps":
        many: tl.constexpr = tlx.amd_mfma_layout(3, [32, 32, 8], True, [4, 4])
        tlx.require_layout(x, many)  # warps
    if WHAT == "k_width":
        good: tl.constexpr = tlx.amd_mfma_layout(3, [32, 32, 8], True, [4, 1])
        tlx.dot_operand_layout(0, good, 3)  # k_width
    if WHAT == "version":
        tlx.amd_mfma_layout(9, [32, 32, 8], True, [4, 1])  # version
    if WHAT == "no warps":
        tlx.amd_mfma_layout(3, [32, 32, 8], True, [-4, -1])  # no warps
    if WHAT == "dimension":
        good: tl.constexpr = tlx.amd_mfma_layout(3, [32, 32, 8], True, [4, 1])
        tlx.require_layout(tl.arange(0, 64), tlx.slice_layout(good, 5))  # dimension
    if WHAT == "rank":
        good: tl.constexpr = tlx.amd_mfma_layout(3, [32, 32, 8], True, [4, 1])
        tlx.require_layout(x, tlx.slice_layout(good, 0))  # rank
    if WHAT == "modes":
        tlx.layout((64, 64), (64, 1))  # modes
    if WHAT == "padding":
        tlx.padded_shared_layout_encoding.with_identity_for([(48, 8)], [64, 64], [1, 0])  # padding
    if WHAT == "arguments":
        tlx.swizzled_shared_layout_encoding(1)  # arguments
    if WHAT == "cache":
        a = tlx.local_alloc((64, 64), tl.float16, 1)
        tlx.async_load(p + at, a[0], cache_modifier=".zz")  # cache
    if WHAT == "range":
        tl.store(q + tlx.rematerialized_range(0, 3, 0), 1.0)  # range


UNITS: list[tuple[str, tuple[str, ...], Any, str]] = [
    ("wgmma reads", (HOPPER,), errors.ConflictingLayouts, "leave layout out"),
    ("tcgen05 reads", (BLACKWELL,), errors.ConflictingLayouts, "leave layout out"),
    ("TMA fills", NVIDIA, errors.ConflictingLayouts, "leave layout out"),
    ("tensor memory's", (*CDNA, *NVIDIA), errors.UnsupportedByTarget, "leave layout out"),
    ("wgmma M", (HOPPER,), errors.WrongShape, "tl.dot"),
    ("tcgen05 M", (BLACKWELL,), errors.WrongShape, "acc is (M, N)"),
    ("fp64", (HOPPER,), errors.WrongDtype, "one of fp16"),
    ("copied rows", (BLACKWELL,), errors.WrongShape, "tlx.local_store"),
    ("copied type", (BLACKWELL,), errors.WrongDtype, "tlx.local_reinterpret"),
    ("copied columns", (BLACKWELL,), errors.WrongShape, "tlx.local_store"),
    ("MFMA of 17", CDNA, errors.UnsupportedByTarget, "32x32x8"),
    ("MFMA of gfx950", CDNA[:1], errors.UnsupportedByTarget, "version=3 with one of"),
    ("B as A", CDNA, errors.ConflictingLayouts, "dot_operand_layout(1"),
    ("warps", CDNA, errors.WrongShape, "num_warps"),
    ("k_width", CDNA, errors.WrongShape, "power of two"),
    ("version", CDNA, errors.UnsupportedByTarget, "3 is of gfx942"),
    ("no warps", CDNA, errors.WrongShape, "above 0"),
    ("dimension", CDNA, errors.WrongShape, "counted from 0"),
    ("rank", CDNA, errors.WrongShape, "slice_layout"),
    ("modes", (*CDNA, *NVIDIA), errors.WrongShape, "shape=((32, 4), (8,))"),
    ("padding", (*CDNA, *NVIDIA), errors.WrongShape, "powers of two"),
    ("arguments", (*CDNA, *NVIDIA), errors.WrongType, "vectorSize"),
    ("cache", (*CDNA, *NVIDIA), errors.WrongType, "leave cache_modifier out"),
    ("range", CDNA, errors.WrongShape, "power of two"),
]


@pytest.mark.parametrize(("what", "targets", "kind", "way_out"), UNITS, ids=[u[0] for u in UNITS])
def test_what_a_unit_lacks(what: str, targets: tuple[str, ...], kind: Any, way_out: str) -> None:
    for target in targets:
        needs_3_8(target)
        error = refused(kind, units, target, **given(target), WHAT=what)
        assert line_of(units, f"# {what}") in error.where
        assert way_out in error.hint


def test_copies_of_16_bits_read_as_32() -> None:
    """What the error says."""

    @triton.jit
    def kernel(p):
        at = tl.arange(0, 128)[:, None] * 64 + tl.arange(0, 64)[None, :]
        a = tlx.local_alloc((128, 64), tl.float16, 1)
        t = tlx.local_alloc((128, 64), tl.float16, 1, tlx.storage_kind.tmem)
        tlx.local_store(a[0], tl.load(p + at))
        wide = tlx.local_reinterpret(a[0], tl.float32, [128, 32])
        tlx.tmem_copy(wide, tlx.local_reinterpret(t[0], tl.float32, [128, 32]))
        tl.store(p + at, tlx.local_load(t[0]))

    if RELEASE < (3, 8):
        pytest.skip("from Triton 3.8 on")
    assert "tcgen05.cp" in build(kernel, BLACKWELL, p="*fp16").asm["ptx"]


# --- memory ---------------------------------------------------------------------------------------


@triton.jit
def memory(p, WHAT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    if WHAT == "shared":
        wide = tlx.local_alloc((256, 256), tl.float16, 8)  # shared
        tlx.local_store(tlx.local_slice(wide[0], [0, 0], [64, 64]), tl.load(p + at))
        tl.store(p + at, tlx.local_load(tlx.local_slice(wide[1], [0, 0], [64, 64])))
    if WHAT == "columns":
        sums = tlx.local_alloc((128, 256), tl.float32, 2, tlx.storage_kind.tmem)  # columns
        more = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem)
        tlx.local_store(more[0], tlx.local_load(tlx.subslice(sums[0], 0, 64)))
    if WHAT == "spec":
        spec = tlx.storage_alias_spec(tlx.storage_kind.smem, 1024)
        tlx.local_alloc((64, 64), tl.float16, 1, reuse=spec)  # spec
    if WHAT == "reused":
        small = tlx.local_alloc((64, 64), tl.float16, 1)
        tlx.local_alloc((64, 64), tl.float32, 1, reuse=small)  # reused
    if WHAT == "rows":
        low = tlx.local_alloc((64, 64), tl.float32, 2, tlx.storage_kind.tmem)
        high = tlx.local_alloc((128, 64), tl.float32, 1, tlx.storage_kind.tmem, reuse=low)
        tlx.local_store(low[0], tl.zeros((64, 64), tl.float32))
        tlx.local_store(high[0], tl.zeros((128, 64), tl.float32))


@pytest.mark.parametrize(("target", "has"), [
    (CDNA[0], "65,536"), (CDNA[1], "163,840"), (HOPPER, "232,448"), (BLACKWELL, "232,448"),
])  # fmt: skip
def test_shared_memory_over_budget(target: str, has: str) -> None:
    error = refused(errors.OutOfSharedMemory, memory, target, p="*fp16", WHAT="shared")
    assert f"needs 1,048,576 bytes of shared memory, {target} has {has}" in error.what
    assert line_of(memory, "# shared") in error.where
    for what in ("spec", "reused"):
        error = refused(errors.StorageTooSmall, memory, target, p="*fp16", WHAT=what)
        assert line_of(memory, f"# {what}") in error.where


def test_tensor_memory_over_budget() -> None:
    error = refused(TlxOutOfTensorMemory, memory, BLACKWELL, p="*fp16", WHAT="columns")
    assert "576 columns" in error.what
    assert "512 columns  2x128x256xf32  sums" in error.what
    assert line_of(memory, "# columns") in error.where


def test_fewer_rows_below_more_are_no_mistake() -> None:
    """The memory that two allocations share has the rows of both."""
    assert build(memory, BLACKWELL, p="*fp16", WHAT="rows").metadata.tmem_size == 128


# --- copies straight to LDS -----------------------------------------------------------------------


@triton.jit
def to_lds(p, q, STEP: tl.constexpr, SWIZZLED: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    layout: tl.constexpr = (
        tlx.swizzled_shared_layout_encoding(8, 1, 8, [1, 0]) if SWIZZLED else None
    )
    a = tlx.local_alloc((64, 64), tl.float16, 1, layout=layout)
    tlx.buffer_load_to_local(a[0], p, at * STEP)  # to LDS
    tlx.async_load_commit_group()
    tlx.async_load_wait_group(0)
    tl.store(q + at, tlx.local_load(a[0]))


@pytest.mark.parametrize(("target", "step", "known", "way_out"), [
    ("hip:gfx942", 1, 16, "use tlx.async_load"), ("hip:gfx942", 3, 2, "say what is known"),
    ("hip:gfx950", 3, 2, "say what is known"),
])  # fmt: skip
def test_a_width_that_the_target_lacks(target: str, step: int, known: int, way_out: str) -> None:
    needs_3_8(target)
    error = refused(
        errors.UnsupportedByTarget, to_lds, target, p="*fp16", q="*fp16", STEP=step, SWIZZLED=False
    )
    assert f"a lane would copy {known} bytes" in error.what
    assert f"{target} copies 4{' or 16' * (target == CDNA[1])} straight" in error.what
    assert error.where == line_of(to_lds, "# to LDS")
    assert error.hint.startswith(way_out)


def test_a_swizzle_is_no_mistake() -> None:
    """Lanes exchange addresses, as for ``async_load``."""
    needs_3_8("hip:gfx950")
    code = build(to_lds, "hip:gfx950", p="*fp16", q="*fp16", STEP=1, SWIZZLED=True).asm["amdgcn"]
    assert "ds_bpermute" in code
    assert code.count("offen lds") == 2


# --- clusters -------------------------------------------------------------------------------------


@triton.jit
def clustered(d, p, WHAT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    a = tlx.local_alloc((64, 64), tl.float16, 2)
    bar = tlx.alloc_barriers(1)
    if WHAT == "pair":
        acc = tlx.local_alloc((64, 128), tl.float32, 1, tlx.storage_kind.tmem)
        tlx.async_dot(a[0], a[1], acc[0], mBarriers=[bar[0]], two_ctas=True)  # pair
    if WHAT == "commit":
        tlx.tcgen05_commit(bar[0], two_ctas=True)  # commit
    if WHAT == "copy":
        tlx.async_descriptor_load(d, a[0], [0, 0], bar[0], two_ctas=True)  # copy
    if WHAT == "arrival":
        tlx.barrier_arrive(bar[0], 1, 2)  # arrival
    if WHAT == "view":
        tlx.barrier_arrive(tlx.remote_view(bar[0], 2))  # view
    if WHAT == "store":
        tlx.remote_shmem_store(a[0], tl.load(p + at), 2)  # store
    if WHAT == "multicast":
        tlx.async_descriptor_load(d, a[0], [0, 0], bar[0], multicast_targets=(0, 2))  # multicast


@pytest.mark.parametrize("what", ["pair", "commit", "copy"])
@pytest.mark.parametrize("size", [None, (1, 2, 1)])
def test_two_ctas_without_a_cluster_of_them(what: str, size: Any) -> None:
    with remora.use(tlx.in_clusters(size)) if size else nullcontext():
        error = refused(
            errors.UnsupportedByTarget, clustered, BLACKWELL, d="tensordesc<fp16[64,64]>",
            p="*fp16", WHAT=what,
        )  # fmt: skip
    assert f"clusters are {size or (1, 1, 1)} here" in error.what
    assert "ctas_per_cga=(2, 1, 1)" in error.hint
    assert line_of(clustered, f"# {what}") in error.where


@pytest.mark.parametrize("what", ["arrival", "view", "store", "multicast"])
@pytest.mark.parametrize("target", NVIDIA)
def test_a_cta_that_the_cluster_lacks(target: str, what: str) -> None:
    kinds = {"d": "tensordesc<fp16[64,64]>", "p": "*fp16", "WHAT": what}
    with remora.use(tlx.in_clusters((2, 1, 1))):
        error = refused(errors.WrongShape, clustered, target, **kinds)
    assert "clusters are (2, 1, 1) here" in error.what
    assert line_of(clustered, f"# {what}") in error.where
    with remora.use(tlx.in_clusters((4, 1, 1))):
        assert build(clustered, target, **kinds).asm["cubin"]
