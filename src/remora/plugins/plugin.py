"""What a plugin brings, as a value."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remora.errors import PluginError
from remora.pipeline import PassRef, Pipeline, active
from remora.pipeline.dialects import want

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, eq=False)
class Plugin:
    """A named set of passes, dialects, operations and pipelines.

    A distribution brings one through an entry point of the group
    ``remora.plugins``. Compared by identity.

    name: letters, digits, ``.``, ``_`` and ``-``; unique among the installed.
    version: the plugin's own, for people.
    passes: ``PassRef``s ("package.module:Class", imported when first needed) or
        ``ModulePass`` classes; ``remora opt`` finds them by their ``name``.
    dialects: xDSL dialects, or "package.module:Name" of one.
    ops: operations of the language, made by ``remora.op``, or "package.module:name" of one.
    pipelines: ``Pipeline``s, put in force by ``activate``.

    Raises:
        PluginError: one of these is not what it has to be.
    """

    name: str
    version: str = ""
    passes: Sequence[PassRef | type[ModulePass]] = ()
    dialects: Sequence[Any] = ()
    ops: Sequence[Any] = ()
    pipelines: Sequence[Pipeline] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise PluginError(
                f"{self.name!r} is not a plugin's name",
                hint="use letters, digits, '.', '_' and '-', a letter or digit first",
            )
        if not isinstance(self.version, str):
            raise self._wrong("version", self.version, 'write version="1.0"')
        for field, _, _ in _FIELDS:
            value = getattr(self, field)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise self._wrong(field, value, f"write {field}=[...]")
            object.__setattr__(self, field, tuple(value))
        for field, fits, hint in _FIELDS:
            for item in getattr(self, field):
                if not fits(item):
                    raise self._wrong(field, item, hint)

    def _wrong(self, field: str, value: object, hint: str) -> PluginError:
        return PluginError(
            f"{value!r} does not belong into {field} of a plugin",
            where=f"plugin {self.name!r}",
            hint=hint,
        )

    @property
    def is_active(self) -> bool:
        """Whether ``activate`` was called, and ``deactivate`` not since."""
        return _active.get(self.name) is self

    def activate(self) -> None:
        """Put the plugin's pipelines in force for the whole process. Again: does nothing.

        Raises:
            PluginError: another plugin of this name is active.
        """
        with _lock:
            other = _active.setdefault(self.name, self)
            if other is not self:
                raise PluginError(
                    f"another plugin named {self.name!r} is active"
                    + (f" (version {other.version})" if other.version else ""),
                    hint="deactivate() it first, or rename one of the two",
                )
            for dialect in self.dialects:
                want(dialect)
            added: list[Pipeline] = []
            try:
                for pipeline in self.pipelines:
                    active.add(pipeline)
                    added.append(pipeline)
            except BaseException:
                for pipeline in added:
                    active.remove(pipeline)
                del _active[self.name]
                raise

    def deactivate(self) -> None:
        """Take the plugin's pipelines out of force. Does nothing if it is not active."""
        with _lock:
            if self.is_active:
                for pipeline in self.pipelines:
                    active.remove(pipeline)
                del _active[self.name]


_lock = threading.RLock()
_active: dict[str, Plugin] = {}


def _is_pass(item: object) -> bool:
    if isinstance(item, PassRef):
        return _REFERENCE.fullmatch(item.target) is not None
    return isinstance(item, type) and hasattr(item, "apply") and hasattr(item, "name")


def _is_named(item: object) -> bool:
    if isinstance(item, str):
        return _REFERENCE.fullmatch(item) is not None
    return name_of(item) != ""


# What each field holds: a test, and what to write where an item fails it.
_FIELDS: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("passes", _is_pass, 'give remora.PassRef("package.module:Class") or the class'),
    ("dialects", _is_named, 'give "package.module:Name" or the xDSL dialect itself'),
    ("ops", _is_named, 'give "package.module:name" or what remora.op made'),
    ("pipelines", lambda item: isinstance(item, Pipeline), "give remora.Pipeline objects"),
)


def name_of(item: object) -> str:
    """The name of a dialect or an operation, "" if it has none. Imports nothing."""
    if isinstance(item, str):
        return item.partition(":")[2]
    name = getattr(item, "name", None) or getattr(item, "__name__", None)
    return name if isinstance(name, str) else ""
