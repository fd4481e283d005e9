"""Lowerings of cluster launch control: PTX's ``clusterlaunchcontrol``.

Triton has operations for it that count on its own clusters (``num_ctas``), which TLX's are not.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import SSAValue

from remora.dsl.lowering import CustomOp, Lowering
from remora.ir.build import Builder, attribute
from remora.tlx.launch_control import clc_issue, clc_query
from remora.tlx.lower.arrivals import computed
from remora.tlx.lower.assembly import execute, execute_once, shared_address
from remora.tlx_plugin import BLACKWELL


@clc_issue.lowering(*BLACKWELL)
def lower_issue(op: CustomOp, builder: Builder, lowering: Lowering) -> None:
    """``clusterlaunchcontrol.try_cancel``, by one thread, of the cluster's first CTA."""
    addresses = [shared_address(builder, operand) for operand in op.operands]
    everyone, first = "", []
    if op.attributes["several"]:
        everyone = ".multicast::cluster::all"
        rank = computed(builder, "mov.u32 $0, %cluster_ctarank;", [])
        equal = {"predicate": attribute("0 : i64")}
        first = [builder.value("arith.cmpi", [rank, builder.constant(0)], attribute("i1"), equal)]
        lowering.analysis.reached.extend(op.operands)
    execute_once(
        builder,
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
        f"{everyone}.b128 [$0], [$1];",
        addresses,
        first,
    )


@clc_query.lowering(*BLACKWELL)
def lower_query(op: CustomOp, builder: Builder, lowering: Lowering) -> SSAValue:
    """``clusterlaunchcontrol.query_cancel``, by every thread.

    The answer is of the cluster's first CTA; this one's place in the cluster is added. The next
    answer is written by the asynchronous proxy: a fence comes between.
    """
    axis = "xyz"[op.attributes["axis"]]
    first = ", ".join("$0" if axis == each else "_" for each in "xyz_")
    text = (
        "{\n\t.reg .pred taken;\n\t.reg .b128 answer;\n\t.reg .b32 place;\n"
        "\tld.shared.b128 answer, [$1];\n"
        "\tclusterlaunchcontrol.query_cancel.is_canceled.pred.b128 taken, answer;\n"
        "\tmov.b32 $0, -1;\n"
        "\t@taken clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 "
        f"{{{first}}}, answer;\n"
        f"\tmov.u32 place, %cluster_ctaid.{axis};\n"
        "\t@taken add.s32 $0, $0, place;\n}"
    )
    place = builder.value(
        "llvm.inline_asm", [shared_address(builder, op.operands[0])], attribute("i32"),
        {
            "asm_string": StringAttr(text),
            "constraints": StringAttr("=&r,r,~{memory}"),
            "has_side_effects": UnitAttr(),
        },
    )  # fmt: skip
    execute(builder, "fence.proxy.async.shared::cta;")
    return place
