"""Lowerings of copies by descriptors (TMA)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerType, StringAttr, TensorType, UnitAttr
from xdsl.ir import Attribute, SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.errors import ConflictingLayouts
from remora.host import features
from remora.ir.build import Builder, attribute, boolean, i32
from remora.tlx.descriptors import (
    async_descriptor_load,
    async_descriptor_prefetch_tensor,
    async_descriptor_store,
    async_descriptor_store_wait,
    prefetch,
)
from remora.tlx.lower.analysis import TlxAnalysis, Use, wants
from remora.tlx.lower.arrivals import computed, mapped
from remora.tlx.lower.assembly import (
    barrier,
    descriptor_address,
    execute,
    execute_once,
    shared_address,
)
from remora.tlx.lower.boxes import fitting
from remora.tlx.lower.layouts import NvmmaShared
from remora.tlx.lower.offsets import piece_address
from remora.tlx.lower.shared import segments
from remora.tlx_plugin import FROM_HOPPER_ON

# tt.DescriptorReduceKind.
_REDUCTIONS = {"add": 1, "min": 2, "max": 3, "and": 6, "or": 7, "xor": 8}


@wants("tlx.async_descriptor_load")
@wants("tlx.async_descriptor_store")
def _copied(
    analysis: TlxAnalysis, use: Use, shape: tuple[int, ...], bits: int, order: tuple[int, ...]
) -> NvmmaShared | None:
    # The first operand is the descriptor, the third may be a barrier.
    return NvmmaShared.of_copies(shape, bits) if use.operand == 1 else None


def _policy(evict: str) -> dict[str, Attribute]:
    """The cache policy of a load, as the release writes it; before 3.9 operations have none."""
    if not features().cache_policies:
        return {"cache": i32(1), "evict": i32(1)}
    if not evict:
        return {}
    text = f"#tt.cache_policy<cache_modifier = none, eviction_policy = {evict}>"
    return {"cachePolicy": attribute(text)}


@async_descriptor_load.lowering(*FROM_HOPPER_ON)
def lower_load(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.async_tma_copy_global_to_local``."""
    rank = op.attributes["rank"]
    descriptor, buffer, bar, *rest = op.operands
    if op.attributes.get("targets") or op.attributes.get("pair"):
        _copy_in_ptx(op, builder, lowering)
        return
    if _hinted_in_ptx(op.attributes["evict"], buffer, descriptor, builder):
        barrier(builder)
        _copy_in_ptx(op, builder, lowering)
        return
    offsets, predicate = rest[:rank], rest[rank:] or [builder.constant(1, 1)]
    builder.op(
        "ttng.async_tma_copy_global_to_local",
        [descriptor, *offsets, bar, fitting(buffer, descriptor, builder), *predicate], [],
        {
            **_policy(op.attributes["evict"]),
            "isVolatile": boolean(False),
            "operandSegmentSizes": segments(1, rank, 0, 1, 1, 1),
        },
    )  # fmt: skip


def _hinted_in_ptx(
    evict: str, buffer: SSAValue, descriptor: SSAValue, builder: Builder
) -> bool:  # fmt: skip
    """Whether a copy has a hint that the release's operation cannot carry.

    Before such a copy threads meet: of the shared memory that text uses Triton knows nothing.
    """
    if not evict or features().cache_policies:
        return False
    return fitting(buffer, descriptor, builder) is buffer


def _copy_in_ptx(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``cp.async.bulk.tensor`` into several CTAs, or with a barrier of a pair's first CTA.

    An instruction for each piece that one copies.

    Stock Triton's own multicast is to the CTAs that its layouts divide a tensor over; to it a
    program is one CTA here.
    """
    rank, targets = op.attributes["rank"], op.attributes.get("targets", 0)
    pair = op.attributes.get("pair", False)
    descriptor, buffer, bar, *rest = op.operands
    offsets, ranks, predicate = rest[:rank], rest[rank : rank + targets], rest[rank + targets :]
    if fitting(buffer, descriptor, builder) is not buffer:
        raise ConflictingLayouts(
            "tlx.async_descriptor_load: the buffer has another layout than the descriptor, which "
            "a copy into several CTAs cannot give it",
            where=op.where,
            hint="give the copy a buffer whose other uses want no layout, or copy CTA by CTA",
        )
    lowering.analysis.reached += [buffer, bar]
    memdesc = lowering.analysis.described(buffer)
    piece = memdesc.layout.piece(memdesc.shape)
    last = [_mask(ranks, builder)] if ranks else []
    where = shared_address(builder, bar)
    if pair:
        own = computed(builder, "mov.u32 $0, %cluster_ctarank;", [])
        even = builder.value("arith.andi", [own, builder.constant(~1)], own.type)
        where = mapped(builder, where, even)
    hint, policy = _hint(op.attributes["evict"], builder)
    coordinates = ", ".join(f"${1 + i}" for i in range(rank, 0, -1))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        + ".multicast::cluster" * bool(ranks)
        + ".cta_group::2" * pair
        + f"{hint} [$0], [$1, {{{coordinates}}}], [${rank + 2}]"
        + "".join(f", ${rank + 3 + i}" for i in range(len(last) + len(policy)))
        + ";"
    )
    for start in _starts(memdesc.shape, piece):
        operands = [
            piece_address(builder, buffer, memdesc, start), descriptor_address(builder, descriptor),
            *_moved(offsets, start, builder), where, *last, *policy,
        ]  # fmt: skip
        execute_once(builder, text, operands, predicate)


def _mask(ranks: list[SSAValue], builder: Builder) -> SSAValue:
    """A bit for each rank, an i16."""
    bits = [builder.value("arith.shli", [builder.constant(1), r], r.type) for r in ranks]
    mask = bits[0]
    for bit in bits[1:]:
        mask = builder.value("arith.ori", [mask, bit], mask.type)
    return builder.value("arith.trunci", [mask], attribute("i16"))


@async_descriptor_store.lowering(*FROM_HOPPER_ON)
def lower_store(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.async_tma_copy_local_to_global``, or ``async_tma_reduce``."""
    descriptor, buffer, *offsets = op.operands
    operands = [descriptor, *offsets, fitting(buffer, descriptor, builder)]
    reduce, evict = op.attributes["reduce"], op.attributes["evict"]
    if reduce:
        builder.op("ttng.async_tma_reduce", operands, [], {"kind": i32(_REDUCTIONS[reduce])})
        return
    if _hinted_in_ptx(evict, buffer, descriptor, builder):
        _store_in_ptx(op, builder, lowering)
        return
    policy = _policy(evict) if evict and features().cache_policies else {}
    builder.op("ttng.async_tma_copy_local_to_global", operands, [], policy)


def _store_in_ptx(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``cp.async.bulk.tensor`` from shared memory, a group of copies."""
    descriptor, buffer, *offsets = op.operands
    lowering.analysis.reached.append(buffer)
    memdesc = lowering.analysis.described(buffer)
    hint, policy = _hint(op.attributes["evict"], builder)
    rank = len(offsets)
    coordinates = ", ".join(f"${i}" for i in range(rank, 0, -1))
    text = (
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group{hint} "
        f"[$0, {{{coordinates}}}], [${rank + 1}], ${rank + 2};"
    )
    barrier(builder)
    piece = memdesc.layout.piece(memdesc.shape)
    for start in _starts(memdesc.shape, piece):
        at = _moved(offsets, start, builder)
        source = piece_address(builder, buffer, memdesc, start)
        operands = [descriptor_address(builder, descriptor), *at, source, *policy]
        execute_once(builder, text, operands)
    execute(builder, "cp.async.bulk.commit_group;")


def _moved(offsets: Sequence[SSAValue], start: tuple[int, ...], builder: Builder) -> list[SSAValue]:
    """Offsets of a piece; the buffer may leave out first dimensions, of 1."""
    front = (0,) * (len(offsets) - len(start))
    return [
        builder.value("arith.addi", [o, builder.constant(s)], o.type) if s else o
        for o, s in zip(offsets, (*front, *start), strict=True)
    ]


@async_descriptor_store_wait.lowering(*FROM_HOPPER_ON)
def lower_store_wait(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``ttng.async_tma_store_wait``."""
    pendings, read_only = op.attributes["pendings"], op.attributes["read_only"]
    attributes: dict[str, Attribute] = {"pendings": i32(pendings)}
    if features().store_waits_read_only:
        attributes.update({"read_only": UnitAttr()} if read_only else {})
    elif not read_only:
        execute(builder, f"cp.async.bulk.wait_group {pendings};")
    builder.op("ttng.async_tma_store_wait", [], [], attributes)


@async_descriptor_prefetch_tensor.lowering(*FROM_HOPPER_ON)
def lower_prefetch_tensor(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``cp.async.bulk.prefetch.tensor``, for each piece that one instruction copies."""
    shape = op.attributes["shape"]
    descriptor, *rest = op.operands
    offsets, predicate = rest[: len(shape)], rest[len(shape) :]
    layout = NvmmaShared.of_copies(shape, op.attributes["bits"])
    piece = layout.piece(shape)
    hint, policy = _hint(op.attributes["evict"], builder)
    coordinates = ", ".join(f"${i}" for i in range(len(shape), 0, -1))
    text = (
        f"cp.async.bulk.prefetch.tensor.{len(shape)}d.L2.global.tile{hint} "
        f"[$0, {{{coordinates}}}]" + (f", ${len(shape) + 1}" if hint else "") + ";"
    )
    for start in _starts(shape, piece):
        at = _moved(offsets, start, builder)
        operands = [descriptor_address(builder, descriptor), *at, *policy]
        execute_once(builder, text, operands, predicate)


def _starts(shape: tuple[int, ...], piece: tuple[int, ...]) -> list[tuple[int, ...]]:
    starts: list[tuple[int, ...]] = [()]
    for extent, step in zip(shape, piece, strict=True):
        starts = [(*s, at) for s in starts for at in range(0, extent, step)]
    return starts


def _hint(evict: str, builder: Builder) -> tuple[str, list[SSAValue]]:
    """The modifier and the operand for a policy of the second-level cache."""
    if not evict:
        return "", []
    text = f"createpolicy.fractional.L2::{evict}.b64 $0, 1.0;"
    kind = attribute("i64")
    attributes = {"asm_string": StringAttr(text), "constraints": StringAttr("=l")}
    return ".L2::cache_hint", [builder.value("llvm.inline_asm", [], kind, attributes)]


@prefetch.lowering("cuda")
def lower_prefetch(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``prefetch``."""
    level = op.attributes["level"]
    if level == "tensormap":
        address = descriptor_address(builder, op.operands[0])
        execute_once(builder, "prefetch.tensormap [$0];", [address], [])
        return
    pointer, *mask = op.operands
    if not isinstance(pointer.type, TensorType):
        address = builder.value("tt.ptr_to_int", [pointer], attribute("i64"))
        execute_once(builder, f"prefetch.global.{level} [$0];", [address], mask)
        return
    kind = TensorType(IntegerType(32), pointer.type.get_shape(), pointer.type.encoding)
    chosen = [builder.value("arith.extui", [m], kind) for m in mask]
    text = f"prefetch.global.{level} [$1];"
    if mask:
        text = f"{{\n\t.reg .pred p;\n\tsetp.ne.b32 p, $2, 0;\n\t@p {text}\n\t}}"
    builder.op(
        "tt.elementwise_inline_asm", [pointer, *chosen], [kind],
        {
            "asm_string": StringAttr(f"{text}\n\tmov.u32 $0, 0;"),
            "constraints": StringAttr(",".join(["=r", "l", *["r" for _ in mask]])),
            "packed_element": i32(1),
            "pure": boolean(False),
        },
    )  # fmt: skip
