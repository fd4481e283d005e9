"""Hashes of what can change a kernel's code, for the keys of Triton's caches.

A pass or a function counts with two things: the sources of the package that it
comes from, which hold what it calls there, and its code as it is loaded, which
is what there is of one made in a notebook, and differs from the sources after
they were edited and reloaded.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import pickle
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from remora.errors import PipelineError

_IMPORT = re.compile(r"^\s*(?:from\s+(\w+)|import\s+([^\n#;]+))", re.MULTILINE)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


def package_hash(name: str) -> str:
    """The top-level package, or module, that ``name`` belongs to.

    Its sources, and what they import: of what is installed as a distribution the
    version, of other files their content.
    """
    return _hash_of(name.partition(".")[0])


@cache
def _hash_of(package: str) -> str:
    digest = hashlib.sha256()
    seen: set[str] = set()
    todo = [package]
    while todo:
        top = todo.pop()
        if top in seen:
            continue
        seen.add(top)
        imported: set[str] = set()
        for label, text in _sources(top):
            digest.update(f"{label}\0".encode() + text + b"\0")
            imported.update(_imported(text.decode(errors="replace")))
        for other in sorted({top, *imported} - sys.stdlib_module_names):
            digest.update(_versions(other).encode())
            if not _is_installed(other):
                todo.append(other)
    return digest.hexdigest()


def _imported(source: str) -> Iterator[str]:
    """The top-level packages that a source imports."""
    for package, packages in _IMPORT.findall(source):
        for name in (package or packages).split(","):
            yield name.strip().partition(".")[0].partition(" ")[0]


def _sources(top: str) -> Iterator[tuple[str, bytes]]:
    """The Python files of a top-level package or module, with a name for each."""
    if top == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file and Path(file).is_file():
            yield top, Path(file).read_bytes()
        return
    spec = _spec(top)
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            for path in sorted(Path(folder).rglob("*.py")):
                yield f"{top}/{path.relative_to(folder).as_posix()}", path.read_bytes()
    elif spec is not None and spec.origin and Path(spec.origin).is_file():
        yield top, Path(spec.origin).read_bytes()


@cache
def _versions(top: str) -> str:
    """The distributions that bring a top-level package, with their versions."""
    return ", ".join(sorted({f"{d.name} {d.version}" for d in _distributions().get(top, ())}))


@cache
def _is_installed(top: str) -> bool:
    """Whether a version says all of a package: not so of an editable install."""
    spec = _spec(top)
    return spec is None or ("site-packages" in (spec.origin or "") and bool(_versions(top)))


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # the latter: a module that was made without one
        return None


@cache
def _distributions() -> dict[str, list[Distribution]]:
    """The distributions that bring each top-level package or module.

    As ``importlib.metadata.packages_distributions``, which parses all that is known of each:
    1.2 s beside PyTorch and its libraries.
    """
    found: dict[str, list[Distribution]] = {}
    for distribution in distributions():
        for top in _packages_of(distribution):
            found.setdefault(top, []).append(distribution)
    return found


def _packages_of(distribution: Distribution) -> set[str]:
    """The top-level packages and modules of a distribution."""
    if declared := (distribution.read_text("top_level.txt") or "").split():
        return set(declared)
    record = (distribution.read_text("RECORD") or "").splitlines()
    paths = [line.partition(",")[0].strip('"') for line in record]
    if not record:
        paths = [file.as_posix() for file in distribution.files or ()]
    # The first folder, or a file at the top without its endings.
    return {(path if "/" in path else path.partition(".")[0]).partition("/")[0] for path in paths}


def content_hash(edits: Iterable[Any]) -> str:
    """A hash over edits that changes when one of them, or Remora, or xDSL, changes.

    Raises:
        PipelineError: what an edit runs has no content that another process would find.
    """
    digest = hashlib.sha256()
    for part in (package_hash("remora"), version("xdsl")):
        digest.update(part.encode() + b"\0")
    for edit in edits:
        try:
            contents = content_of(edit.subject), content_of(edit.when)
        except (PipelineError, RecursionError) as error:
            what = getattr(error, "what", "a value that holds itself cannot be part of a key")
            raise PipelineError(
                what,
                where=f"{edit} (pipeline {edit.pipeline})",
                hint="give plain values, dataclasses of them, or an attribute cache_key: a text "
                "that changes when what the object does changes",
            ) from None
        digest.update("\0".join((str(edit), *contents, edit.trigger)).encode() + b"\0")
    return digest.hexdigest()


def content_of(value: Any) -> str:
    """A text that changes when a pass, a function or a constant changes what it does.

    Raises:
        PipelineError: the value has no content that another process would find.
    """
    return _Content().of(value)


class _Content:
    """The content of one value, and of what it reaches."""

    def __init__(self) -> None:
        self.seen: set[int] = set()  # functions and classes that are being looked at

    def of(self, value: Any) -> str:
        """See ``content_of``."""
        from remora.pipeline.subjects import PassRef

        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, type):
            return self.class_(value)
        if hasattr(value, "cache_key"):
            return f"{self.class_(type(value))} {value.cache_key}"
        if isinstance(value, PassRef):
            packages = " ".join(map(package_hash, (value.module_name, *value.also)))
            return f"{value.target} {self.of(value.arguments)} {value.trigger!r} {packages}"
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}({', '.join(map(self.of, value))})"
        if isinstance(value, (set, frozenset)):
            return f"set({', '.join(sorted(map(self.of, value)))})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.of(k)}: {self.of(v)}' for k, v in value.items())}}}"
        if isinstance(value, functools.partial):
            return f"partial {self.of((value.func, value.args, value.keywords))}"
        if isinstance(value, MethodType):
            return f"method {self.of(value.__func__)} {self.of(value.__self__)}"
        if isinstance(value, FunctionType):
            return f"function {self.function(value)} {_sources_of(value, value.__module__)}"
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__} {_versions(value.__name__.partition('.')[0])}"
        return self.object(value)

    def object(self, value: Any) -> str:
        """An object: its class, and what it holds, by name or as it is pickled."""
        cls = type(value)
        parts = []
        for name, part in _held(value).items():
            try:
                parts.append(f"{name}={self.of(part)}")
            except PipelineError as error:
                raise PipelineError(f"{name} of {cls.__qualname__}: {error.what}") from error
        return f"{self.class_(cls)} {', '.join(parts)}"

    def class_(self, cls: type) -> str:
        """A class: its name, its methods and those of its bases, and its sources."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        if _is_versioned(cls) or id(cls) in self.seen:
            return f"{name} {_versions(cls.__module__.partition('.')[0])}"
        self.seen.add(id(cls))
        own = [
            f"{key}={self.member(value)}"
            for base in cls.__mro__
            if not _is_versioned(base)
            for key, value in vars(base).items()
        ]
        return f"{name} {' '.join(own)} {_sources_of(cls, cls.__module__)}"

    def member(self, value: Any) -> str:
        """What a class holds: methods, and constants; nothing that Python puts there."""
        value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        return self.function(value) if isinstance(value, FunctionType) else self.constant(value)

    def constant(self, value: Any) -> str:
        """A constant of a class or module; for others the sources say how they are made."""
        if isinstance(value, (*_PLAIN, tuple, frozenset)):
            with suppress(PipelineError):
                return self.of(value)
        return ""

    def function(self, function: FunctionType) -> str:
        """A function as it is loaded: code, closure, defaults, and what it names outside."""
        if id(function) in self.seen:
            return function.__qualname__
        self.seen.add(id(function))
        try:
            closure = [c.cell_contents for c in function.__closure__ or ()]
        except ValueError:  # a cell that is still empty
            closure = []
        named = [
            f"{name}={self.global_(function, function.__globals__[name])}"
            for name in sorted(set(_names(function.__code__)))
            if name in function.__globals__
        ]
        given = (closure, function.__defaults__, function.__kwdefaults__)
        return f"{function.__qualname__} {_code(function.__code__)} {self.of(given)} {named}"

    def global_(self, user: FunctionType, value: Any) -> str:
        """What a function finds by a global name: constants, and code that no version covers."""
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, (FunctionType, type)):
            if value.__module__ == user.__module__ and isinstance(value, FunctionType):
                return self.function(value)
            return self.of(value) if not _is_versioned(value) else value.__qualname__
        return self.constant(value)


def _held(value: Any) -> dict[str, Any]:
    """What an object holds, by name; of one that is no plain Python object, what is pickled."""
    cls = type(value)
    held = dict(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        return held | {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    own_state = hasattr(value, "__dict__") and not hasattr(cls, "__slots__")
    if own_state and (cls.__reduce_ex__, cls.__reduce__) == (
        object.__reduce_ex__,
        object.__reduce__,
    ):
        return held
    try:
        return {"state": pickle.dumps(value, protocol=4)}
    except Exception as error:
        raise PipelineError(
            f"{value!r} cannot be part of a cache's key: it cannot be pickled ({error})"
        ) from error


def _code(code: CodeType) -> str:
    """A code object: what it does, without where it stands."""
    constants = [_code(c) if isinstance(c, CodeType) else content_of(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_versioned(value: Any) -> bool:
    """Whether a class or function comes with Python, or with an installed distribution.

    Editable installs keep their version while their files change: they do not count.
    """
    top = (getattr(value, "__module__", None) or "builtins").partition(".")[0]
    return top != "__main__" and (
        top in sys.stdlib_module_names or (bool(_spec(top)) and _is_installed(top))
    )


def _sources_of(value: Any, name: str) -> str:
    """The package that a class or function comes from; its file where it has no name."""
    module = sys.modules.get(name)
    if module is not None and name != "__main__" and _spec(name.partition(".")[0]):
        return package_hash(name)
    try:
        file = inspect.getsourcefile(value)
        source = Path(file).read_text() if file and Path(file).is_file() else ""
    except (TypeError, OSError):  # made by exec, or in a notebook: its code has to do
        source = ""
    return hashlib.sha256(source.encode()).hexdigest()
