"""Products in the layouts that the author names, and slices of what is in them.

``tlx.require_layout`` converts to a layout and back. A product one of whose operands or whose
sum was given a layout so becomes one in that layout; stock Triton leaves it as it is then.
"""

from __future__ import annotations

import re
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, IntegerType, StringAttr, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from remora.dsl.lowering import CustomOp, Lowering, reached
from remora.errors import ConflictingLayouts, UnsupportedByTarget, WrongShape
from remora.host import features
from remora.ir.build import Builder, erase, i32, op_name
from remora.ir.locations import source_line
from remora.tlx.lower.hints import anchored, scheduling_mask
from remora.tlx.lower.layouts import MemDesc, SwizzledShared, with_encoding
from remora.tlx.lower.shared import zeros_of
from remora.tlx.mfma import amd_mfma_commit, amd_scheduled_mfma, extract_slice

#: K of the instructions, by bits of an operand's element and (M, N) (CDNA 3 and CDNA 4
#: instruction set references, VOP3P-MAI): gfx942's, and what gfx950 has besides.
_Depths = dict[tuple[int, int], tuple[int, ...]]
_DEPTHS: dict[int, tuple[_Depths, _Depths]] = {
    16: ({(32, 32): (8,), (16, 16): (16,), (4, 64): (4,), (64, 4): (4,)},
         {(32, 32): (16,), (16, 16): (32,)}),
    32: ({(32, 32): (2, 4), (16, 16): (4, 8), (4, 64): (1,), (64, 4): (1,)}, {}),
    64: ({(16, 16): (4,)}, {}),
    8: ({(32, 32): (16,), (16, 16): (32,), (4, 64): (4,), (64, 4): (4,)},
        {(32, 32): (32, 64), (16, 16): (64, 128)}),
}  # fmt: skip
_VERSIONS = {"gfx942": 3, "gfx950": 4}

#: IEEE: tt.InputPrecision.
_IEEE = 2
#: All instructions may pass but MFMA.
_ALL_BUT_MFMA = 0xFF6
_SLICE = "remora.extract_slice"


def named(value: SSAValue) -> SSAValue | None:
    """The value in the layout that the author required of it; None where it is the compiler's."""
    while isinstance(value.owner, Operation) and op_name(value.owner) == "ttg.convert_layout":
        value = value.owner.operands[0]
        if not str(value.type.encoding).startswith("#ttg.blocked"):  # type: ignore[attr-defined]
            return value
    return None


def _parent(value: SSAValue | None) -> str | None:
    """The MFMA layout that a value in a named layout is of, or is an operand for."""
    kind: Any = value.type if value is not None else None
    found = re.search(r"#ttg\.amd_mfma<\{.*?\}>", str(getattr(kind, "encoding", "")))
    return found[0] if found else None


def _of_sum(acc: SSAValue) -> str | None:
    """The MFMA layout of a sum, also where a loop carries it."""
    from remora.tlx.lower.analysis import came_from

    return next(filter(None, (_parent(named(value)) for value in reached(acc, came_from))), None)


@amd_scheduled_mfma.lowering("hip")
def lower_product(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``tt.dot``, which ``lay_products`` lays out."""
    a, b, acc = op.operands
    if op.attributes["initialize"]:
        first = named(acc)
        zero = zeros_of((first or acc).type, builder)
        acc = zero if first is None else builder.value("ttg.convert_layout", [zero], acc.type)
    said: dict[str, Any] = {"inputPrecision": i32(_IEEE), "maxNumImpreciseAcc": i32(0)}
    kind = op.attributes["register_class"]
    if kind is not None and features().register_classes:
        said["amdg.cd_regclass"] = StringAttr(kind[0])
    elif kind is not None:
        acc = anchored(acc, kind, builder)
    return builder.value("tt.dot", [a, b, acc], op.results[0].type, said)


@amd_mfma_commit.lowering("hip")
def lower_commit(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """A scheduling barrier that products do not pass."""
    builder.op("rocdl.sched.barrier", [], [], {"mask": scheduling_mask(_ALL_BUT_MFMA)})


@extract_slice.lowering("hip")
def lower_slice(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """A marker: what the source is in is known when products are laid out."""
    offsets = DenseArrayBase.from_list(IntegerType(64), op.attributes["offsets"])
    return builder.value(_SLICE, op.operands, op.results[0].type, {"static_offsets": offsets})


def finish(lowering: Lowering) -> None:
    """Lay products out where a layout was named, and cut slices."""
    if lowering.target.backend != "hip":
        return
    for op in list(lowering.module.walk()):
        if op_name(op) == "tt.dot":
            _lay(op, lowering)
        elif op_name(op) == _SLICE:
            _cut(op)


def _lay(dot: Operation, lowering: Lowering) -> None:
    """A product in its layout; the result is converted back."""
    a, b, acc = (_laid(v) for v in dot.operands)
    parents = [p for p in (_parent(a), _parent(b), _of_sum(dot.operands[2])) if p]
    if not parents:
        _as_stock(dot)
        return
    where = source_line(dot.location)
    if len(set(parents)) > 1:
        raise ConflictingLayouts(
            f"a product's operands are for two layouts: {' and '.join(dict.fromkeys(parents))}",
            where=where,
            hint="give both dot_operand_layout, and the sum, one amd_mfma_layout",
        )
    parent, builder = parents[0], Builder.before(dot)
    kinds: list[Any] = [v.type for v in dot.operands]
    _check_instruction(parent, kinds, lowering, where)
    width = _width(parent, a, b)
    operands = []
    for index, (value, laid) in enumerate(zip(dot.operands, (a, b, acc), strict=True)):
        layout = (
            parent
            if index == 2
            else f"#ttg.dot_op<{{opIdx = {index}, parent = {parent}, kWidth = {width}}}>"
        )
        if index < 2 and laid is not None and _parent(laid):
            layout = str(laid.type.encoding)  # type: ignore[attr-defined]
            if f"opIdx = {index}" not in layout:
                raise ConflictingLayouts(
                    f"operand {'AB'[index]} of a product is in {layout}",
                    where=where,
                    hint=f"require tlx.dot_operand_layout({index}, ...) of it",
                )
        wanted = with_encoding(kinds[index], layout)
        if laid is not None and laid.type == wanted:
            operands.append(laid)
        else:
            operands.append(builder.value("ttg.convert_layout", [value], wanted))
    result = dot.results[0]
    said = {**dot.attributes, **dot.properties}
    product = builder.value("tt.dot", operands, operands[2].type, said)
    back = builder.value("ttg.convert_layout", [product], result.type)
    result.replace_all_uses_with(back)
    erase(dot)


def _as_stock(dot: Operation) -> None:
    """A product of which no layout was named: its operands as Triton's conversion has them."""
    parent = dot.results[0].type.encoding  # type: ignore[attr-defined]
    for index in range(2):
        kind: Any = dot.operands[index].type
        if "#ttg.dot_op" not in str(kind.encoding):
            layout = f"#ttg.dot_op<{{opIdx = {index}, parent = {parent}}}>"
            builder = Builder.before(dot)
            dot.operands[index] = builder.value(
                "ttg.convert_layout", [dot.operands[index]], with_encoding(kind, layout)
            )


def _instruction(parent: str) -> tuple[int, int, int, int]:
    """Version, M, N and K of an MFMA layout."""
    version = re.search(r"version = (\d+)", parent)
    shape = re.search(r"instrShape = \[(\d+), (\d+), (\d+)\]", parent)
    assert version is not None
    assert shape is not None
    return int(version[1]), *map(int, shape.groups())  # type: ignore[return-value]


def _width(parent: str, *operands: SSAValue | None) -> int:
    """Elements of K that a lane reads at once: as an operand says, or as the instruction reads."""
    for kind in [v.type for v in operands if v is not None]:
        if found := re.search(r"#ttg\.dot_op<\{.*kWidth = (\d+)", str(kind)):
            return int(found[1])
    _, m, n, k = _instruction(parent)
    return max(k * min(m, n) // 64, 1)


def _depths(bits: int, version: int) -> dict[tuple[int, int], tuple[int, ...]]:
    """K of the instructions by (M, N), for elements of ``bits`` bits."""
    known, more = _DEPTHS[bits]
    return {s: (*known[s], *(more.get(s, ()) if version >= 4 else ())) for s in known}


def _check_instruction(parent: str, kinds: list[Any], lowering: Lowering, where: str) -> None:
    """Refuse an instruction that the target lacks, or that the operands do not fill."""
    version, m, n, k = _instruction(parent)
    bits: int = kinds[0].element_type.bitwidth
    target = lowering.target
    newest = _VERSIONS.get(str(target.arch), 0)
    if version > newest or k not in _depths(bits, version).get((m, n), ()):
        shapes = _depths(bits, newest).items()
        have = ", ".join(f"{s[0]}x{s[1]}x{depth}" for s, depths in shapes for depth in depths)
        raise UnsupportedByTarget(
            f"{target} has no MFMA of {m}x{n}x{k}, version {version}, for {kinds[0].element_type}",
            where=where,
            hint=f"version={newest} with one of {have}",
        )
    depth = kinds[0].get_shape()[-1]
    if depth % k:
        raise WrongShape(
            f"K of a product is {depth}, the instruction multiplies {k}",
            where=where,
            hint="give instr_shape a smaller K, or the operands a multiple of it",
        )


def _cut(op: Operation) -> None:
    """A slice: in registers where a layout was named, else through shared memory."""
    builder, result = Builder.before(op), op.results[0]
    kind: Any = result.type
    offsets: Any = op.attributes["static_offsets"]
    source = _laid(op.operands[0])
    if source is not None:
        _check_slice(op, source, kind.get_shape(), offsets.get_values())
        laid = with_encoding(kind, str(source.type.encoding))  # type: ignore[attr-defined]
        part = builder.value("amdg.extract_slice", [source], laid, {"static_offsets": offsets})
        value = builder.value("ttg.convert_layout", [part], kind)
    else:
        value = _through_memory(op, builder, kind, offsets.get_values())
    result.replace_all_uses_with(value)
    erase(op)


def _laid(value: SSAValue) -> SSAValue | None:
    """The value in a named layout, also of what is computed from such element by element."""
    found = named(value)
    owner = value.owner
    if found is not None or not isinstance(owner, Operation):
        return found
    if not _is_elementwise(owner):
        return None
    parts = [_laid(v) for v in owner.operands]
    layouts = [str(p.type.encoding) for p in parts if p is not None]  # type: ignore[attr-defined]
    if not layouts:
        return None
    builder = Builder(InsertPoint.after(owner), owner.location)
    operands = []
    for operand, part in zip(owner.operands, parts, strict=True):
        kind: Any = operand.type
        if not isinstance(kind, TensorType):
            operands.append(operand)
            continue
        wanted = with_encoding(kind, layouts[0])
        if part is not None and part.type == wanted:
            operands.append(part)
        else:
            operands.append(builder.value("ttg.convert_layout", [operand], wanted))
    said = {**owner.attributes, **owner.properties}
    said.pop("op_name__", None)
    result: Any = value.type
    return builder.value(op_name(owner), operands, with_encoding(result, layouts[0]), said)


def _is_elementwise(op: Operation) -> bool:
    name = op_name(op)
    return (
        (name.startswith(("arith.", "math.")) or name == "tt.elementwise_inline_asm")
        and name != "arith.constant"
        and len(op.results) == 1
        and not op.regions
        and isinstance(op.results[0].type, TensorType)
    )


def _tile(layout: str) -> tuple[int, ...]:
    """What all warps hold of a tensor in a layout before it repeats."""
    _, m, n, _ = _instruction(layout)
    warps = re.search(r"warpsPerCTA = \[([\d, ]+)\]", layout)
    assert warps is not None
    (*batch, along_m, along_n) = map(int, warps[1].split(","))
    if operand := re.search(r"#ttg\.dot_op<\{opIdx = (\d)", layout):
        width = re.search(r"kWidth = (\d+)", layout)
        assert width is not None
        depth = max(int(width[1]) * 64 // min(m, n), 1)
        return (*batch, *((m * along_m, depth) if operand[1] == "0" else (depth, n * along_n)))
    return (*batch, m * along_m, n * along_n)


def _check_slice(op: Operation, source: SSAValue, shape: Any, offsets: Any) -> None:
    """Refuse a slice that would move elements between threads."""
    layout = str(source.type.encoding)  # type: ignore[attr-defined]
    if "#ttg.amd_mfma" not in layout:
        return
    whole: Any = source.type
    tile = _tile(layout)
    for extent, begin, size, step in zip(shape, offsets, whole.get_shape(), tile, strict=True):
        if extent != size and (extent % step or begin % step):
            raise WrongShape(
                f"tlx.extract_slice: {tuple(shape)} at {tuple(offsets)} of {whole.get_shape()} "
                f"cuts what the warps hold together, {' by '.join(map(str, tile))} elements",
                where=source_line(op.location),
                hint="make extents and offsets multiples of that, or release the layout",
            )


def _through_memory(op: Operation, builder: Builder, kind: Any, offsets: Any) -> SSAValue:
    """Store the source to shared memory, load the part."""
    source: Any = op.operands[0].type
    shape = tuple(source.get_shape())
    plain = SwizzledShared.plain(tuple(reversed(range(len(shape)))))
    whole = MemDesc(shape, source.element_type, plain)
    part = MemDesc(tuple(kind.get_shape()), source.element_type, plain, allocated=shape)
    buffer = builder.value("ttg.local_alloc", op.operands, whole.type)
    at = DenseArrayBase.from_list(IntegerType(32), [int(o) for o in offsets])
    view = builder.value("ttg.memdesc_subslice", [buffer], part.type, {"offsets": at})
    return builder.value("ttg.local_load", [view], kind)
