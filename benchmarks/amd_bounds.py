"""What bounds the products on CDNA, from their assembly; nothing runs.

    python -m benchmarks.amd_bounds --out benchmarks/results/amd_bounds

Each product is compiled for gfx942 and gfx950, and ``remora.analysis`` counts the cycles that
each unit of a compute unit needs for one iteration of its loop over K, at its documented peak,
each for itself. It knows no latencies: the share of the matrix unit is what the code leaves it
at best, not a speed. Writes .json, and .md with a row for each product.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import machine
import triton.language as tl

TARGETS = ("hip:gfx942", "hip:gfx950")
#: Triton's name of the operands' type, accumulator, bytes.
DTYPES = {
    "fp16": (tl.float32, 2), "bf16": (tl.float32, 2), "fp32": (tl.float32, 4),
    "fp8e4b8": (tl.float32, 1), "fp8e4nv": (tl.float32, 1), "i8": (tl.int32, 1),
}  # fmt: skip
#: Each machine's own form of fp8 with four bits of exponent.
OTHER_FP8 = {"hip:gfx942": "fp8e4nv", "hip:gfx950": "fp8e4b8"}


def products() -> list[tuple[str, str, str]]:
    """Target, operands' type, and the order that B is stored in."""
    return [
        (target, dtype, order)
        for target in TARGETS
        for dtype in DTYPES
        if dtype != OTHER_FP8[target]
        for order in ("row", "column")
    ]


def look_at(target: str, dtype: str, order: str) -> dict[str, Any]:
    """One product: its configuration, its resources, and its loop over K."""
    import triton
    from remora.analysis import model, read
    from triton.compiler import ASTSource

    from remora.host.targets import gpu_target
    from remora.kernels.gemm_cdna import gemm_staged
    from remora.kernels.matmul import cdna_config

    accumulator, size = DTYPES[dtype]
    config = cdna_config(8192, 8192, 8192, size, target.partition(":")[2])
    constants: dict[str, Any] = {**config.arguments(), "ACC": accumulator, "stride_ak": 1}
    constants |= {"stride_bn" if order == "row" else "stride_bk": 1, "stride_cn": 1}
    out = {"i8": "*i32", "fp32": "*fp32"}.get(dtype, "*fp16" if size == 1 else f"*{dtype}")
    signature, attributes = {}, {}
    for i, name in enumerate(gemm_staged.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        kind = f"*{dtype}" if name in ("a_ptr", "b_ptr") else out if name == "c_ptr" else "i32"
        signature[name], attributes[(i,)] = kind, [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(gemm_staged, signature, constants, attributes),
        target=gpu_target(target), options={"num_warps": config.num_warps},
    )  # fmt: skip
    program = read(compiled.asm["amdgcn"], shared=compiled.metadata.shared)
    kernel = model(program).to_json()
    loop = max(kernel.pop("loops"), key=lambda found: found["flops"])
    return {
        "kernel": "gemm_staged", "target": target, "dtype": dtype, "order_of_b": order,
        "config": vars(config), "loop": loop, "resources": kernel,
    }  # fmt: skip


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as a page in Markdown."""
    lines = [
        "# What bounds the products on CDNA 3 and 4",
        "",
        "Made by `python -m benchmarks.amd_bounds` from the assembly; no such hardware was used.",
        "One iteration of the loop over K, of one workgroup on one compute unit. *Bound*: the unit",
        "that needs the most cycles at its peak. *MFMA*: its part of those cycles, the most that",
        "the code can reach if all else overlaps. *Issue*: matrix instructions of all",
        "instructions of a wave. *LDS*: KiB read + written, and cycles, those of bank conflicts",
        "among them. *Waves*: of a SIMD, and what allows no more.",
        "",
        "| target | operands | B stored by | tile | bound | MFMA | issue | LDS KiB | LDS cycles "
        "(conflicts) | MFMA cycles | VGPRs | spilled | workgroups, by |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(
                f"| {row['target']} | {row['dtype']} | {row['order_of_b']} | {row['error']} |"
            )
            continue
        loop, has, config = row["loop"], row["resources"], row["config"]
        cycles = loop["cycles"]
        lds = sum(v for unit, v in cycles.items() if "shared" in unit or "LDS" in unit)
        moved = loop["shared"]
        read, written = (moved.get(k, 0) / 1024 for k in ("read", "written"))
        matrix = loop["instructions"].get("matrix", 0) / loop["issue"]
        tile = f"{config['block_m']} x {config['block_n']} x {config['block_k']}"
        lines.append(
            f"| {row['target']} | {row['dtype']} | {row['order_of_b']} | {tile} | {loop['bound']} "
            f"| {loop['matrix_share']:.0%} | {matrix:.0%} | {read:.0f} + {written:.0f} "
            f"| {lds:.0f} ({loop['conflicts']:.0f}) | {cycles.get('matrix', 0):.0f} "
            f"| {has['registers']} | {has['spills']} | {has['occupancy']}, {has['limit']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("amd_bounds"), help="of .json and .md")
    arguments = parser.parse_args()
    rows = []
    for target, dtype, order in products():
        try:
            rows.append(look_at(target, dtype, order))
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]
            rows.append({"target": target, "dtype": dtype, "order_of_b": order, "error": what})
        print(page(rows[-1:]).splitlines()[-1], flush=True)
    result = machine.record() | {"rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
