"""What an edit can put into a stage: Python passes, and compiled passes by name."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from remora.errors import PipelineError
from remora.pipeline.stage import as_call

if TYPE_CHECKING:
    from xdsl.passes import ModulePass


@dataclass(frozen=True)
class PassRef:
    """A Python pass by name: ``"package.module:Class"``, imported when it first runs.

    Keeps xDSL, and the pass, out of a process that compiles nothing with it.
    ``trigger``: the pass runs only over modules whose text contains this.
    ``also``: modules, beside the pass's own, whose packages' content can change
    what the pass does.
    """

    target: str
    arguments: tuple[tuple[str, Any], ...] = ()
    trigger: str = ""
    also: tuple[str, ...] = ()

    @property
    def module_name(self) -> str:
        """The module that defines the pass."""
        return self.target.partition(":")[0]

    def load(self) -> ModulePass:
        """Import the class and make the pass.

        Raises:
            PipelineError: it cannot be imported, or does not take the arguments.
        """
        module, _, name = self.target.partition(":")
        try:
            cls = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            raise PipelineError(
                f"the pass {self.target!r} cannot be imported: {type(error).__name__}: {error}",
                hint='write "package.module:Class"',
            ) from error
        try:
            instance: ModulePass = cls(**dict(self.arguments))
        except Exception as error:
            raise PipelineError(
                f"the pass {self.target!r} cannot be made: {type(error).__name__}: {error}",
                where=f"with the arguments {dict(self.arguments)}",
                hint="arguments are the fields of the pass",
            ) from error
        return instance


@dataclass(frozen=True)
class CompiledPass:
    """A pass in C++, by name, with arguments: what libtriton's binding adds to a pass manager."""

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    kind: ClassVar[str] = "compiled"

    def adder(self) -> Callable[..., Any]:
        """What adds the pass to a pass manager.

        Raises:
            RemoraError: there is no such pass.
        """
        raise NotImplementedError

    def on_command_line(self) -> str:
        """As ``remora opt -p`` takes it."""
        return as_call(self.name, self.arguments, dict(self.keywords))

    def check(self) -> None:
        """Refuse a pass that there is not, or that takes other arguments: see ``add_to``."""
        from triton._C.libtriton import ir

        self.add_to(ir.pass_manager(ir.context()))

    def add_to(self, manager: Any) -> None:
        """Add the pass to a ``libtriton.ir.pass_manager``.

        Raises:
            PipelineError: there is no such pass, or it takes other arguments.
        """
        adder = self.adder()
        try:
            adder(manager, *self.arguments, **dict(self.keywords))
        except (TypeError, ValueError, RuntimeError) as error:  # the latter: C++ exceptions
            says = "" if isinstance(error, TypeError) else f": {error}"
            raise PipelineError(
                f"the {self.kind} pass {self.name!r} does not take these arguments{says}",
                where=self.on_command_line(),
                hint=f"it takes {parameters_of(adder)}",
            ) from error


@dataclass(frozen=True)
class StockRef(CompiledPass):
    """A stock pass by name, with arguments: see ``stock``. ``trigger`` as of ``PassRef``."""

    trigger: str = ""
    kind: ClassVar[str] = "stock"

    def adder(self) -> Callable[..., Any]:
        """See ``CompiledPass``."""
        return find_stock(self.name)


def parameters_of(adder: Callable[..., Any]) -> str:
    """What a stock pass takes, in words: "str, int, int"."""
    signature = (adder.__doc__ or "").partition("(")[2].partition(") ->")[0]
    signature = re.sub(r"typing.SupportsInt( \| typing.SupportsIndex)?", "int", signature)
    parameters = [p for p in signature.split(", ")[1:] if p != "/"]  # without the pass manager
    return ", ".join(re.sub(r"^arg\d+: ", "", p) for p in parameters) or "no arguments"


def stock(name: str, *arguments: Any, **keywords: Any) -> StockRef:
    """A stock pass, to be inserted.

    Args:
        name: as in ``passes.common.add_cse``: ``"common.cse"``, or ``"cse"`` where
            one group alone has it; ``"nvidia.ttnvgpuir.tma_lowering"``.
        arguments, keywords: what the binding takes, for example ``"cuda:90", 4, 32, 1``.
    """
    return StockRef(name, arguments, tuple(keywords.items()))


def stock_passes() -> dict[str, Callable[..., Any]]:
    """Every stock pass of this release, by its full name, with what adds it."""
    from triton._C import libtriton

    return dict(_adders(libtriton.passes, "")) | {
        name: adder
        for vendor in ("nvidia", "amd")
        if hasattr(libtriton, vendor)
        for name, adder in _adders(getattr(libtriton, vendor).passes, f"{vendor}.")
    }


def _adders(module: Any, prefix: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for key, value in vars(module).items():
        if isinstance(value, ModuleType):
            yield from _adders(value, f"{prefix}{key}.")
        elif key.startswith("add_") and callable(value):
            yield prefix + key.removeprefix("add_"), value


def find_stock(name: str) -> Callable[..., Any]:
    """What adds a stock pass to a pass manager.

    Raises:
        PipelineError: no stock pass has the name, or several groups have it.
    """
    known = stock_passes()
    if name in known:
        return known[name]
    named = [full for full in known if full.rpartition(".")[2] == name]
    if len(named) == 1:
        return known[named[0]]
    if named:
        raise PipelineError(
            f"several stock passes are named {name!r}", hint="one of " + ", ".join(named)
        )
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    raise PipelineError(
        f"this release has no stock pass {name!r}",
        hint="nearest: " + ", ".join(near) if near else "see `remora pipeline`",
    )


def load_pass(value: PassRef | ModulePass) -> ModulePass:
    """The pass itself."""
    return value.load() if isinstance(value, PassRef) else value


def trigger_of(value: Any) -> str:
    """Text that a module has to contain for an edit to hold for it; "" for every module."""
    trigger: str = getattr(value, "trigger", "")
    return trigger


def describe(value: Any) -> str:
    """A pass or a function in a few words: its name, or its class."""
    if isinstance(value, PassRef):
        return value.target
    if isinstance(value, CompiledPass):
        return f"{value.kind} pass {as_call(value.name, value.arguments, dict(value.keywords))}"
    if isinstance(value, str):
        return value
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return name or type(value).__name__
