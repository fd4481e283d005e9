"""Handles: values of a plugin's own types, which travel through stock Triton as integers.

A buffer, a token or a barrier is an ``i64`` to Triton: it goes through loops,
branches, tuples and calls like any number. Its Python type knows what it
stands for, and the lowering gives it its real type.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triton.language import core as tl

from remora.errors import WrongType


def _no_tensor(kind: HandleType, asked: str) -> WrongType:
    """The error for a handle that was given where Triton takes a tensor.

    Triton's own functions would take the ``i64`` for a tensor, and libtriton
    aborts on some of what they build then.
    """
    noun = kind.noun or type(kind).__name__
    return WrongType(
        f"{noun} is not a tensor" + (f": it has no {asked}" if asked != "handle" else ""),
        hint="tlx.local_load gives a buffer's tensor" if noun == "a buffer" else "",
    )


class HandleType(tl.base_type):
    """The type of a handle. Derive a frozen dataclass from it and set ``value_class``.

    noun: what a message calls such a value, "a buffer". source: where one comes
    from, for the same messages.
    """

    value_class: ClassVar[type[Handle]]
    noun: ClassVar[str] = ""
    source: ClassVar[str] = ""

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError(f"{type(self).__name__} has to be a dataclass")

    def __hash__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has to be a frozen dataclass")

    def _unflatten_ir(self, handles: list[Any], cursor: int) -> tuple[Handle, int]:
        return self.value_class(handles[cursor], self), cursor + 1

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        out.append(builder.get_int64_ty())

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(tl.block_type, name):
            raise _no_tensor(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def mangle(self) -> str:
        """A name for functions that take such a handle: letters and digits."""
        return "".join(c if c.isalnum() else "_" for c in repr(self))


class Handle(tl.base_value):
    """A value of a ``HandleType``.

    carried: an ``ir.value`` of type i64 while a kernel is compiled; under the
        reference meaning whatever object the plugin's reference gave.
    """

    def __init__(self, carried: Any, type: HandleType) -> None:
        self.carried = carried
        self.type = type

    def __getattr__(self, name: str) -> Any:
        # "handle" is what Triton's functions take of a tensor.
        if name == "handle" or (not name.startswith("_") and hasattr(tl.tensor, name)):
            raise _no_tensor(self.type, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, index: Any) -> Any:
        raise _no_tensor(self.type, "elements to index")

    def _set_name(self, builder: Any, name: str) -> None:
        self.carried.set_loc(builder.create_name_loc(name, self.carried.get_loc()))

    def _flatten_ir(self, handles: list[Any]) -> None:
        handles.append(self.carried)

    def __repr__(self) -> str:
        return f"<{self.type}>"
