"""Descriptors of products' operands in 32 bits, in LLVM IR."""

from __future__ import annotations

from remora.tlx.lower.matrix_descriptors import shortened

_IR = """\
define void @first(i32 %0, i64 %1) {
  %2 = zext nneg i32 %0 to i64
  %3 = add nuw nsw i64 %2, 4611686293338849410, !dbg !7
  %4 = add i64 %2, 4611686293305294850
  %5 = add nuw nsw i64 %1, 4611686293305294852
  %6 = call { float } asm sideeffect "wgmma.mma_async", "=f,l,l"(i64 %3, i64 %5)
  %7 = call i64 asm "mov.b64 $0, $1;", "=l,l"(i64 %4)
}
define void @second(i64 %0, i32 %1) {
  %2 = add nuw nsw i64 %0, 4611686293305294850
  %3 = call { float } asm sideeffect "wgmma.mma_async", "=f,l"(i64 %2)
}
"""


def test_sums_that_products_take() -> None:
    """The only one of them that is of a 32-bit number; names are a function's own."""
    sum_ = "  %3 = add nuw nsw i64 %2, 4611686293338849410, !dbg !7\n"
    upper, lower = 0x40000040 << 32, 0x2000082
    assert upper + lower == 4611686293338849410
    assert shortened(_IR) == _IR.replace(
        sum_,
        f"  %descriptor.3 = add i32 %0, {lower}\n"
        "  %descriptor.3.wide = zext i32 %descriptor.3 to i64\n"
        f"  %3 = or disjoint i64 %descriptor.3.wide, {upper}, !dbg !7\n",
    )
