"""Hashes of what can change a kernel's code, for the keys of Triton's caches."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from remora.errors import PipelineError

# An object's default text, which is another one in another process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


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
    for distribution in _distributions().get(top, ()):
        try:
            digest.update(f"{distribution} {version(distribution)}".encode())
        except PackageNotFoundError:
            continue
    return digest.hexdigest()


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())


def content_of(value: Any) -> str:
    """A text that changes when a pass, a function or a constant changes what it does.

    Raises:
        PipelineError: the value has no content that another process would find.
    """
    from remora.pipeline.conditions import Condition
    from remora.pipeline.subjects import PassRef, StockRef

    if hasattr(value, "cache_key"):
        return f"{_class_content(type(value))} {value.cache_key}"
    if isinstance(value, PassRef):
        packages = " ".join(map(package_hash, (value.module_name, *value.also)))
        return f"{value.target} {content_of(value.arguments)} {value.trigger!r} {packages}"
    if isinstance(value, (StockRef, Condition)):
        return f"{type(value).__name__} " + _fields(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(content_of, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {content_of(v)}' for k, v in value.items())}}}"
    if isinstance(value, functools.partial):
        return f"partial {content_of((value.func, value.args, value.keywords))}"
    if isinstance(value, MethodType):
        return f"method {content_of(value.__func__)} {content_of(value.__self__)}"
    if isinstance(value, FunctionType):
        return _function_content(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{_class_content(type(value))} {_fields(value)}"
    if isinstance(value, type):
        return _class_content(value)
    text = repr(value)
    if _ADDRESS.search(text):
        raise PipelineError(
            f"{text} cannot be part of a cache's key: its text is another one in every process",
            hint="make it a dataclass with plain fields, or give it an attribute cache_key",
        )
    if type(value).__module__ == "builtins":
        return text
    return f"{_class_content(type(value))} {text}"


def _fields(value: Any) -> str:
    return ", ".join(
        f"{f.name}={content_of(getattr(value, f.name))}" for f in dataclasses.fields(value)
    )


def _class_content(cls: type) -> str:
    """A class: its name, and the sources of its package, or its file or text."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__} {_module_content(cls, cls.__module__)}"


def _function_content(function: FunctionType) -> str:
    """A function: its code, what it closes over, and the sources around it."""
    try:
        cells = [c.cell_contents for c in function.__closure__ or ()]
    except ValueError:  # a cell that is still empty
        cells = []
    own = [c for c in cells if c is not function]
    parts = (
        function.__qualname__,
        function.__code__.co_code.hex(),
        repr([c for c in function.__code__.co_consts if not hasattr(c, "co_code")]),
        repr(function.__code__.co_names),
        content_of(own),
        content_of(function.__defaults__ or ()),
        _module_content(function, function.__module__),
    )
    return "function " + " ".join(parts)


def _module_content(value: Any, name: str) -> str:
    """The package that a class or function comes from; its file where it has no name."""
    module = sys.modules.get(name)
    if (
        module is not None
        and name != "__main__"
        and importlib.util.find_spec(name.partition(".")[0])
    ):
        return package_hash(name)
    try:
        file = inspect.getsourcefile(value)
        source = (
            Path(file).read_text() if file and Path(file).is_file() else inspect.getsource(value)
        )
    except (TypeError, OSError):  # made by exec: its code has to do
        source = ""
    return hashlib.sha256(source.encode()).hexdigest()


def content_hash(edits: Iterable[Any]) -> str:
    """A hash over edits that changes when one of them, or Remora, or xDSL, changes."""
    digest = hashlib.sha256()
    for part in (package_hash("remora"), version("xdsl")):
        digest.update(part.encode() + b"\0")
    for edit in edits:
        parts = (str(edit), content_of(edit.subject), content_of(edit.when), edit.trigger)
        digest.update("\0".join(parts).encode() + b"\0")
    return digest.hexdigest()
