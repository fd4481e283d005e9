"""Whether a kernel's buffers fit into the target."""

from __future__ import annotations

import re
from typing import Any

from triton.runtime.errors import OutOfResources

from remora import host
from remora.errors import OutOfSharedMemory

_ALLOCATION = re.compile(
    r'"ttg\.local_alloc"\(\).* -> !ttg\.memdesc<((?:\d+x)+)(\w+), .*? loc\((.*)\)$', re.MULTILINE
)


class TlxOutOfSharedMemory(OutOfSharedMemory, OutOfResources):
    """``OutOfSharedMemory`` that Triton's autotuner knows: it goes on to the next configuration.

    required, limit: bytes.
    """

    required = 0
    limit = 0
    name = "shared memory"


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
