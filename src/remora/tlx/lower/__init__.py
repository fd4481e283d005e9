"""The lowerings of TLX's operations, imported when a kernel with one is first compiled."""

from remora.tlx.lower import (
    analysis,
    barriers,
    bulk,
    clusters,
    cuda,
    descriptors,
    device_descriptors,
    gathers,
    hip,
    launch_control,
    scaled,
    shared,
    tcgen05,
    tensor_memory,
    views,
)

__all__ = [
    "analysis",
    "barriers",
    "bulk",
    "clusters",
    "cuda",
    "descriptors",
    "device_descriptors",
    "gathers",
    "hip",
    "launch_control",
    "scaled",
    "shared",
    "tcgen05",
    "tensor_memory",
    "views",
]
