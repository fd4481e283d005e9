"""Stock passes that a later release does not have, and what it has instead.

Found by comparing the anchors of the three releases (``remora pipeline --json``).
"""

from __future__ import annotations

_BECAME = {
    "plan_cta": "3.9 has ttgir/assign_cga_layouts and ttgir/optimize_cta_locality instead",
    "assign_cga_layouts": "before 3.9 it was ttgir/plan_cta",
    "rewrite_tensor_pointer": "3.8 has no block pointers to rewrite",
    "prefetch": "from 3.8 on only targets of compute capability 8 run ttgir/prefetch",
    "membar": "before 3.9 it was part of llir/to_llvmir",
    "check_matmul_two_cta": "3.9 runs it in ttgir, earlier releases in llir",
}


def what_became_of(name: str) -> str:
    """What another release has in the place of a pass; "" where nothing is known."""
    return _BECAME.get(name, "")
