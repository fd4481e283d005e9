"""What every test has: a kernel cache of its own session, and the marker ``gpu``."""

from __future__ import annotations

import operator
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before Triton is imported: it reads its variables as it starts.
_SCRATCH = tempfile.mkdtemp(prefix="remora-tests-")
tempfile.tempdir = None
os.environ["TMPDIR"] = _SCRATCH  # for reproducers, too
os.environ["XDG_CACHE_HOME"] = os.path.join(_SCRATCH, "cache")  # verdicts on native libraries
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the one of the process that began them
    os.environ["TRITON_CACHE_DIR"] = os.path.join(_SCRATCH, "triton-cache")
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # 3.9 warns where this is not said


# Examples are compilations and parses: how long one takes says nothing on a busy machine.
# The same examples in each run, so that a change is judged by what it changes; to look
# for new ones: make pytest PYTEST_ARGS="-k property --hypothesis-profile=search".
settings.register_profile("remora", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("remora")


def pytest_configure() -> None:
    """Let kernels of stand-in drivers be collected when the stand-in is gone.

    Their finalizer asks for the driver and raises; printing that, in the middle
    of a parse, makes CPython 3.11 fail it ("AST constructor recursion depth
    mismatch").
    """
    from triton.compiler.compiler import CompiledKernel

    if hasattr(CompiledKernel, "__del__") and _why_no_gpu():
        del CompiledKernel.__del__


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Tests draw the same numbers in each run, whichever ran before."""
    random.seed(0)
    for name, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if name in sys.modules:
            operator.attrgetter(seed)(sys.modules[name])(0)


def pytest_unconfigure() -> None:
    shutil.rmtree(_SCRATCH, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    reason = _why_no_gpu()
    for item in wanting if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End a process whose CUDA context an error has ended: every test after it would fail.

    Under xdist another worker takes its place.
    """
    if item.get_closest_marker("gpu") is None or _why_no_gpu():
        return
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(70)
        pytest.exit(f"{item.nodeid} has ended the CUDA context: {error}", returncode=70)


def _why_no_gpu() -> str:
    try:
        import torch
    except ImportError:
        return "needs a GPU: torch is not installed"
    return "" if torch.cuda.is_available() else "needs a GPU: torch sees none"


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """An empty kernel cache for one test, so that what it compiles is compiled."""
    from triton import knobs

    folder = tmp_path / "triton-cache"
    with knobs.cache.scope():
        knobs.cache.dir = str(folder)
        yield folder


@pytest.fixture
def always_compile() -> Iterator[None]:
    """Compile what the cache has, too."""
    from triton import knobs

    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        yield


@pytest.fixture
def hook_as_before() -> Iterator[None]:
    """For tests that attach pipelines, which installs the hook for good: it is as before again."""
    from triton import knobs

    from remora.host import hook

    names = ("_users", "_client", "_previous", "_key")
    before = {name: getattr(hook, name) for name in names}
    installed = knobs.runtime.add_stages_inspection_hook
    yield
    for name, value in before.items():
        setattr(hook, name, value)
    knobs.runtime.add_stages_inspection_hook = installed


@pytest.fixture
def no_hook() -> Iterator[None]:
    """No stage hook before the test; it fails if it leaves one behind.

    TLX, which other tests of the process import, is out of force meanwhile.
    """
    from triton import knobs

    from remora.tlx_plugin import plugin

    tlx_was_active = plugin.is_active
    plugin.deactivate()
    assert knobs.runtime.add_stages_inspection_hook is None
    yield
    left, knobs.runtime.add_stages_inspection_hook = (
        knobs.runtime.add_stages_inspection_hook,
        None,
    )
    if tlx_was_active:
        plugin.activate()
    assert left is None
