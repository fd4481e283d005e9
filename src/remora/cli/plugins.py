"""Pipelines as they are named on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import PluginError

if TYPE_CHECKING:
    from remora.pipeline import Pipeline

WITH_HELP = (
    "A plugin by its name, or a Pipeline or Plugin as package.module:name or file.py:name; "
    "may be given several times."
)


def pipelines_of(names: list[str]) -> list[Pipeline]:
    """The pipelines of what ``--with`` names; a plugin's dialects are loaded for its passes.

    Raises:
        PluginError: there is no such plugin or pipeline.
    """
    from remora.cli.passes import module_named
    from remora.pipeline import Pipeline
    from remora.pipeline.dialects import want
    from remora.plugins import Plugin, registry

    found: list[Pipeline] = []
    for name in names:
        place, colon, attribute = name.rpartition(":")
        value = getattr(module_named(place), attribute, None) if colon else registry.plugin(name)
        if isinstance(value, Pipeline):
            found.append(value)
        elif isinstance(value, Plugin):
            for dialect in value.dialects:
                want(dialect)
            found += value.pipelines
        else:
            raise PluginError(
                f"{name!r} is neither a pipeline nor a plugin",
                hint="name a remora.Pipeline or a remora.Plugin; `remora list` shows the plugins",
            )
    return found
