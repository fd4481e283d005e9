"""Instructions that Triton's dialects have no operation for, written where they are executed.

MLIR's LLVM dialect is legal inside TTGIR: stock passes leave ``llvm.inline_asm`` where it
is, as an operation with unknown effects, and the conversion to LLVM keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, IntegerType, StringAttr, UnitAttr
from xdsl.ir import SSAValue

from remora.ir.build import Builder, attribute, i32


def execute(builder: Builder, instruction: str, operands: Sequence[SSAValue] = ()) -> None:
    """An instruction for its effect: every thread executes it, in program order.

    instruction: its text, with ``$0``, ``$1``, ... for the operands: i1, i16, i32, i64,
    pointers.
    """
    letters = {"i1": "b", "i16": "h", "i32": "r"}
    constraints = [letters.get(str(operand.type), "l") for operand in operands]
    builder.op(
        "llvm.inline_asm", operands, [],
        {
            "asm_string": StringAttr(instruction),
            "constraints": StringAttr(",".join([*constraints, "~{memory}"])),
            "has_side_effects": UnitAttr(),
        },
    )  # fmt: skip


def execute_once(
    builder: Builder,
    instruction: str,
    operands: Sequence[SSAValue],
    predicate: Sequence[SSAValue] = (),
) -> None:
    """An instruction that one thread of the task executes.

    instruction, operands: as of ``execute``. predicate: at most one i1.
    """
    warp = builder.value("ttg.warp_id", [], attribute("i32"))
    equal = {"predicate": IntegerAttr(0, 64)}
    first = builder.value("arith.cmpi", [warp, builder.constant(0)], attribute("i1"), equal)
    if predicate:
        first = builder.value("arith.andi", [first, *predicate], first.type)
    text = (
        "{\n\t.reg .pred once;\n\telect.sync _|once, -1;\n\t"
        f"and.pred once, once, ${len(operands)};\n\t@once {instruction}\n}}"
    )
    execute(builder, text, [*operands, first])


def barrier(builder: Builder) -> None:
    """All threads of the program, or of its task, on shared memory."""
    builder.op("ttg.barrier", [], [], {"addrSpace": i32(1)})


def intrinsic(builder: Builder, name: str, operands: Sequence[SSAValue] = ()) -> None:
    """One of LLVM's intrinsics, for its effect. Those of barriers are convergent, as no text is."""
    builder.op(
        "llvm.call_intrinsic", operands, [],
        {
            "intrin": StringAttr(name),
            "op_bundle_sizes": DenseArrayBase.from_list(IntegerType(32), []),
            "operandSegmentSizes": DenseArrayBase.from_list(IntegerType(32), [len(operands), 0]),
        },
    )  # fmt: skip


def shared_address(builder: Builder, buffer: SSAValue, rank: int = 1) -> SSAValue:
    """The address of a buffer or a barrier in shared memory, an i32.

    The conversion to LLVM makes a buffer's descriptor a struct whose first member is the
    pointer; the cast to that struct, which it leaves alone, folds away after it.
    """
    members = ", ".join(["ptr<3>", *["i32"] * rank])
    struct = attribute(f"!llvm.struct<({members})>")
    descriptor = builder.value("builtin.unrealized_conversion_cast", [buffer], struct)
    pointer = builder.value(
        "llvm.extractvalue", [descriptor], attribute("!llvm.ptr<3>"),
        {"position": attribute("array<i64: 0>")},
    )  # fmt: skip
    return builder.value("llvm.ptrtoint", [pointer], attribute("i32"))


def descriptor_address(builder: Builder, descriptor: SSAValue) -> SSAValue:
    """The generic address of a tensor descriptor, an i64, as ``shared_address``."""
    kind = attribute("!llvm.ptr")
    pointer = builder.value("builtin.unrealized_conversion_cast", [descriptor], kind)
    return builder.value("llvm.ptrtoint", [pointer], attribute("i64"))
