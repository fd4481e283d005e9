"""``attention`` and ``attention_packed``: softmax attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError
from remora.kernels.attention_specialized import ROWS, attention_forward

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

# What the keys and values of heads that are worked on together may take of the second-level
# cache, in bytes: an H200 has 50 MiB.
_CACHED = 24 << 20


@dataclass(frozen=True)
class Config:
    """How attention is cut and launched on Hopper.

    block_n: keys of a step. stages: buffers of keys, and of values. consumers: 2 or 3, of 64
    queries each. registers: of a consumer's thread. pingpong: whether consumers take turns in
    issuing products. own_o: whether the result has buffers of its own. persistent: whether
    there is a program for each multiprocessor, or one for each tile of queries.
    """

    block_n: int
    stages: int = 2
    consumers: int = 2
    registers: int = 232
    pingpong: bool = True
    own_o: bool = True
    persistent: bool = True


_CONFIGS = {
    64: Config(128, consumers=3, registers=160),
    80: Config(128),
    96: Config(128),
    128: Config(128),
    192: Config(64),
    256: Config(64, own_o=False, pingpong=False),
}


@dataclass(frozen=True)
class Band:
    """Which keys a query may see: with i + d - left <= j <= i + d + right, None: no limit.

    lower: d is what the keys are more than the queries; else 0.
    """

    left: int | None = None
    right: int | None = None
    lower: bool = False


def attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None,
    window: tuple[int | None, int | None] | None = None, lower_right: bool = False,
    return_sums: bool = False, config: Config | None = None,
) -> Any:  # fmt: skip
    """``softmax(scale * q @ k.T) @ v``, for each head, on Hopper.

    Args:
        q: (batch, heads, queries, dimension), a torch tensor on a GPU, fp16 or bf16, of any
            strides; dimension one of ``HEAD_DIMS``.
        k, v: (batch, key heads, keys, dimension), of q's dtype; the key heads divide the
            heads, and serve as many that follow each other.
        causal: whether query i sees key j only where j <= i.
        scale: of the scores, not negative; 1 / sqrt(dimension) by default.
        window: (left, right): whether query i sees key j only where i - left <= j <= i +
            right; None: no limit on that side.
        lower_right: for ``causal`` and ``window`` queries are numbered so that the last one
            has the last key's number, and not so that the first one has the first one's.
        return_sums: also give the logarithm of each row's sum of exponentials.
        config: how to cut it; chosen from the dimension by default.

    Returns:
        (batch, heads, queries, dimension) of q's dtype, and of its order of dimensions in
        memory; with ``return_sums`` also (batch, heads, queries) in fp32. A query that sees
        no key gets zeros, and -inf.

    Operands that the copy engine cannot take (last dimension not contiguous, rows not
    multiples of 16 bytes apart) are copied first.

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit, or the device
            has no kernel.
    """
    _check(q, k, v, 4, "(batch, heads, length, dimension)")
    if (q.shape[0], *k.shape) != (k.shape[0], *v.shape):
        _refuse_shapes(q, k, v, "the batch of all, all of k and v")
    band = _band(causal, window, lower_right)
    call = _Call(q, k, v, band, _scale(scale, q), config)
    o, sums = call.run()
    return (o, sums) if return_sums else o


def attention_packed(
    q: Any, k: Any, v: Any, begins_q: Any, begins_k: Any, longest_q: int, longest_k: int, *,
    causal: bool = False, scale: float | None = None,
    window: tuple[int | None, int | None] | None = None, lower_right: bool = False,
    return_sums: bool = False, config: Config | None = None,
) -> Any:  # fmt: skip
    """Attention within sequences of different lengths that lie behind each other.

    Args:
        q: (queries of all, heads, dimension). k, v: (keys of all, key heads, dimension).
        begins_q, begins_k: int32, one more than there are sequences, on q's device: where
            each begins, and the last one ends. Not looked at on the host.
        longest_q, longest_k: the longest sequence's number of queries and keys.
        others: as of ``attention``.

    Returns:
        (queries of all, heads, dimension); with ``return_sums`` also (heads, queries of all).

    Raises:
        KernelArgumentError: as of ``attention``.
    """
    import torch

    _check(q, k, v, 3, "(length, heads, dimension)")
    if k.shape != v.shape:
        _refuse_shapes(q, k, v, "all of k and v")
    for name, x in (("begins_q", begins_q), ("begins_k", begins_k)):
        if not isinstance(x, torch.Tensor) or (x.dtype, x.dim()) != (torch.int32, 1):
            raise KernelArgumentError(
                f"{name} has to be a torch tensor of int32 and one dimension", where=_WHERE
            )
        if x.device != q.device or x.shape != begins_q.shape or not x.is_contiguous():
            raise KernelArgumentError(
                f"{name} is {tuple(x.shape)} on {x.device}, begins_q {tuple(begins_q.shape)}, q on "
                f"{q.device}",
                where=_WHERE,
                hint="one more than there are sequences, contiguous, on q's device",
            )
    band = _band(causal, window, lower_right)
    heads_first = [x.transpose(0, 1) for x in (q, k, v)]
    call = _Call(
        *heads_first, band, _scale(scale, q), config, (begins_q, begins_k, longest_q, longest_k)
    )
    o, sums = call.run()
    o = o.transpose(0, 1)
    return (o, sums) if return_sums else o


class _Call:
    """A launch of the kernel: its arguments.

    q, k, v: (batch, heads, length, dimension), or (heads, length, dimension) where packed.
    """

    def __init__(
        self, q: Any, k: Any, v: Any, band: Band, scale: float, config: Config | None,
        packed: tuple[Any, Any, int, int] | None = None,
    ) -> None:  # fmt: skip
        import torch

        self.packed, self.band, self.scale = packed, band, scale
        self.q, self.k, self.v = q, k, v
        self.config = config or _CONFIGS[q.shape[-1]]
        self.o = torch.empty_like(q)
        if self.o.stride(-1) != 1:
            self.o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.sums = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        self.batch = len(packed[0]) - 1 if packed else q.shape[0]
        self.longest = packed[2:] if packed else (q.shape[-2], k.shape[-2])

    def run(self) -> tuple[Any, Any]:
        """Launch it; the result and the logarithms of sums."""
        if 0 in self.q.shape or 0 in self.k.shape or not self.batch or 0 in self.longest:
            return self.o.zero_(), self.sums.fill_(float("-inf"))
        arguments, constants, grid = self.launch()
        attention_forward[grid](*arguments, **constants)
        return self.o, self.sums

    def launch(self) -> tuple[list[Any], dict[str, Any], tuple[int]]:
        """Arguments, constants and grid."""
        config, dim = self.config, self.q.shape[-1]
        parts = HEAD_DIMS[dim]
        descriptors: list[Any] = []
        for x, rows in (
            (self.q, ROWS.value), (self.k, config.block_n), (self.v, config.block_n),
            (self.o, ROWS.value),
        ):  # fmt: skip
            described = described_by_rows(x)
            descriptors += [
                _descriptor(described, rows, part, packed=self.packed is not None) if part else None
                for part in parts
            ]
        heads, total = self.q.shape[-3], self.q.shape[-2]
        longest_q, longest_k = self.longest
        band = self.band
        block_m = ROWS.value * config.consumers
        tiles = triton.cdiv(longest_q, block_m) * self.batch * heads
        programs = tiles
        if config.persistent:
            import torch

            count = torch.cuda.get_device_properties(self.q.device).multi_processor_count
            programs = min(tiles, count)
        together = 0
        if band.right is not None:
            # Heads of one key head follow each other.
            each = 2 * longest_k * dim * self.q.element_size() * self.k.shape[-3] / heads
            together = 1 << max(0, int(math.log2(max(1, _CACHED / each))))
        arguments = [
            *descriptors, self.sums, *(self.packed[:2] if self.packed else (None, None)),
            self.scale * math.log2(math.e), self.batch, heads, longest_q, longest_k, total,
            band.left or 0, band.right or 0,
        ]  # fmt: skip
        constants = {
            "GROUP": heads // self.k.shape[-3], "DIM0": parts[0], "DIM1": parts[1],
            "CONSUMERS": config.consumers, "BLOCK_N": config.block_n, "STAGES": config.stages,
            "REGISTERS": config.registers, "PINGPONG": config.pingpong, "OWN_O": config.own_o,
            "HEADS_AT_ONCE": together, "LEFT": band.left is not None,
            "RIGHT": band.right is not None,
            "TAIL": self.packed is not None or longest_k % config.block_n != 0,
            "LOWER": band.lower, "PACKED": self.packed is not None, "num_warps": 4,
        }  # fmt: skip
        return arguments, constants, (programs,)


def described_by_rows(x: Any) -> Any:
    """``x``, or a copy of it that the copy engine takes."""
    import torch

    size = x.element_size()
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0
    for extent, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        fits = fits and (extent == 1 or (stride > 0 and stride * size % 16 == 0))
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _descriptor(x: Any, rows: int, columns: int, *, packed: bool) -> Any:
    """Boxes of rows and columns of a tensor (..., length, dimension).

    packed: rows that follow each other are several sequences, and a box ends with its own: with
    two dimensions in front (stock ``triton.tools.ragged_tma`` has the trick) whose strides make
    an address of [1 << 30, end, head, (1 << 30) - length + row, column].
    """
    shape = list(x.shape)
    # A dimension of one element may have any stride, and the copy engine's are multiples of 16.
    strides = [s if n > 1 else 1 << 20 for n, s in zip(shape, x.stride(), strict=True)]
    strides[-1] = 1
    front = [1] * (len(shape) - 2)
    if packed:
        shape = [0x7FFF0000, 0x7FFF0000, shape[0], 1 << 30, shape[2]]
        strides = [(1 << 34) - strides[1], strides[1], *strides]
        front = [1, 1, 1]
    return TensorDescriptor(x, shape, strides, [*front, rows, columns])


def _scale(scale: float | None, q: Any) -> float:
    if scale is None:
        return 1 / math.sqrt(q.shape[-1])
    if not scale >= 0:
        raise KernelArgumentError(
            f"scale is {scale}", where=_WHERE, hint="negate q, and give the positive scale"
        )
    return float(scale)


def _band(causal: bool, window: tuple[int | None, int | None] | None, lower_right: bool) -> Band:
    left, right = window or (None, None)
    for limit in (left, right):
        if limit is not None and (not isinstance(limit, int) or abs(limit) >= 1 << 30):
            raise KernelArgumentError(
                f"window is {window}", where=_WHERE, hint="two integers below 2**30, or None"
            )
    if causal:
        right = 0 if right is None else min(right, 0)
    return Band(left, right, lower_right)


def _check(q: Any, k: Any, v: Any, rank: int, dimensions: str) -> None:
    import torch

    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != rank:
            kind = f"{x.dim()} dimensions" if isinstance(x, torch.Tensor) else type(x).__name__
            raise KernelArgumentError(
                f"{name} has to be a torch tensor {dimensions}, it is {kind}", where=_WHERE
            )
        if (x.dtype, x.device) != (q.dtype, q.device):
            raise KernelArgumentError(
                f"q is of {q.dtype} on {q.device}, {name} of {x.dtype} on {x.device}",
                where=_WHERE,
                hint="give all three one dtype, on one device",
            )
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise KernelArgumentError(f"q is of {q.dtype}", where=_WHERE, hint="use fp16 or bf16")
    heads = 1 if rank == 4 else -2
    if q.shape[-1] != k.shape[-1] or (k.shape[heads] and q.shape[heads] % k.shape[heads]):
        _refuse_shapes(q, k, v, "the dimension of all; the key heads have to divide the heads")
    if q.shape[-1] not in HEAD_DIMS:
        raise KernelArgumentError(
            f"there is no kernel for head dimension {q.shape[-1]}",
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


def _refuse_shapes(q: Any, k: Any, v: Any, same: str) -> None:
    raise KernelArgumentError(
        f"q is {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}",
        where=_WHERE,
        hint=f"they have to have in common {same}",
    )
