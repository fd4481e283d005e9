"""``remora run``: scripts as they are, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

KERNEL = """
import sys
import triton
import triton.language as tl
import triton.language.extra.tlx as tlx
sys.path.append({tests!r})
from launching import Driver, Pointer
from triton.backends.compiler import GPUTarget

SIZE = tl.constexpr(64)

@triton.autotune([triton.Config({{}}, num_warps=4, ctas_per_cga=(2, 1, 1))], key=[])
@triton.jit
def double(x):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    buffer = tlx.local_view(tlx.local_alloc((SIZE,), tl.float32, 1), 0)
    tlx.local_store(buffer, tl.load(x + at))
    tl.store(x + at, 2 * tlx.local_load(buffer))

triton.runtime.driver.set_active(Driver(GPUTarget("cuda", 90, 32)))

def main():
    compiled = double[lambda meta: (triton.cdiv(256, SIZE),)](Pointer())
    assert ".reqnctapercluster 2, 1, 1" in compiled.asm["ptx"]
    return compiled

if __name__ == "__main__":
    main()
    print(sys.argv[1:], sys.path[0], __file__)
    sys.exit(7)
"""


def remora_run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "remora.cli", "run", *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=cwd,
    )  # fmt: skip


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(KERNEL.format(tests=str(TESTS)))
    return path


def test_a_script_with_its_arguments_and_exit_code(script) -> None:
    done = remora_run(script, "--option", "-h", "x")
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{['--option', '-h', 'x']} {script.parent} {script}\n"


def test_with_a_pipeline(script, tmp_path) -> None:
    """It is in force for the script's kernels, after those that run anyway."""
    (tmp_path / "mine.py").write_text(
        "import remora\n"
        "def say(text, compile_):\n    print('seen', len(text) > 0)\n    return compile_(text)\n"
        "mine = remora.Pipeline('mine').override('ptx', say)\n"
    )
    done = remora_run("--with", f"{tmp_path / 'mine.py'}:mine", script, "x")
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"seen True\n{['x']} {script.parent} {script}\n"
    done = remora_run("--with", "remora.tlx_plugin:wait_for_each_product", script)
    assert done.returncode == 7, done.stderr
    done = remora_run("--with", "nothing", script)
    assert done.returncode == 1
    assert "no plugin is named .nothing." in done.stderr.replace("'", ".")


def test_a_module(script, tmp_path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import script, triton, utlx_plugin\n"
        "def test_double(): assert script.main().metadata.num_ctas == 1\n"
        "def test_config(): assert triton.Config({}, ctas_per_cga=(2, 1, 1)).ctas_per_cga\n"
    )
    done = remora_run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [("-m",), ("nowhere.py",), ()])
def test_what_is_not_there(arguments, tmp_path) -> None:
    done = remora_run(*arguments, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


def test_a_traceback_is_the_scripts(tmp_path) -> None:
    path = tmp_path / "raises.py"
    path.write_text(
        "import remora.tlx as tlx\n\n"
        "def broken():\n    tlx.local_alloc((1,), None, 1)\n\nbroken()\n"
    )
    done, python = remora_run(path), subprocess.run(
        [sys.executable, "-W", "ignore", path], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == python.returncode == 1
    assert done.stderr == python.stderr
    assert f'File "{path}", line 4, in broken' in done.stderr
    assert "NeedsCompiler" in done.stderr
