"""``remora compile``: a kernel from a file, for a target, on a machine without it."""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.cli.plugins import WITH_HELP
from remora.errors import CompilationFailed, PipelineError, PluginError, RemoraError

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget

_TYPE = re.compile(r"(\*?[a-z][a-z0-9]*(?:<[^>]*>)?)(?::(\d+))?")


def compile_kernel(
    kernel: Annotated[str, typer.Argument(help="FILE.py::KERNEL")],
    signature: Annotated[
        str,
        typer.Option(
            help='The types of the arguments that are no constants: "*fp16:16,*fp16,i32"; :16 says '
            "that it is a multiple of 16."
        ),
    ] = "",
    constexpr: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, for each constant: 128, true, tl.float16, a text."),
    ] = None,
    target: Annotated[str, typer.Option(help="cuda:90, hip:gfx950, ...")] = "cuda:90",
    emit: Annotated[
        str, typer.Option(help="Stages: ttir,ttgir,llir,ptx,cubin or amdgcn,hsaco.")
    ] = "ttgir",
    output: Annotated[
        Path | None, typer.Option("-o", help="A folder for KERNEL.STAGE; standard output if none.")
    ] = None,
    options: Annotated[str, typer.Option(help="The compiler's: num_warps=8,num_stages=3.")] = "",
    with_: Annotated[list[str] | None, typer.Option("--with", help=WITH_HELP)] = None,
) -> None:
    """Compile a kernel of a file for a target that need not be there, and print its stages.

    What is attached to the kernel is in force, and what --with names.
    """
    kernel_, name = compiled(kernel, signature, constexpr or [], target, options, with_ or [])
    _write(kernel_, name, [s.strip() for s in emit.split(",")], output)


def compiled(
    kernel: str,
    signature: str,
    constexpr: list[str],
    target: str,
    options: str,
    with_: list[str] | None = None,
) -> tuple[Any, str]:
    """The ``CompiledKernel`` of FILE.py::KERNEL, and the kernel's name; arguments as above."""
    from triton import knobs, runtime

    from remora import host, use
    from remora.cli.plugins import pipelines_of
    from remora.host.targets import gpu_target
    from remora.pipeline import attached

    host.features()
    machine = gpu_target(target)
    runtime.driver.set_active(_Machine(machine))  # kernels ask it for their target
    pipelines = pipelines_of(with_ or [])
    found = _kernel(kernel)
    function = _function(found)
    source = _source(function, signature, constexpr)
    given = _options(options, machine)
    import triton

    with use(*attached(found), *pipelines), knobs.compilation.scope():
        knobs.compilation.store_binary_only = False
        try:
            found_kernel = triton.compile(source, target=machine, options=given)
        except Exception as error:
            if RemoraError.of(error):
                raise
            raise CompilationFailed(
                f"{type(error).__name__}: {str(error).strip()}",
                where=f"{kernel} for {target}",
                hint="a type of the signature may not exist" if isinstance(error, KeyError) else "",
            ) from error
    return found_kernel, function.fn.__name__


class _Machine:
    """Stands in for the driver of a GPU that is not there."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0


def _kernel(reference: str) -> Any:
    from remora.cli.passes import module_of_file

    file, separator, name = reference.rpartition("::")
    if not separator:
        raise PluginError(f"{reference!r} names no kernel", hint="write FILE.py::KERNEL")
    module = module_of_file(Path(file))
    kernels = [k for k, v in vars(module).items() if hasattr(v, "run") and hasattr(v, "fn")]
    if name not in kernels:
        raise PluginError(
            f"{file} has no kernel {name!r}", hint=f"kernels in it: {', '.join(kernels) or 'none'}"
        )
    return getattr(module, name)


def _function(kernel: Any) -> Any:
    """The JIT function under the autotuner and heuristics."""
    from triton.runtime.jit import JITFunction

    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    return kernel


def _source(function: Any, signature: str, constants: list[str]) -> Any:
    """What ``triton.compile`` takes."""
    from triton.compiler import ASTSource

    values: dict[str, Any] = {}
    for text in constants:
        name, equals, value = text.partition("=")
        if not equals or name.strip() not in function.arg_names:
            raise PipelineError(
                f"--constexpr {text!r} sets no parameter of the kernel",
                hint=f"write NAME=VALUE; parameters: {', '.join(function.arg_names)}",
            )
        values[name.strip()] = _value(value.strip())
    for parameter in function.params:
        if parameter.is_constexpr and parameter.name not in values:
            if not parameter.has_default:
                raise PipelineError(
                    f"the constant {parameter.name} has no value",
                    hint=f"add --constexpr {parameter.name}=VALUE",
                )
            values[parameter.name] = parameter.default
    names = [name for name in function.arg_names if name not in values]
    types = [t.strip() for t in re.split(r",(?![^<]*>)", signature)] if signature else []
    if len(types) != len(names):
        raise PipelineError(
            f"the signature has {len(types)} types, and the kernel {len(names)} arguments that "
            "are no constants",
            where=f"--signature {signature!r}",
            hint=f"in their order: {', '.join(names)}",
        )
    kinds = dict.fromkeys(function.arg_names, "constexpr")
    attributes: dict[Any, Any] = {}
    for name, text in zip(names, types, strict=True):
        match = _TYPE.fullmatch(text)
        if match is None:
            raise PipelineError(f"{text!r} is not a type", hint="write *fp16, i32, *bf16:16, ...")
        kinds[name] = match[1]
        if match[2]:
            place = (function.arg_names.index(name),)
            attributes[place] = [["tt.divisibility", int(match[2])]]
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource(function, kinds, values, attributes)
    return ASTSource(function, kinds, values, attributes)


def _value(text: str) -> Any:
    import triton.language as tl

    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("tl.") and hasattr(tl, text[3:]):
        return getattr(tl, text[3:])
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _options(text: str, target: GPUTarget) -> dict[str, Any]:
    """The compiler's options; one that it would ignore is an error."""
    from triton.compiler.compiler import make_backend

    known = vars(make_backend(target).parse_options({}))
    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            raise PipelineError(
                f"{part!r} is no option of the compiler for {target.backend}",
                hint=f"write num_warps=8,num_stages=3; nearest: {', '.join(near) or 'none'}",
            )
        found[name] = _value(value)
    return found


def _write(compiled: Any, name: str, stages: list[str], folder: Path | None) -> None:
    for stage in stages:
        if stage not in compiled.asm:
            raise PipelineError(
                f"there is no stage {stage!r}", hint=f"stages: {', '.join(compiled.asm)}"
            )
        if folder is None and isinstance(compiled.asm[stage], bytes):
            raise PipelineError(f"{stage} is a binary", hint="name a folder for it with -o")
    for stage in stages:
        content = compiled.asm[stage]
        if folder is None:
            typer.echo(content if isinstance(content, str) else str(content))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.{stage}"
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
        typer.echo(str(path), err=True)
