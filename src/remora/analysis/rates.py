"""What a multiprocessor (compute unit) does in a cycle, from public documents.

Rates are peaks. What no document says and public measurements do is marked so.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How the lanes of a warp take turns at the banks, for an access of some bytes a lane.
Turns = list[list[int]]


def _in_order(lanes: int, each: int) -> Turns:
    return [list(range(at, at + each)) for at in range(0, lanes, each)]


def _mixed(*groups: tuple[int, ...], lanes: int = 4) -> Turns:
    """Turns of groups of four lanes, given by their first lanes, in each half of a wave."""
    half = [[first + i for first in group for i in range(lanes)] for group in groups]
    return half + [[lane + 32 for lane in turn] for turn in half]


@dataclass(frozen=True)
class Machine:
    """A multiprocessor.

    name: of a product that has it. processors: how many the product has. partitions: of one,
    with an instruction scheduler each. lanes: of a warp. warps: that one can hold.
    registers: 32-bit registers of a lane for all warps of a partition; granule: they are
    given out in such numbers. shared: bytes of shared memory for all programs.
    shared_read, shared_write: bytes a cycle. l2, memory: bytes a cycle of one processor,
    when all read at once. sources: of these figures.
    """

    name: str
    processors: int
    partitions: int
    lanes: int
    warps: int
    registers: int
    granule: int
    shared: int
    shared_read: int
    shared_write: int
    l2: float
    memory: float
    sources: tuple[str, ...]

    def turns(self, width: int, write: bool) -> tuple[Turns, int]:
        """Which lanes access shared memory in the same cycle, and over how many banks.

        width: bytes a lane.
        """
        rate = self.shared_write if write else self.shared_read
        banks = rate // 4
        each = max(1, min(self.lanes, rate // max(width, 4)))
        if self.lanes == 64 and width == 16 and not write:
            if banks == 32:
                return _mixed((0, 20), (4, 16), (8, 28), (12, 24)), 32
            return _mixed((0, 12, 20, 24), (4, 8, 16, 28)), 64
        return _in_order(self.lanes, each), banks


_CUDA_GUIDE = "CUDA C++ Programming Guide: compute capabilities; throughput of native arithmetic"
_BANKS_AMD = "ROCm documentation, CK Tile: LDS bank conflicts (lanes that share a cycle, 32 banks)"
_BANKS_MI350 = (
    "measured by others: HipKittens (arXiv 2511.08083), phases and banks of ds_read and ds_write"
)

MACHINES = {
    # 4.8 TB/s and 1.98 GHz. L2: what bulk copies of the same MiB to all processors had at most; of
    # lines that no other processor asks for it is less.
    "cuda:90": Machine(
        "H200", 132, 4, 32, 64, 512, 8, 228 << 10, 128, 128, 77, 4.8e12 / 1.98e9 / 132,
        (
            "NVIDIA H100 whitepaper: 1024 dense fp16 FMA a cycle and tensor core, 4 of them",
            "NVIDIA H200 data sheet: 4.8 TB/s",
            "L2: benchmarks/loop_rates.py on an H200 (no document for H100)",
            _CUDA_GUIDE,
        ),
    ),
    # 8 TB/s and 1.965 GHz.
    "cuda:100": Machine(
        "B200", 148, 4, 32, 64, 512, 8, 228 << 10, 128, 128, 77, 8e12 / 1.965e9 / 148,
        (
            "NVIDIA Blackwell architecture brief: 2.25 PFLOP/s dense fp16 at 148 SMs, 8 TB/s",
            "L2: as for H100, for want of a document",
            _CUDA_GUIDE,
        ),
    ),
    # 5.3 TB/s and 2.1 GHz.
    "hip:gfx942": Machine(
        "MI300X", 304, 4, 64, 32, 512, 8, 64 << 10, 128, 128, 2048 / 38, 5.3e12 / 2.1e9 / 304,
        (
            "AMD CDNA 3 whitepaper: 2048 dense fp16 FLOP a cycle and CU; L2 reads 2 KB a clock "
            "for the 38 CUs of an XCD; 5.3 TB/s",
            "LLVM, SISchedule.td: passes of MFMA, 4 cycles each; VALU 4 cycles a wave",
            _BANKS_AMD,
        ),
    ),
    # 8 TB/s and 2.4 GHz.
    "hip:gfx950": Machine(
        "MI355X", 256, 4, 64, 32, 512, 8, 160 << 10, 256, 128, 2048 / 32, 8e12 / 2.4e9 / 256,
        (
            "AMD CDNA 4 whitepaper: 4096 dense fp16 FLOP a cycle and CU; 160 KB LDS whose reads "
            "are twice as wide; 8 TB/s",
            "LLVM, SISchedule.td: passes of MFMA, 4 cycles each; VALU 4 cycles a wave",
            _BANKS_MI350,
        ),
    ),
}  # fmt: skip
MACHINES["cuda:103"] = MACHINES["cuda:100"]

#: FLOP a cycle of one multiprocessor's tensor cores, by bits of an element (A's): dense.
#: Hopper: 4096 for 16 bits (H100 whitepaper: 989.4 TFLOP/s, 132 SMs, 1.83 GHz). Blackwell: twice
#: that; 4 bits four times 16 bits' (B200 brief: 2.25, 4.5 and 9 PFLOP/s).
TENSOR_FLOPS = {
    "cuda:90": {32: 2048, 16: 4096, 8: 8192},
    "cuda:100": {32: 4096, 16: 8192, 8: 16384, 6: 16384, 4: 32768},
}
TENSOR_FLOPS["cuda:103"] = TENSOR_FLOPS["cuda:100"]
