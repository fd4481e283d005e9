"""Python's cyclic garbage collector, out of the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collections in here.

    Building a module makes many objects and no garbage, and they are what sets
    the collector off; each time it goes over all that the process holds. With
    torch loaded that was 40 % of the time of reading a module. Two threads in
    here at once may have the collector on again before the second is through,
    never off after both are.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
