"""``remora pipeline``: stages, passes, and what plugins change in them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from remora.cli.plugins import WITH_HELP


def pipeline(
    target: Annotated[str, typer.Option(help="cuda:90, hip:gfx950, ...")] = "cuda:90",
    with_: Annotated[list[str] | None, typer.Option("--with", help=WITH_HELP)] = None,
    language: Annotated[str, typer.Option(help="triton or gluon.")] = "triton",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the stages of a target and their passes, by the anchors that edits take."""
    from remora import host
    from remora.cli.plugins import pipelines_of
    from remora.host.targets import gpu_target
    from remora.pipeline import overview

    pipelines = pipelines_of(with_ or [])  # first: they may load native plugins
    host.features()
    view = overview(gpu_target(target), language, pipelines)
    if as_json:
        typer.echo(json.dumps(view, indent=2))
    else:
        _show(view)


def _show(view: dict[str, Any]) -> None:
    from rich.text import Text

    from remora.cli import show

    out = show.console()
    head = f"  Triton {view['triton']}, language {view['language']}"
    if view["pipelines"]:
        head += f", with {', '.join(view['pipelines'])}"
    out.print(Text.assemble((view["target"], "bold"), head))
    width = max(len(r.get("anchor", "")) for s in view["stages"] for r in s["passes"]) + 2
    for stage in view["stages"]:
        out.print()
        made = {"module": "", "text": "  makes text", "binary": "  makes a binary"}[stage["makes"]]
        out.print(Text.assemble((stage["stage"], "bold"), (made, "dim")))
        for edit in stage["edits"]:
            out.print(Text(f"* {edit['edit']}{_tail(edit)}", "green"))
        for row in stage["passes"]:
            out.print(_row(row, width))


def _row(row: dict[str, Any], width: int) -> Any:
    from rich.text import Text

    if "inserted" in row:
        return Text(f"+ {row['inserted']:<{width}} {row['place']}{_tail(row)}", "green")
    arguments = ", ".join(json.dumps(a) for a in row["arguments"])
    stock = row["pass"] + (f"({arguments})" if arguments else "")
    stock = stock or "no pass: where Triton's own tools add theirs"
    if "edit" not in row:
        return Text.assemble(f"  {row['anchor']:<{width}} ", (stock, "dim"))
    return Text(f"- {row['anchor']:<{width}} {row['edit']} (pipeline {row['pipeline']})", "red")


def _tail(row: dict[str, Any]) -> str:
    return f" (pipeline {row['pipeline']}{', for ' + row['when'] if row['when'] else ''})"
