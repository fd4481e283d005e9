"""Loads native libraries into this process's Triton, after they were probed.

3.9 loads a library when it is asked to. Earlier releases load what
``TRITON_PLUGIN_PATHS`` names while libtriton is imported, and at no other time:
there Remora has to come first, and writes what is fine into the variable.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora import errors
from remora.errors import NativeError, RemoraError
from remora.native.probe import LIMIT_S, probe
from remora.native.report import VARIABLE, Report, Verdict, bound_names

if TYPE_CHECKING:
    from remora.native.op import NativeOp
    from remora.native.passes import NativePass

#: The entry point group: ``NAME = "package:library.so"``, a file beside a package's modules.
GROUP = "remora.native"

# Verdict, the class of its error, and the way out.
_ERRORS: dict[Verdict, tuple[type[NativeError], str]] = {
    Verdict.UNREADABLE: (errors.NativeUnreadable, "check the path"),
    Verdict.NOT_ELF: (errors.NativeNotElf, "name the library's .so file"),
    Verdict.WRONG_ARCHITECTURE: (
        errors.NativeWrongArchitecture, "get the library for this machine"),
    Verdict.DAMAGED: (errors.NativeDamaged, "copy, download or build the library anew"),
    Verdict.NO_ENTRY_POINT: (errors.NativeNoEntryPoint, "name a library that is a Triton plugin"),
    Verdict.UNRESOLVED: (
        errors.NativeUnresolved, "get the library for this release of Triton, with what it needs"),
    Verdict.WRONG_API: (errors.NativeWrongApi, "get the library for this release of Triton"),
    Verdict.WRONG_RELEASE: (
        errors.NativeWrongRelease, "get the library for this release, or the Triton it is for"),
    Verdict.MALFORMED: (errors.NativeMalformed, "report it to the library's author"),
    Verdict.CRASHED: (errors.NativeCrashed, "report it to the library's author"),
    Verdict.HUNG: (errors.NativeHung, "report it to the library's author"),
}  # fmt: skip


@dataclass(frozen=True)
class Library:
    """A native library that is loaded, or will be while libtriton is imported.

    source: where it was named: the variable, a distribution, or "load_native".
    """

    path: Path
    report: Report
    source: str = "load_native"

    @property
    def name(self) -> str:
        """The plugin's name, as it announces it."""
        return self.report.name

    def pass_(self, name: str, *arguments: str) -> NativePass:
        """A pass of the library, to be inserted; one name on every release.

        Args:
            name: without the ``add_`` that some releases put before it.
            arguments: texts, as native passes take them.

        Raises:
            NativeUnknown: the library announces no such pass.
            PipelineError: an argument is not a text.
        """
        from remora.native.passes import NativePass

        return NativePass.of(self, name, arguments)

    def op(self, name: str) -> NativeOp:
        """An operation of the library, to be called in kernels; one name on every release.

        From then on the library's content joins the key of what is compiled.

        Args:
            name: without the ``create_`` that some releases put before it.

        Raises:
            NativeUnknown: the library announces no such operation.
        """
        from remora.native.op import NativeOp

        return NativeOp.of(self, name)

    def bound(self, kind: str, name: str) -> str:
        """The name under which Triton binds a pass (``"pass"``) or an operation (``"op"``).

        Raises:
            NativeUnknown: the library announces none of that name.
        """
        known = bound_names(self.report)[kind == "op"]
        bare = name.removeprefix("create_" if kind == "op" else "add_")
        if bare not in known:
            what = {"pass": "pass", "op": "operation"}[kind]
            raise errors.NativeUnknown(
                f"the native plugin {self.name} has no {what} {name!r}",
                where=str(self.path),
                hint=f"it has {', '.join(known) or 'none'}",
            )
        return known[bare]


@dataclass(frozen=True)
class Found:
    """A native library that was named somewhere.

    source: as of a ``Library``.
    name: the entry point's; "" elsewhere.
    error: why it was refused, if it was. is_loaded: whether it is in use here.
    """

    source: str
    path: Path
    report: Report
    name: str = ""
    error: RemoraError | None = None
    is_loaded: bool = False

    @property
    def passes(self) -> list[str]:
        """Its passes, by their one spelling."""
        return list(bound_names(self.report)[0])

    @property
    def ops(self) -> list[str]:
        """Its operations, by their one spelling."""
        return list(bound_names(self.report)[1])


class Natives:
    """The native libraries of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loaded: dict[Path, Library] = {}
        self._of_variable: list[Path] = []

    def load(
        self, path: str | Path, *, limit: float = LIMIT_S, source: str = "load_native"
    ) -> Library:
        """Probe a library and load it. Again: does nothing. See ``load_native``."""
        path = Path(path).resolve()
        with self._lock:
            if path in self._loaded:
                return self._loaded[path]
            report = probe(path, limit=limit)
            if not report.is_fine:
                raise _refusal(path, report)
            library = Library(path, report, source)
            self._check_names(library)
            if report.is_explicit:
                _extend(library)
            elif not _is_in_libtriton(library):
                self._announce(library)
            self._loaded[path] = library
            return library

    def _check_names(self, library: Library) -> None:
        """Refuse what another library that is loaded has the name of."""
        for other in self._loaded.values():
            taken = _names(library.report) & _names(other.report)
            if taken:
                raise errors.NativeNameTaken(
                    f"the native library brings what another brought: {', '.join(sorted(taken))}",
                    where=f"{library.path}, after {other.path}",
                    hint="load one of the two",
                )

    def _announce(self, library: Library) -> None:
        """Have libtriton load the library while it is imported, which is still to come."""
        if "triton._C.libtriton" in sys.modules:
            raise errors.NativeTooLate(
                f"Triton {library.report.triton} loads native plugins while it is imported, and it "
                "has been",
                where=str(library.path),
                hint="call remora.load_native, or import remora with "
                f"{VARIABLE} set, before the first import of triton",
            )
        if ":" in str(library.path):
            raise errors.NativeUnreadable(
                f"Triton {library.report.triton} cannot load a library whose path has a colon",
                where=str(library.path),
                hint="move it",
            )
        os.environ[VARIABLE] = ":".join(map(str, [*self._loaded, library.path]))

    def adopt_variable(self) -> None:
        """Take over what ``TRITON_PLUGIN_PATHS`` names: load what is fine, warn of the rest.

        Only what is fine stays in the variable, unless Triton has read it.
        """
        paths = list(_variable())
        self._of_variable = paths
        was_read = "triton._C.libtriton" in sys.modules
        for path in paths:
            try:
                self.load(path, source=VARIABLE)
            except RemoraError as error:
                warnings.warn(f"{VARIABLE}: {error}", stacklevel=4)
        if not was_read:
            fine = [str(p.resolve()) for p in paths if p.resolve() in self._loaded]
            os.environ.pop(VARIABLE, None)
            if fine:
                os.environ[VARIABLE] = ":".join(fine)

    def found(self) -> list[Found]:
        """Every library that is named anywhere here, probed, in the order of their sources."""
        named = [(VARIABLE, "", path) for path in self._of_variable]
        named += [(source, name, path) for name, source, path in announced()]
        known = {path.resolve() for _, _, path in named}
        named += [(one.source, "", p) for p, one in self._loaded.items() if p not in known]
        return [self._look(*one) for one in dict.fromkeys(named)]

    def _look(self, source: str, name: str, path: Path) -> Found:
        report = probe(path)
        library = self._loaded.get(path.resolve())
        error: RemoraError | None = None if report.is_fine else _refusal(path, report)
        if error is None and library is None:
            try:
                self._check_names(Library(path, report))
            except errors.NativeNameTaken as taken:
                error = taken
        return Found(source, path, report, name, error, library is not None)

    def library(self, name: str) -> Library | None:
        """The library with a plugin of that name: a loaded one, or one that is announced."""
        for library in self._loaded.values():
            if library.name == name:
                return library
        for _, source, path in announced():
            if probe(path).name == name:
                return self.load(path, source=source)
        return None


natives = Natives()


def load_native(path: str | Path, *, limit: float = LIMIT_S) -> Library:
    """Load a native plugin, once it was probed in another process.

    On 3.9 it is loaded now. Earlier releases load it while libtriton is
    imported, which must not have happened.

    Args:
        path: the library's file, or the name of one that a distribution announces.
        limit: seconds that it may take to load and announce itself.

    Raises:
        NativeError: it is refused; a class for each reason.
        NativeTooLate: this Triton loads such libraries while it is imported, and it has been.
        UnsupportedTriton: there is no Triton.
    """
    for name, source, announced_path in announced():
        if str(path) == name and not Path(path).exists():
            return natives.load(announced_path, limit=limit, source=source)
    return natives.load(path, limit=limit)


def announced() -> Iterator[tuple[str, str, Path]]:
    """The libraries that installed distributions announce: name, distribution, path.

    Nothing of the distribution is imported.
    """
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        source = f"{point.dist.name} {point.dist.version}" if point.dist else "a distribution"
        yield point.name, source, _file_of(point)


def _file_of(point: EntryPoint) -> Path:
    """The file behind ``package:library.so``; one that does not exist where it names none."""
    package, _, file = point.value.partition(":")
    top, *below = package.strip().split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # an empty name, or a module that was made without a spec
        spec = None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0] if places else top, *below, file.strip())


def _names(report: Report) -> set[str]:
    """What no other library may be called: plugin, passes and operations, in words."""
    passes, ops = bound_names(report)
    named = {f"pass {name}" for name in passes} | {f"operation {name}" for name in ops}
    return {f"plugin {report.name}"} | named


def _variable() -> Iterator[Path]:
    for text in filter(None, os.environ.get(VARIABLE, "").split(":")):
        yield Path(text)


def _refusal(path: Path, report: Report) -> NativeError:
    kind, hint = _ERRORS[report.verdict]
    return kind(f"the native library was refused: {report.what}", where=str(path), hint=hint)


def _extend(library: Library) -> None:
    """Load the library into a Triton that does it by calls. It was rehearsed in the child."""
    from triton._C.libtriton import ir, passes

    for extend in (passes.plugin.extend_with, ir.extend_dialects_with, ir.builder.extend_with):
        try:
            extend(str(library.path))
        except RuntimeError as error:
            raise errors.NativeMalformed(
                f"Triton does not load the native library: {error}",
                where=str(library.path),
                hint="it changed since it was probed; try again",
            ) from error


def _is_in_libtriton(library: Library) -> bool:
    """Whether libtriton, imported before, loaded the library by the variable."""
    if "triton._C.libtriton" not in sys.modules:
        return False
    if library.path not in {path.resolve() for path in _variable()}:
        return False
    from triton._C.libtriton import ir, passes

    in_passes, in_builder = bound_names(library.report)
    maps = Path("/proc/self/maps").read_text()
    return (
        all(hasattr(passes.plugin, name) for name in in_passes.values())
        and all(hasattr(ir.builder, name) for name in in_builder.values())
        and re.search(rf" {re.escape(str(library.path))}$", maps, re.MULTILINE) is not None
    )


def is_bound(library: Library, place: Any, name: str) -> None:
    """Check that Triton has what it was to load while it was imported.

    Raises:
        NativeTooLate: it has not: the variable was changed in between.
    """
    if not hasattr(place, name):
        raise errors.NativeTooLate(
            f"Triton was imported without the native plugin {library.name}",
            where=str(library.path),
            hint=f"leave {VARIABLE} as load_native set it until triton is imported",
        )
