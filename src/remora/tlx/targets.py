"""What a word needs of its target."""

from __future__ import annotations

from remora.dsl import Call
from remora.tlx_plugin import BLACKWELL


def require_tensor_memory(call: Call) -> None:
    """Refuse targets without tensor memory."""
    call.require_target(
        *BLACKWELL,
        reason="tensor memory is Blackwell's",
        instead="keep operands in tlx.storage_kind.smem, and sums in registers: on Hopper "
        "tlx.async_dot returns them, elsewhere tl.dot does",
    )
