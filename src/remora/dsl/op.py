"""``@remora.op``: a new word of the language, with its three faces.

The decorated function is the *signature*: it checks what it is given and says
what the results are. ``.reference`` attaches the *meaning*, on NumPy arrays.
``.lowering`` attaches what becomes of it in TTGIR, for a target.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

from triton.language import core as tl

from remora.dsl import carrier, strands
from remora.dsl.known import known_integer
from remora.dsl.values import Handle, HandleType
from remora.errors import (
    LanguageError,
    NeedsCompiler,
    NotConstant,
    PluginError,
    UnsupportedByTarget,
    WrongDtype,
    WrongShape,
    WrongType,
)

#: Under the reference meaning: the warps of the launch that is running.
reference_warps: ContextVar[int] = ContextVar("remora.dsl.warps", default=4)


@dataclass(frozen=True)
class Target:
    """What a kernel is compiled for.

    backend: ``"cuda"``, ``"hip"``, or ``"interpreter"`` under the reference meaning.
    arch: the compute capability times ten (90), or the gfx name.
    """

    backend: str
    arch: int | str

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"

    def matches(self, pattern: str) -> bool:
        """Whether ``pattern``, a backend or ``backend:arch``, means this target."""
        return pattern in (self.backend, str(self))


def _line_of(generator: Any) -> str:
    """The line of a kernel that Triton's code generator is at."""
    line = getattr(generator.cur_node, "lineno", 1) + generator.begin_line
    return f"{generator.file_name}:{line}, in {getattr(generator.jit_fn, '__name__', '?')}"


def kernel_line() -> str:
    """The line of the kernel that is being compiled, for what is no operation; empty elsewhere.

    Triton tells neither names nor classes that a kernel uses: the code generator is on the stack.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        generator = frame.f_locals.get("self")
        if frame.f_code.co_name.startswith("visit_") and hasattr(generator, "begin_line"):
            return _line_of(generator)
        frame = frame.f_back
    return ""


class Call:
    """One use of an operation in a kernel: what its signature works with."""

    def __init__(self, op: Op, semantic: Any, generator: Any) -> None:
        self.op = op
        self.semantic = semantic
        self.generator = generator

    @property
    def interpreted(self) -> bool:
        """Whether the kernel runs with the reference meaning."""
        return self.generator is None

    @property
    def target(self) -> Target:
        """The target that the kernel is compiled for."""
        if self.interpreted:
            return Target("interpreter", 0)
        options = self.semantic.builder.options
        arch = str(options.arch)
        if options.backend_name == "cuda":
            return Target("cuda", int(arch.removeprefix("sm")))
        return Target(options.backend_name, arch)

    @property
    def num_warps(self) -> int:
        """Warps that run the use: the program's, or those of the region that it is in.

        Under the reference meaning the launch's, where the launch says so, else 4.
        """
        from remora.dsl.regions import open_regions

        for region in reversed(open_regions(self)):
            if region.attributes.get("num_warps"):
                return int(region.attributes["num_warps"])
        if self.interpreted:
            return reference_warps.get()
        return int(self.semantic.builder.options.num_warps)

    @property
    def num_ctas(self) -> int:
        """CTAs of the program (a cluster); 1 under the reference meaning."""
        return 1 if self.interpreted else int(getattr(self.semantic.builder.options, "num_ctas", 1))

    @property
    def where(self) -> str:
        """The kernel's line that calls the operation."""
        if self.interpreted:
            frame = kernel_frame()
            return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
        return _line_of(self.generator)

    def fail(self, kind: type[LanguageError], what: str, hint: str = "") -> NoReturn:
        """Refuse the use, at the kernel's line."""
        raise kind(f"{self.op.name}: {what}", where=self.where, hint=hint)

    def require_target(self, *patterns: str, reason: str, instead: str) -> None:
        """Refuse targets that the operation cannot have; the reference meaning has no target."""
        if not self.interpreted and not any(self.target.matches(p) for p in patterns):
            self.fail(
                UnsupportedByTarget,
                f"the target {self.target} has no such operation: {reason}",
                hint=instead,
            )

    def constant(self, name: str, value: Any, kind: type | tuple[type, ...] = int) -> Any:
        """The Python value of an argument that has to be known at compile time.

        Raises:
            NotConstant: the value is only known when the kernel runs.
            WrongType: it is a constant of another type.
        """
        value = tl._unwrap_if_constexpr(value)
        if isinstance(value, tl.tensor):
            found = None
            if self.interpreted and not value.type.is_block():
                found = value.handle.data.item()
            elif value.type == tl.int32:
                found = known_integer(self.generator.module, value.handle)
            if found is None:
                self.fail(
                    NotConstant,
                    f"{name} has to be known when the kernel is compiled, it is {value.type}",
                    hint=f"make {name} a tl.constexpr argument or a literal",
                )
            value = found
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            wanted = " or ".join(k.__name__ for k in kinds)
            self.fail(
                WrongType,
                f"{name} has to be {wanted}, it is {describe(value)}",
                hint=f"give a constant {wanted}",
            )
        return value

    def shape(self, name: str, value: Any) -> tuple[int, ...]:
        """A constant shape: a tuple of positive integers."""
        value = tl._unwrap_if_constexpr(value)
        if isinstance(value, tl.tuple):
            value = value.values
        if not isinstance(value, (tuple, list)) or not value:
            self.fail(
                WrongType,
                f"{name} has to be a tuple of integers, it is {describe(value)}",
                hint="for one dimension of N write (N,)",
            )
        shape = tuple(self.constant(f"{name}[{i}]", v) for i, v in enumerate(value))
        if any(extent <= 0 for extent in shape):
            self.fail(
                WrongShape,
                f"{name} has to be positive in every dimension, it is {shape}",
                hint="give extents of at least 1",
            )
        return shape

    def tensor(
        self,
        name: str,
        value: Any,
        *,
        shape: Sequence[int] | None = None,
        dtypes: Sequence[Any] = (),
    ) -> Any:
        """Check that an argument is a tensor (of ``shape``, of one of ``dtypes``).

        Numbers become scalars, as everywhere in Triton.
        """
        value = tl._unwrap_if_constexpr(value)
        if isinstance(value, (bool, int, float)):
            value = self.semantic.to_tensor(value)
        if not isinstance(value, tl.tensor):
            self.fail(
                WrongType,
                f"{name} has to be a tensor, it is {describe(value)}",
                hint="tl.load and the operations on tensors give one",
            )
        actual = tuple(tl._unwrap_if_constexpr(d) for d in value.shape)
        if shape is not None and actual != tuple(shape):
            self.fail(
                WrongShape,
                f"{name} has to be of shape {tuple(shape)}, it is {actual}",
                hint="tl.broadcast_to and tl.reshape change a tensor's shape",
            )
        if dtypes and value.dtype not in dtypes:
            wanted = ", ".join(map(str, dtypes))
            self.fail(
                WrongDtype,
                f"{name} has to be of {wanted}, it is of {value.dtype}",
                hint="x.to(dtype) converts a tensor",
            )
        return value

    def integer(self, name: str, value: Any) -> Any:
        """Check that an argument is a scalar integer, at compile time or run time; to i32."""
        value = tl._unwrap_if_constexpr(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self.semantic.to_tensor(value)
        if isinstance(value, tl.tensor) and not value.type.is_block() and value.dtype.is_int():
            if value.dtype != tl.int32:
                value = self.semantic.cast(value, tl.int32)
            return value
        self.fail(
            WrongType,
            f"{name} has to be an integer, it is {describe(value)}",
            hint="give a scalar integer, constant or not",
        )
        return None

    def handle(self, name: str, value: Any, *kinds: type[HandleType]) -> Handle:
        """Check that an argument is a handle of one of ``kinds``."""
        value = tl._unwrap_if_constexpr(value)
        if not isinstance(value, Handle) or not isinstance(value.type, kinds):
            wanted = " or ".join(k.noun or k.__name__ for k in kinds)
            self.fail(
                WrongType,
                f"{name} has to be {wanted}, it is {describe(value)}",
                hint="; ".join(k.source for k in kinds if k.source),
            )
        return value

    def emit(
        self,
        operands: Sequence[Any] = (),
        results: Sequence[Any] = (),
        **attributes: Any,
    ) -> Any:
        """Make the operation.

        Args:
            operands: tensors and handles.
            results: the type of each result: a ``tl`` type or a ``HandleType``.
            attributes: constants: numbers, strings, None, and tuples and dicts of them.

        Returns:
            the result, or a tuple of them where there are several, or None.
        """
        if self.interpreted:
            from remora.dsl.reference import run_reference

            return run_reference(self, operands, results, attributes)
        require_lowering(self)
        handles: list[Any] = []
        for operand in operands:
            operand._flatten_ir(handles)
        types: list[Any] = []
        kinds = ""
        for result in results:
            result._flatten_ir_types(self.semantic.builder, types)
            kinds = kinds.ljust(len(types), "h" if isinstance(result, HandleType) else "v")
        symbol = carrier.Symbol(self.op.name, self.op.__module__, kinds, attributes)
        values = carrier.emit(symbol, handles, types, generator=self.generator)
        cursor, unflattened = 0, []
        for result in results:
            value, cursor = result._unflatten_ir(values, cursor)
            unflattened.append(value)
        if not unflattened:
            return None
        return unflattened[0] if len(unflattened) == 1 else tuple(unflattened)


def require_lowering(call: Call) -> None:
    """Refuse a use that no pipeline in force lowers."""
    from remora.dsl.pipeline import is_lowered

    op = call.op
    if not is_lowered(op.__module__):
        raise PluginError(
            f"{op.name}: no pipeline in force lowers it",
            where=call.where,
            hint="activate() its plugin, or compile within remora.use("
            f'remora.lowering_pipeline("{op.name.partition(".")[0]}", "{op.__module__}"))',
        )


def describe(value: Any) -> str:
    """A value of a kernel in words, for messages."""
    if isinstance(value, (tl.tensor, Handle)):
        return str(value.type)
    return f"{value!r} ({type(value).__name__})"


def _is_called_by(module: Any) -> bool:
    """Whether a function of a module is running further up."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals is not vars(module):
        frame = frame.f_back
    return frame is not None


def kernel_frame() -> Any:
    """The innermost frame outside Remora and Triton."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        inside = frame.f_globals.get("__name__", "").startswith("remora.kernels")
        if inside or package not in ("remora", "triton", "contextlib"):
            return frame
        frame = frame.f_back
    return None


class Op:
    """A word of the language. Made by ``@remora.op``; called in kernels."""

    def __init__(self, name: str, signature: Callable[..., Any], lowered_in: str = "") -> None:
        self.name = name
        self.lowered_in = lowered_in
        self._signature = signature
        self.references: Callable[..., Any] | None = None
        self.lowerings: dict[str, Callable[..., Any]] = {}
        self.__name__ = signature.__name__
        self.__qualname__ = signature.__qualname__
        self.__module__ = signature.__module__
        self.__doc__ = signature.__doc__
        parameters = list(inspect.signature(signature).parameters.values())[1:]
        extra = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None)
            for n in ("_semantic", "_generator")
        ]
        # Triton's code generator reads these two names off a builtin.
        self.__triton_builtin__ = True
        self.signature = inspect.Signature([*parameters, *extra])
        self._plain_signature = inspect.Signature(parameters)

    def __repr__(self) -> str:
        return f"<operation {self.name}>"

    def is_declared_by(self, signature: Callable[..., Any]) -> bool:
        """Whether a function is this operation's signature, or that of a module loaded again."""
        return (self.__module__, self.__qualname__) == (
            signature.__module__,
            signature.__qualname__,
        )

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Attach the reference meaning: ``function(machine, *operands, **attributes)``.

        Tensors come and go as NumPy arrays of the tensor's shape (() for a
        scalar), handles as the objects that references made.
        """
        if self.references is not None:
            raise PluginError(f"the operation {self.name} has a reference meaning already")
        self.references = function
        return function

    def lowering(self, *targets: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Attach a lowering for targets: ``"cuda"``, ``"hip"``, ``"cuda:90"``, ``"hip:gfx950"``.

        The function gets ``(op, builder, lowering)``: the ``CustomOp``, a
        builder before it, and the ``Lowering``; it returns the results' values.
        The most exact target wins.
        """

        def attach(function: Callable[..., Any]) -> Callable[..., Any]:
            for target in targets:
                if target.partition(":")[0] not in ("cuda", "hip"):
                    raise PluginError(
                        f"{target!r} is not a target for a lowering of {self.name}",
                        hint='write "cuda", "hip", "cuda:90", "hip:gfx950"',
                    )
                if target in self.lowerings:
                    raise PluginError(f"the operation {self.name} has two lowerings for {target}")
                self.lowerings[target] = function
            return function

        return attach

    def lowering_for(self, target: Target) -> Callable[..., Any] | None:
        """The lowering for a target, if there is one."""
        if self.lowered_in:
            importlib.import_module(self.lowered_in)
        return self.lowerings.get(str(target)) or self.lowerings.get(target.backend)

    def __call__(
        self, *args: Any, _semantic: Any = None, _generator: Any = None, **kwargs: Any
    ) -> Any:
        if _semantic is None:
            _semantic = self._interpreter()
        call = Call(self, _semantic, _generator)
        try:
            self._plain_signature.bind(*args, **kwargs)
        except TypeError as error:
            call.fail(WrongType, str(error), hint=f"{self.__name__}{self._plain_signature}")
        return self._signature(call, *args, **kwargs)

    def _interpreter(self) -> Any:
        """The interpreter's semantics, when a kernel is being interpreted."""
        interpreter = sys.modules.get("triton.runtime.interpreter")
        if interpreter is None or not (strands.current() or _is_called_by(interpreter)):
            raise NeedsCompiler(
                f"{self.name} was called outside a kernel",
                hint="call it in a @triton.jit function; to run kernels with the reference "
                "meaning set TRITON_INTERPRET=1 before triton is imported",
            )
        return interpreter.interpreter_semantic


_registry: dict[str, Op] = {}


def op(name: str, *, lowered_in: str = "") -> Callable[[Callable[..., Any]], Op]:
    """Declare an operation ``plugin.word``; decorates its signature.

    Args:
        name: the operation's name, of which ``plugin`` is the plugin's.
        lowered_in: a module that attaches the lowerings, imported when a kernel
            with the operation is first compiled, so that declaring it stays cheap.

    The signature's first argument is the ``Call``; the others are what a
    kernel passes. It checks them and returns ``call.emit(...)``.

    Raises:
        PluginError: the name is not ``plugin.word``, or is another operation's.
    """

    check_name(name)
    return lambda signature: register(name, signature, lambda n, s: Op(n, s, lowered_in))


def check_name(name: Any) -> None:
    """Refuse what is not ``plugin.word``."""
    if not isinstance(name, str):
        raise PluginError(
            "remora.op takes the operation's name", hint='write @remora.op("plugin.word")'
        )
    plugin, dot, word = name.partition(".")
    if not (plugin.isidentifier() and dot and word.isidentifier()):
        raise PluginError(f"{name!r} is not a name for an operation", hint='write "plugin.word"')


def register(name: str, signature: Callable[..., Any], make: Callable[..., Op]) -> Op:
    """Enter the operation that ``make(name, signature)`` gives under its name."""
    known = _registry.get(name)
    if known is not None and not known.is_declared_by(signature):
        raise PluginError(
            f"the operation {name} exists already",
            where=f"{known.__module__}.{known.__qualname__}",
            hint="give this one another name, with the name of your plugin before the dot",
        )
    _registry[name] = make(name, signature)
    return _registry[name]


def find_op(name: str, declared_in: str = "") -> Op | None:
    """The operation of that name; imports ``declared_in`` if it is not declared yet."""
    if name not in _registry and declared_in:
        with suppress(ImportError):
            importlib.import_module(declared_in)
    return _registry.get(name)
