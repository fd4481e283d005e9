"""How the commands print, in a terminal and in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Standard output. In a pipe lines are not folded, so that grep finds what it looks for."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 1000)


def rows(*pairs: tuple[str, Any]) -> Table:
    """Rows of a label and what belongs to it, indented."""
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(style="cyan", no_wrap=True, width=23)
    table.add_column(overflow="fold")
    for label, value in pairs:
        table.add_row("", label, value)
    return table
