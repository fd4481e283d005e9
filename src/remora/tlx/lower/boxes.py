"""The layouts of tensor descriptors: that of the buffers whose boxes they describe.

Stock Triton gives every descriptor of a module a layout that follows from its block
shape (``optimize_descriptor_encoding``), whatever it had, and takes descriptor and
buffer to agree. TLX's lowering gives the same ones. Where a buffer needs another layout
the copy gets the buffer through a cast, and ``FitDescriptors``, after that stock pass,
takes the cast out and gives the descriptor the buffer's layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, SymbolRefAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from remora.dsl.lowering import carried_to
from remora.errors import ConflictingLayouts
from remora.ir.build import Builder, attribute, erase, inherent, op_name, set_type
from remora.ir.locations import source_line
from remora.tlx.lower.layouts import NvmmaShared, shared_layout

_CAST = "builtin.unrealized_conversion_cast"

#: The operations that copy between a descriptor and a buffer.
_COPIES = (
    "ttng.async_tma_copy_global_to_local",
    "ttng.async_tma_copy_local_to_global",
    "ttng.async_tma_reduce",
)

# ``tensor<...>`` is there up to Triton 3.7.
_DESCRIPTOR = re.compile(r"!tt\.tensordesc<(tensor<)?((?:\d+x)+)(\w+)(?:, .*?>)?>+")


_LAYOUT = re.compile(r"#ttg\.nvmma_shared<\{.*?\}>")


@dataclass(frozen=True)
class Box:
    """What the type of a descriptor says of its boxes.

    shape: in elements. element: as MLIR writes it, integers with a sign. nested: how the
    release writes the type.
    """

    shape: tuple[int, ...]
    element: str
    nested: bool

    @classmethod
    def of(cls, kind: Attribute) -> Box | None:
        """Of a type; None where it is none of a descriptor."""
        found = _DESCRIPTOR.fullmatch(str(kind))
        if found is None:
            return None
        extents = tuple(int(n) for n in found[2].rstrip("x").split("x"))
        return cls(extents, found[3], bool(found[1]))

    @property
    def bits(self) -> int:
        """The width of an element."""
        digits = re.search(r"\d+", self.element)
        assert digits is not None
        return int(digits[0])

    @property
    def layout(self) -> NvmmaShared:
        """The layout that stock Triton gives the descriptor."""
        return NvmmaShared.of_copies(self.shape, self.bits)

    def type(self, layout: NvmmaShared) -> Attribute:
        """The descriptor's type, with a layout."""
        block = f"{'x'.join(map(str, self.shape))}x{self.element}, {layout}"
        return attribute(f"!tt.tensordesc<{f'tensor<{block}>' if self.nested else block}>")


def descriptors_of(module: ModuleOp) -> Iterator[tuple[SSAValue, Box]]:
    """The values of a module that are descriptors."""
    for op in module.walk():
        arguments = (a for region in op.regions for block in region.blocks for a in block.args)
        for value in (*op.results, *arguments):
            box = Box.of(value.type)
            if box is not None:
                yield value, box


def encode_descriptors(module: ModuleOp) -> None:
    """Give every descriptor the layout that stock Triton gives it."""
    for value, box in descriptors_of(module):
        set_type(value, box.type(box.layout))
    _sign_functions(module)


def _sign_functions(module: ModuleOp) -> None:
    """Have the types of functions say what their arguments and results are."""
    for op in module.ops:
        if op_name(op) != "tt.func" or not op.regions[0].blocks:
            continue
        signature = inherent(op, "function_type")
        results = list(signature.outputs.data)
        for block in op.regions[0].blocks:
            if block.last_op is not None and op_name(block.last_op) == "tt.return":
                results = [v.type for v in block.last_op.operands]
        inputs = [a.type for a in op.regions[0].blocks[0].args]
        where = op.properties if "function_type" in op.properties else op.attributes
        where["function_type"] = FunctionType.from_lists(inputs, results)


def fitting(buffer: SSAValue, descriptor: SSAValue, builder: Builder) -> SSAValue:
    """A buffer as the stock layout of a descriptor wants it: itself, or a cast."""
    box = Box.of(descriptor.type)
    assert box is not None
    text = str(buffer.type)
    found = _LAYOUT.search(text)
    assert found is not None
    # The buffer may have fewer dimensions, without first ones of 1.
    given = shared_layout(found[0])
    assert isinstance(given, NvmmaShared)
    layout = replace(box.layout, rank=given.rank)
    wanted = attribute(text.replace(found[0], str(layout)))
    return buffer if wanted == buffer.type else builder.value(_CAST, [buffer], wanted)


@dataclass(frozen=True)
class FitDescriptors(ModulePass):
    """Gives descriptors the layouts of buffers that are cast for them."""

    name = "fit-descriptors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """See the module.

        Raises:
            ConflictingLayouts: one descriptor has buffers of two layouts.
        """
        joined = _joined(op)
        layouts: dict[SSAValue, tuple[str, Operation]] = {}
        for copy in [o for o in op.walk() if op_name(o) in _COPIES]:
            layout = _take_cast_out(copy)
            for value in joined[copy.operands[0]]:
                known, first = layouts.setdefault(value, (layout, copy))
                if known != layout:
                    raise ConflictingLayouts(
                        f"one descriptor is used with buffers of two layouts: {known} and {layout}",
                        where=f"{source_line(first.location)} and {source_line(copy.location)}",
                        hint="make a descriptor for each of them",
                    )
        for value, (layout, _) in layouts.items():
            box = Box.of(value.type)
            assert box is not None
            found = shared_layout(layout)
            assert isinstance(found, NvmmaShared)
            set_type(value, box.type(replace(found, rank=len(box.shape))))
        _sign_functions(op)


def _take_cast_out(copy: Operation) -> str:
    """Give a copy its buffer itself; the buffer's layout."""
    layout = ""
    for index, value in enumerate(copy.operands):
        owner = value.owner
        if isinstance(owner, Operation) and op_name(owner) == _CAST:
            copy.operands[index] = value = owner.operands[0]
            if not owner.results[0].uses:
                erase(owner)
        found = _LAYOUT.search(str(value.type))
        if found is not None and str(value.type).startswith("!ttg.memdesc"):
            layout = re.sub(r", rank = \d+", "", found[0])
    return layout


def _joined(module: ModuleOp) -> dict[SSAValue, set[SSAValue]]:
    """For each descriptor, those that are the same one by control flow and calls."""
    functions = {
        str(inherent(f, "sym_name").data): f for f in module.ops if op_name(f) == "tt.func"
    }
    groups: dict[SSAValue, set[SSAValue]] = {v: {v} for v, _ in descriptors_of(module)}
    for value in list(groups):
        for other in (*carried_to(value), *_passed_to(value, functions)):
            merged = groups[value] | groups[other]
            for member in merged:
                groups[member] = merged
    return groups


def _passed_to(value: SSAValue, functions: dict[str, Operation]) -> Iterator[SSAValue]:
    """The arguments of functions that are called with a value."""
    for use in value.uses:
        callee = inherent(use.operation, "callee")
        if op_name(use.operation) == "tt.call" and isinstance(callee, SymbolRefAttr):
            yield functions[callee.root_reference.data].regions[0].blocks[0].args[use.index]
