"""``remora list``: the plugins found here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.errors import PluginError

if TYPE_CHECKING:
    from remora.plugins import Found, Plugin


def list_plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the plugins found here, what each brings, and why one was refused.

    Native ones are those of installed distributions and of TRITON_PLUGIN_PATHS.
    """
    from remora.cli import natives, show
    from remora.plugins import registry

    rows, native = [_row(found) for found in registry.found()], natives.natives()
    if as_json:
        typer.echo(json.dumps({"plugins": rows, "natives": native}, indent=2))
        return
    if rows:
        _show(rows)
    if native:
        typer.echo()
        natives.show(native, show.console())
    if not rows and not native:
        typer.echo(
            "No plugin is installed: no distribution here has an entry point "
            "in the groups remora.plugins and remora.native."
        )


def _row(found: Found) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": found.plugin.name if found.plugin else found.name,
        "distribution": found.distribution,
        "entry_point": found.target,
        "ok": found.plugin is not None,
    }
    if found.plugin is not None:
        return row | _contents(found.plugin)
    error = found.error
    assert error is not None
    return row | {"error": {"what": error.what, "where": error.where, "hint": error.hint}}


def _contents(plugin: Plugin) -> dict[str, Any]:
    from remora.pipeline.subjects import describe
    from remora.plugins.discovery import pass_class
    from remora.plugins.plugin import name_of

    passes: list[dict[str, str]] = []
    for item in plugin.passes:
        try:
            cls = pass_class(item)
        except PluginError as error:
            passes.append({"name": describe(item), "error": error.what})
        else:
            passes.append({"name": cls.name, "class": f"{cls.__module__}:{cls.__qualname__}"})
    return {
        "version": plugin.version,
        "passes": passes,
        "ops": [name_of(op) for op in plugin.ops],
        "dialects": [name_of(dialect) for dialect in plugin.dialects],
        "pipelines": [
            {
                "name": pipeline.name,
                "edits": [str(e) for e in pipeline.edits],
            }
            for pipeline in plugin.pipelines
        ],
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from remora.cli import show

    out = show.console()
    for index, row in enumerate(rows):
        if index:
            out.print()
        mark = Text("ok", "green") if row["ok"] else Text("refused", "bold red")
        version = f" {row.get('version', '')}".rstrip()
        out.print(
            Text.assemble(
                (row["name"], "bold"), version, (f"  from {row['distribution']}  ", "dim"), mark
            )
        )
        if row["ok"]:
            kinds = ("passes", "ops", "dialects", "pipelines")
            pairs = [(k, Text("\n").join(map(_item, row[k]))) for k in kinds if row[k]]
        else:
            labels = (("why", "what"), ("where", "where"), ("way out", "hint"))
            pairs = [(label, Text(row["error"][key])) for label, key in labels]
        out.print(show.rows(*pairs))


def _item(item: Any) -> Any:
    from rich.text import Text

    if isinstance(item, str):
        return Text(item)
    text = Text(item["name"])
    if "error" in item:
        return text.append(f"  {item['error']}", "red")
    for edit in item.get("edits", ()):
        text.append(f"\n  {edit}", "dim")
    return text.append(f"  {item['class']}", "dim") if "class" in item else text
