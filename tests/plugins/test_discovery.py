"""Plugins found through entry points, broken ones among them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from compiling import Look

from remora.errors import PluginError
from remora.plugins import GROUP, Registry

GOOD = """
import remora
plugin = remora.Plugin("{name}", version="2.1", passes=[{passes}])
"""
PASSES = """
from dataclasses import dataclass
import remora
@dataclass(frozen=True)
class Mine(remora.ModulePass):
    name = "mine"
    def apply(self, ctx, module): pass
@dataclass(frozen=True)
class Shared(remora.ModulePass):
    name = "shared"
    def apply(self, ctx, module): pass
not_a_pass = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a distribution with a plugin on the path, as pip lays it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(distribution: str, source: str, *, entry: str = "", module: str = "") -> None:
        module = module or distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        )
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry or f'plug = {module}:plugin'}\n")
        importlib.invalidate_caches()

    yield install
    for name in [n for n, m in sys.modules.items() if _lies_in(m, tmp_path)]:
        del sys.modules[name]


def _lies_in(module, folder: Path) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(folder))


def found(registry: Registry, distribution: str):
    """The entry of one distribution; others may be installed here, TLX for one."""
    (entry,) = (f for f in registry.found() if f.distribution == f"{distribution} 1.5")
    return entry


def good(name: str, passes: str = "") -> str:
    return GOOD.format(name=name, passes=passes)


def test_a_good_one(install):
    install("dist-a", good("mine-a"))
    registry = Registry()
    entry = found(registry, "dist-a")
    assert entry.error is None
    assert entry.plugin is registry.plugin("mine-a")
    assert entry.plugin.version == "2.1"
    assert entry.target == "dist_a:plugin"
    assert registry.found() is registry.found()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ValueError('bad day')", "it cannot be imported: ValueError: bad day"),
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("import sys; sys.exit(4)", "it cannot be imported: SystemExit: 4"),
        ("def plugin(:", "SyntaxError"),
        ("other = 1", "has no attribute 'plugin'"),
        ("plugin = 3", "its entry point names a value of type int, not a Plugin"),
        ("import remora\nplugin = remora.Plugin", "names a value of type type, not a Plugin"),
        ("import remora\nplugin = remora.Plugin('a b')", "'a b' is not a plugin's name"),
    ],
)
def test_a_broken_one_is_refused_and_stops_no_other(install, source, words):
    install("dist-bad", source)
    install("dist-good", good("good"))
    registry = Registry()
    entry = found(registry, "dist-bad")
    assert entry.plugin is None
    assert "the plugin 'plug' of dist-bad 1.5 was refused" in entry.error.what
    assert words in entry.error.what
    assert "dist_bad:plugin" in entry.error.where
    assert entry.error.hint
    assert found(registry, "dist-good").plugin is registry.plugin("good")
    with pytest.raises(PluginError, match="was refused"):
        registry.plugin("plug")


def test_two_of_one_name(install):
    install("dist-b", good("same"))
    install("dist-a", good("same"))
    registry = Registry()
    assert found(registry, "dist-a").plugin is registry.plugin("same")
    refused = found(registry, "dist-b").error
    assert "its name 'same' is taken by dist-a 1.5" in refused.what
    assert "uninstall one of the two" in refused.hint


def test_an_unknown_plugin():
    with pytest.raises(PluginError, match="no plugin is named 'nobody'"):
        Registry().plugin("nobody")


def test_refresh_looks_again(install):
    registry = Registry()
    before = registry.found()
    install("dist-late", good("late"))
    assert registry.found() == before
    registry.refresh()
    assert registry.plugin("late")


def test_a_pass_by_name_over_all_plugins(install):
    install("dist-a", good("a", 'remora.PassRef("dist_a_passes:Mine")'))
    Path(sys.path[0], "dist_a_passes.py").write_text(PASSES)
    install("dist-b", good("b", 'remora.PassRef("compiling:Look")'))
    registry = Registry()
    registry.found()
    assert "dist_a_passes" not in sys.modules  # imported when asked for
    assert registry.find_pass("look") is Look
    assert registry.find_pass("mine").__module__ == "dist_a_passes"


def test_an_unknown_pass_gives_the_nearest(install):
    install("dist-b", good("b", 'remora.PassRef("compiling:Look")'))
    with pytest.raises(PluginError, match="no plugin has a pass 'lok'") as caught:
        Registry().find_pass("lok")
    assert caught.value.hint.startswith("nearest: look")


def test_a_pass_that_two_have(install):
    install("dist-a", good("a", 'remora.PassRef("dist_a_passes:Shared")'))
    install("dist-b", good("b", 'remora.PassRef("dist_b_passes:Shared")'))
    for module in ("dist_a_passes", "dist_b_passes"):
        Path(sys.path[0], f"{module}.py").write_text(PASSES)
    with pytest.raises(PluginError, match="several plugins have a pass 'shared'") as caught:
        Registry().find_pass("shared")
    assert "dist_a_passes:Shared (a), dist_b_passes:Shared (b)" in caught.value.what


def test_a_broken_pass_hides_no_other(install):
    broken = 'remora.PassRef("dist_a_passes:Gone"), remora.PassRef("dist_a_passes:not_a_pass")'
    install("dist-a", good("a", f'{broken}, remora.PassRef("dist_a_passes:Mine")'))
    Path(sys.path[0], "dist_a_passes.py").write_text(PASSES)
    registry = Registry()
    assert registry.find_pass("mine").name == "mine"
    with pytest.raises(PluginError) as caught:
        registry.find_pass("gone")
    assert "'dist_a_passes:Gone' cannot be imported" in caught.value.where
    assert "'dist_a_passes:not_a_pass' is not a pass" in caught.value.where
