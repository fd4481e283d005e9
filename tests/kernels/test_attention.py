"""Attention: its meaning on the CPU, its machine code, without hardware."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tlx.building import RELEASE, build, conversions_in_loops, instructions
from triton import knobs

import remora
from remora.errors import KernelArgumentError, PipelineError
from remora.kernels import attention_backward_wide
from remora.kernels.attention import _BACKWARD_BLOCK_M, _CONFIGS, HEAD_DIMS, Config, config_of
from remora.kernels.attention_backward import attention_backward
from remora.kernels.attention_narrow import backward_of, narrowed
from remora.kernels.attention_plain import attention_plain
from remora.kernels.attention_specialized import attention_forward
from remora.pipeline import attached


def test_the_reference_meaning() -> None:
    """In a process of its own: Triton reads the variable as it is imported."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         here / "meaning_attention.py"],
        cwd=here.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout


def descriptor(rows: int, columns: int, packed: bool, dtype: str = "fp16") -> str:
    front = "1,1,1" if packed else "1,1"
    return f"tensordesc<{dtype}[{front},{rows},{columns}]>"


def sass(compiled: Any) -> str:
    """Machine code as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run(
            [knobs.nvidia.nvdisasm.path, "-c", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip


def spills(text: str) -> int:
    """Accesses to local memory. (``cuobjdump`` counts a frame for spills as STACK.)"""
    return len(re.findall(r"\b(?:LDL|STL)\b", text))


def spills_beside_products(text: str) -> int:
    """Those in blocks that have products or a step's exponentials, not only where a tile ends."""
    blocks = re.split(r"^\.L_x_\d+:|\bBRA\b", text, flags=re.MULTILINE)
    return sum(spills(x) for x in blocks if "HGMMA" in x or x.count("MUFU.EX2") > 20)


def serialised(code: str) -> int:
    """How many products ptxas made to wait for each other, for want of registers."""
    return len(re.findall(r"HGMMA\.\S+ [^\n]*gsb0[^\n]*\n[^\n]*DEPBAR\.LE gsb0, 0x0", code))


def forward(
    dim: int, *, packed: bool = False, left: bool = False, right: bool = False,
    tail: bool = False, narrow: bool = False,
) -> Any:  # fmt: skip
    """As ``attention`` launches it; where values are padded, before its PTX is edited."""
    config = config_of(dim, not (packed or left or right))
    first, second = HEAD_DIMS[dim]
    out, out1 = (128, 0) if narrow else (first, second)
    kinds: dict[str, Any] = {}
    for name, rows, columns in (
        ("q", 64, (first, second)), ("k", config.block_n, (first, second)),
        ("v", config.block_n, (out, out1)), ("o", 64, (out // config.o_parts, out1)),
    ):  # fmt: skip
        for part, width in enumerate(columns):
            box = descriptor(rows, width, packed) if width else None
            kinds[f"{name}{part}_desc"] = box
    begins = "*i32" if packed else None
    with remora.use(*attached(attention_forward)):
        return build(
        attention_forward, "cuda:90", **kinds, sums="*fp32",
        tickets="*i32" if packed or left or right else None, begins_q=begins, begins_k=begins,
        scale="fp32", BATCH="i32", HEADS="i32", LENGTH_Q="i32", LENGTH_K="i32", TOTAL_Q="i32",
        left="i32", right="i32", GROUP=1, DIM0=first, DIM1=second, OUT0=out, OUT1=out1, 
        CONSUMERS=config.consumers,
        BLOCK_N=config.block_n, STAGES=config.stages, Q_STAGES=config.q_stages,
        O_PARTS=config.o_parts, REGISTERS=config.registers, PINGPONG=config.pingpong,
        LAZY=config.lazy, RELEASE=config.release, INTEGERS=config.integers, LEAN=config.lean,
        NESTED=config.nested, PAIRS=config.pairs, SUMS=config.sums,
        HEADS_AT_ONCE=8 if right else 0, LEFT=left, RIGHT=right, TAIL=tail, LOWER=packed,
        PACKED=packed,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("dim", "causal"),
    [(64, False), (64, True), (96, False), (128, True), (192, True), (256, False)],
)
def test_forward(dim: int, causal: bool) -> None:
    config, compiled = config_of(dim, not causal), forward(dim, right=causal)
    assert not conversions_in_loops(compiled.asm["ttgir"])
    assert compiled.metadata.shared <= 227 << 10
    ptx = compiled.asm["ptx"]
    # In each consumer's loop, and between tiles, the values of the step before are added beside the
    # softmax.
    pending = "1" if HEAD_DIMS[dim][1] == 0 else "2"
    waits = instructions(ptx, r"wgmma\.wait_group\.sync\.aligned\s+(\d)")
    copies = config.consumers * (2 if config.nested else 1)
    assert waits.count(pending) == copies
    code = sass(compiled)
    assert _weights_before_the_wait(code) == copies
    # A step's maxima are of three integers, but where no score of a row is positive.
    assert ("VIMNMX3" in code) == config.integers
    # Weights that are rounded in pairs stay together.
    assert "PRMT" not in code or not config.pairs or RELEASE < (3, 8)
    # Atomic draws of tiles order nothing else: no fence.
    assert "MEMBAR.ALL.GPU" not in code
    # Three consumers have 160 registers each; what is spilled are scalars, most outside of loops.
    blocks = re.split(r"^\.L_x_\d+:|\bBRA\b", code, flags=re.MULTILINE)
    clean = [x for x in blocks if x.count("MUFU.EX2") > 20 and not spills(x)]
    assert len(clean) >= config.consumers or dim == 64
    most = 50 * config.consumers if dim in (64, 256) or causal else 0
    assert spills(code) <= most + (50 if RELEASE < (3, 8) else 0)


def _weights_before_the_wait(code: str) -> int:
    """How many waits for all products come right after a barrier's wait that follows exponentials.

    That is where the softmax is worked out beside the products and not after them: ptxas would
    move the exponentials behind the wait.
    """
    found = 0
    blocks = re.split(r"^\.L_x_\d+:", code, flags=re.MULTILINE)
    blocks = [x for x in blocks if "DEPBAR.LE gsb0" in x or "MUFU.EX2" in x]
    for before, after in itertools.pairwise(blocks):
        first = next((x for x in re.findall(r"DEPBAR\.LE gsb0, \S+|MUFU\.EX2", after)), "")
        if before.count("MUFU.EX2") > 20 and "gsb0, 0x0" in first:
            found += 1
    return found


@pytest.mark.parametrize(("release", "pairs"), [((12, 9), False), ((13, 4), True)])
def test_pairs_where_the_ptxas_is_good_at_them(
    release: tuple[int, int], pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["remora.kernels.attention"], "ptxas_release", lambda _: release)
    chosen = config_of.__wrapped__  # not what another ptxas was asked for
    assert chosen(64, even=False).pairs == pairs
    assert chosen(64, even=True).pairs
    assert chosen(96, even=False).pairs


def test_products_of_96_columns() -> None:
    """The PTX with them is machine code with them, where there are values."""
    from triton.backends.nvidia.compiler import get_ptxas

    padded = forward(96, narrow=True).asm["ptx"]
    ptx = narrowed(padded, 96)
    shapes = Counter(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\w+)\.", ptx))
    before = Counter(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\w+)\.", padded))
    values = 3 * 8 * _CONFIGS[96].consumers  # in the loop and after it and the last, 16 keys each
    assert shapes == {"m64n96k16": values, "m64n128k16": before["m64n128k16"] - values}
    tool = get_ptxas(90) if get_ptxas.__code__.co_argcount else get_ptxas()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "narrow.ptx"
        file.write_text(ptx)
        subprocess.run(
            [tool.path, "--gpu-name=sm_90a", file, "-o", file.with_suffix(".cubin")], check=True
        )
    with pytest.raises(PipelineError, match="no product to narrow"):
        narrowed(ptx, 96)


def test_forward_of_packed_sequences() -> None:
    compiled = forward(96, packed=True, left=True, right=True, tail=True)
    assert not conversions_in_loops(compiled.asm["ttgir"])
    ptx = compiled.asm["ptx"]
    assert "cp.async.bulk.tensor.5d.shared" in ptx
    assert "cp.async.bulk.tensor.5d.global" in ptx


@pytest.mark.parametrize(
    ("dim", "causal"), [(64, False), (80, True), (96, False), (128, False), (128, True)]
)
def test_backward(dim: int, causal: bool) -> None:
    padded, rest, block_m = -(-dim // 64) * 64, dim % 64, _BACKWARD_BLOCK_M[dim]
    boxes = {
        name: descriptor(rows, padded, False)
        for name, rows in (
            ("q_desc", block_m), ("do_desc", block_m), ("k_desc", 64), ("v_desc", 64),
            ("dk_desc", 64), ("dv_desc", 64),
        )
    }  # fmt: skip
    kernel = backward_of(dim) if rest else attention_backward
    with remora.use(*attached(kernel)):
        compiled = build(
            kernel, "cuda:90", **boxes,
            dq_desc=descriptor(64, padded * block_m // 128, False, "fp32"), lows="*fp32",
            deltas="*fp32", begins_q=None, begins_k=None, scale="fp32", HEADS="i32",
            LENGTH_Q="i32", LENGTH_K="i32", TOTAL_Q="i32", left="i32", right="i32",
            PADDED_Q="i32:16", GROUP=1, DIM=padded, REST=rest, BLOCK_M=block_m, STAGES=2,
            REGISTERS=240, LEFT=False, RIGHT=causal, TAIL=False, LOWER=False, PACKED=False,
        )  # fmt: skip
    assert not conversions_in_loops(compiled.asm["ttgir"])
    assert compiled.metadata.shared <= 227 << 10
    assert "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add" in compiled.asm["ptx"]
    # Of both consumers: scores and changes; the gradients of keys and of values; those of queries,
    # of 64 rows or columns, in the loop and after it.
    wanted = Counter({f"m64n{block_m}k16": 2 * 2 * dim // 16})
    wanted[f"m64n{dim}k16"] += 2 * 2 * block_m // 16
    wanted["m64n64k16"] += 2 * 8
    wanted[f"m64n{rest or 64}k16"] += 2 * 8
    shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\w+)\.", compiled.asm["ptx"])
    assert Counter(shapes) == wanted
    code = sass(compiled)
    assert serialised(code) <= 2  # the last ones, which nothing runs beside
    # Some scalars, a few times a step.
    assert spills_beside_products(code) <= (60 if RELEASE >= (3, 8) else 500), spills(code)


@pytest.mark.parametrize("dim", [192, 256])
@pytest.mark.parametrize("of", ["keys", "queries"])
def test_backward_of_more_columns(of: str, dim: int) -> None:
    parts = (128, dim - 128)
    results = {"keys": ("dk", "dv"), "queries": ("dq",)}
    boxes = {
        f"{name}{i}_desc": descriptor(64, columns, False)
        for name in ("q", "k", "v", "do", *results[of])
        for i, columns in enumerate(parts)
    }
    kernel = getattr(attention_backward_wide, f"attention_backward_{of}_wide")
    stages = {"STAGES": 2} if of == "keys" else {}
    with remora.use(*attached(kernel)):
        compiled = build(
            kernel, "cuda:90", **boxes, **stages, lows="*fp32", deltas="*fp32", begins_q=None,
            begins_k=None, scale="fp32", HEADS="i32", LENGTH_Q="i32", LENGTH_K="i32",
            TOTAL_Q="i32", left="i32", right="i32", PADDED_Q="i32", GROUP=2, DIM0=parts[0],
            DIM1=parts[1], REGISTERS=240, LEFT=True, RIGHT=True, TAIL=True, LOWER=False,
            PACKED=False,
        )  # fmt: skip
    assert not conversions_in_loops(compiled.asm["ttgir"])
    assert compiled.metadata.shared <= 227 << 10
    # Products of a step: of scores and of changes, both parts; then those of the gradients.
    shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", compiled.asm["ptx"])
    if of == "keys":
        step = 2 * dim // 16 * ["64"] + 8 * ["128"] + 8 * [str(parts[1])]
    else:
        step = 2 * (2 * dim // 16 * ["64"] + 4 * ["128"] + 4 * [str(parts[1])])
    assert Counter(shapes) == Counter(step)
    code = sass(compiled)
    assert spills_beside_products(code) <= (30 if of == "queries" and RELEASE >= (3, 9) else 5)


@pytest.mark.parametrize(
    "given", [{"stages": 1}, {"consumers": 1}, {"block_n": 48}, {"registers": 250}]
)
def test_configurations_that_would_wait_for_ever_or_not_compile(given: dict[str, int]) -> None:
    (name,) = given
    with pytest.raises(KernelArgumentError, match=f"config.{name} is {given[name]}"):
        Config(**{"block_n": 128} | given)


@pytest.mark.parametrize("target", ["hip:gfx942", "hip:gfx950"])
def test_plain_on_cdna(target: str) -> None:
    given: dict[str, Any] = {p.name: "i32:16" for p in attention_plain.params if not p.is_constexpr}
    given |= dict.fromkeys("qkvo", "*fp16") | {f"stride_{name}d": 1 for name in "qkvo"}
    given |= {"sums": "*fp32", "begins_q": None, "begins_k": None, "scale": "fp32"}
    compiled = build(
        attention_plain, target, options={"num_stages": 2}, **given, GROUP=1, DIM=128,
        BLOCK_M=128, BLOCK_N=64, LEFT=False, RIGHT=False, LOWER=False, PACKED=False,
    )  # fmt: skip
    assembly = compiled.asm["amdgcn"]
    assert re.search(r"v_mfma_f32_(16x16x16|32x32x8|16x16x32|32x32x16)", assembly)
    assert re.search(r"\.vgpr_spill_count:\s*0\b", assembly)
    assert "v_exp_f32" in assembly
