"""The matrix descriptors of a product's operands, worked out in 32 bits.

Each product of a step has its own place in a buffer: a constant that is added to the buffer's
descriptor. Triton before 3.9 adds in 64 bits, where ptxas sees a carry into the upper half: each
descriptor that it keeps takes two registers. The upper half (strides, swizzling) is constant and
the fields of the lower one do not carry into it (PTX ISA, "Matrix Descriptor Format"), so that
the sum is one of 32 bits beside a constant.
"""

from __future__ import annotations

import re

_FUNCTION = re.compile(r"^(?=define )", re.MULTILINE)
_EXTENDED = re.compile(r"^  (%[\w.]+) = zext (?:nneg )?i32 (%[\w.]+) to i64", re.MULTILINE)
_SUM = re.compile(r"^  (%[\w.]+) = add (?:nuw )?(?:nsw )?i64 (%[\w.]+), (\d+)\b", re.MULTILINE)
_PRODUCT = re.compile(r"^.* asm .*wgmma\.mma_async.*$", re.MULTILINE)


def shortened(llvm_ir: str) -> str:
    """LLVM IR with products' descriptors that are sums of a 32-bit number worked out so."""
    return "".join(map(_in_function, _FUNCTION.split(llvm_ir)))


def _in_function(text: str) -> str:
    narrow = dict(_EXTENDED.findall(text))
    used = {x for line in _PRODUCT.findall(text) for x in re.findall(r"i64 (%[\w.]+)", line)}

    def short(found: re.Match[str]) -> str:
        name, wide, constant = found[1], found[2], int(found[3])
        if name not in used or wide not in narrow:
            return found[0]
        upper, lower = constant >> 32 << 32, constant & 0xFFFFFFFF
        half = f"%descriptor.{name[1:]}"
        return (
            f"  {half} = add i32 {narrow[wide]}, {lower}\n"
            f"  {half}.wide = zext i32 {half} to i64\n"
            f"  {name} = or disjoint i64 {half}.wide, {upper}"
        )

    return _SUM.sub(short, text)
