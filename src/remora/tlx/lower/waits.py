"""A wait for each product of warp groups (``wgmma``), right after it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from remora.ir.build import Builder, i32, op_name


@dataclass(frozen=True)
class WaitForEachProduct(ModulePass):
    """No product is in flight when the operation after it begins; the author's waits stay.

    The C++ plugin (triton-utlx 3.8.0.post16) compiles kernels so.
    """

    name = "tlx-wait-for-each-product"
    trigger = "ttng.warp_group_dot"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Add the waits."""
        for product in list(op.walk()):
            if op_name(product) == "ttng.warp_group_dot":
                _wait(product)


def _wait(product: Operation) -> None:
    result = product.results[0]
    builder = Builder(InsertPoint.after(product), product.location)
    wait = builder.op("ttng.warp_group_dot_wait", [result], [result.type], {"pendings": i32(0)})
    result.replace_uses_with_if(wait.results[0], lambda use: use.operation is not wait)
