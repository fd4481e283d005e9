"""The addresses that the lanes of a warp access, worked out from the assembly.

A value is known for each lane, or is one number for all of them that nobody knows (a buffer's
base, a stage), or the sum of both: that is enough for bank conflicts, because a base that is
a multiple of the access's width only turns the banks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from remora.analysis.flow import Above
from remora.analysis.program import Instruction, Program
from remora.analysis.rates import Machine

#: What each lane has, and whether an unknown number for all is added; None: not known.
Value = tuple[Any, bool] | None

_BITS = 0xFFFFFFFF


def conflict_cycles(program: Program, at: int, machine: Machine, lanes: Lanes) -> float | None:
    """Cycles that an access to shared memory takes, for one warp; None if not known."""
    access = program.instructions[at]
    write = access.kind == "shared write"
    address, offsets = lanes.address(at)
    if address is None:
        return None
    total = 0.0
    for offset in offsets:
        addresses = (address[0] + offset) & _BITS
        if access.note == "matrix":
            # Eight lanes each give the rows of one 8x8 matrix.
            rows = access.shared // 16
            turns, banks = [list(range(i, i + 8)) for i in range(0, rows, 8)], 32
        else:
            turns, banks = machine.turns(access.width, write)
        total += sum(_cycles(addresses[turn], access.width, banks) for turn in turns)
    return total


def _cycles(addresses: Any, width: int, banks: int) -> int:
    """How often the busiest bank is asked for another word."""
    words = {int(a) // 4 + i for a in addresses for i in range(max(1, width // 4))}
    asked: dict[int, int] = {}
    for word in words:
        asked[word % banks] = asked.get(word % banks, 0) + 1
    return max(asked.values())


class Lanes:
    """Values of registers, by the last definition before a place in the text."""

    def __init__(self, program: Program, lanes: int) -> None:
        self.program, self.count = program, lanes
        self.amd = program.target.startswith("hip")
        self.above = Above(program)
        self.definitions: dict[str, list[int]] = {}
        for at, instruction in enumerate(program.instructions):
            for register in _defined(instruction, self.amd):
                self.definitions.setdefault(register, []).append(at)
        self._known: dict[tuple[str, int], Value] = {}
        self._pending: set[int] = set()

    def address(self, at: int) -> tuple[Value, list[int]]:
        """The address of an access to shared memory, and the constants added to it."""
        instruction = self.program.instructions[at]
        if self.amd:
            write = instruction.kind == "shared write"
            place = instruction.arguments[0 if write else 1].split()[0]
            text = " ".join(instruction.arguments)
            if instruction.note == "two addresses":
                step = instruction.width * (64 if "st64" in instruction.op else 1)
                pair = [re.search(rf"offset{n}:(\d+)", text) for n in (0, 1)]
                offsets = [step * int(m[1]) if m else 0 for m in pair]
            else:
                match = re.search(r"offset:(\d+)", text)
                offsets = [int(match[1]) if match else 0]
            return self.value(place, at), offsets
        found = re.search(
            r"\[\s*([%\w]+)\s*(?:\+\s*(-?\d+))?\s*\]", " ".join(instruction.arguments)
        )
        if found is None:
            return None, [0]
        return self.value(found[1], at), [int(found[2] or 0)]

    def value(self, name: str, at: int) -> Value:
        """What ``name`` is before instruction ``at``."""
        name = name.strip()
        if re.fullmatch(r"-?\d+|-?0x[0-9a-fA-F]+", name):
            return np.full(self.count, int(name, 0) & _BITS, np.int64), False
        if name == "%tid.x" or (self.amd and name == "v0" and not self._before("v0", at)):
            return np.arange(self.count, dtype=np.int64), False
        place = self._before(name, at)
        if place is None:
            # An argument, a special register or a symbol: the same for all lanes.
            varying = self.amd and name.startswith(("v", "a"))
            return None if varying else (np.zeros(self.count, np.int64), True)
        key = (name, place)
        if key not in self._known:
            if place in self._pending:
                return np.zeros(self.count, np.int64), True  # carried by a loop
            self._pending.add(place)
            self._known[key] = self._computed(self.program.instructions[place], place)
            self._pending.discard(place)
        return self._known[key]

    def _before(self, name: str, at: int) -> int | None:
        """The definition on every way to ``at``: of a value that a loop carries, its first."""
        return self.above.last(self.definitions.get(name, []), at)

    def _computed(self, instruction: Instruction, at: int) -> Value:
        op = _plain(instruction.op, self.amd)
        rule = _AMD.get(op) if self.amd else _PTX.get(op)
        sources = [s.split()[0] for s in instruction.arguments[1:]]
        if not self.amd and "|" in (instruction.arguments or [""])[0]:
            return None
        if op in ("v_readfirstlane_b32", "shfl"):
            first = self.value(sources[0], at)
            return None if first is None else (np.full(self.count, first[0][0]), first[1])
        if op in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
            return np.arange(self.count, dtype=np.int64) % 64, False
        if op == "selp":
            return self._selected([self.value(s, at) for s in sources])
        if op == "setp":
            return self._compared(instruction.op, [self.value(s, at) for s in sources])
        if op in ("ld", "s_load_dword", "s_load_dwordx2", "s_load_dwordx4", "s_load_dwordx8"):
            param = self.amd or ".param" in instruction.op
            return (np.zeros(self.count, np.int64), True) if param else None
        if op == "v_bitop3_b32":
            table = re.search(r"bitop3:(\w+)", instruction.arguments[-1])
            number = int(table[1], 0) if table else 0
            rule = ("bits", lambda a, b, c: _by_table(number, a, b, c))
        if rule is None:
            scalar = self.amd and instruction.op.startswith("s_")
            return (np.zeros(self.count, np.int64), True) if scalar else None
        return _apply(rule, [self.value(s, at) for s in sources])

    def _selected(self, sources: Sequence[Value]) -> Value:
        one, other, condition = sources
        if one is None or other is None:
            return None
        if condition is None or condition[1]:
            return (
                one
                if np.array_equal(one[0], other[0])
                else (
                    (np.zeros(self.count, np.int64), True)
                    if condition is not None
                    and np.all(one[0] == one[0][0])
                    and np.all(other[0] == other[0][0])
                    else None
                )
            )
        return np.where(condition[0] != 0, one[0], other[0]), one[1] or other[1]

    def _compared(self, op: str, sources: Sequence[Value]) -> Value:
        left, right = sources[0], sources[1]
        if left is None or right is None:
            return None
        if left[1] or right[1]:
            uniform = all(np.all(s[0] == s[0][0]) for s in (left, right))
            return (np.zeros(self.count, np.int64), True) if uniform else None
        test = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
                "gt": np.greater, "ge": np.greater_equal}.get(op.split(".")[1])  # fmt: skip
        return None if test is None else (test(left[0], right[0]).astype(np.int64), False)


def _apply(rule: tuple[str, Callable[..., Any]], sources: Sequence[Value]) -> Value:
    """One operation over lanes. How an unknown number for all goes through it: "add": it is
    still added; "bits": it has none of the other's bits (a base beside an offset)."""
    how, function = rule
    if any(s is None for s in sources):
        return None
    values = [s for s in sources if s is not None]
    unknown = any(u for _, u in values)
    result = function(*(v for v, _ in values)) & _BITS
    if unknown and how == "none" and not all(np.all(v == v[0]) for v, _ in values):
        return None
    if unknown and how == "none":
        result = np.zeros_like(result)
    return result, unknown


def _plain(op: str, amd: bool) -> str:
    return re.sub(r"_(e32|e64|sdwa|dpp)$", "", op) if amd else _ptx_name(op)


def _ptx_name(op: str) -> str:
    parts = op.split(".")
    return f"{parts[0]}.{parts[1]}" if parts[0] in ("mul", "mad") else parts[0]


def _defined(instruction: Instruction, amd: bool) -> list[str]:
    """The registers that an instruction writes."""
    if not instruction.arguments or instruction.kind in (
        "shared write", "global write", "wait", "barrier", "branch",
    ):  # fmt: skip
        return []
    first = instruction.arguments[0]
    if not amd:
        return [] if first.startswith("[") else re.findall(r"[%\w]+", first)
    if span := re.fullmatch(r"([vsa])\[(\d+):(\d+)\]", first):
        return [f"{span[1]}{n}" for n in range(int(span[2]), int(span[3]) + 1)]
    return [first]


def _by_table(table: int, *sources: Any) -> Any:
    """Bit by bit from a truth table: bit 4a + 2b + c of it (AMD CDNA 4 ISA, V_BITOP3_B32)."""
    a, b, c = sources
    result = np.zeros_like(a)
    for index in range(8):
        if table >> index & 1:
            result |= (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
    return result & _BITS


def _signed(value: Any, start: Any, bits: Any) -> Any:
    field = _extract(value, start, bits)
    return field - ((field >> ((bits & 31) - 1) & 1) << (bits & 31))


def _extract(value: Any, start: Any, bits: Any) -> Any:
    return (value >> (start & 31)) & ((1 << (bits & 31)) - 1)


_AMD: dict[str, tuple[str, Callable[..., Any]]] = {
    **dict.fromkeys(("v_mov_b32", "s_mov_b32", "s_movk_i32"), ("add", lambda a: a)),
    **dict.fromkeys(("v_add_u32", "s_add_i32", "s_add_u32"), ("add", lambda a, b: a + b)),
    **dict.fromkeys(("v_sub_u32", "s_sub_i32", "s_sub_u32"), ("add", lambda a, b: a - b)),
    "v_subrev_u32": ("add", lambda a, b: b - a),
    **dict.fromkeys(("v_and_b32", "s_and_b32"), ("none", lambda a, b: a & b)),
    **dict.fromkeys(("v_or_b32", "s_or_b32"), ("bits", lambda a, b: a | b)),
    **dict.fromkeys(("v_xor_b32", "s_xor_b32"), ("bits", lambda a, b: a ^ b)),
    "v_lshlrev_b32": ("add", lambda a, b: b << (a & 31)),
    "s_lshl_b32": ("add", lambda a, b: a << (b & 31)),
    **dict.fromkeys(("v_lshrrev_b32",), ("none", lambda a, b: b >> (a & 31))),
    "s_lshr_b32": ("none", lambda a, b: a >> (b & 31)),
    "v_lshl_add_u32": ("add", lambda a, b, c: (a << (b & 31)) + c),
    "v_lshl_or_b32": ("bits", lambda a, b, c: (a << (b & 31)) | c),
    "v_add_lshl_u32": ("add", lambda a, b, c: (a + b) << (c & 31)),
    "v_and_or_b32": ("bits", lambda a, b, c: (a & b) | c),
    "v_or3_b32": ("bits", lambda a, b, c: a | b | c),
    "v_xad_u32": ("bits", lambda a, b, c: (a ^ b) + c),
    "v_add3_u32": ("add", lambda a, b, c: a + b + c),
    "v_bfe_u32": ("none", _extract),
    "v_bfe_i32": ("none", _signed),
    "v_mul_u32_u24": ("none", lambda a, b: a * b),
    "v_mul_lo_u32": ("none", lambda a, b: a * b),
    "v_mad_u32_u24": ("bits", lambda a, b, c: a * b + c),
}  # fmt: skip
_PTX: dict[str, tuple[str, Callable[..., Any]]] = {
    **dict.fromkeys(("mov", "cvt", "cvta"), ("add", lambda a: a)),
    "add": ("add", lambda a, b: a + b),
    "sub": ("add", lambda a, b: a - b),
    "and": ("none", lambda a, b: a & b),
    "or": ("bits", lambda a, b: a | b),
    "xor": ("bits", lambda a, b: a ^ b),
    "shl": ("add", lambda a, b: a << (b & 31)),
    "shr": ("none", lambda a, b: a >> (b & 31)),
    "bfe": ("none", _extract),
    "mul.lo": ("none", lambda a, b: a * b),
    "mad.lo": ("bits", lambda a, b, c: a * b + c),
}
