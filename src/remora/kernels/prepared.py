"""Launches that are prepared once, for all calls that differ only in where their tensors are.

Triton looks at each argument of each launch, to find the kernel that was compiled for such
arguments; with several kernels and descriptors that takes longer than a small problem does. What
tells compilations apart (dtypes, shapes, strides, alignments) is here the same for all calls of
one preparation, and the caller sees to it. Arguments name tensors by their number among those of
a call; scratch memory is one of them, and what kernels hand to each other is parts of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor


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
        self._compiled: Any = None
        self._pointers = [
            (place, x.number, x.offset)
            for place, x in enumerate(arguments)
            if isinstance(x, Whole | Part)
        ]
        self._descriptors = [
            (place, x.base.number, x.base.offset)
            for place, x in enumerate(arguments)
            if isinstance(x, Described)
        ]
        self._held: dict[int, tuple[int, TensorDescriptor]] = {}
        rest = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
        self._arguments = [*arguments, *rest]

    def __call__(self, tensors: Sequence[Any], addresses: Sequence[int], stream: Any) -> None:
        """Launch on a stream of the current device; addresses: of the tensors."""
        if self._compiled is None:
            given = [
                x.of(tensors) if isinstance(x, Whole | Part | Described) else x for x in self._given
            ]
            self._compiled = self._kernel[(self._programs,)](*given, **self._constants)
            return  # None where Triton interprets
        arguments = self._arguments.copy()
        for place, number, offset in self._pointers:
            arguments[place] = addresses[number] + offset
        for place, number, offset in self._descriptors:
            address = addresses[number] + offset
            held = self._held.get(place)
            if held is None or held[0] != address:
                described = self._given[place].at(_Address(address))
                self._held[place] = held = address, described
            arguments[place] = held[1]
        self._compiled[self._programs, 1, 1](*arguments, stream=stream)


class Memory:
    """Memory that one of a call's tensors, which is of bytes, has room for."""

    def __init__(self, number: int, first: int = 0) -> None:
        """number: of the tensor; first: bytes that are taken already."""
        self._number, self.bytes = number, first

    def room(self, count: int, dtype: Any) -> Part:
        """Some elements, from a multiple of 256 bytes on."""
        part = Part(self._number, self.bytes, dtype, count)
        self.bytes += -(-count * dtype.itemsize // 256) * 256
        return part


class Launches:
    """Launches one after the other."""

    def __init__(self) -> None:
        self._launches = list[Launch]()

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
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        with torch.cuda.device(device):
            stream = triton.runtime.driver.active.get_current_stream(device.index)
            for launch in self._launches:
                launch(tensors, addresses, stream)
