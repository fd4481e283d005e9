"""Verdicts are kept by content; what probing costs."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from pathlib import Path

import pytest
from native.building import build, run, wheels

from remora.native import probe as probing
from remora.native.probe import probe
from remora.native.report import Verdict


@pytest.fixture
def tries(tmp_path, monkeypatch):
    """An empty cache, and the libraries that a child was started for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tried: list[Path] = []
    real = probing._try

    def counted(path, *rest):
        tried.append(path)
        return real(path, *rest)

    monkeypatch.setattr(probing, "_try", counted)
    return tried


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "library.so"
    shutil.copy(build(), path)
    return path


def test_a_verdict_is_kept(tries, library):
    first = probe(library)
    assert probe(library) == first
    assert len(tries) == 1


def test_a_changed_file_is_tried_again(tries, library):
    assert probe(library).is_fine
    before = library.stat()
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 2])
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert probe(library).verdict is Verdict.DAMAGED
    library.write_bytes(content)
    assert probe(library).is_fine
    assert len(tries) == 3


def test_a_file_of_the_same_length_and_time_is_tried_again(tries, library):
    """Right after it was written, too: the file system's clock is coarse."""
    good, bad = build(), build(name='"Plain"', api="9")
    assert good.stat().st_size == bad.stat().st_size
    for source, fine in ((good, True), (bad, False), (good, True)):
        library.write_bytes(source.read_bytes())
        os.utime(library, (0, 0))
        assert probe(library).is_fine == fine


def test_the_same_content_written_again_is_not(tries, library):
    probe(library)
    library.write_bytes(library.read_bytes())
    assert probe(library).is_fine
    assert len(tries) == 1


def test_what_the_machine_decides_is_not_kept_for_long(tries, monkeypatch):
    path = build(entry="abort()")
    for _ in range(2):
        assert probe(path).verdict is Verdict.CRASHED
    assert len(tries) == 1
    monkeypatch.setattr(probing, "_KEPT_S", 0)
    assert probe(path).verdict is Verdict.CRASHED
    assert len(tries) == 2


def test_a_library_that_hung_may_have_more_time(tries):
    path = build(entry="sleep(2)")
    assert probe(path, limit=0.5).verdict is Verdict.HUNG
    assert probe(path, limit=0.4).verdict is Verdict.HUNG
    assert len(tries) == 1
    assert probe(path, limit=30).is_fine
    assert len(tries) == 2


def test_another_triton_is_another_verdict(tries, library, monkeypatch):
    probe(library)
    here = probing.installed_triton()
    other = type(here)(here.release, here.library, "another one")
    monkeypatch.setattr(probing, "installed_triton", lambda: other)
    probe(library)
    assert len(tries) == 2


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"report": {"verdict": "odd"}}'])
def test_a_spoilt_cache_is_no_cache(tries, library, text):
    probe(library)
    (kept,) = (Path(os.environ["XDG_CACHE_HOME"]) / "remora" / "native").iterdir()
    kept.write_text(text)
    assert probe(library).is_fine
    assert len(tries) == 2


def test_without_a_folder_for_it(tries, library, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert probe(library).is_fine
    assert probe(library).is_fine
    assert len(tries) == 2


def test_it_costs_a_second_at_first_and_a_millisecond_afterwards(tmp_path):
    """In fresh processes; the best, and the median, as the machine that this runs on is busy."""
    code = (
        "import json, sys, time\n"
        "from remora.native.probe import probe\n"
        "times = []\n"
        "for _ in range(21):\n"
        "    start = time.perf_counter()\n"
        "    assert probe(sys.argv[1]).is_fine\n"
        "    times.append(time.perf_counter() - start)\n"
        "print(json.dumps(times))"
    )
    firsts, later = [], []
    for number in range(3):
        folder = str(tmp_path / str(number))
        times = json.loads(run(code, wheels("MLIRDialectPlugin"), XDG_CACHE_HOME=folder))
        firsts.append(times[0])
        later += times[1:]
    assert min(firsts) < 1, firsts
    assert statistics.median(later) < 1e-3, later
