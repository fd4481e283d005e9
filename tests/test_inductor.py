"""Pipelines in ``torch.compile``, as far as no GPU is needed: all but the launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Case to kernel to the tags in the PTX of each configuration."""
    folder = tmp_path_factory.mktemp("inductor")
    done = subprocess.run(
        [sys.executable, str(HERE / "inductor_without_gpu.py")],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tags(cases: dict[str, Any], case: str) -> dict[str, list[str]]:
    """Kernel to its tags, which are the same for each of its configurations."""
    for several in cases[case].values():
        assert several
        assert all(one == several[0] for one in several)
    return {kernel: several[0] for kernel, several in cases[case].items()}


ATTACHED = {
    "plain": {"twice": []},
    "attached": {"twice": ["own"]},
    "attached over autotune": {"twice": ["own"]},
    "attached under autotune": {"twice": ["own"]},
    # What a kernel calls is compiled with that kernel's pipelines.
    "called": {"outer": []},
    "called, attached": {"outer": ["outer"]},
    # The process has workers, which do not know the pipeline.
    "attached, workers": {"twice": ["own"]},
}


@pytest.mark.parametrize("case", ATTACHED)
def test_a_kernel_keeps_its_pipeline(cases: dict[str, Any], case: str) -> None:
    assert tags(cases, case) == ATTACHED[case]


@pytest.mark.parametrize(
    ("case", "used"),
    [
        ("mixed", []),
        ("mixed, use", ["a"]),
        ("mixed, another", ["b"]),
        ("mixed, no use", []),
        ("mixed, use again", ["a"]),
    ],
)
def test_the_kernels_of_inductor_take_part_under_use(
    cases: dict[str, Any], case: str, used: list[str]
) -> None:
    """One after the other, over the same caches of Inductor: none gives another's kernels."""
    assert tags(cases, case) == {
        "triton_poi_fused_sin": used,
        "twice": [*used, "own"],
        "triton_poi_fused_cos": used,
    }


def test_caches_of_inductor_are_used(cases: dict[str, Any]) -> None:
    assert cases["hits"] == 1


def test_the_backend_has_a_name(cases: dict[str, Any]) -> None:
    assert cases["named"]


def test_under_use_without_the_backend(cases: dict[str, Any]) -> None:
    """Inductor would keep what it compiles as a kernel without pipelines."""
    assert "would keep this kernel in its caches as one without pipelines" in cases["error"]
    assert 'backend="remora"' in cases["error"]
    assert tags(cases, "after the error") == {"triton_poi_fused_tan": []}


def test_what_a_plugin_does_to_its_own_kernels_only(cases: dict[str, Any]) -> None:
    """TLX's edits wait for a word of TLX: they hinder nothing else."""
    assert tags(cases, "with TLX in force") == {"triton_poi_fused_atan": []}
