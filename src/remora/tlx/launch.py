"""The launch option ``ctas_per_cga``: clusters of CTAs, on stock launchers.

TLX's grid is the number of CTAs in all, and a program is a CTA; neighbours form
clusters. That is what CUDA does with a kernel whose cluster size is fixed when it
is compiled (``.reqnctapercluster``, CUDA C++ Programming Guide, thread block
clusters): it is launched like any other, with its grid in CTAs. So the size is
written into the PTX, ``num_ctas`` stays 1 for the compiler and for the launcher,
and nothing of Triton's launch has to know.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import triton
from triton import knobs
from triton import language as tl
from triton.runtime import driver

from remora.dsl.op import reference_warps
from remora.dsl.reference import run_together
from remora.errors import KernelArgumentError, PipelineError, UnsupportedByTarget
from remora.pipeline import Pipeline, attach

#: The launch option.
OPTION = "ctas_per_cga"

# Existing kernels with cluster launch control give it; it has no effect here: a grid without
# clusters is one of clusters of one CTA.
_LAUNCH_CLUSTER = "launch_cluster"

#: The most CTAs of a cluster that every target has (CUDA C++ Programming Guide: portable).
MOST_CTAS = 8

Size = tuple[int, int, int]

#: Under the reference meaning: the size of the clusters of the launch that is running, and its
#: clusters, where the launch knows them.
reference_cluster: ContextVar[Size] = ContextVar("remora.tlx.cluster", default=(1, 1, 1))
reference_clusters: ContextVar[Clusters | None] = ContextVar("remora.tlx.clusters", default=None)


class Clusters:
    """A kernel's programs under the reference meaning, cluster by cluster.

    Called for each program of the grid, in order: the first one of a cluster runs all of it, the
    others have run by then. A cluster whose place another one has taken does not run.
    """

    def __init__(self, function: Any, size: Size) -> None:
        # What Triton's executor of grids reads off a function.
        functools.update_wrapper(self, function)
        self.__globals__ = function.__globals__
        self.__signature__ = inspect.signature(function)
        self._function, self._size = function, size
        self._begun: set[Size] = set()

    def __call__(self, **arguments: Any) -> None:
        from triton.runtime.interpreter import interpreter_builder

        place = interpreter_builder.grid_idx
        if any(p % n for p, n in zip(place, self._size, strict=True)) or place in self._begun:
            return
        self._begun.add(place)
        token = reference_clusters.set(self)
        try:
            if self._size == (1, 1, 1):
                self._function(**arguments)
            else:
                run_together(list(self._of(place)), functools.partial(self._function, **arguments))
        finally:
            reference_clusters.reset(token)

    def _of(self, first: Size) -> Iterator[Size]:
        """The programs of a cluster, by rank."""
        for z, y, x in itertools.product(*map(range, reversed(self._size))):
            yield first[0] + x, first[1] + y, first[2] + z

    def take(self) -> Size | None:
        """Take the place of the next cluster that has not begun: its first program's."""
        from triton.runtime.interpreter import interpreter_builder

        extents = zip(interpreter_builder.grid_dim, self._size, strict=True)
        for x, y, z in itertools.product(*(range(0, n, step) for n, step in extents)):
            if (x, y, z) not in self._begun:
                self._begun.add((x, y, z))
                return x, y, z
        return None


def cluster_size(value: Any) -> Size:
    """A cluster's extents along the three axes of the grid.

    Raises:
        KernelArgumentError: they are not three numbers with a product of at most 8.
    """
    try:
        extents = tuple(int(n) for n in value)
    except (TypeError, ValueError):
        extents = ()
    if len(extents) != 3 or min(extents) < 1 or math.prod(extents) > MOST_CTAS:
        raise KernelArgumentError(
            f"{OPTION}={value!r} is not the size of a cluster",
            hint=f"give three numbers whose product is at most {MOST_CTAS}: (2, 1, 1)",
        )
    x, y, z = extents
    return x, y, z


@functools.cache
def in_clusters(size: Size) -> Pipeline:
    """The pipeline that compiles a kernel for clusters of a size, for ``remora.use``."""
    size = cluster_size(size)
    fixed = functools.partial(_with_size, size=size)
    name = "x".join(map(str, size))
    return Pipeline(f"clusters of {name} CTAs").override("ptx", fixed)


def cluster_in_force() -> Size:
    """The size of the clusters that a kernel is being compiled for, or runs in on a CPU."""
    from remora.pipeline.active import active

    for edit in (e for p in reversed(active.pipelines()) for e in p.edits):
        given = edit.subject
        if isinstance(given, functools.partial) and given.func is _with_size:
            size: Size = given.keywords["size"]
            return size
    return reference_cluster.get()


def _with_size(text: str, compile_: Callable[[str], str], size: Size) -> str:
    """The stage ``ptx`` with the entry's cluster size added."""
    return set_cluster_size(compile_(text), size)


def set_cluster_size(ptx: str, size: Size) -> str:
    """PTX whose entry is launched in clusters of a size.

    Raises:
        UnsupportedByTarget: the PTX is for a GPU without clusters.
    """
    target = re.search(r"^\.target sm_(\d+)", ptx, re.MULTILINE)
    if target is None or int(target[1]) < 90:
        raise UnsupportedByTarget(
            f"clusters of {math.prod(size)} CTAs: "
            f"{f'sm_{target[1]}' if target else 'the target'} has no clusters",
            hint=f"compute capability 9.0 has; leave {OPTION} out",
        )
    entry = re.search(r"^\.visible \.entry .*?^\{", ptx, re.MULTILINE | re.DOTALL)
    if entry is None:
        raise PipelineError("the PTX has no entry to set a cluster size for")
    directive = f".explicitcluster\n.reqnctapercluster {', '.join(map(str, size))}\n"
    return ptx[: entry.end() - 1] + directive + ptx[entry.end() - 1 :]


class Config(triton.Config):
    """``triton.Config`` with ``ctas_per_cga``, which travels to the launch among the kwargs.

    Raises:
        KernelArgumentError: see ``cluster_size``.
    """

    def __init__(
        self, kwargs: dict[str, Any], *args: Any, ctas_per_cga: Any = None, **others: Any
    ) -> None:
        if ctas_per_cga is not None:
            kwargs = {**kwargs, OPTION: cluster_size(ctas_per_cga)}
        super().__init__(kwargs, *args, **others)

    @property
    def ctas_per_cga(self) -> Size | None:
        """The size of the clusters, if one was given."""
        size: Size | None = self.kwargs.get(OPTION)
        return size


def autotune(configs: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """``triton.autotune``, which on every release leaves out keys that the kernel does not have.

    Triton 3.9 refuses them, releases before did not; existing kernels have some.
    """

    def tuned(kernel: Any) -> Any:
        unknown = [name for name in key if name not in kernel.arg_names]
        if unknown:
            warnings.warn(
                f"{kernel.__name__} has no arguments {', '.join(unknown)}: the autotuner's key is "
                "without them",
                stacklevel=2,
            )
        known = [name for name in key if name not in unknown]
        return triton.autotune(configs, known, *args, **kwargs)(kernel)

    return tuned


def jit(fn: Any = None, **options: Any) -> Any:
    """``triton.jit``; the kernel takes the launch option ``ctas_per_cga``."""
    if fn is None:
        return lambda function: with_clusters(triton.jit(**options)(function))
    return with_clusters(triton.jit(fn, **options))


def with_clusters(kernel: Any) -> Any:
    """The same kernel, which takes the launch option ``ctas_per_cga`` from now on."""
    stock: Any = type(kernel)
    kernel.__class__ = _clustered(stock)
    return kernel


@functools.cache
def _clustered(stock: Any) -> Any:
    """The class of functions, compiled or interpreted, that know the option."""

    class Clustered(stock):  # type: ignore[misc]
        def get_capture_scope(self) -> dict[str, Any]:
            # Existing kernels annotate variables as tuples, a name that stock Triton lacks.
            return {"tuple": tl.tuple, **super().get_capture_scope()}

        def run(self, *args: Any, **kwargs: Any) -> Any:
            kwargs.pop(_LAUNCH_CLUSTER, None)
            value = kwargs.pop(OPTION, None)
            size = (1, 1, 1) if value is None else cluster_size(value)
            if knobs.runtime.interpret:
                return _interpret(self, size, args, kwargs)
            return (
                super().run(*args, **kwargs) if value is None else _launch(self, size, args, kwargs)
            )

    Clustered.__name__ = stock.__name__  # Triton asks for it
    return Clustered


def _launch(kernel: Any, size: Size, args: Any, kwargs: dict[str, Any]) -> Any:
    """A kernel's ``run`` in clusters of a size."""
    if size == (1, 1, 1):
        return kernel.run(*args, **kwargs)  # a CTA without a cluster is a cluster of one
    _check_option(size, kwargs)
    _check_target(size)
    return _in_clusters(kernel, size).run(*args, **kwargs)


def _check_option(size: Size, kwargs: dict[str, Any]) -> None:
    if kwargs.get("num_ctas", 1) != 1:
        raise KernelArgumentError(
            f"num_ctas={kwargs['num_ctas']} and {OPTION}={size} are both given",
            hint=f"{OPTION} makes clusters of programs of one CTA: leave num_ctas out",
        )
    kwargs["grid"] = _whole_clusters(kwargs["grid"], size)


def _interpret(kernel: Any, size: Size, args: Any, kwargs: dict[str, Any]) -> None:
    """A kernel's ``run`` with the reference meaning, as Triton's ``InterpretedFunction`` has it."""
    from triton.runtime.interpreter import GridExecutor

    grid, warmup = kwargs.pop("grid"), kwargs.pop("warmup")
    if warmup:
        return
    if size != (1, 1, 1):
        kwargs["grid"] = grid
        _check_option(size, kwargs)
        grid = kwargs.pop("grid")
    cluster = reference_cluster.set(size)
    warps = reference_warps.set(kwargs.get("num_warps", 4))
    try:
        programs = Clusters(kernel.rewrite(), size)
        GridExecutor(programs, kernel.arg_names, grid, kernel.pre_run_hooks)(*args, **kwargs)
    finally:
        reference_cluster.reset(cluster)
        reference_warps.reset(warps)


def _in_clusters(kernel: Any, size: Size) -> Any:
    """The kernel that is compiled for clusters of a size, made once."""
    owner, made = vars(kernel).get("remora_clusters", (None, {}))
    if owner is not kernel:  # a copy of a kernel
        made = {}
        kernel.remora_clusters = (kernel, made)
    key = size, type(kernel), getattr(kernel, "remora_pipelines", ())
    if key not in made:
        made[key] = attach(in_clusters(size))(copy.copy(kernel))
    return made[key]


def _check_target(size: Size) -> None:
    target = driver.active.get_current_target()
    if target.backend != "cuda" or int(target.arch) < 90:
        raise UnsupportedByTarget(
            f"{OPTION}={size}: {target.backend}:{target.arch} has no clusters",
            hint=f"leave {OPTION} out on this GPU",
        )


def _whole_clusters(grid: Any, size: Size) -> Any:
    """The grid, checked when it is known: a whole number of clusters along each axis."""

    def checked(extents: Any) -> Any:
        for axis, (ctas, cluster) in enumerate(zip((*extents, 1, 1), size, strict=False)):
            if ctas % cluster:
                raise KernelArgumentError(
                    f"the grid has {ctas} CTAs along axis {axis}, clusters have {cluster}",
                    hint=f"the grid counts CTAs, not clusters: make it a multiple of {cluster}",
                )
        return extents

    return (lambda meta: checked(grid(meta))) if callable(grid) else checked(grid)
