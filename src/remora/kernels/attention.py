"""``attention`` and ``attention_packed``: softmax attention."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError
from remora.host.targets import ptxas_release
from remora.kernels.attention_backward import attention_backward, negatives_of
from remora.kernels.attention_backward_wide import (
    attention_backward_keys_wide,
    attention_backward_queries_wide,
)
from remora.kernels.attention_narrow import backward_of, forward_of
from remora.kernels.attention_plain import (
    attention_backward_keys,
    attention_backward_queries,
    attention_deltas,
    attention_plain,
)
from remora.kernels.attention_specialized import ROWS, attention_forward
from remora.kernels.config import multiprocessors

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

# Programs along a grid's second or third side, at most.
_SIDE = 65_535


@dataclass(frozen=True)
class Config:
    """How attention is cut and launched on Hopper.

    block_n: keys of a step. stages: buffers of keys, and of values. consumers: 2 or 3, of 64
    queries each. q_stages: 1 or 2 tiles of queries that are there at a time. o_parts: 1 or 2,
    the parts in which a result is stored. registers: of a consumer's thread. pingpong: whether
    consumers take turns in issuing products. narrow: for dimensions 80 and 96, whether values
    have products of as many columns. lazy, release, integers, lean, nested, pairs, sums: see
    ``attention_forward``.
    """

    block_n: int
    stages: int = 2
    consumers: int = 2
    q_stages: int = 2
    o_parts: int = 1
    registers: int = 232
    pingpong: bool = True
    narrow: bool = False
    lazy: bool = True
    release: bool = True
    integers: bool = True
    lean: bool = False
    nested: bool = True
    pairs: bool = True
    sums: bool = False

    def __post_init__(self) -> None:
        allowed: dict[str, Any] = {
            "block_n": (32, 64, 128, 256), "consumers": (2, 3), "q_stages": (1, 2),
            "o_parts": (1, 2), "registers": range(24, 257, 8),
            "stages": range(2, 9),  # with one, consumers would wait for what they still hold
        }  # fmt: skip
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise KernelArgumentError(
                    f"config.{name} is {getattr(self, name)}",
                    where=_WHERE,
                    hint=f"{name} is one of {', '.join(map(str, values))}",
                )


_CONFIGS = {
    64: Config(128, consumers=3, registers=160, lean=True, nested=False),
    80: Config(128, narrow=True),
    96: Config(128, narrow=True),
    128: Config(128),
    192: Config(64, q_stages=1, release=False, integers=False, sums=True),
    256: Config(64, q_stages=1, o_parts=2, registers=240, release=False, integers=False, sums=True),
}

# The first ptxas with whose code pairs pay at 64 where tiles differ; with 13.0's they lost 7 %.
_PAIRS_PAY = (13, 4)


# Queries of a step of Hopper's backward kernel, for dimensions up to 128.
_BACKWARD_BLOCK_M = {64: 128, 80: 64, 96: 64, 128: 64}


@functools.cache
def config_of(dim: int, even: bool) -> Config:
    """For a head dimension, on Hopper. even: whether all tiles of queries see as many keys."""
    if dim == 64 and not even:
        return replace(_CONFIGS[64], integers=False, pairs=ptxas_release(90) >= _PAIRS_PAY)
    return _CONFIGS[dim]


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
    """``softmax(scale * q @ k.T) @ v``, for each head; differentiable.

    Args:
        q: (batch, heads, queries, dimension), a torch tensor, fp16 or bf16, of any strides;
            dimension one of ``HEAD_DIMS``.
        k, v: (batch, key heads, keys, dimension), of q's dtype; the key heads divide the
            heads, and serve as many that follow each other.
        causal: whether query i sees key j only where j <= i.
        scale: of the scores, not negative; 1 / sqrt(dimension) by default.
        window: (left, right): whether query i sees key j only where i - left <= j <= i +
            right; None: no limit on that side.
        lower_right: for ``causal`` and ``window`` queries are numbered so that the last one
            has the last key's number, and not so that the first one has the first one's.
        return_sums: also give the logarithm of each row's sum of exponentials.
        config: how to cut it on Hopper; chosen from the dimension by default. With one there
            are no gradients.

    Returns:
        (batch, heads, queries, dimension) of q's dtype, and of its order of dimensions in
        memory; with ``return_sums`` also (batch, heads, queries) in fp32. A query that sees
        no key gets zeros, and -inf.

    On Hopper, operands that the copy engine cannot take (last dimension not contiguous, rows
    not multiples of 16 bytes apart) are copied first. On the CPU it runs with the reference
    meaning, where ``TRITON_INTERPRET=1`` was set before triton was imported.

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit.
    """
    _check(q, k, v, 4, "(batch, heads, length, dimension)")
    if (q.shape[0], *k.shape) != (k.shape[0], *v.shape):
        _refuse_shapes(q, k, v, "the batch of all, all of k and v")
    band, scale = band_of(causal, window, lower_right), _scale(scale, q)
    if config is None and _by_operator(q, k, v):
        from remora.kernels import attention_operators

        o, sums = attention_operators.attention(
            q, k, v, scale, band.left, band.right, band.lower
        )  # fmt: skip
    else:
        o, sums = Problem(q, k, v, band, scale).forward(config)
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
        longest_q, longest_k: the longest sequence's number of queries and keys, or more. What
            a sequence has past them is not worked out, and its memory not written.
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
    band, scale = band_of(causal, window, lower_right), _scale(scale, q)
    packed = (begins_q, begins_k, longest_q, longest_k)
    if config is None and _by_operator(q, k, v):
        from remora.kernels import attention_operators

        o, sums = attention_operators.attention_packed(
            q, k, v, *packed, scale, band.left, band.right, band.lower
        )
    else:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        o, sums = Problem(q, k, v, band, scale, packed).forward(config)
        o = o.transpose(0, 1)
    return (o, sums) if return_sums else o


def _on_its_device(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ``Problem`` that launches where q is, whichever device is the current one."""

    @functools.wraps(method)
    def run(problem: Problem, *args: Any) -> Any:
        import torch

        with torch.cuda.device_of(problem.q):
            return method(problem, *args)

    return run


class Problem:
    """What is attended to: the operands, and which keys a query may see.

    q, k, v: (batch, heads, length, dimension), or (heads, length, dimension) where packed:
    begins_q, begins_k, longest_q, longest_k as of ``attention_packed``.
    """

    def __init__(
        self, q: Any, k: Any, v: Any, band: Band, scale: float,
        packed: tuple[Any, Any, int, int] | None = None,
    ) -> None:  # fmt: skip
        self.q, self.k, self.v, self.band, self.packed = q, k, v, band, packed
        self.scale = max(scale, 1e-30)  # what is hidden is -inf, and has to stay it times scale
        self.dim, self.heads, self.total = q.shape[-1], q.shape[-3], q.shape[-2]
        self.group = self.heads // max(1, k.shape[-3])
        self.batch = len(packed[0]) - 1 if packed else q.shape[0]
        self.longest_q: int = packed[2] if packed else q.shape[-2]
        self.longest_k: int = packed[3] if packed else k.shape[-2]
        self.begins = packed[:2] if packed else (None, None)

    @property
    def empty(self) -> bool:
        """Whether there is no query or no key."""
        sizes = (*self.q.shape, *self.k.shape, self.batch, self.longest_q, self.longest_k)
        return 0 in sizes

    @property
    def _even(self) -> bool:
        """Whether all tiles of queries see as many keys."""
        return self.packed is None and self.band.left is None and self.band.right is None

    @_on_its_device
    def forward(self, config: Config | None = None) -> tuple[Any, Any]:
        """The result and the logarithms of sums."""
        import torch

        o = like(self.q)
        sums = torch.empty(self.q.shape[:-1], dtype=torch.float32, device=self.q.device)
        if self.empty:
            return o.zero_(), sums.fill_(float("-inf"))
        if self._in_integers:
            wide, sums = self._in_fp32().forward()
            o.copy_(wide)
        elif _on_hopper(self.q):
            config = config or config_of(self.dim, self._even)
            arguments, constants, grid = self.specialized(o, sums, config)
            kernel = forward_of(self.dim) if config.narrow else attention_forward
            kernel[grid](*arguments, **constants)
        else:
            for part, of in self._parts():
                part._forward_elsewhere(of(o), of(sums))
        return o, sums

    def _parts(self) -> Iterator[tuple[Problem, Callable[[Any], Any]]]:
        """Problems whose heads of all of the batch fit one side of a grid.

        With each, what gives its part of the tensors that belong to q, k and v.
        """
        if self.heads > _SIDE:
            raise KernelArgumentError(
                f"q has {self.heads} heads", where=_WHERE, hint=f"{_SIDE} at most on this device"
            )
        count = _SIDE // self.heads
        if self.batch <= count:
            yield self, lambda x: x
            return
        q, k, v = self.q, self.k, self.v
        for first in range(0, self.batch, count):
            if self.packed is not None:
                *begins, longest_q, longest_k = self.packed
                begins_q, begins_k = (x[first : first + count + 1] for x in begins)
                packed = (begins_q, begins_k, longest_q, longest_k)
                yield Problem(q, k, v, self.band, self.scale, packed), lambda x: x
            else:
                of = operator.itemgetter(slice(first, first + count))
                yield Problem(of(q), of(k), of(v), self.band, self.scale), of

    def _forward_elsewhere(self, o: Any, sums: Any) -> None:
        """``forward`` on anything but Hopper."""
        from remora.kernels import attention_elsewhere

        target = _target(self.q)
        if target is not None and attention_elsewhere.launched(self, o, sums, target):
            return
        block_m, block_n = _plain_blocks(self.q, self.dim)
        attention_plain[(triton.cdiv(self.longest_q, block_m), self.heads, self.batch)](
            self.q, self.k, self.v, o, sums, *self.begins, self.scale * math.log2(math.e),
            *_strides(self.q, self.k, self.v, o), *self.extents, **self.constants,
            DIM=self.dim, BLOCK_M=block_m, BLOCK_N=block_n
        )  # fmt: skip

    def described(self, x: Any, rows: int, columns: int) -> Any:
        """Boxes of rows of an operand, which is copied where the copy engine does not take it."""
        return _descriptor(described_by_rows(x), rows, columns, packed=self.packed is not None)

    @property
    def _in_integers(self) -> bool:
        """Whether ``tl.dot`` multiplies the operands' bits: stock Triton's interpreter, bf16."""
        import torch

        return self.q.device.type == "cpu" and self.q.dtype == torch.bfloat16

    def _in_fp32(self) -> Problem:
        q, k, v = (x.float() for x in (self.q, self.k, self.v))
        return Problem(q, k, v, self.band, self.scale, self.packed)

    @property
    def extents(self) -> tuple[int, ...]:
        """HEADS, LENGTH_Q, LENGTH_K, TOTAL_Q, left, right."""
        band = self.band
        return (
            self.heads, self.longest_q, self.longest_k, self.total, band.left or 0, band.right or 0
        )  # fmt: skip

    @property
    def constants(self) -> dict[str, Any]:
        """Constants of all kernels."""
        band = self.band
        return {
            "GROUP": self.group, "LEFT": band.left is not None, "RIGHT": band.right is not None,
            "LOWER": band.lower, "PACKED": self.packed is not None,
        }  # fmt: skip

    def specialized(
        self, o: Any, sums: Any, config: Config
    ) -> tuple[list[Any], dict[str, Any], tuple[int]]:
        """Arguments, constants and grid of Hopper's kernel."""
        import torch

        parts, packed = HEAD_DIMS[self.dim], self.packed is not None
        descriptors: list[Any] = []
        out = (triton.next_power_of_2(self.dim), 0) if config.narrow else parts
        for x, rows, columns in (
            (self.q, ROWS.value, parts), (self.k, config.block_n, parts),
            (self.v, config.block_n, out),
            (o, ROWS.value, (out[0] // config.o_parts, out[1])),
        ):  # fmt: skip
            described = described_by_rows(x)
            descriptors += [
                _descriptor(described, rows, part, packed=packed) if part else None
                for part in columns
            ]
        block_m = ROWS.value * config.consumers
        tiles = triton.cdiv(self.longest_q, block_m) * self.batch * self.heads
        programs = min(tiles, multiprocessors(self.q.device))
        together, tickets = 0, None
        if self.band.right is not None:
            # Heads of one key head follow each other.
            each = 2 * self.longest_k * self.dim * self.q.element_size() / self.group
            together = 1 << max(0, int(math.log2(max(1, _CACHED / each))))
        if tiles > programs and not self._even:
            tickets = sums.new_zeros(1, dtype=torch.int32)
        arguments = [
            *descriptors, sums, tickets, *self.begins, self.scale * math.log2(math.e), self.batch,
            *self.extents,
        ]  # fmt: skip
        constants = {
            **self.constants, "DIM0": parts[0], "DIM1": parts[1], "OUT0": out[0], "OUT1": out[1],
            "CONSUMERS": config.consumers, "BLOCK_N": config.block_n, "STAGES": config.stages,
            "Q_STAGES": config.q_stages, "O_PARTS": config.o_parts,
            "REGISTERS": config.registers, "PINGPONG": config.pingpong,
            "LAZY": config.lazy, "RELEASE": config.release, "INTEGERS": config.integers,
            "LEAN": config.lean, "NESTED": config.nested, "PAIRS": config.pairs,
            "SUMS": config.sums,
            "HEADS_AT_ONCE": together, "TAIL": packed or self.longest_k % config.block_n != 0,
            "num_warps": 4,
        }  # fmt: skip
        return arguments, constants, (programs,)

    @_on_its_device
    def backward(self, o: Any, sums: Any, do: Any) -> tuple[Any, Any, Any]:
        """The gradients of q, k and v.

        o, sums: what ``forward`` gave. do: the gradient of o.
        """
        import torch

        dq, dk, dv = (like(x) for x in (self.q, self.k, self.v))
        if self.empty:
            return dq.zero_(), dk.zero_(), dv.zero_()
        if self._in_integers:
            wide = self._in_fp32().backward(o.float(), sums, do.float())
            for x, y in zip((dq, dk, dv), wide, strict=True):
                x.copy_(y)
            return dq, dk, dv
        on_hopper, into = _on_hopper(self.q), dq
        if on_hopper and self.dim <= 128:  # its programs add up their gradients of queries
            into = torch.zeros(self.q.shape, dtype=torch.float32, device=o.device)
        for part, of in self._parts():
            launch = part._backward_on_hopper if on_hopper else part._backward_elsewhere
            launch(*map(of, (o, sums, do, into, dk, dv)))
        if into is not dq:
            torch.mul(into, self.scale, out=dq)
        return dq, dk, dv

    def _backward_elsewhere(
        self, o: Any, sums: Any, do: Any, dq: Any, dk: Any, dv: Any
    ) -> None:  # fmt: skip
        """``backward`` on anything but Hopper, into dq, dk, dv."""
        import torch

        q, k, v = self.q, self.k, self.v
        deltas = torch.empty_like(sums)
        attention_deltas[(triton.cdiv(self.longest_q, 128), self.heads, self.batch)](
            o, do, deltas, self.begins[0], *_strides(o, do), self.heads, self.longest_q, self.total,
            DIM=self.dim, BLOCK_M=128, PACKED=self.packed is not None,
        )  # fmt: skip
        # What keeps two or one accumulator of so many columns in registers.
        small, warps = (32, 8) if self.dim > 128 else (64, 4)
        shared = {**self.constants, "DIM": self.dim, "num_warps": warps}
        # One stage: on Hopper, which has kernels of its own now, some products of blocks of 32
        # queries were of mma.sync, some of wgmma, and stock Triton (3.9.0) with two stages copied
        # over what the latter still read. Other targets were not looked at.
        kv_heads = self.heads // self.group
        attention_backward_keys[(triton.cdiv(self.longest_k, 64), kv_heads, self.batch)](
            q, k, v, do, dk, dv, sums, deltas, *self.begins, self.scale,
            *_strides(q, k, v, do, dk, dv), *self.extents, **shared, BLOCK_M=small, BLOCK_N=64,
            num_stages=1 if small < 64 else 2,
        )  # fmt: skip
        attention_backward_queries[(triton.cdiv(self.longest_q, 64), self.heads, self.batch)](
            q, k, v, do, dq, sums, deltas, *self.begins, self.scale,
            *_strides(q, k, v, do, dq), *self.extents, **shared, BLOCK_M=64, BLOCK_N=small,
            num_stages=2,
        )  # fmt: skip

    def _backward_on_hopper(
        self, o: Any, sums: Any, do: Any, dq: Any, dk: Any, dv: Any
    ) -> None:  # fmt: skip
        """``backward`` by Hopper's kernels, into dq, dk, dv.

        dq: for dimensions up to 128 zeros, of fp32, that get the gradient over the scale.
        """
        import torch

        packed = self.packed is not None
        padded = -(-self.longest_q // 128) * 128
        rows = (*sums.shape[:-1], padded)
        if packed:
            padded = (self.total // 128 + self.batch + 1) * 128
            rows = (self.heads, padded)
        lows, deltas = (torch.empty(rows, dtype=torch.float32, device=o.device) for _ in range(2))
        negatives_of[(2 * triton.cdiv(self.longest_q, 128), self.heads, self.batch)](
            o, do, sums, lows, deltas, self.begins[0], *_strides(o, do),
            self.heads, self.longest_q, self.total, padded,
            DIM=self.dim, BLOCK_M=64, PACKED=packed,
        )  # fmt: skip
        rest = [lows, deltas, *self.begins, self.scale, *self.extents, padded]
        kv_heads = self.heads // self.group
        if self.dim > 128:
            parts = (128, self.dim - 128)
            q, k, v, do, dq, dk, dv = (
                [_descriptor(x, 64, columns, packed=packed) for columns in parts]
                for x in map(described_by_rows, (self.q, self.k, self.v, do, dq, dk, dv))
            )
            shared = {
                **self.constants, "DIM0": parts[0], "DIM1": parts[1], "REGISTERS": 240,
                "TAIL": packed or self.longest_k % 64 != 0, "num_warps": 4,
            }  # fmt: skip
            attention_backward_keys_wide[(triton.cdiv(self.longest_k, 64), kv_heads, self.batch)](
                *q, *k, *v, *do, *dk, *dv, *rest, **shared, STAGES=2
            )
            attention_backward_queries_wide[
                (triton.cdiv(self.longest_q, 128), self.heads, self.batch)
            ](*q, *k, *v, *do, *dq, *rest, **shared)
            return
        dim, block_m = triton.next_power_of_2(self.dim), _BACKWARD_BLOCK_M[self.dim]
        descriptors = [
            self.described(x, rows, dim)
            for x, rows in (
                (self.q, block_m), (self.k, 64), (self.v, 64), (do, block_m), (dk, 64), (dv, 64)
            )
        ]  # fmt: skip
        descriptors.insert(4, _descriptor(dq, 64, dim * block_m // 128, packed=packed))
        kernel = attention_backward if dim == self.dim else backward_of(self.dim)
        kernel[(triton.cdiv(self.longest_k, 128), kv_heads, self.batch)](
            *descriptors, *rest, **self.constants, DIM=dim, REST=self.dim % 64,
            BLOCK_M=block_m, STAGES=2, REGISTERS=240,
            TAIL=packed or self.longest_k % 128 != 0, num_warps=4,
        )  # fmt: skip


def like(x: Any) -> Any:
    """An empty tensor like ``x``, in its order of dimensions, but with the last one contiguous."""
    import torch

    like = torch.empty_like(x)
    return like if like.stride(-1) == 1 else x.new_empty(x.shape)


def _strides(*tensors: Any) -> list[int]:
    """Strides of batch, head, row and column; of the batch 0 where there is none."""
    return [s for x in tensors for s in ([0] * (4 - x.dim()) + list(x.stride()))]


def _target(x: Any) -> Any:
    """The target of the device that ``x`` is on; None: the CPU, with the reference meaning."""
    if x.device.type != "cpu":
        return triton.runtime.driver.active.get_current_target()
    if not triton.knobs.runtime.interpret:
        raise KernelArgumentError(
            "q, k and v are on the CPU",
            where=_WHERE,
            hint="move them to the GPU, or set TRITON_INTERPRET=1 before triton is imported "
            "to run with the reference meaning",
        )
    return None


def _on_hopper(x: Any) -> bool:
    target = _target(x)
    return target is not None and (target.backend, target.arch) == ("cuda", 90)


def _plain_blocks(x: Any, dim: int) -> tuple[int, int]:
    """Queries and keys of a block of the plain kernels."""
    target = _target(x)
    if target is not None and target.backend == "hip" and dim <= 128:
        return 128, 64
    return 64, 64 if dim <= 128 else 32


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


def _by_operator(*tensors: Any) -> bool:
    """Whether this has to be an operator of PyTorch's: for gradients, for ``torch.compile``."""
    import torch

    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return wanted or torch.compiler.is_compiling()


def _scale(scale: float | None, q: Any) -> float:
    if scale is None:
        return 1 / math.sqrt(q.shape[-1])
    if not scale >= 0:
        raise KernelArgumentError(
            f"scale is {scale}", where=_WHERE, hint="negate q, and give the positive scale"
        )
    return float(scale)


def band_of(
    causal: bool = False, window: tuple[int | None, int | None] | None = None,
    lower_right: bool = False,
) -> Band:  # fmt: skip
    """What ``attention`` means by these."""
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


def _refuse_shapes(q: Any, k: Any, v: Any, same: str) -> None:
    raise KernelArgumentError(
        f"q is {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}",
        where=_WHERE,
        hint=f"they have to have in common {same}",
    )
