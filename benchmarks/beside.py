"""Two compilations of a kernel side by side: operations of loops, instructions, resources.

``look_at`` says what one is like, ``difference`` how its assembly differs from another's.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Kinds of instructions, by how their names begin; PTX and AMDGCN.
KINDS = {
    "matrix": r"wgmma\.mma|tcgen05\.mma|mma\.|v_s?mfma",
    "traffic": r"ld\.|st\.|cp\.(?!\S*(commit|wait)_group)|tcgen05\.(ld|st|cp)\.|red|atom|ldmatrix"
    r"|stmatrix|buffer_|global_|flat_|scratch_|ds_|s_load|s_buffer_load",
    "waits and barriers": r"mbarrier|bar|fence|membar|setmaxnreg|clusterlaunchcontrol"
    r"|cp\.\S*(commit|wait)_group|wgmma\.(wait|commit|fence)|tcgen05\.(wait|commit|fence)"
    r"|s_waitcnt|s_barrier|s_setprio|griddepcontrol",
}

#: Of a difference in order, at most so many places are kept.
_PLACES = 24


def look_at(row: dict[str, Any]) -> dict[str, Any]:
    """What a compiled kernel is like.

    row: of ``assembly`` (PTX or AMDGCN), ``binary`` (a cubin; AMD: None), ``ttgir``, ``shared``
    (bytes a program), ``num_warps``. Loops are innermost ones: ``innermost_loops`` are their
    operations in TTGIR, ``bounds`` their model (docs/bounds.md). Spills are of a thread, in
    registers.
    """
    from remora.analysis import of_kernel

    text, on_amd = row["assembly"], row["binary"] is None
    asm = {"amdgcn": text} if on_amd else {"ptx": text, "cubin": row["binary"]}
    found = of_kernel(SimpleNamespace(asm=asm, metadata=SimpleNamespace(shared=row["shared"])))
    inside = loops(row["ttgir"])
    code = code_of(row)
    more = amd_resources(text) if on_amd else {}
    return {
        "num_warps": row["num_warps"],
        "registers": found.registers,
        "spilled_registers": found.spills,
        **more,
        "shared_bytes": row["shared"],
        "tensor_memory_columns": row["tensor_memory"],
        "occupancy": [found.occupancy, found.limit],
        "instructions": len(code),
        **{kind: opcodes(code, pattern) for kind, pattern in KINDS.items()},
        "conversions_in_loops": sum(loop["ttg.convert_layout"] for loop, _ in inside),
        "innermost_loops": [dict(sorted(loop.items())) for loop, innermost in inside if innermost],
        "bounds": [_loop(loop) for loop in found.to_json()["loops"]],
    }


def _loop(loop: dict[str, Any]) -> dict[str, Any]:
    """Of the model of a loop what two compilations are compared by."""
    kept = ("bound", "cycles", "issue", "flops", "shared", "global", "widths", "conflicts",
            "waits", "barriers", "spills", "warps")  # fmt: skip
    return {name: loop[name] for name in kept if loop[name]}


def code_of(row: dict[str, Any]) -> list[str]:
    """The instructions of a compiled kernel, registers and labels renamed in order."""
    return (amd_instructions if row["binary"] is None else instructions)(row["assembly"])


def loops(ttgir: str) -> list[tuple[Counter[str], bool]]:
    """For each loop of a module the operations in it, and whether it holds no other loop."""
    found: list[tuple[Counter[str], bool]] = []
    open_: list[list[Any]] = []  # indentation, operations, whether it is innermost
    for line in ttgir.splitlines():
        indentation = len(line) - len(line.lstrip())
        while open_ and indentation <= open_[-1][0] and line.lstrip().startswith("}"):
            # A scf.while goes on after its first region: "} do {".
            if line.lstrip().startswith("} do"):
                break
            _, operations, innermost = open_.pop()
            found.append((operations, innermost))
        operation = re.match(r"\s*(?:%[\w:, %#]+ = )?\"?([a-z_]+\.[\w.]+)", line)
        if operation is None:
            continue
        if open_:
            open_[-1][1][operation[1]] += 1
        if operation[1] in ("scf.for", "scf.while"):
            if open_:
                open_[-1][2] = False
            open_.append([indentation, Counter(), True])
    return found


def amd_resources(assembly: str) -> dict[str, Any]:
    """Registers that a lane has besides, and warps that a SIMD holds at once."""

    def number(pattern: str) -> int:
        found = re.search(pattern + r":\s+(\d+)", assembly)
        assert found is not None
        return int(found[1])

    return {
        "accumulation_registers": number(r"\.agpr_count"),
        "scalar_registers": number(r"\.sgpr_count"),
        "warps_of_a_simd": number("; Occupancy"),
    }


class _Names:
    """Registers and labels, numbered anew in order of appearance, by kind."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def of(self, name: str, kind: str) -> str:
        if name not in self.known:
            self.known[name] = f"{kind}_{self.counts[kind]}"
            self.counts[kind] += 1
        return self.known[name]


def instructions(ptx: str) -> list[str]:
    """The instructions of PTX, registers and labels renamed."""
    body = ptx.partition(".visible .entry")[2].partition("\n{\n")[2].partition("$L__func_end")[0]
    body = re.sub(r"//[^\n]*", "", body)
    names = _Names()

    def renamed(match: re.Match[str]) -> str:
        return names.of(match[0], match[0].rstrip("0123456789"))

    found = []
    for line in body.splitlines():
        text = " ".join(line.split())
        if not text or text.startswith((".loc", ".reg", "$L__tmp", "{", "}", ".pragma")):
            continue
        found.append(re.sub(r"%(?:r|rd|rs|p|f|fd|b|rq)\d+|\$L__BB\w+", renamed, text))
    return found


def amd_instructions(assembly: str) -> list[str]:
    """The instructions of AMDGCN, registers and labels renamed."""
    body = re.split(r"\n\w+:[^\n]*\n", assembly.partition("; -- End function")[0], maxsplit=1)[1]
    names = _Names()

    def renamed(match: re.Match[str]) -> str:
        first, _, last = (match[2] or "").partition(":")
        size = str(int(last) - int(first) + 1) if last else ""
        return names.of(match[0], (match[1] or "L") + size)

    found = []
    for line in body.splitlines():
        text = " ".join(line.partition(";")[0].split())
        if text and not re.match(r"\.(?!LBB)", text):
            found.append(re.sub(r"\b([vsa])\[?(\d+(?::\d+)?)\]?|\.LBB\w+", renamed, text))
    return found


def opcode(instruction: str) -> str:
    """``wgmma.wait_group.sync.aligned`` of an instruction, without its guard; AMD's waits whole."""
    if instruction.startswith("s_waitcnt"):
        return instruction
    return re.sub(r"^@!?%\w+ ", "", instruction).split(" ")[0].rstrip(";")


def opcodes(code: list[str], pattern: str) -> dict[str, int]:
    """How often instructions of a kind are in the text."""
    found = Counter(o for o in map(opcode, code) if re.match(pattern, o))
    return dict(sorted(found.items()))


def difference(ours: list[str], theirs: list[str]) -> dict[str, Any]:
    """How assembly differs from the peer's: by opcode, and in order.

    in_order: the part of both that git's histogram of the opcodes leaves as it is. places: where
    it does not, the first ones. Pairs are ours, then the peer's.
    """
    if ours == theirs:
        return {"same": True}
    mine, peers = list(map(opcode, ours)), list(map(opcode, theirs))
    counts, others = Counter(mine), Counter(peers)
    places = _places(mine, peers)
    changed = sum(len(one) + len(other) for one, other in places)
    return {
        "same": False,
        "instructions": [len(ours), len(theirs)],
        "in_order": round(1 - changed / (len(ours) + len(theirs)), 4),
        "opcodes": {
            o: [counts[o], others[o]]
            for o in sorted(counts | others)
            if counts[o] != others[o]
        },
        "places": [[_short(one), _short(other)] for one, other in places[:_PLACES]],
        "more_places": max(0, len(places) - _PLACES),
    }  # fmt: skip


def _places(ours: list[str], theirs: list[str]) -> list[tuple[list[str], list[str]]]:
    """What is there of each in a place; difflib would take the square of the length."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "theirs", Path(folder) / "ours"
        before.write_text("\n".join(theirs) + "\n")
        after.write_text("\n".join(ours) + "\n")
        text = subprocess.run(
            ["git", "diff", "--no-index", "--no-color", "--no-ext-diff", "--histogram", "-U0",
             before, after],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
    found = []
    for place in re.split(r"^@@ .*\n", text, flags=re.MULTILINE)[1:]:
        lines = place.splitlines()
        mine, others = ([x[1:] for x in lines if x[0] == sign] for sign in "+-")
        found.append((mine, others))
    return found


def _short(names: list[str]) -> str:
    """``add.s32 x 3, mov.b32``: at most eight, in order."""
    runs: list[list[Any]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    words = [name + (f" x {count}" if count > 1 else "") for name, count in runs]
    return ", ".join(words[:8] + ["..."] * (len(words) > 8))
