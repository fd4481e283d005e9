"""Causal attention and a product with a masked K: what is left in the hot loop, on each target."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import remora_loop_split
import triton
from compiling import TARGETS
from triton.compiler import ASTSource

import remora

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "loop_split.py"
_spec = importlib.util.spec_from_file_location("loop_split_benchmark", BENCHMARK)
assert _spec is not None
assert _spec.loader is not None
benchmark: Any = importlib.util.module_from_spec(_spec)
sys.modules["loop_split_benchmark"] = benchmark
_spec.loader.exec_module(benchmark)

KERNELS = {
    "where": (benchmark.attention_kernel, {"D": 64, "BRANCH": False, "EVEN": True}),
    "branch": (benchmark.attention_kernel, {"D": 64, "BRANCH": True, "EVEN": True}),
    "ragged": (benchmark.attention_kernel, {"D": 64, "BRANCH": False, "EVEN": False}),
    "product": (benchmark.product_kernel, {"BLOCK_K": 32, "GROUP": 8}),
}


def source(name: str) -> ASTSource:
    kernel, constants = KERNELS[name]
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, **constants}
    kinds = {"scale": "fp32"}
    signature = {
        n: "constexpr" if n in constants else "*fp16" if n.endswith("_ptr") else kinds.get(n, "i32")
        for n in kernel.arg_names
    }
    aligned: dict[Any, Any] = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(signature.values())
        if kind in ("*fp16", "i32")
    }
    return ASTSource(kernel, signature, constants, aligned)


def compiled(name: str, target: str, **arguments: int) -> Any:
    pipelines = [remora_loop_split.pipeline(**arguments)] if arguments else []
    with remora.use(*pipelines):
        return triton.compile(
            source(name), target=TARGETS[target], options={"num_warps": 4, "num_stages": 2}
        )


def loops(ttir: str) -> list[str]:
    """The text of each loop that is in no other one."""
    found, lines = [], iter(ttir.splitlines())
    for line in lines:
        if "scf.for" in line:
            indent = re.match(" *", line)[0] + "}"  # type: ignore[index]
            body = []
            for inner in lines:
                if inner.startswith(indent):
                    break
                body.append(inner)
            found.append("\n".join(body))
    return found


def masks(loop: str) -> int:
    """Comparisons of tensors, selects between them, and branches."""
    return len(re.findall(r"arith\.cmpi [^:]*: tensor|arith\.select [^:]*: tensor|scf\.if", loop))


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx950"])
@pytest.mark.parametrize("name", KERNELS)
def test_hot_loop_has_no_mask(name: str, target: str) -> None:
    stock, split = compiled(name, target), compiled(name, target, max_splits=1)
    (whole,) = loops(stock.asm["ttir"])
    hot, rest = loops(split.asm["ttir"])
    assert masks(whole) > 0
    assert masks(hot) == 0
    assert masks(rest) > 0
    loads = [line for line in hot.splitlines() if "tt.load" in line]
    assert loads
    for load in loads:  # neither a mask nor what to put in its place
        assert re.search(r"tt\.load %[\w#]+ :", load), load
    assembly = "ptx" if "ptx" in split.asm else "amdgcn"
    assert split.asm[assembly] != stock.asm[assembly]


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize("name", KERNELS)
def test_hot_loop_of_the_assembly_selects_less(name: str) -> None:
    def of_loops(ptx: str) -> list[int]:
        """Selects in each loop that multiplies: between a label and a branch back to it."""
        counts = []
        for label in re.finditer(r"^(\$L\w+):", ptx, re.MULTILINE):
            back = re.compile(rf"bra(?:\.uni)?\s+{re.escape(label[1])};")
            end = back.search(ptx, label.end())
            if end is not None and "mma" in (body := ptx[label.end() : end.start()]):
                counts.append(len(re.findall(r"\bselp|\bsetp", body)))
        return counts

    stock = of_loops(compiled(name, "cuda:90").asm["ptx"])
    split = of_loops(compiled(name, "cuda:90", max_splits=1).asm["ptx"])
    assert len(stock) == 1
    assert len(split) == 2
    assert split[0] < stock[0]


@pytest.mark.usefixtures("fresh_cache")
def test_pointers_are_not_carried_through_the_pipelined_loop_for_the_next() -> None:
    hot, _ = loops(compiled("product", "cuda:90", max_splits=1).asm["ttgir"])
    assert "tt.ptr" in hot
    assert not re.search(r"arith\.select .*tt\.ptr", hot)


@pytest.mark.usefixtures("fresh_cache")
def test_a_kernel_without_a_loop_is_the_same() -> None:
    from compiling import axpy, code_of, compile_kernel

    stock = code_of(compile_kernel("cuda:90", axpy))
    with remora.use(remora_loop_split.pipeline()):
        assert code_of(compile_kernel("cuda:90", axpy)) == stock


NUMBERS = """
import math, sys, torch
sys.path.insert(0, {folder!r})
import loop_split as b
torch.manual_seed(0)
for n in (1, 65, 128):
    for branch in (False, True):
        q, k, v = (torch.randn(1, 2, n, 64, dtype=torch.float16) for _ in range(3))
        o, _ = b.attention(q, k, v, b.Config(64, 64, 0, 4, 2), branch)
        assert b.error_of(o, b.attention_in_float64(q, k, v)) < 1e-3
for k in (8, 65, 200):
    x, y = torch.randn(72, k, dtype=torch.float16), torch.randn(k, 136, dtype=torch.float16)
    c, _ = b.product(x, y, b.Config(64, 128, 64, 4, 4))
    assert b.error_of(c, x.double() @ y.double()) < 1e-3
"""


def test_the_kernels_themselves_are_right() -> None:
    """In Triton's interpreter, where no pass runs: what the plugin must not change."""
    import os
    import subprocess

    process = subprocess.run(
        [sys.executable, "-c", NUMBERS.format(folder=str(BENCHMARK.parent))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
