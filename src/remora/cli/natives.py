"""Native plugins as the commands show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remora.native.loading import Found


def natives() -> list[dict[str, Any]]:
    """Every native library that is named here, as values that JSON can hold."""
    from remora.native.loading import natives

    return [_row(found) for found in natives.found()]


def _row(found: Found) -> dict[str, Any]:
    report, error = found.report, found.error
    return {
        "path": str(found.path),
        "source": found.source,
        "entry_point": found.name,
        "state": "refused" if error else "loaded" if found.is_loaded else "found",
        "verdict": report.verdict.value,
        "name": report.name,
        "version": report.version,
        "api": report.api,
        "built_for": report.release,
        "triton": report.triton,
        "passes": sorted(found.passes),
        "dialects": [d.name for d in report.dialects],
        "ops": sorted(found.ops),
        "error": {"what": error.what, "where": error.where, "hint": error.hint} if error else None,
    }


def show(rows: list[dict[str, Any]], out: Any) -> None:
    """A table of the libraries, and under it why some were refused."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    colours = {"loaded": "green", "found": "", "refused": "bold red"}
    columns = ("native plugin", "state", "for Triton", "passes", "dialects", "operations", "from")
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        name = " ".join(filter(None, (row["name"], row["version"]))) or Path(row["path"]).name
        counts = [str(len(row[kind]) or "") for kind in ("passes", "dialects", "ops")]
        state = Text(row["state"], colours[row["state"]])
        table.add_row(name, state, row["built_for"] or "", *counts, row["source"])
    out.print(table)
    for row in rows:
        if row["error"] is None:
            out.print(Text(f"{row['name']}  ", "bold"), Text(row["path"], "dim"), sep="")
            for kind in ("passes", "dialects", "ops"):
                if row[kind]:
                    out.print(f"  {kind}: {', '.join(row[kind])}")
        else:
            out.print(Text(row["path"], "bold"))
            out.print(Text(f"  {row['error']['what']}", "red"))
            out.print(f"  way out: {row['error']['hint']}")
