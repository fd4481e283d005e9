"""Rebuilds a stock stage so that its passes can be listed, and edited, as it runs.

A stage of Triton's compiler is a Python function that adds passes to a pass
manager and runs it. ``instrument`` builds the function again over a copy of its
globals in which libtriton's submodules are stand-ins: adding a pass calls the
session first, and the pass manager is the session's. The stock function, its
module and its class are not touched.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

from remora.errors import PipelineError


@dataclass(frozen=True)
class StockPass:
    """One pass that a stage adds: its name and how to add it to a pass manager.

    group: where the binding has it, "common." or "nvidia.ttnvgpuir."; "" for
    what is no pass of its own but a point at which others may add some.
    """

    name: str
    add: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    group: str = ""

    def on_command_line(self) -> str:
        """As ``remora opt -p`` takes it."""
        return as_call(self.group + self.name, self.arguments, self.keywords)

    def add_to(self, manager: Any) -> None:
        """Add the pass to a ``libtriton.ir.pass_manager``."""
        self.add(manager, *self.arguments, **self.keywords)


def as_call(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """``name(1, "two", three=3)``, without parentheses where there is no argument."""
    given = [*map(_literal, arguments), *(f"{k}={_literal(v)}" for k, v in keywords.items())]
    return f"{name}({', '.join(given)})" if given else name


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


class Session:
    """What happens to the passes of one stage: see ``Recorder`` and ``Runner``."""

    def pass_manager(self, context: Any) -> PassList:
        """A new pass manager of the stage."""
        return PassList(self, context)

    def run(self, passes: PassList, module: Any, name: str) -> None:
        """The stage runs one of its pass managers over its module."""
        raise NotImplementedError

    def debug_enabled(self, passes: PassList) -> bool:
        """The stage asks whether dumping is on."""
        raise NotImplementedError


class PassList:
    """Stands in for ``libtriton.ir.pass_manager``: keeps the passes until it is run."""

    def __init__(self, session: Session, context: Any) -> None:
        self.session = session
        self.context = context
        self.passes: list[StockPass] = []
        self.debug = False

    def enable_debug(self) -> bool:
        """As ``pass_manager.enable_debug``: whether dumping is on."""
        self.debug = True
        return self.session.debug_enabled(self)

    def run(self, module: Any, name: str = "") -> None:
        """As ``pass_manager.run``: run the passes over the module."""
        self.session.run(self, module, name)

    def __getattr__(self, name: str) -> Any:
        raise PipelineError(
            f"the stage uses pass_manager.{name}, which Remora does not know",
            hint="report it with the Triton release and the target",
        )


class Box:
    """Stands in for the stage's module, so that a pass can put another in its place."""

    __slots__ = ("module",)

    def __init__(self, module: Any) -> None:
        object.__setattr__(self, "module", module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "module":
            object.__setattr__(self, name, value)
        else:
            setattr(self.module, name, value)


def unbox(value: Any) -> Any:
    """The module in a box; anything else as it is."""
    return value.module if isinstance(value, Box) else value


class Unknown:
    """A value that a dry run does not have. Whatever is asked of it is unknown too."""

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Unknown:
        return self

    def __contains__(self, item: object) -> bool:
        return False

    def __iter__(self) -> Iterator[Unknown]:
        return iter(())


class EndOfPasses(Exception):
    """A dry run has seen the last pass of its stage."""


class Namespace:
    """Stands in for a submodule of libtriton (``passes``, ``nvidia``, ``ir``, ...)."""

    def __init__(self, session: Session, module: Any, path: tuple[str, ...]) -> None:
        self._session = session
        self._module = module
        self._path = path

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if self._path == ("ir",) and name == "pass_manager":
            return self._session.pass_manager
        if isinstance(value, ModuleType):
            return Namespace(self._session, value, (*self._path, name))
        if name.startswith("add_") and self._path[0] != "llvm":
            group = ".".join(part for part in self._path if part != "passes") + "."
            return functools.partial(_add, name.removeprefix("add_"), group, value)
        if isinstance(value, type) or not callable(value):
            return _Type(value, self._path) if self._path == ("ir",) else value
        return functools.partial(_call, value, self._path)


class _Type:
    """A class of libtriton's ``ir``, called with unboxed arguments."""

    def __init__(self, cls: Any, path: tuple[str, ...]) -> None:
        self._cls, self._path = cls, path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self._cls, self._path, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cls, name)


def _add(name: str, group: str, add: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(manager, PassList):
        manager.passes.append(StockPass(name, add, args, kwargs, group))
    else:
        add(manager, *args, **kwargs)


def _call(function: Any, path: tuple[str, ...], *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, Unknown) for a in (*args, *kwargs.values())):
        if path[0] == "llvm":
            raise EndOfPasses
        return Unknown()
    return function(*map(unbox, args), **{k: unbox(v) for k, v in kwargs.items()})


def _deferred(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that may add passes of its own: later, if it is given a pass list."""
    if args and isinstance(args[0], PassList):
        point = kwargs.get("point", "instrument")
        args[0].passes.append(StockPass(str(point), function, args[1:], kwargs))
        return None
    return function(*map(unbox, args), **kwargs)


class _Rebuilder:
    """Builds functions again over globals that hold stand-ins."""

    def __init__(self, session: Session) -> None:
        from triton._C import libtriton

        self.session = session
        self.libtriton = {id(v): k for k, v in vars(libtriton).items() if isinstance(v, ModuleType)}
        self.globals: dict[int, dict[str, Any]] = {}
        self.functions: dict[int, FunctionType] = {}

    def namespace(self, value: Any) -> Any:
        """The stand-in of a global: another object for a part of libtriton, else itself."""
        if isinstance(value, ModuleType) and id(value) in self.libtriton:
            return Namespace(self.session, value, (self.libtriton[id(value)],))
        if isinstance(value, functools.partial):
            return functools.partial(_deferred, value)
        return value

    def function(self, function: FunctionType) -> FunctionType:
        """The function, over stand-ins."""
        known = self.functions.get(id(function))
        if known is not None:
            return known
        scope = self.globals.get(id(function.__globals__))
        if scope is None:
            scope = {k: self.namespace(v) for k, v in function.__globals__.items()}
            self.globals[id(function.__globals__)] = scope
        cells = tuple(self.cell(c) for c in function.__closure__ or ())
        new = FunctionType(
            function.__code__, scope, function.__name__, function.__defaults__, cells or None
        )
        new.__kwdefaults__ = function.__kwdefaults__
        self.functions[id(function)] = new
        return new

    def cell(self, cell: CellType) -> CellType:
        """A closure's cell, with what can hold passes rebuilt."""
        try:
            value = cell.cell_contents
        except ValueError:  # empty: a name not bound yet
            return cell
        if isinstance(value, FunctionType):
            return CellType(self.function(value))
        if _is_backend(value):
            return CellType(self.backend(value))
        stand_in = self.namespace(value)
        return cell if stand_in is value else CellType(stand_in)

    def backend(self, backend: Any) -> Any:
        """A backend whose methods are rebuilt: an instance of a subclass of its class."""
        body: dict[str, Any] = {}
        for cls in reversed(type(backend).__mro__[:-1]):
            for name, value in vars(cls).items():
                if isinstance(value, FunctionType):
                    body[name] = self.function(value)
                elif isinstance(value, staticmethod) and isinstance(value.__func__, FunctionType):
                    body[name] = staticmethod(self.function(value.__func__))
                elif isinstance(value, classmethod) and isinstance(value.__func__, FunctionType):
                    body[name] = classmethod(self.function(value.__func__))
        new: Any = object.__new__(type(type(backend).__name__, (type(backend),), body))
        new.__dict__.update(backend.__dict__)
        return new


def _is_backend(value: Any) -> bool:
    from triton.backends.compiler import BaseBackend

    return isinstance(value, BaseBackend)


def instrument(stage: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """The stage's function, its passes going through ``session``.

    Raises:
        PipelineError: the stage is not a Python function.
    """
    if not isinstance(stage, FunctionType):
        kind = "a built-in function" if isinstance(stage, BuiltinFunctionType) else repr(stage)
        raise PipelineError(
            f"a stage has to be a Python function to be edited, this one is {kind}",
            hint="another stage hook replaced it; put the edit before that hook",
        )
    return _Rebuilder(session).function(stage)


class Recorder(Session):
    """Lists the passes of a stage without running any."""

    def __init__(self) -> None:
        self.passes: list[StockPass] = []

    def run(self, passes: PassList, module: Any, name: str) -> None:
        self.passes.extend(passes.passes)

    def debug_enabled(self, passes: PassList) -> bool:
        return False


class _Metadata(dict[str, Any]):
    def __missing__(self, key: str) -> Unknown:
        return Unknown()


def record(stage: Callable[..., Any]) -> list[StockPass]:
    """The stock passes of a stage, in order; none where the stage runs no pass."""
    recorder = Recorder()
    with suppress(EndOfPasses):
        instrument(stage, recorder)(Unknown(), _Metadata())
    return recorder.passes


def anchors(passes: list[StockPass]) -> Iterator[str]:
    """The name of each pass within its stage: ``pass``, or ``pass#n`` where it runs more often."""
    total: dict[str, int] = {}
    for stock in passes:
        total[stock.name] = total.get(stock.name, 0) + 1
    seen: dict[str, int] = {}
    for stock in passes:
        seen[stock.name] = seen.get(stock.name, 0) + 1
        yield f"{stock.name}#{seen[stock.name]}" if total[stock.name] > 1 else stock.name
