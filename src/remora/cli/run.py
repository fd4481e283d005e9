"""``remora run``: a script, with TLX under the names that existing kernels import."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from remora.cli.plugins import WITH_HELP
from remora.errors import PluginError


def run(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT.py [ARGS]...", help="The script and its arguments, or -m MODULE [ARGS]."
        ),
    ],
    with_: Annotated[list[str] | None, typer.Option("--with", help=WITH_HELP)] = None,
) -> None:
    """Run a Python script as it is: its imports of triton.language.extra.tlx and utlx_plugin,
    and ctas_per_cga, are Remora's TLX. What --with names is in force for all of its kernels.

    It runs in this process as __main__, with its own arguments and exit code. With -m a module
    is run, for example -m pytest tests.
    """
    from remora import host
    from remora.cli.plugins import pipelines_of
    from remora.pipeline import active
    from remora.tlx import install_aliases

    script, *rest = arguments
    if script == "-m" and not rest:
        raise PluginError("-m names no module", hint="write remora run -m pytest tests")
    if script != "-m" and not Path(script).exists():
        raise PluginError(f"there is no script {script}", hint="remora run SCRIPT.py [ARGS]")
    host.features()
    for pipeline in pipelines_of(with_ or []):
        active.add(pipeline)
    install_aliases()
    with _as_python():
        if script == "-m":
            sys.argv = rest
            sys.path[0] = os.getcwd()
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")


#: The script's own options are not the command's.
run.context_settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # type: ignore[attr-defined]


@contextmanager
def _as_python() -> Iterator[None]:
    """What the script raises is shown, and becomes the exit code, as python does it."""
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _RUNNERS:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


# Files whose frames lie between this command and the script.
_RUNNERS = {__file__, contextlib.__file__, runpy.__file__, "<frozen runpy>"}
