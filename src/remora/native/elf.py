"""Reads a shared library without loading it: is it whole, for this machine, a plugin?

The dynamic loader maps what a damaged file says, and crashes. So every header
is held against what the ELF specification allows, the tables against the
file's size, and the section table against what the loader goes by.
"""

from __future__ import annotations

import io
import platform
import re
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from remora.native.report import Refused, Verdict

ENTRY_POINT = "tritonGetPluginInfo"

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_HEADER = 64
_RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027}  # relocations to an address of the library's own
# Dynamic entries, and the section that each has to agree with: by address, by size.
_ADDRESSES = {
    "DT_SYMTAB": ".dynsym", "DT_STRTAB": ".dynstr", "DT_RELA": ".rela.dyn",
    "DT_JMPREL": ".rela.plt", "DT_GNU_HASH": ".gnu.hash", "DT_HASH": ".hash",
    "DT_VERSYM": ".gnu.version", "DT_VERNEED": ".gnu.version_r", "DT_VERDEF": ".gnu.version_d",
    "DT_INIT_ARRAY": ".init_array", "DT_FINI_ARRAY": ".fini_array",
    "DT_INIT": ".init", "DT_FINI": ".fini",
}  # fmt: skip
_SIZES = {
    "DT_STRSZ": ".dynstr", "DT_RELASZ": ".rela.dyn", "DT_PLTRELSZ": ".rela.plt",
    "DT_INIT_ARRAYSZ": ".init_array", "DT_FINI_ARRAYSZ": ".fini_array",
}  # fmt: skip
_ENTRY_SIZES = {"SHT_SYMTAB": 24, "SHT_DYNSYM": 24, "SHT_RELA": 24, "SHT_DYNAMIC": 16}
_ALLOCATED = 2  # SHF_ALLOC
_THREAD_LOCAL = 0x400  # SHF_TLS


class SharedLibrary:
    """A shared library that is whole and for this machine.

    Raises:
        Refused: it is not.
    """

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self._size = len(content)
        _check_identity(content)
        try:
            self._elf = ELFFile(io.BytesIO(content))
            self._check()
        except Refused:
            raise
        except Exception as error:  # pyelftools raises whatever a damaged table leads to
            raise _damaged(
                f"its tables cannot be read ({type(error).__name__}: {error})"
            ) from error

    def _check(self) -> None:
        header = self._elf.header
        _demand(header["e_type"] == "ET_DYN", f"it is no shared library ({header['e_type']})")
        sizes = (header["e_ehsize"], header["e_phentsize"], header["e_shentsize"])
        _demand(sizes == (_HEADER, 56, 64), f"its header gives the sizes {sizes}")
        _demand(header["e_version"] == "EV_CURRENT", "its header has another version")
        if header["e_machine"] == "EM_X86_64":
            _demand(header["e_flags"] == 0, "its header has flags")
        self._fits("the program headers", header["e_phoff"], header["e_phnum"] * 56)
        self._fits("the section table", header["e_shoff"], header["e_shnum"] * 64)
        _demand(header["e_phnum"] > 0, "it has no program headers")
        _demand(
            header["e_shoff"] >= _HEADER and 0 < header["e_shstrndx"] < header["e_shnum"],
            "it has no section table to hold the rest against",
        )
        self._loads = self._check_segments()
        self._sections = self._check_sections()
        self._dynamic = self._check_dynamic()

    def _fits(self, what: str, offset: int, size: int) -> None:
        _demand(
            offset + size <= self._size,
            f"{what} end at byte {offset + size}, the file at {self._size}",
        )

    def _check_segments(self) -> list[Any]:
        """The segments that are loaded."""
        loads: list[Any] = []
        headers = [segment.header for segment in self._elf.iter_segments()]
        for number, header in enumerate(headers):
            what = f"segment {number}"
            self._fits(what, header["p_offset"], header["p_filesz"])
            align = header["p_align"]
            _demand(isinstance(header["p_type"], str), f"{what} is of an unknown type")
            _demand(header["p_flags"] <= 7, f"{what} has unknown flags")
            _demand(align & (align - 1) == 0, f"{what} is aligned to {align}")
            _demand(header["p_paddr"] == header["p_vaddr"], f"{what} has two addresses")
            if header["p_type"] != "PT_LOAD":
                continue
            shift = header["p_vaddr"] - header["p_offset"]
            _demand(
                0 < header["p_filesz"] <= header["p_memsz"] < 1 << 32
                and align >= 4096
                and shift % align == 0,
                f"{what} cannot be mapped",
            )
            end = loads[-1]["p_vaddr"] + loads[-1]["p_memsz"] if loads else 0
            _demand(end <= header["p_vaddr"] < 1 << 40, f"{what} overlaps another")
            loads.append(header)
        for number, header in enumerate(headers):
            if header["p_memsz"] and header["p_type"] not in ("PT_LOAD", "PT_GNU_STACK"):
                _demand(
                    any(_is_within(header, load, "p_") for load in loads),
                    f"segment {number} ({header['p_type']}) lies outside what is loaded",
                )
        _demand(bool(loads), "nothing of it is loaded")
        return loads

    def _check_sections(self) -> dict[str, Any]:
        """The sections' headers, by their names."""
        found: dict[str, Any] = {}
        count = self._elf.header["e_shnum"]
        names = self._elf.get_section(self._elf.header["e_shstrndx"])
        _demand(names.header["sh_type"] == "SHT_STRTAB", "its sections have no names")
        for number, section in enumerate(self._elf.iter_sections()):
            header, what = section.header, f"section {number}"
            kind, align = header["sh_type"], header["sh_addralign"]
            if number == 0:
                _demand(kind == "SHT_NULL", f"{what} is not empty")
                continue
            _demand(isinstance(kind, str) and kind != "SHT_NULL", f"{what} is of an unknown type")
            _demand(header["sh_link"] < count, f"{what} belongs to a section that there is not")
            _demand(
                header["sh_name"] < names.header["sh_size"] and section.name.startswith("."),
                f"{what} has no name",
            )
            _demand(align & (align - 1) == 0, f"{what} is aligned to {align}")
            _demand(
                header["sh_entsize"] == _ENTRY_SIZES.get(kind, header["sh_entsize"]),
                f"{what} has entries of {header['sh_entsize']} bytes",
            )
            if kind != "SHT_NOBITS":
                self._fits(what, header["sh_offset"], header["sh_size"])
            if header["sh_flags"] & _ALLOCATED and not (
                kind == "SHT_NOBITS" and header["sh_flags"] & _THREAD_LOCAL
            ):
                _demand(
                    any(_is_within(header, load, "sh_") for load in self._loads),
                    f"{what} ({section.name}) lies outside what is loaded",
                )
            _demand(section.name not in found, f"two sections are named {section.name}")
            found[section.name] = header
        return found

    def _check_dynamic(self) -> Any:
        """The dynamic section, which the loader goes by."""
        dynamic = self._elf.get_section_by_name(".dynamic")
        symbols = self._elf.get_section_by_name(".dynsym")
        segments = [s.header for s in self._elf.iter_segments("PT_DYNAMIC")]
        _demand(dynamic is not None and symbols is not None, "it has no dynamic symbols")
        _demand(
            len(segments) == 1
            and (segments[0]["p_vaddr"], segments[0]["p_filesz"])
            == (dynamic.header["sh_addr"], dynamic.header["sh_size"]),
            "its program headers and its section table disagree on the dynamic section",
        )
        tags = {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}
        _demand("DT_NULL" in tags, "its dynamic section has no end")
        for table, key in ((_ADDRESSES, "sh_addr"), (_SIZES, "sh_size")):
            for tag, name in table.items():
                section = self._sections.get(name)
                _demand(
                    (tag in tags) == (section is not None)
                    and (section is None or section[key] == tags[tag]),
                    f"its dynamic section and its section table disagree on {name}",
                )
        return dynamic

    def needed(self) -> list[str]:
        """The libraries that it names as needed."""
        return [tag.needed for tag in self._dynamic.iter_tags("DT_NEEDED")]

    def undefined(self) -> list[str]:
        """The symbols that others have to bring."""
        return [
            s.name
            for s in self._symbols()
            if s["st_shndx"] == "SHN_UNDEF" and s.name and s["st_info"]["bind"] == "STB_GLOBAL"
        ]

    def defines(self, name: str) -> bool:
        """Whether it exports a function."""
        return any(
            s.name == name and s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["type"] == "STT_FUNC"
            for s in self._symbols()
        )

    def _symbols(self) -> Any:
        return self._elf.get_section_by_name(".dynsym").iter_symbols()

    def release(self) -> str | None:
        """The Triton release that it announces, where that can be read without running it.

        Many libraries hold their announcement as data: the struct's first words
        are relocated (name, version), and so is its last, the release.
        """
        relative = _RELATIVE[self._elf.header["e_machine"]]
        table = self._elf.get_section_by_name(".rela.dyn")
        found = (
            {r["r_offset"]: r["r_addend"] for r in table.iter_relocations()
             if r["r_info_type"] == relative}
            if table is not None
            else {}
        )  # fmt: skip
        for address in found:
            if address + 8 in found and address + 64 in found:
                text = self._text(found[address + 64])
                api = int.from_bytes(self._read(address - 8, 8), "little")
                named = self._text(found[address]) and self._text(found[address + 8])
                if named and re.fullmatch(r"\d+\.\d+\.\d+\S*", text) and 0 < api < 100:
                    return text
        return None

    def _read(self, address: int, size: int) -> bytes:
        for load in self._loads:
            if 0 <= address - load["p_vaddr"] < load["p_filesz"]:
                self._elf.stream.seek(load["p_offset"] + address - load["p_vaddr"])
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
        raise _damaged(f"its header ends at byte {len(content)}")
    kind, order, version, system = content[4:8]
    machine = platform.machine()
    if kind == 1 or order == 2:
        bits = "32-bit" if kind == 1 else "big-endian"
        raise Refused(Verdict.WRONG_ARCHITECTURE, f"it is a {bits} library, this is {machine}")
    _demand(
        (kind, order, version) == (2, 1, 1) and system in (0, 3) and not any(content[8:16]),
        "its first bytes are not those of a library",
    )
    wanted = _MACHINES.get(machine, "")
    try:
        actual = ELFFile(io.BytesIO(content)).header["e_machine"]
    except Exception as error:
        raise _damaged(f"its header cannot be read ({error})") from error
    if actual != wanted:
        name = actual.removeprefix("EM_") if isinstance(actual, str) else f"number {actual}"
        raise Refused(Verdict.WRONG_ARCHITECTURE, f"it is for {name}, this machine is {machine}")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise _damaged(what)


def _damaged(what: str) -> Refused:
    return Refused(Verdict.DAMAGED, f"the file is damaged: {what}")


def _is_within(part: Any, load: Any, prefix: str) -> bool:
    """Whether a segment or section lies in a loaded segment, in memory and in the file."""
    where, size = ("p_vaddr", "p_memsz") if prefix == "p_" else ("sh_addr", "sh_size")
    in_file = part.get("sh_type") != "SHT_NOBITS"
    shift = part[where] - load["p_vaddr"]
    return shift >= 0 and shift + part[size] <= load["p_memsz"] and (
        not in_file or part[f"{prefix}offset"] - load["p_offset"] == shift
    )  # fmt: skip
