"""``triangle_multiply``: AlphaFold 3's triangle multiplicative update."""

from __future__ import annotations

import functools
from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from remora.errors import KernelArgumentError
from remora.kernels.triangle_hopper import finish, pair_products, project
from remora.kernels.triangle_scaling import scale_weights
from remora.kernels.triangle_stock import (
    finish_stock,
    normalise,
    pair_products_stock,
    project_stock,
)

_WHERE = "remora.kernels.triangle_multiply"

# What Hopper's kernels are cut into, in elements (triangle_hopper), and its shared memory
# less what barriers and reductions take.
_PAIRS, _CHANNELS, _DEPTH = 64, 128, 64
_SHARED = 231_000
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
    if torch.compiler.is_compiling() or (
        torch.is_grad_enabled()
        and any(t.requires_grad for t in (x, mask, *tensors) if t is not None)
    ):
        from remora.kernels import triangle_operators

        return triangle_operators.triangle_multiply(x, *tensors, mask, incoming, eps)
    return forward(x, tensors, mask, incoming, eps)


def check(x: Any, weights: dict[str, Any], mask: Any) -> None:
    """Refuse what does not fit together, by name."""
    import torch

    for name, value in {"x": x, **weights}.items():
        if not isinstance(value, torch.Tensor):
            raise KernelArgumentError(
                f"{name} has to be a torch tensor, it is {type(value).__name__}", where=_WHERE
            )
    if x.dim() != 4 or x.shape[1] != x.shape[2]:
        raise KernelArgumentError(f"x has to be (B, N, N, C), it is {tuple(x.shape)}", where=_WHERE)
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise KernelArgumentError(f"x is of {x.dtype}", where=_WHERE, hint="use fp32, bf16 or fp16")
    c, h = x.shape[3], weights["norm_out_weight"].numel()
    shapes = {
        "norm_in_weight": (c,), "norm_in_bias": (c,), "p_in_weight": (2 * h, c),
        "g_in_weight": (2 * h, c), "norm_out_weight": (h,), "norm_out_bias": (h,),
        "p_out_weight": (c, h), "g_out_weight": (c, c),
    }  # fmt: skip
    for name, value in weights.items():
        if tuple(value.shape) != shapes[name]:
            raise KernelArgumentError(
                f"{name} has to be {shapes[name]}, it is {tuple(value.shape)}",
                where=_WHERE,
                hint=f"C is {c}, the last extent of x, and H {h}, that of norm_out_weight",
            )
        if value.dtype != x.dtype:
            raise KernelArgumentError(
                f"{name} is of {value.dtype}, x of {x.dtype}", where=_WHERE, hint="give all one"
            )
    if mask is not None and (
        not isinstance(mask, torch.Tensor) or mask.shape != x.shape[:3] or mask.is_complex()
    ):
        kind = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise KernelArgumentError(
            f"mask has to be a tensor {tuple(x.shape[:3])}, it is {kind}", where=_WHERE
        )
    for name, value in {"mask": mask, **weights}.items():
        if value is not None and value.device != x.device:
            raise KernelArgumentError(f"{name} is on {value.device}, x on {x.device}", where=_WHERE)


def _on_hopper(x: Any) -> bool:
    """Whether the device has Hopper's kernels; an error where it has none at all."""
    if x.device.type == "cpu" and triton.knobs.runtime.interpret:
        return False
    target = None
    if x.device.type == "cuda":
        target = _target(x.device.index)
        if (target.backend, target.arch) == ("cuda", 90):
            return True
        if target.backend == "hip" or target.arch >= 80:
            return False
    raise KernelArgumentError(
        f"there is no kernel for {x.device if target is None else target}",
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


def forward(x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float) -> Any:
    """The update, of arguments that were checked."""
    import torch

    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    if weights[4].numel() == 0:  # no hidden channels
        return out.zero_()
    _run(x, weights, mask, incoming, eps, out)
    return out


def products_of(
    x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float
) -> tuple[Any, Any, Any]:
    """What the gradients are worked out from: gated projections, their products, the scales.

    Returns:
        (2H, B, ROW, ROW), zeros past N; (H, B, ROW, ROW); 1 / scale of the first one's channels,
        None where nothing is scaled.
    """
    return _run(x, weights, mask, incoming, eps, None)


class _Launcher:
    """Launches kernels, and those that it has launched before in a shorter way.

    Triton looks at each argument of each launch, to find the kernel that was compiled for such
    arguments: with descriptors that takes longer than a small update. What tells compilations
    apart is the same for all launches of one launcher.
    """

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        """Launch; the kernel's last parameters are its constants."""
        known = self._compiled.get(id(kernel))
        if known is not None:
            compiled, rest = known
            compiled[(programs, 1, 1)](*arguments, *rest)
            return
        compiled = kernel[(programs,)](*arguments, **constants)
        if compiled is not None:  # as it is where Triton interprets
            rest = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
            self._compiled[id(kernel)] = compiled, rest


@functools.lru_cache(maxsize=1024)
def _launcher(*_: Any) -> _Launcher:
    """One for each set of arguments that tell compilations apart."""
    return _Launcher()


def _launcher_of(x: Any, h: int, mask: Any, incoming: bool) -> _Launcher:
    hook = triton.knobs.runtime.add_stages_inspection_hook
    masked = None
    if mask is not None:
        masked = mask.dtype, mask.stride(), mask.data_ptr() % 16 == 0
    return _launcher(
        x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % 16 == 0, h, masked, incoming,
        hook()[1] if hook is not None else None, triton.knobs.runtime.debug,
    )  # fmt: skip


def _run(
    x: Any, weights: list[Any], mask: Any, incoming: bool, eps: float, out: Any
) -> tuple[Any, Any, Any]:
    import torch

    b, n, c = x.shape[0], x.shape[1], x.shape[3]
    h = weights[4].numel()
    hopper = _on_hopper(x) and _fits_hopper(c, h)
    kind = torch.float16 if x.dtype == torch.float32 else x.dtype
    row = triton.cdiv(n, _pairs(x)) * _pairs(x)
    y = torch.empty((b, row, row, c), dtype=kind, device=x.device)
    ab = torch.empty((2 * h, b, row, row), dtype=kind, device=x.device)
    products = torch.empty((h, b, row, row), dtype=x.dtype, device=x.device)
    steps = _launch_hopper if hopper else _launch_stock
    with torch.cuda.device_of(x):
        launch = _launcher_of(x, h, mask, incoming)
        weights, units = _scaled(launch, x, [_aligned(w) for w in weights])
        width = min(128, triton.next_power_of_2(c))
        pieces = triton.cdiv(c, width)
        pairs = max(1, 8192 // (width * triton.next_power_of_2(pieces)))
        launch(
            normalise, b * n * triton.cdiv(n, pairs),
            x, weights[0], weights[1], y, n, row, c, *x.stride(), eps,
            PAIRS=pairs, PIECE=width, PIECES=pieces,
        )  # fmt: skip
        steps(launch, y, weights, units, mask, incoming, eps, ab, products, out, n)
    return ab, products, None if units is None else units[: 2 * h]


def _aligned(weight: Any) -> Any:
    """As the copy engine takes it: contiguous, from a multiple of 16 bytes on."""
    weight = weight.contiguous()
    return weight if weight.data_ptr() % 16 == 0 else weight.clone()


def _pairs(x: Any) -> int:
    """What rows are padded to; few on the CPU, where the interpreter works on all of them."""
    return 16 if x.device.type == "cpu" else _PAIRS


def _fits_hopper(c: int, h: int) -> bool:
    return h == _HIDDEN and c % _DEPTH == 0 and c <= _MOST_CHANNELS


def _scaled(launch: Any, x: Any, weights: list[Any]) -> tuple[list[Any], Any]:
    """The weights as the kernels take them, and 1 / scale of each row of the projections.

    None where nothing is scaled.
    """
    import torch

    if x.dtype != torch.float32:
        return weights, None
    w_in, b_in, p_in, g_in, w_out, b_out, p_out, g_out = weights
    c, h = x.shape[3], w_out.numel()
    p_in_16, g_in_16, p_out_16, g_out_16 = (
        torch.empty_like(w, dtype=torch.float16) for w in (p_in, g_in, p_out, g_out)
    )
    numbers = torch.empty(4 * c + 6 * h, dtype=torch.float32, device=x.device)
    norms, units = numbers.split((2 * c + 2 * h, 4 * h + 2 * c))
    launch(
        scale_weights, 4 * h + 2 * c + 2,
        p_in, g_in, p_out, g_out, w_in, b_in, w_out, b_out,
        p_in_16, g_in_16, p_out_16, g_out_16, norms, units, c, h,
        C_POWER=triton.next_power_of_2(c), H_POWER=triton.next_power_of_2(h),
    )  # fmt: skip
    w_in, b_in, w_out, b_out = norms.split((c, c, h, h))
    return [w_in, b_in, p_in_16, g_in_16, w_out, b_out, p_out_16, g_out_16], units


def mask_arguments(mask: Any, other: Any) -> tuple[Any, tuple[int, int, int]]:
    """The mask as the kernels take it, or another tensor in its place, and its strides."""
    import torch

    if mask is None:
        return other, (0, 0, 0)
    if mask.dtype == torch.bool:
        mask = mask.view(torch.uint8)
    return mask, mask.stride()


def _units(units: Any, h: int, c: int, other: Any) -> tuple[Any, ...]:
    """1 / scale of the channels of a and b, their gates, the output's gates, and its projection.

    Where nothing is scaled, another tensor in their places.
    """
    if units is None:
        return other, other, other, other
    return units, units[2 * h :], units[4 * h :], units[4 * h + c :]


def _described(base: Any, shape: list[int], block: list[int]) -> TensorDescriptor:
    """A contiguous tensor for the copy engine.

    Without the checks of ``TensorDescriptor``, which take longer than a small update: bases here
    are multiples of 16 bytes, and so are rows.
    """
    descriptor = object.__new__(TensorDescriptor)
    descriptor.base, descriptor.shape, descriptor.block_shape = base, shape, block
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * extent)
    descriptor.strides = strides
    return descriptor


def _launch_hopper(
    launch: Any, y: Any, weights: list[Any], units: Any, mask: Any, incoming: bool, eps: float,
    ab: Any, products: Any, out: Any, n: int,
) -> None:  # fmt: skip
    _, _, p_in, g_in, w_out, b_out, p_out, g_out = weights
    b, row, _, c = y.shape
    h, all_pairs = _HIDDEN, b * row * row
    scaled = units is not None
    of_ab, of_gates, of_out_gates, of_out = _units(units, h, c, y)
    pieces, h_pieces = c // _DEPTH, h // _DEPTH
    programs = _processors(y.device.index)
    block = [_CHANNELS, _DEPTH]
    y_desc = _described(y, [all_pairs, c], [_PAIRS, _DEPTH])

    tensor, strides = mask_arguments(mask, y)
    chunks = 2 * h // _CHANNELS
    stages, resident = _stages(2 * pieces, chunks * 2 * pieces)
    launch(
        project, min(programs, all_pairs // (2 * _PAIRS)),
        y_desc, tensor, _described(p_in, [2 * h, c], block), _described(g_in, [2 * h, c], block),
        of_gates,
        _described(ab, [2 * h, all_pairs], [_CHANNELS // 2, _PAIRS]), b, n, row, *strides,
        PIECES=pieces, CHUNKS=chunks, STAGES=stages, RESIDENT=resident, RESULTS=_RESULTS,
        LEAD=_lead(2 * pieces, stages, resident), MASKED=mask is not None, SCALED=scaled,
    )  # fmt: skip

    block_n = 256 if row % 256 == 0 or row > 1024 else 128
    parts = 4 if scaled and block_n == 256 else 2  # 16 KiB of results at a time
    tiles = h * b * triton.cdiv(row, 128) * triton.cdiv(row, block_n)
    launch(
        pair_products, min(programs, tiles),
        _described(ab, [2 * h * b * row, row], [64, 64]),
        _described(ab, [2 * h * b * row, row], [64, block_n] if incoming else [block_n, 64]),
        _described(products, [h * b * row, row], [64, block_n // parts]), h * b, row,
        BLOCK_N=block_n, PARTS=parts, STAGES=4, INCOMING=incoming,
    )  # fmt: skip
    if out is None:
        return

    chunks = triton.cdiv(c, _CHANNELS)
    stages, resident = _stages(2 * (pieces + h_pieces), chunks * (pieces + h_pieces))
    launch(
        finish, min(programs, triton.cdiv(b * n * (row // _PAIRS), 2)),
        y_desc, products, w_out, b_out, _described(p_out, [c, h], block),
        _described(g_out, [c, c], block), of_ab, of_out_gates, of_out,
        _described(out, [b * n, n, c], [1, _PAIRS, _CHANNELS // (4 if scaled else 2)]),
        b, n, row, c, eps,
        PIECES=pieces, H_PIECES=h_pieces, CHUNKS=chunks, STAGES=stages, RESIDENT=resident,
        RESULTS=_RESULTS, LEAD=_lead(pieces + h_pieces, stages, resident), SCALED=scaled,
    )  # fmt: skip


#: Buffers of results of each consumer.
_RESULTS = 2


def _stages(pieces: int, blocks: int) -> tuple[int, bool]:
    """How many blocks of weights shared memory holds besides pieces of rows and results.

    Whether those are all, too.
    """
    left = _SHARED - pieces * _PAIRS * _DEPTH * 2 - 2 * _RESULTS * _PAIRS * _CHANNELS
    stages = min(left // (_CHANNELS * _DEPTH * 2), blocks)
    return stages, stages == blocks


def _lead(pieces: int, stages: int, resident: bool) -> int:
    """How many of the pieces of a chunk the consumers are apart.

    Half of them, so that one consumer's products are beside the other's finish; fewer where what
    the other has still to read would leave no room to copy ahead.
    """
    return pieces // 2 if resident else min(pieces // 2, max(stages - 2, 0))


def _launch_stock(
    launch: Any, y: Any, weights: list[Any], units: Any, mask: Any, incoming: bool, eps: float,
    ab: Any, products: Any, out: Any, n: int,
) -> None:  # fmt: skip
    _, _, p_in, g_in, w_out, b_out, p_out, g_out = weights
    b, row, _, c = y.shape
    h = w_out.numel()
    tensor, strides = mask_arguments(mask, y)
    of_ab, of_gates, of_out_gates, of_out = _units(units, h, c, y)
    depth, wide = _pairs(y), y.device.type == "cpu"
    pairs, channels, warps = depth, 64, 4
    if not wide and _target(y.device.index).backend == "hip":
        pairs, channels, warps = 128 if row % 128 == 0 else 64, 128, 8  # see amd_bounds
    cut = {
        "PAIRS": pairs, "CHANNELS": channels, "PIECE": 64, "SCALED": units is not None,
        "WIDE": wide, "num_warps": warps,
    }  # fmt: skip
    launch(
        project_stock, b * row * (row // pairs) * triton.cdiv(2 * h, channels),
        y, tensor, p_in, g_in, of_gates, ab, b, n, row, c, 2 * h, *strides,
        MASKED=mask is not None, **cut,
    )  # fmt: skip
    block = min(128, triton.next_power_of_2(row))
    launch(
        pair_products_stock, triton.cdiv(row, block) ** 2 * h * b,
        ab, products, h * b, row, BLOCK=block, DEPTH=depth, INCOMING=incoming, WIDE=wide,
    )  # fmt: skip
    if out is None:
        return
    launch(
        finish_stock, b * n * (row // pairs) * triton.cdiv(c, channels),
        y, products, w_out, b_out, p_out, g_out, of_ab, of_out_gates, of_out, out, b, n,
        row, c, h, eps, **cut,
    )  # fmt: skip
