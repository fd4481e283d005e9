"""Shared layouts for MFMA operands that loads straight to LDS fill: padded, without conflicts.

A warp's load writes 64 lanes of 16 bytes in a row: no lane can go elsewhere. So rows cannot be
permuted in themselves, as a swizzle does, without exchanging addresses between lanes. Instead a
warp's 1024 bytes hold rows that lie far apart, and each 1024 bytes are followed by padding, so
that rows which a product reads together begin at different banks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from remora.tlx.lower.layouts import LinearShared, SharedLayout, SwizzledShared

#: Bytes that a warp writes in a row, and bytes of all banks (CDNA 4: 64 of 4).
_RUN, _BANKS = 1024, 256
_LANE = 16


def padded(
    shape: Sequence[int], bits: int, order: Sequence[int], k_contiguous: bool
) -> LinearShared | None:
    """The padded layout of a buffer of a shape; None where it would not be without conflicts.

    order: the contiguous dimension first. k_contiguous: whether that is K: lanes then read 16
    bytes of 16 rows at a time, else 64 bytes of 4 rows, transposed.
    """
    size = bits // 8
    inner, outer = order[0], order[1]
    row = shape[inner] * size
    if len(shape) != 2 or row < _LANE or shape[0] * shape[1] * size < _RUN:
        return None
    padding = _LANE if k_contiguous else 64
    count = max(_RUN // row, 1).bit_length() - 1  # bits of the rows in what a warp writes
    row_bits = [1 << bit for bit in range(shape[outer].bit_length() - 1)]

    def step(dim: int, by: int) -> tuple[int, ...]:
        return tuple(by if d == dim else 0 for d in range(2))

    columns = [step(inner, 1 << bit) for bit in range(shape[inner].bit_length() - 1)]
    for apart in range(min(4, len(row_bits) - count), -1, -1):
        within = row_bits[apart : apart + count]
        after = [b for b in row_bits if b not in within]
        bases = (*columns, *(step(outer, b) for b in (*within, *after)))
        layout = LinearShared(bases, ((max(_RUN, row) // size, padding // size),))
        if is_free(layout, shape, bits, order, k_contiguous):
            return layout
    return None


def bases_of(layout: SharedLayout, shape: Sequence[int]) -> list[tuple[int, ...]] | None:
    """For each bit of an offset into a buffer, the step along each dimension; padding aside."""
    if isinstance(layout, LinearShared):
        return list(layout.offsets)
    if not isinstance(layout, SwizzledShared):
        return None
    bases = []
    for position, dim in enumerate(layout.order):
        for bit in range(shape[dim].bit_length() - 1):
            step = [0] * len(shape)
            step[dim] = 1 << bit
            if position == 1:
                step[layout.order[0]] ^= (
                    (1 << bit) // layout.per_phase % layout.max_phase * layout.vec
                )
            bases.append(tuple(step))
    return bases


def written_in_a_row(
    layout: SharedLayout, shape: Sequence[int], vector: int, warps: int
) -> str | None:
    """The layout of loads with which each warp fills LDS in a row, ``vector`` elements a lane.

    None where the buffer is smaller than what a warp writes at once, or swizzled: the layout of a
    tensor permutes nothing.
    """
    bases = bases_of(layout, shape)
    first = vector.bit_length() - 1
    if bases is None or len(bases) < first + 6 or any(sum(map(bool, b)) > 1 for b in bases):
        return None
    lanes, rest = bases[first : first + 6], bases[first + 6 :]
    count = warps.bit_length() - 1
    of_warps = [*rest[:count], *[(0,) * len(shape)] * (count - len(rest))]

    def text(steps: Sequence[tuple[int, ...]]) -> str:
        return str([list(step) for step in steps])

    return (
        f"#ttg.linear<{{register = {text([*bases[:first], *rest[count:]])}, lane = {text(lanes)}, "
        f"warp = {text(of_warps)}, block = []}}>"
    )


def address(layout: SharedLayout, shape: Sequence[int], bits: int, at: Sequence[int]) -> int:
    """The byte of an element in a buffer."""
    size = bits // 8
    if isinstance(layout, SwizzledShared):
        inner, outer = layout.order[0], layout.order[1]
        row, column = at[outer], at[inner]
        phase = row // layout.per_phase % layout.max_phase
        column = (column // layout.vec ^ phase) * layout.vec + column % layout.vec
        return (row * shape[inner] + column) * size
    assert isinstance(layout, LinearShared)
    # Each basis moves along one dimension, so that its bit is that of the coordinate.
    offset = 0
    for bit, basis in enumerate(layout.offsets):
        dim = next(d for d, by in enumerate(basis) if by)
        if at[dim] & basis[dim]:
            offset |= 1 << bit
    gaps = sum(offset // interval * padding for interval, padding in layout.paddings)
    return (offset + gaps) * size


def conflicts(addresses: Iterable[int], width: int) -> int:
    """How often a bank is asked for twice when lanes read ``width`` bytes each, at once."""
    asked: dict[int, int] = {}
    for first in addresses:
        for word in range(first // 4, (first + width) // 4):
            asked[word % (_BANKS // 4)] = asked.get(word % (_BANKS // 4), 0) + 1
    return sum(count - 1 for count in asked.values())


def reads(
    layout: SharedLayout, shape: Sequence[int], bits: int, order: Sequence[int], k_contiguous: bool
) -> int:
    """Conflicts of the lanes of a product's operand that LDS serves at once, in the worst place."""
    size, (inner, outer) = bits // 8, order[:2]
    rows, wide = (16, _LANE) if k_contiguous else (4, 64)
    worst = 0
    for first in range(0, shape[outer], rows):
        for column in range(0, shape[inner], wide // size):
            at = []
            for row in range(first, min(first + rows, shape[outer])):
                for part in range(0, wide, 8 if not k_contiguous else _LANE):
                    place = [0, 0]
                    place[outer] = row
                    place[inner] = min(column + part // size, shape[inner] - 1)
                    at.append(address(layout, shape, bits, place))
            worst = max(worst, conflicts(at, _LANE if k_contiguous else 8))
    return worst


def is_free(
    layout: SharedLayout, shape: Sequence[int], bits: int, order: Sequence[int], k_contiguous: bool
) -> bool:
    """Whether loads of a product's operand are without conflicts."""
    return reads(layout, shape, bits, order, k_contiguous) == 0
