"""The peer's tutorials, unmodified: compiled for a target without a GPU, or run on Hopper.

    python benchmarks/tutorials.py compile --out FILE.json      # here, through Remora
    python benchmarks/tutorials.py compile --target cuda:100 --out FILE.json   # or hip:gfx950
    python benchmarks/tutorials.py run --out FILE.json          # on a Hopper GPU
    ... --python remora-3.8.0=.venv-3.8.0/bin/python --python peer=.venv-peer/bin/python
    ... --only hopper_gemm --configs 2

Each contestant is a process of its own; one whose name begins with "peer" imports the C++
plugin's package instead of Remora; one that begins with "remora-waits" waits for each product
right after it, as the peer does, besides the author's waits. Without --python the only one is
this Python's Remora.
The tutorials come from --folder, from $REMORA_TUTORIALS, or from the pinned wheel, which is
downloaded once; they are never part of this repository.

compile writes for each kernel and configuration what failed, or what ``beside.look_at`` says of
it (registers, spills, occupancy; matrix instructions, traffic by width, waits and barriers; of
innermost loops the operations of the last TTGIR and the model of docs/bounds.md), and, where a
peer takes part, how the assembly differs from the peer's. A process that dies costs its case
alone. run writes whether the result is torch's, and milliseconds: each configuration by the
contestants in turn, round by round.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib.util
import inspect
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import beside
import machine

WHEEL = "triton-utlx==3.8.0.post16"
HERE = Path(__file__).resolve().parent

# --- the tutorials --------------------------------------------------------------------------------


class Case:
    """One use of a tutorial's entry point.

    arguments: makes what it is called with. expected: what torch says of that.
    flops: of one call. then: what is done with the result, which may run more kernels.
    """

    def __init__(
        self, entry: str, arguments: Callable[[], Any], expected: Callable[..., Any] | None = None,
        flops: float = 0, label: str = "", then: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.entry, self.arguments, self.expected = entry, arguments, expected
        self.flops, self.label, self.then = flops, label, then


def product(entry: str, size: int = 4096) -> Case:
    """fp16 matrices."""

    def arguments() -> Any:
        import torch

        torch.manual_seed(0)
        make = {"device": "cuda", "dtype": torch.float16}
        return torch.randn((size, size), **make), torch.randn((size, size), **make)

    return Case(entry, arguments, lambda a, b: a @ b, 2.0 * size**3, f"{size}")


def attention(head: int) -> Case:
    """Batch 4, 8 heads, 4096 positions, fp16."""

    def arguments() -> Any:
        import torch

        torch.manual_seed(0)
        make = {"device": "cuda", "dtype": torch.float16}
        return (*(torch.randn((4, 8, 4096, head), **make) for _ in range(3)), 0.5)

    def expected(q: Any, k: Any, v: Any, scale: float) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)

    return Case("attention", arguments, expected, 4.0 * 4 * 8 * 4096**2 * head, f"head {head}")


def addition(entry: str) -> Case:
    """Two sums of 98,432 numbers in fp32."""

    def arguments() -> Any:
        import torch

        torch.manual_seed(0)
        return tuple(torch.rand(98432, device="cuda") for _ in range(4))

    return Case(entry, arguments, lambda x, y, a, b: (x + y, a + b), 2.0 * 98432)


def tensors(*shapes: tuple[int, ...], dtype: str = "float16") -> Any:
    """Zeros: what is only compiled asks no more of them."""
    import torch

    return [torch.zeros(s, device="cuda", dtype=getattr(torch, dtype)) for s in shapes]


def compiled_attention(label: str, *more: Any, gradients: bool = False) -> Case:
    """Attention of head dimension 128 that is only compiled; ``more``: its last arguments."""

    def arguments() -> Any:
        qkv = tensors(*[(4, 8, 4096, 128)] * 3)
        return (*(t.requires_grad_(gradients) for t in qkv), 0.5, *more)

    def backward(result: Any) -> None:
        result.backward(result.detach())

    return Case("attention", arguments, label=label, then=backward if gradients else None)


def scaled_attention(head: int, causal: bool) -> Case:
    """Attention of mxfp8 that is only compiled: a scale for 32 elements, in boxes of 128 x 4."""

    def arguments() -> Any:
        qkv = tensors(*[(4, 8, 4096, head)] * 3, dtype="float8_e4m3fn")
        boxes = (4096 // 128, -(-head // 128), 2, 256)
        turned = (-(-head // 128), 4096 // 128, 2, 256)
        scales = tensors((32, *boxes), (32, *boxes), (32, *turned), dtype="uint8")
        return *qkv, *scales, 0.5, causal

    return Case("attention", arguments, label=f"head {head} {'causal' if causal else 'full'}")


def grouped(entry: str) -> Case:
    """Two products in one launch."""
    return Case(entry, lambda: [tensors((1024, 1024), (512, 512)) for _ in range(2)])


def jagged(entry: str, *more: Any, label: str = "") -> Case:
    """Attention of four sequences of different lengths; ``more``: the last arguments."""

    def arguments() -> Any:
        import torch

        q, k, v = tensors(*[(4096, 4, 128)] * 3, dtype="bfloat16")
        starts = 1024 * torch.arange(5, dtype=torch.int32)
        if entry == "gdpa_forward_tlx":
            return q, k, v, starts, starts, 1024, 1024
        return 1280, 0.1, q[:1024], k, v, starts, starts // 4, 256, torch.tensor(1.0), *more

    return Case(entry, arguments, label=label)


HOPPER: dict[str, list[Case]] = {
    "vector-add2": [addition("add2"), addition("add2_warp_specialized")],
    "hopper_gemm_pipelined": [product("matmul")],
    "hopper_gemm_ws": [product("matmul")],
    "hopper-persistent-gemm-ws-cooperative": [product("matmul_tlx_ws_persistent")],
    "hopper-persistent-gemm-ws-pingpong": [product("matmul_tlx_ws_persistent")],
    "hopper_fa_ws": [attention(128)],
    "hopper_fa_ws_pipelined": [attention(128)],
    "hopper_fa_ws_pipelined_pingpong": [attention(128)],
    "hopper_fa_ws_pipelined_pingpong_persistent": [attention(64), attention(128)],
}

BLACKWELL: dict[str, list[Case]] = {
    "blackwell_gemm_pipelined": [product("matmul")],
    "blackwell_gemm_ws": [product("matmul")],
    "blackwell_gemm_2cta": [product("matmul")],
    "blackwell_gemm_clc": [product("matmul")],
    "blackwell-grouped-gemm_test": [grouped("group_gemm_tlx_fn"), grouped("group_gemm_tma_fn")],
    "blackwell-multi-cta-layernorm_test": [
        Case("multi_cta_layernorm", lambda: tensors((1152, 16384), (16384,), (16384,)))
    ],
    "blackwell_fa_ws": [compiled_attention("")],
    "blackwell_fa_ws_persistent": [
        compiled_attention("full", False), compiled_attention("causal", True),
    ],
    "blackwell_fa_ws_pipelined": [
        compiled_attention("full", False), compiled_attention("causal", True),
    ],
    "blackwell_fa_ws_pipelined_persistent": [
        compiled_attention("full", False, 64, 1, gradients=True),
        compiled_attention("causal", True, 64, 1, gradients=True),
    ],
    "blackwell_fa_ws_pipelined_persistent_mxfp8": [
        scaled_attention(64, False), scaled_attention(128, True),
    ],
    "blackwell-cross-attention": [
        jagged("triton_hstu_cross_attn_fwd", "tlx_single_q", label="single q"),
        jagged("triton_hstu_cross_attn_fwd", "tlx_pipeline", label="pipelined"),
    ],
    "blackwell-gdpa": [jagged("gdpa_forward_tlx")],
}  # fmt: skip

AMD: dict[str, list[Case]] = {"amd-gemm-pipelined_test": [product("matmul")]}

TUTORIALS = {"cuda:90": HOPPER, "cuda:100": BLACKWELL, "hip:gfx942": AMD, "hip:gfx950": AMD}


def folder_of_tutorials(given: str | None) -> Path:
    """Where the tutorials are."""
    if given or os.environ.get("REMORA_TUTORIALS"):
        folder = Path(given or os.environ["REMORA_TUTORIALS"])
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remora"
        folder = cache / WHEEL / "tlx" / "tutorials"
        if not folder.exists():
            _download(cache / WHEEL)
    if not folder.is_dir():
        sys.exit(f"there are no tutorials in {folder}")
    return folder


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
             "--dest", wheels, WHEEL],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("tlx/tutorials/")]
            archive.extractall(folder, names)


def load(folder: Path, name: str) -> ModuleType:
    """A tutorial as a module. torchao's names, which one imports for its test data, stand in."""
    for package in ("torchao", "torchao.prototype", "torchao.prototype.mx_formats"):
        sys.modules.setdefault(package, ModuleType(package))
    formats = ModuleType("torchao.prototype.mx_formats.mx_tensor")
    formats.MXTensor = formats.ScaleCalculationMode = None  # type: ignore[attr-defined]
    sys.modules.setdefault(formats.__name__, formats)
    identifier = name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(identifier, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[identifier] = module
    spec.loader.exec_module(module)
    return module


def configured(module: ModuleType, entry: str, chosen: slice) -> Iterator[str]:
    """Set the autotuners that an entry point may use to one configuration after another."""
    from triton.runtime.autotuner import Autotuner

    text = inspect.getsource(getattr(module, entry))
    tuners = [v for v in vars(module).values() if isinstance(v, Autotuner)]
    # Most tutorials have one; an entry may reach it through a class.
    used = [t for t in tuners if t.base_fn.__name__ in text] or tuners[:1]
    if not used or ("apply" not in text and used[0].base_fn.__name__ not in text):
        yield ""
        return
    choices = [list(tuner.configs) for tuner in used]
    for i in range(max(map(len, choices)))[chosen]:
        for tuner, configs in zip(used, choices, strict=True):
            tuner.configs, tuner.cache = [configs[i % len(configs)]], {}
        yield "; ".join(describe(tuner.configs[0]) for tuner in used)


def describe(config: Any) -> str:
    """A configuration in words, the same in every contestant."""
    extra = {"ctas_per_cga": getattr(config, "ctas_per_cga", None)}
    values = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    values.update({k: v for k, v in extra.items() if v})
    return " ".join(f"{k}={v}" for k, v in sorted(values.items()))


def import_tlx(contestant: str) -> None:
    """Remora under the names that the tutorials import, or the peer."""
    if contestant.startswith("peer"):
        with contextlib.suppress(ImportError):  # its .pth file, where pip installed it
            import _utlx_autoregister  # noqa: F401
        import utlx_plugin  # noqa: F401
    else:
        import remora.tlx

        remora.tlx.install_aliases()
        if contestant.startswith("remora-waits"):
            from remora.pipeline import active

            active.add(remora.tlx.wait_for_each_product)


# --- compiling, without a GPU ---------------------------------------------------------------------


def compile_all(
    contestant: str, folder: Path, name: str, first: int, chosen: slice, target: str,
    write: Callable[[dict[str, Any]], None],
) -> None:  # fmt: skip
    """Compile every kernel of a tutorial in every configuration.

    first: the case to begin with. write: gets a row when a kernel begins, with ``"begins"`` as
    the number of its case, and one when it is done.
    """
    sys.path.insert(0, str(HERE.parent / "corpus"))
    import standin

    now: dict[str, Any] = {"tutorial": name, "case": "", "config": ""}
    number = first

    def launched(
        function: Any, signature: Any, constants: Any, attributes: Any, options: Any
    ) -> None:
        row = {**now, "kernel": function.fn.__name__}
        write(row | {"begins": number})
        try:
            compiled = compile_one(function, signature, constants, attributes, options, gpu)
            write(row | artefacts(compiled))
        except Exception as error:
            write(row | {"error": reason(error)})

    backend, _, arch = target.partition(":")
    if backend == "cuda":
        standin.CAPABILITY = divmod(int(arch), 10)
    standin.install(launched, target)
    import_tlx(contestant)
    from triton.backends.compiler import GPUTarget
    from triton.runtime.autotuner import Autotuner

    # The peer's process has no Remora, which the stand-in would ask what a target is.
    on_cuda = backend == "cuda"
    gpu = GPUTarget("cuda", int(arch), 32) if on_cuda else GPUTarget("hip", arch, 64)
    standin.Driver.get_current_target = lambda self: gpu

    # The stand-in takes the first configuration of several; here is one at a time.
    try:
        module = load(folder, name)
    except Exception as error:
        write({**now, "error": reason(error)})
        return
    tuners = [v for v in vars(module).values() if isinstance(v, Autotuner)]
    before = [(t, t.configs) for t in tuners]
    for number, case in list(enumerate(TUTORIALS[target][name]))[first:]:
        for config in configured(module, case.entry, chosen):
            now = {"tutorial": name, "case": f"{case.entry} {case.label}".strip(),
                   "config": config}  # fmt: skip
            print(contestant, *now.values(), file=sys.stderr, flush=True)
            write({**now, "begins": number})
            try:
                result = getattr(module, case.entry)(*case.arguments())
                if case.then is not None:
                    case.then(result)
            except Exception as error:
                write({**now, "error": reason(error)})
        for tuner, configs in before:
            tuner.configs = configs


def compile_one(
    function: Any, signature: Any, constants: Any, attributes: Any, options: Any, gpu: Any
) -> Any:
    """As the JIT compiles it."""
    import triton
    from triton.compiler import ASTSource

    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=gpu, options=options.__dict__)


def reason(error: BaseException) -> str:
    """The last error of a chain, in one line: where in the kernel, and what."""
    cause = error
    while (behind := cause.__cause__ or cause.__context__) is not None:
        cause = behind
    text = str(cause).strip() or traceback.format_exception_only(cause)[-1].strip()
    return f"{type(cause).__name__}: {' '.join(text.split())}"[:400]


def artefacts(compiled: Any) -> dict[str, Any]:
    """What ``beside`` looks at, in the parent's process: the peer's has no Remora."""
    on_amd = "amdgcn" in compiled.asm
    return {
        "ttgir": str(compiled.asm["ttgir"]),
        "assembly": compiled.asm["amdgcn" if on_amd else "ptx"],
        "binary": None if on_amd else base64.b64encode(compiled.asm["cubin"]).decode(),
        "shared": compiled.metadata.shared,
        "tensor_memory": getattr(compiled.metadata, "tmem_size", None) or 0,
        "num_warps": compiled.metadata.num_warps,
    }


# --- running, on a GPU ----------------------------------------------------------------------------


def run_all(contestant: str, folder: Path, names: list[str], chosen: slice) -> list[Any]:
    """Run the tutorials in their configurations, as the parent asks for it.

    One line of JSON to the parent for each configuration, whether it is right; then for
    each line that comes in the milliseconds of a call, until that line is "next".
    """
    import torch
    import triton.testing

    # Tutorials print: standard output is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    import_tlx(contestant)
    for name in names:
        row: dict[str, Any] = {"tutorial": name, "case": "", "config": ""}
        try:
            module = load(folder, name)
        except Exception as error:
            answer({**row, "error": reason(error)})
            continue
        if hasattr(module, "alloc_fn"):
            triton.set_allocator(module.alloc_fn)
        for case in HOPPER[name]:
            assert case.expected is not None
            arguments = case.arguments()
            expected = case.expected(*arguments)
            entry = getattr(module, case.entry)
            for config in configured(module, case.entry, chosen):
                row = {"tutorial": name, "case": f"{case.entry} {case.label}".strip(),
                       "config": config}  # fmt: skip
                print(contestant, *row.values(), file=sys.stderr, flush=True)
                try:
                    row["relative_error"] = relative_error(entry(*arguments), expected)
                    row["flops"] = case.flops
                except Exception as error:
                    row["error"] = reason(error)
                    with contextlib.suppress(Exception):
                        torch.cuda.synchronize()
                answer(row)
                while "error" not in row and sys.stdin.readline().strip() == "time":
                    # As a graph: what the host does between launches is not the kernel's.
                    milliseconds = triton.testing.do_bench_cudagraph(
                        lambda entry=entry, given=arguments: entry(*given),
                        rep=15,
                        return_mode="median",
                    )
                    answer({"ms": milliseconds})
    return []


def in_turn(pythons: dict[str, str], arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """What the contestants answer; each configuration by one after the other, round by round."""
    rows: dict[str, list[Any]] = {name: [] for name in pythons}
    with contextlib.ExitStack() as stack:
        processes: dict[str, subprocess.Popen[str]] = {}
        for name, python in pythons.items():
            command, environment = command_of(name, python, arguments, stack)
            process = subprocess.Popen(
                command, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            processes[name] = process
            stack.callback(process.kill)

        def heard(name: str) -> dict[str, Any] | None:
            line = processes[name].stdout.readline()  # type: ignore[union-attr]
            if not line:
                processes[name].wait()
                return None
            found: dict[str, Any] = json.loads(line)
            return found

        def say(name: str, word: str) -> None:
            stdin = processes[name].stdin
            assert stdin is not None
            print(word, file=stdin, flush=True)

        while processes:
            now = {}
            for name in list(processes):
                row = heard(name)
                if row is None:
                    if status := processes.pop(name).returncode:
                        rows[name].append({"tutorial": "*", "error": f"ended with {status}"})
                    continue
                now[name] = row | {"all_ms": []}
                rows[name].append(now[name])
            timed = [name for name, row in now.items() if "error" not in row]
            for round_ in range(arguments.rounds):
                order = timed if round_ % 2 == 0 else timed[::-1]
                # Who is first after a pause takes longer: a launch of 1.5 us by 0.2 us.
                for name in order[:1]:
                    say(name, "time")
                    heard(name)
                for name in order:
                    say(name, "time")
                    if (time := heard(name)) is not None:
                        now[name]["all_ms"].append(time["ms"])
            for name in timed:
                say(name, "next")
                if times := now[name]["all_ms"]:
                    now[name]["ms"] = statistics.median(times)
                    now[name]["tflops"] = now[name]["flops"] / now[name]["ms"] / 1e9
    return rows


def relative_error(found: Any, expected: Any) -> float:
    """The largest, over the results, of the norm of the difference to the norm of the result."""
    results = found if isinstance(found, tuple) else (found,)
    truths = expected if isinstance(expected, tuple) else (expected,)
    return max(
        float((r.double() - t.double()).norm() / t.double().norm())
        for r, t in zip(results, truths, strict=True)
    )


# --- contestants ----------------------------------------------------------------------------------


def child(arguments: argparse.Namespace) -> None:
    """One contestant, in its own process; compiling, rows to a file as they come."""
    given = TUTORIALS[arguments.target]
    chosen = slice(0, arguments.configs * arguments.every, arguments.every)
    folder = Path(arguments.folder)
    if arguments.what == "run":
        run_all(arguments.contestant, folder, [n for n in given if arguments.only in n], chosen)
        return
    with Path(arguments.out).open("a") as out:

        def write(row: dict[str, Any]) -> None:
            print(json.dumps(row), file=out, flush=True)

        compile_all(
            arguments.contestant, folder, arguments.tutorial, arguments.first, chosen,
            arguments.target, write,
        )  # fmt: skip


def compiled_by_all(pythons: dict[str, str], arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """What the contestants compile, a process for each tutorial, ``--jobs`` of them at a time."""
    names = [name for name in TUTORIALS[arguments.target] if arguments.only in name]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = {
            c: [pool.submit(rows_of, c, python, name, arguments) for name in names]
            for c, python in pythons.items()
        }
        return {c: [row for one in futures for row in one.result()] for c, futures in found.items()}


def rows_of(contestant: str, python: str, name: str, arguments: argparse.Namespace) -> list[Any]:
    """A contestant's rows of a tutorial; an error where it died, and what comes after that case."""
    rows: list[Any] = []
    first, cases = 0, len(TUTORIALS[arguments.target][name])
    while first < cases:
        with contextlib.ExitStack() as stack:
            command, environment = command_of(contestant, python, arguments, stack)
            out = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "rows.json"
            command += ["--tutorial", name, "--first", str(first), "--out", str(out)]
            done = subprocess.run(
                command, env=environment, stderr=subprocess.PIPE, text=True, check=False
            )
            sys.stderr.write(done.stderr)
            written = list(map(json.loads, out.open())) if out.exists() else []
        rows += [looked_at(row) for row in written if "begins" not in row]
        if done.returncode == 0:
            break
        last = written[-1] if written else {"tutorial": name}
        first = last.pop("begins", first) + 1
        rows.append(last | {"error": last_words(done).replace(f"{arguments.folder}/", "")})
    return rows


def looked_at(row: dict[str, Any]) -> dict[str, Any]:
    """A row with what its kernel is like in place of the kernel."""
    if "assembly" not in row:
        return row
    made = ("assembly", "binary", "ttgir", "shared", "tensor_memory", "num_warps")
    given = {name: row.pop(name) for name in made}
    if given["binary"] is not None:
        given["binary"] = base64.b64decode(given["binary"])
    return row | beside.look_at(given) | {"code": beside.code_of(given)}


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process died: its first error, or else how it ended."""
    lines = (line.strip() for line in done.stderr.splitlines())
    word = next((line for line in lines if re.search(r"\berror:", line, re.IGNORECASE)), "")
    return f"the process ended with {done.returncode}{': ' * bool(word)}{word}"[:400]


def command_of(
    contestant: str, python: str, arguments: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[list[str], dict[str, str]]:
    """How a contestant is started, and its environment."""
    if arguments.cache:
        cache = f"{arguments.cache}/{contestant}"
    else:
        cache = stack.enter_context(tempfile.TemporaryDirectory())
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    if contestant.startswith("peer"):
        environment.pop("PYTHONPATH", None)
    command = [
        python, "-W", "ignore", __file__, arguments.what, "--child",
        "--contestant", contestant, "--folder", str(arguments.folder),
        "--only", arguments.only, "--configs", str(arguments.configs),
        "--every", str(arguments.every), "--target", arguments.target,
    ]  # fmt: skip
    return command, environment


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What is the same in every contestant."""
    return tuple(row.get(k, "") for k in ("tutorial", "case", "config", "kernel"))


def compare(all_rows: dict[str, list[Any]]) -> None:
    """Put the difference to the peer's assembly into the others' rows; drop the code itself."""
    peers = {key(r): r for c, rows in all_rows.items() if c.startswith("peer") for r in rows}
    for contestant, rows in all_rows.items():
        for row in rows:
            other = peers.get(key(row))
            if contestant.startswith("peer") or "code" not in row or not other:
                continue
            if "code" in other:
                row["beside_peer"] = beside.difference(row["code"], other["code"])
                same = row["innermost_loops"] == other["innermost_loops"]
                row["same_operations_in_innermost_loops"] = same
    for rows in all_rows.values():
        for row in rows:
            row.pop("code", None)


def summary(contestant: str, row: dict[str, Any]) -> str:
    """A row in a line."""
    words = [f"{contestant:14}", row["tutorial"], row.get("case", ""), row.get("config", "")]
    if "error" in row:
        words.append(f"ERROR {row['error']}")
    elif "registers" in row:
        words.append(
            f"registers {row['registers']}, spilled {row['spilled_registers']}, "
            f"conversions in loops {row['conversions_in_loops']}"
        )
        if to_peer := row.get("beside_peer"):
            loops = "same" if row["same_operations_in_innermost_loops"] else "other"
            code = "same code" if to_peer["same"] else f"code {to_peer['in_order']:.1%} in order"
            words.append(f"{loops} loops, {code}")
    else:
        words.append(f"error {row['relative_error']:.1e}")
        if "ms" in row:
            words.append(f"{row['ms']:.4f} ms")
        if "to_peer" in row:
            words.append(f"speed to the peer's {row['to_peer']:.3f}")
    return "  ".join(filter(None, words))


def as_text(record: dict[str, Any], rows: dict[str, list[Any]]) -> str:
    """JSON, a row on a line."""
    body = ",\n".join(
        f"{json.dumps(c)}: [\n" + ",\n".join(map(json.dumps, found)) + "\n]"
        for c, found in rows.items()
    )
    return json.dumps(record, indent=1).removesuffix("\n}") + f',\n "rows": {{\n{body}\n}}}}\n'


def plot(rows: dict[str, list[Any]], where: dict[str, Any], path: Path) -> None:
    """Bars of the speed to the peer's, one for each configuration and contestant."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = {c: {key(r): r["to_peer"] for r in found if "to_peer" in r} for c, found in rows.items()}
    bars = {c: found for c, found in bars.items() if found}
    keys = list(dict.fromkeys(k for found in bars.values() for k in found))
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.3 * len(keys)))
    for number, (contestant, found) in enumerate(bars.items()):
        places = [keys.index(k) + 0.4 * number for k in found]
        drawn = axes.barh(places, list(found.values()), 0.38, label=contestant)
        axes.bar_label(drawn, fmt="%.3f", fontsize=6, padding=2)
    names = [f"{k[0]} {k[1].rpartition(' ')[2]}, {shortened(k[2])}" for k in keys]
    axes.set_yticks(range(len(keys)), names, fontsize=6)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.5)
    axes.legend(fontsize=7)
    axes.set_xlabel("the peer's time by the contestant's")
    axes.set_title(f"{where['gpu'].split(',')[0]}, Triton {where['triton']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def shortened(config: str) -> str:
    """A configuration in the space of an axis."""
    words = (w for w in config.split() if not w.startswith(("num_", "NUM_MMA_W", "ctas", "1")))
    return " ".join(
        re.sub(r"[A-Z_]*?([A-Z]+)=", r"\1=", w.replace("GROUP_SIZE_", "G")) for w in words
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("compile", "run"))
    parser.add_argument("--folder", help="the tutorials'")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--only", default="", help="tutorials whose name holds this")
    parser.add_argument("--configs", type=int, default=1000, help="at most, of each tutorial")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take each N-th one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compiling at a time")
    parser.add_argument("--cache", help="a folder for compiled kernels, kept between runs")
    parser.add_argument("--out", help="a JSON file")
    parser.add_argument("--target", default="cuda:90", choices=TUTORIALS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tutorial", default="", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--contestant", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    arguments.folder = folder_of_tutorials(arguments.folder)
    pythons = dict(p.split("=", 1) for p in arguments.python) or {"remora": sys.executable}
    if arguments.what == "compile":
        result = compiled_by_all(pythons, arguments)
        compare(result)
    else:
        result = in_turn(pythons, arguments)
    peers = {key(r): r for c, rows in result.items() if c.startswith("peer") for r in rows}
    for contestant, rows in result.items():
        for row in rows:
            other = peers.get(key(row))
            if other and "ms" in row and "ms" in other and not contestant.startswith("peer"):
                row["to_peer"] = other["ms"] / row["ms"]
            print(summary(contestant, row))
    if arguments.out:
        record = machine.record()
        Path(arguments.out).write_text(as_text(record, result))
        if any("to_peer" in row for rows in result.values() for row in rows):
            plot(result, record["machine"], Path(arguments.out).with_suffix(".png"))


if __name__ == "__main__":
    main()
