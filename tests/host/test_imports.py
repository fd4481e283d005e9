"""What importing costs, and what it brings along. Each measurement in a fresh process."""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import remora

ROOT = Path(remora.__file__).parent
WITHOUT_TORCH = ("host", "ir", "pipeline", "dsl", "plugins", "native", "analysis")


def python(code: str) -> str:
    """Standard output of a new interpreter that runs ``code``."""
    paths = os.pathsep.join([str(ROOT.parent), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_remora_costs_at_most_50_ms_on_top_of_triton():
    code = (
        "import time, triton\n"
        "start = time.perf_counter()\n"
        "import remora\n"
        "print(time.perf_counter() - start)"
    )
    seconds = [float(python(code)) for _ in range(5)]
    assert statistics.median(seconds) < 0.05, seconds


def test_remora_loads_no_xdsl_and_no_torch():
    code = (
        "import json, sys\nimport remora\n"
        "print(json.dumps([m for m in sys.modules if m.split('.')[0] in ('xdsl', 'torch')]))"
    )
    assert json.loads(python(code)) == []


def test_describing_a_pipeline_loads_no_xdsl():
    """A plugin's module describes its pipelines: that stays cheap, in force or not."""
    code = (
        "import sys\nimport remora\n"
        "reference = remora.PassRef('nowhere:Pass', trigger='word')\n"
        "pipeline = remora.Pipeline('p').insert(reference, after='ttir/cse')\n"
        "plugin = remora.Plugin('p', passes=[reference], pipelines=[pipeline])\n"
        "plugin.activate()\n"
        "print('xdsl' in sys.modules, 'torch' in sys.modules)"
    )
    assert python(code) == "False False\n"


def test_compiling_with_a_python_pass_needs_no_torch():
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from compiling import SEEN, Look, compile_kernel\n"
        "from remora.pipeline import Pipeline, use\n"
        "with use(Pipeline('p').insert(Look(), at='ttgir/end')):\n"
        "    compile_kernel('cuda:90', num_warps=2)\n"
        "print(len(SEEN))"
    )
    assert python(code) == "1\n"


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_no_module_names_torch(part):
    for path in (ROOT / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not any(n.partition(".")[0] == "torch" for n in names), f"{path}:{node.lineno}"
