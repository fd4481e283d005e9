"""What the repository's tests have, for those of the plugin: a kernel cache of their own."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The plugin runs from its sources, whether or not it is installed.
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

_SCRATCH = tempfile.mkdtemp(prefix="remora-loop-split-")
os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(_SCRATCH, "triton-cache"))
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where this is not said

settings.register_profile("loop-split", deadline=None)
settings.load_profile("loop-split")


def pytest_unconfigure() -> None:
    shutil.rmtree(_SCRATCH, ignore_errors=True)


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """An empty kernel cache for one test."""
    from triton import knobs

    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "triton-cache")
        yield tmp_path
