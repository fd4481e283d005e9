"""Where native libraries are named, and when they are loaded: each test in a fresh process."""

from __future__ import annotations

import shutil

import pytest
from native.building import RELEASE, build, run, wheels

from remora.host import features

DIALECT, RENAMES = wheels("MLIRDialectPlugin"), wheels("TritonPluginsTestLib")
READS_THE_VARIABLE = not features().explicit_native_plugins
SHOW = """
from triton._C.libtriton import passes
print(sorted(n.removeprefix("add_") for n in vars(passes.plugin) if "plug" in n or "plain" in n))
"""


def test_the_variable():
    """Several libraries, good and bad; what Triton makes of them is there in the end."""
    bad = build(entry="abort()")
    variable = f"{RENAMES}:/nowhere.so:{bad}::{DIALECT}"
    out = run("import remora, os\nprint(os.environ['TRITON_PLUGIN_PATHS'])\nimport triton\n" + SHOW,
              TRITON_PLUGIN_PATHS=variable, PYTHONWARNINGS="ignore")  # fmt: skip
    assert out.splitlines() == [f"{RENAMES}:{DIALECT}", "['plugin', 'plugingpu_conversion']"]


def test_every_bad_library_of_the_variable_is_a_sentence():
    code = """
import os, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import remora
assert "TRITON_PLUGIN_PATHS" not in os.environ
import triton
for warning in caught:
    print(str(warning.message).splitlines()[0])
"""
    out = run(code, TRITON_PLUGIN_PATHS=f"/nowhere.so:{build(release='NULL')}").splitlines()
    refused = "TRITON_PLUGIN_PATHS: the native library was refused: "
    assert out == [
        refused + "it cannot be read: No such file or directory",
        refused + "it does not say for which release of Triton it was built (a null pointer); "
        f"this is {RELEASE}",
    ]


def test_without_the_variable_importing_remora_loads_nothing_of_this():
    code = "import sys, remora\nprint([m for m in sys.modules if 'native' in m or 'triton' in m])"
    assert run(code) == "[]\n"


@pytest.mark.skipif(not READS_THE_VARIABLE, reason="this release loads plugins at any time")
def test_too_late():
    code = """
import sys, triton, remora
from remora.errors import NativeTooLate
try:
    remora.load_native(sys.argv[1])
except NativeTooLate as error:
    print(error)
"""
    assert run(code, RENAMES).splitlines() == [
        f"Triton {RELEASE} loads native plugins while it is imported, and it has been",
        f"  where: {RENAMES}",
        "  way out: call remora.load_native, or import remora with TRITON_PLUGIN_PATHS set, before "
        "the first import of triton",
    ]


@pytest.mark.skipif(READS_THE_VARIABLE, reason="this release loads plugins while it is imported")
def test_never_too_late():
    code = "import sys, triton, remora\nremora.load_native(sys.argv[1])" + SHOW
    assert run(code, RENAMES) == "['plugin']\n"


@pytest.mark.skipif(not READS_THE_VARIABLE, reason="this release ignores the variable")
def test_what_triton_loaded_before_remora_came_is_known():
    code = """
import sys, triton, remora
library = remora.load_native(sys.argv[1])
from triton._C.libtriton import ir
library.pass_("plugin").add_to(ir.pass_manager(ir.context()))
print(library.name)
"""
    assert run(code, RENAMES, TRITON_PLUGIN_PATHS=str(RENAMES)) == "TritonPlugin\n"


@pytest.mark.skipif(not READS_THE_VARIABLE, reason="this release ignores the variable")
def test_a_variable_changed_before_triton_is_imported():
    code = """
import os, sys, remora
library = remora.load_native(sys.argv[1])
del os.environ["TRITON_PLUGIN_PATHS"]
import triton
from remora.errors import NativeTooLate
try:
    library.pass_("plugin").check()
except NativeTooLate as error:
    print(error.what)
"""
    assert run(code, RENAMES) == "Triton was imported without the native plugin TritonPlugin\n"


def test_loading_again_does_nothing(tmp_path):
    link = tmp_path / "link.so"
    link.symlink_to(RENAMES)
    code = """
import sys, remora
first, again, linked = map(remora.load_native, (sys.argv[1], sys.argv[1], sys.argv[2]))
assert first is again is linked
import triton
"""
    assert run(code + SHOW, RENAMES, link) == "['plugin']\n"


def test_names_that_are_taken(tmp_path):
    code = """
import sys, remora
from remora.errors import NativeNameTaken
first, *others = sys.argv[1:]
remora.load_native(first)
for other in others:
    try:
        remora.load_native(other)
    except NativeNameTaken as error:
        print(error.what.partition("brought: ")[2])
"""
    copy = tmp_path / "copy.so"
    shutil.copy(build(), copy)
    other = build(name='"Other"', op='{"other_op", (void *)nothing}')
    assert run(code, build(), copy, other).splitlines() == [
        "operation plain_op, pass plain_pass, plugin Plain",
        "pass plain_pass",
    ]


@pytest.fixture
def distribution(tmp_path):
    """A folder for sys.path, with an installed distribution that announces two libraries."""
    package = tmp_path / "brings_plain"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('nothing of it is imported')")
    shutil.copy(build(), package / "libplain.so")
    info = tmp_path / "brings_plain-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brings-plain\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[remora.native]\nplain = brings_plain:libplain.so\ngone = brings_plain:libgone.so\n"
        "nowhere = not_installed:lib.so\nodd = :-)\nwithout-a-file = brings_plain\n"
    )
    return tmp_path


def test_what_a_distribution_announces(distribution):
    """It is found, loaded by its name or the plugin's, and nothing of the package is imported."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import remora
from remora.native.loading import natives
for found in natives.found():
    print(found.source, found.name, found.report.verdict.value, found.is_loaded)
library = remora.load_native("plain")
assert natives.library("Plain") is library
print([found.name for found in natives.found() if found.is_loaded])
import triton
"""
    assert run(code + SHOW, distribution).splitlines() == [
        "brings-plain 1.0 gone unreadable False",
        "brings-plain 1.0 nowhere unreadable False",
        "brings-plain 1.0 odd unreadable False",
        "brings-plain 1.0 plain fine False",
        "brings-plain 1.0 without-a-file unreadable False",
        "['plain']",
        "['plain_pass']",
    ]


def test_what_is_found_says_what_is_taken(distribution):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import remora
from remora.native.loading import natives
remora.load_native(sys.argv[2])
for found in natives.found():
    print(found.source, found.is_loaded, type(found.error).__name__)
"""
    other = build(version='"2.0"')
    assert run(code, distribution, other).splitlines()[-3:] == [
        "brings-plain 1.0 False NativeNameTaken",
        "brings-plain 1.0 False NativeUnreadable",
        "load_native True NoneType",
    ]
