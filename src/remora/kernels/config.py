"""How a product is cut and launched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """How a product is cut and launched.

    block_m, block_n, block_k: a tile, in elements. group_m: rows of tiles worked
    on together. stages: of the pipeline. num_warps: of a program. schedule:
    ``"pipelined"``: all warps copy and multiply; ``"cooperative"`` or ``"pingpong"``:
    warps have tasks of their own (Hopper), and the result is stored in subtiles: 1, 2
    or 4. Of these schedules alone: cluster: tiles along M and N whose programs share
    operands, their product at most 8. stream_k, of ``"cooperative"``: tiles are cut along
    K where they are no multiple of the programs. programs: at most as many are launched;
    0: as the device has multiprocessors.
    """

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    stages: int
    num_warps: int
    schedule: str = "pipelined"
    subtiles: int = 1
    cluster: tuple[int, int] = (1, 1)
    stream_k: bool = False
    programs: int = 0

    def arguments(self) -> dict[str, int]:
        """The kernel's constants."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "GROUP_M": self.group_m,
            "STAGES": self.stages,
        }
