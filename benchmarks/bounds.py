"""What bounds the loops of the products, on machines that need not be here.

    python benchmarks/bounds.py --out FILE.json
    python benchmarks/bounds.py --peer .venv-peer/bin/python --out FILE.json

Compiles the kernels for Hopper, Blackwell, CDNA 3 and CDNA 4 and prints the model of their loops
(docs/bounds.md); with --peer, beside those of the peer's tutorial for Blackwell, compiled by the
peer, and of the one with cluster launch control, which the peer does not compile on stock Triton,
compiled by Remora.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_TUTORIALS = "tlx/tutorials"
# What both tutorials have in common: tiles of 128 x 256 x 64.
_TILE = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8,
         "NUM_TMEM_BUFFERS": 2, "NUM_SMS": 148, "USE_WARP_BARRIER": False}  # fmt: skip
_TUTORIAL_CASES = {
    "blackwell_gemm_ws": (
        "matmul_kernel_tma_ws_blackwell", 64,
        {**_TILE, "NUM_SMEM_BUFFERS": 4, "NUM_MMA_GROUPS": 1, "EPILOGUE_SUBTILE": 4,
         "NUM_CTAS": 1, "SPLIT_K": 1, "INTERLEAVE_EPILOGUE": 0},
    ),
    "blackwell_gemm_clc": (
        "matmul_kernel_tma_ws_blackwell_clc", 128,
        {**_TILE, "NUM_SMEM_BUFFERS": 3, "NUM_CLC_STAGES": 1, "EPILOGUE_SUBTILE": True},
    ),
}  # fmt: skip


class _Machine:
    """Stands in for the driver of a GPU that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 100, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> str:
        return "cpu"


def compiled(kernel: Any, target: GPUTarget, given: dict[str, Any], num_warps: int = 4) -> Any:
    """given: types as Triton writes them, and constants (of strings only the empty one).

    Pointers and integers divide by 16.
    """
    constants = {n: v for n, v in given.items() if not isinstance(v, str) or not v}
    signature = {n: "constexpr" if n in constants else given[n] for n in kernel.arg_names}
    aligned: dict[Any, Any] = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(kernel.arg_names)
        if n not in constants and not given[n].startswith("tensordesc")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=target, options={"num_warps": num_warps})


def tutorial(name: str, folder: Path) -> Any:
    """A tutorial's kernel for fp16, compiled by whatever serves ``tlx``."""
    triton.runtime.driver.set_active(_Machine())
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entry, columns, constants = _TUTORIAL_CASES[name]
    kernel = getattr(module, entry).fn
    given = {
        "a_desc": "tensordesc<fp16[128,64]>", "b_desc": "tensordesc<fp16[64,256]>",
        "c_desc": f"tensordesc<fp16[128,{columns}]>",
        "workspace_desc": f"tensordesc<fp32[128,{columns}]>",
        "M": "i32", "N": "i32", "K": "i32", **constants,
    }  # fmt: skip
    return compiled(kernel, GPUTarget("cuda", 100, 32), {n: given[n] for n in kernel.arg_names})


def ours() -> dict[str, Any]:
    """The products' kernels for large matrices of fp16."""
    import remora
    import remora.tlx as tlx
    from remora.kernels.gemm_blackwell import gemm_blackwell
    from remora.kernels.gemm_cdna import gemm_direct, gemm_staged
    from remora.kernels.gemm_hopper import gemm_pipelined
    from remora.kernels.gemm_specialized import gemm_specialized
    from remora.kernels.matmul import cdna_config, hopper_config
    from remora.kernels.offline import plain_arguments, source

    found: dict[str, Any] = {}
    for name, kernel, config, target in (
        ("gemm_pipelined", gemm_pipelined, hopper_config(8192, 8192, 8192, 2), ("cuda", 90, 32)),
        ("gemm_staged", gemm_staged, cdna_config(8192, 8192, 8192, 2, "gfx942"),
         ("hip", "gfx942", 64)),
        ("gemm_direct", gemm_direct, cdna_config(8192, 8192, 8192, 2, "gfx950"),
         ("hip", "gfx950", 64)),
    ):  # fmt: skip
        found[f"{name} {target[0]}:{target[1]}"] = triton.compile(
            source(kernel, config), target=GPUTarget(*target),
            options={"num_warps": config.num_warps},
        )  # fmt: skip
    sizes = {"M": "i32", "N": "i32", "K": "i32", "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64,
             "GROUP_M": 8, "A_BY_COLUMN": False, "B_BY_COLUMN": False}  # fmt: skip
    found["gemm_specialized cuda:90"] = compiled(
        gemm_specialized, GPUTarget("cuda", 90, 32),
        {**plain_arguments(gemm_specialized), "a_desc": "tensordesc<fp16[64,64]>",
         "b_desc": "tensordesc<fp16[64,256]>", "c": "tensordesc<fp16[64,128]>", **sizes,
         "partials": None, "flags": None, "batches": "i32", "stride_cm": "i32", "stride_cn": 1,
         "split_tiles": "i32", "STAGES": 4, "SUBTILES": 2, "A_BATCHED": False,
         "B_BATCHED": False, "C_DESCRIBED": True, "ACC": tl.float32, "PINGPONG": False,
         "CLUSTER_M": 1, "CLUSTER_N": 1, "STREAM_K": False, "LATE": False,
         "KEEP": "", "TURN": False},
    )  # fmt: skip
    for pair in (False, True):
        with remora.use(tlx.in_clusters((1 + pair, 1, 1))):
            found[f"gemm_blackwell{', 2 CTAs' * pair} cuda:100"] = compiled(
                gemm_blackwell, GPUTarget("cuda", 100, 32),
                {"a_desc": "tensordesc<fp16[128,64]>",
                 "b_desc": f"tensordesc<fp16[64,{128 if pair else 256}]>",
                 "c_desc": "tensordesc<fp16[128,64]>", **sizes, "STAGES": 6 if pair else 4,
                 "SUBTILES": 4, "PAIR": pair},
            )  # fmt: skip
    return found


def beside(peer: str) -> dict[str, Any]:
    """The peer's tutorial by the peer, and the one with launch control by Remora."""
    import remora.tlx as tlx

    site = "import utlx_plugin, pathlib; print(pathlib.Path(utlx_plugin.__file__).parents[1])"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    folder = Path(
        subprocess.run([peer, "-c", site], capture_output=True, text=True, check=True, env=clean)
        .stdout.strip().splitlines()[-1]
    ) / _TUTORIALS  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [peer, __file__, "--dump", place, "--tutorials", str(folder)], check=True, env=clean
        )
        asm = {path.suffix[1:]: path for path in Path(place).iterdir()}
        theirs = SimpleNamespace(
            asm={"ptx": asm["ptx"].read_text(), "cubin": asm["cubin"].read_bytes()},
            metadata=SimpleNamespace(shared=int(asm["shared"].read_text())),
        )
    tlx.install_aliases()
    try:
        launched = tutorial("blackwell_gemm_clc", folder)
    finally:
        tlx.remove_aliases()
    return {
        "peer: blackwell_gemm_ws cuda:100": theirs,
        "Remora: blackwell_gemm_clc cuda:100": launched,
    }


def main() -> None:
    """Compile, and print the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer", help="a Python with triton-utlx")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--tutorials", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.dump:  # in the peer's process
        kernel = tutorial("blackwell_gemm_ws", given.tutorials)
        (given.dump / "kernel.ptx").write_text(kernel.asm["ptx"])
        (given.dump / "kernel.cubin").write_bytes(kernel.asm["cubin"])
        (given.dump / "kernel.shared").write_text(str(kernel.metadata.shared))
        return
    import machine
    from rich.console import Console

    from remora.analysis import compare, of_kernel

    kernels = {**ours(), **(beside(given.peer) if given.peer else {})}
    models = {name: of_kernel(kernel) for name, kernel in kernels.items()}
    console = Console(width=200)
    for target in sorted({m.target for m in models.values()}):
        console.print(compare([(n, m) for n, m in models.items() if m.target == target]))
    if given.out:
        rows = {name: model.to_json() for name, model in models.items()}
        given.out.write_text(json.dumps({**machine.record(), "kernels": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
