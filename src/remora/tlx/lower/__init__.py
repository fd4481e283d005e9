"""The lowerings of TLX's operations, imported when a kernel with one is first compiled."""

from remora.tlx.lower import analysis, clusters, cuda, hip, shared

__all__ = ["analysis", "clusters", "cuda", "hip", "shared"]
from remora.tlx.lower import analysis, barriers, cuda, hip, shared, views
from remora.tlx.lower import analysis, barriers, cuda, descriptors, hip, shared, views

__all__ = ["analysis", "barriers", "cuda", "descriptors", "hip", "shared", "views"]
