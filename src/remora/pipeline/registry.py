"""Pipelines by what they do, for sources that outlive the objects: those that PyTorch generates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from remora.pipeline.edits import Pipeline

_known: dict[str, tuple[Pipeline, ...]] = {}


def name_of(pipelines: Iterable[Pipeline]) -> str:
    """A name under which ``known`` has these pipelines: the same in every process.

    Raises:
        PipelineError: a pipeline has no content that another process would find.
    """
    together = tuple(dict.fromkeys(pipelines))
    name = hashlib.sha256(":".join(p.key for p in together).encode()).hexdigest()
    _known.setdefault(name, together)
    return name


def known(name: str) -> tuple[Pipeline, ...] | None:
    """The pipelines that were given a name in this process."""
    return _known.get(name)
