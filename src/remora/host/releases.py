"""What the installed Triton has, found by looking at it.

Code elsewhere asks ``features()`` for a property and never compares versions:
a release differs from another by what it has.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, fields
from functools import cache

from remora.errors import UnsupportedTriton

#: Releases on which every test runs.
TESTED = ("3.7.1", "3.8.0", "3.9.0")

#: Releases known not to work, with the reason.
KNOWN_BAD: dict[str, str] = {}

_OLDEST = (3, 7)


@dataclass(frozen=True)
class Features:
    """Properties of a Triton release.

    version: the release, as Triton says it.
    stage_hook: ``knobs.runtime.add_stages_inspection_hook`` exists.
    bridge: libtriton exports every C++ symbol that the bridge calls.
    cache_policies: loads and copies carry a cache policy as one attribute
        (``cachePolicy``), not ``cache`` and ``evict``; stores of descriptors carry it too.
    calls_carry_tensors: TTIR to TTGIR conversion updates the signature of a
        function without a body, so that a call to it can carry tensors.
    copies_to_lds: stock passes fit asynchronous copies to what CDNA's loads straight to
        LDS can do, unless ``TRITON_HIP_USE_ASYNC_COPY`` is off.
    dot_wait_synchronises: the wait for products of a warp group is also a
        barrier where there are several: another's product may still read the
        operands.
    explicit_native_plugins: native plugins are loaded by explicit calls
        (``passes.plugin.extend_with``) and not through ``TRITON_PLUGIN_PATHS``.
    integers_in_tensor_memory: a product of one CTA may sum int8 there.
    nanobind: the binding is nanobind's (pybind11's before).
    register_classes: a product on CDNA can say which registers its sum is in.
    scheduling_masks: the instructions that a scheduling barrier names are an enumeration;
        before, a number.
    store_waits_read_only: the wait for stores of descriptors says whether it waits
        for reads only; before it always does.
    plans_ctas_by_region: dividing a program over CTAs heeds the warps of a partition;
        before, every tensor is divided over the program's.
    subslices_any_dimension: a part of a matrix in tensor memory says along which dimension
        it is one, and where it begins by another name; before, it is one along N.
    transposes_unswizzled: a matrix layout in shared memory that has no swizzle can be
        transposed; before, it is taken as it would be without.
    """

    version: str
    stage_hook: bool
    bridge: bool
    cache_policies: bool
    calls_carry_tensors: bool
    copies_to_lds: bool
    dot_wait_synchronises: bool
    explicit_native_plugins: bool
    integers_in_tensor_memory: bool
    nanobind: bool
    register_classes: bool
    scheduling_masks: bool
    store_waits_read_only: bool
    plans_ctas_by_region: bool
    subslices_any_dimension: bool
    transposes_unswizzled: bool

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each property, for people."""
        return [(f.name, str(getattr(self, f.name))) for f in fields(self)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


@cache
def features() -> Features:
    """The properties of the installed Triton.

    Raises:
        UnsupportedTriton: no Triton, one that is too old, or a known-bad one.
    Warns:
        on a release newer than the tested ones.
    """
    known = ", ".join(TESTED)
    try:
        import triton
        from triton import knobs
        from triton._C.libtriton import ir
    except ImportError as error:
        raise UnsupportedTriton(
            f"Triton cannot be imported: {error}", hint=f"pip install triton=={TESTED[-1]}"
        ) from error
    version = triton.__version__
    if version in KNOWN_BAD:
        raise UnsupportedTriton(
            f"Triton {version} is known not to work: {KNOWN_BAD[version]}",
            hint=f"install one of {known}",
        )
    if _numbers(version) < _OLDEST:
        raise UnsupportedTriton(
            f"Triton {version} is too old: its compiler has no stage hook",
            where=triton.__file__,
            hint=f"install one of {known}",
        )
    if _numbers(version) > _numbers(TESTED[-1]):
        warnings.warn(
            f"Triton {version} is newer than the releases Remora is tested on ({known}); trying it",
            stacklevel=2,
        )
    from remora.host.bridge import has_symbol, missing_symbols

    missing = missing_symbols()
    stage_hook = hasattr(knobs.runtime, "add_stages_inspection_hook")
    if missing or not stage_hook:
        lacking = [*missing, *([] if stage_hook else ["knobs.runtime.add_stages_inspection_hook"])]
        raise UnsupportedTriton(
            f"Triton {version} lacks {', '.join(lacking)}",
            where=triton.__file__,
            hint=f"install one of {known}",
        )
    return Features(
        version=version,
        stage_hook=stage_hook,
        bridge=not missing,
        cache_policies=has_symbol("_ZN4mlir6triton6LoadOp14getCachePolicyEv"),
        calls_carry_tensors=_calls_carry_tensors(),
        copies_to_lds=_numbers(version) >= (3, 8),
        # The release that made it one added an attribute to switch it off.
        dot_wait_synchronises=has_symbol(
            "_ZN4mlir6triton10nvidia_gpu18WarpGroupDotWaitOp17getWarpGroupLocalEv"
        ),
        explicit_native_plugins=hasattr(ir, "extend_dialects_with"),
        integers_in_tensor_memory=_numbers(version) >= (3, 8),
        nanobind=type(ir.module).__module__ == "nanobind",
        plans_ctas_by_region=_numbers(version) >= (3, 9),
        register_classes=_numbers(version) >= (3, 9),
        scheduling_masks=_numbers(version) >= (3, 9),
        transposes_unswizzled=_numbers(version) >= (3, 8),
        store_waits_read_only=has_symbol(
            "_ZN4mlir6triton10nvidia_gpu14TMAStoreWaitOp11getReadOnlyEv"
        ),
        subslices_any_dimension=has_symbol("_ZN4mlir6triton10nvidia_gpu14TMEMSubSliceOp6getDimEv"),
    )


def _calls_carry_tensors() -> bool:
    """Run the TTIR to TTGIR conversion over a function without a body, and look at it."""
    from remora.host.bridge import convert_to_ttgir

    text = """module {
  tt.func private @f(tensor<32xi32>)
  tt.func public @k() { tt.return }
}
"""
    return "(tensor<32xi32>) -> ()" not in convert_to_ttgir(text, "cuda:90", 4, 32, 1)
