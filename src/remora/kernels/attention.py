"""``attention``: softmax attention, forward."""

from __future__ import annotations

import math
from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError
from remora.kernels.attention_specialized import attention_forward

_WHERE = "remora.kernels.attention"

#: Head dimensions, and the parts (powers of two) in which the kernel takes them.
HEAD_DIMS = {
    64: (64, 0),
    80: (64, 16),
    96: (64, 32),
    128: (128, 0),
    192: (128, 64),
    256: (256, 0),
}
BLOCK_M = 128


def attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None,
    return_sums: bool = False,
) -> Any:  # fmt: skip
    """``softmax(scale * q @ k.T) @ v``, for each head, on Hopper.

    Args:
        q, k, v: (batch, heads, length, dimension), torch tensors on one GPU, fp16 or
            bf16; length a multiple of 128, dimension one of ``HEAD_DIMS``.
        causal: whether a row sees only columns up to its own.
        scale: of the scores; 1 / sqrt(dimension) by default.
        return_sums: also give the logarithm of each row's sum of exponentials.

    Returns:
        (batch, heads, length, dimension) of q's dtype; with ``return_sums`` also
        (batch, heads, length) in fp32.

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit, or the device
            has no kernel.
    """
    import torch

    _check(q, k, v)
    batch, heads, length, dim = q.shape
    scale = 1 / math.sqrt(dim) if scale is None else scale
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if 0 in q.shape:
        return (o, sums) if return_sums else o
    parts = HEAD_DIMS[dim]
    block_n = 128 if dim <= 128 else 64
    descriptors = []
    for tensor, rows in ((q, BLOCK_M // 2), (k, block_n), (v, block_n), (o, BLOCK_M // 2)):
        flat = tensor.contiguous().view(-1, dim)
        descriptors += [
            TensorDescriptor.from_tensor(flat, [rows, part]) for part in (parts[0], parts[1] or dim)
        ]
    attention_forward[(length // BLOCK_M, batch * heads)](
        *descriptors, sums, scale * math.log2(math.e), length,
        DIM0=parts[0], DIM1=parts[1], BLOCK_M=BLOCK_M, BLOCK_N=block_n, STAGES=2, CAUSAL=causal,
        num_warps=4,
    )  # fmt: skip
    return (o, sums) if return_sums else o


def _check(q: Any, k: Any, v: Any) -> None:
    import torch

    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4:
            kind = f"{x.dim()} dimensions" if isinstance(x, torch.Tensor) else type(x).__name__
            raise KernelArgumentError(
                f"{name} has to be a torch tensor (batch, heads, length, dimension), it is {kind}",
                where=_WHERE,
            )
        if (x.shape, x.dtype, x.device) != (q.shape, q.dtype, q.device):
            raise KernelArgumentError(
                f"q is {tuple(q.shape)} of {q.dtype} on {q.device}, {name} is {tuple(x.shape)} of "
                f"{x.dtype} on {x.device}",
                where=_WHERE,
                hint="give all three one shape and dtype, on one device",
            )
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise KernelArgumentError(f"q is of {q.dtype}", where=_WHERE, hint="use fp16 or bf16")
    length, dim = q.shape[2:]
    if length % BLOCK_M:
        raise KernelArgumentError(
            f"the length has to be a multiple of {BLOCK_M}, it is {length}",
            where=_WHERE,
            hint="other lengths are not implemented yet",
        )
    if dim not in HEAD_DIMS:
        raise KernelArgumentError(
            f"there is no kernel for head dimension {dim}",
            where=_WHERE,
            hint="one of " + ", ".join(map(str, HEAD_DIMS)),
        )
    target = None
    if q.device.type == "cuda":
        target = triton.runtime.driver.active.get_current_target()
    if target is None or target.backend != "cuda" or target.arch != 90:
        raise KernelArgumentError(
            f"there is no kernel for {q.device if target is None else target}",
            where=_WHERE,
            hint="it is written for Hopper (cuda:90)",
        )
