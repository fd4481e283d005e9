"""Kernels, targets and passes for the tests of the pipeline, the host and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget, Language
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from xdsl.dialects.builtin import StringAttr

import remora
from remora import host, ir
from remora.ir.collector import paused

TARGETS = {
    "cuda:80": GPUTarget("cuda", 80, 32),
    "cuda:90": GPUTarget("cuda", 90, 32),
    "cuda:100": GPUTarget("cuda", 100, 32),
    "hip:gfx942": GPUTarget("hip", "gfx942", 64),
    "hip:gfx950": GPUTarget("hip", "gfx950", 64),
}


@triton.jit
def axpy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, 2.0 * tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def dot(a, b, c, K, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        left = tl.load(a + rows * K + k + columns)
        right = tl.load(b + (k + rows) * BLOCK + columns)
        total = tl.dot(left, right, total)
    tl.store(c + rows * BLOCK + columns, total)


_SIGNATURES = {
    "axpy": {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"},
    "dot": {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32", "BLOCK": "constexpr"},
}


@contextmanager
def round_trips() -> Iterator[None]:
    """Inside, a pass that changes nothing makes a new module, too, as one that does.

    What is written is another text, by an empty line, and means the same.
    """
    stock = ir.write
    ir.write = lambda module, **options: stock(module, **options) + "\n"
    try:
        yield
    finally:
        ir.write = stock


def compile_kernel(target: str, kernel: Any = axpy, block: int = 128, **options: Any) -> Any:
    """Compile one of the kernels above as a launch would; the CompiledKernel."""
    source = ASTSource(kernel, _SIGNATURES[kernel.fn.__name__], {"BLOCK": block})
    return triton.compile(source, target=TARGETS[target], options=options or None)


def code_of(compiled: Any) -> bytes:
    """The assembly and the binary."""
    assembly, binary = ("ptx", "cubin") if "ptx" in compiled.asm else ("amdgcn", "hsaco")
    return compiled.asm[assembly].encode() + b"\0" + compiled.asm[binary]


def stages_of(target: str, language: Language = Language.TRITON) -> tuple[Any, Any, dict[str, Any]]:
    """The backend, its options, and its stock stages by name."""
    backend = make_backend(TARGETS[target])
    options = backend.parse_options({"arch": backend_arch(target)})
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, language)
    return backend, options, stages


def backend_arch(target: str) -> str:
    """As a launch gives it among the options."""
    kind, arch = target.split(":")
    return f"sm{arch}" if kind == "cuda" else arch


def context_for(target: str) -> Any:
    """A libtriton context with the dialects of a target."""
    from triton._C.libtriton import ir as triton_ir

    context = triton_ir.context()
    triton_ir.load_dialects(context)
    make_backend(TARGETS[target]).load_dialects(context)
    return context


def parse(text: str, target: str = "cuda:90") -> Any:
    """A libtriton module."""
    return host.parse_text(text, context_for(target))


def name_of(op: Any) -> str:
    """An operation's name, in whatever class xDSL holds it."""
    registered = getattr(op, "op_name", None)
    return registered.data if registered is not None else op.name


#: What ``Look`` saw: (tag, module's text).
SEEN: list[tuple[str, str]] = []


@dataclass(frozen=True)
class Look(remora.ModulePass):
    """Changes nothing; keeps the module's text."""

    name: ClassVar[str] = "look"
    tag: str = ""

    def apply(self, ctx: Any, module: Any) -> None:
        SEEN.append((self.tag, ir.write(module, locations=False)))


@dataclass(frozen=True)
class Multiply(remora.ModulePass):
    """Multiplies where the kernel adds floating-point numbers."""

    name: ClassVar[str] = "multiply"

    def apply(self, ctx: Any, module: Any) -> None:
        for op in module.walk():
            if name_of(op) == "arith.addf":
                op.attributes["op_name__"] = StringAttr("arith.mulf")


@dataclass(frozen=True)
class Raises(remora.ModulePass):
    name: ClassVar[str] = "raises"
    number: int = 0

    def apply(self, ctx: Any, module: Any) -> None:
        raise ValueError(f"broken on purpose {self.number}")


@dataclass(frozen=True)
class Exits(remora.ModulePass):
    name: ClassVar[str] = "exits"

    def apply(self, ctx: Any, module: Any) -> None:
        raise SystemExit(3)


@dataclass(frozen=True)
class Returns(remora.ModulePass):
    name: ClassVar[str] = "returns"

    def apply(self, ctx: Any, module: Any) -> Any:
        return module


@dataclass(frozen=True)
class Truncates(remora.ModulePass):
    """Leaves a function without its return."""

    name: ClassVar[str] = "truncates"

    def apply(self, ctx: Any, module: Any) -> None:
        for op in list(module.walk()):
            if name_of(op) == "tt.return":
                op.detach()
                op.erase()


@dataclass(frozen=True)
class Renames(remora.ModulePass):
    name: ClassVar[str] = "renames"

    def apply(self, ctx: Any, module: Any) -> None:
        for op in module.walk():
            if name_of(op) == "tt.func":
                op.properties["sym_name"] = StringAttr("another")


@dataclass(frozen=True)
class Unwritable(remora.ModulePass):
    """Leaves a use of a value that is gone."""

    name: ClassVar[str] = "unwritable"

    def apply(self, ctx: Any, module: Any) -> None:
        for op in list(module.walk()):
            if name_of(op) == "arith.addf":
                op.detach()
                op.erase(safe_erase=False)


@contextmanager
def threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that compile at once.

    Without the cyclic collector: a finalizer that it runs in the middle of
    ``ast.parse`` lets another thread in, and CPython 3.11 counts the depth of all
    threads' parses in one place ("AST constructor recursion depth mismatch").
    """
    with paused(), ThreadPoolExecutor(number) as pool:
        yield pool
