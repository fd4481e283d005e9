"""A kernel's assembly as instructions, whatever machine it is for."""

from __future__ import annotations

from dataclasses import dataclass, field

#: What an instruction is, to the model.
KINDS = (
    "matrix", "vector", "scalar", "shared read", "shared write", "global read", "global write",
    "copy", "wait", "barrier", "branch", "other",
)  # fmt: skip


@dataclass
class Instruction:
    """One instruction of the text.

    line: in the text, from 1. op: its mnemonic, modifiers included. arguments: its operands
    as written. guard: a predicate before it. kind: one of ``KINDS``. unit, cycles: what
    executes it, and for how long, for one warp (a matrix instruction: for the warps that
    issue it together). shared, global_: bytes that it moves to and from shared and global
    memory, for one warp (a ``matrix`` or bulk instruction: in all). width: bytes a lane.
    count: of a wait. falls, targets: where execution goes after it.
    """

    line: int
    op: str
    arguments: list[str] = field(default_factory=list)
    guard: str = ""
    kind: str = "other"
    unit: str = ""
    cycles: float = 0
    shared: int = 0
    global_: int = 0
    width: int = 0
    count: str = ""
    falls: bool = True
    targets: list[str] = field(default_factory=list)
    flops: int = 0
    note: str = ""


@dataclass
class Program:
    """A kernel.

    target: as Remora writes it (``hip:gfx950``). warps: of a program (workgroup, CTA).
    specialized: whether warps have code of their own. labels: name and index of the
    instruction that it stands before; a name can be there more than once. registers: of a
    lane; spills: in 4 bytes of a lane; shared: bytes a program; None where not known.
    """

    name: str
    target: str
    warps: int
    instructions: list[Instruction]
    labels: list[tuple[str, int]]
    specialized: bool = False
    registers: int | None = None
    spills: int | None = None
    shared: int | None = None

    def index_of(self, label: str, source: int) -> int | None:
        """Where a branch at ``source`` goes: inline assembly repeats its labels."""
        places = [at for name, at in self.labels if name == label]
        before = [at for at in places if at <= source]
        return before[-1] if before else (places[0] if places else None)
