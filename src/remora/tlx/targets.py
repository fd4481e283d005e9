"""What a word needs of its target."""

from __future__ import annotations

from remora.dsl import Call
from remora.errors import UnsupportedByTarget
from remora.tlx.launch import cluster_in_force
from remora.tlx_plugin import BLACKWELL


def require_tensor_memory(call: Call) -> None:
    """Refuse targets without tensor memory."""
    call.require_target(
        *BLACKWELL,
        reason="tensor memory is Blackwell's",
        instead="keep operands in tlx.storage_kind.smem, and sums in registers: on Hopper "
        "tlx.async_dot returns them, elsewhere tl.dot does",
    )


def require_pair(call: Call) -> None:
    """Refuse what needs Blackwell's pairs of CTAs, on other targets and without a cluster."""
    call.require_target(
        *BLACKWELL,
        reason="two CTAs that share a product are Blackwell's",
        instead="leave two_ctas out",
    )
    size = cluster_in_force()
    if size[0] % 2:
        call.fail(
            UnsupportedByTarget,
            f"two_ctas takes two CTAs of a cluster beside each other, clusters are {size} here",
            hint="launch with ctas_per_cga=(2, 1, 1), or leave two_ctas out",
        )
