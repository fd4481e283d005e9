"""Whether a kernel's buffers fit into the target."""

from __future__ import annotations

import re
from typing import Any

from triton.runtime.errors import OutOfResources

from remora import host
from remora.errors import OutOfSharedMemory, OutOfTensorMemory
from remora.tlx.tensor_memory import COLUMNS
from remora.tlx.types import columns

_ALLOCATION = re.compile(
    r'"ttg\.local_alloc"\(\).* -> !ttg\.memdesc<((?:\d+x)+)(\w+), .*? loc\((.*)\)$', re.MULTILINE
)

_MATRICES = re.compile(
    r'"ttng\.tmem_alloc"\(\).* -> !ttg\.memdesc<((?:\d+x)+\w+), .*? loc\((.*)\)$', re.MULTILINE
)


class TlxOutOfSharedMemory(OutOfSharedMemory, OutOfResources):
    """``OutOfSharedMemory`` that Triton's autotuner knows: it goes on to the next configuration.

    required, limit: bytes.
    """

    required = 0
    limit = 0
    name = "shared memory"


class TlxOutOfTensorMemory(OutOfTensorMemory, OutOfResources):
    """``OutOfTensorMemory`` that Triton's autotuner knows, as ``TlxOutOfSharedMemory``.

    required, limit: columns.
    """

    required = 0
    limit = COLUMNS
    name = "tensor memory"


def check_memory(text: str, metadata: dict[str, Any]) -> None:
    """Refuse a kernel whose buffers exceed the target's shared or tensor memory.

    Args:
        text, metadata: as of ``check_shared_memory``.

    Raises:
        TlxOutOfSharedMemory, TlxOutOfTensorMemory: with what each buffer takes, and the sum.
    """
    check_tensor_memory(text, metadata)
    check_shared_memory(text, metadata)


def check_tensor_memory(text: str, metadata: dict[str, Any]) -> None:
    """Refuse a kernel whose buffers exceed the 512 columns of tensor memory.

    Args:
        text: the TTGIR that was lowered, in the generic form.
        metadata: the compilation's; ``tmem_size`` is the columns that the program needs.

    Raises:
        TlxOutOfTensorMemory: with each buffer's columns, and their sum.
    """
    needed = metadata.get("tmem_size") or 0
    if needed <= COLUMNS:
        return
    found = [(_columns(kind), kind, _place(location)) for kind, location in _MATRICES.findall(text)]
    rows = [f"    {taken:>5} columns  {kind}  {place}" for taken, kind, place in found]
    total = sum(taken for taken, _, _ in found)
    error = TlxOutOfTensorMemory(
        f"the kernel needs {max(total, needed)} columns of tensor memory, there are {COLUMNS}\n"
        + "\n".join(rows)
        + f"\n    {total:>5} columns  in all; the rest is between them",
        where=f"the largest buffer: {max(found)[2]}" if found else "",
        hint="fewer buffers (num), smaller tiles, or buffers over each other: "
        "tlx.local_alloc(..., reuse=...)",
    )
    error.required = needed
    raise error


def _columns(kind: str) -> int:
    """Columns of the buffers that a type of tensor memory is of."""
    *extents, element = kind.split("x")
    width = int((re.findall(r"\d+", element) or ["64"])[0])
    num, rows, length = (1, *map(int, extents))[-3:]
    return num * columns((rows, length), width, scales=element == "i8")


def check_shared_memory(text: str, metadata: dict[str, Any]) -> None:
    """Refuse a kernel whose buffers exceed the target's shared memory.

    Args:
        text: the TTGIR that was lowered, in the generic form.
        metadata: the compilation's; ``shared`` is what the program needs.

    Raises:
        TlxOutOfSharedMemory: with each buffer's bytes, and their sum.
    """
    limit, needed = host.shared_memory(metadata["target"]), metadata["shared"]
    if limit is None or needed <= limit:
        return
    buffers = [
        (_bytes(extents, element), f"{extents}{element}", _place(location))
        for extents, element, location in _ALLOCATION.findall(text)
    ]
    total = sum(size for size, _, _ in buffers)
    rows = [f"    {size:>9,} bytes  {kind}  {place}" for size, kind, place in buffers]
    target = metadata["target"]
    error = TlxOutOfSharedMemory(
        f"the kernel needs {needed:,} bytes of shared memory, {target.backend}:{target.arch} has "
        f"{limit:,}\n" + "\n".join(rows) + f"\n    {total:>9,} bytes  in all; the rest is for "
        "conversions of layouts",
        where=f"the largest buffer: {max(buffers)[2]}" if buffers else "",
        hint="fewer buffers (num), or smaller tiles",
    )
    error.required, error.limit = needed, limit
    raise error


def _bytes(extents: str, element: str) -> int:
    size = int((re.findall(r"\d+", element) or ["64"])[0])
    for extent in extents.rstrip("x").split("x"):
        size *= int(extent)
    return size // 8


def _place(location: str) -> str:
    """The variable and its line from a location's text."""
    strings = re.findall(r'"([^"]*)"(?::(\d+))?', location)
    name = next((text for text, line in strings if not line), "")
    place = next((f"{text}:{line}" for text, line in strings if line), "?")
    return f"{name} ({place})" if name else place
