"""What is known of a native library: a verdict, and what the library announces."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Self

#: The variable of Triton's contract: libraries, separated by colons.
VARIABLE = "TRITON_PLUGIN_PATHS"


class Verdict(Enum):
    """What a look at a native library ends with."""

    FINE = "fine"
    UNREADABLE = "unreadable"
    NOT_ELF = "not an ELF file"
    WRONG_ARCHITECTURE = "wrong architecture"
    DAMAGED = "damaged"
    NO_ENTRY_POINT = "no entry point"
    UNRESOLVED = "unresolved symbols"
    WRONG_API = "wrong API version"
    WRONG_RELEASE = "wrong release"
    MALFORMED = "malformed announcement"
    CRASHED = "crashed"
    HUNG = "hung"

    @property
    def is_of_the_file(self) -> bool:
        """Whether the file and Triton alone decide it, whatever the state of the machine."""
        return self not in (Verdict.UNREADABLE, Verdict.UNRESOLVED, Verdict.CRASHED, Verdict.HUNG)


@dataclass(frozen=True)
class Announced:
    """A pass or a dialect, as a library announces it."""

    name: str
    version: str


@dataclass(frozen=True)
class Report:
    """A native library, probed.

    what: the verdict in a sentence; "" for a fine library.
    triton: the release that it was held against.
    content: a hash of the file.
    api: the version of the plugin interface that it announces.
    release: the release of Triton that it says it was built for.
    name, version, passes, dialects, ops: what it announces; empty where it did not come to that.
    unresolved: symbols that neither libtriton nor a library that it needs has.
    is_explicit: this Triton loads it by calls; by ``TRITON_PLUGIN_PATHS`` otherwise.
    """

    verdict: Verdict
    what: str = ""
    triton: str = ""
    content: str = ""
    api: int | None = None
    release: str | None = None
    name: str = ""
    version: str = ""
    passes: tuple[Announced, ...] = ()
    dialects: tuple[Announced, ...] = ()
    ops: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    is_explicit: bool = False

    @property
    def is_fine(self) -> bool:
        """Whether the library can be loaded."""
        return self.verdict is Verdict.FINE

    def to_json(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        return asdict(self) | {"verdict": self.verdict.value}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The report that ``to_json`` wrote.

        Raises:
            TypeError, ValueError, KeyError: another version of Remora wrote it.
        """
        lists = {k: tuple(Announced(**a) for a in values[k]) for k in ("passes", "dialects")}
        names = {k: tuple(values[k]) for k in ("ops", "unresolved")}
        return cls(**values | lists | names | {"verdict": Verdict(values["verdict"])})


def bound_names(report: Report) -> tuple[dict[str, str], dict[str, str]]:
    """How Triton binds the passes and the operations of a library, by their bare names.

    The bare name is the one spelling on every release. What 3.9 binds as
    ``add_NAME`` and ``create_NAME``, earlier releases bind as the library writes
    it, and libraries for these may write the prefix themselves.
    """
    before_pass, before_op = ("add_", "create_") if report.is_explicit else ("", "")
    return (
        {p.name.removeprefix("add_"): before_pass + p.name for p in report.passes},
        {op.removeprefix("create_"): before_op + op for op in report.ops},
    )


class Refused(Exception):
    """A library is not to be loaded; ``report`` holds what was found until then, if anything."""

    def __init__(self, verdict: Verdict, what: str, report: Report | None = None) -> None:
        super().__init__(what)
        self.report = replace(report or Report(verdict), verdict=verdict, what=what)
