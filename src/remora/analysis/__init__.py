"""What bounds a kernel's loops, from its assembly: no hardware needed."""

from remora.analysis.binaries import disassemble, resources
from remora.analysis.compiled import of_kernel
from remora.analysis.model import KernelModel, LoopModel, model, read
from remora.analysis.report import compare

__all__ = [
    "KernelModel",
    "LoopModel",
    "compare",
    "disassemble",
    "model",
    "of_kernel",
    "read",
    "resources",
]
