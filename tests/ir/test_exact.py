"""The round trip through xDSL changes no byte: of any module's text, nor of the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import pytest
import triton
from compiling import TARGETS, round_trips
from corpus.kernels import CORPUS, Entry
from triton import knobs
from triton.backends.compiler import Language
from triton.compiler.compiler import make_backend

import remora
from remora import ir
from remora.ir.text import write
from remora.pipeline import anchors, record

#: Kernels whose code depends on the order of uses, which no text carries.
BY_USE_ORDER: set[str] = set()


@dataclass(frozen=True)
class Identity(remora.ModulePass):
    """Does nothing but count: whatever it changes, the round trip changed."""

    name: ClassVar[str] = "identity"
    runs: ClassVar[list[str]] = []

    def apply(self, ctx: Any, module: Any) -> None:
        self.runs.append(write(module))


@cache
def everywhere(target: str, options: tuple[tuple[str, Any], ...]) -> tuple[Any, int]:
    """A pipeline with ``Identity`` before every pass and at the end, and how often it runs."""
    backend = make_backend(TARGETS[target])
    stages: dict[str, Any] = {}
    backend.add_stages(stages, backend.parse_options(dict(options)), Language.TRITON)
    pipeline, places = remora.Pipeline("everywhere"), 0
    for stage in ("ttir", "ttgir"):
        for anchor in anchors(record(stages[stage])):
            pipeline = pipeline.insert(Identity(), before=f"{stage}/{anchor}")
            places += 1
        pipeline = pipeline.insert(Identity(), at=f"{stage}/end")
        places += 1
    return pipeline, places


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts that are read, in order; every compilation is done anew."""
    seen: list[str] = []
    stock = ir.read

    def read(text: str) -> Any:
        seen.append(text)
        return stock(text)

    monkeypatch.setattr(ir, "read", read)
    Identity.runs.clear()
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        yield seen


def check(entry: Entry, target: str, texts: list[str]) -> None:
    """Compile with and without round trips, and compare."""
    if reason := entry.refusal(triton.__version__, target):
        pytest.skip(f"stock Triton {triton.__version__} refuses: {reason}")
    assembly = "ptx" if target.startswith("cuda") else "amdgcn"
    options = entry.options or None
    stock = triton.compile(entry.source(), target=TARGETS[target], options=options)
    assert not texts
    pipeline, places = everywhere(target, tuple(entry.options.items()))
    with remora.use(pipeline), round_trips():
        ours = triton.compile(entry.source(), target=TARGETS[target], options=options)
    assert len(Identity.runs) == places > 20
    assert Identity.runs == texts
    assert "loc(" in texts[0]
    assert ".loc" in stock.asm[assembly]
    if reason := entry.variation(triton.__version__, target):
        pytest.skip(f"the texts are exact; stock Triton's own code varies: {reason}")
    if entry.name in BY_USE_ORDER and ours.asm[assembly] != stock.asm[assembly]:
        pytest.xfail("the texts are exact; a stock pass goes by the order of uses: see ir.UseOrder")
    assert ours.asm[assembly] == stock.asm[assembly]


def entries(*names: str) -> Any:
    chosen = [e for e in CORPUS if not names or e.name in names]
    return pytest.mark.parametrize("entry", chosen, ids=lambda e: e.name)


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx950"])
@entries()
def test_code_is_the_stock_code(entry: Entry, target: str, texts: list[str]) -> None:
    check(entry, target, texts)


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
@entries("add", "calls", "softmax", "matmul", "attention", "dot-tf32")
def test_code_is_the_stock_code_on_older_targets(
    entry: Entry, target: str, texts: list[str]
) -> None:
    check(entry, target, texts)
