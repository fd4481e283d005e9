"""The library is a plugin for the Triton that is installed."""

from pathlib import Path

from remora.native.probe import probe
from remora.native.report import Verdict

LIBRARY = Path(__file__).parents[1] / "src" / "@NAME@" / "lib@NAME@.so"


def test_it_is_fine():
    report = probe(LIBRARY)
    assert report.verdict is Verdict.FINE, report.what
    assert report.name == "@NAME@"
