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
#: The form of fp8 that a machine's matrix units do not have.
OTHER_FP8 = {"hip:gfx942": "fp8e4nv", "hip:gfx950": "fp8e4b8"}


def cases() -> list[dict[str, str]]:
    """Each product: its kernel, target, operands' type and what else tells it apart."""
    found = []
    for target in TARGETS:
        found += [
            {"kernel": "matmul", "target": target, "dtype": dtype, "form": f"B by {order}s"}
            for dtype in DTYPES
            for order in ("row", "column")
            if dtype != OTHER_FP8[target]
        ]
        found += [
            {"kernel": "grouped_matmul", "target": target, "dtype": dtype, "form": kind}
            for dtype in ("bf16", "i8")
            for kind in ("rows", "depth", "list")
        ]
        found += [
            {"kernel": "triangle_multiply", "target": target, "dtype": dtype, "form": step}
            for dtype in ("bf16", "fp32")
            for step in ("project", "outgoing", "incoming", "finish, with a norm")
        ]
    return found


def look_at(case: dict[str, str]) -> dict[str, Any]:
    """One product: its configuration, its resources, and its loop over K."""
    from remora.analysis import model, read

    make = {"matmul": product, "grouped_matmul": grouped, "triangle_multiply": triangle}[
        case["kernel"]
    ]
    kernel, given, config = make(case["target"], case["dtype"], case["form"])
    compiled = compile_(kernel, case["target"], given, config.num_warps)
    program = read(compiled.asm["amdgcn"], shared=compiled.metadata.shared)
    found = model(program).to_json()
    loop = max(found.pop("loops"), key=lambda one: one["flops"])
    return case | {
        "jit": kernel.__name__, "config": vars(config), "loop": loop, "resources": found
    }  # fmt: skip


def pointers(dtype: str) -> dict[str, Any]:
    """The types of the matrices: results as ``matmul`` has them by default."""
    out = {"i8": "i32", "fp32": "fp32"}.get(dtype, "fp16" if DTYPES[dtype][1] == 1 else dtype)
    return {"a_ptr": f"*{dtype}", "b_ptr": f"*{dtype}", "c_ptr": f"*{out}"}


def product(target: str, dtype: str, form: str) -> tuple[Any, dict[str, Any], Any]:
    from remora.kernels.matmul import cdna_config, cdna_kernel
    from remora.kernels.offline import plain_arguments

    accumulator, size = DTYPES[dtype]
    arch = target.partition(":")[2]
    config = cdna_config(8192, 8192, 8192, size, arch)
    kernel = cdna_kernel(config, arch)
    given = {
        **plain_arguments(kernel), **config.arguments(), **pointers(dtype),
        "ACC": accumulator, "stride_ak": 1, "stride_cn": 1,
        "stride_bn" if form == "B by rows" else "stride_bk": 1,
    }  # fmt: skip
    return kernel, given, config


def grouped(target: str, dtype: str, form: str) -> tuple[Any, dict[str, Any], Any]:
    from remora.kernels.gemm_grouped import gemm_grouped
    from remora.kernels.grouped_matmul import plain_config

    accumulator, size = DTYPES[dtype]
    config, multiply, buffers = plain_config(target, 4096, size, form)
    given = {
        **config.arguments(), **pointers(dtype), "scale_a": None, "scale_b": None,
        "offs": "*i64" if form == "list" else "*i32", "BUFFERS": buffers, "ACC": accumulator,
        "KIND": form, "MULTIPLY": multiply, "INDEX": tl.int32,
    }  # fmt: skip
    if form != "list":
        given |= {"stride_am" if form == "depth" else "stride_ak": 1, "stride_bn": 1}
    return gemm_grouped, given, config


def triangle(target: str, dtype: str, step: str) -> tuple[Any, dict[str, Any], Any]:
    """A step of the triangle update, of 384 channels: of fp32 the operands are fp16."""
    from remora.kernels import triangle_stock
    from remora.kernels.matmul import Config

    x, kind = f"*{dtype}", f"*{'fp16' if dtype == 'fp32' else dtype}"
    if step in ("outgoing", "incoming"):
        given = {"ab": kind, "c": x, "BLOCK": 128, "DEPTH": 64, "INCOMING": step == "incoming"}
        kernel, config = triangle_stock.pair_products_stock, Config(128, 128, 64, 8, 2, 4)
        return kernel, given | {"WIDE": False}, config
    given = {
        "y": kind, "p": kind, "g": kind, "g_unit": "*fp32", "PAIRS": 128, "CHANNELS": 128,
        "PIECE": 64, "SCALED": dtype == "fp32", "WIDE": False,
    }  # fmt: skip
    config = Config(128, 128, 64, 8, 2, 8)
    if step == "project":
        given |= {"mask": "*u8", "out": kind, "stride_mk": 1, "MASKED": True}
        return triangle_stock.project_stock, given, config
    given |= {
        "products": x, "weight": x, "bias": x, "unit": "*fp32", "p_unit": "*fp32", "out": x,
        "eps": "fp32",
    }  # fmt: skip
    return triangle_stock.finish_stock, given, config


def compile_(kernel: Any, target: str, given: dict[str, Any], num_warps: int) -> Any:
    """Compile; parameters that are not given are integers that 16 divides, pointers aligned."""
    import triton
    from triton.compiler import ASTSource

    from remora.host.targets import gpu_target

    constants = {
        n: given[n] for n in kernel.arg_names
        if n in given and not (isinstance(given[n], str) and given[n].startswith(("*", "fp")))
    }  # fmt: skip
    signature = {
        n: "constexpr" if n in constants else given.get(n, "i32") for n in kernel.arg_names
    }
    aligned: dict[Any, Any] = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(kernel.arg_names) if n not in constants and signature[n] != "fp32"
    }  # fmt: skip
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=gpu_target(target), options={"num_warps": num_warps})


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as a page in Markdown."""
    lines = [
        "# What bounds the products on CDNA 3 and 4",
        "",
        "Made by `python -m benchmarks.amd_bounds` from the assembly; no such hardware was used.",
        "One iteration of the loop over K, of one workgroup on one compute unit. *Bound*: the unit",
        "that needs the most cycles at its peak. *MFMA*: its part of those cycles, the most that",
        "the code can reach where all else overlaps. *Issue*: matrix instructions of all",
        "instructions of a wave. *LDS*: KiB read + written, and cycles, those of bank conflicts",
        "among them. *Workgroups*: on a compute unit, and what allows no more.",
        "",
        "| function: kernel | target | operands | form | tile | bound | MFMA | issue | LDS KiB "
        "| LDS cycles (conflicts) | MFMA cycles | VGPRs | spilled | workgroups, by |",
        "|" + "---|" * 14,
    ]
    for row in rows:
        kernel = f"{row['kernel']}: {row.get('jit', '')}"
        named = f"| {kernel} | {row['target']} | {row['dtype']} | {row['form']} |"
        if "error" in row:
            lines.append(f"{named} {row['error']} |" + " |" * 9)
            continue
        loop, has, config = row["loop"], row["resources"], row["config"]
        cycles = loop["cycles"]
        lds = sum(v for unit, v in cycles.items() if "shared" in unit or "LDS" in unit)
        moved = loop["shared"]
        read, written = (moved.get(k, 0) / 1024 for k in ("read", "written"))
        matrix = loop["instructions"].get("matrix", 0) / loop["issue"]
        tile = f"{config['block_m']} x {config['block_n']} x {config['block_k']}"
        lines.append(
            f"{named} {tile} | {loop['bound']} | {loop['matrix_share']:.0%} | {matrix:.0%} "
            f"| {read:.0f} + {written:.0f} | {lds:.0f} ({loop['conflicts']:.0f}) "
            f"| {cycles.get('matrix', 0):.0f} | {has['registers']} | {has['spills']} "
            f"| {has['occupancy']}, {has['limit']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("amd_bounds"), help="of .json and .md")
    arguments = parser.parse_args()
    rows = []
    for case in cases():
        try:
            rows.append(look_at(case))
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]
            rows.append(case | {"error": what})
        print(page(rows[-1:]).splitlines()[-1], flush=True)
    result = machine.record() | {"rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
