"""Reads SASS, as nvdisasm and cuobjdump print it: what is issued, and how often.

Shapes of tcgen05 products and bytes of bulk copies are traced back to constants; addresses of
shared memory are worked out in PTX only.
"""

from __future__ import annotations

import re

from remora.analysis.program import Instruction, Program
from remora.analysis.ptx import tensor_core
from remora.analysis.rates import TENSOR_FLOPS

LANES = 32
_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_ALU = re.compile(
    r"(LOP3|SHF|ISETP|SEL|IADD3|IADD|VIADD|LEA|PRMT|BMSK|SGXT|IMNMX|VIMNMX|FSETP|FSEL|FMNMX|"
    r"FMNMX3|PLOP3|P2R|R2P|MOV|LOP|SHL|SHR|VOTE|F2FP|HSETP2|CREDUX)\b"
)
_WIDTH = re.compile(r"\.(U8|S8|U16|S16|64|128|16|8)\b")


def read(
    text: str, target: str | None = None, registers: int | None = None,
    spills: int | None = None, shared: int | None = None,
) -> Program:  # fmt: skip
    """The kernel of one cubin; what SASS does not say can be given."""
    code: list[Instruction] = []
    labels: list[tuple[str, int]] = []
    values: dict[str, int] = {}
    known = re.search(r"EF_CUDA_SM(\d+)|\bsm_(\d+)", text)
    target = f"cuda:{known[1] or known[2]}" if known else target or "cuda:90"
    for number, line in enumerate(text.splitlines(), 1):
        if label := re.match(r"\s*(\.L_x_\w+|\.text\.\w+):", line):
            labels.append((label[1], len(code)))
        elif match := _LINE.search(line):
            labels.append((f"0x{int(match[1], 16):x}", len(code)))
            code.append(_instruction(number, match, target, values))
    name = re.search(r"\.text\.(\w+)|Function : (\w+)", text)
    threads = re.search(r"EIATTR_REQNTID.*?\.word\s+0x([0-9a-f]+)", text, re.DOTALL)
    return Program(
        (name[1] or name[2]) if name else "", target,
        int(threads[1], 16) // LANES if threads else 4, code, labels,
        specialized=any(i.op.startswith("USETMAXREG") for i in code),
        registers=registers, spills=spills, shared=shared,
    )  # fmt: skip


def _instruction(
    number: int, match: re.Match[str], target: str, values: dict[str, int]
) -> Instruction:
    guard, op, rest = match[2] or "", match[3], match[4].strip()
    arguments = [a.strip() for a in rest.split(",")] if rest else []
    found = Instruction(number, op, arguments, "" if guard == "PT" else guard)
    first = op.split(".")[0]
    if first in ("UMOV", "MOV") and len(arguments) > 1:
        if re.fullmatch(r"0x[0-9a-f]+", arguments[1]):
            values[arguments[0]] = int(arguments[1], 16)
        else:
            values.pop(arguments[0], None)
    if first in ("BRA", "BRX", "JMP", "EXIT", "RET", "BREAK"):
        conditional = (
            bool(guard) or ".DIV" in op or any(re.fullmatch(r"!?U?P\d", a) for a in arguments[:-1])
        )
        target_label = re.search(r"`\((\S+?)\)|\b(0x[0-9a-f]+)$", rest)
        found.kind, found.falls = "branch", conditional
        if first in ("BRA", "JMP") and target_label:
            found.targets = [target_label[1] or target_label[2]]
    elif first in ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA") or first.startswith("UTC"):
        _matrix(found, first, target, values)
    elif first in ("LDS", "STS", "LDSM", "STSM", "ATOMS"):
        found.kind = "shared read" if first.startswith("LD") else "shared write"
        found.width = 16 if first.endswith("SM") and first != "ATOMS" else _width(op)
        many = re.search(r"\.M?\d*\.?(2|4)$", op) if first.endswith("SM") else None
        found.shared = (
            128 * int(many[1] if many else 1) if first.endswith("SM") else (found.width * LANES)
        )
        if "!PT" in guard:
            found.kind, found.shared, found.width = "other", 0, 0
    elif first in ("LDG", "STG", "LD", "ST", "RED", "ATOMG", "LDL", "STL"):
        found.kind = "global read" if first.startswith("L") else "global write"
        found.width = _width(op)
        found.global_ = found.width * LANES
        found.note = "spill" if first in ("LDL", "STL") else ""
    elif first == "LDGSTS":
        found.kind, found.width = "copy", _width(op)
        found.shared = found.global_ = found.width * LANES
    elif first in ("UTMALDG", "UBLKCP", "UTMASTG"):
        found.kind, found.note = ("global write" if first == "UTMASTG" else "copy"), "bulk"
    elif first == "SYNCS":
        if "TRYWAIT" in op:
            found.kind, found.count = "wait", "mbarrier"
    elif first in ("DEPBAR", "WARPGROUP"):
        if first == "DEPBAR" or "DEPBAR" in op:
            found.kind, found.count = "wait", rest
    elif first in ("BAR", "UCGABAR_WAIT"):
        found.kind = "barrier"
        found.count = (
            str(int(arguments[1], 0))
            if len(arguments) > 1 and re.fullmatch(r"0x[0-9a-f]+", arguments[1])
            else ""
        )
    elif first == "MUFU":
        found.kind, found.unit, found.cycles = "vector", "sfu", 8
    elif first in ("FFMA", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2", "FFMA2", "FADD2", "FMUL2"):
        found.kind, found.unit, found.cycles = "vector", "fma", 1
    elif first.startswith("IMAD"):
        found.kind, found.unit, found.cycles = "vector", "fma", 2
    elif _ALU.match(first):
        found.kind, found.unit, found.cycles = "vector", "alu", 2
    elif first in ("I2F", "F2I", "F2F", "I2FP", "F2IP", "POPC", "FLO"):
        found.kind, found.unit, found.cycles = "vector", "sfu", 8
    elif first.startswith("U"):
        found.kind = "scalar"
    return found


def _width(op: str) -> int:
    size = _WIDTH.findall(op)
    return {"U8": 1, "S8": 1, "8": 1, "U16": 2, "S16": 2, "16": 2, "64": 8, "128": 16}.get(
        size[-1] if size else "", 4
    )


def _matrix(found: Instruction, first: str, target: str, values: dict[str, int]) -> None:
    op = found.op
    if first in ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA"):
        shape = re.search(r"\.(\d+)x(\d+)x(\d+)", op) or re.search(r"\.(\d{2})(\d)(\d{2})\b", op)
        if shape is None:
            return
        m, n, k = (int(v) for v in shape.groups())
        bits = 32 if "TF32" in op else 16 if first.startswith("H") else 8
        rate = TENSOR_FLOPS.get(target, TENSOR_FLOPS["cuda:90"])[bits]
        found.kind, found.unit, found.flops = "matrix", "matrix", 2 * m * n * k
        found.cycles = found.flops / rate
        if first.endswith("GMMA"):
            descriptors = sum("gdesc" in a for a in found.arguments)
            # gdesc[UR] stands for both operands; after a register, for B alone.
            from_registers = len(found.arguments) > 1 and found.arguments[1].startswith("R")
            found.shared = (n * k + (0 if from_registers else m * k)) * bits // 8
            found.note = "" if descriptors else "operands unknown"
        else:
            found.cycles, found.note = found.cycles * 4, "one warp"
        return
    kinds = {"UTCHMMA": "f16", "UTCQMMA": "f8f6f4", "UTCIMMA": "i8", "UTCOMMA": "mxf4"}
    if first not in kinds:
        return
    kind = "tf32" if "TF32" in op else kinds[first]
    register = re.search(r"idesc\[UR(\d+)\]", " ".join(found.arguments))
    tensor_core(
        found, kind, ".2CTA" in op, values.get(f"UR{register[1]}") if register else None,
        found.arguments[0].startswith("tmem"), target,
    )  # fmt: skip
