"""The peer's tutorials, unmodified, on a CPU: with the reference meaning, tasks and CTAs at once.

    TRITON_INTERPRET=1 python benchmarks/tutorials_meaning.py --out FILE.json

For each tutorial for Hopper and Blackwell the first of its configurations, and the first one with
two CTAs: the error of its result relative to torch's in fp64, and seconds; or what it failed with.
Races and waits that never end are failures, and so is what Triton's interpreter does not run:
inline assembly, ``tl.map_elementwise`` and functions of libdevice.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import machine
import torch
import triton
import tutorials
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget

import remora.tlx as tlx

#: Rows, columns and depth of products; positions of attention, and its heads.
SIZE, LENGTH, HEADS = 512, 512, 2


class OnTheCpu(TorchFunctionMode):
    """What is asked for on a GPU is made on the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if "cuda" in str(given.get("device", "")):
            given["device"] = "cpu"
        return function(*args, **given)


class StandIn:
    """The driver that host code asks for its GPU."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_active_torch_device(self) -> Any:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., Any]:
        return lambda function, quantiles=None: [0.0] * 3  # one configuration is the best


def product(entry: str) -> tuple[str, Callable[[], Any]]:
    def arguments() -> Any:
        a, b = (torch.randn(SIZE, SIZE).half() for _ in range(2))
        return (a, b), a.double() @ b.double()

    return entry, arguments


def attention(head: int, *more: Any) -> tuple[str, Callable[[], Any]]:
    def arguments() -> Any:
        q, k, v = (torch.randn(1, HEADS, LENGTH, head).half() for _ in range(3))
        causal = bool(more and more[0])
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), scale=head**-0.5, is_causal=causal
        )
        return (q, k, v, head**-0.5, *more), expected

    return "attention", arguments


def layer_norm() -> tuple[str, Callable[[], Any]]:
    def arguments() -> Any:
        x, weight, bias = (torch.randn(s).half() for s in ((8, 16384), (16384,), (16384,)))
        wide = (t.double() for t in (weight, bias))
        return (x, weight, bias), torch.nn.functional.layer_norm(x.double(), (16384,), *wide)

    return "multi_cta_layernorm", arguments


def groups(entry: str, by_column: bool = False) -> tuple[str, Callable[[], Any]]:
    def arguments() -> Any:
        shapes = ((SIZE, SIZE), (SIZE // 2, SIZE // 2))
        a, b = ([torch.randn(s).half() for s in shapes] for _ in range(2))
        given = [y.T for y in b] if by_column else b
        return (a, b), [x.double() @ y.double() for x, y in zip(a, given, strict=True)]

    return entry, arguments


CASES: dict[int, dict[str, list[tuple[str, Callable[[], Any]]]]] = {
    90: {
        "hopper_gemm_pipelined": [product("matmul")],
        "hopper_gemm_ws": [product("matmul")],
        "hopper-persistent-gemm-ws-cooperative": [product("matmul_tlx_ws_persistent")],
        "hopper-persistent-gemm-ws-pingpong": [product("matmul_tlx_ws_persistent")],
        "hopper_fa_ws": [attention(128)],
        "hopper_fa_ws_pipelined": [attention(128)],
        "hopper_fa_ws_pipelined_pingpong": [attention(128)],
        "hopper_fa_ws_pipelined_pingpong_persistent": [attention(64), attention(128)],
    },
    100: {
        "blackwell_gemm_pipelined": [product("matmul")],
        "blackwell_gemm_ws": [product("matmul")],
        "blackwell_gemm_2cta": [product("matmul")],
        "blackwell_gemm_clc": [product("matmul")],
        "blackwell-grouped-gemm_test": [
            groups("group_gemm_tlx_fn"),
            groups("group_gemm_tma_fn", by_column=True),
        ],
        "blackwell-multi-cta-layernorm_test": [layer_norm()],
        "blackwell_fa_ws": [attention(128)],
        "blackwell_fa_ws_persistent": [attention(128, False), attention(128, True)],
        "blackwell_fa_ws_pipelined": [attention(128, False), attention(128, True)],
        "blackwell_fa_ws_pipelined_persistent": [attention(128, False, 64, 1)],
    },
}


def has_two_ctas(config: str) -> bool:
    """Whether CTAs share operands; of a product those that its own pruning takes at this size."""
    words = config.split()
    return "ctas_per_cga=(2," in config and not (
        {"GROUP_SIZE_M=1", "NUM_MMA_GROUPS=1"} & set(words)
        or any(w.startswith("SPLIT_K=") and w != "SPLIT_K=1" for w in words)
    )


def run(module: Any, entry: str, arguments: Callable[[], Any]) -> dict[str, Any]:
    """One call: its error and seconds, or what it failed with."""
    torch.manual_seed(0)
    given, expected = arguments()
    start = time.perf_counter()
    try:
        found = getattr(module, entry)(*given)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
        return {"failed": f"{type(error).__name__}: {error}"[:2000]}
    seconds = round(time.perf_counter() - start, 2)
    if isinstance(expected, list):
        found, expected = (torch.cat([x.flatten() for x in xs]) for xs in (found, expected))
    found = found[0] if isinstance(found, tuple) else found
    difference = (found.double() - expected).norm() / expected.norm()
    return {"error": float(f"{difference:.2e}"), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", help="the tutorials'")
    parser.add_argument("--only", default="", help="tutorials whose name holds this")
    parser.add_argument("--out", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    if not triton.knobs.runtime.interpret:
        parser.error("set TRITON_INTERPRET=1")
    folder = tutorials.folder_of_tutorials(arguments.folder)
    tlx.install_aliases()
    torch.cuda.is_available = lambda: True
    rows = []
    with OnTheCpu():
        for arch, cases in CASES.items():
            triton.runtime.driver.set_active(StandIn(arch))
            about = SimpleNamespace(multi_processor_count=4, major=arch // 10, minor=0)
            torch.cuda.get_device_properties = lambda *_, about=about: about
            torch.cuda.get_device_capability = lambda *_, arch=arch: divmod(arch, 10)
            for name in (n for n in cases if arguments.only in n):
                module = tutorials.load(folder, name)
                for entry, make in cases[name]:
                    wanted = [lambda _: True, has_two_ctas]
                    for config in tutorials.configured(module, entry, slice(None)):
                        if not wanted or not wanted[0](config):
                            continue
                        wanted = wanted[1:]
                        row = {"tutorial": name, "config": config, **run(module, entry, make)}
                        rows.append(row)
                        print(json.dumps(row), flush=True)
    if arguments.out:
        record = {**machine.record(), "rows": rows}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
