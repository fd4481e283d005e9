"""Native plugins in use, each test in a fresh process: the same code on every release."""

from __future__ import annotations

import pytest
from native.building import build, run, wheels

DIALECT, RENAMES = wheels("MLIRDialectPlugin"), wheels("TritonPluginsTestLib")
BOTH = f"{DIALECT}:{RENAMES}"

# A kernel that calls an operation of the wheel's test plugin, compiled with and without passes.
KERNEL = """
import sys
import remora
dialect, renames = map(remora.load_native, sys.argv[1:3])
custom = dialect.op("custom_op")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def twice(x):
    return custom(x)

@triton.jit
def kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = twice(tl.load(x_ptr + at))
    for _ in range(4):
        x = custom(x)
    tl.store(y_ptr + at, x + custom(1.5))

def compiled(target=GPUTarget("cuda", 90, 32)):
    source = ASTSource(kernel, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 128})
    return triton.compile(source, target=target)
"""


def test_operations_in_a_kernel():
    """The wheel's operation adds its operand to itself."""
    code = """
for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    text = compiled(target).asm["ttir"]
    assert text.count("arith.addf") == 3, text  # once before the loop, once in it, and the sum
    assert "iter_args" in text and "tensor<128xf32>" in text
    assert "3.000000e+00" in text, text  # of 1.5
print("compiled")
"""
    assert run(KERNEL + code, DIALECT, RENAMES) == "compiled\n"


def test_operations_used_wrongly():
    code = """
from remora.errors import NativeUnknown, NeedsCompiler, WrongType

try:
    dialect.op("create_nothing")
except NativeUnknown as error:
    assert "custom_op" in error.hint
try:
    custom(1)
except NeedsCompiler as error:
    print(error.what)

@triton.jit
def wrong(y_ptr):
    custom("text")

try:
    triton.compile(ASTSource(wrong, {"y_ptr": "*fp32"}), target=GPUTarget("cuda", 90, 32))
except triton.CompilationError as error:
    print(WrongType.of(error).what)
"""
    assert run(KERNEL + code, DIALECT, RENAMES).splitlines() == [
        "DialectPlugin.custom_op was called outside a kernel that is compiled",
        "DialectPlugin.custom_op: 'text' is no operand of a native operation",
    ]


def test_passes_are_edits():
    code = """
from remora.errors import NativeUnknown, PipelineError
from remora.host.targets import gpu_target
from remora.pipeline import overview

renamed = renames.pass_("plugin", "7")
pipeline = (remora.Pipeline("native")
    .insert(renamed, before="ttgir/coalesce")
    .replace("ttgir/reorder_instructions", dialect.pass_("plugingpu_conversion")))
stock = compiled()
assert "@kernel" in stock.asm["ttgir"]
with remora.use(pipeline):
    edited = compiled()
assert "@foo_num_warps_7" in edited.asm["ttgir"] and "@kernel" not in edited.asm["ttgir"]
assert ".entry foo_num_warps_7" in edited.asm["ptx"] and edited.hash != stock.hash
with remora.use(remora.Pipeline("other").insert(renames.pass_("plugin", "8"), at="ttgir/end")):
    assert "@foo_num_warps_8" in compiled().asm["ttgir"]

view = str(overview(gpu_target("cuda:90"), "triton", [pipeline]))
assert 'native pass TritonPlugin.plugin("7")' in view
assert "replaced by native pass DialectPlugin.plugingpu_conversion" in view

assert renames.pass_("add_plugin", "7") == renamed  # as 3.9 binds it
for wrong, kind in ((("nothing",), NativeUnknown), (("plugin", 7), PipelineError)):
    try:
        renames.pass_(*wrong)
    except kind as error:
        print(error.what)
"""
    assert run(KERNEL + code, DIALECT, RENAMES).splitlines() == [
        "the native plugin TritonPlugin has no pass 'nothing'",
        "(7,) are not the arguments of a native pass",
    ]


def test_the_librarys_content_is_in_the_key(tmp_path):
    """Other content, other keys: of what has a pass of it, and of what has an operation."""
    code = """
import sys
import remora
library = remora.load_native(sys.argv[1])
print(remora.Pipeline("p").insert(library.pass_("plain_pass", *sys.argv[2:]), at="ttgir/end").key)
from remora.pipeline import active
before = active.cache_key()
library.op("plain_op")
after = active.cache_key()
assert before == ("", "") and all(after)
print(after)
"""
    path = tmp_path / "library.so"
    keys = []
    other = build(**{"pass": '{"plain_pass", "2.0", (void *)nothing, nothing}'})
    for source, arguments in ((build(), "1"), (build(), "2"), (other, "1")):
        path.write_bytes(source.read_bytes())
        keys.append(run(code, path, arguments).splitlines())
    (first, op), (other_argument, same_op), (other_content, other_op) = keys
    assert len({first, other_argument, other_content}) == 3
    assert op == same_op != other_op


def test_dialects_survive_the_round_trip():
    code = """
import sys
import remora
library = remora.load_native(sys.argv[1])
from remora import host, ir
from remora.host.targets import context_of, gpu_target
from remora.pipeline import run_pass
from triton._C import libtriton

text = '''module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @f(%p: !tt.ptr<i32>, %c: !plugin.custom<"a">) {
    %x = tt.load %p : !tt.ptr<i32>
    %y = plugin.magic %x : i32
    tt.store %p, %y : !tt.ptr<i32>
    tt.return
  }
}'''
context = context_of(gpu_target("cuda:90"))
module = host.parse_text(text, context)
generic = host.generic_text(module)
assert '"plugin.magic"' in generic and '!plugin.custom<"a">' in generic
back = host.parse_text(ir.write(ir.read(generic)), context)
assert host.generic_text(back) == generic

class Twice(remora.ModulePass):
    name = "twice"
    def apply(self, ctx, module):
        (op,) = [o for o in module.walk() if ir.build.op_name(o) == "plugin.magic"]
        new = op.clone()
        op.parent.insert_op_after(new, op)

import remora.ir.build
module = run_pass(Twice(), back, place="here")
assert str(module).count("plugin.magic") == 2
manager = libtriton.ir.pass_manager(context)
library.pass_("plugingpu_conversion").add_to(manager)
manager.run(module, "")
assert "plugin.magic" not in str(module) and str(module).count("llvm.add") == 2
print("converted")
"""
    assert run(code, DIALECT) == "converted\n"


OPT = """module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @f(%x: i32) { %y = plugin.magic %x : i32  tt.return }
}"""
MAIN = "import sys; from remora.cli import main; sys.argv[0] = 'remora'; main()"


@pytest.mark.parametrize(
    ("variable", "passes"),
    [
        (BOTH, 'cse,DialectPlugin.plugingpu_conversion,TritonPlugin.plugin("7")'),
        ("", f'cse,{DIALECT}:plugingpu_conversion,{RENAMES}:plugin("7")'),
    ],
)
def test_opt(tmp_path, variable, passes):
    file = tmp_path / "x.mlir"
    file.write_text(OPT)
    out = run(MAIN, "opt", file, "-p", passes, TRITON_PLUGIN_PATHS=variable)
    assert "@foo_num_warps_7" in out
    assert "plugin.magic" not in out


def test_opt_refuses(tmp_path):
    file = tmp_path / "x.mlir"
    file.write_text("module { tt.func public @f() { tt.return } }")
    for passes, words in (
        (f"{RENAMES}:nothing", "the native plugin TritonPlugin has no pass 'nothing'"),
        (f"{RENAMES}:plugin(7)", "native passes take texts"),
        (f'{RENAMES}:plugin{{a="7"}}', "'plugin' are not so written: {a=\"7\"}"),
        (f'{RENAMES}:plugin(a="7")', "'plugin' are not so written: (a=\"7\")"),
        ("/nowhere.so:plugin", "No such file"),
    ):
        out = run(MAIN, "opt", file, "-p", passes, ok=False)
        assert words in out
        assert "Traceback" not in out


def test_pipeline_command(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import remora\n"
        f"library = remora.load_native({str(RENAMES)!r})\n"
        'pipeline = remora.Pipeline("mine").insert(library.pass_("plugin"), after="ttir/cse")\n'
    )
    out = run(MAIN, "pipeline", "--with", f"{file}:pipeline")
    assert "+ native pass TritonPlugin.plugin" in out


def test_on_the_command_line_a_pass_goes_by_its_file():
    """As a reproducer has it: whoever runs that finds the library again."""
    code = """
import sys
import remora
print(remora.load_native(sys.argv[1]).pass_("plugin", "7").on_command_line())
"""
    assert run(code, RENAMES) == f'{RENAMES}:plugin("7")\n'


def test_a_pass_that_raises_as_it_is_added():
    code = """
import sys
import remora
from remora.errors import PipelineError
try:
    remora.load_native(sys.argv[1]).pass_("p", "1").check()
except PipelineError as error:
    print(error.what)
"""
    path = build("-l:libstdc++.so.6", throws="", **{"pass": '{"p", "1", throws, nothing}'})
    words = "the native pass 'Plain.p' does not take these arguments: too long\n"
    assert run(code, path) == words
