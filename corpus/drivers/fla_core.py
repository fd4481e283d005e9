"""Drives fla-core: linear attention, forward and backward, and its modules."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

MODULES = ("fla",)
B, T, H, D = 1, 128, 2, 64

#: Arguments that are not [B, T, H, D], by name.
SHAPES: dict[str, tuple[int, ...]] = {
    "beta": (B, T, H),
    "beta_k": (B, T, H),
    "delta": (B, T, H),
    "p": (B, T, H, D),
    "gamma": (B, T, H),
    "eta": (B, T, H, 1),
    "s": (B, T, H, D),
    "A_log": (H,),
    "dt_bias": (H * D,),
    "lamb": (H, D),
    "readout": (H, 15, 15),
    "cu_seqlens": (2,),
    "u": (H, D),
    "ln_w": (H, D),
    "ln_b": (H, D),
    "l": (B, T, H, 8),
    "level_scales": (B, T, H, 8),
}
#: Operators whose gate is one number a head.
SCALAR_GATE = (
    "comba", "forgetting_attn", "gated_delta_product", "gated_delta_rule", "simple_gla",
    "path_attn", "log_linear_attn", "mesa_net", "lightning_attn", "cyfa", "precond_gated",
    "momentum_delta_rule",
)  # fmt: skip
OPERATORS = (
    "abc:chunk_abc",
    "attn:parallel_attn",
    "attnres:fused_attnres",
    "based:fused_chunk_based",
    "based:parallel_based",
    "comba:chunk_comba",
    "comba:fused_recurrent_comba",
    "cyfa:chunk_cyfa",
    "cyfa:fused_recurrent_cyfa",
    "delta_rule:chunk_delta_rule",
    "delta_rule:fused_recurrent_delta_rule",
    "deltaformer:deltaformer_attn",
    "forgetting_attn:parallel_forgetting_attn",
    "gated_delta_product:chunk_gated_delta_product",
    "gated_delta_rule:chunk_gated_delta_rule",
    "gated_delta_rule:fused_recurrent_gated_delta_rule",
    "gated_oja_rule:chunk_gated_oja_rule",
    "gated_oja_rule:fused_recurrent_gated_oja_rule",
    "gdn2:chunk_gdn2",
    "gdn2:fused_recurrent_gdn2",
    "generalized_delta_rule:chunk_dplr_delta_rule",
    "generalized_delta_rule:fused_recurrent_dplr_delta_rule",
    "generalized_delta_rule:chunk_iplr_delta_rule",
    "generalized_delta_rule:fused_recurrent_iplr_delta_rule",
    "gla:chunk_gla",
    "gla:fused_chunk_gla",
    "gla:fused_recurrent_gla",
    "gsa:chunk_gsa",
    "gsa:fused_recurrent_gsa",
    "kda:chunk_kda",
    "kda:fused_recurrent_kda",
    "lightnet:chunk_lightnet",
    "lightning_attn:chunk_lightning_attn",
    "linear_attn:chunk_linear_attn",
    "linear_attn:fused_chunk_linear_attn",
    "linear_attn:fused_recurrent_linear_attn",
    "log_linear_attn:chunk_log_linear_attn",
    "mesa_net:chunk_mesa_net",
    "momentum_delta_rule:chunk_momentum_delta_rule",
    "momentum_delta_rule:fused_recurrent_momentum_delta_rule",
    "parallax:parallel_parallax",
    "path_attn:parallel_path_attn",
    "precond_gated_delta_rule:chunk_precond_gated_delta_rule",
    "precond_gated_delta_rule:fused_recurrent_precond_gated_delta_rule",
    "precond_kda:chunk_precond_kda",
    "precond_kda:fused_recurrent_precond_kda",
    "rebased:parallel_rebased",
    "retention:chunk_retention",
    "retention:fused_chunk_retention",
    "retention:fused_recurrent_retention",
    "retention:parallel_retention",
    "rwkv6:chunk_rwkv6",
    "rwkv6:fused_recurrent_rwkv6",
    "rwkv7:chunk_rwkv7",
    "rwkv7:fused_mul_recurrent_rwkv7",
    "simple_gla:chunk_simple_gla",
    "simple_gla:fused_recurrent_simple_gla",
    "simple_gla:parallel_simple_gla",
    "stickbreaking_attn:parallel_stickbreaking_attn",
    "ttt:chunk_ttt_linear",
    "ttt:fused_chunk_ttt_linear",
    "wall_attn:parallel_wall_attn",
)


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor that wants a gradient."""
    return torch.randn(*shape).to(dtype).requires_grad_()


def backward(result: Any) -> None:
    """Run the backward pass from every floating-point result."""
    results = result if isinstance(result, (tuple, list)) else [result]
    wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    # Not the method: torch leaves its function mode for the time of that call.
    torch.autograd.backward(wanted, [torch.ones_like(r) for r in wanted])


def operator(name: str, **given: Any) -> None:
    """Call an operator with tensors chosen by its arguments' names, then its backward pass."""
    if "path_attn" in name:
        given = {"w": leaf(B, T, H, D, dtype=torch.float32), "beta": torch.rand(B, T, H)}
    if name.endswith("fused_chunk_based"):
        given = {"q": leaf(B, T, H, 16), "k": leaf(B, T, H, 16)}
    if "ttt" in name:
        given = {"w": leaf(H, D), "b": leaf(H, D), "eta": leaf(B, T, H, 1)}
        given |= {"chunk_size": 16}
    if "momentum" in name:
        given = {"g": torch.rand(B, T, H).neg()}
    if "lightning" in name:
        given = {"layer_idx": 1, "num_layers": 4}
    if "delta_product" in name:
        given = {"num_householder": 1, "g": torch.rand(B, T, H).neg()}
    if name.startswith("comba"):
        given = {"p": leaf(B, T, H, D), "beta": torch.rand(B, T, H)}
    package, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(f"fla.ops.{package}"), function_name)
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        key = parameter.name
        optional = parameter.default is not inspect.Parameter.empty
        if key in given:
            arguments[key] = given[key]
        elif key == "g" and any(word in name for word in SCALAR_GATE):
            arguments[key] = torch.rand(B, T, H).neg().requires_grad_()
        elif (optional and key != "g") or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        else:
            arguments[key] = leaf(*SHAPES.get(key, (B, T, H, D)))
    backward(function(**arguments))


def hgrn() -> None:
    from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn

    for function in (chunk_hgrn, fused_recurrent_hgrn):
        backward(function(leaf(B, T, D), leaf(B, T, D)))


def rwkv4() -> None:
    from fla.ops.rwkv4 import fused_recurrent_rwkv4

    backward(
        fused_recurrent_rwkv4(
            leaf(D), leaf(D), leaf(B, T, D), leaf(B, T, D), torch.zeros(B, 3, 1, D)
        )
    )


def based_on_blocks() -> None:
    from fla.ops.nsa import parallel_nsa

    heads = 16
    q, k = leaf(B, T, heads, D), leaf(B, T, 1, D)
    gates = [leaf(B, T, heads) for _ in range(3)]
    indices = torch.zeros(B, T, 1, 4, dtype=torch.long)
    backward(parallel_nsa(q, k, leaf(B, T, 1, D), *gates, block_indices=indices, block_size=32))


def norms() -> None:
    from fla.modules.norm import GroupNorm, LayerNorm, RMSNorm

    for norm in (LayerNorm(D), RMSNorm(D), GroupNorm(4, D)):
        backward(norm(leaf(B, T, D, dtype=torch.float32)))


def gated_norms() -> None:
    from fla.modules import FusedLayerNormGated, FusedRMSNormGated

    for norm in (FusedLayerNormGated(D), FusedRMSNormGated(D)):
        backward(norm(leaf(B, T, D, dtype=torch.float32), leaf(B, T, D, dtype=torch.float32)))


def l2norm() -> None:
    from fla.modules.norm.l2norm import l2norm as function

    backward(function(leaf(B, T, H, D)))
    backward(function(leaf(B, T, H, 1024)))


def activations() -> None:
    from fla.modules import activations as a

    for name in ("sigmoid", "logsigmoid", "swish", "fast_gelu_impl", "sqrelu", "fused_swish"):
        if function := getattr(a, name, None):
            backward(function(leaf(B, T, D)))
    for name in ("swiglu", "powglu", "powlu"):
        if function := getattr(a, name, None):
            backward(function(leaf(B, T, D), leaf(B, T, D)))
    backward(a.swiglu_linear(leaf(B, T, D), leaf(B, T, D), leaf(D, D), None))


def cross_entropy() -> None:
    from fla.modules import FusedCrossEntropyLoss, FusedKLDivLoss, FusedLinearCrossEntropyLoss

    target = torch.zeros(B * T, dtype=torch.long)
    backward(FusedCrossEntropyLoss()(leaf(B * T, 512), target))
    weight = leaf(512, D)
    backward(FusedLinearCrossEntropyLoss()(leaf(B * T, D), target, weight))
    backward(
        FusedKLDivLoss()(leaf(B * T, D), leaf(B * T, D).detach(), weight, leaf(512, D).detach())
    )


def l2warp() -> None:
    from fla.modules.l2warp import l2_warp

    backward(l2_warp(torch.ones((), requires_grad=True), leaf(B, T, 512)))


def grpo() -> None:
    from fla.modules.grpo import fused_grpo_loss

    backward(
        fused_grpo_loss(
            leaf(B, T + 1, 512),
            torch.randn(B, T),
            torch.zeros(B, T, dtype=torch.long),
            torch.randn(B),
        )
    )


def rotary() -> None:
    from fla.modules import RotaryEmbedding

    backward(RotaryEmbedding(D)(leaf(B, T, H, D), leaf(B, T, H, D)))


def convolution() -> None:
    from fla.modules import ShortConvolution

    conv = ShortConvolution(D, 4, activation="silu").to(torch.bfloat16)
    backward(conv(leaf(B, T, D)))
    state = torch.zeros(B, D, 4, dtype=torch.bfloat16)
    with torch.no_grad():
        conv.step(leaf(B, 1, D), None, state)


def token_shift() -> None:
    from fla.modules.token_shift import token_shift as function

    backward(function(leaf(B, T, D)))


def cumulative() -> None:
    from fla.ops.utils import cumsum

    for name in ("chunk_local_cumsum", "chunk_global_cumsum"):
        function = getattr(cumsum, name)
        extra = {"chunk_size": 64} if "local" in name else {}
        for shape in ((B, T, H), (B, T, H, D)):
            for reverse in (False, True):
                function(leaf(*shape, dtype=torch.float32), reverse=reverse, **extra)


def utilities() -> None:
    from fla.ops import utils

    backward(utils.mean_pooling(leaf(B, T, H, D), 64))
    x = torch.randn(B, T, 256)
    for module, name, arguments in (
        ("softmax", "softmax_fwd", (x,)),
        ("softmax", "softmax_bwd", (x, x)),
        ("logsumexp", "logsumexp_fwd", (torch.randn(T, 512),)),
    ):
        getattr(importlib.import_module(f"fla.ops.utils.{module}"), name)(*arguments)


def inverse() -> None:
    from fla.ops.utils.solve_tril import solve_tril

    for size in (16, 32, 64):
        solve_tril(torch.randn(B, T, H, size))


def rwkv_fused() -> None:
    from fla.ops.rwkv7 import fused_addcmul, fused_k_update, gate_output_correction

    x = [leaf(B, T, D) for _ in range(2)]
    backward(fused_addcmul.fused_addcmul_rwkv7(*x, *[leaf(1, 1, D) for _ in range(6)]))
    backward(fused_k_update.fused_k_rwkv7(leaf(B, T, D), leaf(B, T, D), leaf(D)))
    four = [leaf(B, T, H, D) for _ in range(3)]
    backward(
        gate_output_correction.gate_output_correction(
            leaf(B, T, H * D), *four[:2], leaf(H, D), four[2], leaf(B, T, H * D)
        )
    )


def gates() -> None:
    from fla.ops.kda import gate

    for name in ("fused_kda_gate",):
        backward(getattr(gate, name)(leaf(B, T, H, D), leaf(H)))


OTHERS = (
    hgrn, rwkv4, based_on_blocks, norms, gated_norms, l2norm, activations, cross_entropy, l2warp,
    grpo, rotary, convolution, token_shift, cumulative, utilities, inverse, rwkv_fused, gates,
)  # fmt: skip


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call."""
    for name in OPERATORS:
        yield name.partition(":")[2], partial(operator, name)
    for case in OTHERS:
        yield case.__name__, case
