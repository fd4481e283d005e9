"""Whether a shared library is whole.

The dynamic loader maps what a damaged file says, and crashes. So every header
is held against what the ELF specification allows, the tables against the
file's size, and the section table against what the loader goes by.
"""

from __future__ import annotations

from typing import Any

from elftools.elf.elffile import ELFFile

from remora.native.report import Refused, Verdict

# Dynamic entries, and the section that each has to agree with: by address, by size.
_ADDRESSES = {
    "DT_SYMTAB": ".dynsym", "DT_STRTAB": ".dynstr", "DT_RELA": ".rela.dyn",
    "DT_JMPREL": ".rela.plt", "DT_GNU_HASH": ".gnu.hash", "DT_HASH": ".hash",
    "DT_VERSYM": ".gnu.version", "DT_VERNEED": ".gnu.version_r", "DT_VERDEF": ".gnu.version_d",
    "DT_INIT_ARRAY": ".init_array", "DT_FINI_ARRAY": ".fini_array",
}  # fmt: skip
_SIZES = {
    "DT_STRSZ": ".dynstr", "DT_RELASZ": ".rela.dyn", "DT_PLTRELSZ": ".rela.plt",
    "DT_INIT_ARRAYSZ": ".init_array", "DT_FINI_ARRAYSZ": ".fini_array",
}  # fmt: skip
# Kinds of sections with entries: their size, and the kind of the section that they belong to.
_ENTRY_SIZES = {"SHT_SYMTAB": 24, "SHT_DYNSYM": 24, "SHT_RELA": 24, "SHT_DYNAMIC": 16}
_LINKED = {
    "SHT_SYMTAB": "SHT_STRTAB", "SHT_DYNSYM": "SHT_STRTAB", "SHT_DYNAMIC": "SHT_STRTAB",
    "SHT_RELA": "SHT_DYNSYM", "SHT_HASH": "SHT_DYNSYM", "SHT_GNU_HASH": "SHT_DYNSYM",
    "SHT_GNU_versym": "SHT_DYNSYM", "SHT_GNU_verneed": "SHT_STRTAB",
}  # fmt: skip
_PLAIN = ("SHT_PROGBITS", "SHT_NOBITS", "SHT_STRTAB", "SHT_NOTE")
# Flags of sections (SHF_) and segments (PF_).
_WRITTEN, _ALLOCATED, _EXECUTED, _ORDERED, _THREAD_LOCAL = 1, 2, 4, 0x80, 0x400
_KNOWN_FLAGS = 0x7 | 0x70 | _ORDERED | 0x200 | _THREAD_LOCAL | 0x800 | 0x200000 | 0x10000000
_PF_X, _PF_W, _PF_R = 1, 2, 4


def check(elf: ELFFile, size: int) -> None:
    """Check an ELF file of so many bytes.

    Raises:
        Refused: it is damaged, or no shared library.
    """
    checked = _Library(elf, size)
    checked.header()
    checked.segments()
    checked.sections()
    checked.dynamic()


def damaged(what: str) -> Refused:
    """The refusal of a file that contradicts itself."""
    return Refused(Verdict.DAMAGED, f"the file is damaged: {what}")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise damaged(what)


class _Library:
    def __init__(self, elf: ELFFile, size: int) -> None:
        self.elf = elf
        self.size = size
        self.loads: list[Any] = []
        self.by_name: dict[str, Any] = {}

    def header(self) -> None:
        header = self.elf.header
        _demand(header["e_type"] == "ET_DYN", f"it is no shared library ({header['e_type']})")
        sizes = (header["e_ehsize"], header["e_phentsize"], header["e_shentsize"])
        _demand(sizes == (64, 56, 64), f"its header gives the sizes {sizes}")
        _demand(header["e_version"] == "EV_CURRENT", "its header has another version")
        if header["e_machine"] == "EM_X86_64":
            _demand(header["e_flags"] == 0, "its header has flags")
        self.fits("the program headers", header["e_phoff"], header["e_phnum"] * 56)
        self.fits("the section table", header["e_shoff"], header["e_shnum"] * 64)
        _demand(header["e_phnum"] > 0, "it has no program headers")
        _demand(
            header["e_shoff"] >= 64 and 0 < header["e_shstrndx"] < header["e_shnum"],
            "it has no section table to hold the rest against",
        )

    def fits(self, what: str, offset: int, size: int) -> None:
        end = offset + size
        _demand(end <= self.size, f"{what} end at byte {end}, the file at {self.size}")

    def segments(self) -> None:
        headers = [segment.header for segment in self.elf.iter_segments()]
        for number, header in enumerate(headers):
            what, kind, align = f"segment {number}", header["p_type"], header["p_align"]
            self.fits(what, header["p_offset"], header["p_filesz"])
            _demand(isinstance(kind, str) and kind != "PT_NULL", f"{what} is of an unknown type")
            _demand(_PF_R <= header["p_flags"] <= 7, f"{what} has the flags {header['p_flags']}")
            _demand(align & (align - 1) == 0, f"{what} is aligned to {align}")
            _demand(header["p_paddr"] == header["p_vaddr"], f"{what} has two addresses")
            if kind == "PT_LOAD":
                self.load(what, header)
        _demand(bool(self.loads), "nothing of it is loaded")
        for number, header in enumerate(headers):
            kind = header["p_type"]
            if kind == "PT_GNU_STACK":
                _demand(header["p_filesz"] == header["p_offset"] == 0, "its stack is in the file")
            elif kind not in ("PT_LOAD", "PT_TLS", "PT_GNU_RELRO") and header["p_memsz"]:
                _demand(
                    any(_is_within(header, load, "p_", "memsz") for load in self.loads),
                    f"segment {number} ({kind}) lies outside what is loaded",
                )
        entry = self.elf.header["e_entry"]
        executed = [load for load in self.loads if load["p_flags"] & _PF_X]
        _demand(
            entry == 0 or any(0 <= entry - s["p_vaddr"] < s["p_memsz"] for s in executed),
            "it starts where no code is",
        )

    def load(self, what: str, header: Any) -> None:
        """Check a segment that is loaded: it can be mapped, after those before it."""
        align = header["p_align"]
        _demand(
            0 < header["p_filesz"] <= header["p_memsz"] < 1 << 32
            and align >= 4096
            and (header["p_vaddr"] - header["p_offset"]) % align == 0,
            f"{what} cannot be mapped",
        )
        end = self.loads[-1]["p_vaddr"] + self.loads[-1]["p_memsz"] if self.loads else 0
        _demand(end <= header["p_vaddr"] < 1 << 40, f"{what} overlaps another")
        self.loads.append(header)

    def sections(self) -> None:
        names = self.elf.get_section(self.elf.header["e_shstrndx"])
        _demand(names.header["sh_type"] == "SHT_STRTAB", "its sections have no names")
        first, *others = self.elf.iter_sections()
        fields = {k: v for k, v in first.header.items() if k != "sh_type"}
        _demand(first.header["sh_type"] == "SHT_NULL", "section 0 is not empty")
        _demand(not any(fields.values()), "section 0 is not empty")
        for number, section in enumerate(others, 1):
            what, header = f"section {number}", section.header
            _demand(
                header["sh_name"] < names.header["sh_size"] and bool(section.name),
                f"{what} has no name",
            )
            _demand(section.name not in self.by_name, f"two sections are named {section.name}")
            self.by_name[section.name] = header
            self.section(f"{what} ({section.name})", header)

    def section(self, what: str, header: Any) -> None:
        kind, flags, align = header["sh_type"], header["sh_flags"], header["sh_addralign"]
        _demand(isinstance(kind, str) and kind != "SHT_NULL", f"{what} is of an unknown type")
        _demand(flags & ~_KNOWN_FLAGS == 0, f"{what} has unknown flags")
        _demand(align & (align - 1) == 0, f"{what} is aligned to {align}")
        entry = header["sh_entsize"]
        _demand(entry == _ENTRY_SIZES.get(kind, entry), f"{what} has entries of {entry} bytes")
        self.link(what, header)
        if kind != "SHT_NOBITS":
            self.fits(what, header["sh_offset"], header["sh_size"])
        if flags & _ALLOCATED:
            self.allocated(what, header)
        else:
            start, end = header["sh_offset"], header["sh_offset"] + header["sh_size"]
            for load in self.loads:
                outside = end <= load["p_offset"] or load["p_offset"] + load["p_filesz"] <= start
                _demand(
                    outside or start == end or kind == "SHT_NOBITS",
                    f"{what} is not loaded, and lies in what is",
                )

    def link(self, what: str, header: Any) -> None:
        """Check which other section a section belongs to."""
        kind, link = header["sh_type"], header["sh_link"]
        _demand(link < self.elf.header["e_shnum"], f"{what} belongs to a section that is not there")
        if kind in _PLAIN:
            ordered = header["sh_flags"] & _ORDERED
            _demand(link == 0 or bool(ordered), f"{what} belongs to another section")
            _demand(header["sh_info"] == 0, f"{what} has information")
        elif kind in _LINKED and header["sh_flags"] & _ALLOCATED:
            wanted = self.elf.get_section(link).header["sh_type"]
            _demand(wanted == _LINKED[kind], f"{what} belongs to another kind of section")

    def allocated(self, what: str, header: Any) -> None:
        """Check a section that is loaded: it lies in a segment that has its rights."""
        flags = header["sh_flags"]
        in_file = header["sh_type"] != "SHT_NOBITS"
        if not in_file and flags & _THREAD_LOCAL:
            return
        size = "filesz" if in_file else "memsz"
        homes = [load for load in self.loads if _is_within(header, load, "sh_", size)]
        _demand(bool(homes), f"{what} lies outside what is loaded")
        home = homes[0]
        _demand(
            (not flags & _EXECUTED or bool(home["p_flags"] & _PF_X))
            and (not flags & _WRITTEN or bool(home["p_flags"] & _PF_W)),
            f"{what} has other rights than its segment",
        )
        if not in_file and header["sh_size"]:
            _demand(header["sh_addr"] - home["p_vaddr"] >= home["p_filesz"], f"{what} is not zero")

    def dynamic(self) -> None:
        """Check the dynamic section, which the loader goes by."""
        dynamic: Any = self.elf.get_section_by_name(".dynamic")
        segments = [s.header for s in self.elf.iter_segments("PT_DYNAMIC")]
        _demand(dynamic is not None and ".dynsym" in self.by_name, "it has no dynamic symbols")
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
                section = self.by_name.get(name)
                _demand(
                    tag not in tags or (section is not None and section[key] == tags[tag]),
                    f"its dynamic section and its section table disagree on {name}",
                )


def _is_within(part: Any, load: Any, prefix: str, size: str) -> bool:
    """Whether a segment or section lies in a loaded segment, in memory and in the file."""
    address, length = ("p_vaddr", "p_memsz") if prefix == "p_" else ("sh_addr", "sh_size")
    shift = part[address] - load["p_vaddr"]
    in_file = part.get("sh_type") != "SHT_NOBITS"
    return (
        shift >= 0
        and shift + part[length] <= load[f"p_{size}"]
        and (not in_file or part[f"{prefix}offset"] - load["p_offset"] == shift)
    )
