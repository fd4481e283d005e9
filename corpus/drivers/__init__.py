"""Calls of packages' own wrappers: one module a package, with ``MODULES`` and ``cases``."""
