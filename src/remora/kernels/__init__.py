"""Kernels written in TLX, each with a plain Python function in front."""

from remora.kernels.attention import attention, attention_packed
from remora.kernels.matmul import matmul

__all__ = ["attention", "attention_packed", "matmul"]
