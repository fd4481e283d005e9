"""Where in a stage's passes the edits of a stage apply."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remora.errors import AnchorNotFound, ContradictingEdits
from remora.pipeline.edits import Disable, Edit, Insert, Passes, Replace
from remora.pipeline.renamed import what_became_of


@dataclass
class Plan:
    """What runs before each pass of a stage, by its index, and what in its place.

    due: at ``n``, for ``n`` passes, is what runs after the last.
    instead: None for nothing.
    edits: all that were planned.
    """

    due: dict[int, list[Any]] = field(default_factory=dict)
    instead: dict[int, Any] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)

    @classmethod
    def of(cls, names: Sequence[str], edits: Sequence[Edit], target: str = "") -> Plan:
        """Plan edits of a stage whose passes go by ``names``.

        Raises:
            AnchorNotFound: an edit names a pass that the stage does not have, or
                has several times.
            ContradictingEdits: two edits cannot both hold.
        """
        plan = cls(edits=list(edits))
        taken: dict[int, Edit] = {}
        everything = [e for e in edits if isinstance(e, Passes)]
        others = [e for e in edits if isinstance(e, (Insert, Disable, Replace))]
        if everything and len(everything) + len(others) > 1:
            first, second = (*everything, *others)[:2]
            raise _contradiction(first, second)
        for alone in everything:
            if not names:
                raise _no_passes(alone)
            plan.instead = dict.fromkeys(range(len(names)))
            plan.due[0] = list(alone.subjects)
        for edit in others:
            if isinstance(edit, Insert):
                plan.due.setdefault(_position(edit, names, target), []).append(edit.subject)
                continue
            index = _index(edit, edit.anchor, names, target)
            before = taken.setdefault(index, edit)
            if before is not edit and not (
                isinstance(before, Disable) and isinstance(edit, Disable)
            ):
                raise _contradiction(before, edit)
            plan.instead[index] = edit.subject if isinstance(edit, Replace) else None
        return plan


def _contradiction(first: Edit, second: Edit) -> ContradictingEdits:
    return ContradictingEdits(
        f"two edits contradict each other: {first} (pipeline {first.pipeline}) and "
        f"{second} (pipeline {second.pipeline})",
        where=first.stage,
        hint="leave one of them out, or give them conditions that exclude each other",
    )


def _no_passes(edit: Edit) -> AnchorNotFound:
    return AnchorNotFound(
        f"the stage {edit.stage} runs no pass for this target and language",
        where=f"{edit} (pipeline {edit.pipeline})",
        hint="name a stage that runs passes, as ttgir does",
    )


def _position(edit: Insert, names: Sequence[str], target: str) -> int:
    """Where an insert goes, 0 for before the first pass."""
    if not names:
        raise _no_passes(edit)
    if edit.side in ("start", "end"):
        return 0 if edit.side == "start" else len(names)
    index = _index(edit, edit.anchor, names, target)
    return index if edit.side == "before" else index + 1


def _index(edit: Edit, anchor: str, names: Sequence[str], target: str) -> int:
    if anchor in names:
        return names.index(anchor)
    stage = edit.stage
    several = [n for n in names if n.partition("#")[0] == anchor.partition("#")[0]]
    near = several or difflib.get_close_matches(anchor, names, n=3, cutoff=0.4)
    problem = "runs more than once" if several and "#" not in anchor else "does not exist"
    hint = (
        "nearest: " + ", ".join(f"{stage}/{n}" for n in near)
        if near
        else f"the stage {stage} runs: {', '.join(names) or 'no pass'}"
    )
    became = "" if several else what_became_of(anchor.partition("#")[0])
    raise AnchorNotFound(
        f"the anchor {stage}/{anchor} {problem} in this target and release"
        + (f" ({target})" if target else ""),
        where=f"{edit} (pipeline {edit.pipeline})",
        hint=f"{became}; {hint}" if became else hint,
    )
