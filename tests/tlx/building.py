"""Compiles a kernel for a target from the types of its arguments, as a launch would."""

from __future__ import annotations

import re
from typing import Any

import triton
from compiling import TARGETS
from triton.compiler import ASTSource

#: Triton's, as numbers: 3.10 is later than 3.9.
RELEASE = tuple(int(n) for n in triton.__version__.split(".")[:2])

_DIVISIBLE_BY_16 = [["tt.divisibility", 16]]
_BELOW_2_GIB = [["tt.pointer_range", 32]]


def build(
    kernel: Any, target: str, *, options: dict[str, Any] | None = None, below_2_gib: bool = False,
    **given: Any,
) -> Any:  # fmt: skip
    """The ``CompiledKernel``.

    given: each parameter of the kernel: a type as Triton writes it (``"*fp16"``,
        ``"i32"``), or the value of a constant. Pointers are aligned to 16 bytes;
        ``"i32:16"`` is an integer that 16 divides, ``"*fp16:1"`` is a pointer of
        which nothing is known. A tuple is of such, nothing being known of them.
    below_2_gib: pointers are marked as launches on AMD mark those of tensors that small.
    """
    signature: dict[str, Any] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        value = given.pop(name, parameter.default)
        if isinstance(value, tuple) and not parameter.is_constexpr:
            signature[name] = _types(value, (index,), constants)
            continue
        if parameter.is_constexpr or not isinstance(value, str):
            signature[name], constants[name] = "constexpr", value
            continue
        kind, _, divisor = value.partition(":")
        signature[name] = kind
        known = []
        if (divisor or ("16" if kind.startswith("*") else "1")) == "16":
            known += _DIVISIBLE_BY_16
        if kind.startswith("*") and below_2_gib:
            known += _BELOW_2_GIB
        attributes[(index,)] = known
    assert not given, f"{kernel} has no parameters {list(given)}"
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGETS[target], options=options)


def _types(value: Any, path: tuple[int, ...], constants: dict[Any, Any]) -> Any:
    """The types of a tuple's members; what is constant goes to ``constants``."""
    if isinstance(value, tuple):
        return tuple(_types(v, (*path, i), constants) for i, v in enumerate(value))
    if isinstance(value, str):
        return value
    constants[path] = value
    return "constexpr"


def instructions(assembly: str, pattern: str) -> list[str]:
    """What ``pattern`` matches in assembly, in order, white space evened out."""
    return [" ".join(found.split()) for found in re.findall(pattern, assembly)]


def waits(compiled: Any) -> list[int]:
    """The counts of the waits for copies in PTX, in order."""
    found = re.findall(r"cp\.async\.wait_group\s+(?:0x)?(\d+)", compiled.asm["ptx"])
    return [int(n) for n in found]


def line_of(kernel: Any, text: str) -> str:
    """``file:line`` of the first line of a kernel's source that holds ``text``."""
    first = kernel.starting_line_number
    offset = next(i for i, line in enumerate(kernel.raw_src) if text in line)
    return f"{kernel.fn.__code__.co_filename}:{first + offset}"


def conversions_in_loops(ttgir: str) -> list[str]:
    """The conversions of layouts within loops, but for those that move nothing between threads.

    A product's result that becomes the first operand of another product stays in its registers
    where elements are of 16 bits; a value of each row of one product is where that of another is,
    a result of one width where one of another width would be, and sums of every eighth column.
    """
    # Layouts of products less what does not say where rows are: the instruction's shape.
    layouts = re.findall(r"^(#mma\d*) = (#ttg.nvidia_mma<.*>)", ttgir, re.MULTILINE)
    rows_of = {name: re.sub(r"instrShape = \[[^]]*\]", "", layout) for name, layout in layouts}
    row = r"#ttg.slice<{dim = 1, parent = (#mma\d*)}>>"
    found, inside = [], []
    for line in ttgir.splitlines():
        text, depth = line.strip(), len(line) - len(line.lstrip())
        while inside and text.startswith("}") and depth == inside[-1]:
            inside.pop()
        if re.search(r"= scf\.(for|while) |^scf\.(for|while) ", text):
            inside.append(depth)
        free: Any = re.search(r"x(bf16|f16), #mma\d*> -> tensor<\S+ #ttg.dot_op<{opIdx = 0", text)
        free = free or re.search(r"x8xf32, #ttg.slice<{dim = 1, parent = #lin\S+ -> \S+ #mma", text)
        alike = re.search(r"xf32, (#mma\d*)> -> tensor<\S+ (#mma\d*)>", text)
        alike = alike or re.search(rf"xi1, {row} -> tensor<\d+xi1, {row}", text)
        free = free or (alike and rows_of[alike[1]] == rows_of[alike[2]])
        if inside and "ttg.convert_layout" in text and not free:
            found.append(text)
    return found


def loops_of(ptx: str) -> list[str]:
    """The bodies of the loops of PTX: from a label to the branch back to it."""
    labels = {m.group(1): m.start() for m in re.finditer(r"^(\$L__BB\w+):", ptx, re.MULTILINE)}
    branches = re.finditer(r"bra(?:\.uni)?\s+(\$L__BB\w+);", ptx)
    return [ptx[labels[b.group(1)] : b.start()] for b in branches if labels[b.group(1)] < b.start()]
