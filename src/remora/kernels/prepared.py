"""Launches that are prepared once, for all calls that differ only in where their tensors are.

Triton looks at each argument of each launch, to find the kernel that was compiled for such
arguments; with several kernels and descriptors that takes longer than a small problem does. What
tells compilations apart (dtypes, shapes, strides, alignments) is here the same for all calls of
one preparation, and the caller sees to it. Arguments name tensors by their number among those of
a call; scratch memory is one of them, and what kernels hand to each other is parts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

#: Sets of addresses whose launches are kept: a network's layers have weights of their own.
_MOST_KNOWN = 256


@dataclass(frozen=True)
class Whole:
    """One of a call's tensors, as it is; bool as bytes."""

    number: int
    offset = 0

    def of(self, tensors: Sequence[Any]) -> Any:
        import torch

        tensor = tensors[self.number]
        return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


@dataclass(frozen=True)
class Part:
    """``count`` elements of one of a call's tensors, which is of bytes, from an offset on."""

    number: int
    offset: int
    dtype: Any
    count: int

    def of(self, tensors: Sequence[Any]) -> Any:
        size = self.count * self.dtype.itemsize
        return tensors[self.number][self.offset : self.offset + size].view(self.dtype)

    def after(self, count: int) -> Part:
        """What is left after some elements."""
        offset = self.offset + count * self.dtype.itemsize
        return Part(self.number, offset, self.dtype, self.count - count)


@dataclass(frozen=True)
class Described:
    """A contiguous tensor for the copy engine; rows have to be multiples of 16 bytes."""

    base: Whole | Part
    shape: tuple[int, ...]
    block: tuple[int, ...]

    def of(self, tensors: Sequence[Any]) -> TensorDescriptor:
        return self.at(self.base.of(tensors))

    def at(self, base: Any) -> TensorDescriptor:
        """Without the checks of ``TensorDescriptor``, which take longer than all the rest."""
        descriptor = object.__new__(TensorDescriptor)
        descriptor.base = base
        descriptor.shape, descriptor.block_shape = list(self.shape), list(self.block)
        strides = [1]
        for extent in self.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        descriptor.strides = strides
        return descriptor


class _Address:
    """What a descriptor asks of its base."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


class Launch:
    """A kernel's launch: by Triton the first time, and then of what Triton compiled."""

    def __init__(self, kernel: Any, programs: int, arguments: tuple[Any, ...], **constants: Any):
        """arguments: numbers, and ``Whole``, ``Part`` and ``Described``.

        constants: the kernel's last parameters, and options of the compilation.
        """
        self._kernel, self._programs = kernel, programs
        self._given, self._constants = arguments, constants
        self._rest = [constants[name] for name in kernel.arg_names[len(arguments) :]]
        self._compiled: Any = None

    def __call__(self, tensors: Sequence[Any], addresses: Sequence[int], stream: Any) -> None:
        """Launch on a stream of the current device; addresses: of the tensors."""
        if self._compiled is None:
            given = [
                x.of(tensors) if isinstance(x, Whole | Part | Described) else x for x in self._given
            ]
            self._compiled = self._kernel[(self._programs,)](*given, **self._constants)
            return  # None where Triton interprets
        self._compiled[self._programs, 1, 1](*self._arguments(addresses), stream=stream)

    def _arguments(self, addresses: Sequence[int]) -> list[Any]:
        arguments = []
        for x in self._given:
            if isinstance(x, Described):
                x = x.at(_Address(addresses[x.base.number] + x.base.offset))
            elif isinstance(x, Whole | Part):
                x = addresses[x.number] + x.offset
            arguments.append(x)
        return arguments + self._rest

    def at(self, addresses: Sequence[int]) -> Callable[[Any], None] | None:
        """The launch of tensors at these addresses, for a stream; for NVIDIA, else None.

        Triton's launcher encodes each descriptor for each launch. Here it does so once, into what
        it would hand to its C function, which gets the same again from then on, but for the stream.
        None also where a launch needs more than that: memory of its own, or a sanitizer's numbers.
        """
        compiled = self._compiled
        run: Any = None if compiled is None else compiled.run
        if type(run).__module__ != "triton.backends.nvidia.driver":
            return None
        if getattr(run, "gsan_enabled", False):
            return None
        from triton.backends.nvidia.driver import wrap_handle_tensordesc

        seen: list[Any] = []
        recording = copy(run)
        recording.launch = wrap_handle_tensordesc(
            lambda *handed: seen.extend(handed), dict(compiled.src.signature),
            getattr(compiled.metadata, "tensordesc_meta", None),
        )  # fmt: skip
        hooks = None, None, None
        recording(
            self._programs, 1, 1, 0, compiled.function, compiled.packed_metadata, *hooks,
            *self._arguments(addresses),
        )  # fmt: skip
        *_, own_memory, own_profile, _, _, _ = seen
        if own_memory is not None or own_profile is not None:
            return None
        launch, grid, rest = triton.runtime.driver.active.utils.launch, seen[:3], seen[4:]
        return lambda stream: launch(*grid, stream, *rest)


def _watched() -> bool:
    """Whether somebody asks to be told of each launch."""
    runtime = triton.knobs.runtime
    hooks = runtime.launch_enter_hook, runtime.launch_exit_hook
    return any(h is not None and getattr(h, "calls", True) for h in hooks)


class Launches:
    """Launches one after the other, and the scratch memory they need."""

    def __init__(self, scratch: int) -> None:
        """scratch: the number of the tensor that is the scratch memory."""
        self._scratch, self._launches = scratch, list[Launch]()
        self._at: dict[tuple[int, ...], list[Callable[[Any], None]]] = {}
        self.bytes = 0

    def room(self, count: int, dtype: Any) -> Part:
        """Elements of scratch memory, from a multiple of 256 bytes on."""
        part = Part(self._scratch, self.bytes, dtype, count)
        self.bytes += -(-count * dtype.itemsize // 256) * 256
        return part

    def add(self, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        """As of ``Launch``."""
        self._launches.append(Launch(kernel, programs, arguments, **constants))

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Launch all, on the current stream of the device of the first tensor."""
        import torch

        device = tensors[0].device
        if device.type == "cpu":
            for launch in self._launches:
                launch(tensors, (), None)
            return
        addresses = tuple(0 if x is None else x.data_ptr() for x in tensors)
        with torch.cuda.device(device):
            stream = triton.runtime.driver.active.get_current_stream(device.index)
            known = None if _watched() else self._known(addresses)
            if known is None:
                for launch in self._launches:
                    launch(tensors, addresses, stream)
                return
            for launch_at in known:
                launch_at(stream)

    def _known(self, addresses: tuple[int, ...]) -> list[Callable[[Any], None]] | None:
        """The launches for these addresses; None where each is a launch of Triton's."""
        known = self._at.get(addresses)
        if known is None:
            found = [launch.at(addresses) for launch in self._launches]
            known = [launch for launch in found if launch is not None]
            if len(known) < len(found):
                return None
            if len(self._at) == _MOST_KNOWN:  # the oldest one goes
                del self._at[next(iter(self._at))]
            self._at[addresses] = known
        return known
