"""Kernels written in TLX, each with a plain Python function in front."""

from remora.kernels.attention import attention, attention_packed
from remora.kernels.grouped_matmul import grouped_matmul
from remora.kernels.matmul import matmul
from remora.kernels.triangle import triangle_multiply

__all__ = ["attention", "attention_packed", "grouped_matmul", "matmul", "triangle_multiply"]
