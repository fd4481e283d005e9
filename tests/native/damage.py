"""Damaged copies of a native library, and what the probe says of each.

    python tests/native/damage.py --json benchmarks/results/native_damage_triton390.json

tries every one; ``test_damage.py`` a sample; ``--whole FOLDER`` reads every library
under a folder instead, none of which is damaged. A verdict "fine" is false unless a
fresh process loads the damaged copy and its pass does what the whole one's does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from remora.native.elf import SharedLibrary
from remora.native.probe import installed_triton, probe
from remora.native.report import Refused, Verdict

HEADER = 64
_PROGRAM_HEADER, _SECTION_HEADER = 56, 64
# Fields of a section header: offset and size.
_SECTION_FIELDS = [
    (0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 8), (56, 8),
]  # fmt: skip

# Loads a library, runs the pass that renames a function, and prints the module.
_USE = """
import sys
import remora
library = remora.load_native(sys.argv[1])
from remora.host.targets import context_of, gpu_target
from remora import host
from triton._C.libtriton import ir
context = context_of(gpu_target("cuda:90"))
module = host.parse_text("module { tt.func public @f() { tt.return } }", context)
manager = ir.pass_manager(context)
library.pass_("plugin", "7").add_to(manager)
manager.run(module, "")
print(host.generic_text(module, locations=False))
"""


def wheels_library() -> Path:
    """The test plugin of Triton's wheel with the pass that renames a function."""
    return installed_triton().library.parents[1] / "plugins" / "libTritonPluginsTestLib.so"


@dataclass(frozen=True)
class Damage:
    """What is done to a copy: bytes put in at a place, or all from there on cut off."""

    what: str
    at: int
    new: bytes | None = None

    def of(self, content: bytes) -> bytes:
        """The damaged copy."""
        if self.new is None:
            return content[: self.at]
        return content[: self.at] + self.new + content[self.at + len(self.new) :]


def variants(content: bytes) -> Iterator[Damage]:
    """Ways to damage a 64-bit library, each of which changes it."""
    sizes = {1 << power for power in range(len(content).bit_length())}
    for size in sorted({s + d for s in sizes for d in (-1, 0, 1)} | {len(content) - 1}):
        yield Damage(f"the first {size} bytes", size)
    yield from (d for d in _changes(content) if d.of(content) != content)


def _changes(content: bytes) -> Iterator[Damage]:
    (programs, sections) = struct.unpack_from("<QQ", content, 32)
    program_count, _, section_count = struct.unpack_from("<HHH", content, 56)
    for at in range(HEADER):
        yield from _changed(content, f"header byte {at}", at, 1)
    for at in range(programs, programs + program_count * _PROGRAM_HEADER):
        number, byte = divmod(at - programs, _PROGRAM_HEADER)
        yield from _changed(content, f"program header {number} byte {byte}", at, 1, (0xFF,))
    for number in range(section_count):
        for offset, size in _SECTION_FIELDS:
            at = sections + number * _SECTION_HEADER + offset
            what = f"section {number} field at {offset}"
            yield from _changed(content, what, at, size, (0xFF,))
    table = section_count * _SECTION_HEADER
    yield Damage("section table zeroed", sections, bytes(table))
    yield Damage("program headers zeroed", programs, bytes(program_count * _PROGRAM_HEADER))
    for start in range(0, len(content), 1 << 16):
        zeros = bytes(len(content[start : start + (1 << 16)]))
        yield Damage(f"64 KiB from {start} zeroed", start, zeros)


def _changed(
    content: bytes, what: str, at: int, size: int, masks: tuple[int, ...] = (0xFF, 0x01, 0x80)
) -> Iterator[Damage]:
    for mask in masks:
        new = bytes(b ^ mask for b in content[at : at + size])
        yield Damage(f"{what} ^ {mask:#x}", at, new)
    yield Damage(f"{what} zeroed", at, bytes(size))


def use(library: Path) -> str:
    """What a fresh process makes of a module with the library's pass; "" if it fails."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_PLUGIN_PATHS"}
    done = subprocess.run(
        [sys.executable, "-c", _USE, str(library)], capture_output=True, text=True, env=environment
    )
    return done.stdout if done.returncode == 0 else ""


def judge(damage: Damage, content: bytes, expected: str) -> tuple[str, str]:
    """The verdict on a copy, "false fine" for one that is wrong; and the sentence."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(damage.of(content))
        file.flush()
        report = probe(file.name, limit=60)
        if report.is_fine:
            works = use(Path(file.name)) == expected
            return "fine, and works" if works else "false fine", damage.what
        return report.verdict.value, f"{damage.what}: {report.what}"


def whole(folder: Path) -> Counter[str]:
    """Read the libraries under a folder that are for this machine, and print what is said."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.so*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 30 << 20:
            try:
                SharedLibrary(path)
                counts["whole"] += 1
            except Refused as refused:
                counts[refused.report.verdict.value] += 1
                if refused.report.verdict is Verdict.DAMAGED:
                    print(path, refused.report.what)
    print(dict(counts))
    return counts


def main() -> None:
    """Try every variant and print a summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--whole", type=Path)
    arguments = parser.parse_args()
    if arguments.whole:
        sys.exit(bool(whole(arguments.whole)["damaged"]))
    library = wheels_library()
    content, expected = library.read_bytes(), use(library)
    assert "foo_num_warps_7" in expected, expected
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(arguments.jobs) as pool:
        os.environ["XDG_CACHE_HOME"] = name
        tried = [pool.submit(judge, damage, content, expected) for damage in variants(content)]
        outcomes = [future.result() for future in tried]
    counts = Counter(verdict for verdict, _ in outcomes)
    result = {
        "command": "python " + " ".join(["tests/native/damage.py", *sys.argv[1:]]),
        "triton": installed_triton().release,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "library": library.name,
        "variants": len(outcomes),
        "seconds": round(time.perf_counter() - start, 1),
        "verdicts": dict(counts.most_common()),
        **{
            kind: [what for verdict, what in outcomes if verdict == kind]
            for kind in ("crashed", "hung", "fine, and works", "false fine")
        },
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    sys.exit(bool(result["false fine"]))


if __name__ == "__main__":
    main()
