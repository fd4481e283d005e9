"""The triangle update's gradients.

From what the update keeps (:class:`remora.kernels.triangle.Kept`): the gated projections, their
products. Products whose sums are over all pairs or that end in memory are PyTorch's; gates, with
the products they gate, and norms are Triton kernels. Gradients of what is multiplied with the same
are in one matrix, so that one product serves them all. The order of all sums is fixed.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton

from remora.kernels import triangle
from remora.kernels.prepared import Described, Launches, Memory, Part, Whole
from remora.kernels.triangle import DEPTH, GROUP, PAIRS, Kept, aligned, compilation, kind_of_mask
from remora.kernels.triangle_gates import gates
from remora.kernels.triangle_gradients import (
    gate_gradients,
    gather,
    norm_gradient,
    normalise_hidden,
    stack,
    unscale,
)
from remora.kernels.triangle_stock import normalise

# Programs of the norms' gradients, each with sums of its own.
_PROGRAMS = 512

#: The numbers of the tensors: the weights follow x, their gradients, of which there are eight, DX;
#: those after them there are for the last launches alone.
_X, _MASK, _GRAD, _KEPT, _Y, _BOTH, _OF_PRODUCTS, _OF_AB, _OF_Z, _AB, _SCRATCH = 0, *range(9, 19)
_DX, _STACKED, _OTHER = 19, 28, 29


def gradients(
    grad: Any, x: Any, weights: list[Any], mask: Any, kept: Any, incoming: bool, eps: float
) -> list[Any]:
    """The gradients of x and of the weights, from that of the result, in their dtypes."""
    if x.numel() == 0 or weights[4].numel() == 0:
        return [torch.zeros_like(t) for t in (x, *weights)]
    steps = _steps(
        x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % 16 == 0, weights[4].numel(),
        kind_of_mask(mask), eps, *compilation(),
    )  # fmt: skip
    with torch.cuda.device_of(x):
        return steps(aligned(grad), x, [aligned(w) for w in weights], mask, kept, incoming)


@functools.lru_cache(maxsize=1024)
def _steps(*arguments: Any) -> _Steps:
    """One for each set of arguments that tell compilations apart."""
    return _Steps(*arguments)


class _Steps:
    """The gradients of one kind of update.

    What is memory of others first, or later: ``both``: (pairs, channels), on the left the
    gradient of z's product, later those of y's with p_in and g_in; on the right that of y's with
    g_out: so in the end there is one matrix for all that y is multiplied with. ``of_ab``: first z
    and its gradient.
    """

    def __init__(
        self, dtype: Any, device: Any, shape: Any, strides: Any, _: bool, h: int, masked: Any,
        eps: float, *__: Any,
    ) -> None:  # fmt: skip
        b, n, _, c = self.shape = shape
        self.h, self.eps, self.device = h, eps, device
        self.kept = Kept(dtype, device, shape, h, _KEPT)
        self.right = max(4 * h, c)  # the first column of the right part
        self.width = -(-(self.right + c) // 8) * 8  # rows of whole 16 bytes
        self.programs = min(_PROGRAMS, b * n)
        self.for_hopper = (
            triangle.on_hopper(device) and triangle.fits_hopper(c, h) and dtype.itemsize == 2
            and n % PAIRS == 0
        )  # fmt: skip
        row, m = self.kept.row, b * n * n
        # Of z, the normalised products. Plain Triton's products of fp32 want channels next to each
        # other: tf32's operands cannot be turned in shared memory.
        self.strides_z = (1, m) if self.for_hopper else (h, 1)
        planes = row * row, row, 1, b * row * row  # strides of the projections' products
        plain = n * n * c, n * c, c, 1
        x, mask, grad, y, both, of_products, of_ab, of_z, dx = map(Whole, (
            _X, _MASK if masked else _X, _GRAD, _Y, _BOTH, _OF_PRODUCTS, _OF_AB, _OF_Z, _DX
        ))  # fmt: skip
        w_in, b_in, p_in, g_in, w_out, b_out, p_out, g_out = (Whole(_X + 1 + i) for i in range(8))
        units = self.kept.units or x

        memory = Memory(_SCRATCH)
        stats_y, stats_z = (memory.room(2 * m, torch.float32) for _ in range(2))
        sums_in, sums_out = (memory.room(self.programs * 2 * k, torch.float32) for k in (c, h))
        of_w_in, of_b_in, of_p_in, of_g_in, of_w_out, of_b_out, of_p_out, of_g_out = (
            Whole(_DX + 1 + i) for i in range(8)
        )
        self.launches, self.last, self.ends = Launches(), Launches(), list[int]()
        add = self.launches.add

        count = (4 * h + c) * c
        self.weights = memory.room(count + c * h, dtype)
        add(
            stack, -(-(count + c * h) // 1024), p_in, g_in, g_out, p_out, self.weights, c, h,
            SIZE=1024,
        )  # fmt: skip
        starts = 0, 2 * h * c, 4 * h * c, count
        by_p_in, by_g_in, by_g_out, by_p_out = (self.weights.after(k) for k in starts)
        cut = triangle.cut_of_norm(c)
        add(
            normalise, b * n * -(-n // cut["PAIRS"]),
            x, w_in, b_in, y, stats_y, n, n, c, *strides, eps, **cut, WEIGHTED=True, KEPT=True,
        )  # fmt: skip
        h_power = triton.next_power_of_2(h)
        pairs = min(64, max(1, 8192 // h_power))
        add(
            normalise_hidden, b * n * -(-n // pairs),
            self.kept.products, units, w_out, b_out, of_ab, stats_z, n, h, *planes,
            *self.strides_z, m, eps,
            PAIRS=pairs, H_POWER=h_power, SCALED=self.kept.units is not None,
        )  # fmt: skip
        self._gates(
            (y, of_ab, by_p_out, by_g_out, grad, x, both, both), c, plain, None, (0, self.right)
        )
        self._end()
        self._norm(
            self.launches, (of_z, self.kept.products, stats_z, w_out, units, of_products, sums_out),
            h, (1, m), planes, planes,
        )  # fmt: skip
        if self.kept.units is not None:
            add(
                unscale, 2 * h * -(-b * row * row // 2048),
                self.kept.ab, self.kept.units, Whole(_AB), b * row * row, SIZE=2048,
            )  # fmt: skip
        self._end()
        left = self.right - 4 * h
        self._gates(
            (y, y, by_p_in, by_g_in, of_ab, mask, both, both), 2 * h, planes,
            masked and masked[1], (left, left + 2 * h),
        )  # fmt: skip
        self._norm(self.last, (dx, x, stats_y, w_in, x, dx, sums_in), c, (c, 1), strides, plain)
        self.last.add(
            gather, -(-c // 8) + -(-h // 8) + -(-count // 1024) + -(-c * h // 1024),
            sums_in, of_w_in, of_b_in, sums_out, of_w_out, of_b_out,
            Whole(_STACKED), of_p_in, of_g_in, of_g_out, Whole(_OTHER), of_p_out,
            c, h, self.programs,
            ROWS=64, COLUMNS=16, SIZE=1024, TURNED=self.kept.units is not None,
        )  # fmt: skip
        self.bytes = memory.bytes

    def _end(self) -> None:
        """Of what is launched before one of PyTorch's products."""
        self.ends.append(len(self.launches))

    def _gates(
        self, tensors: Any, count: int, strides: Any, mask_strides: Any, first: tuple[int, int]
    ) -> None:
        """``gate_gradients``; mask_strides: None without one."""
        b, n, _, c = self.shape
        output = tensors[0] != tensors[1]
        if self.for_hopper:
            self._gates_on_hopper(tensors, count, mask_strides, first, output)
            return
        cut = cut_of_gates(self.device.type == "cpu", self.kept.units is not None, n)
        self.launches.add(
            gate_gradients, b * n * -(-n // cut["PAIRS"]) * -(-count // cut["CHANNELS"]),
            *tensors, n, count, c, self.h, *self.strides_z, *strides,
            *(mask_strides or (0, 0, 0)),
            self.width, self.width, *first,
            OUTPUT=output, MASKED=mask_strides is not None, **cut,
        )  # fmt: skip

    def _gates_on_hopper(
        self, tensors: Any, count: int, mask_strides: Any, first: tuple[int, int], output: bool
    ) -> None:
        b, n, _, c = self.shape
        y, z, p, g, d, mask, both, _ = tensors
        depth, m, rows = self.h if output else c, b * n * n, b * n
        held = triangle.held_in_shared("output" if output else "input", c // DEPTH, self.h // DEPTH)
        cluster = held["CLUSTER"]
        pairs, block = (1, PAIRS, DEPTH), (GROUP // cluster, DEPTH)
        y = Described(y, (rows, n, c), pairs)
        self.launches.add(
            gates, triangle.programs_of(self.device, -(-rows * (n // PAIRS) // 2), cluster),
            y, Described(z, (self.h, m), (DEPTH, PAIRS)) if output else y,
            Described(p, (count, depth), block), Described(g, (count, c), block),
            Described(d, (rows, n, c), (1, PAIRS, GROUP)) if output
            else Described(d, (count, m), (GROUP, PAIRS)),
            mask, Described(both, (rows, n, self.width), (1, PAIRS, GROUP)), b, n, *first,
            *(mask_strides or (0, 0, 0)),
            PIECES=c // DEPTH, P_PIECES=depth // DEPTH, OUTPUT=output,
            MASKED=mask_strides is not None, **held, ctas_per_cga=(cluster, 1, 1),
        )  # fmt: skip

    def _norm(
        self, to: Launches, tensors: Any, k: int, grad: tuple[int, int], strides: Any,
        out_strides: Any,
    ) -> None:  # fmt: skip
        """``norm_gradient``; grad: its strides."""
        b, n, _, _ = self.shape
        turned = grad[0] == 1
        piece = triton.next_power_of_2(k) if turned else min(128, triton.next_power_of_2(k))
        pieces = -(-k // piece)
        # What a thread holds: few, as sums are held too. Turned, whole lines of 128 bytes.
        pairs, warps = (max(1, 8192 // piece), 16) if turned else (8 if pieces > 1 else 16, 4)
        to.add(
            norm_gradient, self.programs,
            *tensors, b, n, k, b * n * n, *grad, *strides, *out_strides,
            PAIRS=pairs, PIECE=piece, PIECES=pieces, SCALED=isinstance(tensors[4], Part),
            TURNED=turned, num_warps=warps,
        )  # fmt: skip

    def __call__(
        self, grad: Any, x: Any, weights: list[Any], mask: Any, kept: Any, incoming: bool
    ) -> list[Any]:
        b, n, _, c = self.shape
        h, m, row = self.h, b * n * n, self.kept.row
        y, both, dx = x.new_empty(m, c), x.new_empty(m, self.width), x.new_empty(self.shape)
        of_products, of_ab = x.new_empty(h * b, row, row), x.new_empty(2 * h * b, row, row)
        z, of_z = of_ab.view(-1)[: 2 * h * m].view(2, h * m)
        z, of_z = z.as_strided((m, h), self.strides_z), of_z.view(h, m)
        if self.kept.units is None:
            ab = self.kept.ab.of([*[None] * _KEPT, kept])
        else:
            ab = x.new_empty(2 * h * b * row * row)
        scratch = x.new_empty(self.bytes, dtype=torch.uint8)
        found = [dx, *(torch.empty_like(w) for w in weights)]
        tensors = [
            x, *weights, mask, grad, kept, y, both, of_products, of_ab, of_z, ab, scratch, *found
        ]  # fmt: skip
        launch, (to_p, to_products) = self.launches.of(tensors), self.ends

        launch(0, to_p)
        stacked = self.weights.of(tensors)
        p_out, of_p = stacked[(4 * h + c) * c :].view(c, h), both[:, :c]
        of_p_out = _outer(of_p, z)
        torch.mm(p_out.T, of_p.T, out=of_z)
        launch(to_p, to_products)
        self._through_products(of_products, of_ab, ab.view(-1, row, row), incoming)
        launch(to_products, None)
        of_all = both[:, self.right - 4 * h : self.right + c]
        by_all = stacked[: (4 * h + c) * c].view(-1, c)
        if self.kept.units is None:
            of_weights = _outer(of_all, y)
        else:
            # As cuBLAS is fastest at tf32: of 2 x 512 x 512 pairs of 384 channels on an H200 1.7 ms
            # instead of 2.5, and 1.0 instead of 1.7.
            of_weights = y.T @ of_all
            by_all = by_all.T.contiguous().T
        torch.mm(of_all, by_all, out=dx.view(m, c))
        self.last.of([*tensors, of_weights, of_p_out])(0, None)
        return found

    def _through_products(self, of_products: Any, of_ab: Any, ab: Any, incoming: bool) -> None:
        """The gradient of a and b: two more batched products, cuBLAS's."""
        n = self.shape[1]
        a, b = ab[:, :n, :n].chunk(2)
        of_a, of_b = of_ab[:, :n, :n].chunk(2)
        d = of_products[:, :n, :n]
        if incoming:  # t = a.T @ b
            torch.bmm(b, d.mT, out=of_a)
            torch.bmm(a, d, out=of_b)
        else:  # t = a @ b.T
            torch.bmm(d, b, out=of_a)
            torch.bmm(d.mT, a, out=of_b)


def cut_of_gates(cpu: bool, fp32: bool, n: int) -> dict[str, Any]:
    """What ``gate_gradients`` is cut into, and launched with."""
    pairs = 16 if cpu else 64 if fp32 or 0 < n % 128 <= 64 else 128
    return {
        "PAIRS": pairs, "CHANNELS": 64, "PIECE": 32 if fp32 else 64, "WIDE": cpu,
        "num_warps": pairs // 16, "num_stages": 3,
    }  # fmt: skip


def _outer(a: Any, b: Any) -> Any:
    """``a.T @ b``, in fp32."""
    if a.dtype == torch.float32:
        return a.T @ b
    if a.is_cuda and torch.version.hip is None:
        return torch.mm(a.T, b, out_dtype=torch.float32)
    return a.float().T @ b.float()
