"""Passes as they are written on the command line."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora import host
from remora.errors import PipelineError, PluginError
from remora.native.loading import load_native, natives
from remora.pipeline import PassRef, stock
from remora.pipeline.subjects import CompiledPass, find_stock, parameters_of, stock_passes
from remora.plugins import registry
from remora.plugins.discovery import pass_class

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

    from remora.native.passes import NativePass


def passes_of(text: str) -> list[ModulePass | CompiledPass]:
    """The passes of ``name{key=value ...},package.module:Class{...},common.cse,stock(1,"a")``.

    A name is that of a stock pass, or is looked up over all plugins. A Python
    pass takes its arguments in braces, as xDSL writes them: numbers, ``true``,
    ``false``, strings in double quotes, several with commas. A stock pass takes
    what its binding takes, in parentheses; so does a native plugin's, by the
    plugin's name or by its file: ``Plugin.pass("4")``, ``library.so:pass("4")``.

    Raises:
        PipelineError: the text, or an argument, is not so written.
        PluginError: there is no such pass, or a plugin's has the name of a stock one.
    """
    parts = _split(text)
    # First: some releases load native plugins while libtriton is imported.
    native = {part: found for part in parts if (found := _native_pass(part)) is not None}
    host.features()
    return [native.get(part) or _make(part) for part in parts]


def _split(text: str) -> list[str]:
    """The parts between the commas that are in no brackets and no string."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "{(") - (character in "})")
            if character == "," and depth == 0:
                parts.append("")
                continue
        parts[-1] += character
    parts = [part.strip() for part in parts]
    if depth or quoted or not all(parts):
        raise PipelineError(
            f"{text!r} is not a list of passes",
            hint='write "pass{key=value other=1,2},package.module:Class,common.cse"',
        )
    return parts


def _name_and_arguments(part: str) -> tuple[str, str]:
    name = re.split(r"[{(]", part, maxsplit=1)[0].strip()
    return name, part[part.index(name) + len(name) :].strip()


def _native_pass(part: str) -> NativePass | None:
    """The pass of a native plugin, which is loaded for it; None where another is meant."""
    name, arguments = _name_and_arguments(part)
    if re.search(r"\.so[.\d]*:", name):
        place, _, name = name.rpartition(":")
        library = load_native(place)
    else:
        plugin, _, name = name.partition(".")
        found = natives.library(plugin) if name else None
        if found is None:
            return None
        library = found
    try:
        given, keywords = _call(arguments)
    except ValueError:
        given, keywords = [], {arguments: ""}
    if keywords:
        raise PipelineError(
            f"the arguments of the native pass {name!r} are not so written: {arguments}",
            hint=f'texts in parentheses: {name}("4")',
        )
    return library.pass_(name, *given)


def _make(part: str) -> ModulePass | CompiledPass:
    """One pass, from its name and arguments."""
    name, arguments = _name_and_arguments(part)
    if ":" in name:
        return _python_pass(_class(name), name, arguments)
    found = _named(name)
    if isinstance(found, type):
        return _python_pass(found, name, arguments)
    return _stock_pass(name, arguments)


def _named(name: str) -> type[ModulePass] | str:
    """A plugin's pass, or the name of a stock one."""
    near = [full for full in stock_passes() if name in (full, full.rpartition(".")[2])]
    try:
        cls = registry.find_pass(name)
    except PluginError as error:
        if near:
            return name
        close = difflib.get_close_matches(name, stock_passes(), n=3, cutoff=0.6)
        hint = f"{error.hint}; stock passes alike: {', '.join(close)}" if close else error.hint
        raise PluginError(
            f"{error.what}, and it is no stock pass", where=error.where, hint=hint
        ) from None
    if near:
        raise PluginError(
            f"two passes are named {name!r}: the stock pass {' and '.join(near)}, and "
            f"{cls.__module__}:{cls.__qualname__} of a plugin",
            hint=f'write "{cls.__module__}:{cls.__qualname__}" for the plugin\'s; '
            "a plugin's passes need names of their own",
        )
    return cls


def _stock_pass(name: str, arguments: str) -> CompiledPass:
    try:
        given, keywords = _call(arguments)
    except ValueError:
        takes = parameters_of(find_stock(name))
        raise PipelineError(
            f"the arguments of the stock pass {name!r} are not so written: {arguments}",
            hint=f'in parentheses, as of a function: {name}("cuda:90", 4); it takes {takes}',
        ) from None
    reference = stock(name, *given, **keywords)
    reference.check()
    return reference


def _call(arguments: str) -> tuple[list[Any], dict[str, Any]]:
    """The values of arguments in parentheses.

    Raises:
        ValueError: they are not so written.
    """
    try:
        call = ast.parse(f"f{arguments or '()'}", mode="eval").body
    except SyntaxError as error:
        raise ValueError(arguments) from error
    if not isinstance(call, ast.Call):
        raise ValueError(arguments)
    given = [_literal(a) for a in call.args]
    return given, {str(k.arg): _literal(k.value) for k in call.keywords}


def _literal(node: ast.expr) -> Any:
    words = {"true": True, "false": False, "null": None}
    return (
        words[node.id]
        if isinstance(node, ast.Name) and node.id in words
        else ast.literal_eval(node)
    )


def _python_pass(cls: type[ModulePass], name: str, arguments: str) -> ModulePass:
    from xdsl.passes import get_pass_option_infos
    from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
    from xdsl.utils.exceptions import ArgSpecParseError

    try:
        (parsed,) = parse_pipeline("x" + arguments) if arguments else [ArgSpec("x", {})]
        return cls.from_pass_spec(ArgSpec(cls.name, parsed.parameters))
    except (Exception, ArgSpecParseError) as error:  # the latter is no Exception
        takes = ", ".join(
            f"{o.name}: {o.expected_type}" + (f" = {o.default_value}" if o.default_value else "")
            for o in get_pass_option_infos(cls)
        )
        raise PipelineError(
            f"the arguments of {name!r} do not fit: {str(error).splitlines()[-1].strip()}",
            where=name + arguments,
            hint=f"it takes {takes or 'no arguments'}",
        ) from error


def _class(name: str) -> type[ModulePass]:
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        cls = getattr(module_of_file(Path(place)), attribute, None)
        if not (isinstance(cls, type) and hasattr(cls, "from_pass_spec")):
            raise PluginError(
                f"{place} has no pass {attribute!r}",
                hint="name a class that derives from remora.ModulePass",
            )
        return cls
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it: modules of the working directory
    return pass_class(PassRef(name))


def module_named(place: str) -> Any:
    """The module behind ``file.py``, or ``package.module``, of the working directory too."""
    if place.endswith(".py"):
        return module_of_file(Path(place))
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it: modules of the working directory
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{place} cannot be imported: {type(error).__name__}: {error}",
            hint="name a module, or a file that ends in .py",
        ) from error


def module_of_file(path: Path) -> Any:
    """The module in a file, with the file's folder on the search path, as a script has it."""
    path = path.resolve()
    name = f"_remora_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PluginError(f"there is no Python file {path}", hint="check the path")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError(
            f"{path} cannot be imported: {type(error).__name__}: {error}",
            hint="run it with python to see where",
        ) from error
    return module
