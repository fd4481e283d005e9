"""What a loaded library's entry point returned: the C struct ``PluginInfo``, read with care.

Memory is read through ``/proc/self/mem``, where a pointer that leads nowhere is
an error and not a crash.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import replace

from remora.native.report import Announced, Refused, Report, Verdict

#: The version of the interface (TRITON_PLUGIN_API_VERSION) of 3.7.1, 3.8.0 and 3.9.0.
API = 2

# More of a kind than this is a count that lies.
_MOST = 4096
_LONGEST = 1024
# PluginInfo up to the version of the interface, and after it.
_HEAD = struct.Struct("=I4x")
_BODY = struct.Struct("=9Q")
# Texts, then functions that Triton calls.
_PASS, _DIALECT, _OP = struct.Struct("=4Q"), struct.Struct("=3Q"), struct.Struct("=2Q")


def read(address: int, report: Report) -> Report:
    """The report, with what the struct at ``address`` announces.

    Raises:
        Refused: it is not well-formed, or of another interface or release.
    """
    return _Reader(report).read(address)


class _Reader:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.executable = list(_executable())

    def read(self, address: int) -> Report:
        if not address:
            raise self.malformed("its entry point returns null")
        (api,) = _HEAD.unpack(self.memory(address, _HEAD.size, "the announcement"))
        self.report = replace(self.report, api=api)
        if api != API:
            raise Refused(
                Verdict.WRONG_API,
                f"it is written for version {api} of the plugin interface, Triton "
                f"{self.report.triton} has version {API}",
                self.report,
            )
        body = self.memory(address + _HEAD.size, _BODY.size, "the announcement")
        name, version, passes, p, dialects, d, ops, o, release = _BODY.unpack(body)
        name = self.text(name, "the plugin's name")
        version = self.text(version, "the plugin's version", is_optional=True)
        self.report = replace(self.report, name=name, version=version)
        self.check_release(release)
        found = self.items("passes", passes, p, _PASS, 2, "add_")
        self.report = replace(self.report, passes=tuple(Announced(*n) for n in found))
        found = self.items("dialects", dialects, d, _DIALECT, 1)
        self.report = replace(self.report, dialects=tuple(Announced(*n) for n in found))
        found = self.items("operations", ops, o, _OP, 1, "create_")
        return replace(self.report, ops=tuple(name for (name,) in found))

    def check_release(self, address: int) -> None:
        triton = self.report.triton
        if not address:
            raise Refused(
                Verdict.WRONG_RELEASE,
                f"it does not say for which release of Triton it was built (a null pointer); "
                f"this is {triton}",
                self.report,
            )
        release = self.text(address, "the Triton release")
        self.report = replace(self.report, release=release)
        check_release(release, self.report)

    def items(
        self,
        kind: str,
        start: int,
        count: int,
        layout: struct.Struct,
        functions: int,
        prefix: str = "",
    ) -> Iterator[list[str]]:
        """The texts of each item of a list, the last of whose words are ``functions``.

        Names have to differ without ``prefix``, too: see ``report.bound_names``.
        """
        if count > _MOST:
            raise self.malformed(f"it announces {count} {kind}")
        if count and not start:
            raise self.malformed(f"it announces {count} {kind}, and no list of them")
        seen: set[str] = set()
        for number in range(count):
            what = f"number {number + 1} of {count} {kind}"
            place = start + number * layout.size
            fields = layout.unpack(self.memory(place, layout.size, what))
            name_at, *versions = fields[:-functions]
            name = self.text(name_at, what)
            called, *registered = fields[-functions:]
            for call in [called, *filter(None, registered)]:  # a pass need not register itself
                if not any(call in r for r in self.executable):
                    raise self.malformed(f"{what}, {name!r}, is at {call:#x}, where no code is")
            if name.removeprefix(prefix) in seen:
                raise self.malformed(f"{name!r} is announced twice among its {kind}")
            seen.add(name.removeprefix(prefix))
            yield [name, *(self.text(v, what, is_optional=True) for v in versions)]

    def text(self, address: int, what: str, *, is_optional: bool = False) -> str:
        """A string that ends within reason and is UTF-8; not empty, unless it is optional."""
        if not address and is_optional:
            return ""
        if not address:
            raise self.malformed(f"{what} is a null pointer")
        data = b""
        while b"\0" not in data and len(data) < _LONGEST:
            at = address + len(data)
            data += self.memory(at, 256 - at % 256, what)
        raw, end, _ = data.partition(b"\0")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise self.malformed(f"{what} is not UTF-8: {raw[:32]!r}") from None
        if not (end and (text or is_optional) and text.isprintable()):
            raise self.malformed(f"{what} is no name: {text[:32]!r}")
        return text

    def memory(self, address: int, size: int, what: str) -> bytes:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            try:
                data = os.pread(memory.fileno(), size, address)
            except (OSError, OverflowError):
                data = b""
        if len(data) < size:
            raise self.malformed(f"{what}: nothing is at {address:#x}")
        return data

    def malformed(self, what: str) -> Refused:
        return Refused(Verdict.MALFORMED, f"what it announces is malformed: {what}", self.report)


def check_release(release: str, report: Report) -> None:
    """Refuse a library that was built for another release than ``report.triton``."""
    if _numbers(release) != _numbers(report.triton):
        what = f"it was built for Triton {release}, this is {report.triton}"
        raise Refused(Verdict.WRONG_RELEASE, what, report)


def _numbers(release: str) -> str:
    """The release without what a build adds: 3.8.0 of 3.8.0+gitc01b6774, as Triton has it."""
    match = re.match(r"\d+\.\d+\.\d+", release)
    return match[0] if match else release


def _executable() -> Iterator[range]:
    """Where code is in this process."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            places, permissions, *_ = line.split()
            if "x" in permissions:
                start, _, end = places.partition("-")
                yield range(int(start, 16), int(end, 16))
