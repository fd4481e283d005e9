"""A third party's words: every kind of operation, from nothing.

Tensors, two results, no result, attributes of every kind, a handle of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import triton.language as tl

import remora
from remora.dsl import Handle, HandleType
from remora.errors import WrongDtype

#: The attributes with which ``note`` was lowered or run.
NOTED: list[dict[str, Any]] = []


class counter_value(Handle):
    """A number that only ``bump`` changes."""


@dataclass(frozen=True)
class CounterType(HandleType):
    """Counts in steps of ``step``."""

    step: int
    noun: ClassVar[str] = "a counter"
    source: ClassVar[str] = "mine.counter gives one"
    value_class: ClassVar[type[Handle]] = counter_value

    def __str__(self) -> str:
        return f"a counter in steps of {self.step}"


# --- tensors ---------------------------------------------------------------------------------


@remora.op("mine.scale")
def scale(call: Any, x: Any, factor: Any = 2.0) -> Any:
    """``x * factor``; x of fp32, factor constant."""
    x = call.tensor("x", x, dtypes=(tl.float32,))
    return call.emit([x], [x.type], factor=float(call.constant("factor", factor, (int, float))))


@scale.reference
def _scale(machine: Any, x: Any, factor: float) -> Any:
    return x * factor


def constant_like(builder: Any, value: Any, number: float) -> Any:
    """A constant of a tensor's type, or of a scalar's."""
    from remora.ir.build import attribute

    kind = value.type
    text = f"dense<{number!r}> : {kind}" if "tensor" in str(kind) else f"{number!r} : {kind}"
    return builder.value("arith.constant", [], kind, {"value": attribute(text)})


@scale.lowering("cuda", "hip")
def _lower_scale(op: Any, builder: Any, lowering: Any) -> Any:
    (x,) = op.operands
    factor = constant_like(builder, x, op.attributes["factor"])
    return builder.value("arith.mulf", [x, factor], x.type)


@remora.op("mine.split")
def split(call: Any, x: Any) -> Any:
    """``(x * 2, x + 1)``."""
    x = call.tensor("x", x, dtypes=(tl.float32,))
    return call.emit([x], [x.type, x.type])


@split.reference
def _split(machine: Any, x: Any) -> Any:
    return x * 2, x + 1


@split.lowering("cuda")
def _lower_split(op: Any, builder: Any, lowering: Any) -> Any:
    (x,) = op.operands
    twice = builder.value("arith.mulf", [x, constant_like(builder, x, 2.0)], x.type)
    return twice, builder.value("arith.addf", [x, constant_like(builder, x, 1.0)], x.type)


@split.lowering("hip:gfx950")
def _lower_split_exactly(op: Any, builder: Any, lowering: Any) -> Any:
    (x,) = op.operands
    four = builder.value("arith.mulf", [x, constant_like(builder, x, 4.0)], x.type)
    return four, four


split.lowering("hip")(_lower_split)


# --- attributes --------------------------------------------------------------------------------


@remora.op("mine.note")
def note(call: Any, *values: Any, text: Any = "") -> None:
    """Keeps constants of any kind."""
    from triton.language.core import _unwrap_if_constexpr as plain

    call.emit([], [], values=tuple(plain(v) for v in values), text=plain(text))


@note.reference
def _note(machine: Any, values: tuple[Any, ...], text: str) -> None:
    NOTED.append({"values": values, "text": text})


@note.lowering("cuda", "hip")
def _lower_note(op: Any, builder: Any, lowering: Any) -> None:
    NOTED.append(op.attributes)


# --- handles -----------------------------------------------------------------------------------


@remora.op("mine.counter")
def counter(call: Any, start: Any, step: Any = 1) -> Any:
    """A counter that starts at ``start``."""
    kind = CounterType(call.constant("step", step))
    return call.emit([call.integer("start", start)], [kind])


@counter.reference
def _counter(machine: Any, start: Any) -> int:
    return int(start)


@counter.lowering("cuda", "hip")
def _lower_counter(op: Any, builder: Any, lowering: Any) -> Any:
    (start,) = op.operands
    zero = builder.constant(0)
    return builder.value("arith.addi", [start, zero], start.type)


@remora.op("mine.bump")
def bump(call: Any, x: Any) -> Any:
    """The counter, one step on, and its number before."""
    x = call.handle("x", x, CounterType)
    if x.type.step <= 0:
        call.fail(WrongDtype, "the counter stands still", hint="step=1")
    return call.emit([x], [x.type, tl.int32], step=x.type.step)


@bump.reference
def _bump(machine: Any, x: int, step: int) -> Any:
    return x + step, x


@bump.lowering("cuda", "hip")
def _lower_bump(op: Any, builder: Any, lowering: Any) -> Any:
    (x,) = op.operands
    step = builder.constant(op.attributes["step"])
    return [builder.value("arith.addi", [x, step], x.type), x]


# --- what is wrong -------------------------------------------------------------------------------


@remora.op("mine.nowhere")
def nowhere(call: Any, x: Any) -> Any:
    """Neither a meaning nor a lowering."""
    x = call.tensor("x", x)
    return call.emit([x], [x.type])


@remora.op("mine.elsewhere")
def elsewhere(call: Any, x: Any) -> Any:
    """Only for AMD."""
    x = call.tensor("x", x)
    return call.emit([x], [x.type])


@elsewhere.lowering("hip")
def _lower_elsewhere(op: Any, builder: Any, lowering: Any) -> Any:
    return op.operands[0]


@remora.op("mine.raises")
def raises(call: Any, x: Any) -> Any:
    """Its lowering raises."""
    x = call.tensor("x", x)
    return call.emit([x], [x.type])


@raises.lowering("cuda", "hip")
def _lower_raises(op: Any, builder: Any, lowering: Any) -> Any:
    raise ZeroDivisionError("on purpose")


@remora.op("mine.too_many")
def too_many(call: Any, x: Any) -> Any:
    """Its lowering returns two values for one result."""
    x = call.tensor("x", x)
    return call.emit([x], [x.type])


@too_many.lowering("cuda", "hip")
def _lower_too_many(op: Any, builder: Any, lowering: Any) -> Any:
    return [op.operands[0], op.operands[0]]


@remora.op("mine.nothing")
def nothing(call: Any, x: Any) -> Any:
    """Its lowering forgets to return."""
    x = call.tensor("x", x)
    return call.emit([x], [x.type])


@nothing.lowering("cuda", "hip")
def _lower_nothing(op: Any, builder: Any, lowering: Any) -> None:
    return


@remora.op("mine.an_operation")
def an_operation(call: Any, x: Any) -> Any:
    """Its lowering returns an operation for a value."""
    x = call.tensor("x", x)
    return call.emit([x], [x.type])


@an_operation.lowering("cuda", "hip")
def _lower_an_operation(op: Any, builder: Any, lowering: Any) -> Any:
    return builder.op("arith.addf", [op.operands[0]] * 2, [op.operands[0].type])


@remora.op("mine.another_type")
def another_type(call: Any, x: Any) -> Any:
    """Its lowering gives a value of a type that the uses do not take."""
    x = call.tensor("x", x)
    return call.emit([x], [x.type])


@another_type.lowering("cuda", "hip")
def _lower_another_type(op: Any, builder: Any, lowering: Any) -> Any:
    return builder.constant(1)


pipeline = remora.lowering_pipeline("mine", __name__)
