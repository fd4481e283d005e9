"""How a product is cut and launched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from remora.errors import KernelArgumentError

#: Programs of a grid on the CPU, which the reference meaning runs in turn: some, so that each has
#: several tiles.
_ON_CPU = 4


def multiprocessors(device: Any) -> int:
    """How many multiprocessors a torch device has; on the CPU, for how many programs are made."""
    import torch

    if device.type == "cpu":
        return _ON_CPU
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


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
    0: as the device has multiprocessors. late_store: a tile is stored during the first
    products of the next one, where the copy engine stores it. ``"split"``: of Hopper too, for
    few rows of 16-bit elements: two programs share a tile, half of K each; stream_k: programs
    that would have no tile do a part of K. ``"narrow"``: of Hopper, for few rows or
    tiles; cluster[0] programs share a tile, a part of K each. ``"blackwell"``: tasks
    with sums in tensor memory; a cluster of (2, 1) is two CTAs that share their tiles.
    keep: "a" or "b": that operand is to leave the second-level cache last, the other one first.
    turn: every other tile of a program is multiplied from the end of K, of which what it has
    in common with the tile before is still in that cache. copies: operands that the copy engine or
    the matrix unit does not take as they lie are copied first, instead of refused. early: the
    kernel is launched while the one before it ends.
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
    late_store: bool = False
    keep: str = ""
    turn: bool = False
    copies: bool = False
    early: bool = False

    def __post_init__(self) -> None:
        problem = None
        if self.schedule == "blackwell":
            if self.cluster not in ((1, 1), (2, 1)) or self.stream_k or self.subtiles % 2:
                problem = "the schedule for Blackwell takes clusters of 1 or 2, even subtiles"
        elif self.schedule == "split":
            if (self.block_m, self.block_k) != (128, 64) or self.block_n not in (128, 256):
                problem = '"split" takes tiles of 128 x 128 or 256, and 64 of K'
            elif self.cluster != (1, 1) or self.late_store or self.turn:
                problem = '"split" has clusters of its own, no late_store, no turn'
        elif self.schedule == "narrow":
            if self.block_m not in (16, 32, 64, 128) or self.block_n not in (64, 128):
                problem = '"narrow" takes tiles of 16, 32, 64 or 128 rows, 64 or 128 columns'
            elif self.cluster not in ((1, 1), (2, 1), (4, 1), (8, 1)):
                problem = f'"narrow" takes clusters of (1, 2, 4 or 8, 1), not {self.cluster}'
            elif self.stream_k or self.late_store or self.turn:
                problem = '"narrow" has no stream_k, late_store or turn'
        elif self.schedule not in ("pipelined", "cooperative", "pingpong"):
            problem = f"there is no schedule {self.schedule!r}"
        elif self.schedule != "pipelined" and self.subtiles not in (1, 2, 4):
            problem = f"subtiles is {self.subtiles}: 1, 2 or 4"
        elif any(n not in (1, 2, 4, 8) for n in self.cluster) or math.prod(self.cluster) > 8:
            problem = f"cluster is {self.cluster}: powers of two with a product of at most 8"
        elif self.schedule == "pipelined" and (
            self.cluster != (1, 1)
            or self.stream_k or self.late_store or self.keep or self.turn
            or self.copies or self.early
        ):  # fmt: skip
            problem = (
                "clusters, stream_k, late_store, keep, turn, copies and early need warps with "
                "tasks of their own"
            )
        elif self.schedule == "pingpong" and self.stream_k:
            problem = "stream_k needs consumers that share a tile"
        elif self.keep not in ("", "a", "b"):
            problem = f"keep is {self.keep!r}: 'a', 'b' or ''"
        if problem:
            raise KernelArgumentError(
                problem,
                where="remora.kernels.matmul",
                hint='schedule="cooperative" takes all of them',
            )

    def arguments(self) -> dict[str, int]:
        """The kernel's constants."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "GROUP_M": self.group_m,
            "STAGES": self.stages,
        }
