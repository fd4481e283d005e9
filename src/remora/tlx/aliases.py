"""The names under which existing kernels import TLX, served on request.

``import triton.language.extra.tlx as tlx`` and ``import utlx_plugin as tlx`` give
``remora.tlx``, and so do the submodules that kernels import from. Modules that
import ``triton`` from then on get a view of it whose ``Config`` and ``jit`` know
the launch option ``ctas_per_cga``; Triton's own modules and classes stay as they are.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from remora.errors import MissingImport, ShadowedPackage
from remora.host import features

#: The packages that existing kernels import TLX from.
ROOTS = ("triton.language.extra.tlx", "utlx_plugin")

# Modules of those packages that kernels import words from.
_SUBMODULES = (
    "async_task_utils",
    "barrier",
    "dynamic_launch",
    "layout_ops",
    "mem_ops",
    "mma_ops",
    "mxfp8_utils",
    "types",
    "utility",
    "warp_ops",
)

#: The whole name of each alias.
ALIASES = tuple(
    name for root in ROOTS for name in (root, *(f"{root}.{module}" for module in _SUBMODULES))
)

# Packages whose modules get Triton itself.
_INNER = {"triton", "remora"}


class _Refusal(MetaPathFinder):
    """Says what is missing where a kernel imports more of TLX than there is."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, word = name.rpartition(".")
        ours = parent in ALIASES and sys.modules.get(parent) is _tlx()
        # What `from tlx import word` looks for where tlx has no such word.
        ours = ours or (parent == "remora.tlx" and PathFinder.find_spec(name, path) is None)
        if ours:
            raise MissingImport(
                f"{'tlx' if parent == 'remora.tlx' else parent}.{word} is not implemented by "
                f"Remora for Triton {features().version}",
                hint="docs/tlx.md lists the words that are",
            )
        return None


def _tlx() -> ModuleType:
    return sys.modules["remora.tlx"]


_installed: list[Any] = []


def install_aliases() -> None:
    """Serve TLX under the names that existing kernels import. Again does nothing.

    Raises:
        ShadowedPackage: a package is installed that has one of the names.
    """
    if _installed:
        return
    for root in ROOTS:
        present = sys.modules.get(root)
        if present is None and find_spec(root) is None:
            continue
        raise ShadowedPackage(
            f"the package {root} is installed here, and Remora would hide it",
            where=str(getattr(present or find_spec(root), "__file__", None) or root),
            hint="use an environment without triton-utlx, or import remora.tlx as tlx",
        )
    sys.modules.update(dict.fromkeys(ALIASES, _tlx()))
    # As importing a submodule does.
    vars(sys.modules["triton.language.extra"])["tlx"] = _tlx()
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    stock = builtins.__import__
    builtins.__import__ = _importing_views(stock)
    _installed.extend((refusal, stock))


def remove_aliases() -> None:
    """Take the names away again; modules that imported them keep what they have."""
    if not _installed:
        return
    refusal, stock = _installed
    _installed.clear()
    builtins.__import__ = stock
    sys.meta_path.remove(refusal)
    for name in ALIASES:
        sys.modules.pop(name, None)
    del vars(sys.modules["triton.language.extra"])["tlx"]


@contextmanager
def aliases() -> Iterator[None]:
    """``install_aliases`` for a while."""
    install_aliases()
    try:
        yield
    finally:
        remove_aliases()


# --- Triton, as the modules that use TLX see it --------------------------------------------------


def _view(name: str, **words: Any) -> ModuleType:
    """A module that has these words, and everything else from the module ``name``."""
    stock = sys.modules[name]
    view = ModuleType(name, stock.__doc__)  # the JIT takes nothing else for a module
    view.__dict__.update({k: vars(stock)[k] for k in vars(stock) if k.startswith("__")})

    def missing(word: str) -> Any:
        return getattr(stock, word)

    view.__dict__.update(words, __getattr__=missing, __dir__=lambda: dir(stock))
    return view


def _views() -> dict[str, ModuleType]:
    """The views, by the name of the module they stand for."""
    from remora.tlx.launch import Config, autotune, jit

    tuning = {"Config": Config, "autotune": autotune}
    autotuner = _view("triton.runtime.autotuner", **tuning)
    jit_module = _view("triton.runtime.jit", jit=jit)
    runtime = _view("triton.runtime", **tuning, autotuner=autotuner, jit=jit_module)
    triton = _view("triton", **tuning, jit=jit, runtime=runtime)
    return {view.__name__: view for view in (triton, runtime, autotuner, jit_module)}


def _importing_views(stock: Any) -> Any:
    """``__import__`` that gives views to modules outside Triton and Remora."""
    views = _views()

    def import_(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        module = stock(name, globals, locals, fromlist, level)
        if level or not name.startswith("triton"):
            return module
        importer = str((globals or {}).get("__name__") or "").partition(".")[0]
        if importer in _INNER:
            return module
        return views.get(module.__name__, module)

    return import_
