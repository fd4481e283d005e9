"""Clusters: where elements go, what the PTX holds, what is refused."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from compiling import context_for
from tlx.building import build, line_of
from triton.experimental.gluon import language as gl
from xdsl.ir import Block
from xdsl.rewriter import InsertPoint

import remora
import remora.tlx as tlx
from remora import errors
from remora.host import features
from remora.ir.build import Builder, inherent, op_name
from remora.tlx.lower.clusters import Pieces
from remora.tlx.lower.layouts import LinearShared, NvmmaShared, SharedLayout, SwizzledShared
from remora.tlx.lower.offsets import byte_offsets, contiguous, coordinates_of

# --- where an element lies: Triton's own linear layouts are the oracle ---------------------------


def linear(layout: Any, shape: tuple[int, ...]) -> Any:
    """Triton's linear layout of one of Gluon's layouts."""
    from triton._C.libtriton import gluon_ir

    context = context_for("cuda:90")  # outlives the builder
    builder = gluon_ir.GluonOpBuilder(context)
    return builder.to_linear_layout(layout._to_ir(builder), list(shape))


def stock_offsets(layout: SharedLayout, shape: tuple[int, ...], bits: int) -> np.ndarray:
    """The byte offset of each element, by Triton."""
    if isinstance(layout, LinearShared):
        stock: Any = SimpleNamespace(offset_bases=layout.offsets)
    elif isinstance(layout, NvmmaShared):
        stock = gl.NVMMASharedLayout(layout.swizzling, bits, len(shape), layout.transposed)
    else:
        stock = gl.SwizzledSharedLayout(
            layout.vec, layout.per_phase, layout.max_phase, list(layout.order)
        )
    offsets = np.zeros(shape, int)
    if not isinstance(layout, LinearShared):
        stock = linear(stock, shape)
    bases = stock.offset_bases
    for offset in range(1 << len(bases)):
        place = np.zeros(len(shape), int)
        for bit, base in enumerate(bases):
            if offset >> bit & 1:
                place ^= base
        paddings = layout.paddings if isinstance(layout, LinearShared) else ()
        padding = sum(offset // interval * more for interval, more in paddings)
        offsets[tuple(place)] = (offset + padding) * bits // 8
    return offsets


def evaluate(block: Block, shape: tuple[int, ...]) -> np.ndarray:
    """What the block's last operation gives, on NumPy arrays."""
    known: dict[Any, Any] = {}
    functions = {
        "arith.addi": np.add, "arith.muli": np.multiply, "arith.xori": np.bitwise_xor,
        "arith.shrui": np.right_shift, "arith.andi": np.bitwise_and,
        "arith.divui": np.floor_divide, "arith.remui": np.remainder,
    }  # fmt: skip
    for op in block.ops:
        operands = [known[v] for v in op.operands]
        name = op_name(op)
        if name == "tt.make_range":
            value = np.arange(inherent(op, "start").value.data, inherent(op, "end").value.data)
        elif name == "tt.expand_dims":
            value = np.expand_dims(operands[0], inherent(op, "axis").value.data)
        elif name == "tt.broadcast":
            value = np.broadcast_to(operands[0], shape)
        elif name == "arith.constant":
            value = np.full(shape, next(iter(inherent(op, "value").iter_values())))
        else:
            value = functions[name](*operands)
        assert value.shape == tuple(op.results[0].type.get_shape())  # type: ignore[attr-defined]
        known[op.results[0]] = value
    return value


LAYOUTS: list[tuple[SharedLayout, tuple[int, ...], int]] = [
    (SwizzledShared.plain((0,)), (64,), 16),
    (SwizzledShared.plain((1, 0)), (8, 32), 32),
    (SwizzledShared.plain((0, 1)), (8, 32), 64),
    (SwizzledShared.plain((2, 1, 0)), (2, 4, 8), 32),
    (SwizzledShared.plain((1, 2, 0)), (4, 2, 8), 8),
    (SwizzledShared(8, 2, 4, (1, 0)), (32, 32), 16),
    (SwizzledShared(4, 1, 4, (2, 1, 0)), (2, 2, 16), 32),
    (SwizzledShared(8, 1, 8, (0, 1)), (64, 16), 16),
    (SwizzledShared(4, 1, 8, (1, 0)), (16, 64), 32),
    (LinearShared(((0, 1), (0, 2), (0, 4), (1, 1), (2, 2), (0, 8), (4, 4))), (8, 16), 16),
    (LinearShared(((1, 0), (0, 1), (2, 1), (0, 2), (4, 3))), (8, 4), 32),
    (LinearShared(((0, 1), (0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((8, 4),)), (8, 8), 32),
    (LinearShared(((0, 1), (0, 2), (0, 4), (1, 0), (2, 0)), ((8, 8), (16, 8))), (4, 8), 16),
    (NvmmaShared(128, False, 16, 3), (2, 8, 128), 16),
    (NvmmaShared(32, False, 32, 3), (4, 4, 16), 32),
    (NvmmaShared(0, False, 8, 3), (2, 2, 16), 8),
    (NvmmaShared(0, False, 16, 1), (64,), 16),
    (NvmmaShared(64, False, 8, 4), (2, 2, 8, 64), 8),
    *(
        (NvmmaShared(swizzling, transposed, bits), shape, bits)
        for swizzling in (0, 32, 64, 128)
        for transposed in (False, True)
        for bits in (8, 16, 32)
        for shape in ((64, 128), (128, 64), (8, 256), (256, 16))
        if shape[0 if transposed else 1] * bits // 8 >= max(swizzling, 16)
        and shape[1 if transposed else 0] >= 8
    ),
]


@pytest.mark.parametrize(("layout", "shape", "bits"), LAYOUTS, ids=str)
def test_offsets(layout: SharedLayout, shape: tuple[int, ...], bits: int) -> None:
    """Each element's place is Triton's, and a piece lies in one run, aligned to its size."""
    block = Block()
    builder = Builder(InsertPoint.at_end(block), None)
    pieces = Pieces.of(shape, layout.order, contiguous(layout, bits), 4)
    coordinates = coordinates_of(builder, shape, pieces.layout)
    transposed = isinstance(layout, NvmmaShared) and layout.transposed and not layout.swizzling
    if transposed and not features().transposes_unswizzled:
        with pytest.raises(errors.UnsupportedByTarget, match="lays it out by rows"):
            byte_offsets(builder, coordinates, shape, layout, bits)
        return
    byte_offsets(builder, coordinates, shape, layout, bits)
    found = evaluate(block, shape)
    assert (found == stock_offsets(layout, shape, bits)).all()
    size = pieces.elements * bits // 8
    runs = np.moveaxis(found, layout.order[0], -1).reshape(-1, pieces.elements)
    assert (np.diff(runs, axis=1) == bits // 8).all()
    assert not (runs[:, 0] % size).any()


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize(("shape", "order", "most"), [
    ((1,), (0,), 8), ((8,), (0,), 8), ((64,), (0,), 4), ((4096,), (0,), 8),
    ((1, 1), (1, 0), 8), ((64, 64), (1, 0), 8), ((64, 64), (0, 1), 8), ((2, 8), (1, 0), 4),
    ((128, 2), (1, 0), 4), ((4, 2, 8), (2, 1, 0), 4), ((64, 16), (1, 0), 16),
])  # fmt: skip
def test_pieces(shape: Any, order: Any, most: int, num_warps: int) -> None:
    """The lanes and warps that are said to hold pieces hold each element once."""
    pieces = Pieces.of(shape, order, most, num_warps)
    numbers = re.findall(r"= \[([\d, ]+)\]", pieces.layout)
    size, lanes, warps, order_ = ([int(n) for n in text.split(",")] for text in numbers)
    layout = linear(gl.BlockedLayout(size, lanes, warps, order_), shape)
    bases = [*layout.reg_bases]
    for workers, used in ((layout.lane_bases, pieces.lanes), (layout.warp_bases, pieces.warps)):
        bases += workers[: used.bit_length() - 1]
        assert not np.any(workers[used.bit_length() - 1 :])
    assert len(bases) == int(np.prod(shape)).bit_length() - 1
    assert all(np.any(base) for base in bases)


# --- code ----------------------------------------------------------------------------------------


@triton.jit
def exchange(x, y, B: tl.constexpr, META: tl.constexpr):
    rank = tlx.cluster_cta_rank()
    buffer = tlx.local_view(tlx.local_alloc((B, B), tlx.dtype_of(x), 2), 1)
    at = (tl.program_id(0) * B + tl.arange(0, B)[:, None]) * B + tl.arange(0, B)[None, :]
    if META == "size":
        rank = (rank + 1) % tlx.cluster_size_1d()
    elif META == "constant":
        rank = 1
    else:
        rank = rank ^ 1
    tlx.remote_shmem_store(buffer, tl.load(x + at), rank)
    tlx.cluster_barrier()
    tl.store(y + at, tlx.local_load(buffer))


def exchanged(what: str = "", block: int = 32, dtype: str = "fp16") -> str:
    with remora.use(tlx.in_clusters((2, 1, 1))):
        pointers = {"x": f"*{dtype}", "y": f"*{dtype}"}
        ptx: str = build(exchange, "cuda:90", B=block, META=what, **pointers).asm["ptx"]
    return ptx


ORDER = (
    r"barrier\.cluster\.\w+(?:\.\w+)*|mapa\.\S+|st\.shared::cluster\S+|ld\.shared\S*|ld\.global"
    r"|st\.global|^\s*ret"
)


def in_order(ptx: str) -> list[str]:
    found = [f.strip() for f in re.findall(ORDER, ptx, re.MULTILINE)]
    return [f for i, f in enumerate(found) if i == 0 or f != found[i - 1]]


MEET = ["barrier.cluster.arrive.aligned", "barrier.cluster.wait.aligned"]


def test_a_remote_store() -> None:
    assert [i for i in in_order(exchanged()) if not i.startswith("ld.shared")] == [
        "barrier.cluster.arrive.relaxed.aligned", MEET[1],  # the other CTA has begun
        "ld.global", "mapa.shared::cluster.u32", "st.shared::cluster.v4.b32",
        *MEET,  # the author's
        "st.global",
        "barrier.cluster.arrive", "barrier.cluster.wait", "ret",  # the other CTA is done
    ]  # fmt: skip


@pytest.mark.parametrize(("dtype", "block", "store"), [
    ("fp16", 1, "b16"), ("fp16", 2, "b32"), ("fp16", 4, "v2.b32"), ("bf16", 8, "v4.b32"),
    ("i8", 1, "b8"), ("i8", 2, "b16"), ("i8", 4, "b32"), ("fp8e5", 16, "v4.b32"),
    ("fp32", 1, "b32"), ("fp32", 2, "v2.b32"), ("i64", 1, "b64"), ("fp64", 64, "v2.b64"),
])  # fmt: skip
def test_the_widest_store(dtype: str, block: int, store: str) -> None:
    assert set(re.findall(r"st\.shared::cluster\.(\S+)", exchanged("", block, dtype))) == {store}


def test_rank_and_size() -> None:
    ptx = exchanged("size")
    assert "%cluster_ctarank" in ptx
    assert "%cluster_nctarank" in ptx
    assert re.search(r"mapa\.shared::cluster\.u32 %r\d+, %r\d+, %r\d+;", exchanged("constant"))


def test_nothing_for_a_kernel_that_stays_at_home() -> None:
    @triton.jit
    def rank(x):
        tl.store(x + tl.program_id(0), tlx.cluster_cta_rank())

    with remora.use(tlx.in_clusters((2, 1, 1))):
        ptx = build(rank, "cuda:90", x="*i32").asm["ptx"]
    assert "%cluster_ctarank" in ptx
    assert "barrier.cluster" not in ptx


# --- barriers of other CTAs ----------------------------------------------------------------------


@triton.jit
def signal(x, y, B: tl.constexpr, WARP: tl.constexpr, COUNT: tl.constexpr, HOW: tl.constexpr):
    other = tlx.cluster_cta_rank() ^ 1
    full = tlx.alloc_barriers(1)
    if WARP:
        bars = tlx.alloc_warp_barrier(2, 4, COUNT)
    else:
        bars = tlx.alloc_barriers(2, COUNT)
    buffer = tlx.local_view(tlx.local_alloc((B,), tlx.dtype_of(x), 1), 0)
    at = tl.program_id(0) * B + tl.arange(0, B)
    tlx.barrier_expect_bytes(full[0], B * tlx.dtype_of(x).primitive_bitwidth // 8)
    tlx.async_remote_shmem_store(buffer, tl.load(x + at), other, full[0])
    tlx.barrier_wait(full[0], 0)
    if HOW == "view":
        tlx.barrier_arrive(tlx.remote_view(bars[1], other), COUNT if not WARP else 1)
    elif HOW == "own":
        tlx.barrier_arrive(bars[1], COUNT if not WARP else 1)
    else:
        tlx.barrier_arrive(bars[1], COUNT if not WARP else 1, remote_cta_rank=other)
    tlx.barrier_wait(bars[1], 0)
    tl.store(y + at, tlx.local_load(buffer))


@triton.jit
def handed_over(x, STORES: tl.constexpr):
    """A tensor in the other CTA's buffer, or nothing, and word of it."""
    at = tl.arange(0, 128)
    buffer = tlx.local_alloc((128,), tl.float32, 1)[0]
    bar = tlx.alloc_barriers(1)[0]
    other = tlx.cluster_cta_rank() ^ 1
    if STORES:
        tlx.remote_shmem_store(buffer, tl.load(x + at), other)
    tlx.barrier_arrive(bar, 1, other)
    tlx.barrier_wait(bar, 0)
    tl.store(x + at, tlx.local_load(buffer))


def signalled(block: int = 256, dtype: str = "fp32", **given: Any) -> str:
    with remora.use(tlx.in_clusters((2, 1, 1))):
        arguments = {"WARP": False, "COUNT": 1, "HOW": "rank", **given}
        pointers = {"x": f"*{dtype}", "y": f"*{dtype}"}
        ptx: str = build(signal, "cuda:90", B=block, **pointers, **arguments).asm["ptx"]
    return ptx


def test_an_arrival_at_another_ctas_barrier() -> None:
    """One thread, after all of the program; initialised barriers are shown to the cluster."""
    ptx = signalled(COUNT=3)
    arrive = r"@%first mbarrier\.arrive\.shared::cluster\.b64 _, \[%r\d+\], 3;"
    assert len(re.findall(arrive, ptx)) == 1
    assert re.search(r"bar\.sync\s+0;(?:(?!bar\.sync).)*" + arrive, ptx, re.DOTALL)
    order = [ptx.rindex("mbarrier.init"), ptx.index("fence.mbarrier_init.release.cluster"),
             ptx.index("barrier.cluster.arrive.relaxed.aligned"), ptx.index("mapa.")]  # fmt: skip
    assert order == sorted(order)
    assert signalled(COUNT=3, HOW="view").count("@%first mbarrier.arrive") == 1


@pytest.mark.parametrize("stores", [False, True])
def test_what_an_arrival_orders(stores: bool) -> None:
    """The cluster's memory where the kernel stores into it, at the cost of a wait for all."""
    with remora.use(tlx.in_clusters((2, 1, 1))):
        ptx = build(handed_over, "cuda:90", x="*fp32", STORES=stores).asm["ptx"]
    assert ("mbarrier.arrive.release.cluster" in ptx) == stores
    assert ("mbarrier.arrive.shared::cluster" in ptx) != stores


def test_every_thread_arrives_at_a_warp_barrier() -> None:
    ptx = signalled(WARP=True)
    (guard,) = re.findall(r"(\S*)\s+mbarrier\.arrive\.shared::cluster\.b64 _, \[%r\d+\], 1;", ptx)
    assert not guard.startswith("@")


@pytest.mark.parametrize(("dtype", "block", "store", "guarded"), [
    ("fp32", 256, "v4.b32", True), ("fp32", 512, "v4.b32", False), ("fp32", 4, "v4.b32", True),
    ("fp16", 2, "b32", True),
    ("fp16", 1024, "v4.b32", False), ("i8", 64, "v4.b32", True), ("fp64", 256, "v2.b64", False),
    ("fp64", 1, "b64", True),
])  # fmt: skip
def test_asynchronous_stores(dtype: str, block: int, store: str, guarded: bool) -> None:
    """Each element once: threads with copies do not store."""
    found = re.findall(
        r"(@%p\d+ )?st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes\.(\S+)",
        signalled(block, dtype, HOW="own"),
    )
    assert found
    assert {(bool(guard), kind) for guard, kind in found} == {(guarded, store)}


@triton.jit
def tasks(x, y, n, B: tl.constexpr, MEET: tl.constexpr):
    other = tlx.cluster_cta_rank() ^ 1
    full = tlx.alloc_barriers(2, 1)
    empty = tlx.alloc_barriers(2, 1)
    buffers = tlx.local_alloc((B,), tlx.dtype_of(x), 2)
    if MEET:
        tlx.cluster_barrier()  # meet
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in range(n):
                tlx.barrier_wait(full[i % 2], (i // 2) & 1)
                value = tlx.local_load(buffers[i % 2])
                tlx.barrier_arrive(empty[i % 2], 1, other)
                tl.store(y + (tl.program_id(0) * n + i) * B + tl.arange(0, B), value)
        with tlx.async_task(num_warps=2):
            for i in range(n):
                tlx.barrier_wait(empty[i % 2], ((i // 2) & 1) ^ 1)
                value = tl.load(x + (tl.program_id(0) * n + i) * B + tl.arange(0, B))
                tlx.remote_shmem_store(buffers[i % 2], value, other)
                tlx.barrier_arrive(full[i % 2], 1, other)


def test_tasks_meet_too() -> None:
    """Warps of tasks meet those of the program, which come after initialising barriers."""
    with remora.use(tlx.in_clusters((2, 1, 1))):
        ptx = build(tasks, "cuda:90", x="*fp32", y="*fp32", n="i32", B=256, MEET=False).asm["ptx"]
    assert re.search(r"setp\.ge\.u32 %task, %thread, 128;", ptx)
    places = [ptx.index(text) for text in (
        "mbarrier.init", "fence.mbarrier_init.release.cluster;",
        "barrier.cluster.arrive.relaxed.aligned;", "barrier.cluster.wait.aligned;",
    )]  # fmt: skip
    assert places == sorted(places)
    # Once, before they are handed work, and after they gave up registers, for which the
    # program's own warps wait before they come (on an H200 they waited for ever).
    assert re.search(
        r"@%task barrier\.cluster\.arrive\.relaxed;\s+@%task barrier\.cluster\.wait;\s+"
        r"setp\.ne\.u32 %task, 0, 0;\s+barrier\.sync\s+1;\s",
        ptx,
    )
    head = ptx[: ptx.index("@%task barrier.cluster.arrive")].rpartition("$L__BB")[2]
    assert "setmaxnreg" not in ptx or "setmaxnreg.dec" in head
    ends = re.findall(r"\S*\s+\S*\s+ret;", ptx)
    assert len(ends) == len(re.findall(r"barrier\.cluster\.wait;\s+ret;", ptx)) > 0
    assert set(re.findall(r"st\.shared::cluster\.(\S+)", ptx)) == {"v4.b32"}


def test_tasks_come_to_the_meetings_before_them() -> None:
    ptx = build(tasks, "cuda:90", x="*fp32", y="*fp32", n="i32", B=256, MEET=True).asm["ptx"]
    # The kernel's own meeting after its barriers, and the author's: twice for a task's warps.
    assert ptx.count("@%task barrier.cluster.arrive.relaxed;") == 2
    assert ptx.count("@%task barrier.cluster.wait;") == 2
    assert ptx.count("barrier.cluster.arrive.relaxed.aligned;") == 1
    assert ptx.count("barrier.cluster.arrive.aligned;") == 1


@triton.jit
def meetings(y, FIRST: tl.constexpr, SECOND: tl.constexpr, WARPS: tl.constexpr):
    bars = tlx.alloc_barriers(1)
    tlx.fence_mbarrier_init_cluster()
    with tlx.async_tasks():
        with tlx.async_task("default"):
            if FIRST:
                tlx.cluster_barrier()  # first
            tlx.barrier_arrive(bars[0], 1, tlx.cluster_cta_rank() ^ 1)
        with tlx.async_task(num_warps=WARPS):
            if SECOND:
                tlx.cluster_barrier()  # second
            tlx.barrier_wait(bars[0], 0)
            tl.store(y + tl.arange(0, 32), 1)


def test_tasks_meet_themselves() -> None:
    ptx = build(meetings, "cuda:90", y="*i32", FIRST=True, SECOND=True, WARPS=4).asm["ptx"]
    assert ptx.count("@%task barrier.cluster.arrive.relaxed;") == 1
    assert ptx.count("barrier.cluster.arrive.relaxed.aligned;") == 1
    assert ptx.count("barrier.cluster.arrive.aligned;") == 2
    assert ptx.count("fence.mbarrier_init.release.cluster;") == 2


@pytest.mark.parametrize(("first", "second", "warps", "line"), [
    (True, False, 4, "# first"), (False, True, 4, "# second"), (True, True, 2, "# first"),
])  # fmt: skip
def test_meetings_that_warps_would_not_come_to(first, second, warps, line) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        build(meetings, "cuda:90", y="*i32", FIRST=first, SECOND=second, WARPS=warps)
    error = errors.UnsupportedByTarget.of(caught.value)
    assert error is not None
    assert error.where.startswith(line_of(meetings, line))


@triton.jit
def copied_over(x, y, B: tl.constexpr, WHAT: tl.constexpr):
    buffers = tlx.local_alloc((B,), tl.float32, 2)
    bars = tlx.alloc_barriers(1)
    at = tl.arange(0, B)
    other = tlx.cluster_cta_rank() ^ 1
    tlx.barrier_expect_bytes(bars[0], B * 4)
    tlx.local_store(buffers[0], tl.load(x + tl.program_id(0) * B + at))
    tlx.fence_async_shared()
    source = buffers[0]
    if WHAT == "a part":
        source = tlx.local_slice(source, [0], [B // 2])
    tlx.async_remote_shmem_copy(buffers[1], source, other, bars[0])  # copy
    tlx.barrier_wait(bars[0], 0)
    tl.store(y + tl.program_id(0) * B + at, tlx.local_load(buffers[1]))


def test_a_copy_into_another_cta() -> None:
    ptx = build(copied_over, "cuda:90", x="*fp32", y="*fp32", B=256, WHAT="").asm["ptx"]
    copy = "@once cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    assert ptx.count(copy) == 1
    assert ptx.count("mapa.shared::cluster") == 2
    before = ptx[: ptx.index(copy)]
    assert before.rindex("st.shared") < before.rindex("bar.sync")
    assert "fence.proxy.async" in before
    # Both CTAs have initialised their barriers, and stay until the copies have come.
    assert before.index("mbarrier.init") < before.index("barrier.cluster.wait.aligned")
    assert re.search(r"barrier\.cluster\.wait;\s+ret;", ptx)


@pytest.mark.parametrize(("size", "what"), [(256, "a part"), (2, "")])
def test_a_copy_that_cannot_be(size: int, what: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        build(copied_over, "cuda:90", x="*fp32", y="*fp32", B=size, WHAT=what)
    error = errors.WrongShape.of(caught.value)
    assert error is not None
    assert error.where.startswith(line_of(copied_over, "# copy"))


def test_memory_that_others_reach_is_not_used_again() -> None:
    @triton.jit
    def kernel(x, y, B: tl.constexpr):
        buffer = tlx.local_view(tlx.local_alloc((B, B), tl.float32, 1), 0)
        at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
        tlx.remote_shmem_store(buffer, tl.load(x + at), 0)
        tlx.cluster_barrier()
        value = tlx.local_load(buffer)
        # Of other layouts: the conversion takes shared memory.
        tl.store(y + at, tl.trans(value) + tl.load(y + tl.trans(at)))

    compiled = build(kernel, "cuda:90", x="*fp32", y="*fp32", B=64)
    ttgir = compiled.asm["ttgir"]
    assert ttgir.count("ttg.local_dealloc") == 1
    assert ttgir.index("ttg.local_dealloc") > ttgir.rindex("tt.store")
    assert compiled.metadata.shared > 64 * 64 * 4


# --- copies into several CTAs --------------------------------------------------------------------


@triton.jit
def multicast(desc, y, i, M: tl.constexpr, N: tl.constexpr, WHAT: tl.constexpr):
    full = tlx.alloc_barriers(1)
    tile = tlx.local_view(tlx.local_alloc((M, 2 * N), tlx.dtype_of(desc), 1), 0)
    half = tlx.local_slice(tile, [0, N], [M, N])
    tlx.barrier_expect_bytes(full[0], M * N * 2)
    rank = tlx.cluster_cta_rank()
    if WHAT == "constant":
        tlx.async_descriptor_load(desc, half, [i, 0], full[0], multicast_targets=[0, 2])
    if WHAT == "running":
        tlx.async_descriptor_load(desc, half, [i, 0], full[0], multicast_targets=[rank, rank ^ 1])
    if WHAT == "predicate":
        tlx.async_descriptor_load(desc, half, [i, 0], full[0], pred=i > 0, multicast_targets=(0, 1))
    if WHAT == "evict":
        tlx.async_descriptor_load(
            desc, half, [i, 0], full[0], eviction_policy="evict_first", multicast_targets=[0, 1]
        )
    if WHAT == "none":
        tlx.async_descriptor_load(desc, half, [i, 0], full[0], multicast_targets=[])
    if WHAT == "no list":
        tlx.async_descriptor_load(desc, half, [i, 0], full[0], multicast_targets=1)  # no list
    if WHAT == "large":
        tlx.async_descriptor_load(desc, half, [i, 0], full[0], multicast_targets=[8])  # large
    tlx.barrier_wait(full[0], 0)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + at, tlx.local_load(half).to(tl.float32))


def copied(what: str, m: int = 64, n: int = 128) -> str:
    with remora.use(tlx.in_clusters((4, 1, 1))):
        ptx: str = build(
            multicast, "cuda:90", desc=f"tensordesc<fp16[{m}, {n}]>", y="*fp32", i="i32",
            M=m, N=n, WHAT=what,
        ).asm["ptx"]  # fmt: skip
    return ptx


MULTICAST = (
    r"@once cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global"
    r"\.mbarrier::complete_tx::bytes"
    r"\.multicast::cluster(\.L2::cache_hint)? \[%r\d+\], \[%rd\d+, \{%r\d+, %r\d+\}\], \[%r\d+\],"
    r" (%rs\d+)(, %rd\d+)?;"
)


@pytest.mark.parametrize("what", ["constant", "running", "predicate", "evict"])
def test_a_copy_into_several_ctas(what: str) -> None:
    """An instruction for each piece of 64 columns; CTAs meet before and after."""
    ptx = copied(what)
    found = re.findall(MULTICAST, ptx)
    assert len(found) == 2
    assert len({mask for _, mask, _ in found}) == 1
    assert all(bool(hint) == bool(policy) == (what == "evict") for hint, _, policy in found)
    if what == "constant":
        assert re.search(rf"mov\.b16\s+{found[0][1]}, 5;", ptx)
    order = [ptx.index(text) for text in (
        "fence.mbarrier_init.release.cluster", "barrier.cluster.wait.aligned",
        "multicast::cluster", "barrier.cluster.arrive;", "ret;",
    )]  # fmt: skip
    assert order == sorted(order)


def test_pieces_of_a_slice() -> None:
    """The second half of rows of 512 bytes: tiles of 64 columns, one after the other."""
    ptx = copied("constant")
    places = re.findall(r"add\.s32\s+%r\d+, %r\d+, (\d+);", ptx)
    assert {"16384", "24576"} <= set(places)


def test_no_targets_are_this_cta() -> None:
    assert "multicast::cluster" not in copied("none")


@pytest.mark.parametrize(("what", "kind"), [
    ("no list", errors.WrongType), ("large", errors.WrongShape),
])  # fmt: skip
def test_targets_that_there_are_not(what: str, kind: type[errors.RemoraError]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        copied(what)
    error = kind.of(caught.value)
    assert error is not None, caught.value
    assert error.where.startswith(line_of(multicast, f"# {what}"))


# --- bad input -----------------------------------------------------------------------------------


@triton.jit
def wrong(x, B: tl.constexpr, WHAT: tl.constexpr):
    buffers = tlx.local_alloc((B,), tlx.dtype_of(x), 2)
    buffer = tlx.local_view(buffers, 0)
    value = tl.load(x + tl.arange(0, B))
    if WHAT == "negative rank":
        tlx.remote_shmem_store(buffer, value, -1)  # negative rank
    if WHAT == "large rank":
        tlx.remote_shmem_store(buffer, value, 8)  # large rank
    if WHAT == "float rank":
        tlx.remote_shmem_store(buffer, value, 1.0)  # float rank
    if WHAT == "tensor rank":
        tlx.remote_shmem_store(buffer, value, tl.arange(0, B))  # tensor rank
    if WHAT == "no rank":
        tlx.remote_shmem_store(buffer, value)  # no rank
    if WHAT == "several buffers":
        tlx.remote_shmem_store(buffers, value, 1)  # several buffers
    if WHAT == "dtype":
        tlx.remote_shmem_store(buffer, value.to(tl.int8), 1)  # dtype
    if WHAT == "shape":
        tlx.remote_shmem_store(buffer, tl.load(x + tl.arange(0, 2 * B)), 1)  # shape
    bars = tlx.alloc_barriers(2, 1)
    if WHAT == "no barrier":
        tlx.async_remote_shmem_store(buffer, value, 1)  # no barrier
    if WHAT == "several barriers":
        tlx.async_remote_shmem_store(buffer, value, 1, bars)  # several barriers
    if WHAT == "a buffer as barrier":
        tlx.async_remote_shmem_store(buffer, value, 1, buffer)  # a buffer as barrier
    if WHAT == "too narrow":
        tiny = tlx.local_view(tlx.local_alloc((1,), tlx.dtype_of(x), 1), 0)
        tlx.async_remote_shmem_store(tiny, tl.load(x + tl.arange(0, 1)), 1, bars[0])  # too narrow
    if WHAT == "view of a buffer":
        tlx.remote_view(buffer, 1)  # view of a buffer
    if WHAT == "view of barriers":
        tlx.remote_view(bars, 1)  # view of barriers
    if WHAT == "view without a rank":
        tlx.remote_view(bars[0])  # view without a rank
    if WHAT == "remote wait":
        tlx.barrier_wait(tlx.remote_view(bars[0], 1), 0)  # remote wait
    if WHAT == "twice remote":
        tlx.barrier_arrive(tlx.remote_view(bars[0], 1), 1, 1)  # twice remote
    if WHAT == "arrive at rank":
        tlx.barrier_arrive(bars[0], 1, 9)  # arrive at rank
    if WHAT == "fine":
        tlx.remote_shmem_store(buffer, value, 1)


@pytest.mark.parametrize(("what", "kind"), [
    ("negative rank", errors.WrongShape), ("large rank", errors.WrongShape),
    ("float rank", errors.WrongType), ("tensor rank", errors.WrongType),
    ("no rank", errors.WrongType), ("several buffers", errors.WrongType),
    ("dtype", errors.WrongDtype), ("shape", errors.WrongShape),
    ("no barrier", errors.WrongType), ("several barriers", errors.WrongType),
    ("a buffer as barrier", errors.WrongType), ("too narrow", errors.WrongShape),
    ("view of a buffer", errors.WrongType), ("view of barriers", errors.WrongType),
    ("view without a rank", errors.WrongType), ("remote wait", errors.WrongType),
    ("twice remote", errors.WrongType), ("arrive at rank", errors.WrongShape),
])  # fmt: skip
def test_refused(what: str, kind: type[errors.RemoraError]) -> None:
    in_pairs = remora.use(tlx.in_clusters((2, 1, 1)))
    with in_pairs, pytest.raises(Exception) as caught:  # noqa: PT011  Triton wraps what it meets
        build(wrong, "cuda:90", x="*fp16", B=64, WHAT=what)
    error = kind.of(caught.value)
    assert error is not None, caught.value
    assert error.hint
    assert error.where.startswith(line_of(wrong, f"# {what}"))


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx950"])
def test_targets_without_clusters(target: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        build(wrong, target, x="*fp16", B=64, WHAT="fine")
    assert errors.UnsupportedByTarget.of(caught.value) is not None
