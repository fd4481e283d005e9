"""Reads a shared library without loading it: what it needs, brings and announces."""

from __future__ import annotations

import io
import platform
import re
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from remora.native.report import Refused, Verdict
from remora.native.wholeness import check, damaged

ENTRY_POINT = "tritonGetPluginInfo"

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_HEADER = 64
_RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027}  # relocations to an address of the library's own


class SharedLibrary:
    """A shared library that is whole and for this machine.

    Raises:
        Refused: it is not.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        _check_identity(content)
        try:
            self._elf = ELFFile(io.BytesIO(content))
            check(self._elf, len(content))
            self._symbols = list(self._elf.get_section_by_name(".dynsym").iter_symbols())
        except Refused:
            raise
        except Exception as error:  # pyelftools raises whatever a damaged table leads to
            what = f"its tables cannot be read ({type(error).__name__}: {error})"
            raise damaged(what) from error

    def needed(self) -> list[str]:
        """The libraries that it names as needed."""
        dynamic: Any = self._elf.get_section_by_name(".dynamic")
        return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]

    def undefined(self) -> list[str]:
        """The symbols that others have to bring, by name."""
        return sorted(
            s.name
            for s in self._symbols
            if s["st_shndx"] == "SHN_UNDEF" and s.name and s["st_info"]["bind"] == "STB_GLOBAL"
        )

    def defines(self, name: str) -> bool:
        """Whether it exports a function."""
        return any(
            s.name == name and s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["type"] == "STT_FUNC"
            for s in self._symbols
        )

    def release(self) -> str | None:
        """The Triton release that it announces, where that can be read without running it.

        Many libraries hold their announcement as data: the struct's first words
        are relocated (name, version), and so is its last, the release.
        """
        relative = _RELATIVE[self._elf.header["e_machine"]]
        table: Any = self._elf.get_section_by_name(".rela.dyn")
        relocations = table.iter_relocations() if table is not None else ()
        found = {r["r_offset"]: r["r_addend"] for r in relocations if r["r_info_type"] == relative}
        for address in found:
            if address + 8 in found and address + 64 in found:
                text = self._text(found[address + 64])
                api = int.from_bytes(self._read(address - 8, 8), "little")
                named = self._text(found[address]) and self._text(found[address + 8])
                if named and re.fullmatch(r"\d+\.\d+\.\d+\S*", text) and 0 < api < 100:
                    return text
        return None

    def _read(self, address: int, size: int) -> bytes:
        for segment in self._elf.iter_segments("PT_LOAD"):
            start = segment["p_vaddr"]
            if 0 <= address - start < segment["p_filesz"]:
                self._elf.stream.seek(segment["p_offset"] + address - start)
                return self._elf.stream.read(size)
        return b""

    def _text(self, address: int) -> str:
        text = self._read(address, 256).partition(b"\0")[0].decode(errors="replace")
        return text if text.isprintable() else ""


def _check_identity(content: bytes) -> None:
    """Refuse what is no ELF file, or one for another machine, by its first bytes."""
    if not content.startswith(b"\x7fELF"):
        begins = f"begins with {content[:4]!r}" if content else "is empty"
        raise Refused(Verdict.NOT_ELF, f"it is not an ELF file: it {begins}")
    if len(content) < _HEADER:
        raise damaged(f"its header ends at byte {len(content)}")
    kind, order, version, system = content[4:8]
    machine = platform.machine()
    if kind == 1 or order == 2:
        bits = "32-bit" if kind == 1 else "big-endian"
        raise Refused(Verdict.WRONG_ARCHITECTURE, f"it is a {bits} library, this is {machine}")
    if (kind, order, version) != (2, 1, 1) or system not in (0, 3) or any(content[8:16]):
        raise damaged("its first bytes are not those of a library")
    actual = ELFFile(io.BytesIO(content)).header["e_machine"]
    if actual != _MACHINES.get(machine):
        name = actual.removeprefix("EM_") if isinstance(actual, str) else f"number {actual}"
        raise Refused(Verdict.WRONG_ARCHITECTURE, f"it is for {name}, this machine is {machine}")
