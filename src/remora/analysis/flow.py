"""The loops of a kernel's assembly."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from remora.analysis.program import Instruction, Program


@dataclass
class Loop:
    """A loop: the indices of its instructions in order, and the line of its first."""

    body: list[int]
    line: int
    innermost: bool = True


def loops(program: Program) -> list[Loop]:
    """The natural loops (a branch back to a block that dominates it), waits left out.

    A loop that only tries a barrier again is a wait, and a part of the loop around it.
    """
    starts, successors = _blocks(program)
    dominators = _dominators(successors)
    bodies: dict[int, set[int]] = {}
    for block, following in enumerate(successors):
        for head in following:
            if head in dominators.get(block, ()):
                bodies.setdefault(head, {head}).update(_reaching(block, head, successors))
    ends = [*starts[1:], len(program.instructions)]
    found = []
    for head, blocks in bodies.items():
        body = [i for b in sorted(blocks) for i in range(starts[b], ends[b])]
        if not _spins([program.instructions[i] for i in body]):
            found.append(Loop(body, program.instructions[starts[head]].line))
    found.sort(key=lambda loop: loop.line)
    for loop in found:
        mine = set(loop.body)
        loop.innermost = not any(set(o.body) < mine for o in found if o is not loop)
    return found


class Above:
    """What every way from a kernel's start to an instruction goes through."""

    def __init__(self, program: Program) -> None:
        self._starts, successors = _blocks(program)
        dominators = _dominators(successors)
        self._parent = {
            block: max(found - {block}, key=lambda b: len(dominators[b]), default=-1)
            for block, found in dominators.items()
        }

    def last(self, places: list[int], at: int) -> int | None:
        """The last of ``places`` before ``at`` on every way to it; None if there is none."""
        block, end = bisect_right(self._starts, at) - 1, at
        while block >= 0:
            start = self._starts[block]
            inside = [p for p in places if start <= p < end]
            if inside:
                return inside[-1]
            block = self._parent.get(block, -1)
            if block >= 0:
                end = self._starts[block + 1] if block + 1 < len(self._starts) else at
        return None


def _spins(body: list[Instruction]) -> bool:
    """Whether a loop does nothing but ask a barrier again."""
    return (
        len(body) <= 12
        and all(i.kind in ("wait", "branch", "scalar", "vector", "other") for i in body)
        and any(i.kind == "wait" for i in body)
    )


def _blocks(program: Program) -> tuple[list[int], list[list[int]]]:
    """The first instruction of each basic block, and the blocks that follow each."""
    code = program.instructions
    leaders = {0} | {at for _, at in program.labels}
    leaders |= {i + 1 for i, x in enumerate(code) if x.targets or not x.falls}
    starts = sorted(at for at in leaders if at < len(code))
    number = {at: n for n, at in enumerate(starts)}
    successors = []
    for n, _ in enumerate(starts):
        last = (starts[n + 1] if n + 1 < len(starts) else len(code)) - 1
        following = [program.index_of(label, last) for label in code[last].targets]
        if code[last].falls:
            following.append(last + 1)
        successors.append([number[at] for at in following if at in number])
    return starts, successors


def _dominators(successors: list[list[int]]) -> dict[int, set[int]]:
    """For each block that can be reached, the blocks that every way to it goes through."""
    order, seen, stack = [], {0}, [(0, iter(successors[0] if successors else []))]
    while stack:
        block, rest = stack[-1]
        for following in rest:
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(successors[following])))
                break
        else:
            order.append(block)
            stack.pop()
    order.reverse()
    before: dict[int, list[int]] = {b: [] for b in order}
    for block in order:
        for following in successors[block]:
            before[following].append(block)
    found = {b: set(order) for b in order}
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            new = set.intersection(*(found[b] for b in before[block])) | {block}
            if new != found[block]:
                found[block], changed = new, True
    return found


def _reaching(block: int, head: int, successors: list[list[int]]) -> set[int]:
    """The blocks from which ``block`` is reached without going through ``head``."""
    before: dict[int, list[int]] = {}
    for source, following in enumerate(successors):
        for target in following:
            before.setdefault(target, []).append(source)
    found, todo = {block}, [block]
    while todo:
        here = todo.pop()
        if here == head:
            continue
        for source in before.get(here, []):
            if source not in found:
                found.add(source)
                todo.append(source)
    return found
