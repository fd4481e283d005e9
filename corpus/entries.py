"""The list of kernels, and what ``triton.compile`` takes for each."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("kernels.json")


@dataclass(frozen=True)
class Entry:
    """One kernel of a package and one way in which the package compiles it.

    signature: argument to Triton type, as Triton's JIT makes it.
    constants, attrs: values by path, as ``ASTSource`` takes them.
    through: the call of the package's own wrapper that launched it.
    """

    package: str
    version: str
    module: str
    kernel: str
    signature: dict[str, Any]
    constants: list[Any]
    attrs: list[Any]
    options: dict[str, Any]
    through: str

    @property
    def name(self) -> str:
        """Module and kernel."""
        return f"{self.module}:{self.kernel}"

    def missing(self) -> str:
        """Why this machine cannot compile it; "" if it can."""
        try:
            found = version(self.package)
        except PackageNotFoundError:
            return f"{self.package} is not installed"
        if found != self.version:
            return f"{self.package} is {found}, the list is of {self.version}"
        return ""

    def source(self) -> Any:
        """What ``triton.compile`` takes.

        Raises:
            Exception: the package's module does not import, or lacks the kernel.
        """
        from triton.compiler import ASTSource

        kernel = unwrap(getattr(importlib.import_module(self.module), self.kernel))
        return ASTSource(
            kernel,
            {k: decode_type(v) for k, v in self.signature.items()},
            {tuple(path): decode(v) for path, v in self.constants},
            {tuple(path): value for path, value in self.attrs},
        )


def load(path: Path = LIST) -> list[Entry]:
    """All entries."""
    return [Entry(**entry) for entry in json.loads(path.read_text())]


def unwrap(value: Any) -> Any:
    """The ``JITFunction`` under autotuners, heuristics and a package's own wrappers; or None."""
    from triton.runtime.jit import JITFunction

    for _ in range(8):
        if isinstance(value, JITFunction):
            return value
        value = getattr(value, "fn", None)
    return None


def decode_type(value: Any) -> Any:
    """A type of a signature, from JSON."""
    return tuple(map(decode_type, value["tuple"])) if isinstance(value, dict) else value


def decode(value: Any) -> Any:
    """A constant, from JSON: the inverse of ``record.encode``."""
    import triton.language as tl

    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "float":
        return float(inner)
    if kind == "dtype":
        return tl.dtype(inner)
    if kind == "constexpr":
        return tl.constexpr(decode(inner))
    if kind == "tuple":
        return tuple(map(decode, inner))
    module, _, name = inner.partition(":")
    return unwrap(getattr(importlib.import_module(module), name))
