"""Attention, forward, on CDNA and Blackwell: what their kernels take, and the launches."""

from __future__ import annotations

import math
from typing import Any

import triton

from remora.kernels.attention import Problem
from remora.kernels.attention_blackwell import ROWS, attention_blackwell
from remora.kernels.attention_cdna import attention_cdna

#: Head dimensions of both.
_DIMS = (64, 128)


def launched(problem: Problem, o: Any, sums: Any, target: Any) -> bool:
    """Launch the target's own kernel, where there is one that takes the problem; whether it did.

    target: of the launch. o, sums: what ``Problem.forward`` gives. Taken are dimensions of 64 and
    128, without a limit on the left and not packed. CDNA: with last dimensions that are contiguous
    (others are read two bytes at a time, for which the plain kernel will do). Blackwell: where
    each query sees a key, as it scales by what the first ones' maximum is.
    """
    if problem.packed or problem.dim not in _DIMS or problem.band.left is not None:
        return False
    if target.backend == "hip" and target.arch in ("gfx942", "gfx950"):
        if any(x.stride(-1) != 1 for x in (problem.q, problem.k, problem.v)):
            return False
        _on_cdna(problem, o, sums, target.arch)
        return True
    if target.backend == "cuda" and target.arch in (100, 103) and _shift(problem) >= 0:
        _on_blackwell(problem, o, sums)
        return True
    return False


def _shift(problem: Problem) -> int:
    """Query i sees keys up to i + shift; without a limit that is all of them."""
    band = problem.band
    if band.right is None:
        return problem.longest_k
    return band.right + (problem.longest_k - problem.longest_q if band.lower else 0)


def _on_cdna(problem: Problem, o: Any, sums: Any, arch: str) -> None:
    block_m, block_n, stages = cdna_blocks(problem.dim, arch)
    operands = problem.q, problem.k, problem.v, o
    attention_cdna[(triton.cdiv(problem.longest_q, block_m), problem.batch * problem.heads)](
        *operands, sums, problem.scale * math.log2(math.e),
        *(stride for x in operands for stride in x.stride()),
        problem.heads, problem.longest_q, problem.longest_k, _shift(problem),
        GROUP=problem.group, DIM=problem.dim, BLOCK_M=block_m, BLOCK_N=block_n, STAGES=stages,
        DIRECT=arch == "gfx950", num_warps=8,
    )  # fmt: skip


def cdna_blocks(dim: int, arch: str) -> tuple[int, int, int]:
    """Queries and keys of a block, and buffers of keys.

    Three buffers of keys and of values have 64 KiB of shared memory on gfx942, and a warp's sums
    and weights half of the registers: with 64 keys of 128 dimensions neither would do.
    """
    return 256, 32 if (dim, arch) == (128, "gfx942") else 64, 3


def _on_blackwell(problem: Problem, o: Any, sums: Any) -> None:
    block_n = 128
    rows = (ROWS.value, block_n, block_n, ROWS.value)
    operands = problem.q, problem.k, problem.v, o
    described = [problem.described(x, n, problem.dim) for x, n in zip(operands, rows, strict=True)]
    attention_blackwell[
        (triton.cdiv(problem.longest_q, 2 * ROWS.value), problem.batch * problem.heads)
    ](
        *described, sums, problem.scale * math.log2(math.e), problem.heads, problem.longest_q,
        problem.longest_k, _shift(problem), GROUP=problem.group, DIM=problem.dim, BLOCK_N=block_n,
        STAGES=blackwell_stages(problem.dim), CAUSAL=problem.band.right is not None,
        TAIL=problem.longest_k % block_n != 0, TASKS=True, num_warps=4,
    )  # fmt: skip


def blackwell_stages(dim: int) -> int:
    """Buffers of keys, and of values, of 128 rows: beside two of queries in 227 KiB."""
    return 2 if dim == 128 else 3
