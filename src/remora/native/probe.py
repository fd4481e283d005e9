"""Tries a library in a short-lived child, and keeps the verdict by the library's content."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from remora.errors import UnsupportedTriton
from remora.native.report import VARIABLE, Report, Verdict

#: Seconds that a library may take to load and to announce itself.
LIMIT_S = 30.0

# A verdict that the machine's state can change is kept for so many seconds.
_KEPT_S = 3600
# A file that changed less than this before it was read may change again unnoticed.
_UNSETTLED_S = 0.1
# What the child runs: a report of other code is not used.
_CHILD = ("announcement.py", "child.py", "elf.py", "report.py", "wholeness.py")


def probe(path: str | Path, *, limit: float = LIMIT_S) -> Report:
    """What is known of a library. Never loads it into this process.

    Takes a child for a library that is new or was changed (0.2 s), else a look
    at the file (0.2 ms).

    Args:
        path: the library's file.
        limit: seconds until a library that does not return is given up.

    Raises:
        UnsupportedTriton: there is no Triton to hold it against.
    """
    path = Path(path).resolve()
    triton = installed_triton()
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return Report(Verdict.UNREADABLE, "it is no file", triton.release)
        kept = _Kept.of(path, triton, limit)
        if kept is not None and kept.is_of(status):
            return kept.report
        content = _hash(path)
    except OSError as error:
        return Report(Verdict.UNREADABLE, f"it cannot be read: {error.strerror}", triton.release)
    if kept is not None and kept.report.content == content:
        report = kept.report
    else:
        report = replace(_try(path, triton, limit), content=content)
    _Kept(report, _fingerprint(status), time.time(), limit).keep(path, triton)
    return report


@dataclass(frozen=True)
class Triton:
    """The Triton that is installed here, which need not be imported.

    library: libtriton.
    identity: changes when another is installed in its place.
    """

    release: str
    library: Path
    identity: str


@cache
def installed_triton() -> Triton:
    """The Triton that is installed here.

    Raises:
        UnsupportedTriton: there is none.
    """
    spec = importlib.util.find_spec("triton")
    try:
        package = Path(spec.origin or "") if spec is not None else Path()
        library = package.parent / "_C" / "libtriton.so"
        release = re.search(r"__version__ = ['\"]([^'\"]+)", package.read_text())
        assert release is not None
        status = library.stat()
    except (OSError, AssertionError) as error:
        raise UnsupportedTriton(
            "no Triton is installed to hold a native library against",
            hint="pip install triton",
        ) from error
    code = [(Path(__file__).parent / name).read_bytes() for name in _CHILD]
    parts = f"{library} {_fingerprint(status)} {release[1]} {sys.version}".encode()
    return Triton(release[1], library, hashlib.sha256(parts + b"".join(code)).hexdigest())


def _fingerprint(status: os.stat_result) -> list[int]:
    """What changes whenever a file does."""
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class _Kept:
    """A verdict in the user's cache, a file for each library's path.

    status: the library's file as it was then. at: seconds since the epoch. limit: what it had.
    """

    report: Report
    status: list[int]
    at: float
    limit: float

    @staticmethod
    def _file(path: Path) -> Path:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return folder / "remora" / "native" / hashlib.sha256(os.fsencode(path)).hexdigest()

    @classmethod
    def of(cls, path: Path, triton: Triton, limit: float) -> _Kept | None:
        """What is known of a path, if it still counts."""
        try:
            values = json.loads(cls._file(path).read_bytes())
            identity, report = values.pop("triton"), Report.from_json(values.pop("report"))
            kept = cls(report, **values)
        except (OSError, ValueError, TypeError, KeyError, RuntimeError):  # none, or of another kind
            return None
        counts = report.verdict.is_of_the_file or time.time() - kept.at < _KEPT_S
        had_less = report.verdict is Verdict.HUNG and kept.limit < limit
        return kept if counts and not had_less and identity == triton.identity else None

    def is_of(self, status: os.stat_result) -> bool:
        """Whether the file is, without a look inside, the one that was tried."""
        settled = self.at - status.st_ctime > _UNSETTLED_S
        return settled and self.status == _fingerprint(status)

    def keep(self, path: Path, triton: Triton) -> None:
        """Write it down; without a folder to write to, the next process tries again."""
        values = vars(self) | {"triton": triton.identity, "report": self.report.to_json()}
        with suppress(OSError, RuntimeError):
            file = self._file(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
                json.dump(values, new)
            os.replace(new.name, file)


def _try(path: Path, triton: Triton, limit: float) -> Report:
    """Run the child, and make a verdict of how it ended."""
    with _memory("report") as answers, _memory("output") as output:
        arguments = [str(path), str(triton.library), triton.release, str(answers)]
        child = subprocess.Popen(
            [sys.executable, "-S", "-P", "-m", "remora.native.child", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(answers,),
            start_new_session=True,
            env=_environment(),
        )
        try:
            code: int | None = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and what the library started
            child.wait()
        found, said = _content(answers), _content(output)
    return _judge(found, said, code, limit, triton)


def _judge(found: str, said: str, code: int | None, limit: float, triton: Triton) -> Report:
    doing, is_done, report = "starting", False, Report(Verdict.CRASHED, triton=triton.release)
    for line in found.splitlines():
        with suppress(ValueError, TypeError, KeyError):  # the library may have written there too
            values = json.loads(line)
            doing, is_done = values["doing"], values["is_done"]
            report = Report.from_json(values["report"])
    if code == 0 and is_done:
        return report
    if code is None:
        what = f"it did not return within {limit:g} s while {doing}"
        return replace(report, verdict=Verdict.HUNG, what=what)
    how = f"by exit({code})" if code >= 0 else f"with {_signal(-code)}"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    what = f"it ended the process that tried it, {how}, while {doing}"
    what += f": {last.strip()}" if last else ""
    return replace(report, verdict=Verdict.CRASHED, what=what)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"


def _environment() -> dict[str, str]:
    """As here, with the modules that are found here, and without plugins."""
    root = str(Path(__file__).parents[2])
    places = [root, *(p for p in sys.path if p and p != root)]
    kept = {k: v for k, v in os.environ.items() if k != VARIABLE}
    return kept | {"PYTHONPATH": os.pathsep.join(places)}


@contextmanager
def _memory(name: str) -> Iterator[int]:
    """A file in memory: unlike a pipe, it does not block, and nobody has to close it."""
    fd = os.memfd_create(f"remora-{name}")
    try:
        yield fd
    finally:
        os.close(fd)


def _content(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")
