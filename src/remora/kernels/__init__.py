"""Kernels written in TLX, each with a plain Python function in front."""

from remora.kernels.attention import attention
from remora.kernels.matmul import matmul

__all__ = ["attention", "matmul"]
