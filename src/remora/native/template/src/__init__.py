"""The native plugin @NAME@: ``library()`` loads it."""

from pathlib import Path

import remora

PATH = Path(__file__).parent / "lib@NAME@.so"


def library():
    """The plugin, loaded; before Triton is imported where that is older than 3.9."""
    return remora.load_native(PATH)
