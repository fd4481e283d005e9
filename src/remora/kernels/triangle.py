"""``triangle_multiply``: AlphaFold 3's triangle multiplicative update."""

from __future__ import annotations

import functools
from typing import Any

import triton

from remora.errors import KernelArgumentError
from remora.kernels import triangle_folded
from remora.kernels.prepared import Described, Launches, Memory, Part, Whole
from remora.kernels.triangle_folding import fold_norms
from remora.kernels.triangle_hopper import pair_products
from remora.kernels.triangle_scaling import scale_weights
from remora.kernels.triangle_stock import (
    finish_stock,
    normalise,
    normalise_products,
    pair_products_stock,
    project_stock,
)

_WHERE = "remora.kernels.triangle_multiply"

# What Hopper's kernels are cut into, in elements (triangle_folded), and its shared memory
# less what barriers and reductions take.
PAIRS, GROUP, DEPTH = 64, 64, 64
_SHARED = 231_700
_HIDDEN, _MOST_CHANNELS = 128, 512


def triangle_multiply(
    x: Any, norm_in_weight: Any, norm_in_bias: Any, p_in_weight: Any, g_in_weight: Any,
    norm_out_weight: Any, norm_out_bias: Any, p_out_weight: Any, g_out_weight: Any, *,
    mask: Any = None, incoming: bool = False, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """AlphaFold 3's triangle multiplicative update (supplement, algorithms 12 and 13).

    With ``y = norm_in(x)``, ``a, b = mask * sigmoid(y @ g_in.T) * (y @ p_in.T)``, for each
    hidden channel ``t[i, j] = sum_k a[i, k] * b[j, k]`` (``sum_k a[k, i] * b[k, j]`` if
    ``incoming``): ``sigmoid(y @ g_out.T) * (norm_out(t) @ p_out.T)``.

    Args:
        x: (B, N, N, C), a torch tensor of any strides: fp32, bf16 or fp16.
        norm_in_weight, norm_in_bias: (C,), of the layer norm of x.
        p_in_weight, g_in_weight: (2 * H, C): a's channels, then b's.
        norm_out_weight, norm_out_bias: (H,), of the layer norm of the products.
        p_out_weight, g_out_weight: (C, H) and (C, C).
        mask: (B, N, N) of any dtype, 0 to 1, or None. Weights are of x's dtype.
        incoming: the update with incoming edges.
        eps: added to both variances.

    Returns:
        (B, N, N, C), contiguous, of x's dtype. Products of fp32 are worked out in fp16
        with scaled weights (:mod:`remora.kernels.triangle_scaling`), in the 10 bits that
        tf32 has; sums are in fp32.

    On the CPU it runs with the reference meaning, where ``TRITON_INTERPRET=1`` was set
    before triton was imported.

    Raises:
        KernelArgumentError: shapes, dtypes or devices do not fit, or the device has no
            kernel.
    """
    import torch

    weights = {
        "norm_in_weight": norm_in_weight, "norm_in_bias": norm_in_bias,
        "p_in_weight": p_in_weight, "g_in_weight": g_in_weight,
        "norm_out_weight": norm_out_weight, "norm_out_bias": norm_out_bias,
        "p_out_weight": p_out_weight, "g_out_weight": g_out_weight,
    }  # fmt: skip
    check(x, weights, mask)
    tensors = list(weights.values())
    compiling = torch.compiler.is_compiling()
    if compiling or (
        torch.is_grad_enabled()
        and any(t.requires_grad for t in (x, mask, *tensors) if t is not None)
    ):
        from remora.kernels import triangle_operators as operators

        if compiling or type(x) is not torch.Tensor:  # one that modes or subclasses may look at
            return operators.triangle_multiply(x, *tensors, mask, incoming, eps)
        return operators.Update.apply(x, *tensors, mask, incoming, eps)[0]
    return forward(x, tensors, mask, incoming, eps)


def check(x: Any, weights: dict[str, Any], mask: Any) -> None:
    """Refuse what does not fit together, by name."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise _no_tensor("x", x)
    if x.dim() != 4 or x.shape[1] != x.shape[2]:
        raise KernelArgumentError(f"x has to be (B, N, N, C), it is {tuple(x.shape)}", where=_WHERE)
    dtype, device = x.dtype, x.device
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise KernelArgumentError(f"x is of {dtype}", where=_WHERE, hint="use fp32, bf16 or fp16")
    if not isinstance(weights["norm_out_weight"], torch.Tensor):
        raise _no_tensor("norm_out_weight", weights["norm_out_weight"])
    c, h = x.shape[3], weights["norm_out_weight"].numel()
    shapes = (c,), (c,), (2 * h, c), (2 * h, c), (h,), (h,), (c, h), (c, c)
    for (name, value), shape in zip(weights.items(), shapes, strict=True):
        if not isinstance(value, torch.Tensor):
            raise _no_tensor(name, value)
        if value.shape != shape:
            raise KernelArgumentError(
                f"{name} has to be {shape}, it is {tuple(value.shape)}",
                where=_WHERE,
                hint=f"C is {c}, the last extent of x, and H {h}, that of norm_out_weight",
            )
        if value.dtype != dtype:
            raise KernelArgumentError(
                f"{name} is of {value.dtype}, x of {dtype}", where=_WHERE, hint="give all one"
            )
        if value.device != device:
            raise KernelArgumentError(f"{name} is on {value.device}, x on {device}", where=_WHERE)
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.shape != x.shape[:3] or mask.is_complex():
        kind = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise KernelArgumentError(
            f"mask has to be a tensor {tuple(x.shape[:3])}, it is {kind}", where=_WHERE
        )
    if mask.device != device:
        raise KernelArgumentError(f"mask is on {mask.device}, x on {device}", where=_WHERE)


def _no_tensor(name: str, value: Any) -> KernelArgumentError:
    return KernelArgumentError(
        f"{name} has to be a torch tensor, it is {type(value).__name__}", where=_WHERE
    )


def on_hopper(device: Any) -> bool:
    """Whether the device has Hopper's kernels; an error where it has none at all."""
    if device.type == "cpu" and triton.knobs.runtime.interpret:
        return False
    target = None
    if device.type == "cuda":
        target = _target(device.index)
        if (target.backend, target.arch) == ("cuda", 90):
            return True
        if target.backend == "hip" or target.arch >= 80:
            return False
    raise KernelArgumentError(
        f"there is no kernel for {device if target is None else target}",
        where=_WHERE,
        hint="move the tensors to a GPU, or set TRITON_INTERPRET=1 before triton is imported to "
        "run with the reference meaning",
    )


@functools.cache
def _target(device: int) -> Any:
    import torch

    with torch.cuda.device(device):
        return triton.runtime.driver.active.get_current_target()


@functools.cache
def _processors(device: int) -> int:
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


def programs_of(device: Any, tiles: int, cluster: int = 1) -> int:
    """How many programs share so many tiles, in whole clusters."""
    clusters = _processors(device.index) // cluster
    return min(clusters, -(-tiles // cluster)) * cluster


def forward(x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float) -> Any:
    """The update, of arguments that were checked."""
    return _run(x, weights, mask, incoming, eps, None)


def forward_keeping(
    x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float
) -> tuple[Any, Any]:
    """The same, and what the gradients are worked out from, in one piece of memory: ``Kept``."""
    import torch

    size = Kept(x.dtype, x.device, x.shape, weights[4].numel()).bytes
    kept = torch.empty(size, dtype=torch.uint8, device=x.device)
    return _run(x, weights, mask, incoming, eps, kept), kept


class Kept:
    """What is kept of an update for its gradients, as parts of a tensor of bytes.

    ab: the gated projections (2H, B, ROW, ROW), fp16 of fp32, zeros past N; products:
    (H, B, ROW, ROW), of x's dtype; of fp32, terms: as ``fold_norms`` has them, COUNT of each kind,
    of which ``units``, 1 / scale of ab's channels, are the first of the second half.
    """

    def __init__(self, dtype: Any, device: Any, shape: Any, h: int, number: int = 0) -> None:
        """dtype, device, shape: of x; h: hidden channels; number: of the tensor."""
        import torch

        b, n, _, c = shape
        self.row = -(-n // _pairs(device)) * _pairs(device)
        self.kind = torch.float16 if dtype == torch.float32 else dtype
        memory, pairs, self.count = Memory(number), b * self.row * self.row, 4 * h + 2 * c
        self.ab = memory.room(2 * h * pairs, self.kind)
        self.products = memory.room(h * pairs, dtype)
        self.terms = self.units = None
        if dtype == torch.float32:
            self.terms = memory.room(2 * self.count, torch.float32)
            self.units = self.terms.after(self.count)
        self.bytes = memory.bytes


def _run(x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float, kept: Any) -> Any:
    """Launch all; ``kept``: memory, None where nothing is kept."""
    import torch

    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    if weights[4].numel() == 0:  # no hidden channels
        return out.zero_()
    if _reads_itself(x, weights[4].numel()):
        x = aligned(x)
    update = _update(
        x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % 16 == 0, weights[4].numel(),
        kind_of_mask(mask), incoming, eps, kept is not None, *compilation(),
    )  # fmt: skip
    scratch = torch.empty(update.bytes, dtype=torch.uint8, device=x.device)
    update.launches([x, *map(aligned, weights), mask, out, scratch, kept])
    return out


def kind_of_mask(mask: Any) -> Any:
    """What of a mask tells compilations apart."""
    return None if mask is None else (mask.dtype, mask.stride(), mask.data_ptr() % 16 == 0)


def compilation() -> tuple[Any, ...]:
    """What else tells compilations apart: plugins, and whether assertions are compiled."""
    hook = triton.knobs.runtime.add_stages_inspection_hook
    return hook()[1] if hook is not None else None, triton.knobs.runtime.debug


@functools.lru_cache(maxsize=1024)
def _update(*arguments: Any) -> _Update:
    """One for each set of arguments that tell compilations apart."""
    return _Update(*arguments)


#: The numbers of a call's tensors: the weights are in between.
_X, _MASK, _OUT, _SCRATCH, _KEPT = 0, 9, 10, 11, 12


class _Update:
    """The launches of one kind of update."""

    def __init__(
        self, dtype: Any, device: Any, shape: Any, strides: Any, aligned: bool, h: int,
        masked: Any, incoming: bool, eps: float, keeps: bool, *_: Any,
    ) -> None:  # fmt: skip
        import torch

        self.b, self.n, _, self.c = shape
        self.h, self.device, self.incoming, self.eps = h, device, incoming, eps
        kept = Kept(dtype, device, shape, h, _KEPT if keeps else _SCRATCH)
        self.row, self.kind, self.ab, self.products = kept.row, kept.kind, kept.ab, kept.products
        self.terms, self.units = kept.terms, kept.units
        self.launches = Launches()
        self._memory = Memory(_SCRATCH, 0 if keeps else kept.bytes)
        room, pairs = self._memory.room, self.b * self.row * self.row
        self.weights: list[Whole | Part] = [Whole(_X + 1 + i) for i in range(8)]
        self.masked = masked is not None
        self.mask = Whole(_MASK if masked else _X), masked[1] if masked else (0, 0, 0)
        if on_hopper(device) and fits_hopper(self.c, h):
            self._for_hopper(dtype, strides)
            return
        self.y = room(pairs * self.c, self.kind)
        if dtype == torch.float32:
            self._scale()
        self._normalise(strides, self.row)
        self._for_any()

    @property
    def bytes(self) -> int:
        """Of scratch memory."""
        return self._memory.bytes

    @property
    def scaled(self) -> bool:
        return self.units is not None

    def _scale(self) -> None:
        """The weights in fp16, and 1 / scale of each row of the projections."""
        import torch

        c, h, room = self.c, self.h, self._memory.room
        counts = 2 * h * c, 2 * h * c, c * h, c * c
        p_in, g_in, p_out, g_out = (room(count, torch.float16) for count in counts)
        norms = room(2 * c + 2 * h, torch.float32)
        w = self.weights
        self.launches.add(
            scale_weights, 4 * h + 2 * c + 2,
            w[2], w[3], w[6], w[7], w[0], w[1], w[4], w[5],
            p_in, g_in, p_out, g_out, norms, self.units, c, h,
            C_POWER=triton.next_power_of_2(c), H_POWER=triton.next_power_of_2(h),
        )  # fmt: skip
        w_in, b_in, w_out = norms, norms.after(c), norms.after(2 * c)
        self.weights = [w_in, b_in, p_in, g_in, w_out, w_out.after(h), p_out, g_out]

    def _unit(self, first: int) -> Part:
        """1 / scale of the projections' rows, from one on; where nothing is scaled, anything."""
        return self.y if self.units is None else self.units.after(first)

    def _normalise(self, strides: Any, row: int, weighted: bool = True) -> None:
        cut = cut_of_norm(self.c)
        self.launches.add(
            normalise, self.b * self.n * -(-self.n // cut["PAIRS"]),
            Whole(_X), self.weights[0], self.weights[1], self.y, self.y, self.n, row, self.c,
            *strides, self.eps, **cut, WEIGHTED=weighted, KEPT=False,
        )  # fmt: skip

    def _for_hopper(self, dtype: Any, strides: Any) -> None:
        """The norms are in the weights; of fp32, which fp16 cannot hold as it is, theirs alone."""
        import torch

        b, n, c, h, row = self.b, self.n, self.c, self.h, self.row
        add, room, w = self.launches.add, self._memory.room, self.weights
        count = 4 * h + 2 * c
        both_in, p_out, g_out = (room(k, self.kind) for k in (4 * h * c, c * h, c * c))
        all_pairs, pieces, h_pieces = b * row * row, c // DEPTH, h // DEPTH
        terms, measured = self.terms or room(2 * count, torch.float32), dtype != torch.float32
        kept = room(all_pairs, torch.float32) if measured else terms  # then nothing is kept
        how = {"MEASURED": measured, "UNITS": self.kind == torch.float16}
        add(
            fold_norms, count,
            w[2], w[3], w[6], w[7], w[0], w[1], w[4], w[5], both_in, p_out, g_out, terms, c, h,
            GROUP=GROUP, C_POWER=triton.next_power_of_2(c), H_POWER=triton.next_power_of_2(h),
            UNITS=how["UNITS"], CENTRED=measured,
        )  # fmt: skip
        x: Whole | Part = Whole(_X)
        if not measured:
            x = self.y = room(b * n * n * c, self.kind)
            self._normalise(strides, n, weighted=False)
        pairs = Described(x, (b * n, n, c), (1, PAIRS, DEPTH))

        mask, mask_strides = self.mask
        held = held_in_shared("project", pieces, h_pieces)
        cluster = held["CLUSTER"]
        add(
            triangle_folded.project, programs_of(self.device, all_pairs // (2 * PAIRS), cluster),
            pairs, mask, Described(both_in, (4 * h, c), (2 * GROUP // cluster, DEPTH)), terms,
            kept, Described(self.ab, (2 * h, all_pairs), (GROUP, PAIRS)),
            b, n, row, count, *mask_strides, self.eps, PIECES=pieces, MASKED=self.masked,
            FULL=n == row, **held, **how, ctas_per_cga=(cluster, 1, 1),
        )  # fmt: skip
        self._pair_products()

        held = held_in_shared("finish", pieces, h_pieces)
        cluster = held["CLUSTER"]
        block, part = (GROUP // cluster, DEPTH), PAIRS if measured else PAIRS // 2
        products = self.products
        if not measured:
            products = room(h * all_pairs, self.kind)
            add(
                normalise_products, all_pairs // PAIRS,
                self.products, terms.after(count), products, all_pairs, self.eps,
                EXTENT=h, PAIRS=PAIRS,
            )  # fmt: skip
        tiles = -(-b * n * (row // PAIRS) // 2)
        add(
            triangle_folded.finish, programs_of(self.device, tiles, cluster),
            pairs, Described(products, (h, all_pairs), (DEPTH, PAIRS)),
            Described(p_out, (c, h), block), Described(g_out, (c, c), block),
            terms.after(4 * h), terms.after(4 * h + c), kept,
            Described(Whole(_OUT), (b * n, n, c), (1, part, GROUP)),
            b, n, row, c, count, self.eps, PIECES=pieces, H_PIECES=h_pieces,
            **held, **how, ctas_per_cga=(cluster, 1, 1),
        )  # fmt: skip

    def _pair_products(self) -> None:
        b, h, row = self.b, self.h, self.row
        block_n = 256 if row % 256 == 0 or row > 1024 else 128
        parts = 4 if self.scaled and block_n == 256 else 2  # 16 KiB of results at a time
        tiles = h * b * -(-row // 128) * -(-row // block_n)
        both = 2 * h * b * row, row
        self.launches.add(
            pair_products, programs_of(self.device, tiles),
            Described(self.ab, both, (64, 64)),
            Described(self.ab, both, (64, block_n) if self.incoming else (block_n, 64)),
            Described(self.products, (h * b * row, row), (64, block_n // parts)), h * b, row,
            BLOCK_N=block_n, PARTS=parts, STAGES=4, INCOMING=self.incoming,
        )  # fmt: skip

    def _for_any(self) -> None:
        b, n, c, h, row = self.b, self.n, self.c, self.h, self.row
        _, _, p_in, g_in, w_out, b_out, p_out, g_out = self.weights
        mask, strides = self.mask
        add = self.launches.add
        depth, wide = _pairs(self.device), self.device.type == "cpu"
        pairs, channels, warps = depth, 64, 4
        if not wide and _target(self.device.index).backend == "hip":
            pairs, channels, warps = 128 if row % 128 == 0 else 64, 128, 8  # see amd_bounds
        cut = {
            "PAIRS": pairs, "CHANNELS": channels, "PIECE": 64, "SCALED": self.scaled,
            "WIDE": wide, "num_warps": warps,
        }  # fmt: skip
        add(
            project_stock, b * row * (row // pairs) * -(-2 * h // channels),
            self.y, mask, p_in, g_in, self._unit(2 * h), self.ab, b, n, row, c, 2 * h, *strides,
            MASKED=self.masked, **cut,
        )  # fmt: skip
        block = min(128, triton.next_power_of_2(row))
        add(
            pair_products_stock, (-(-row // block)) ** 2 * h * b,
            self.ab, self.products, h * b, row,
            BLOCK=block, DEPTH=depth, INCOMING=self.incoming, WIDE=wide,
        )  # fmt: skip
        add(
            finish_stock, b * n * (row // pairs) * -(-c // channels),
            self.y, self.products, w_out, b_out, p_out, g_out, self._unit(0), self._unit(4 * h),
            self._unit(4 * h + c), Whole(_OUT), b, n, row, c, h, self.eps, **cut,
        )  # fmt: skip


def aligned(tensor: Any) -> Any:
    """As the copy engine takes it: contiguous, from a multiple of 16 bytes on."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _pairs(device: Any) -> int:
    """What rows are padded to; few on the CPU, where the interpreter works on all of them."""
    return 16 if device.type == "cpu" else PAIRS


def _reads_itself(x: Any, h: int) -> bool:
    """Whether the kernels read x itself, as the copy engine takes it."""
    fits = fits_hopper(x.shape[3], h) and on_hopper(x.device)
    return fits and x.element_size() == 2


def fits_hopper(c: int, h: int) -> bool:
    return h == _HIDDEN and c % DEPTH == 0 and c <= _MOST_CHANNELS


def cut_of_norm(c: int) -> dict[str, Any]:
    """What ``normalise`` is cut into, for c channels."""
    width = min(128, triton.next_power_of_2(c))
    pieces = -(-c // width)
    pairs = max(1, 8192 // (width * triton.next_power_of_2(pieces)))
    return {"PAIRS": pairs, "PIECE": width, "PIECES": pieces, "FULL": pieces * width == c}


def held_in_shared(step: str, pieces: int, h_pieces: int) -> dict[str, Any]:
    """What the Hopper kernels keep in shared memory.

    step: triangle_folded's ``project`` or ``finish``, triangle_gates' ``input`` or ``output``;
    pieces, h_pieces: DEPTH channels of pairs, and of their products.
    """
    block = GROUP * DEPTH * 2  # bytes
    of_output = step in ("finish", "output")
    groups = -(-pieces * DEPTH // (2 * GROUP)) * 2 if of_output else 2 * h_pieces * DEPTH // GROUP
    blocks = pieces + h_pieces if of_output else pieces
    tile = blocks * 2 * PAIRS * DEPTH * 2
    if step == "project":
        block *= 2
    elif step == "input":
        blocks *= 2
    # Beside 32 KiB of results, and two numbers of each pair.
    left = _SHARED - 4 * PAIRS * GROUP * 2 - 4 * PAIRS * 4
    tiles = 2 if 2 * tile + groups * blocks * block <= left else 1
    stages = min((left - tiles * tile) // block, groups * blocks)
    if stages > blocks:
        stages -= stages % blocks
    # Weights that are copied for each tile are copied to two programs at once.
    resident = stages == groups * blocks
    return {
        "GROUPS": groups, "STAGES": stages, "RESIDENT": resident, "TILES": tiles,
        "CLUSTER": 1 if resident else 2,
    }  # fmt: skip
