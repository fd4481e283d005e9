"""Every verdict, over a library that announces itself in every way, and over other files."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from native.building import RELEASE, build, wheels

from remora import errors
from remora.host import features
from remora.native.loading import load_native
from remora.native.probe import probe
from remora.native.report import Announced, Report, Verdict

FINE = {
    "as it should be": {},
    "null lists": {
        "passes": "NULL", "pass_count": "0", "ops": "NULL", "op_count": "0",
    },
    "no null lists, and nothing in them": {"pass_count": "0", "op_count": "0"},
    "a dialect": {"dialects": "dialects", "dialect_count": "1"},
    "prints a report of its own": {"entry": r'puts("{\"report\": {}}"); fflush(stdout)'},
    "writes to every file": {"entry": r'for (int i = 1; i < 64; i++) write(i, "{\"is_", 5)'},
    "no versions": {
        "version": "NULL", "pass": '{"plain_pass", "", (void *)nothing, nothing}',
    },
    "does not register its pass": {"pass": '{"plain_pass", "1.0", (void *)nothing, NULL}'},
    "is of a build of the release": {"release": f'"{RELEASE}+git1234567"'},
}  # fmt: skip
REFUSED = {
    # What it announces, and the verdict with words of its sentence.
    "API version 1": ({"api": "1"}, Verdict.WRONG_API, "version 1 of the plugin interface"),
    "API version 3": ({"api": "3"}, Verdict.WRONG_API, "version 3 of the plugin interface"),
    "no Triton version": ({"release": "NULL"}, Verdict.WRONG_RELEASE, "a null pointer"),
    "another release": (
        {"release": '"1.2.3"'}, Verdict.WRONG_RELEASE, f"Triton 1.2.3, this is {RELEASE}"),
    "a release that is none": ({"release": '"new"'}, Verdict.WRONG_RELEASE, "built for Triton new"),
    "a release that only running it shows": (
        {"release": "NULL", "entry": 'info.release = "2.0.0"'}, Verdict.WRONG_RELEASE, "2.0.0"),
    "a release not UTF-8": (
        {"release": r'"\xff"'}, Verdict.MALFORMED, r"not UTF-8: b'\xff'"),
    "no name": ({"name": "NULL"}, Verdict.MALFORMED, "plugin's name is a null pointer"),
    "an empty name": ({"name": '""'}, Verdict.MALFORMED, "plugin's name is no name"),
    "a name not UTF-8": ({"name": r'"\xc3("'}, Verdict.MALFORMED, r"not UTF-8: b'\xc3('"),
    "a name without an end": (
        {"name": "endless", "load": "for (int i = 0; i < 2048; i++) endless[i] = 'a'"},
        Verdict.MALFORMED, "plugin's name is no name: 'aaaa"),
    "a name that leads nowhere": ({"name": "(char *)16"}, Verdict.MALFORMED, "nothing is at 0x10"),
    "a list that is null": ({"passes": "NULL"}, Verdict.MALFORMED, "1 passes, and no list"),
    "a list that leads nowhere": (
        {"ops": "(void *)16"}, Verdict.MALFORMED, "number 1 of 1 operations: nothing is at"),
    "a count too high by one": (
        {"pass_count": "2"}, Verdict.MALFORMED, "number 2 of 2 passes is a null pointer"),
    "a count of a million": ({"op_count": "1000000"}, Verdict.MALFORMED, "1000000 operations"),
    "a count below zero": ({"dialect_count": "(size_t)-1"}, Verdict.MALFORMED, "dialects"),
    "a pass without a name": (
        {"pass": '{NULL, "1", (void *)nothing, nothing}'}, Verdict.MALFORMED, "1 of 1 passes"),
    "a pass not UTF-8": (
        {"pass": r'{"p\xe9", "1", (void *)nothing, nothing}'}, Verdict.MALFORMED, "not UTF-8"),
    "a pass without a function": (
        {"pass": '{"p", "1", NULL, nothing}'}, Verdict.MALFORMED, "'p', is at 0x0, where no code"),
    "a pass whose function is none": (
        {"pass": '{"p", "1", (void *)&info, nothing}'}, Verdict.MALFORMED, "where no code is"),
    "a pass twice": (
        {"pass": '{"p", "1", (void *)nothing, nothing}, {"p", "1", (void *)nothing, nothing}',
         "pass_count": "2"}, Verdict.MALFORMED, "'p' is announced twice"),
    "an operation without a function": (
        {"op": '{"o", NULL}'}, Verdict.MALFORMED, "'o', is at 0x0"),
    "an operation twice, by its one spelling": (
        {"op": '{"create_o", (void *)nothing}, {"o", (void *)nothing}', "op_count": "2"},
        Verdict.MALFORMED, "'o' is announced twice"),
    "an operation of Triton's own": (
        {"op": '{"load", (void *)nothing}' if features().explicit_native_plugins
         else '{"create_load", (void *)nothing}'},
        Verdict.MALFORMED, "would hide create_load, which Triton has itself"),
    # What its entry point does.
    "returns null": ({"entry": "return NULL"}, Verdict.MALFORMED, "entry point returns null"),
    "returns what is nowhere": (
        {"entry": "return (void *)16"}, Verdict.MALFORMED, "nothing is at 0x10"),
    "raises a signal": ({"entry": "raise(SIGTERM)"}, Verdict.CRASHED, "with SIGTERM"),
    "raises a C++ exception": (
        {"entry": '_ZSt20__throw_length_errorPKc("no")'}, Verdict.CRASHED, "with SIGABRT"),
    "exits": ({"entry": "exit(3)"}, Verdict.CRASHED, "by exit(3), while in tritonGetPluginInfo"),
    "exits as if all were well": ({"entry": "_exit(0)"}, Verdict.CRASHED, "by exit(0)"),
    "writes to null": ({"entry": "*(volatile int *)0 = 1"}, Verdict.CRASHED, "with SIGSEGV"),
    "aborts": ({"entry": "abort()"}, Verdict.CRASHED, "with SIGABRT"),
    "raises a real-time signal": ({"entry": "raise(40)"}, Verdict.CRASHED, "with signal 40"),
    "is killed": ({"entry": "kill(getpid(), SIGKILL)"}, Verdict.CRASHED, "with SIGKILL"),
    "closes every file": (
        {"entry": "for (int i = 0; i < 1024; i++) close(i)"}, Verdict.CRASHED, "by exit(1)"),
    "crashes while it is loaded": ({"load": "abort()"}, Verdict.CRASHED, "while being loaded"),
    "crashes when Triton loads it": (
        {"dialects": "dialects", "dialect_count": "1", "register_": "abort"},
        Verdict.CRASHED, "while being loaded by Triton"),
    "crashes at the end": ({"entry": "atexit(abort)"}, Verdict.CRASHED, "while ending the process"),
    "loops": ({"entry": "for (;;)"}, Verdict.HUNG, "not return within 5 s while in triton"),
    "waits": ({"entry": "for (;;) pause()"}, Verdict.HUNG, "not return within 2 s"),
    "loops while it is loaded": ({"load": "for (;;)"}, Verdict.HUNG, "not return within 2 s"),
    # What it is.
    "no entry point": ({"symbol": "other"}, Verdict.NO_ENTRY_POINT, "tritonGetPluginInfo"),
    "a symbol that is nowhere": (
        {"load": "extern void nowhere_1(); extern void nowhere_2(); nowhere_1(); nowhere_2()"},
        Verdict.UNRESOLVED, "it needs nowhere_1, nowhere_2, which neither"),
    "a symbol of a library that it does not name": (
        {"load": '_ZSt20__throw_length_errorPKc("no")'},
        Verdict.UNRESOLVED, "std::__throw_length_error(char const*)"),
    "a C++ symbol that is nowhere": (
        {"load": "extern void _ZN4mlir3fooEv(); _ZN4mlir3fooEv()"},
        Verdict.UNRESOLVED, "mlir::foo()"),
}  # fmt: skip


def tried(path: Path) -> Report:
    """What the probe says; the library is not in this process afterwards."""
    report = probe(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert bool(report.what) != report.is_fine
    return report


@pytest.mark.parametrize("form", FINE)
def test_fine(form):
    report = tried(build(**FINE[form]))
    assert (report.verdict, report.what) == (Verdict.FINE, "")
    version = "" if form == "no versions" else "1.0"
    assert (report.api, report.name, report.version) == (2, "Plain", version)
    assert report.release.startswith(RELEASE)
    if form == "as it should be":
        assert report.passes == (Announced("plain_pass", "1.0"),)
        assert report.ops == ("plain_op",)
        assert report.dialects == ()


@pytest.mark.parametrize("form", REFUSED)
def test_refused(form):
    defines, verdict, words = REFUSED[form]
    limit = 30 if verdict is not Verdict.HUNG else 5 if form == "loops" else 2
    path = build(*(["-l:libstdc++.so.6"] if "C++ exception" in form else []), **defines)
    report = probe(path, limit=limit)
    assert (report.verdict, words in report.what) == (verdict, True), report
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    "form", ["crashes when Triton loads it", "crashes at the end", "a count of a million"]
)
def test_what_was_known_by_then_is_kept(form):
    report = tried(build(**REFUSED[form][0]))
    assert (report.name, report.release, report.api) == ("Plain", RELEASE, 2)


def test_no_process_stays_behind():
    path = build(entry="if (!fork()) for (;;) pause()")
    assert tried(path).is_fine
    deadline = time.monotonic() + 10  # a process that was killed takes a moment to end
    while users(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not users(path)


def users(path: Path) -> list[str]:
    """The processes of this machine that a library is loaded into."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # a process that ended meanwhile
            if str(path) in maps.read_text():
                found.append(maps.parent.name)
    return found


def test_a_library_that_is_gone(tmp_path):
    other = build(symbol="other")
    gone = tmp_path / "libgone.so"
    gone.write_bytes(other.read_bytes())
    path = build(f"-L{tmp_path}", "-Wl,--no-as-needed", "-lgone", entry=f"/*{os.getpid()}*/")
    gone.unlink()
    report = tried(path)
    assert (report.verdict, report.unresolved) == (Verdict.UNRESOLVED, ("libgone.so",))


def data_entry(folder: Path) -> Path:
    """A library whose entry point is a variable."""
    path = folder / "data.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input="int tritonGetPluginInfo = 1;", text=True, check=True)
    return path


def object_file(folder: Path) -> Path:
    path = folder / "library.o"
    subprocess.run(["cc", "-c", "-x", "c", "-", "-o", str(path)], input="", text=True, check=True)
    return path


def patched(folder: Path, at: int, value: bytes) -> Path:
    """A fine library with some bytes changed."""
    content = build().read_bytes()
    path = folder / "patched.so"
    path.write_bytes(content[:at] + value + content[at + len(value) :])
    return path


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file.so"
    path.write_bytes(content)
    return path


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.so")
    return folder / "pipe.so"


FILES = {
    "nothing": (lambda f: f / "none.so", Verdict.UNREADABLE, "No such file"),
    "a folder": (lambda f: f, Verdict.UNREADABLE, "no file"),
    "a pipe": (fifo, Verdict.UNREADABLE, "no file"),
    "an empty file": (lambda f: written(f, b""), Verdict.NOT_ELF, "is empty"),
    "a text": (lambda f: written(f, b"#!/bin/sh\n"), Verdict.NOT_ELF, "begins with b'#!/b'"),
    "an archive": (lambda f: written(f, b"!<arch>\n"), Verdict.NOT_ELF, "begins with"),
    "four bytes": (lambda f: written(f, b"\x7fELF"), Verdict.DAMAGED, "header ends at byte 4"),
    "32 bits": (lambda f: patched(f, 4, b"\1"), Verdict.WRONG_ARCHITECTURE, "32-bit"),
    "big-endian": (lambda f: patched(f, 5, b"\2"), Verdict.WRONG_ARCHITECTURE, "big-endian"),
    "RISC-V": (lambda f: patched(f, 18, b"\xf3\0"), Verdict.WRONG_ARCHITECTURE, "for RISCV"),
    "an object file": (object_file, Verdict.DAMAGED, "no shared library (ET_REL)"),
    "a program": (lambda f: Path("/bin/ls"), Verdict.NO_ENTRY_POINT, "does not export"),
    "data for an entry point": (data_entry, Verdict.NO_ENTRY_POINT, "does not export"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files(kind, tmp_path):
    make, verdict, words = FILES[kind]
    report = tried(make(tmp_path))
    assert (report.verdict, words in report.what) == (verdict, True), report


@pytest.mark.parametrize(
    ("name", "plugin", "passes"),
    [
        ("TritonPluginsTestLib", "TritonPlugin", ("plugin",)),
        ("MLIRDialectPlugin", "DialectPlugin", ("plugingpu_conversion",)),
    ],
)
def test_the_wheels_own(name, plugin, passes):
    report = tried(wheels(name))
    assert (report.verdict, report.name, report.release) == (Verdict.FINE, plugin, RELEASE)
    assert tuple(p.name.removeprefix("add_") for p in report.passes) == passes


ERRORS = {
    "nothing": (lambda f: f / "none.so", errors.NativeUnreadable, "check the path"),
    "a text": (lambda f: written(f, b"text"), errors.NativeNotElf, ".so file"),
    "32 bits": (lambda f: patched(f, 4, b"\1"), errors.NativeWrongArchitecture, "this machine"),
    "damage": (lambda f: patched(f, 40, b"\xff"), errors.NativeDamaged, "anew"),
    "a program": (lambda f: Path("/bin/ls"), errors.NativeNoEntryPoint, "Triton plugin"),
    "symbols": (
        lambda f: build(load="extern void nowhere_1(); nowhere_1()"),
        errors.NativeUnresolved,
        "this release of Triton",
    ),
    "the API": (lambda f: build(api="1"), errors.NativeWrongApi, "this release of Triton"),
    "the release": (
        lambda f: build(release='"1.2.3"'),
        errors.NativeWrongRelease,
        "the Triton it is for",
    ),
    "a name": (lambda f: build(name="NULL"), errors.NativeMalformed, "author"),
    "a crash": (lambda f: build(entry="abort()"), errors.NativeCrashed, "author"),
    "a loop": (lambda f: build(entry="for (;;)"), errors.NativeHung, "author"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_loading_it_is_an_error(kind, tmp_path):
    make, error, hint = ERRORS[kind]
    path = make(tmp_path)
    with pytest.raises(error) as raised:
        load_native(path, limit=2 if kind == "a loop" else 30)
    assert "the native library was refused: " in raised.value.what
    assert raised.value.where == str(path.resolve())
    assert hint in raised.value.hint
