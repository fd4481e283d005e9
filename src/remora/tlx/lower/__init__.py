"""The lowerings of TLX's operations, imported when a kernel with one is first compiled."""

from remora.tlx.lower import (
    analysis,
    barriers,
    bulk,
    cuda,
    descriptors,
    device_descriptors,
    hip,
    shared,
    views,
)

__all__ = [
    "analysis",
    "barriers",
    "bulk",
    "cuda",
    "descriptors",
    "device_descriptors",
    "hip",
    "shared",
    "views",
]
from remora.tlx.lower import clusters

__all__ = ["analysis", "barriers", "clusters", "cuda", "descriptors", "hip", "shared", "views"]
