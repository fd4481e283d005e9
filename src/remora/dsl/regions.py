"""``@remora.region``: words of the language for ``with``, from Python.

``with mine.word(...):`` puts an operation before and after the code of its
body, both in one block; a pass of the plugin finds the pairs (``spans``) and
makes of the code between them what the word means. The body can be visited
several times, and the names that it assigns are its own.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import copy as copy_of
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from remora.dsl import carrier
from remora.dsl.bodies import run_apart
from remora.dsl.op import Call, Op, check_name, kernel_frame, register, require_lowering
from remora.errors import LanguageError, PluginError

if TYPE_CHECKING:
    from xdsl.ir import Operation

    from remora.dsl.lowering import CustomOp

_local = threading.local()


class _Over(BaseException):
    """Leaves the body of a region that has been run already."""


def _stack() -> list[Region]:
    stack: list[Region] = _local.__dict__.setdefault("open", [])
    return stack


def open_regions(call: Call) -> list[Region]:
    """The regions of the kernel that a use is in, the outermost first."""
    if call.interpreted:
        return [r for r in _stack() if r.call.interpreted]
    # A compilation that failed has left its regions behind: they are of another module.
    module = call.generator.module
    return [r for r in _stack() if not r.call.interpreted and r.call.generator.module is module]


class RegionOp(Op):
    """A word for ``with``. Made by ``@remora.region``."""

    def __call__(
        self, *args: Any, _semantic: Any = None, _generator: Any = None, **kwargs: Any
    ) -> Any:
        node = None
        if _semantic is not None:
            _generator, node = _visiting(_semantic)
        region = super().__call__(*args, _semantic=_semantic, _generator=_generator, **kwargs)
        if not isinstance(region, Region):
            raise PluginError(
                f"the signature of {self.name} returned {region!r}",
                hint="return a remora.dsl.Region",
            )
        region.node = node
        return region


def _visiting(semantic: Any) -> tuple[Any, Any]:
    """The code generator, and the ``with`` statement that it is visiting."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        generator = frame.f_locals.get("self")
        if frame.f_code.co_name == "visit_With" and generator.semantic is semantic:
            return generator, frame.f_locals["node"]
        frame = frame.f_back
    raise PluginError("a word for `with` was called", hint="write `with word(...):`")


class Region(AbstractContextManager["Region"]):
    """One ``with`` statement, as the word's signature makes it.

    call: the use. copies: how often the body is visited, with ``copy`` counting
    from 0. attributes: constants for the pass that takes the region apart.
    on_open, on_close: called at the ends of each copy; the region is not among the
    open ones then. is_over: under the reference meaning, whether the body has been run
    (``run_apart``) and is skipped.
    """

    def __init__(
        self,
        call: Call,
        *,
        copies: int = 1,
        on_open: Callable[[Region], None] | None = None,
        on_close: Callable[[Region], None] | None = None,
        **attributes: Any,
    ) -> None:
        self.call = call
        self.copies = copies
        self.copy = 0
        self.is_over = False
        self.attributes = attributes
        self.inner: list[Region] = []  # regions that were opened within
        self.node: Any = None
        self._on_open, self._on_close = on_open, on_close
        # Names of the kernel: around the region, as it starts, and those assigned before.
        self._names: dict[str, Any] = {}
        self._start: dict[str, Any] = {}
        self._defined: dict[str, Any] = {}
        self._reference: Any = None
        if not call.interpreted:
            require_lowering(call)

    def __enter__(self) -> Region:
        if self.call.interpreted:
            self._enter_interpreted()
            return self
        for copy in range(self.copies):
            self._open(copy)
            if copy + 1 < self.copies:
                self.call.generator.visit_compound_statement(self.node.body)
                self._close()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        if not self.call.interpreted:
            self._close()
            return None
        _stack().remove(self)
        is_over = error[0] is _Over
        if self._reference is not None:
            self._reference.__exit__(*((None, None, None) if is_over else error))
        return is_over

    def _enter_interpreted(self) -> None:
        from remora.dsl.reference import machine

        within = _stack()
        if within and within[-1].is_over:
            raise _Over
        if self._on_open is not None:
            self._on_open(self)
        within.append(self)
        if self.call.op.references is not None:
            try:
                self._reference = self.call.op.references(machine(self.call), self)
                self._reference.__enter__()
            except BaseException:
                within.remove(self)
                raise

    def run_apart(self, spawn: Callable[[Any, Callable[[], None]], None]) -> None:
        """Under the reference meaning, run the body, but hand each ``with`` in it over.

        Args:
            spawn: is given what stands after the ``with`` (a ``Region``, where it is a word of
                this kind), and what runs the statement, in any thread, once for each of its copies.
                Names have there the values that they have now.

        For the word's ``.reference``, which sets ``is_over`` when all of them have been run.
        """
        within = list(_stack())

        def hand_over(word: Any, run: Callable[[Any], None]) -> None:
            for copy in range(getattr(word, "copies", 1)):
                given = copy_of(word)
                given.copy = copy
                spawn(given, functools.partial(_run_within, within, run, given))

        run_apart(kernel_frame(), self.call.op.__name__, hand_over)

    def _open(self, copy: int) -> None:
        self.copy = copy
        generator = self.call.generator
        enclosing = open_regions(self.call)
        _stack()[:] = enclosing  # and not what a failed compilation left
        if self._on_open is not None:
            self._on_open(self)
        if enclosing:
            enclosing[-1].inner.append(self)
        _stack().append(self)
        self._names = dict(generator.lscope)
        self._defined = dict(generator.local_defs)
        # What a region beside this one assigned has here the value from before both.
        before = enclosing[-1]._names if enclosing else {}
        for name, value in self._names.items():
            if isinstance(value, _Left) and name in before:
                generator.lscope[name] = before[name]
        self._start = dict(generator.lscope)
        self._mark("begin")

    def _close(self) -> None:
        self._mark("end")
        _stack().remove(self)
        if self._on_close is not None:
            self._on_close(self)
        generator = self.call.generator
        left = {
            name: _Left(name, self.call)
            for name, value in generator.lscope.items()
            if name in self._start and value is not self._start[name]
        }
        generator.lscope = {**self._names, **left}
        generator.local_defs = self._defined

    def _mark(self, edge: str) -> None:
        op = self.call.op
        attributes = {"edge": edge, "copy": self.copy, **self.attributes}
        symbol = carrier.Symbol(op.name, op.__module__, "", attributes)
        carrier.emit(symbol, [], [], generator=self.call.generator)


def _run_within(within: list[Region], run: Callable[[Any], None], region: Any) -> None:
    """Run a statement as one that stands in regions."""
    before = list(_stack())
    _stack()[:] = within
    try:
        run(region)
    finally:
        _stack()[:] = before


class _Left:
    """What a name holds after a region that assigned it: nothing that can be used."""

    def __init__(self, name: str, call: Call) -> None:
        object.__setattr__(self, "_left", (name, call))

    def _refuse(self, *_: Any) -> NoReturn:
        name, call = object.__getattribute__(self, "_left")
        raise LanguageError(
            f"{name} was assigned within {call.op.name}, which is left: a value does not leave it",
            where=call.where,
            hint=f"store {name} in a buffer or in global memory, or give it another name there",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "rmod", "lshift", "rlshift", "rshift", "rrshift", "and", "rand", "or", "ror", "xor",
    "rxor", "lt", "le", "gt", "ge", "neg", "invert", "getitem", "bool", "index", "format",
):  # fmt: skip
    setattr(_Left, f"__{_name}__", _Left._refuse)


def region(name: str, *, lowered_in: str = "") -> Callable[[Callable[..., Any]], RegionOp]:
    """Declare a word ``plugin.word`` for ``with``; decorates its signature.

    The signature checks what a kernel passes, as one of ``@remora.op``, and
    returns ``Region(call, ...)``. ``.reference`` attaches a function
    ``(machine, region)`` that gives a context manager. ``lowered_in`` as of ``op``.

    Raises:
        PluginError: the name is not ``plugin.word``, or is another operation's.
    """

    check_name(name)

    def declare(signature: Callable[..., Any]) -> RegionOp:
        word = register(name, signature, lambda n, s: RegionOp(n, s, lowered_in))
        assert isinstance(word, RegionOp)
        return word

    return declare


@dataclass
class Span:
    """What a ``with`` of a word has become in a module.

    begin, end: the operations around the code, in one block.
    """

    begin: CustomOp
    end: CustomOp

    @property
    def attributes(self) -> dict[str, Any]:
        """The constants that the region was made with; ``copy`` counts the copies."""
        return self.begin.attributes

    def body(self) -> list[Operation]:
        """The operations between the two, in order."""
        found = []
        op = self.begin.op.next_op
        while op is not self.end.op:
            assert op is not None
            found.append(op)
            op = op.next_op
        return found


def spans(ops: list[CustomOp], name: str) -> Iterator[Span]:
    """The regions of a word among the operations of a module, inner ones first."""
    opened: list[CustomOp] = []
    for op in ops:
        if op.name == name and op.attributes["edge"] == "begin":
            opened.append(op)
        elif op.name == name:
            begin = opened.pop()
            if begin.op.parent is not op.op.parent:
                raise PluginError(f"a region of {name} has lost its end", where=begin.where)
            yield Span(begin, op)
