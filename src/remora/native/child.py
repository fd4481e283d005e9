"""The process that tries a library: ``python -m remora.native.child PATH LIBTRITON RELEASE FD``.

Whatever the library does, it does to this process. The parent reads how it
ended, and what was written to the file descriptor: a line whenever something
begins, and one at the end, each with what is known of the library by then.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from remora.native import announcement
from remora.native.elf import ENTRY_POINT, SharedLibrary
from remora.native.report import VARIABLE, Refused, Report, Verdict, bound_names

_MOST_OUTPUT = 16 << 20  # bytes that a library may print


class Trial:
    """One library, tried step by step; ``report`` is what is known of it so far."""

    def __init__(self, path: str, libtriton: str, release: str, fd: int) -> None:
        self.path = path
        self.libtriton = libtriton
        self.fd = fd
        self.report = Report(Verdict.FINE, triton=release)

    def begin(self, doing: str, *, is_done: bool = False) -> None:
        """Say what is done next, so that it is known if the process ends there."""
        values = {"doing": doing, "is_done": is_done, "report": self.report.to_json()}
        os.write(self.fd, f"\n{json.dumps(values)}\n".encode())

    def run(self) -> None:
        """Try the library.

        Raises:
            Refused: it is not to be loaded.
        """
        self.begin("reading it")
        try:
            library = SharedLibrary(Path(self.path))
        except OSError as error:
            raise Refused(Verdict.UNREADABLE, f"it cannot be read: {error.strerror}") from error
        if not library.defines(ENTRY_POINT):
            raise Refused(Verdict.NO_ENTRY_POINT, f"it does not export {ENTRY_POINT}")
        release = library.release()
        if release is not None:  # known without running any of it
            self.report = replace(self.report, release=release)
            announcement.check_release(release, self.report)
        self.begin("being loaded")
        entry = self.load(library)[ENTRY_POINT]
        self.begin(f"in {ENTRY_POINT}")
        entry.restype = ctypes.c_void_p
        address = entry()
        self.begin("being read")
        self.report = announcement.read(address or 0, self.report)
        self.begin("being loaded by Triton")
        self.rehearse()

    def load(self, library: SharedLibrary) -> ctypes.CDLL:
        """Load it beside libtriton, with every symbol resolved at once."""
        ctypes.CDLL(self.libtriton)
        try:
            return ctypes.CDLL(self.path)
        except OSError as error:
            reason = str(error)
        handles, absent = [ctypes.CDLL(None)], []
        for name in library.needed():
            try:
                handles.append(ctypes.CDLL(name))
            except OSError:
                absent.append(name)
        undefined = library.undefined()
        missing = tuple(s for s in undefined if not any(hasattr(h, s) for h in handles))
        named = [*absent, *map(_demangled, missing)]
        what = (
            f"it needs {_several(named)}, which neither Triton {self.report.triton} nor a library "
            "that it names has"
            if named
            else f"it does not load: {reason}"
        )
        report = replace(self.report, unresolved=(*absent, *missing))
        raise Refused(Verdict.UNRESOLVED, what, report)

    def rehearse(self) -> None:
        """Load it as the parent's Triton will, and give its dialects to a context."""
        os.environ[VARIABLE] = self.path  # what reads it, reads it now
        spec = importlib.util.spec_from_file_location("triton._C.libtriton", self.libtriton)
        assert spec is not None, self.libtriton
        assert spec.loader is not None, self.libtriton
        try:
            libtriton = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(libtriton)
            ir, plugin = libtriton.ir, libtriton.passes.plugin
            is_explicit = hasattr(plugin, "extend_with")
            self.report = replace(self.report, is_explicit=is_explicit)
            if is_explicit:
                for extend in (plugin.extend_with, ir.extend_dialects_with, ir.builder.extend_with):
                    extend(self.path)
            ir.load_dialects(ir.context())
        except Exception as error:  # what Triton's own checks find
            what = f"Triton does not load it: {str(error).strip()}"
            raise Refused(Verdict.MALFORMED, what, self.report) from error
        passes, ops = bound_names(self.report)
        for name in passes.values():
            self._check_binding(plugin, name)
        for name in ops.values():
            self._check_binding(ir.builder, name)

    def _check_binding(self, place: Any, name: str) -> None:
        """Refuse a library whose passes and operations are not there, or hide Triton's own."""
        bound = getattr(place, name, None)
        if bound is None:
            what = f"Triton loads it, and has no {name} afterwards"
            raise Refused(Verdict.MALFORMED, what, self.report)
        if (bound.__doc__ or "").count(f"{name}(") > 1:  # a signature for each of the name
            what = f"it would hide {name}, which Triton has itself"
            raise Refused(Verdict.MALFORMED, what, self.report)


def _several(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _demangled(symbol: str) -> str:
    """A C++ symbol as it is written in C++."""
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_char_p  # leaks the text: this process ends soon
    text = demangle(symbol.encode(), None, None, None)
    return text.decode(errors="replace") if text else symbol


def main(path: str, libtriton: str, release: str, fd: str) -> None:
    """Try a library, and write the report."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_OUTPUT, _MOST_OUTPUT))
    trial = Trial(path, libtriton, release, int(fd))
    try:
        trial.run()
    except Refused as refused:
        trial.report = replace(refused.report, triton=release)
    trial.begin("ending the process", is_done=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
