"""``remora doctor``: what this machine has."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import warnings
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from remora import __version__
from remora.cli.natives import natives
from remora.errors import UnsupportedTriton
from remora.host.targets import KNOWN_TARGETS, gpu_target

# A kernel that every target compiles: it doubles one number.
_PROBE = """module {
  tt.func public @probe(%p: !tt.ptr<f32> {tt.divisibility = 16 : i32}) {
    %0 = tt.load %p : !tt.ptr<f32>
    %1 = arith.addf %0, %0 : f32
    tt.store %p, %1 : !tt.ptr<f32>
    tt.return
  }
}
"""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Say what this machine has: Triton and its features, tools, targets, GPU.

    Exit code 1 where Remora cannot work, a target does not compile, or a native
    plugin that is named here is refused.
    """
    report = examine()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(report)
    if not report["ok"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that the command shows, as values."""
    triton = _triton()
    works = "error" not in triton
    targets = [_target(name) for name in KNOWN_TARGETS] if works else []
    native = natives() if works else []
    return {
        "remora": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "packages": {name: _version(name) for name in ("xdsl", "numpy", "torch")},
        "triton": triton,
        "tools": _tools() if works else [],
        "targets": targets,
        "natives": native,
        "gpu": _gpu(),
        "ok": works
        and all(target["ok"] for target in targets)
        and not any(row["error"] for row in native),
    }


def _triton() -> dict[str, Any]:
    from remora import host

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            features = host.features()
        except UnsupportedTriton as error:
            return {"error": {"what": error.what, "where": error.where, "hint": error.hint}}
    import triton

    return {
        "version": features.version,
        "path": str(Path(triton.__file__).parent),
        "tested": features.version in host.TESTED,
        "warnings": [str(w.message) for w in caught],
        "features": {k: v for k, v in asdict(features).items() if k != "version"},
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _tools() -> list[dict[str, Any]]:
    """The programs that Triton runs, and a C compiler, which a launch on a GPU needs once."""
    from triton import knobs

    tools: list[dict[str, Any]] = []
    for name in ("ptxas", "ptxas_blackwell", "cuobjdump", "nvdisasm"):
        try:
            tool = getattr(knobs.nvidia, name)
        except (AttributeError, RuntimeError):  # a release without it, or a wheel without the file
            tools.append({"name": name, "path": None, "version": None})
        else:
            tools.append({"name": name, "path": tool.path, "version": tool.version})
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc"))), None)
    tools.append({"name": "C compiler", "path": compiler, "version": None})
    return tools


def _target(name: str) -> dict[str, Any]:
    """Compile the probe for a target, from nothing."""
    import triton
    from triton import knobs

    result: dict[str, Any] = {"target": name, "hardware": KNOWN_TARGETS[name]}
    with tempfile.TemporaryDirectory(prefix="remora-doctor-") as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        source = Path(folder) / "probe.ttir"
        source.write_text(_PROBE)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled = triton.compile(str(source), target=gpu_target(name))
        except Exception as error:  # whatever the compiler says
            return result | {"ok": False, "error": f"{type(error).__name__}: {error}".strip()}
    binary = next(k for k in ("cubin", "hsaco") if k in compiled.asm)
    return result | {"ok": True, "binary": binary}


def _gpu() -> dict[str, Any] | None:
    """The first GPU that torch sees, if there are both."""
    try:
        import torch

        if not torch.cuda.is_available():
            return None
        properties = torch.cuda.get_device_properties(0)
    except Exception:  # no torch, a broken one, or a broken driver: no GPU to speak of
        return None
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "runtime": f"ROCm {torch.version.hip}"
        if torch.version.hip
        else f"CUDA {torch.version.cuda}",
    }


def _show(report: dict[str, Any]) -> None:
    from rich.text import Text

    from remora.cli import show

    out = show.console()

    def section(title: str, pairs: list[tuple[str, Any]]) -> None:
        out.print(Text(title, "bold"), show.rows(*pairs), sep="\n")

    python, triton = report["python"], report["triton"]
    packages = [(n, v or Text("not installed", "dim")) for n, v in report["packages"].items()]
    section(
        f"Remora {report['remora']}",
        [("python", f"{python['version']}  {python['executable']}"), *packages],
    )
    if "error" in triton:
        error = triton["error"]
        rows = [("error", Text(error["what"], "red")), ("where", error["where"])]
        section("Triton", [*rows, ("way out", error["hint"])])
    else:
        tested = "tested" if triton["tested"] else Text("not among the tested releases", "yellow")
        rows = [("path", triton["path"]), ("release", tested)]
        rows += [("warning", Text(w, "yellow")) for w in triton["warnings"]]
        section(f"Triton {triton['version']}", [*rows, *_features(triton["features"])])
        section("Tools", [(t["name"], _tool(t, triton["path"])) for t in report["tools"]])
        section("Targets", [(t["target"], _outcome(t)) for t in report["targets"]])
        if report["natives"]:
            section("Native plugins", [_native(row) for row in report["natives"]])
    gpu = report["gpu"]
    found = (
        f"{gpu['count']} x {gpu['name']}, {gpu['memory_gib']} GiB, {gpu['runtime']}" if gpu else ""
    )
    why = "torch is not installed" if report["packages"]["torch"] is None else "torch sees none"
    section("GPU", [("found", found) if gpu else ("none", Text(why, "dim"))])


def _features(features: dict[str, Any]) -> list[tuple[str, str]]:
    words = {True: "yes", False: "no"}
    return [(k, words[v] if isinstance(v, bool) else v) for k, v in features.items()]


def _tool(tool: dict[str, Any], triton_path: str) -> Any:
    from rich.text import Text

    if not tool["path"]:
        return Text("not found", "yellow")
    path = tool["path"].replace(triton_path, "triton", 1)
    return f"{tool['version'] or ''}  {path}".strip()


def _native(row: dict[str, Any]) -> tuple[str, Any]:
    from rich.text import Text

    if not row["error"]:
        return row["source"], f"{row['state']}  {row['path']}"
    missing = not Path(row["path"]).exists()
    why = "points nowhere" if missing else row["error"]["what"]
    return row["source"], Text.assemble((why, "bold red"), f"  {row['path']}")


def _outcome(target: dict[str, Any]) -> Any:
    from rich.text import Text

    if not target["ok"]:
        return Text.assemble(("fails  ", "bold red"), target["error"])
    return Text.assemble(
        ("compiles", "green"), f" to {target['binary']:<6}", (f"  {target['hardware']}", "dim")
    )
