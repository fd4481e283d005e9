"""Passes as they are written on the command line."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora.errors import PipelineError, PluginError
from remora.pipeline import PassRef
from remora.plugins import registry
from remora.plugins.discovery import pass_class

if TYPE_CHECKING:
    from xdsl.passes import ModulePass


def passes_of(text: str) -> list[ModulePass]:
    """The passes of ``name{key=value ...},package.module:Class{...},file.py:Class``.

    A name is looked up over all plugins. Arguments are written as for xDSL:
    numbers, ``true``, ``false``, strings in double quotes, several with commas.

    Raises:
        PipelineError: the text, or an argument, is not so written.
        PluginError: there is no such pass.
    """
    return [_make(part) for part in _split(text)]


def _split(text: str) -> list[str]:
    """The parts between the commas that are in no braces and no string."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character == "{") - (character == "}")
            if character == "," and depth == 0:
                parts.append("")
                continue
        parts[-1] += character
    parts = [part.strip() for part in parts]
    if depth or quoted or not all(parts):
        raise PipelineError(
            f"{text!r} is not a list of passes",
            hint='write "pass{key=value other=1,2},package.module:Class"',
        )
    return parts


def _make(part: str) -> ModulePass:
    """One pass, from its name and arguments."""
    from xdsl.passes import get_pass_option_infos
    from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
    from xdsl.utils.exceptions import ArgSpecParseError

    name, brace, rest = part.partition("{")
    cls = _class(name.strip())
    try:
        (parsed,) = parse_pipeline("x{" + rest) if brace else [ArgSpec("x", {})]
        return cls.from_pass_spec(ArgSpec(cls.name, parsed.parameters))
    except (Exception, ArgSpecParseError) as error:  # the latter is no Exception
        takes = ", ".join(
            f"{o.name}: {o.expected_type}" + (f" = {o.default_value}" if o.default_value else "")
            for o in get_pass_option_infos(cls)
        )
        raise PipelineError(
            f"the arguments of {name!r} do not fit: {str(error).splitlines()[-1].strip()}",
            where=part,
            hint=f"it takes {takes or 'no arguments'}",
        ) from error


def _class(name: str) -> type[ModulePass]:
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return registry.find_pass(name)
    if place.endswith(".py"):
        cls = getattr(_module_of_file(Path(place)), attribute, None)
        if not (isinstance(cls, type) and hasattr(cls, "from_pass_spec")):
            raise PluginError(
                f"{place} has no pass {attribute!r}",
                hint="name a class that derives from remora.ModulePass",
            )
        return cls
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it: modules of the working directory
    return pass_class(PassRef(name))


def _module_of_file(path: Path) -> Any:
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
