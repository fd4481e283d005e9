"""The lowerings of TLX's operations, imported when a kernel with one is first compiled."""

from remora.tlx.lower import analysis, cuda, hip, shared, views

__all__ = ["analysis", "cuda", "hip", "shared", "views"]
