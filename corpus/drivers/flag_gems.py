"""Drives flag-gems: the operators of ATen that have a kernel of their own in its source.

Its element-wise operators are generated when they first run and are in no
module, so they are not here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

MODULES = ("flag_gems",)
M, N = 64, 512


def x(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*(shape or (M, N))).to(dtype)


def f32(*shape: int) -> torch.Tensor:
    return x(*shape, dtype=torch.float32)


def ints(*shape: int, high: int = 8, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape or (M, N)).to(dtype)


def bools(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (M, N), dtype=torch.bool)


#: Operator -> arguments, under flag_gems.ops; "name#2" is another call of the same operator.
ONE = (
    "absolute", "all", "amax", "angle", "any", "arcsinh", "arctanh_", "argmax", "argmin", "asinh_",
    "celu_", "count_nonzero", "digamma_", "exponential_", "floor_", "hardsigmoid", "hardswish_",
    "i0", "i0_", "log1p_", "logit", "logit_", "max", "mean", "min", "prod", "relu6", "selu",
    "selu_", "sgn_", "sinh_", "softshrink", "special_i0e", "special_i1", "std", "sum", "trace",
    "tril", "triu", "uniform_", "var_mean", "vector_norm", "zero", "t_copy", "nonzero",
    "lift_fresh_copy", "resolve_conj", "round", "aminmax", "cosh", "hadamard_transform", "square",
    "alias_copy",
)  # fmt: skip
CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "all_dim": lambda: (bools(), 1),
    "all_dims": lambda: (bools(), [1]),
    "any_dim": lambda: (bools(), 1),
    "any_dims": lambda: (bools(), [1]),
    "amax#dim": lambda: (f32(), [1]),
    "argmax#dim": lambda: (f32(), 1),
    "argmin#dim": lambda: (f32(), 1),
    "addmm": lambda: (x(N), x(M, N), x(N, N)),
    "addmv": lambda: (x(M), x(M, N), x(N)),
    "addr": lambda: (x(M, N), x(M), x(N)),
    "arange": lambda: (256,),
    "avg_pool2d": lambda: (x(2, 4, 32, 32), 2),
    "baddbmm": lambda: (x(4, M, M), x(4, M, N), x(4, N, M)),
    "batch_norm": lambda: (f32(8, 16, 32), f32(16), f32(16), f32(16), f32(16), True),
    "batch_norm_backward": lambda: (
        f32(8, 16, 32), f32(8, 16, 32), f32(16), f32(16), f32(16), f32(16), f32(16), True, 1e-5,
        [True, True, True],
    ),
    "bernoulli_": lambda: (x(), 0.5),
    "bmm": lambda: (x(4, M, N), x(4, N, M)),
    "cat": lambda: ([x(), x()], 0),
    "conv1d": lambda: (x(4, 16, 64), x(16, 16, 3), None, 1, 1),
    "conv2d": lambda: (x(4, 16, 32, 32), x(16, 16, 3, 3), None, 1, 1),
    "conv3d": lambda: (x(2, 16, 8, 8, 8), x(16, 16, 3, 3, 3), None, 1, 1),
    "cummax": lambda: (f32(), 1),
    "cummin": lambda: (f32(), 1),
    "cumsum": lambda: (f32(), 1),
    "normed_cumsum": lambda: (f32(), -1),
    "diag": lambda: (x(M),),
    "diag#2": lambda: (x(M, M),),
    "dot": lambda: (f32(4096), f32(4096)),
    "dropout": lambda: (x(), 0.5, True),
    "dropout_backward": lambda: (x(), bools(), 2.0),
    "embedding": lambda: (x(M, N), ints(8)),
    "embedding_backward": lambda: (x(8, N), ints(8), M, -1, True),
    "embedding_dense_backward": lambda: (x(8, N), ints(8), M, -1, False),
    "eye": lambda: (M,),
    "eye_m": lambda: (M, N),
    "fmin": lambda: (x(), x()),
    "gather": lambda: (x(), 1, ints()),
    "group_norm": lambda: (f32(4, 16, 32), f32(16), f32(16), 4, 16, 32, 4),
    "group_norm_backward": lambda: (
        f32(4, 16, 32), f32(4, 16, 32), f32(4, 4), f32(4, 4), f32(16), 4, 16, 32, 4,
        [True, True, True],
    ),
    "hstack": lambda: ([x(), x()],),
    "hypot": lambda: (f32(), f32()),
    "index_select": lambda: (x(), 0, ints(8)),
    "isin": lambda: (ints(), ints(8)),
    "isin#many": lambda: (ints(), ints(4096)),
    "kron": lambda: (x(8, 8), x(8, 8)),
    "layer_norm": lambda: (x(), [N], x(N), x(N)),
    "layer_norm#long": lambda: (x(8, 16384), [16384], x(16384), x(16384)),
    "layer_norm_backward": lambda: (
        x(), x(), [N], f32(M), f32(M), x(N), x(N), [True, True, True],
    ),
    "linspace": lambda: (0.0, 1.0, 256),
    "logspace": lambda: (0.0, 1.0, 256),
    "log_softmax": lambda: (x(), 1),
    "log_softmax_backward": lambda: (x(), x(), 1, torch.float16),
    "softmax": lambda: (x(), 1),
    "softmax#outer": lambda: (x(), 0),
    "softmax_backward": lambda: (x(), x(), 1, torch.float16),
    "softmax_backward#outer": lambda: (x(), x(), 0, torch.float16),
    "scaled_softmax_forward": lambda: (x(2, 4, M, M), 0.5),
    "scaled_softmax_backward": lambda: (x(2, 4, M, M), x(2, 4, M, M), 0.5),
    "margin_ranking_loss": lambda: (f32(N), f32(N), f32(N)),
    "masked_scatter": lambda: (x(), bools(), x()),
    "masked_select": lambda: (x(), bools()),
    "max_dim": lambda: (f32(), 1),
    "min_dim": lambda: (f32(), 1),
    "max_pool2d_with_indices": lambda: (f32(2, 4, 32, 32), 2),
    "max_pool2d_backward": lambda: (
        f32(2, 4, 16, 16), f32(2, 4, 32, 32), ints(2, 4, 16, 16), 2, 2, 0, 1, False,
    ),
    "mean_dim": lambda: (f32(), [1]),
    "mm": lambda: (x(M, N), x(N, M)),
    "mm#large": lambda: (x(512, 256), x(256, 512)),
    "streamk_mm": lambda: (x(512, 512), x(512, 512), x(512, 512), 512, 512, 512),
    "mse_loss": lambda: (f32(), f32()),
    "multinomial": lambda: (torch.rand(M, N), 4, True),
    "mv": lambda: (x(), x(N)),
    "nll_loss_forward": lambda: (f32(), ints(M)),
    "nll_loss_backward": lambda: (f32(), f32(), ints(M)),
    "nll_loss2d_forward": lambda: (f32(2, 8, 16, 16), ints(2, 16, 16)),
    "nll_loss2d_backward": lambda: (f32(2, 16, 16), f32(2, 8, 16, 16), ints(2, 16, 16)),
    "one_hot": lambda: (ints(M), 8),
    "ones": lambda: ((M, N),),
    "zeros": lambda: ((M, N),),
    "full": lambda: ((M, N), 2.0),
    "rand": lambda: ((M, N),),
    "randn": lambda: ((M, N),),
    "randperm": lambda: (4096,),
    "normal_tensor_tensor": lambda: (f32(), f32().abs()),
    "per_token_group_quant_fp8": lambda: (x(), 128),
    "pixel_unshuffle": lambda: (x(2, 4, 16, 16), 2),
    "prelu": lambda: (x(), x(1)),
    "prod_dim": lambda: (f32(), 1),
    "quantile": lambda: (f32(), torch.tensor([0.5]), 1),
    "reflection_pad1d": lambda: (x(4, M), (2, 2)),
    "reflection_pad2d": lambda: (x(4, M, M), (2, 2, 2, 2)),
    "replication_pad1d": lambda: (x(4, M), (2, 2)),
    "replication_pad3d": lambda: (x(2, 4, 8, 8, 8), (1, 1, 1, 1, 1, 1)),
    "repeat_interleave_self_tensor": lambda: (x(), ints(M, high=2), 0),
    "rms_norm_forward": lambda: (x(), [N], x(N)),
    "rms_norm_backward": lambda: (x(), x(), f32(M), [N], x(N)),
    "roll": lambda: (x(), 3, 1),
    "scatter": lambda: (x(), 1, ints(), x()),
    "scatter_add_": lambda: (f32(), 1, ints(), f32()),
    "select_backward": lambda: (x(M), [M, N], 1, 3),
    "select_scatter": lambda: (x(), x(M), 1, 3),
    "slice_backward": lambda: (x(M, 8), [M, N], 1, 0, 8, 1),
    "slice_scatter": lambda: (x(), x(M, 8), 1, 0, 8),
    "soft_margin_loss": lambda: (f32(), f32()),
    "sort": lambda: (f32(), 1),
    "sort#long": lambda: (f32(4, 8192), 1),
    "stack": lambda: ([x(), x()], 0),
    "std#dim": lambda: (f32(), [1]),
    "sum_dim": lambda: (f32(), [1]),
    "topk": lambda: (f32(), 8),
    "topk#long": lambda: (f32(4, 8192), 8),
    "unfold_backward": lambda: (x(M, 8, 16), [M, 128], 1, 16, 16),
    "_unique2": lambda: (ints(4096), True, True, True),
    "_unique2#long": lambda: (ints(100000), True, True, True),
    "unique_consecutive": lambda: (ints(4096), True, True),
    "upsample_bicubic2d": lambda: (f32(1, 4, 16, 16), [32, 32], False),
    "_upsample_bicubic2d_aa": lambda: (f32(1, 4, 16, 16), (32, 32), False),
    "upsample_linear1d": lambda: (f32(1, 4, 16), [32], False),
    "upsample_nearest1d": lambda: (f32(1, 4, 16), (32,)),
    "upsample_nearest2d": lambda: (f32(1, 4, 16, 16), (32, 32)),
    "upsample_nearest3d": lambda: (f32(1, 4, 8, 8, 8), (16, 16, 16)),
    "var": lambda: (f32(),),
    "var#dim": lambda: (f32(), [1]),
    "var_mean#dim": lambda: (f32(), [1]),
    "vdot": lambda: (f32(4096), f32(4096)),
    "vector_norm#dim": lambda: (f32(), 2, [1]),
    "vector_norm#1": lambda: (f32(), 1, [1]),
    "vector_norm#inf": lambda: (f32(), float("inf"), [1]),
    "vstack": lambda: ([x(), x()],),
    "w8a8_block_fp8_matmul": lambda: (
        x(M, N).to(torch.float8_e4m3fn), x(N, N).to(torch.float8_e4m3fn), f32(M, 4), f32(4, 4),
        [128, 128],
    ),
    "weight_norm_interface": lambda: (f32(), f32(M, 1), 0),
    "weight_norm_interface#last": lambda: (f32(), f32(1, N), 1),
    "weight_norm_interface_backward": lambda: (f32(), f32(), f32(M, 1), f32(M), 0),
    "index_add": lambda: (f32(), 0, ints(8), f32(8, N)),
    "hadamard_transform_12N": lambda: (x(M, 12 * 64),),
    "hadamard_transform_20N": lambda: (x(M, 20 * 64),),
    "hadamard_transform_28N": lambda: (x(M, 28 * 64),),
    "hadamard_transform_40N": lambda: (x(M, 40 * 64),),
    "scaled_dot_product_attention": lambda: (x(2, 4, 128, 64), x(2, 4, 128, 64), x(2, 4, 128, 64)),
    "scaled_dot_product_attention_forward": lambda: (
        x(2, 4, 128, 64), x(2, 4, 128, 64), x(2, 4, 128, 64), None, 0.0, True,
    ),
    "scaled_dot_product_attention_backward": lambda: (
        x(2, 4, 128, 64), x(2, 4, 128, 64), x(2, 4, 128, 64), x(2, 4, 128, 64),
        x(2, 4, 128, 64), f32(2, 4, 128),
    ),
    "flash_attention_forward": lambda: (
        x(2, 128, 4, 64), x(2, 128, 4, 64), x(2, 128, 4, 64), None, None, 128, 128, 0.0, True,
        False,
    ),
    "rrelu_with_noise_backward": lambda: (x(), x(), x(), 0.1, 0.3, True, False),
    "_conv_depthwise2d": lambda: (x(2, 8, 16, 16), x(8, 1, 3, 3), 3, None, 1, 1, 1),
    "act_quant_triton": lambda: (x(),),
    "get_paged_mqa_logits_metadata": lambda: (ints(8, dtype=torch.int32), 64, 132),
    "group_mm": lambda: (x(M, N), x(4, N, M), torch.tensor([16, 32, 48, 64], dtype=torch.int32)),
}  # fmt: skip
#: The same under flag_gems.fused.
FUSED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "fused_add_rms_norm": lambda: (x(), x(), [N], x(N)),
    "skip_layer_norm": lambda: (x(), x(), [N], x(N), x(N)),
    "gelu_and_mul": lambda: (x(), x()),
    "silu_and_mul": lambda: (x(), x()),
    "apply_rotary_pos_emb": lambda: (
        x(2, 32, 4, 64), x(2, 32, 4, 64), x(32, 32), x(32, 32), ints(2, 32), True,
    ),
    "cross_entropy_loss": lambda: (f32(), ints(M)),
    "instance_norm": lambda: (f32(4, 16, 64), f32(16), f32(16)),
    "weight_norm": lambda: (f32(), f32(M, 1)),
    "concat_and_cache_mla": lambda: (
        x(8, 512), x(8, 64), x(4, 16, 576), ints(8), "auto", f32(1),
    ),
    "reshape_and_cache": lambda: (
        x(8, 4, 64), x(8, 4, 64), x(4, 4, 8, 16, 8), x(4, 4, 64, 16), ints(8), "auto", None, None,
    ),
    "reshape_and_cache_flash": lambda: (
        x(8, 4, 64), x(8, 4, 64), x(4, 16, 4, 64), x(4, 16, 4, 64), ints(8), "auto", None, None,
    ),
    "topk_softmax": lambda: (
        f32(8, 4), ints(8, 4, dtype=torch.int32), ints(8, 4, dtype=torch.int32), f32(8, 16),
    ),
    "moe_sum": lambda: (x(8, 2, N), x(8, N)),
    "moe_align_block_size": lambda: (ints(8, 2, dtype=torch.int32), 16, 8),
    "bincount": lambda: (ints(N),),
    "outer": lambda: (f32(M), f32(M)),
    "grouped_topk": lambda: (f32(8, 16), 4, 2, 4, True, 1.0, f32(16), 0),
    "flash_mla": lambda: (
        x(2, 1, 16, 576), ints(2, 4, dtype=torch.int32), x(16, 64, 1, 576), 256, 64, 2, 1,
        ints(2, dtype=torch.int32), 16, 1, 576, 512, True,
    ),
}  # fmt: skip


#: Operators that the package does not list in ``flag_gems.ops``.
MODULES_OF = {
    "act_quant_triton": "flag_gems.ops.act_quant",
    **{f"hadamard_transform_{n}N": "flag_gems.ops.hadamard_transform" for n in (12, 20, 28, 40)},
    "streamk_mm": "flag_gems.ops.mm_streamk",
    "_conv_depthwise2d": "flag_gems.ops.conv_depthwise2d",
    "hadamard_transform": "flag_gems.ops.hadamard_transform",
}


def call(where: str, name: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
    operator = name.partition("#")[0]
    module = importlib.import_module(MODULES_OF.get(operator, where))
    function = getattr(module, operator)
    function(*arguments())


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every call."""
    for name in ONE:
        yield name, lambda name=name: call("flag_gems.ops", name, lambda: (f32(),))
    for where, table in (("flag_gems.ops", CALLS), ("flag_gems.fused", FUSED)):
        for name, arguments in table.items():
            yield name, lambda w=where, n=name, a=arguments: call(w, n, a)
