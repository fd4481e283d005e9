"""Compiles the listed kernels with and without Remora, and compares.

    python corpus/run.py [--target cuda:90 hip:gfx950] [--sample N] [--jobs 2] [--json FILE]

Each kernel is compiled by stock Triton, and with a Python pass that changes
nothing before every stock pass of ``ttir`` and ``ttgir`` and at their ends. PTX
and AMDGCN have to be the same, byte for byte, and ``ir.write(ir.read(t))`` has
to be ``t`` for the module's text at each of those places. ``--time N`` measures,
too: the shortest of N compilations by stock Triton, with one such pass where TLX
has its own, after ``ttgir/coalesce``, and with one whose module is parsed anew,
as that of a pass that changes something is.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

HERE = Path(__file__).parent
TARGETS = ("cuda:90", "hip:gfx950")
#: A compilation that takes longer is ended and counted as one that did not finish.
LIMIT = 600
GOOD = ("same",)
STOCK = ("refused", "varies", "missing")


@dataclass
class Result:
    """What came of one kernel for one target.

    outcome: ``same``; or of stock Triton: ``refused``, ``varies``; ``missing``
        where the package is not installed; or a bug of ours: ``differs`` (other
        code), ``text`` (a text that did not come back), ``error``, ``died``.
    ops: operations of the largest module that a pass saw.
    places: how many round trips were made.
    stock, one, anew: CPU seconds from Python to the binary: by stock Triton, with a
        pass that changes nothing, and with one whose module is parsed anew.
    everywhere: CPU seconds to the assembly.
    """

    name: str
    package: str
    target: str
    outcome: str = "same"
    detail: str = ""
    ops: int = 0
    places: int = 0
    stock: float = 0.0
    one: float = 0.0
    anew: float = 0.0
    everywhere: float = 0.0


# --- in a worker ------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Of this process and of those that it ran, as the assembler is one."""
    own, others = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def assembly(entry: Any, target: str, *, to_the_end: bool = False) -> tuple[str, float]:
    """PTX or AMDGCN of a kernel, and how long it took, by the steps of ``triton.compile``.

    ``to_the_end``: make the binary, too.
    """
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    from remora.host.targets import gpu_target

    gpu = gpu_target(target)
    source = entry.source()
    begin = cpu_seconds()
    backend = make_backend(gpu)
    options = backend.parse_options({**entry.options, **source.parse_options()})
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        gpu,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    metadata = {"hash": "", "target": gpu, **options.__dict__}
    text = ""
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name in ("ptx", "amdgcn"):
            text = str(module)
            if not to_the_end:
                break
    return text, cpu_seconds() - begin


#: What the passes saw: operations of each module, and texts that did not come back.
_ops: list[int] = []
_changed: list[tuple[str, str]] = []
#: Whether what the passes leave is parsed anew: a module whose text is the same is kept.
_anew = [True]


@cache
def _identity() -> Any:
    """The pass that changes nothing; with remora, which the parent does not need.

    The runner reads each module's text, and writes it after the pass: the two
    are compared there.
    """
    import remora
    from remora import ir

    stock_read, stock_write = ir.read, ir.write
    last: list[str] = []

    def read(text: str) -> Any:
        last[:] = [text]
        return stock_read(text)

    def write(module: Any, **options: Any) -> str:
        written = stock_write(module, **options)
        if last and not options:
            if written != last[0]:
                _changed.append((last[0], written))
            last.clear()
        return written + "\n" if _anew[0] else written

    ir.read, ir.write = read, write

    @dataclass(frozen=True)
    class Identity(remora.ModulePass):
        """Counts the operations."""

        name: ClassVar[str] = "identity"

        def apply(self, ctx: Any, module: Any) -> None:
            _ops.append(sum(1 for _ in module.walk()))

    return Identity()


@cache
def _pipelines(target: str, options: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    """Identity everywhere, and in TLX's place only."""
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    import remora
    from remora.host.targets import gpu_target
    from remora.pipeline import anchors, record

    identity = _identity()
    backend = make_backend(gpu_target(target))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, backend.parse_options(dict(options)), Language.TRITON)
    everywhere = remora.Pipeline("everywhere")
    for stage in ("ttir", "ttgir"):
        for anchor in anchors(record(stages[stage])):
            everywhere = everywhere.insert(identity, before=f"{stage}/{anchor}")
        everywhere = everywhere.insert(identity, at=f"{stage}/end")
    one = remora.Pipeline("one").insert(identity, after="ttgir/coalesce")
    return everywhere, one


def timings(entry: Any, target: str, one: Any, repeats: int) -> dict[str, float]:
    """The shortest of several compilations, in turn: see ``Result``.

    To the binary, whose making a pass does not change: a compilation is all of it.
    """
    import remora

    samples: dict[str, list[float]] = {"stock": [], "one": [], "anew": []}
    for _ in range(repeats):
        for how, several in samples.items():
            _anew[0] = how == "anew"
            with nullcontext() if how == "stock" else remora.use(one):
                several.append(assembly(entry, target, to_the_end=True)[1])
    _anew[0] = True
    return {how: min(several) for how, several in samples.items()}


def check(entry: Any, target: str, keep: Path | None = None, repeats: int = 0) -> Result:
    """Compile one kernel for one target in every way, and compare."""
    import remora

    result = Result(entry.name, entry.package, target)
    if why := entry.missing():
        result.outcome, result.detail = "missing", why
        return result
    try:
        stock, _ = assembly(entry, target)
    except Exception as error:
        result.outcome, result.detail = "refused", _first_line(error)
        return result
    _ops.clear()
    _changed.clear()
    everywhere, one = _pipelines(target, tuple(sorted(entry.options.items())))
    try:
        with remora.use(everywhere):
            ours, result.everywhere = assembly(entry, target)
        result.ops, result.places = max(_ops, default=0), len(_ops)
        if repeats:
            for how, seconds in timings(entry, target, one, repeats).items():
                setattr(result, how, seconds)
    except Exception as error:
        result.outcome, result.detail = "error", _first_line(error)
        return result
    if _changed:
        result.outcome = "text"
        result.detail = f"{len(_changed)} of {result.places} texts: {_difference(*_changed[0])}"
    elif ours != stock:
        again, _ = assembly(entry, target)
        result.outcome = "differs" if again == stock else "varies"
        result.detail = _difference(stock, ours if again == stock else again)
    if keep and result.outcome in ("text", "differs"):
        folder = keep / f"{entry.kernel}-{target.replace(':', '-')}"
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"stock.s": stock, "ours.s": ours}
        if _changed:
            texts |= {"read.mlir": _changed[0][0], "written.mlir": _changed[0][1]}
        for name, text in texts.items():
            (folder / name).write_text(text)
    return result


def _first_line(error: BaseException) -> str:
    """An error's kind and what it says last: Triton puts the kernel's source before the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = error.__cause__ or error.__context__
    if cause is not None and str(cause).strip():
        lines = [f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"]
    said = lines[0] if "remora" in type(error).__module__ and lines else (lines or [""])[-1]
    return f"{type(error).__name__}: {said}"[:300]


def _difference(before: str, after: str) -> str:
    for number, (a, b) in enumerate(zip(before.split("\n"), after.split("\n"), strict=False), 1):
        if a != b:
            return f"line {number}: {a.strip()[:160]!r} became {b.strip()[:160]!r}"
    return f"{before.count(chr(10))} lines became {after.count(chr(10))}"


def work(target: str, keep: Path | None, repeats: int) -> None:
    """Answer each line, a kernel's number in the list, with a line of a result."""
    import standin
    from entries import load

    standin.install(lambda *launch: None, target)  # some packages do not import without a GPU
    listed = load()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print
    for line in sys.stdin:
        out.write(json.dumps(asdict(check(listed[int(line)], target, keep, repeats))) + "\n")
        out.flush()


def peak(index: int, target: str, how: str) -> dict[str, float]:
    """Compile one kernel in this fresh process; the peak of its memory in MiB."""
    import standin
    from entries import load

    import remora

    standin.install(lambda *launch: None, target)
    entry = load()[index]
    everywhere, one = _pipelines(target, tuple(sorted(entry.options.items())))
    pipelines = {"stock": (), "one": (one,), "everywhere": (everywhere,)}[how]
    with remora.use(*pipelines):
        _, seconds = assembly(entry, target)
    return {
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": seconds,
    }


# --- in the parent ----------------------------------------------------------------------------


class Worker:
    """A process that compiles for one target; another is started when it dies."""

    def __init__(self, target: str, *options: str) -> None:
        self.target = target
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    def ask(self, index: int, entry: Any) -> Result:
        """The result for one kernel."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--work", self.target, *self.options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=_environment(),
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            process.stdin.write(f"{index}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return Result(**json.loads(line))
        code = process.wait()
        return Result(
            entry.name, entry.package, self.target, "died", f"the process ended with {code}"
        )

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}


def run_all(
    chosen: list[tuple[int, Any, str]], jobs: int, options: list[str], every: Any
) -> list[Result]:
    """Check kernels in ``jobs`` processes."""
    todo: queue.SimpleQueue[tuple[int, Any, str]] = queue.SimpleQueue()
    for item in chosen:
        todo.put(item)
    results: list[Result] = []

    def loop() -> None:
        workers: dict[str, Worker] = {}
        while True:
            try:
                index, entry, target = todo.get_nowait()
            except queue.Empty:
                break
            worker = workers.setdefault(target, Worker(target, *options))
            result = worker.ask(index, entry)
            results.append(result)
            every(result, len(results), len(chosen))
        for worker in workers.values():
            worker.close()

    threads = [threading.Thread(target=loop) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results, key=lambda r: (r.package, r.name, r.target))


def overhead(results: list[Result], how: str) -> dict[str, float]:
    """What one pass adds to a compilation, in percent: of the median kernel, and the spread."""
    measured = [r for r in results if r.outcome == "same" and r.stock]
    ratios = sorted(100 * (getattr(r, how) / r.stock - 1) for r in measured)
    if len(ratios) < 2:
        return {}
    cuts = statistics.quantiles(ratios, n=10)
    together = sum(getattr(r, how) for r in measured) / sum(r.stock for r in measured)
    return {
        "compilations": len(ratios),
        "median": statistics.median(ratios),
        "p10": cuts[0],
        "p90": cuts[-1],
        "together": 100 * (together - 1),
    }


def memory(results: list[Result], entries: list[Any]) -> dict[str, Any]:
    """The peak of memory for the largest kernel, stock and with the pass."""
    largest = max((r for r in results if r.outcome == "same"), key=lambda r: r.ops, default=None)
    if largest is None:
        return {}
    index = next(i for i, e in enumerate(entries) if e.name == largest.name)
    found: dict[str, Any] = {"kernel": largest.name, "target": largest.target, "ops": largest.ops}
    for how in ("stock", "one", "everywhere"):
        command = [sys.executable, __file__, "--peak", str(index), largest.target, how]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(),
        )
        found[how] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(results: list[Result]) -> str:
    """The summary: a row for each package and target."""
    columns = ("same", "refused", "varies", "missing", "differs", "text", "error", "died")
    rows = [("package", "target", "kernels", *columns)]
    keys = sorted({(r.package, r.target) for r in results})
    for package, target in [*keys, *sorted({("all", t) for _, t in keys})]:
        counts = Counter(
            r.outcome for r in results if r.target == target and package in (r.package, "all")
        )
        rows.append((package, target, str(counts.total()), *(str(counts[c]) for c in columns)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    from entries import load

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", nargs="+", default=list(TARGETS))
    parser.add_argument("--sample", type=int, help="so many kernels, the same each time")
    parser.add_argument("--only", help="kernels whose module:name contains this")
    parser.add_argument("--package", help="kernels of this package")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--log", type=Path, help="a file for each result as it comes")
    parser.add_argument("--again", type=Path, help="only what was not the same in this --log")
    parser.add_argument("--keep", type=Path, help="a folder for the texts of what differs")
    parser.add_argument("--time", type=int, default=0, help="measure so many compilations")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument("--work", metavar="TARGET", help=argparse.SUPPRESS)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.keep, args.time)
        return 0
    if args.peak:
        print(json.dumps(peak(int(args.peak[0]), args.peak[1], args.peak[2])))
        return 0
    entries = load()
    kernels = [
        (i, e)
        for i, e in enumerate(entries)
        if (not args.only or args.only in e.name) and args.package in (None, e.package)
    ]
    if args.again:
        wanted = {
            (r["name"], r["target"])
            for r in map(json.loads, args.again.read_text().splitlines())
            if r["outcome"] not in GOOD
        }
        kernels = [(i, e) for i, e in kernels if any((e.name, t) in wanted for t in args.target)]
    if args.sample and args.sample < len(kernels):
        kernels = sorted(
            random.Random(0).sample(kernels, args.sample), key=lambda numbered: numbered[0]
        )
    chosen = [
        (i, e, target)
        for target in args.target
        for i, e in kernels
        if not args.again or (e.name, target) in wanted
    ]

    log = args.log.open("a") if args.log else None

    def every(result: Result, done: int, total: int) -> None:
        if result.outcome not in GOOD:
            print(
                f"{result.outcome:8} {result.target:10} {result.name}\n         {result.detail}",
                flush=True,
            )
        if log:
            log.write(json.dumps(asdict(result)) + "\n")
            log.flush()
        if done % 50 == 0:
            print(f"{done} of {total}", file=sys.stderr, flush=True)

    options = ["--time", str(args.time), *(["--keep", str(args.keep)] if args.keep else [])]
    # What a part of a run has found should hold for the whole.
    random.Random(1).shuffle(chosen)
    begin = time.time()
    results = run_all(chosen, args.jobs, options, every)
    print(table(results))
    sys.path.append(str(HERE.parent / "benchmarks"))
    import machine

    summary: dict[str, Any] = machine.record() | {
        "seconds": round(time.time() - begin, 1),
        "round trips": sum(r.places for r in results),
        "outcomes": Counter(r.outcome for r in results),
        "overhead of one pass, %": overhead(results, "one"),
        "overhead of one pass whose module is parsed anew, %": overhead(results, "anew"),
    }
    if not args.no_memory:
        summary["memory of the largest"] = memory(results, entries)
    print(json.dumps(summary, indent=2))
    if args.json:
        args.json.write_text(
            json.dumps({**summary, "results": [asdict(r) for r in results]}, indent=1) + "\n"
        )
    return int(any(r.outcome not in (*GOOD, *STOCK) for r in results))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
