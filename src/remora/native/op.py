"""An operation of a native plugin, as kernels call it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from triton.language import core as tl

from remora.errors import NeedsCompiler, WrongType
from remora.native.loading import is_bound
from remora.pipeline import Pipeline, active

if TYPE_CHECKING:
    from remora.native.loading import Library

_SCALARS = {
    "i1": tl.int1, "i8": tl.int8, "i16": tl.int16, "i32": tl.int32, "i64": tl.int64,
    "f16": tl.float16, "bf16": tl.bfloat16, "f32": tl.float32, "f64": tl.float64,
    "f8E4M3FN": tl.float8e4nv, "f8E5M2": tl.float8e5,
}  # fmt: skip


class NativeOp:
    """An operation of a native library; made by ``Library.op`` and called in kernels.

    It takes tensors, numbers and what other native operations gave, and returns
    its result: a tensor, or a value of the library's own type that native
    operations take; None where it has none. Types are as the library makes them.
    """

    def __init__(self, library: Library, name: str) -> None:
        self.library = library
        self.name = f"{library.name}.{name.removeprefix('create_')}"
        self.__name__ = name
        self.__module__ = __name__
        # Triton's code generator reads this name off a builtin.
        self.__triton_builtin__ = True
        self._bound = library.bound("op", name)

    @classmethod
    def of(cls, library: Library, name: str) -> NativeOp:
        """See ``Library.op``."""
        op = cls(library, name)
        _join_key(library)
        return op

    def __repr__(self) -> str:
        return f"<native operation {self.name}>"

    def __call__(self, *operands: Any, _semantic: Any = None, _generator: Any = None) -> Any:
        if _generator is None:
            raise NeedsCompiler(
                f"{self.name} was called outside a kernel that is compiled",
                hint="call it in a @triton.jit function; a native operation has no reference "
                "meaning for TRITON_INTERPRET=1",
            )
        builder = _semantic.builder
        is_bound(self.library, type(builder), self._bound)
        values = [self._operand(value, _semantic) for value in operands]
        handles: list[Any] = []
        for value in values:
            value._flatten_ir(handles)
        method = getattr(builder, self._bound)
        if "-> None" in (method.__doc__ or ""):
            result = _call_without_result(method, handles, builder, _generator.module)
        else:
            result = method(handles)
        # An operation without a result gives a null mlir::Value.
        return None if result is None or not result.id() else _wrapped(result, values)

    def _operand(self, value: Any, semantic: Any) -> Any:
        value = tl._unwrap_if_constexpr(value)
        if isinstance(value, (bool, int, float)):
            value = semantic.to_tensor(value)
        if not isinstance(value, (tl.tensor, NativeValue)):
            raise WrongType(
                f"{self.name}: {value!r} is no operand of a native operation",
                hint="give tensors, numbers, and what native operations return",
            )
        return value


@cache
def _join_key(library: Library) -> None:
    """Let every kernel that is compiled from now on depend on the library's content."""
    active.add(Pipeline(f"native {library.name}", content=library.report.content))


def _call_without_result(method: Any, handles: list[Any], builder: Any, module: Any) -> Any:
    """Call an operation where the binding loses the result: it is the new operation's.

    There (Triton 3.7) the first place of the list is the result's, not an operand's.
    """
    known = {result.id() for result in _results(module)}
    place = handles[0] if handles else builder.get_int32(0)
    known.add(place.id())
    method([place, *handles])
    new = [result for result in _results(module) if result.id() not in known]
    return new[-1] if new else None


def _results(module: Any) -> list[Any]:
    """The first result of every operation of a module."""
    found: list[Any] = []
    module.walk(lambda op: found.append(op.get_result(0)) if op.get_num_results() else None)
    return found


class NativeType(tl.base_type):
    """A type of a library's own."""

    def __init__(self, ir_type: Any) -> None:
        self.ir_type = ir_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NativeType) and str(self.ir_type) == str(other.ir_type)

    def __hash__(self) -> int:
        return hash(str(self.ir_type))

    def __repr__(self) -> str:
        return str(self.ir_type)

    def _unflatten_ir(self, handles: list[Any], cursor: int) -> tuple[NativeValue, int]:
        return NativeValue(handles[cursor], self), cursor + 1

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        out.append(self.ir_type)

    def mangle(self) -> str:
        """A name for functions that take such a value: letters and digits."""
        return "".join(c if c.isalnum() else "_" for c in repr(self))


class NativeValue(tl.base_value):
    """A value of a library's own type: it goes through loops, branches and calls."""

    def __init__(self, handle: Any, type: NativeType) -> None:
        self.handle = handle
        self.type = type

    def _set_name(self, builder: Any, name: str) -> None:
        self.handle.set_loc(builder.create_name_loc(name, self.handle.get_loc()))

    def _flatten_ir(self, handles: list[Any]) -> None:
        handles.append(self.handle)


def _wrapped(result: Any, operands: Sequence[Any]) -> Any:
    """A result as kernels know it."""
    kind = result.get_type()
    for operand in operands:  # one of its type says whether integers have a sign
        if isinstance(operand, tl.tensor) and str(operand.handle.get_type()) == str(kind):
            return tl.tensor(result, operand.type)
    known = _type(str(kind))
    return NativeValue(result, NativeType(kind)) if known is None else tl.tensor(result, known)


def _type(text: str) -> Any:
    """The type of Triton's language that MLIR writes so, if there is one."""
    if text in _SCALARS:
        return _SCALARS[text]
    if pointer := re.fullmatch(r"!tt\.ptr<(.*?)(?:, (\d+))?>", text):
        element = _type(pointer[1])
        return element and tl.pointer_type(element, int(pointer[2] or 1))
    if tensor := re.fullmatch(r"tensor<((?:\d+x)+)([^#]*)>", text):
        element = _type(tensor[2])
        return element and tl.block_type(element, [int(n) for n in tensor[1][:-1].split("x")])
    return None
