"""What the targets have that a compiled kernel has to fit into."""

from __future__ import annotations

from typing import Any

# Bytes of shared memory that one program can have. NVIDIA: CUDA C++ Programming
# Guide, technical specifications by compute capability (maximum a thread
# block). AMD: CDNA 3 and CDNA 4 instruction set references, LDS of a workgroup.
_SHARED_MEMORY: dict[tuple[str, str], int] = {
    ("cuda", "80"): 163 << 10,
    ("cuda", "86"): 99 << 10,
    ("cuda", "87"): 163 << 10,
    ("cuda", "89"): 99 << 10,
    ("cuda", "90"): 227 << 10,
    ("cuda", "100"): 227 << 10,
    ("cuda", "103"): 227 << 10,
    ("cuda", "120"): 99 << 10,
    ("hip", "gfx942"): 64 << 10,
    ("hip", "gfx950"): 160 << 10,
}


def shared_memory(target: Any) -> int | None:
    """Bytes of shared memory that a program can have on a ``GPUTarget``; None if unknown."""
    return _SHARED_MEMORY.get((target.backend, str(target.arch)))
