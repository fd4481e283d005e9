"""The encodings of buffers in tensor memory, and of the tensors that go there and come back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

#: What the matrix unit writes in one instruction, at most (PTX ISA, tcgen05.mma).
_MOST_COLUMNS = 256


@dataclass(frozen=True)
class TensorMatrix:
    """A matrix in tensor memory: a row in a lane (of 64 rows: in every other 16 lanes).

    block_m, block_n: what one product writes. stride: how many elements of its width a column
    holds the place of: 1 is packed. halved: of 64 rows, which the product of two CTAs writes: the
    last half of the columns is in the last 64 lanes, as if below the first half.
    """

    block_m: int
    block_n: int
    stride: int = 1
    halved: bool = False
    memory: ClassVar[str] = "#ttng.tensor_memory"
    order: ClassVar[tuple[int, ...]] = (1, 0)

    @classmethod
    def of(cls, shape: tuple[int, ...], stride: int = 1) -> TensorMatrix:
        """For a matrix of a shape."""
        # Of 64 rows a further block would lie in the lanes that the first one leaves out.
        return cls(shape[0], min(shape[1], _MOST_COLUMNS) if shape[0] > 64 else shape[1], stride)

    def laid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a matrix as it lies: rows in lanes."""
        return (2 * shape[0], shape[1] // 2) if self.halved else shape

    def __str__(self) -> str:
        rows, length = self.laid((self.block_m, self.block_n))
        return (
            f"#ttng.tensor_memory_encoding<blockM = {rows}, blockN = {length}, "
            f"colStride = {self.stride}>"
        )


@dataclass(frozen=True)
class TensorScales:
    """Scales of a block-scaled product in tensor memory."""

    memory: ClassVar[str] = "#ttng.tensor_memory"
    order: ClassVar[tuple[int, ...]] = (1, 0)

    def __str__(self) -> str:
        return "#ttng.tensor_memory_scales_encoding<>"


TensorLayout = TensorMatrix | TensorScales


def scales_order(shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Where the bits of a byte's place lead, of scales (rows, blocks) in the matrix unit's order.

    128 rows, or all of fewer, by 4 blocks at a time, along the blocks first; in those 32 rows by 4
    by 4.
    """
    rows, blocks = shape
    within = [(0, 1), (0, 2)]
    within += [(row, 0) for row in (32, 64, 1, 2, 4, 8, 16) if row < rows]
    along = [(0, 4 << bit) for bit in range((blocks // 4).bit_length() - 1)]
    further = [(128 << bit, 0) for bit in range((rows // 128).bit_length() - 1)]
    return (*within, *along, *further)


def tensor_layout(text: str) -> TensorLayout:
    """A layout of tensor memory from the text that it prints."""
    if text.startswith("#ttng.tensor_memory_scales"):
        return TensorScales()
    m, n, stride = map(int, re.findall(r"= (\d+)", text))
    return TensorMatrix(m, n, stride)


def tensor_default(shape: tuple[int, ...], dtype: str, named: str | None) -> TensorLayout:
    """The layout of a matrix that no use asks one of, or that the author names."""
    if named:
        return tensor_layout(named)
    return TensorScales() if dtype in ("int8", "uint8") else TensorMatrix.of(shape)


def halves_of(
    length: int, bits: int, num_warps: int
) -> tuple[str, tuple[tuple[tuple[int, ...], str], ...]]:
    """The layout of a tensor of 128 rows, and what it is on its way to one of 64, twice as long.

    Returns:
        the layout, and shapes and layouts: as two halves, (2, 64, length); with these beside each
        other, (64, 2, length); as one, (64, 2 * length).
    """
    start = registers_of((128, length), bits, num_warps)
    ways: tuple[tuple[tuple[int, ...], Callable[[int, int], list[int]]], ...] = (
        ((2, 64, length), lambda row, column: [row // 64, row % 64, column]),
        ((64, 2, length), lambda row, column: [row % 64, row // 64, column]),
        ((64, 2 * length), lambda row, column: [row % 64, row // 64 * length + column]),
    )

    def moved(way: Callable[[int, int], list[int]]) -> str:
        return re.sub(r"\[(\d+), (\d+)\]", lambda m: str(way(int(m[1]), int(m[2]))), start)

    return start, tuple((shape, moved(way)) for shape, way in ways)


def registers_of(shape: tuple[int, ...], bits: int, num_warps: int) -> str:
    """The layout of a tensor that goes to tensor memory, or comes from it.

    A warp reaches the 32 lanes that its number in its group of four says; further groups share
    the columns. Of a matrix of 64 rows each half of a warp has half of the columns.
    """
    rows, length = shape
    columns = [[0, 1 << bit] for bit in range(length.bit_length() - 1)]
    packed = max(32 // bits, 1).bit_length() - 1  # in one register

    def shared(ways: int) -> list[list[int]]:
        """The last columns, taken from the threads' own; the same ones where there are none."""
        kept = max(len(columns) - ways, packed)
        taken, columns[kept:] = columns[kept:], []
        return (taken + [[0, 0]] * ways)[:ways]

    groups = shared((num_warps // 4).bit_length() - 1)
    last = [[16, 0]] if rows > 64 else shared(1)
    return (
        f"#ttg.linear<{{register = {columns}, lane = {[[1, 0], [2, 0], [4, 0], [8, 0], *last]}, "
        f"warp = {[[rows // 4, 0], [rows // 2, 0], *groups]}, block = []}}>"
    )


def scale_registers_of(shape: tuple[int, ...], num_warps: int) -> str:
    """The layout of a tensor of scales that goes to tensor memory: every warp holds all of it."""
    order = [list(step) for step in scales_order(shape)]
    first = order.index([1, 0])
    lanes, others = order[first : first + 5], order[:first] + order[first + 5 :]
    return (
        f"#ttg.linear<{{register = {others}, lane = {lanes}, "
        f"warp = {[[0, 0]] * (num_warps.bit_length() - 1)}, block = []}}>"
    )
