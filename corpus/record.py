"""Writes ``kernels.json``: how each package's own wrappers compile its kernels.

    python corpus/record.py [PACKAGE ...]

It needs ``requirements/corpus-all.txt`` installed, a CPU, and no GPU. Each
package is driven by ``drivers/NAME.py`` in a process of its own, through
the wrappers that its users call, on small tensors, under ``standin``. A kernel
is listed once for each set of argument types and constants, at most
``VARIANTS`` times.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIST = HERE / "kernels.json"
VARIANTS = 1
#: driver -> the distribution whose kernels it drives
PACKAGES = {
    path.stem: path.stem.replace("_", "-") for path in sorted((HERE / "drivers").glob("[a-z]*.py"))
}
#: Options that a launch can set and that mean something on every target.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion", "maxnreg")


class Recorder:
    """Collects the launches of one package."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.entries: dict[str, list[dict[str, Any]]] = {}
        self.left_out: dict[str, str] = {}
        self.now = ""
        self.defaults: Any = None

    def launched(self, fn: Any, signature: Any, constexprs: Any, attrs: Any, options: Any) -> None:
        """One launch that would have compiled: write it down."""
        name = f"{fn.fn.__module__}:{fn.fn.__qualname__}"
        if not self.is_of(fn.fn.__module__):
            return
        try:
            entry = {
                "package": self.package,
                "version": version(self.package),
                "module": fn.fn.__module__,
                "kernel": attribute_of(fn),
                "signature": {k: encode_type(v) for k, v in signature.items()},
                "constants": [[list(p), encode(v)] for p, v in constexprs.items()],
                "attrs": [[list(p), v] for p, v in attrs.items() if v],
                "options": self.changed(options),
                "through": self.now,
            }
            json.dumps(entry)
        except Exception as error:
            self.left_out[name] = f"{type(error).__name__}: {error}"
            return
        variants = self.entries.setdefault(name, [])
        same = ("signature", "constants")
        if len(variants) < VARIANTS and not any(
            all(v[k] == entry[k] for k in same) for v in variants
        ):
            variants.append(entry)

    def is_of(self, module: str) -> bool:
        """Whether a module belongs to the package: not Triton's own, nor another package's."""
        return module.partition(".")[0] in self.roots

    def changed(self, options: Any) -> dict[str, Any]:
        """The options that differ from the defaults."""
        if self.defaults is None:
            from triton.backends.compiler import GPUTarget
            from triton.compiler.compiler import make_backend

            self.defaults = make_backend(GPUTarget("cuda", 90, 32)).parse_options({})
        return {
            name: getattr(options, name)
            for name in OPTIONS
            if getattr(options, name, None) != getattr(self.defaults, name, None)
        }

    def drive(self, driver: str) -> None:
        """Run every case of a driver; one that fails is said and passed over."""
        module = importlib.import_module(f"drivers.{driver}")
        self.roots = set(module.MODULES)
        for name, case in module.cases():
            self.now = name
            before = len(self.entries)
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    case()
            except Exception as error:
                line = traceback.extract_tb(error.__traceback__)[-1]
                print(
                    f"{driver}: {name}: {type(error).__name__}: {str(error)[:200]} "
                    f"({line.filename.partition('site-packages/')[2]}:{line.lineno}); "
                    f"{len(self.entries) - before} kernels so far",
                    file=sys.stderr,
                )
        for name, why in self.left_out.items():
            if name not in self.entries:
                print(f"{driver}: not listed: {name}: {why[:200]}", file=sys.stderr)


def attribute_of(fn: Any) -> str:
    """The name under which a kernel can be found again in its module.

    Raises:
        LookupError: it is made inside a function, or from generated code.
    """
    from entries import unwrap

    module = sys.modules.get(fn.fn.__module__)
    for name, value in vars(module).items() if module else ():
        if unwrap(value) is fn:
            return name
    raise LookupError("not an attribute of its module")


def encode_type(value: Any) -> Any:
    """A type of a signature as JSON."""
    if isinstance(value, tuple):
        return {"tuple": [encode_type(v) for v in value]}
    return str(value)


def encode(value: Any) -> Any:
    """A constant as JSON: ``entries.decode`` reads it.

    Raises:
        TypeError: it is of a kind that the list does not hold.
    """
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else {"float": str(value)}
    if isinstance(value, tl.dtype):
        return {"dtype": value.name}
    if isinstance(value, tl.constexpr):
        return {"constexpr": encode(value.value)}
    if isinstance(value, JITFunction):
        return {"function": f"{value.fn.__module__}:{attribute_of(value)}"}
    if isinstance(value, (tuple, list)):
        return {"tuple": [encode(v) for v in value]}
    raise TypeError(f"a constant of type {type(value).__name__}")


def record_here(driver: str) -> list[dict[str, Any]]:
    """Drive one package in this process."""
    import standin

    recorder = Recorder(PACKAGES[driver])
    standin.install(recorder.launched)
    recorder.drive(driver)
    return [e for entries in recorder.entries.values() for e in entries]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("drivers", nargs="*", choices=[*PACKAGES, []], default=[])
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_this_process:
        print(json.dumps(record_here(args.drivers[0])))
        return 0
    drivers = args.drivers or list(PACKAGES)
    kept = json.loads(LIST.read_text()) if LIST.exists() and args.drivers else []
    entries = [e for e in kept if e["package"] not in [PACKAGES[d] for d in drivers]]
    failed = False
    for driver in drivers:
        command = [sys.executable, __file__, "--in-this-process", driver]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            failed = True
            print(f"{driver}: exit code {done.returncode}", file=sys.stderr)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{driver}: {len(found)} entries")
        entries += found
    entries.sort(key=lambda e: (e["package"], e["module"], e["kernel"]))
    lines = ",\n".join(json.dumps(e) for e in entries)
    LIST.write_text(f"[\n{lines}\n]\n")
    print(f"{len(entries)} entries of {len({e['package'] for e in entries})} packages: {LIST}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
