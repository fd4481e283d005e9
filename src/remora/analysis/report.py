"""The model of one kernel, or of several side by side, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remora.analysis.model import KernelModel, LoopModel

if TYPE_CHECKING:
    from rich.table import Table


def compare(models: Sequence[tuple[str, KernelModel]]) -> Table:
    """A table with a column for each loop of each kernel; loops without a matrix instruction
    stand beside those of the same place in another kernel.

    models: a heading and a kernel.
    """
    from rich.table import Table

    table = Table(title="one iteration of each innermost loop, of one program")
    table.add_column("")
    columns: list[tuple[KernelModel, LoopModel]] = []
    for heading, kernel in models:
        for loop in kernel.loops:
            table.add_column(f"{heading}\nline {loop.line}", justify="right")
            columns.append((kernel, loop))
    for label, cells in _rows(columns):
        if any(cells):
            table.add_row(label, *cells)
    return table


def _rows(columns: Sequence[tuple[KernelModel, LoopModel]]) -> list[tuple[str, list[str]]]:
    units = list(dict.fromkeys(unit for _, loop in columns for unit in loop.cycles))
    kinds = list(dict.fromkeys(kind for _, loop in columns for kind in loop.instructions))

    def of_loop(get: Any) -> list[str]:
        return [_text(get(loop)) for _, loop in columns]

    def of_kernel(get: Any) -> list[str]:
        return [_text(get(kernel)) for kernel, _ in columns]

    rows = [
        ("bound by", of_loop(lambda x: x.bound)),
        ("cycles, all overlapped", of_loop(lambda x: x.at_best)),
        ("cycles, none overlapped", of_loop(lambda x: x.in_a_row)),
        ("matrix unit busy, at best", of_loop(_busy)),
        *((f"cycles: {unit}", of_loop(lambda x, u=unit: x.cycles.get(u))) for unit in units),
        ("bank conflicts, cycles more", of_loop(lambda x: x.conflicts)),
        ("accesses of unknown banks", of_loop(lambda x: x.unknown)),
        ("MFLOP", of_loop(lambda x: round(x.flops / 1e6, 2))),
        ("shared memory, bytes", of_loop(lambda x: _pairs(x.shared))),
        ("global memory, bytes", of_loop(lambda x: _pairs(x.global_))),
        ("widths (bytes a lane x number)", of_loop(_widths)),
        *((f"instructions: {kind}", of_loop(lambda x, k=kind: x.instructions.get(k)))
          for kind in kinds),
        ("instructions in all", of_loop(lambda x: x.issue)),
        ("waits", of_loop(lambda x: "\n".join(x.waits))),
        ("barriers", of_loop(lambda x: x.barriers)),
        ("spills in the loop", of_loop(lambda x: x.spills)),
        ("not known", of_loop(lambda x: "\n".join(x.notes))),
        ("warps of the loop", of_loop(lambda x: x.warps)),
        ("registers of a lane", of_kernel(lambda k: k.registers)),
        ("spilled registers", of_kernel(lambda k: k.spills)),
        ("shared memory of a program", of_kernel(lambda k: k.shared)),
        ("programs a multiprocessor", of_kernel(lambda k: k.occupancy)),
        ("limited by", of_kernel(lambda k: k.limit)),
        ("rates of", of_kernel(lambda k: k.machine)),
    ]  # fmt: skip
    return [(label, cells) for label, cells in rows]


def _text(value: Any) -> str:
    if value is None or value == 0:
        return ""
    return (
        f"{value:,.0f}"
        if isinstance(value, float)
        else (f"{value:,}" if isinstance(value, int) else str(value))
    )


def _busy(loop: LoopModel) -> str:
    return f"{loop.matrix_share:.0%}" if loop.flops else ""


def _pairs(amounts: dict[str, int]) -> str:
    return "\n".join(f"{what} {amount:,}" for what, amount in amounts.items())


def _widths(loop: LoopModel) -> str:
    return "\n".join(
        f"{kind} " + ", ".join(f"{width} x {count}" for width, count in widths.items())
        for kind, widths in loop.widths.items()
    )
