"""What bounds a loop: each unit's cycles for one iteration, from the assembly alone.

The model is a lower bound: units work at their documented peaks (``rates``), each for itself,
and what they need in all is compared. It knows no latencies; what the author waits for is
listed, so that two versions of a kernel can be compared without the hardware.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from remora.analysis import amdgcn, ptx, sass
from remora.analysis.flow import Loop, loops
from remora.analysis.lanes import Lanes, conflict_cycles
from remora.analysis.program import Instruction, Program
from remora.analysis.rates import MACHINES, Machine
from remora.errors import UnknownAssembly


@dataclass
class LoopModel:
    """One iteration of a loop, of one program (workgroup, CTA), on one multiprocessor.

    line: of the text. warps: that run it. instructions: of one warp, by kind; issue: all of
    them. flops: of the matrix instructions, all warps. cycles: by unit. shared, global_: bytes
    read and written, all warps. widths: of accesses, in bytes a lane, with their numbers.
    conflicts: cycles that banks add; unknown: accesses whose addresses nobody knows here.
    waits: as written, in order. bound: the unit with most cycles.
    """

    line: int
    warps: int
    instructions: dict[str, int]
    issue: int
    flops: int
    cycles: dict[str, float]
    shared: dict[str, int]
    global_: dict[str, int]
    widths: dict[str, dict[str, int]]
    conflicts: float
    unknown: int
    waits: list[str]
    barriers: int
    spills: int
    notes: list[str] = field(default_factory=list)

    @property
    def bound(self) -> str:
        """The unit that takes longest."""
        return max(self.cycles, key=lambda unit: self.cycles[unit]) if self.cycles else ""

    @property
    def at_best(self) -> float:
        """Cycles where everything overlaps."""
        return max(self.cycles.values(), default=0)

    @property
    def in_a_row(self) -> float:
        """Cycles where nothing overlaps."""
        return sum(self.cycles.values())

    @property
    def matrix_share(self) -> float:
        """How much of the matrix unit's time the bound leaves it."""
        return self.cycles.get("matrix", 0) / self.at_best if self.at_best else 0


@dataclass
class KernelModel:
    """A kernel: its resources and its innermost loops.

    occupancy: programs that a multiprocessor holds, and what limits them. specialized: whether
    warps have code of their own.
    """

    name: str
    target: str
    machine: str
    warps: int
    registers: int | None
    spills: int | None
    shared: int | None
    occupancy: int | None
    limit: str
    loops: list[LoopModel]
    specialized: bool
    sources: tuple[str, ...]

    @property
    def together(self) -> dict[str, float]:
        """The units' cycles of all loops, one iteration each: what tasks need at once."""
        sums: dict[str, float] = defaultdict(float)
        for loop in self.loops:
            for unit, amount in loop.cycles.items():
                sums[unit] += amount
        return _sorted(sums)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with what the model concludes."""
        found = {**asdict(self), "together": self.together}
        for loop, plain in zip(self.loops, found["loops"], strict=True):
            plain["global"] = plain.pop("global_")
            plain.update(
                bound=loop.bound, cycles_at_best=loop.at_best, cycles_in_a_row=loop.in_a_row,
                matrix_share=loop.matrix_share,
            )  # fmt: skip
        return found


def read(
    text: str,
    *,
    shared: int | None = None,
    registers: int | None = None,
    spills: int | None = None,
    warps: int | None = None,
    target: str | None = None,
) -> Program:
    """AMDGCN, PTX or SASS as instructions.

    shared (bytes a program), registers, spills (of a lane), warps: where the text does not
    say them. target: of SASS, ``cuda:90``.

    Raises:
        UnknownAssembly: the text is none of the three.
    """
    if "amdgcn" in text or "s_endpgm" in text:
        program = amdgcn.read(text, shared)
    elif ".entry" in text and ".target" in text:
        program = ptx.read(text, registers, spills, shared)
    elif "/*0000*/" in text or "/*0010*/" in text:
        program = sass.read(text, target, registers, spills, shared)
    else:
        raise UnknownAssembly(
            "the text is neither AMDGCN nor PTX nor SASS",
            hint="give what `remora compile --emit amdgcn` or `--emit ptx` writes, or what "
            "nvdisasm prints of a cubin",
        )
    if program.target not in MACHINES:
        raise UnknownAssembly(
            f"the rates of {program.target} are not known", hint=f"known: {', '.join(MACHINES)}"
        )
    if warps is not None:
        program.warps = warps
    return program


def model(program: Program) -> KernelModel:
    """The resources and the innermost loops of a kernel."""
    machine = MACHINES[program.target]
    lanes = Lanes(program, machine.lanes)
    found = [
        _loop(program, loop, machine, lanes)
        for loop in loops(program)
        if loop.innermost and _works(program, loop)
    ]
    count, limit = _occupancy(program, machine)
    return KernelModel(
        program.name, program.target, machine.name, program.warps, program.registers,
        program.spills, program.shared, count, limit, found,
        program.specialized, machine.sources,
    )  # fmt: skip


def _works(program: Program, loop: Loop) -> bool:
    """Whether a loop moves or computes anything."""
    kinds = ("matrix", "shared read", "shared write", "global read", "global write", "copy")
    body = [program.instructions[i] for i in loop.body]
    return any(i.kind in kinds for i in body) or sum(i.kind == "vector" for i in body) > 16


def _warps(program: Program, body: list[Instruction]) -> int:
    """The warps that run a loop; where warps have tasks of their own, by what the loop says."""
    if not program.specialized:
        return program.warps
    # Barriers of a task say its threads; wgmma is a warp group's.
    threads = [int(i.count) for i in body if i.kind == "barrier" and i.count.isdigit()]
    if threads:
        return max(1, max(threads) // MACHINES[program.target].lanes)
    return 4 if any(i.op.startswith(("wgmma", "HGMMA", "QGMMA", "tcgen05.ld")) for i in body) else 1


def _loop(program: Program, loop: Loop, machine: Machine, lanes: Lanes) -> LoopModel:
    body = [program.instructions[i] for i in loop.body]
    tally = _Tally(program, machine, lanes, _warps(program, body))
    for at in loop.body:
        tally.add(at)
    tally.cycles["issue"] = _issue(body, tally.each, program.target.startswith("hip"))
    if moved := sum(tally.global_.values()):
        tally.cycles["global memory, from L2"] = moved / machine.l2
    return LoopModel(
        loop.line, tally.warps, dict(Counter(i.kind for i in body)), len(body), tally.flops,
        _sorted(tally.cycles), dict(tally.shared), dict(tally.global_),
        {kind: dict(sorted(w.items(), key=lambda p: int(p[0])))
         for kind, w in tally.widths.items()},
        tally.conflicts, tally.unknown, [i.count for i in body if i.kind == "wait"],
        sum(i.kind == "barrier" for i in body), sum(i.note == "spill" for i in body),
        [f"{count} x {note}" for note, count in tally.notes.items()],
    )  # fmt: skip


class _Tally:
    """Sums over the instructions of one iteration.

    warps: that run it. each: of them on one partition.
    """

    def __init__(self, program: Program, machine: Machine, lanes: Lanes, warps: int) -> None:
        self.program, self.machine, self.lanes, self.warps = program, machine, lanes, warps
        self.each = max(1, -(-warps // machine.partitions))
        self.cycles: dict[str, float] = defaultdict(float)
        self.shared: dict[str, int] = defaultdict(int)
        self.global_: dict[str, int] = defaultdict(int)
        self.widths: dict[str, Counter[str]] = defaultdict(Counter)
        self.notes: Counter[str] = Counter()
        self.flops = self.unknown = 0
        self.conflicts = 0.0

    def add(self, at: int) -> None:
        """Count one instruction."""
        one = self.program.instructions[at]
        if one.kind == "matrix":
            self._matrix(one)
        elif one.kind in ("vector", "scalar") and one.unit:
            self.cycles[one.unit] += one.cycles * self.each
        elif one.kind in ("shared read", "shared write"):
            self._shared(one, at)
        elif one.kind in ("copy", "global read", "global write"):
            self._moved(one)
        if one.width and one.kind not in ("matrix", "vector"):
            self.widths[one.kind][str(one.width)] += 1
        if "unknown" in one.note:
            self.notes[one.note] += 1

    def _matrix(self, one: Instruction) -> None:
        if self.program.target.startswith("hip"):
            arguments = " ".join(one.arguments)
            cycles, flops = amdgcn.mfma_cycles(one.op, self.program.target, arguments)
            self.cycles["matrix"] += cycles * self.each
            self.flops += flops * self.warps
            return
        # How often the instruction is issued: by a warp, a warp group, or one thread for all.
        if one.note == "one warp":
            self.cycles["matrix"] += one.cycles * self.each
            self.flops += one.flops * self.warps
            return
        times = 1 if one.op.startswith(("tcgen05", "UTC")) else max(1, self.warps // 4)
        self.cycles["matrix"] += one.cycles * times
        self.flops += one.flops * times
        self.cycles["shared memory"] += one.shared * times / self.machine.shared_read
        self.shared["matrix operands"] += one.shared * times

    def _shared(self, one: Instruction, at: int) -> None:
        read = one.kind == "shared read"
        cycles = one.shared / (self.machine.shared_read if read else self.machine.shared_write)
        exact = conflict_cycles(self.program, at, self.machine, self.lanes)
        if exact is None:
            self.unknown += 1
        else:
            self.conflicts += (exact - cycles) * self.warps
            cycles = exact
        self.cycles["shared memory"] += cycles * self.warps
        self.shared["read" if read else "written"] += one.shared * self.warps

    def _moved(self, one: Instruction) -> None:
        # Bulk copies are one thread's; their bytes are all of them.
        times = 1 if one.note in ("bytes", "bulk") else self.warps
        if one.global_:
            way = "written" if one.kind == "global write" else "read"
            self.global_[way] += one.global_ * times
        if one.shared:
            self.shared["copied"] += one.shared * times
            self.cycles["shared memory"] += one.shared * times / self.machine.shared_write


def _issue(body: list[Instruction], each: int, amd: bool) -> float:
    """Cycles of a partition's scheduler.

    CDNA: it comes by every four cycles, and starts instructions of different kinds from
    different waves; one of each wave. NVIDIA: one instruction of one warp a cycle.
    """
    if not amd:
        return float(len(body) * each)
    kinds = Counter("vector" if i.kind == "matrix" else i.kind for i in body)
    return float(max(4 * len(body), 4 * each * max(kinds.values(), default=0)))


def _sorted(cycles: Mapping[str, float]) -> dict[str, float]:
    """By size, the largest first."""
    by_size = sorted(cycles.items(), key=lambda pair: -pair[1])
    return {unit: round(amount, 1) for unit, amount in by_size if amount}


def _occupancy(program: Program, machine: Machine) -> tuple[int | None, str]:
    """Programs of a multiprocessor, and what keeps it from more."""
    each = -(-program.warps // machine.partitions)
    limits = {"warps": machine.warps // machine.partitions // each}
    if program.target.startswith("cuda"):
        limits["warps"] = min(limits["warps"], 32)
    if program.registers:
        if program.target.startswith("cuda"):
            # 64 K registers in all, given out 256 a warp.
            a_warp = -(-program.registers * 32 // 256) * 256
            limits["registers"] = (65536 // a_warp) // program.warps
        else:
            granule = machine.granule
            given = -(-program.registers // granule) * granule
            limits["registers"] = (machine.registers // given) // each
    if program.shared:
        reserved = 1024 if program.target.startswith("cuda") else 0
        limits["shared memory"] = machine.shared // (program.shared + reserved)
    limit = min(limits, key=lambda name: limits[name])
    if program.registers is None or program.shared is None:
        known = {"registers": program.registers, "shared memory": program.shared}
        missing = [name for name, value in known.items() if value is None]
        return limits[limit], f"{limit}; {' and '.join(missing)} not known"
    return limits[limit], limit
