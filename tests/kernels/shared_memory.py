"""Bytes of shared memory that the products need on Hopper, counted.

Tests compare the count with what a compiled kernel says, and every configuration's count with
what there is.
"""

from __future__ import annotations

from remora.kernels.config import Config

#: Bytes that a program of Hopper can have.
LIMIT = 227 << 10

#: What barriers and alignment take at most; and besides, scales that are laid out anew.
SMALL, SCALES = 1 << 10, 2 << 10


def of_pipelined(config: Config, size: int, out_size: int) -> int:
    """Of ``gemm_pipelined``, at most: the result is laid out anew where the buffers were.

    size, out_size: bytes of an element of the operands, and of the result.
    """
    return max(_buffers(config, size), _result(config, out_size))


def of_grouped(config: Config, size: int, out_size: int) -> int:
    """Of ``gemm_grouped``, at most: the buffers are those of the next tile too."""
    return _buffers(config, size) + _result(config, out_size)


def of_specialized(config: Config, size: int, out_size: int) -> int:
    """Of kernels whose warps have tasks of their own: the result goes in parts."""
    if config.schedule == "split":  # what is given: fp32, and half of it is stored, in parts of 64
        return _buffers(config, size) + 64 * config.block_n * 4 + 2 * 64 * 64 * out_size
    if config.schedule == "narrow":  # what other programs give, and 64 columns, laid out anew
        sums = (config.cluster[0] - 1) * config.block_m * config.block_n * 4
        return _buffers(config, size) + sums + config.block_m * 64 * min(out_size, 4)
    tiles = 2 if config.schedule == "pingpong" else 1  # one for each consumer
    part = tiles * config.block_m * config.block_n // config.subtiles
    return _buffers(config, size) + part * out_size


def _buffers(config: Config, size: int) -> int:
    return config.stages * (config.block_m + config.block_n) * config.block_k * size


def _result(config: Config, out_size: int) -> int:
    """A tile of the result; what is wider than sums is made of them later."""
    return config.block_m * config.block_n * min(out_size, 4)
