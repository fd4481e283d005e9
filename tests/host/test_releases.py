"""What is said of the installed Triton release, and of releases that do not fit."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import pytest
import triton
from triton import knobs

from remora import host
from remora.errors import UnsupportedTriton
from remora.host import bridge, releases, targets


@pytest.fixture(autouse=True)
def forget():
    """Features are looked up once a process: forget them around each test."""
    host.features.cache_clear()
    yield
    host.features.cache_clear()


def test_the_ptxas_that_compiles():
    from triton.backends.nvidia.compiler import get_ptxas_version

    major, minor = targets.ptxas_release(90)
    assert f"release {major}.{minor}," in get_ptxas_version(90)


def test_features_of_this_release():
    features = host.features()
    assert features.version == triton.__version__
    assert features.version in host.TESTED
    assert features.stage_hook
    assert features.bridge
    expected = {
        "3.7.1": (False, False, False, False, False, False),
        "3.8.0": (True, False, False, False, True, False),
        "3.9.0": (True, True, True, True, True, True),
    }[features.version]
    found = (
        features.calls_carry_tensors,
        features.dot_wait_synchronises,
        features.explicit_native_plugins,
        features.cache_policies,
        features.store_waits_read_only,
        features.subslices_any_dimension,
    )
    assert found == expected
    assert dict(features.rows())["version"] == features.version


def test_a_tested_release_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        host.features()


@pytest.mark.parametrize("version", ["3.6.0", "3.2.0", "2.1.0"])
def test_too_old(monkeypatch, version):
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.raises(UnsupportedTriton, match="too old") as caught:
        host.features()
    assert all(release in caught.value.hint for release in host.TESTED)


def test_known_bad(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.8.1")
    monkeypatch.setitem(releases.KNOWN_BAD, "3.8.1", "its wheel has no stage hook")
    with pytest.raises(UnsupportedTriton, match="its wheel has no stage hook") as caught:
        host.features()
    assert all(release in caught.value.hint for release in host.TESTED)


@pytest.mark.parametrize("version", ["3.10.0", "4.0.0", "3.9.1+git1234"])
def test_newer_is_tried_with_a_warning(monkeypatch, version):
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.warns(UserWarning, match="newer than the releases Remora is tested on"):
        assert host.features().version == version


def test_no_hook(monkeypatch):
    monkeypatch.setattr(knobs, "runtime", SimpleNamespace())
    with pytest.raises(UnsupportedTriton, match=r"lacks .*add_stages_inspection_hook"):
        host.features()


def test_missing_symbol(monkeypatch):
    monkeypatch.setitem(bridge._SYMBOLS, "gone", ("_ZN4mlir4GoneEv", "v", "p"))
    with pytest.raises(UnsupportedTriton, match="lacks _ZN4mlir4GoneEv"):
        host.features()


def test_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UnsupportedTriton, match="cannot be imported") as caught:
        host.features()
    assert "pip install triton==" in caught.value.hint


def test_the_hook_is_not_installed_on_an_unfit_release(no_hook, monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    for _ in range(2):
        with pytest.raises(UnsupportedTriton):
            host.install(object())  # type: ignore[arg-type]
    assert knobs.runtime.add_stages_inspection_hook is None
