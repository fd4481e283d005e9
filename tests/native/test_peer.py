"""A native plugin that people use: triton-utlx, whose wheels ``make test`` downloads."""

from __future__ import annotations

import platform
import sys
import zipfile
from pathlib import Path

import pytest
from native.building import RELEASE, run

from remora.native.probe import probe
from remora.native.report import Report, Verdict

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="its libraries are for x86-64"
)


@pytest.fixture
def library(tmp_path, request):
    """The library of a version of triton-utlx, the test's parameter."""
    wheels = list((Path(sys.prefix) / "peer").glob(f"triton_utlx-{request.param}-*.whl"))
    if not wheels:
        pytest.skip(f"the wheel of triton-utlx {request.param} is not there: make test has it")
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract("utlx_plugin/libutlx.so", tmp_path))


def tried(path: Path) -> Report:
    report = probe(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    return report


@pytest.mark.parametrize("library", ["3.8.0.post16"], indirect=True)
def test_it_is_fine_on_its_release_and_refused_on_others(library):
    report = tried(library)
    assert report.release == "3.8.0+gitc01b6774"
    if RELEASE == "3.8.0":
        assert (report.verdict, report.name) == (Verdict.FINE, "uTLXPlugin")
        assert (len(report.passes), len(report.ops), len(report.dialects)) == (20, 60, 1)
        assert "utlx_prune_unused_barriers" in {p.name for p in report.passes}
        assert "utlx_local_alloc" in report.ops
    else:
        assert report.verdict is Verdict.WRONG_RELEASE
        assert report.what == f"it was built for Triton 3.8.0+gitc01b6774, this is {RELEASE}"


@pytest.mark.parametrize("library", ["3.7.1"], indirect=True)
def test_one_that_its_own_release_cannot_load_whole(library):
    """Built for 3.7.1, it calls functions that the wheel of 3.7.1 does not have."""
    report = tried(library)
    assert report.release == "3.7.1+gita5d0d584"
    if RELEASE == "3.7.1":
        assert report.verdict is Verdict.UNRESOLVED
        assert "_ZN4mlir6triton10nvidia_gpu17TCGen5MMAScaledOp10getTwoCtasEv" in report.unresolved
        assert "it needs mlir::triton::nvidia_gpu::TCGen5MMAOp::create(" in report.what
        assert "neither Triton 3.7.1 nor a library that it names has" in report.what
    else:
        assert report.verdict is Verdict.WRONG_RELEASE
        assert report.what == f"it was built for Triton 3.7.1+gita5d0d584, this is {RELEASE}"


@pytest.mark.skipif(RELEASE != "3.8.0", reason="the library is for Triton 3.8.0")
@pytest.mark.parametrize("library", ["3.8.0.post16"], indirect=True)
def test_one_of_its_passes_runs(library):
    code = """
import sys
import remora
library = remora.load_native(sys.argv[1])
from remora import host
from remora.host.targets import context_of, gpu_target
from triton._C.libtriton import ir
text = '''
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @f() {
    %unused = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #shared, #smem, mutable>
    tt.return
  }
}'''
context = context_of(gpu_target("cuda:90"))
module = host.parse_text(text, context)
manager = ir.pass_manager(context)
library.pass_("utlx_prune_unused_barriers").add_to(manager)
assert "local_alloc" in str(module)
manager.run(module, "")
assert "local_alloc" not in str(module) and "@f" in str(module)
print("pruned")
"""
    assert run(code, library) == "pruned\n"


@pytest.mark.skipif(RELEASE != "3.8.0", reason="the library is for Triton 3.8.0")
@pytest.mark.parametrize("library", ["3.8.0.post16"], indirect=True)
def test_values_of_its_own_types_go_through_loops_and_calls(library):
    code = """
import sys
import remora
library = remora.load_native(sys.argv[1])
alloc, view, store, load = (
    library.op(f"utlx_local_{name}") for name in ("alloc", "view", "store", "load")
)
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

@triton.jit
def stored(buffer, x):
    nothing = store(buffer, x)
    tl.static_assert(nothing is None)
    return buffer

@triton.jit
def kernel(x_ptr, n):
    at = tl.arange(0, 128)
    buffer = view(alloc(0.0, 1, 128, 0), 0)  # fp32, one of 128 elements, not for AMD
    for _ in range(n):
        buffer = stored(buffer, tl.load(x_ptr + at))
    tl.store(x_ptr + at, load(buffer))

target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
options = backend.parse_options({"arch": "sm90"})
context = ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
source = ASTSource(kernel, {"x_ptr": "*fp32", "n": "i32"})
functions = backend.get_codegen_implementation(options), backend.get_module_map()
text = str(source.make_ir(target, options, *functions, context))
assert "iter_args" in text and "-> (!ttg.memdesc<128xf32" in text, text
assert "ttg.local_store" in text and "ttg.local_load" in text, text
print("made")
"""
    assert run(code, library) == "made\n"
