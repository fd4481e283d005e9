"""Runs a product on the CPU with the reference meaning, without torch.

A process of its own, because Triton decides at import whether it interprets:

    TRITON_INTERPRET=1 python -m remora.kernels.on_cpu
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

# What the demo multiplies: no extent is a multiple of a tile's.
SHAPE = (200, 136, 168)


class HostArray:
    """A NumPy array as Triton's interpreter takes one: what it asks a torch tensor on the CPU."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def dtype(self) -> str:
        """The element type's name."""
        return str(self.array.dtype)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.array.ctypes.data

    def untyped_storage(self) -> HostArray:
        """The memory behind it: itself, it is on the host already."""
        return self

    def cpu(self) -> HostArray:
        """Itself."""
        return self

    def new_empty(self, size: int, device: str) -> HostArray:
        """An array that ``set_`` fills in."""
        return HostArray(self.array[:0])

    def set_(self, storage: HostArray, offset: int, size: Any, stride: Any) -> None:
        """Become a view of ``storage``."""
        self.array = storage.array

    def storage_offset(self) -> int:
        """Where it begins in its storage, in elements."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        """Its strides, in elements."""
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def copy_(self, other: HostArray) -> None:
        """Nothing to copy back: the kernel wrote into this memory."""


def check(shape: tuple[int, int, int] = SHAPE) -> dict[str, Any]:
    """Multiply random fp16 matrices by the GEMMs and compare with float64.

    Returns:
        ok, rel_err (the larger one of ``|c - c64| / |c64|``), seconds, shape.
    """
    import triton
    import triton.language as tl

    from remora.kernels.gemm_cdna import gemm_direct, gemm_staged
    from remora.kernels.gemm_hopper import gemm_pipelined

    m, n, k = shape
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(np.float16)
    b = random.standard_normal((k, n)).astype(np.float16)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    started, errors = time.perf_counter(), {}
    for kernel, stages in ((gemm_pipelined, 3), (gemm_direct, 3), (gemm_staged, 2)):
        c = np.full((m, n), np.nan, np.float16)
        arrays = [HostArray(x) for x in (a, b, c)]
        strides = [s for x in arrays for s in (0, *x.stride())]
        kernel[(triton.cdiv(m, 64) * triton.cdiv(n, 64),)](
            *arrays, m, n, k, *strides, None, None, (), EPILOGUE=None, INDEX=tl.int32,
            BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=4, STAGES=stages, ACC=tl.float32,
        )  # fmt: skip
        difference = np.linalg.norm(c.astype(np.float64) - expected) / np.linalg.norm(expected)
        errors[kernel.__name__] = float(difference)
    worst = max(errors.values())
    return {
        "ok": worst < 1e-3,  # False for NaN
        "rel_err": worst,
        "kernels": errors,
        "shape": list(shape),
        "seconds": time.perf_counter() - started,
    }


if __name__ == "__main__":
    print(json.dumps(check()))
