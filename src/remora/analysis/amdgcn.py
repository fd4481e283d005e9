"""Reads AMDGCN assembly, as LLVM prints it."""

from __future__ import annotations

import re

from remora.analysis.program import Instruction, Program

LANES = 64
# A vector instruction of 32 bits takes four cycles for a wave, a quarter-rate one sixteen.
_CYCLES = 4
_QUARTER = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos|mul_lo_u32|mul_hi_[iu]32)")
_MFMA = re.compile(r"v_(s?mfmac?)_(?:scale_)?([fi])(\d+)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_?(\w+)")
_SIZES = {
    "byte": 1, "ubyte": 1, "sbyte": 1, "b8": 1, "u8": 1, "i8": 1, "short": 2, "ushort": 2,
    "sshort": 2, "b16": 2, "u16": 2, "i16": 2, "dword": 4, "b32": 4, "f32": 4, "u32": 4,
    "dwordx2": 8, "b64": 8, "f64": 8, "u64": 8, "dwordx3": 12, "b96": 12, "dwordx4": 16, "b128": 16,
}  # fmt: skip


def read(text: str, shared: int | None = None) -> Program:
    """The kernel of one compilation.

    shared: bytes of LDS a program, where the launch gives them (Triton's kernels).
    """
    code: list[Instruction] = []
    labels: list[tuple[str, int]] = []
    inside = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split(";")[0].strip()
        if label := re.fullmatch(r"([\w.$]+):", line):
            inside = inside or not label[1].startswith(".")
            inside = inside and not label[1].startswith(".Lfunc_end")
            if inside:
                labels.append((label[1], len(code)))
            continue
        if inside and re.match(r"[a-z]\w*", line) and not line.startswith("."):
            code.append(_instruction(number, line))
    target = re.search(r"gfx[0-9a-f]+", text)

    def number_of(name: str) -> int | None:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        return int(found[1]) if found else None

    def name_of() -> str:
        found = re.search(r"\.amdhsa_kernel (\S+)", text)
        return found[1] if found else ""

    fixed = number_of("group_segment_fixed_size") or 0
    threads = number_of("max_flat_workgroup_size") or 256
    registers = number_of("vgpr_count")
    return Program(
        name_of(), f"hip:{target[0] if target else 'gfx942'}", max(1, threads // LANES), code,
        labels, registers=registers, spills=number_of("vgpr_spill_count"),
        shared=shared if shared is not None else fixed or None,
    )  # fmt: skip


def mfma_cycles(op: str, target: str, arguments: str = "") -> tuple[int, int]:
    """Cycles of a SIMD, and floating-point operations, of a matrix instruction.

    LLVM, AMDGPU/SISchedule.td (SIDPGFX942FullSpeedModel, SIDPGFX950FullSpeedModel): passes,
    of four cycles each.
    """
    found = _MFMA.match(op)
    if found is None:
        return 0, 0
    kind, _, bits, m, n, k, blocks, element = found.groups()
    flops = 2 * int(m) * int(n) * int(k) * int(blocks or 1) * (2 if kind == "smfmac" else 1)
    if element == "f8f6f4":
        formats = [int(v) for v in re.findall(r"(?:cbsz|blgp):(\d)", arguments)]
        eight = len(formats) < 2 or min(formats) < 2
        passes = (8 if m == "32" else 4) * (2 if eight else 1)
    elif bits == "64":
        passes = 4 if m == "4" else 16 if target.endswith("gfx950") else 8
    elif m == "4":
        passes = 2
    elif kind == "smfmac":
        passes = 4 if m == "16" else 8
    elif m == "16":
        passes = 8 if k in ("1", "4") and element != "xf32" else 4
    else:
        passes = 16 if k in ("1", "2", "4") and element != "xf32" else 8
    return passes * 4, flops


def _instruction(number: int, line: str) -> Instruction:
    op, _, rest = line.partition(" ") if " " in line else line.partition("\t")
    found = Instruction(number, op, [a.strip() for a in rest.split(",")] if rest else [])
    if op.startswith(("v_mfma", "v_smfmac")):
        # The target is not known here: see ``model``.
        found.kind, found.unit = "matrix", "matrix"
    elif op.startswith("ds_"):
        _shared(found, rest)
    elif op.startswith(("buffer_", "global_", "flat_", "scratch_")):
        _memory(found, rest)
    elif op.startswith(("s_load", "s_buffer_load")):
        found.kind, found.unit, found.cycles = "scalar", "scalar", _CYCLES
    elif op == "s_waitcnt" or op.startswith("s_wait_"):
        found.kind, found.count = "wait", " ".join(rest.split())
    elif op == "s_barrier":
        found.kind = "barrier"
    elif op.startswith(("s_branch", "s_cbranch")):
        found.kind, found.targets, found.falls = "branch", [rest.strip()], op != "s_branch"
    elif op in ("s_endpgm", "s_setpc_b64"):
        found.kind, found.falls = "branch", False
    elif op.startswith("v_"):
        found.kind, found.unit = "vector", "vector"
        found.cycles = _CYCLES * (4 if _QUARTER.match(op) else 1)
    elif op.startswith("s_") and op not in ("s_nop", "s_setprio", "s_sleep"):
        found.kind, found.unit, found.cycles = "scalar", "scalar", _CYCLES
    return found


def _shared(found: Instruction, rest: str) -> None:
    op = found.op
    if op.startswith(("ds_bpermute", "ds_permute", "ds_swizzle")):
        found.kind, found.width = "shared read", 4
    elif op.startswith(("ds_read", "ds_load")):
        found.kind = "shared read"
    elif op.startswith(("ds_write", "ds_store", "ds_add", "ds_max", "ds_min")):
        found.kind = "shared write"
    sizes = [_SIZES[part] for part in op.split("_") if part in _SIZES]
    pair = "read2" in op or "write2" in op
    # A transposing read names its lanes' 8 bytes first: ds_read_b64_tr_b16.
    found.width = found.width or (sizes[0] if sizes else 4)
    found.shared = found.width * LANES * (2 if pair else 1)
    found.note = "two addresses" if pair else ""


def _memory(found: Instruction, rest: str) -> None:
    op = found.op
    sizes = [_SIZES[part] for part in op.split("_") if part in _SIZES]
    if not sizes:
        found.kind = "other"  # a fence of caches
        return
    found.width = sizes[-1]
    found.global_ = found.width * LANES
    to_shared = re.search(r"\blds\b", rest) is not None or "_lds_" in op
    if op.startswith("scratch_"):
        found.note = "spill"
    if to_shared:
        found.kind, found.shared = "copy", found.global_
    else:
        found.kind = "global write" if "store" in op or "atomic" in op else "global read"
