"""Waits for products of warp groups (``wgmma``) that their author did not ask for.

A wait that comes early is right, and can be faster: ``docs/tlx.md``, "Waits for products".
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from remora.dsl.lowering import Lowering
from remora.ir.build import Builder, i32, op_name

#: On a module: its products are waited for where the author says, and nowhere else.
IN_FLIGHT = "tlx.products-in-flight"


@dataclass(frozen=True)
class WaitForEachProduct(ModulePass):
    """No product is in flight when the operation after it begins; the author's waits stay.

    The C++ plugin (triton-utlx 3.8.0.post16) compiles kernels so.
    """

    name = "tlx-wait-for-each-product"
    trigger = "remora:tlx.async_dot"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Add the waits."""
        for product in list(op.walk()):
            if op_name(product) == "ttng.warp_group_dot":
                _wait(product)


@dataclass(frozen=True)
class KeepProductsInFlight(ModulePass):
    """Says ``IN_FLIGHT``."""

    name = "tlx-keep-products-in-flight"
    trigger = "remora:tlx.async_dot"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Mark the module."""
        op.attributes[IN_FLIGHT] = UnitAttr()


def chained(lowering: Lowering) -> set[Operation]:
    """The products of attention's loops, which are waited for at once; takes ``IN_FLIGHT``.

    Those are a warp group's loops with two products, one of which reads registers: the
    weights that were made of the other's scores.
    """
    if lowering.module.attributes.pop(IN_FLIGHT, None) is not None:
        return set()
    by_loop: dict[Operation, list[Operation]] = {}
    for op in lowering.ops:
        loop = op.op.parent_op()
        one_group = lowering.num_warps_at(op.op) <= 4
        if op.name == "tlx.async_dot" and loop is not None and one_group:
            by_loop.setdefault(loop, []).append(op.op)
    return {
        product
        for loop, products in by_loop.items()
        if op_name(loop) in ("scf.for", "scf.while")
        and len(products) == 2
        and any(isinstance(p.operands[0].type, TensorType) for p in products)
        for product in products
    }


def _wait(product: Operation) -> None:
    result = product.results[0]
    builder = Builder(InsertPoint.after(product), product.location)
    wait = builder.op("ttng.warp_group_dot_wait", [result], [result.type], {"pendings": i32(0)})
    result.replace_uses_with_if(wait.results[0], lambda use: use.operation is not wait)
