"""Finds the installed plugins; one that is broken is kept, with the reason."""

from __future__ import annotations

import difflib
import importlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from remora.errors import PluginError, RemoraError
from remora.pipeline import PassRef
from remora.plugins.plugin import Plugin

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

#: The entry point group in which distributions name their plugins.
GROUP = "remora.plugins"


@dataclass(frozen=True)
class Found:
    """One entry point: the plugin behind it, or why it was refused.

    name: the entry point's.
    target: what it names, "package.module:attribute".
    distribution: who brings it, with its version.
    """

    name: str
    target: str
    distribution: str
    plugin: Plugin | None = None
    error: PluginError | None = None


class Registry:
    """The plugins that are installed, looked up once, at the first question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: tuple[Found, ...] | None = None

    def found(self) -> tuple[Found, ...]:
        """Every plugin, refused ones too, in the order of their distributions' names."""
        with self._lock:
            if self._found is None:
                self._found = _discover(entry_points(group=GROUP))
            return self._found

    def refresh(self) -> None:
        """Forget what was found: the next question looks again."""
        with self._lock:
            self._found = None

    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins that loaded."""
        return tuple(f.plugin for f in self.found() if f.plugin is not None)

    def plugin(self, name: str) -> Plugin:
        """A plugin by its name.

        Raises:
            PluginError: none has this name, or the one that has it was refused.
        """
        for found in self.found():
            if found.plugin is not None and found.plugin.name == name:
                return found.plugin
        for found in self.found():
            if found.error is not None and found.name == name:
                raise found.error
        names = ", ".join(p.name for p in self.plugins())
        raise PluginError(
            f"no plugin is named {name!r}",
            hint=f"installed: {names or 'none'}; see `remora list`",
        )

    def find_pass(self, name: str) -> type[ModulePass]:
        """The class of a pass by its name, over all plugins. Imports their passes.

        Raises:
            PluginError: no plugin has it, or several have.
        """
        owners: dict[type[ModulePass], str] = {}
        known: list[str] = []
        broken: list[str] = []
        for plugin in self.plugins():
            for item in plugin.passes:
                try:
                    cls = pass_class(item)
                except PluginError as error:
                    broken.append(f"{plugin.name}: {error.what}")
                    continue
                known.append(cls.name)
                if cls.name == name:
                    owners.setdefault(cls, plugin.name)
        if len(owners) == 1:
            return next(iter(owners))
        if owners:
            places = [f"{c.__module__}:{c.__qualname__} ({o})" for c, o in owners.items()]
            raise PluginError(
                f"several plugins have a pass {name!r}: {', '.join(places)}",
                hint='name one by its class, "package.module:Class"',
            )
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        listed = ", ".join(near or sorted(known)) or "none"
        raise PluginError(
            f"no plugin has a pass {name!r}",
            where="; ".join(f"not loaded, {reason}" for reason in broken),
            hint=f'{"nearest" if near else "passes"}: {listed}; or write "package.module:Class"',
        )


registry = Registry()


def pass_class(item: PassRef | type[ModulePass]) -> type[ModulePass]:
    """The class of a plugin's pass, imported if need be.

    Raises:
        PluginError: it cannot be imported, or is not a pass.
    """
    if not isinstance(item, PassRef):
        return item
    module, _, name = item.target.partition(":")
    try:
        cls: Any = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"the pass {item.target!r} cannot be imported: {_reason(error)}",
            hint='write "package.module:Class"',
        ) from error
    if not (isinstance(cls, type) and hasattr(cls, "apply") and hasattr(cls, "name")):
        raise PluginError(
            f"{item.target!r} is not a pass",
            hint="derive a dataclass from remora.ModulePass, with a name and apply(ctx, module)",
        )
    return cls


def _discover(points: Iterable[EntryPoint]) -> tuple[Found, ...]:
    result: list[Found] = []
    owners: dict[str, Found] = {}
    for point in sorted(points, key=lambda p: (_distribution(p), p.name, p.value)):
        found = _load(point)
        if found.plugin is not None:
            first = owners.setdefault(found.plugin.name, found)
            if first is not found:
                found = _refuse(
                    point,
                    f"its name {found.plugin.name!r} is taken by {first.distribution}",
                    hint="uninstall one of the two, or rename this one",
                )
        result.append(found)
    return tuple(result)


def _load(point: EntryPoint) -> Found:
    """The plugin of an entry point. Whatever goes wrong there stays there."""
    try:
        value = point.load()
    except (Exception, SystemExit) as error:
        return _refuse(
            point,
            f"it cannot be imported: {_reason(error)}",
            hint=f"repair or uninstall it; `python -c 'import {point.module}'` shows the error",
            cause=error,
        )
    if not isinstance(value, Plugin):
        return _refuse(
            point,
            f"its entry point names a value of type {type(value).__name__}, not a Plugin",
            hint='write NAME = "package.module:plugin", plugin being a remora.Plugin',
        )
    return Found(point.name, point.value, _distribution(point), plugin=value)


def _refuse(
    point: EntryPoint, what: str, *, hint: str, cause: BaseException | None = None
) -> Found:
    distribution = _distribution(point)
    error = PluginError(
        f"the plugin {point.name!r} of {distribution} was refused: {what}",
        where=f"entry point {point.name} = {point.value}",
        hint=hint,
    )
    error.__cause__ = cause
    return Found(point.name, point.value, distribution, error=error)


def _distribution(point: EntryPoint) -> str:
    if point.dist is None:
        return "an unknown distribution"
    return f"{point.dist.name} {point.dist.version}"


def _reason(error: BaseException) -> str:
    if isinstance(error, RemoraError):
        return error.what
    return f"{type(error).__name__}: {error}"
