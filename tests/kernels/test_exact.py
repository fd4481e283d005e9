"""Round trips everywhere change no byte of the products' code, TLX's own or stock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import triton
from compiling import TARGETS, round_trips, stages_of
from triton import knobs

import remora
from remora.kernels.offline import source, stock_kernel, tlx_kernel
from remora.pipeline import anchors, record


@dataclass(frozen=True)
class Identity(remora.ModulePass):
    """Does nothing but count."""

    name: ClassVar[str] = "identity"
    runs: ClassVar[list[int]] = []

    def apply(self, ctx: Any, module: Any) -> None:
        self.runs.append(1)


@pytest.mark.parametrize("kernel_for", [tlx_kernel, stock_kernel], ids=["tlx", "stock"])
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942", "hip:gfx950"])
def test_code_is_the_same(target: str, kernel_for: Any) -> None:
    kernel, config = kernel_for(target)

    def code() -> str:
        with knobs.compilation.scope():
            knobs.compilation.always_compile = True
            compiled = triton.compile(
                source(kernel, config),
                target=TARGETS[target],
                options={"num_warps": config.num_warps},
            )
        return str(compiled.asm["ptx" if target.startswith("cuda") else "amdgcn"])

    stages = stages_of(target)[2]
    pipeline, places = remora.Pipeline("everywhere"), 0
    for stage in ("ttir", "ttgir"):
        for anchor in anchors(record(stages[stage])):
            pipeline, places = pipeline.insert(Identity(), before=f"{stage}/{anchor}"), places + 1
        pipeline, places = pipeline.insert(Identity(), at=f"{stage}/end"), places + 1
    without = code()
    Identity.runs.clear()
    with remora.use(pipeline), round_trips():
        assert code() == without
    assert len(Identity.runs) == places > 20
    assert ".loc" in without
