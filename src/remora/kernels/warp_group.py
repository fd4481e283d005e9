"""Words for kernels whose tasks are warp groups, below what TLX says."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from triton.language import core as tl

from remora.dsl import Call, op
from remora.dsl.reference import Machine, numpy_dtype
from remora.errors import WrongDtype
from remora.tlx.barriers import Barrier, barrier
from remora.tlx.buffers import DTYPES, view
from remora.tlx.clusters import program_of, rank_of
from remora.tlx.types import BufferType


@op("tlx.release")
def release(call: Call, bar: Any, remote_cta_rank: Any = None) -> None:
    """Arrive at a barrier once for the task, without waiting for its other warps.

    Args:
        bar: one barrier.
        remote_cta_rank: of the CTA of the cluster whose barrier it is; None: the own one.

    For buffers that only products of the warp group read, after ``tlx.async_dot_wait``: a
    product is one of the whole group, so that where it is done for one thread it is for all.
    (CUTLASS releases its pipelines so.) ``tlx.barrier_arrive`` makes all warps meet first. A buffer
    that each warp loads from by itself may be among them where something makes the warps meet
    between those loads and this: a named barrier, or the wait for a product begun after them.
    """
    operands = [barrier(call, "bar", bar)]
    attributes: dict[str, Any] = {}
    if tl._unwrap_if_constexpr(remote_cta_rank) is not None:
        operands.append(rank_of(call, "remote_cta_rank", remote_cta_rank))
        attributes["remote"] = True
    call.emit(operands, **attributes)


@release.reference
def _release(machine: Machine, bar: Barrier, rank: Any = None, remote: bool = False) -> None:
    if remote:
        bar = machine.elsewhere(bar, program_of(machine, rank))
    bar.arrive(machine.strand.release())


@release.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> None:
    from remora.tlx.lower.assembly import execute, shared_address

    operands = [shared_address(builder, op.operands[0]), *op.operands[1:]]
    mapped, space = "mov.b32 %bar, $0;", "cta"
    if len(operands) > 1:
        lowering.analysis.reached.append(op.operands[0])
        # Here, and not before a loop: addresses of all barriers take many registers.
        mapped, space = "mapa.shared::cluster.u32 %bar, $0, $1;", "cluster"
    execute(
        builder,
        "{\n\t.reg .pred %first;\n\t.reg .b32 %thread, %bar;\n"
        "\tmov.u32 %thread, %tid.x;\n"
        "\tand.b32 %thread, %thread, 127;\n"
        "\tsetp.eq.u32 %first, %thread, 0;\n"
        f"\t{mapped}\n"
        f"\t@%first mbarrier.arrive.shared::{space}.b64 _, [%bar];\n\t}}",
        operands,
    )


@op("remora.wait")
def wait(call: Call, bar: Any, phase: Any) -> None:
    """``tlx.barrier_wait``, of each thread by itself.

    Stock Triton makes the warps of a task meet between two waits for barriers of one array.
    """
    call.emit([barrier(call, "bar", bar), call.integer("phase", phase)])


@wait.reference
def _wait(machine: Machine, bar: Barrier, phase: Any) -> None:
    bar.wait(machine, int(phase))


@wait.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> None:
    from remora.tlx.lower.assembly import execute, shared_address

    bar, phase = op.operands
    execute(
        builder,
        "{\n\t.reg .pred %done;\nagain:\n"
        "\tmbarrier.try_wait.parity.shared::cta.b64 %done, [$0], $1;\n"
        "\t@!%done bra.uni again;\n\t}",
        [shared_address(builder, bar), phase],
    )


@op("remora.wait_for_kernels_before")
def wait_for_kernels_before(call: Call) -> None:
    """Wait until the kernels that this one was launched after are done, and their memory is there.

    With launch option ``launch_pdl`` a kernel begins when ``let_next_kernel_begin`` or the end was
    reached by the one before; what that writes or reads must not be touched before this.
    """
    call.emit([])


@op("remora.let_next_kernel_begin")
def let_next_kernel_begin(call: Call) -> None:
    """The kernel after this one may be launched, when all programs have said so or ended."""
    call.emit([])


@wait_for_kernels_before.reference
@let_next_kernel_begin.reference
def _(machine: Machine) -> None:
    """Kernels run one after the other."""


@wait_for_kernels_before.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> None:
    from remora.tlx.lower.assembly import execute

    execute(builder, "griddepcontrol.wait;", [])


@let_next_kernel_begin.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> None:
    from remora.tlx.lower.assembly import execute

    execute(builder, "griddepcontrol.launch_dependents;", [])


@op("remora.any_in_warp")
def any_in_warp(call: Call, rows: Any) -> Any:
    """Whether any of a product's rows that the warp holds is set: a scalar, of each warp its own.

    Args:
        rows: i1, one for each row of a product of the task's.

    Only elementwise work on that product's rows may depend on it: warps go different ways.
    """
    rows = call.tensor("rows", rows, dtypes=(tl.int1,))
    return call.emit([rows], [tl.int1])


@any_in_warp.reference
def _any(machine: Machine, rows: Any) -> Any:
    return np.any(rows)


@any_in_warp.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> Any:
    from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr

    from remora.ir.build import attribute
    from remora.tlx.lower.layouts import wgmma_accumulator

    (rows,) = op.operands
    (count,) = rows.type.get_shape()
    held = count // 32  # by a thread: 16 rows of each warp are in 8 groups of 4 lanes
    layout = wgmma_accumulator(count, 64, attribute("f16"), 4)
    kind = attribute(f"tensor<{count}xi1, #ttg.slice<{{dim = 1, parent = {layout}}}>>")
    rows = builder.value("ttg.convert_layout", [rows], kind)
    struct = attribute(f"!llvm.struct<({', '.join(['i1'] * held)})>")
    cast = builder.value("builtin.unrealized_conversion_cast", [rows], struct)
    found = None
    for i in range(held):
        one = builder.value(
            "llvm.extractvalue", [cast], attribute("i1"),
            {"position": attribute(f"array<i64: {i}>")},
        )  # fmt: skip
        found = one if found is None else builder.value("arith.ori", [found, one], one.type)
    number = builder.value("arith.extui", [found], attribute("i32"))
    voted = builder.value(
        "llvm.inline_asm", [number], attribute("i32"),
        {
            "asm_string": StringAttr(
                "{\n\t.reg .pred %any;\n\tsetp.ne.b32 %any, $1, 0;\n"
                "\tvote.sync.any.pred %any, %any, -1;\n\tselp.b32 $0, 1, 0, %any;\n\t}"
            ),
            "constraints": StringAttr("=r,r"),
            "has_side_effects": UnitAttr(),
        },
    )  # fmt: skip
    zero = builder.constant(0)
    return builder.value(
        "arith.cmpi", [voted, zero], attribute("i1"), {"predicate": IntegerAttr(1, 64)}
    )


@op("remora.rounded")
def rounded(call: Call, values: Any, dtype: Any) -> Any:
    """``values.to(dtype)`` by instructions that round two numbers at once.

    Args:
        values: a tensor of fp32.
        dtype: fp16 or bf16.

    For what is carried round a loop: LLVM carries the fp32 numbers instead and rounds each by
    itself, and ptxas puts some pairs together the wrong way round and turns them, an instruction
    each.
    """
    call.require_target(
        "cuda:90", reason="it is for Hopper's kernels", instead="values.to(dtype)"
    )  # fmt: skip
    values = call.tensor("values", values, dtypes=(tl.float32,))
    dtype, names = tl._unwrap_if_constexpr(dtype), {tl.float16: "f16", tl.bfloat16: "bf16"}
    if dtype not in names:
        call.fail(WrongDtype, f"dtype is {dtype}", hint="tl.float16 or tl.bfloat16")
    if call.interpreted:
        return call.emit([values], [values.type.with_element_ty(dtype)], dtype=str(dtype))
    return tl.inline_asm_elementwise(
        f"cvt.rn.{names[dtype]}x2.f32 $0, $2, $1;", "=r,r,r", [values], dtype, is_pure=True,
        pack=2, _semantic=call.semantic,
    )  # fmt: skip


@rounded.reference
def _rounded(machine: Machine, values: Any, dtype: str) -> Any:
    return values.astype(numpy_dtype(DTYPES[dtype]))


@op("tlx.give_sums")
def give(call: Call, sums: Any, dst: Any, remote_cta_rank: Any, bar: Any) -> None:
    """Give a product's sums to the same task of another CTA of the cluster, for ``given_to``.

    Args:
        sums: (64, n) of fp32, n a power of two from 16 on, in a task of one warp group.
        dst: one buffer of this CTA of as many elements; the other CTA's in its place is written.
        remote_cta_rank: of the CTA.
        bar: one barrier of this CTA: the other one's is told that the bytes have come.

    Each thread's registers go to the thread of its place, 16 bytes at a time (``st.async``):
    nothing moves between threads before.
    """
    sums = call.tensor("sums", sums, dtypes=(tl.float32,))
    buffer = call.handle("dst", dst, BufferType)
    rank = rank_of(call, "remote_cta_rank", remote_cta_rank)
    call.emit([sums, buffer, rank, barrier(call, "bar", bar)], remote=True)


@give.reference
def _give(machine: Machine, sums: Any, dst: Any, rank: Any, bar: Barrier, remote: bool) -> None:
    program = program_of(machine, rank)
    there, copied = machine.array_elsewhere(dst, program), np.array(sums)

    def copy() -> None:
        there[...] = copied.reshape(there.shape)

    machine.elsewhere(bar, program).later(machine, copy, dst.nbytes, writes=[there])


@op("tlx.given_sums")
def given_to(call: Call, src: Any) -> Any:
    """What another CTA gave this task: (64, elements of src / 64); after a wait for the barrier."""
    buffer = call.handle("src", src, BufferType)
    shape = [64, math.prod(buffer.type.shape) // 64]
    return call.emit([buffer], [tl.block_type(tl.float32, shape)])


@given_to.reference
def _given(machine: Machine, src: Any) -> Any:
    machine.touch(reads=[src])
    return np.array(src).reshape(64, -1)


@give.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> None:
    from remora.ir.build import attribute
    from remora.tlx.lower.arrivals import mapped
    from remora.tlx.lower.assembly import execute, shared_address

    sums, buffer, rank, bar = op.operands
    lowering.analysis.reached += [buffer, bar]
    held = _Held(builder, sums.type)
    values = held.of(sums)
    theirs = mapped(builder, shared_address(builder, buffer), rank)
    theirs = builder.value("arith.addi", [theirs, _place(builder)], attribute("i32"))
    arrived = mapped(builder, shared_address(builder, bar), rank)
    for first in range(0, held.count, 4):
        four = [
            builder.value("llvm.bitcast", [held.member(values, first + i)], attribute("i32"))
            for i in range(4)
        ]
        execute(
            builder,
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
            f"[$4 + {first * 512}], {{$0, $1, $2, $3}}, [$5];",
            [*four, theirs, arrived],
        )


@given_to.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> Any:
    from xdsl.dialects.builtin import StringAttr, UnitAttr

    from remora.ir.build import attribute
    from remora.tlx.lower.assembly import shared_address

    (buffer,) = op.operands
    lowering.analysis.reached.append(buffer)
    held = _Held(builder, op.results[0].type)
    values = builder.value("llvm.mlir.undef", [], held.struct(held.count))
    address = builder.value(
        "arith.addi", [shared_address(builder, buffer), _place(builder)], attribute("i32")
    )
    for first in range(0, held.count, 4):
        text = f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4 + {first * 512}];"
        four = builder.value(
            "llvm.inline_asm", [address], held.struct(4),
            {
                "asm_string": StringAttr(text),
                "constraints": StringAttr("=f,=f,=f,=f,r,~{memory}"),
                "has_side_effects": UnitAttr(),
            },
        )  # fmt: skip
        for i in range(4):
            position = {"position": attribute(f"array<i64: {first + i}>")}
            values = builder.value(
                "llvm.insertvalue", [values, held.member(four, i)], values.type, position
            )
    value = builder.value("builtin.unrealized_conversion_cast", [values], held.kind)
    return builder.value("ttg.convert_layout", [value], op.results[0].type)


class _Held:
    """A product's sums, (64, n) of fp32, as a thread of its warp group holds them.

    The conversion to LLVM makes a tensor a struct of them; casts to and from it fold away.
    """

    def __init__(self, builder: Any, kind: Any) -> None:
        from remora.ir.build import attribute
        from remora.tlx.lower.layouts import wgmma_accumulator

        rows, columns = kind.get_shape()
        self.builder, self.count = builder, rows * columns // 128
        layout = wgmma_accumulator(rows, columns, attribute("f16"), 4)
        self.kind = attribute(f"tensor<{rows}x{columns}xf32, {layout}>")

    def struct(self, count: int) -> Any:
        """The type of a struct of so many."""
        from remora.ir.build import attribute

        return attribute(f"!llvm.struct<({', '.join(['f32'] * count)})>")

    def of(self, sums: Any) -> Any:
        """The struct of a tensor."""
        # Also where the layout is the same: the analysis gives others a copy in another layout.
        sums = self.builder.value("ttg.convert_layout", [sums], self.kind)
        struct = self.struct(self.count)
        return self.builder.value("builtin.unrealized_conversion_cast", [sums], struct)

    def member(self, struct: Any, index: int) -> Any:
        """One of a struct's."""
        from remora.ir.build import attribute

        position = {"position": attribute(f"array<i64: {index}>")}
        return self.builder.value("llvm.extractvalue", [struct], attribute("f32"), position)


def _place(builder: Any) -> Any:
    """Where a thread's first 16 bytes are among those of its warp group."""
    from remora.tlx.lower.arrivals import computed

    return computed(
        builder,
        "{.reg .b32 %t; mov.u32 %t, %tid.x; and.b32 %t, %t, 127; shl.b32 $0, %t, 4;}", [],
    )  # fmt: skip


@op("remora.add_moments")
def add_moments(call: Call, mean: Any, squares: Any, buffer: Any, before: Any) -> Any:
    """The mean of rows, and the sum of the squares of what differs from it, of more columns.

    Args:
        mean, squares: (rows,) of fp32, of the columns that came before.
        buffer: (rows, columns) of 16 bits, as the first operand of a product has them: 64 rows for
            each warp group, or a view that is.
        before: how many columns came before, constant.

    Returns:
        both, of all columns, where that product's rows are: no warp waits for another.
    """
    rows = view(call, "buffer", buffer)
    mean = call.tensor("mean", mean, dtypes=(tl.float32,))
    squares = call.tensor("squares", squares, dtypes=(tl.float32,))
    kind = tl.block_type(tl.float32, [rows.shape[0]])
    count = call.constant("before", before)
    return call.emit([mean, squares, rows], [kind, kind], before=count)


@add_moments.reference
def _moments(machine: Machine, mean: Any, squares: Any, buffer: Any, before: int) -> Any:
    machine.touch(reads=[buffer])
    values = buffer.astype(np.float32)
    columns = values.shape[1]
    more = values.mean(1, dtype=np.float32)
    squares = squares + np.square(values - more[:, None]).sum(1, dtype=np.float32)
    more = more - mean
    part = np.float32(columns / (before + columns))
    return mean + more * part, squares + more * more * (part * np.float32(before))


@add_moments.lowering("cuda:90")
def _(op: Any, builder: Any, lowering: Any) -> Any:
    from remora.ir.build import attribute, i32
    from remora.tlx.lower.layouts import wgmma_accumulator

    before = op.attributes["before"]
    mean, squares, buffer = op.operands
    extents, kind = re.findall(r"^!ttg.memdesc<(\d+x\d+)x(\w+),", str(buffer.type))[0]
    rows, columns = map(int, extents.split("x"))
    element = attribute(kind)
    layout = wgmma_accumulator(rows, columns, element, lowering.num_warps_at(op.op))

    def tensor(kind: Any) -> Any:
        return attribute(f"tensor<{rows}x{columns}x{kind}, {layout}>")

    def computed(name: str, a: Any, b: Any) -> Any:
        if isinstance(b, float):
            value = attribute(f"dense<{b!r}> : {a.type}")
            b = builder.value("arith.constant", [], a.type, {"value": value})
        return builder.value(f"arith.{name}f", [a, b], a.type)

    wide = tensor("f32")
    values = builder.value("ttg.local_load", [buffer], tensor(element))
    values = builder.value("arith.extf", [values], wide)
    more = computed("mul", _sum_of_rows(values, builder), 1 / columns)
    one = attribute(f"tensor<{rows}x1xf32, {layout}>")
    spread = builder.value("tt.expand_dims", [more], one, {"axis": i32(1)})
    spread = builder.value("tt.broadcast", [spread], wide)
    values = computed("sub", values, spread)
    more_squares = _sum_of_rows(computed("mul", values, values), builder)
    # What the pieces before left is already there: such conversions are undone.
    mean, squares = (
        builder.value("ttg.convert_layout", [value], more.type) for value in (mean, squares)
    )
    part = columns / (before + columns)
    more = computed("sub", more, mean)
    spread = computed("mul", computed("mul", more, more), part * before)
    mean = computed("add", mean, computed("mul", more, part))
    squares = computed("add", computed("add", squares, more_squares), spread)
    return [
        builder.value("ttg.convert_layout", [value], result.type)
        for value, result in zip((mean, squares), op.results, strict=True)
    ]


def _sum_of_rows(values: Any, builder: Any) -> Any:
    """``tl.sum(values, 1)``."""
    from xdsl.ir import Block, Region
    from xdsl.rewriter import InsertPoint

    from remora.ir.build import Builder, attribute, i32

    number = values.type.element_type
    block = Block(arg_types=[number, number])
    inner = Builder(InsertPoint.at_end(block), builder.location)
    inner.op("tt.reduce.return", [inner.value("arith.addf", block.args, number)])
    kind = attribute(
        f"tensor<{values.type.get_shape()[0]}x{number}, "
        f"#ttg.slice<{{dim = 1, parent = {values.type.encoding}}}>>"
    )
    return builder.op("tt.reduce", [values], [kind], {"axis": i32(1)}, [Region(block)]).results[0]
