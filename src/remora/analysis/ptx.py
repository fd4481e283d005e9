"""Reads PTX, as Triton and inline assembly write it."""

from __future__ import annotations

import re

from remora.analysis.program import Instruction, Program
from remora.analysis.rates import TENSOR_FLOPS

LANES = 32
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_WGMMA = re.compile(r"wgmma\.mma_async\..*?\.m(\d+)n(\d+)k(\d+)\.(\w+)\.(\w+)\.(\w+)")
_MMA = re.compile(r"mma\.sync\..*?m(\d+)n(\d+)k(\d+)\.\w+\.\w+\.(\w+)\.(\w+)\.(\w+)")
# Lanes of one partition for each kind of instruction, a cycle: a quarter of a multiprocessor's
# (CUDA C++ Programming Guide, throughput of native arithmetic, compute capability 9.0 and 10.0).
_FMA, _ALU, _SFU = 32, 16, 4


def read(
    text: str, registers: int | None = None, spills: int | None = None, shared: int | None = None
) -> Program:
    """The kernel of one compilation; what PTX does not say can be given."""
    code: list[Instruction] = []
    labels: list[tuple[str, int]] = []
    tables: dict[str, list[str]] = {}
    values: dict[str, int] = {}
    match = re.search(r"\.target sm_(\d+)", text)
    target = f"cuda:{match[1]}" if match else "cuda:90"
    for table in re.finditer(r"([$\w]+):\s*\.branchtargets\s+([^;]*);", text):
        tables[table[1]] = re.findall(r"[$\w]+", table[2])
    depth, inside = 0, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("//")[0].strip()
        if re.search(r"\.(entry|func)\b", line):
            inside = True
        depth += line.count("{") - line.count("}")
        if not inside or not line:
            continue
        for part in re.split(r";", line):
            part = part.strip().strip("{}").strip() if part.strip() in "{}" else part.strip()
            part = re.sub(r"^\{\s*(?=[@.a-z$])", "", part)
            while label := re.match(r"([\w$]+):(?!:)\s*", part):
                labels.append((label[1], len(code)))
                part = part[label.end() :]
            if re.match(r"(@!?[%\w]+\s+)?[a-z]", part):
                code.append(_instruction(number, part, target, values))
        if depth == 0 and "}" in line:
            inside = False
            if code:
                code[-1].falls = False
    for instruction in code:
        if instruction.op.startswith("brx"):
            instruction.targets = tables.get(instruction.arguments[-1], [])
    name = re.search(r"\.entry\s+(\w+)", text)
    threads = re.search(r"\.reqntid\s+(\d+)", text)
    cap = re.search(r"\.maxnreg\s+(\d+)", text)
    return Program(
        name[1] if name else "", target, int(threads[1]) // LANES if threads else 4, code, labels,
        specialized="setmaxnreg" in text or any(i.op.startswith("brx") for i in code),
        registers=registers if registers is not None else int(cap[1]) if cap else None,
        spills=spills, shared=shared,
    )  # fmt: skip


def _instruction(number: int, text: str, target: str, values: dict[str, int]) -> Instruction:
    guard = ""
    if match := re.match(r"@(!?[%\w]+)\s+", text):
        guard, text = match[1], text[match.end() :]
    op, _, rest = text.partition(" ") if " " in text.split("\t")[0] else text.partition("\t")
    op = op.strip()
    arguments = [a.strip() for a in re.split(r",(?![^{\[]*[}\]])", rest)] if rest.strip() else []
    found = Instruction(number, op, arguments, guard)
    first = op.split(".")[0]
    if first == "mov" and len(arguments) == 2 and re.fullmatch(r"-?\d+", arguments[1]):
        values[arguments[0]] = int(arguments[1])
    if first == "bra":
        found.kind, found.targets, found.falls = "branch", [arguments[0]], bool(guard)
    elif first == "brx":
        found.kind, found.falls = "branch", False
    elif first in ("ret", "exit", "trap"):
        found.kind, found.falls = "branch", bool(guard)
    elif first == "wgmma":
        _wgmma(found, target)
    elif first == "tcgen05":
        _tcgen05(found, target, values)
    elif first == "mma" or first == "ldmatrix" or first == "stmatrix":
        _warp_matrix(found, target)
    elif first in ("ld", "st", "red", "atom"):
        _memory(found)
    elif first == "cp":
        _copy(found)
    elif first in ("mbarrier", "barrier", "bar", "fence", "membar", "griddepcontrol", "elect"):
        _synchronise(found, values)
    else:
        _arithmetic(found)
    return found


def _wgmma(found: Instruction, target: str) -> None:
    if found.op.startswith("wgmma.wait_group"):
        found.kind, found.count = "wait", f"products <= {found.arguments[0]}"
    match = _WGMMA.match(found.op)
    if match is None:
        return
    m, n, k = (int(v) for v in match.groups()[:3])
    bits = _bits(match[5])
    found.kind, found.unit, found.flops = "matrix", "matrix", 2 * m * n * k
    found.cycles = found.flops / TENSOR_FLOPS.get(target, TENSOR_FLOPS["cuda:90"])[bits]
    # A comes from shared memory when it is a descriptor and not registers.
    from_registers = len(found.arguments) > 1 and found.arguments[1].startswith("{")
    found.shared = (n * k + (0 if from_registers else m * k)) * bits // 8


def _tcgen05(found: Instruction, target: str, values: dict[str, int]) -> None:
    op = found.op
    if op.startswith("tcgen05.mma"):
        kind = re.search(r"kind::(\w+)", op)
        # tcgen05.mma [d], a, b, idesc, ...
        place = found.arguments[3] if len(found.arguments) > 3 else ""
        descriptor = int(place) if place.isdigit() else values.get(place)
        tensor_core(
            found, kind[1] if kind else "f16", "cta_group::2" in op, descriptor,
            found.arguments[1].startswith("["), target,
        )  # fmt: skip
    elif op.startswith(("tcgen05.ld", "tcgen05.st")):
        found.kind = "vector"
        count = re.search(r"\.x(\d+)", op)
        found.unit, found.note = "tensor memory", "tensor memory"
        shape = re.search(r"\.(\d+)x(\d+)b", op)
        words = int(shape[1]) * int(shape[2]) // 32 if shape else 32
        # No document says: a register of each lane a cycle is what the register file takes.
        found.cycles = words * 4 * int(count[1] if count else 1) / 128
    elif op.startswith("tcgen05.cp"):
        found.kind, found.unit = "copy", "tensor memory"
    elif op.startswith("tcgen05.wait"):
        found.kind, found.count = "wait", "tensor memory"


def tensor_core(
    found: Instruction, kind: str, pair: bool, descriptor: int | None, from_tensor_memory: bool,
    target: str,
) -> None:  # fmt: skip
    """Fill in a tcgen05 product.

    kind: of PTX. pair: of two CTAs. descriptor: its instruction descriptor, None if not known.
    from_tensor_memory: where A is.
    """
    found.kind, found.unit = "matrix", "matrix"
    if descriptor is None:
        found.note = "shape unknown: its descriptor is computed"
        return
    bits = {"f16": 16, "tf32": 32, "i8": 8, "f8f6f4": 8, "mxf8f6f4": 8}.get(kind, 4)
    m, n, k = _instruction_shape(descriptor, kind)
    half = 2 if pair else 1
    # With a pair of CTAs each multiplies half of the rows, and reads half of B. The unit has 128
    # rows: products of 64 take as long.
    found.flops = 2 * m * n * k // half
    rate = TENSOR_FLOPS.get(target, TENSOR_FLOPS["cuda:100"])[bits]
    found.cycles = 2 * max(128, m // half) * n * k / rate
    found.shared = (n // half + (0 if from_tensor_memory else m // half)) * k * bits // 8


def _instruction_shape(descriptor: int, kind: str) -> tuple[int, int, int]:
    """M, N and K of an instruction descriptor (PTX ISA, tcgen05: instruction descriptor)."""
    n = ((descriptor >> 17) & 0x3F) << 3
    m = (
        ((descriptor >> 27) & 0x3) << 7
        if kind.startswith("mx")
        else ((descriptor >> 24) & 0x1F) << 4
    )
    k = {"f16": 16, "tf32": 8, "i8": 32, "f8f6f4": 32, "mxf8f6f4": 32}.get(kind, 64)
    return m, n, k


def _warp_matrix(found: Instruction, target: str) -> None:
    if found.op.startswith(("ldmatrix", "stmatrix")):
        many = re.search(r"\.x(\d)", found.op)
        found.kind = "shared read" if found.op.startswith("ld") else "shared write"
        found.width, found.note = 16, "matrix"
        found.shared = 128 * int(many[1] if many else 1)
        return
    match = _MMA.match(found.op)
    if match is None:
        return
    m, n, k = (int(v) for v in match.groups()[:3])
    rate = TENSOR_FLOPS.get(target, TENSOR_FLOPS["cuda:90"])[_bits(match[5])]
    found.kind, found.unit, found.flops = "matrix", "matrix", 2 * m * n * k
    # One warp's, on the tensor core of its partition.
    found.cycles, found.note = found.flops * 4 / rate, "one warp"


def _memory(found: Instruction) -> None:
    op = found.op
    size = re.findall(r"\.[busf](8|16|32|64|128)\b", op)
    many = re.search(r"\.v(\d)", op)
    if not size or ".param" in op:
        found.kind = "scalar"
        return
    found.width = _SIZES[size[-1]] * int(many[1] if many else 1)
    load = op.startswith("ld")
    if ".local" in op:
        found.kind, found.note = "global read" if load else "global write", "spill"
        found.global_ = found.width * LANES
    elif ".shared" in op:
        found.kind = "shared read" if load else "shared write"
        found.shared = found.width * LANES
    else:
        found.kind = "global read" if load else "global write"
        found.global_ = found.width * LANES


def _copy(found: Instruction) -> None:
    op = found.op
    if op.startswith("cp.async.wait") or ".wait_group" in op:
        what = "bulk stores" if "bulk" in op else "copies"
        found.kind = "wait"
        found.count = f"{what} <= {found.arguments[0] if found.arguments else 0}"
    elif op.startswith("cp.async.bulk"):
        # The bytes are in the descriptor; a barrier's expect_tx says them.
        if "shared" in op and ".commit" not in op:
            found.kind, found.note = "copy", "bulk"
            if ".global.shared" in op:
                found.kind, found.note = "global write", "bulk"
    elif op.startswith(("cp.async.ca", "cp.async.cg")):
        size = [a for a in found.arguments if re.fullmatch(r"(0x)?[0-9a-fA-F]+", a)]
        found.width = int(size[0], 0) if size else 16
        found.kind, found.shared = "copy", found.width * LANES
        found.global_ = found.shared


def _synchronise(found: Instruction, values: dict[str, int]) -> None:
    op = found.op
    if op.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
        found.kind, found.count = "wait", "mbarrier"
    elif ".expect_tx" in op:
        last = found.arguments[-1]
        found.kind = "copy"
        amount = values.get(last, int(last) if last.isdigit() else None)
        if amount is None:
            found.note = "bytes unknown: computed"
        else:
            found.note = "bytes"
            found.shared = found.global_ = amount
    elif op.startswith(("bar.sync", "barrier.sync", "barrier.cluster.wait", "bar.red")):
        found.kind = "barrier"
        found.count = found.arguments[1] if len(found.arguments) > 1 else ""
    elif op.startswith(("fence", "membar")):
        found.kind, found.count = "other", op


def _arithmetic(found: Instruction) -> None:
    """A vector instruction's pipe and cycles, by what it most likely becomes in SASS."""
    op = found.op
    first = op.split(".")[0]
    if first in ("mov", "setmaxnreg", "pragma", "call", "nanosleep", "ld"):
        return
    found.kind = "vector"
    if first in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"):
        lanes, found.unit = _SFU, "sfu"
    elif first in ("add", "mul", "fma", "sub", "mad") and re.search(r"\.(b?f16|f32)", op):
        lanes, found.unit = _FMA, "fma"
    elif first == "mad" or (first == "mul" and ".lo" in op):
        lanes, found.unit = _ALU, "fma"
    elif first == "cvt":
        lanes, found.unit = _ALU, "alu"
    else:
        lanes, found.unit = _ALU, "alu"
    wide = 2 if re.search(r"\.[bsu]64", op) and first not in ("cvt", "cvta", "setp") else 1
    found.cycles = LANES / lanes * wide


def _bits(element: str) -> int:
    if element.startswith(("e4m3", "e5m2", "s8", "u8")):
        return 8
    return {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32}.get(element, 16)
