"""``triangle_multiply`` without a GPU: its meaning, what it refuses, and its code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.triangle_reference import NAMES
from launching import Pointer, standing_in
from tlx.building import RELEASE, build, conversions_in_loops, instructions, loops_of
from triton.backends.compiler import GPUTarget

import remora
import remora.tlx as tlx
from remora.analysis import disassemble
from remora.errors import KernelArgumentError
from remora.kernels import (
    triangle,
    triangle_backward,
    triangle_folded,
    triangle_gates,
    triangle_gradients,
    triangle_hopper,
    triangle_multiply,
    triangle_scaling,
    triangle_stock,
)
from remora.kernels.offline import _hip_resources
from remora.kernels.prepared import Described, Part, Whole
from remora.kernels.triangle import held_in_shared


def test_the_reference_meaning() -> None:
    here = Path(__file__).parent
    file = here / "meaning_triangle.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        cwd=here.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout


# --- what is refused -------------------------------------------------------------------------

X = torch.ones(1, 2, 2, 8)
WEIGHTS = dict(zip(NAMES, map(
    torch.ones, [(8,), (8,), (4, 8), (4, 8), (2,), (2,), (8, 2), (8, 8)]
), strict=True))  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"x": [1]}, "x has to be a torch tensor, it is list"),
    "no weight": ({"p_in_weight": None}, "p_in_weight has to be a torch tensor, it is NoneType"),
    "three dimensions": ({"x": X[0]}, "x has to be (B, N, N, C), it is (2, 2, 8)"),
    "no square": ({"x": X[:, :1]}, "x has to be (B, N, N, C), it is (1, 1, 2, 8)"),
    "float64": ({"x": X.double()}, "x is of torch.float64"),
    "shape": ({"g_in_weight": X[0, 0]}, "g_in_weight has to be (4, 8), it is (2, 8)"),
    "dtype": ({"p_out_weight": torch.ones(8, 2).half()}, "p_out_weight is of torch.float16, x of"),
    "device": ({"norm_in_bias": torch.ones(8, device="meta")}, "norm_in_bias is on meta, x on cpu"),
    "mask": ({"mask": torch.ones(2, 2)}, "mask has to be a tensor (1, 2, 2), it is (2, 2)"),
    "no mask": ({"mask": True}, "mask has to be a tensor (1, 2, 2), it is bool"),
    "no kernel": ({}, "there is no kernel for cpu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    changed, message = REFUSED[case]
    with pytest.raises(KernelArgumentError, match=re.escape(message)) as caught:
        triangle_multiply(**{"x": X, **WEIGHTS, **changed})
    assert caught.value.where == "remora.kernels.triangle_multiply"


# --- code ------------------------------------------------------------------------------------


def descriptor(dtype: str, *block: int) -> str:
    return f"tensordesc<{dtype}[{','.join(map(str, block))}]>"


def gates(step: str, dtype: str, c: int) -> Any:
    """``project`` or ``finish`` for pairs of C channels, as ``triangle_multiply`` launches it."""
    kind, measured, pieces = {"fp32": "fp16"}.get(dtype, dtype), dtype != "fp32", c // 64
    held = held_in_shared(step, pieces, 2)
    cluster = held["CLUSTER"]
    common: dict[str, Any] = {
        "x_desc": descriptor(kind, 1, 64, 64), "kept": "*fp32", "B": "i32", "N": "i32",
        "ROW": "i32:16", "COUNT": "i32:16", "eps": "fp32", "PIECES": pieces,
        "MEASURED": measured, "UNITS": kind == "fp16", **held,
    }  # fmt: skip
    with remora.use(tlx.in_clusters((cluster, 1, 1))):
        if step == "project":
            return build(
                triangle_folded.project, "cuda:90", **common, mask="*u8", terms="*fp32",
                w_desc=descriptor(kind, 128 // cluster, 64), out_desc=descriptor(kind, 64, 64),
                stride_mb="i32", stride_mi="i32", stride_mk=1, MASKED=True, FULL=False,
            )  # fmt: skip
        weights = descriptor(kind, 64 // cluster, 64)
        return build(
            triangle_folded.finish, "cuda:90", **common,
            products=descriptor(kind, 64, 64), p_desc=weights, g_desc=weights, g_terms="*fp32",
            p_terms="*fp32", C="i32:16",
            out_desc=descriptor(dtype, 1, 64 if measured else 32, 64), H_PIECES=2,
        )  # fmt: skip


@pytest.mark.parametrize(("step", "dtype", "c"), [
    ("project", "bf16", 384), ("finish", "fp16", 384), ("finish", "bf16", 128),
    ("finish", "fp32", 384),
])  # fmt: skip
def test_gates_on_hopper(step: str, dtype: str, c: int) -> None:
    compiled = gates(step, dtype, c)
    ptx, kind = compiled.asm["ptx"], "bf16" if dtype == "bf16" else "f16"
    pieces = c // 64 + (2 if step == "finish" else 0)
    # Two consumers, four instructions a piece, of which project's have the gates' weights too.
    products = 2 * pieces * 4 * (2 if step == "project" else 1)
    assert instructions(ptx, r"wgmma\.mma_async\.sync\.aligned\.(m\S+) ") == products * [
        f"m64n128k16.f32.{kind}.{kind}"
    ]
    # One product is in flight while the next is issued, and no warp waits for another meanwhile.
    commit, over = r"wgmma\.commit_group", r"wgmma\.wait_group\S*\s+1;"
    between = re.findall(rf"{commit}((?:(?!{commit}).)*?){over}", ptx, re.DOTALL)
    assert len(between) == 2 * pieces
    after = re.findall(rf"{over}((?:(?!wgmma\.wait_group).)*?){commit}", ptx, re.DOTALL)
    assert len(after) == 2 * (pieces - (2 if step == "finish" else 1))
    for part in (*between, *after):
        assert not re.search(r"bar(rier)?\.sync|ldmatrix|\b(ld|st)\.(shared|global)", part)
    # Pairs are measured by a task of its own: those of x in project, their products in finish.
    measured = 0 if dtype == "fp32" else 8 * (c // 64 if step == "project" else 2)
    assert len(re.findall("ldmatrix", ptx)) == measured
    assert ("multicast::cluster" in ptx) == (c == 384)
    # Results go through the copy engine; the pairs' scales that finish wants do not.
    assert ("st.global" in ptx) == (step == "project" and measured > 0)
    # Nothing is spilled where all weights stay, and little elsewhere.
    most = 0 if c == 128 else 16 if RELEASE >= (3, 9) else 80
    assert disassemble(compiled.asm["cubin"]).count(" STL") <= most
    assert not [c for c in conversions_in_loops(compiled.asm["ttgir"]) if re.search(r"x\d+x", c)]
    assert compiled.metadata.shared <= 227 << 10


@pytest.mark.parametrize(
    ("step", "dtype", "c"),
    [("project", "bf16", 512), ("finish", "fp32", 192), ("finish", "fp32", 512)],
)
def test_channels_of_any_number_fit_into_shared_memory(step: str, dtype: str, c: int) -> None:
    """Beside barriers and reductions, for which ``held_in_shared`` leaves room."""
    assert gates(step, dtype, c).metadata.shared <= 227 << 10


def gradients_of_gates(step: str, c: int) -> Any:
    """``triangle_gates.gates`` for pairs of C channels in bf16, as the gradients launch it."""
    held, output = held_in_shared(step, c // 64, 2), step == "output"
    cluster = held["CLUSTER"]
    weights, pairs = descriptor("bf16", 64 // cluster, 64), descriptor("bf16", 1, 64, 64)
    plane = descriptor("bf16", 64, 64)
    with remora.use(tlx.in_clusters((cluster, 1, 1))):
        return build(
            triangle_gates.gates, "cuda:90", y_desc=pairs, z_desc=plane if output else pairs,
            p_desc=weights, g_desc=weights, d_desc=pairs if output else plane, mask="*u8",
            out_desc=pairs, B="i32", N="i32:16", first_p="i32:16", first_g="i32:16",
            stride_mb="i32", stride_mi="i32", stride_mk=1, PIECES=c // 64,
            P_PIECES=2 if output else c // 64, OUTPUT=output, MASKED=not output, **held,
        )  # fmt: skip


@pytest.mark.parametrize(("step", "c"), [("input", 128), ("input", 384), ("output", 384)])
def test_gradients_of_gates_on_hopper(step: str, c: int) -> None:
    compiled = gradients_of_gates(step, c)
    ptx, pieces = compiled.asm["ptx"], c // 64 + (2 if step == "output" else c // 64)
    assert instructions(ptx, r"wgmma\.mma_async\.sync\.aligned\.(m\S+) ") == 2 * pieces * 4 * [
        "m64n128k16.f32.bf16.bf16"
    ]
    # What the results are multiplied with comes in the layout that they have.
    assert len(re.findall("ldmatrix", ptx)) == 2 * 2 * 4
    assert ("ldmatrix.sync.aligned.m8n8.x4.trans" in ptx) == (step == "output")
    assert not [c for c in conversions_in_loops(compiled.asm["ttgir"]) if re.search(r"x\d+x", c)]
    assert "st.global" not in ptx
    most = 0 if c == 128 else 48 if RELEASE >= (3, 9) else 96
    assert disassemble(compiled.asm["cubin"]).count(" STL") <= most
    assert compiled.metadata.shared <= 227 << 10


@pytest.mark.parametrize(("step", "c"), [("input", 512), ("output", 512)])
def test_gradients_of_many_channels_fit_into_shared_memory(step: str, c: int) -> None:
    assert gradients_of_gates(step, c).metadata.shared <= 227 << 10


def products(dtype: str, incoming: bool) -> Any:
    """``pair_products``, as ``triangle_multiply`` launches it."""
    kind, parts = {"fp32": "fp16"}.get(dtype, dtype), 4 if dtype == "fp32" else 2
    return build(
        triangle_hopper.pair_products, "cuda:90", a_desc=descriptor(kind, 64, 64),
        b_desc=descriptor(kind, *((64, 256) if incoming else (256, 64))),
        c_desc=descriptor(dtype, 64, 256 // parts), BATCHES="i32", ROW="i32:16",
        BLOCK_N=256, PARTS=parts, STAGES=4, INCOMING=incoming,
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "incoming"), [("bf16", False), ("fp32", True)])
def test_products_on_hopper(dtype: str, incoming: bool) -> None:
    compiled = products(dtype, incoming)
    ptx, kind = compiled.asm["ptx"], "bf16" if dtype == "bf16" else "f16"
    assert set(instructions(ptx, r"wgmma\.mma_async\.sync\.aligned\.(m\S+) ")) == {
        f"m64n256k16.f32.{kind}.{kind}"
    }
    inner = min((body for body in loops_of(ptx) if "wgmma.mma_async" in body), key=len)
    assert instructions(inner, r"wgmma\.wait_group\.sync\.aligned\s+(\d)") == ["1"]
    assert not re.search(r"(ld|st)\.(shared|global)|stmatrix|ldmatrix", inner)
    assert not conversions_in_loops(compiled.asm["ttgir"])
    assert " STL" not in disassemble(compiled.asm["cubin"])
    assert compiled.metadata.shared <= 227 << 10


@pytest.mark.parametrize(("target", "dtype"), [("hip:gfx942", "bf16"), ("hip:gfx950", "fp32")])
def test_on_cdna(target: str, dtype: str) -> None:
    kind = {"fp32": "fp16"}.get(dtype, dtype)
    cut = {"PAIRS": 128, "CHANNELS": 128, "PIECE": 64, "SCALED": dtype == "fp32", "WIDE": False}
    common: dict[str, Any] = {
        "y": f"*{kind}", "p": f"*{kind}", "g": f"*{kind}", "g_unit": "*fp32", "B": "i32",
        "N": "i32", "ROW": "i32:16", "C": "i32:16", **cut,
    }  # fmt: skip
    first = build(
        triangle_stock.project_stock, target, options={"num_warps": 8}, **common, mask="*u8",
        out=f"*{kind}", COUNT="i32:16", MASKED=True, stride_mb="i32", stride_mi="i32", stride_mk=1,
    )  # fmt: skip
    second = build(
        triangle_stock.pair_products_stock, target, ab=f"*{kind}", c=f"*{dtype}",
        BATCHES="i32:16", ROW="i32:16", BLOCK=128, DEPTH=64, INCOMING=dtype == "fp32", WIDE=False,
    )  # fmt: skip
    third = build(
        triangle_stock.finish_stock, target, options={"num_warps": 8}, **common,
        products=f"*{dtype}", weight=f"*{dtype}", bias=f"*{dtype}", unit="*fp32", p_unit="*fp32",
        out=f"*{dtype}", H="i32:16", eps="fp32",
    )  # fmt: skip
    for compiled in (first, second, third):
        assembly = compiled.asm["amdgcn"]
        assert re.search(rf"^\s*v_mfma_f32_\d+x\d+x\d+_{kind.replace('fp', 'f')}", assembly, re.M)
        assert _hip_resources(assembly)[1] == 0  # nothing is spilled


@pytest.mark.parametrize(("target", "dtype"), [("hip:gfx942", "bf16"), ("cuda:80", "fp32")])
def test_gradients_elsewhere(target: str, dtype: str) -> None:
    pointers = ("y", "z", "p", "g", "d", "of_p", "of_g")
    compiled = build(
        triangle_gradients.gate_gradients, target, options={"num_warps": 8, "num_stages": 2},
        **dict.fromkeys(pointers, f"*{dtype}"), mask="*u8", N="i32:16", COUNT="i32:16", C="i32:16",
        H="i32:16", stride_zk="i32:16", stride_zc=1, stride_db="i32:16", stride_di="i32:16",
        stride_dk="i32:16",
        stride_dc=1, stride_mb="i32", stride_mi="i32", stride_mk=1, stride_p="i32:16",
        stride_g="i32:16", first_p="i32:16", first_g="i32:16", PAIRS=128, CHANNELS=64,
        PIECE=64 if dtype == "bf16" else 32, OUTPUT=True, MASKED=False, WIDE=False,
    )  # fmt: skip
    if target.startswith("hip"):
        assembly = compiled.asm["amdgcn"]
        assert re.search(r"^\s*v_mfma_f32_\d+x\d+x\d+_bf16", assembly, re.M)
        assert _hip_resources(assembly)[1] == 0  # nothing is spilled
    else:
        assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in compiled.asm["ptx"]
        assert " STL" not in disassemble(compiled.asm["cubin"])


class Typed(Pointer):
    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype


@pytest.mark.parametrize(
    ("shape", "h", "dtype"),
    [((3, 7, 7, 40), 24, "bfloat16"), ((3, 7, 7, 40), 24, "float16"),
     ((1, 64, 64, 128), 128, "bfloat16"), ((1, 64, 64, 128), 128, "float32")],
)  # fmt: skip
def test_all_launches_of_gradients_compile(
    shape: tuple[int, ...], h: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the interpreter does not see: there a name may have another dtype in each branch."""
    kind = getattr(torch, dtype)
    others = {
        triangle_backward._MASK: torch.uint8, triangle_backward._STACKED: torch.float32,
        triangle_backward._OTHER: torch.float32,
    }  # fmt: skip

    def given(x: Any) -> Any:
        if isinstance(x, Described):
            return x.at(given(x.base))
        if isinstance(x, Part):
            return Typed(x.dtype)
        return Typed(others.get(x.number, kind)) if isinstance(x, Whole) else x

    monkeypatch.setattr(triangle, "_target", lambda device: GPUTarget("cuda", 90, 32))
    monkeypatch.setattr(triangle, "_processors", lambda device: 132)
    strides = torch.empty(shape, device="meta").stride()
    with standing_in():
        steps = triangle_backward._Steps(
            kind, torch.device("cuda", 0), shape, strides, True, h,
            (torch.uint8, (shape[1] * shape[2], shape[2], 1), True), 1e-5,
        )  # fmt: skip
        names = []
        for launch in (*steps.launches._launches, *steps.last._launches):
            arguments = map(given, launch._given)
            compiled = launch._kernel.warmup(
                *arguments, grid=(launch._programs,), **launch._constants
            )
            assert compiled.asm["cubin"]
            names.append(launch._kernel.__name__)
    on_hopper = h == 128 and kind != torch.float32
    assert names.count("gates" if on_hopper else "gate_gradients") == 2
    assert names[-1] == "gather"


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_norms_move_16_bytes(turned: bool) -> None:
    """Of pairs by channels, as x, and of channels by pairs, as the projections' products."""
    first, second = ("i32:16", 1) if not turned else (1, "i32:16")
    strides = {f"stride_{x}{k}": "i32:16" for x in "xo" for k in "bi"}
    for x in "gxo":
        strides |= {f"stride_{x}k": first, f"stride_{x}c": second}
    compiled = build(
        triangle_gradients.norm_gradient, "cuda:90", grad="*bf16", x="*bf16",
        stats="*fp32", weight="*bf16", unit="*fp32", of_x="*bf16", sums="*fp32", B="i32",
        N="i32:16", K="i32:16", M="i32:16", **strides, PAIRS=64 if turned else 8, PIECE=128,
        PIECES=1 if turned else 3, SCALED=False, TURNED=turned,
        options={"num_warps": 16 if turned else 4},
    )  # fmt: skip
    ptx = compiled.asm["ptx"]
    # Two tiles come while one is worked on; of statistics a number a pair.
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[.*?\], \[.*?\], (\w+)", ptx)
    assert set(copies) - {"0x4"} == {"0x10"}
    body = max(loops_of(ptx), key=len)
    assert "cp.async" in body
    assert set(re.findall(r"st\.global\.(\S+)", body)) == {"v4.b32"}
    assert " STL" not in disassemble(compiled.asm["cubin"])


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_norms_move_16_bytes(target: str) -> None:
    compiled = build(
        triangle_stock.normalise, target, x="*bf16", weight="*bf16", bias="*bf16", y="*bf16",
        stats="*fp32", N="i32", ROW="i32:16", C="i32:16", stride_xb="i32:16", stride_xi="i32:16",
        stride_xk="i32:16", stride_xc=1, eps="fp32", PAIRS=16, PIECE=128, PIECES=3,
        FULL=True, WEIGHTED=True, KEPT=True,
    )  # fmt: skip
    assembly = compiled.asm["ptx" if target.startswith("cuda") else "amdgcn"]
    assert re.search(r"ld\.global\.v4\.b32|(global|buffer)_load_dwordx4", assembly)
    assert re.search(r"st\.global\.v4\.b32|(global|buffer)_store_dwordx4", assembly)


def test_weights_are_scaled_on_cdna() -> None:
    pointers = [n for n in triangle_scaling.scale_weights.arg_names if not n.isupper()]
    kinds = {n: "*fp16" if n.endswith("16") else "*fp32" for n in pointers}
    compiled = build(
        triangle_scaling.scale_weights, "hip:gfx942", **kinds, C="i32:16", H="i32:16",
        C_POWER=512, H_POWER=128,
    )  # fmt: skip
    assert re.search(r"v_cvt_f16_f32|v_fma_mixlo_f16", compiled.asm["amdgcn"])
