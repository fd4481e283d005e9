"""Moves modules between libtriton and text: MLIR's generic form, with its locations.

Triton's own binding prints modules only in the custom form, which nothing but
Triton's parser can read. The C++ function that prints the generic form is
exported by ``libtriton.so``; its signature is trivial (pointers and booleans),
so ctypes can call it by its mangled name. The addresses of operations and
blocks come from Triton's public binding; no object layout is assumed.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from remora.errors import BridgeError, IRParseError, UnsupportedTriton

# Name, result type, argument types. p: pointer, b: bool, i: int, v: void.
_SYMBOLS = {
    "parent_op": ("_ZN4mlir5Block11getParentOpEv", "p", "p"),
    "print_op": (
        "_ZN4mlir9Operation5printERN4llvm11raw_ostreamERKNS_15OpPrintingFlagsE",
        "v",
        "ppp",
    ),
    "flags_new": ("_ZN4mlir15OpPrintingFlagsC1Ev", "v", "p"),
    "flags_generic": ("_ZN4mlir15OpPrintingFlags18printGenericOpFormEb", "p", "pb"),
    "flags_debug": ("_ZN4mlir15OpPrintingFlags15enableDebugInfoEbb", "p", "pbb"),
    "flags_local": ("_ZN4mlir15OpPrintingFlags13useLocalScopeEb", "p", "pb"),
    "stream_new": (
        "_ZN4llvm14raw_fd_ostreamC1EibbNS_11raw_ostream11OStreamKindE",
        "v",
        "pibbi",
    ),
    "stream_delete": ("_ZN4llvm14raw_fd_ostreamD1Ev", "v", "p"),
}
# Symbols without which a module's order of uses is not restored (remora.ir.uses).
_USE_ORDER = {
    "flags_users": ("_ZN4mlir15OpPrintingFlags15printValueUsersEb", "p", "pb"),
    "shuffle_uses": ("_ZN4mlir5Value14shuffleUseListEN4llvm8ArrayRefIjEE", "v", "ppz"),
}
_CTYPES = {
    "p": ctypes.c_void_p,
    "b": ctypes.c_bool,
    "i": ctypes.c_int,
    "z": ctypes.c_size_t,
    "v": None,
}

# Operations at the top of a module: before, and from the middle of llir on.
_FUNCTIONS = ("tt.func", "llvm.func")

# Room for an OpPrintingFlags or a raw_fd_ostream: both are under 200 bytes in
# every release looked at; the constructors write no further than the object.
_OBJECT_BYTES = 1024


@cache
def _functions() -> dict[str, Any]:
    from triton._C import libtriton

    library = ctypes.CDLL(libtriton.__file__)
    functions = {}
    for name, (symbol, result, arguments) in {**_SYMBOLS, **_USE_ORDER}.items():
        try:
            function = getattr(library, symbol)
        except AttributeError:
            if name in _USE_ORDER:
                continue
            raise UnsupportedTriton(
                f"libtriton.so does not export {symbol}",
                where=libtriton.__file__,
                hint="Remora needs the exported C++ symbols of Triton 3.7.1, 3.8.0 or 3.9.0",
            ) from None
        function.restype = _CTYPES[result]
        function.argtypes = [_CTYPES[a] for a in arguments]
        functions[name] = function
    return functions


def has_symbol(name: str) -> bool:
    """Whether libtriton exports a symbol, by its mangled name."""
    from triton._C import libtriton

    return hasattr(ctypes.CDLL(libtriton.__file__), name)


def missing_symbols() -> list[str]:
    """The mangled names that the bridge needs and this libtriton lacks."""
    from triton._C import libtriton

    library = ctypes.CDLL(libtriton.__file__)
    return [symbol for symbol, _, _ in _SYMBOLS.values() if not hasattr(library, symbol)]


def _module_address(module: Any) -> int:
    """The address of the module's Operation, through a top-level operation's block."""
    blocks: list[Any] = []
    try:
        name = module.get_entry_func_name()
    except Exception:  # a module without a public function
        name = ""
    if name and module.has_function(name):
        blocks.append(module.get_function(name).get_operation().get_block())
    else:
        module.walk(
            lambda op: blocks.append(op.get_block()) if op.get_name() in _FUNCTIONS else None
        )
    if not blocks:
        raise BridgeError("the module holds no function", hint="Triton modules hold at least one")
    address: int = _functions()["parent_op"](blocks[0].id())
    return address


def has_use_order() -> bool:
    """Whether the order of a value's uses can be read and restored."""
    return _functions().keys() >= _USE_ORDER.keys()


def shuffle_uses(value: Any, places: Sequence[int]) -> None:
    """Move the uses of a ``libtriton.ir.value``: the one at ``i`` to ``places[i]``.

    ``places`` has to be a permutation as long as the value has uses; MLIR does
    not check it.
    """
    holder = ctypes.c_void_p(value.id())  # a mlir::Value is a pointer
    array = (ctypes.c_uint32 * len(places))(*places)
    _functions()["shuffle_uses"](ctypes.byref(holder), array, len(places))


def generic_text(module: Any, *, locations: bool = True, users: bool = False) -> str:
    """The module in MLIR's generic form.

    Args:
        module: a ``triton._C.libtriton.ir.module``.
        locations: print ``loc(...)`` after every operation and argument.
        users: print each value's users, in their order, as comments.

    Attributes are printed in full instead of through aliases (the local
    scope), so that every line can be read on its own.
    """
    from triton._C.libtriton import ir

    if not isinstance(module, ir.module):  # its address would not be one
        raise BridgeError(f"{type(module).__name__} is not a module of libtriton")
    f = _functions()
    address = _module_address(module)
    flags = ctypes.create_string_buffer(_OBJECT_BYTES)
    stream = ctypes.create_string_buffer(_OBJECT_BYTES)
    fd = os.memfd_create("remora-ir")
    try:
        f["flags_new"](flags)
        f["flags_generic"](flags, True)
        f["flags_debug"](flags, locations, False)
        f["flags_local"](flags, True)
        if users:
            f["flags_users"](flags, True)
        f["stream_new"](stream, fd, False, False, 0)
        f["print_op"](address, stream, flags)
        f["stream_delete"](stream)
        size = os.lseek(fd, 0, os.SEEK_END)
        return os.pread(fd, size, 0).decode()
    finally:
        os.close(fd)


def parse_text(text: str, context: Any) -> Any:
    """Parse MLIR text, in either form, into ``context`` and verify it.

    Returns the ``triton._C.libtriton.ir.module``.

    Raises:
        IRParseError: MLIR's parser or verifier refuses the text; the error
            carries their messages.
    """
    with _text_file(text) as path:
        return parse_file(path, context)


def convert_to_ttgir(text: str, target: str, warps: int, lanes: int, ctas: int) -> str:
    """TTIR after the stock conversion to TTGIR, in the generic form, in a context of its own.

    Args:
        target: ``"cuda:90"``. warps: of a program. lanes: of a warp. ctas: of a program.

    Raises:
        IRParseError: MLIR refuses the text, or the conversion.
    """
    from triton._C.libtriton import ir, passes

    context = ir.context()
    ir.load_dialects(context)
    module = parse_text(text, context)
    manager = ir.pass_manager(context)
    passes.ttir.add_convert_to_ttgpuir(manager, target, warps, lanes, ctas)
    try:
        manager.run(module, "convert_to_ttgpuir")
    except RuntimeError as error:
        raise IRParseError(f"the stock conversion to TTGIR failed: {error}") from error
    return generic_text(module)


def parse_file(path: str, context: Any) -> Any:
    """As ``parse_text``, from a file: it is the place of what has no location of its own."""
    from triton._C.libtriton import ir

    try:
        module = ir.parse_mlir_module(path, context)
    except RuntimeError:
        messages = _diagnostics(path, context)
        raise IRParseError(
            "MLIR refuses the module:\n" + messages, hint="see the operation named above"
        ) from None
    module.context = context
    return module


@contextmanager
def _text_file(text: str) -> Iterator[str]:
    """The path of a file in memory that holds ``text``."""
    fd = os.memfd_create("remora-ir")
    try:
        view = memoryview(text.encode())
        while view:
            view = view[os.write(fd, view) :]
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


_stderr_lock = threading.RLock()


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Turn file descriptor 2 to a file; what was written is in the list afterwards.

    For MLIR's messages: they go to the descriptor and nowhere else. One thread
    at a time: the descriptor is the process's.
    """
    output: list[str] = []
    with _stderr_lock:
        yield from _captured(output)


def _captured(output: list[str]) -> Iterator[list[str]]:
    saved, sink = os.dup(2), os.memfd_create("remora-stderr")
    try:
        os.dup2(sink, 2)
        yield output
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        output.append(os.pread(sink, os.fstat(sink).st_size, 0).decode(errors="replace"))
        os.close(sink)


# A diagnostic: file, line and column, with or without loc(...), and the message.
_DIAGNOSTIC = re.compile(r'(?:loc\()?"?([^"]*?)"?:(\d+):(\d+)\)?: error: (.*)')


def _diagnostics(path: str, context: Any) -> str:
    """What MLIR says when it parses ``path``, a line for each error, with its place."""
    from triton._C.libtriton import ir

    with captured_stderr() as output, suppress(RuntimeError):
        ir.parse_mlir_module(path, context)
    errors = []
    for line in output[0].splitlines():
        if "error: " not in line:
            continue
        match = _DIAGNOSTIC.match(line)
        if match is None:
            errors.append(line.partition("error: ")[2])
        elif match[1] == path:
            errors.append(f"line {match[2]}, column {match[3]}: {match[4]}")
        else:
            errors.append(f"{match[1]}:{match[2]}:{match[3]}: {match[4]}")
    return "\n".join(errors) or output[0].strip() or "no message"
