"""Hashes of what can change a kernel's code, for the keys of Triton's caches."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any


@cache
def package_hash(name: str) -> str:
    """The sources of the top-level package, or module, that ``name`` belongs to."""
    top = name.partition(".")[0]
    digest = hashlib.sha256(top.encode())
    if top == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        digest.update(Path(file).read_bytes() if file and Path(file).is_file() else b"")
        return digest.hexdigest()
    spec = importlib.util.find_spec(top)
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
                digest.update(path.read_bytes())
    elif spec is not None and spec.origin and Path(spec.origin).is_file():
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()


def _pass_hash(value: Any) -> str:
    """One pass: the package it comes from, and its fields."""
    from remora.pipeline.edits import Check, PassRef

    if isinstance(value, Check):
        return f"{value!r} {package_hash(value.function.partition(':')[0])}"
    if isinstance(value, PassRef):
        packages = " ".join(map(package_hash, (value.module_name, *value.also)))
        return f"{value.target} {value.arguments!r} {value.trigger!r} {packages}"
    cls = type(value)
    text = f"{cls.__module__}.{cls.__qualname__} {value!r}"
    module = inspect.getmodule(cls)
    if module is None or module.__name__ == "__main__":
        # Not importable by name: the file that defines the class, or its text.
        file = inspect.getsourcefile(cls)
        source = Path(file).read_text() if file and Path(file).is_file() else inspect.getsource(cls)
        return text + hashlib.sha256(source.encode()).hexdigest()
    return text + package_hash(cls.__module__)


def content_hash(items: Iterable[tuple[Any, str]]) -> str:
    """Passes with their places: a hash that changes when one of them, or Remora, changes."""
    digest = hashlib.sha256()
    for part in (package_hash("remora"), version("xdsl")):
        digest.update(part.encode() + b"\0")
    for value, place in items:
        digest.update(f"{place}\0{_pass_hash(value)}\0".encode())
    return digest.hexdigest()
