"""The lowerings of TLX's operations, imported when a kernel with one is first compiled."""

from remora.tlx.lower import (
    analysis,
    barriers,
    buffer_ops,
    bulk,
    clusters,
    cuda,
    descriptors,
    device_descriptors,
    gathers,
    hints,
    hip,
    mfma,
    predicates,
    shared,
    stages,
    views,
)

__all__ = [
    "analysis",
    "barriers",
    "buffer_ops",
    "bulk",
    "clusters",
    "cuda",
    "descriptors",
    "device_descriptors",
    "gathers",
    "hints",
    "hip",
    "mfma",
    "predicates",
    "shared",
    "stages",
    "views",
]
