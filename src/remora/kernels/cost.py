"""What a product costs on Hopper, and from that which configurations are worth trying.

A count, not a simulation: of the matrix units' cycles, and of the bytes that cross shared
memory, the L2 cache and device memory. The slowest of them bounds the time; so does the energy
that all of them take, because the GPU holds its power limit by lowering its clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from remora.kernels.config import Config

#: The most configurations that are worth compiling and timing.
MOST = 6

#: Bytes of shared memory that buffers may take; the rest is for barriers.
_SHARED = (227 << 10) - 1024


@dataclass(frozen=True)
class Problem:
    """A product.

    m, n, k, batch: extents. dtype, out_dtype: torch's names, without ``torch.``.
    orders: how A and B are stored: ``row``, ``column`` or ``strided``. described: whether the
    kernels take them whose warps have tasks of their own. epilogue: what tells one function at
    the end from another, empty without one.
    """

    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    orders: tuple[str, str] = ("row", "row")
    described: bool = True
    batch: int = 1
    epilogue: str = ""

    @property
    def size(self) -> int:
        """Bytes of an operand's element."""
        return _bytes(self.dtype)

    @property
    def out_size(self) -> int:
        """Bytes of a result's element."""
        return _bytes(self.out_dtype)

    @property
    def flops(self) -> float:
        """Operations, an addition and a multiplication each counted."""
        return 2.0 * self.batch * self.m * self.n * self.k

    def tiles(self, m: int, n: int) -> int:
        """How many tiles of m x n elements the result has."""
        return self.batch * math.ceil(self.m / m) * math.ceil(self.n / n)


def _bytes(dtype: str) -> int:
    digits = "".join(c if c.isdigit() else " " for c in dtype.removeprefix("float8_e")).split()
    return 1 if "float8" in dtype else int(digits[0]) // 8


@dataclass(frozen=True)
class Gpu:
    """What the count needs to know of a GPU.

    units: multiprocessors. clock: cycles a second where power does not limit it. memory, l2:
    bytes a second. unit_l2: bytes a cycle from L2 into one multiprocessor; latency: cycles
    until a copy has come; partial: bytes a cycle of sums that one program gives to another.
    cache: bytes of L2 that hold operands. watts: the power limit, less what an idle chip takes.
    per_*: joules for an operation of 16-bit operands, or for a byte.
    """

    units: int = 132
    clock: float = 1.755e9
    memory: float = 4.3e12
    l2: float = 10e12
    unit_l2: float = 64
    latency: float = 1400
    partial: float = 12
    cache: float = 30e6
    watts: float = 585
    per_flop: float = 0.55e-12
    per_shared_byte: float = 3e-12
    per_l2_byte: float = 15e-12
    per_memory_byte: float = 40e-12


#: NVIDIA H200, SXM. The bandwidth is what a copy reaches; units, clock and cache are the
#: device's own properties; energies are fitted to measurements, see docs/kernels.md.
H200 = Gpu()


@dataclass(frozen=True)
class Counts:
    """What a product costs with a configuration.

    cycles: of each multiprocessor, in the loops over K; after: before, between and after them.
    rounds: of tiles, each multiprocessor's; the last one may not be full.
    flops: of 16-bit operands, what is outside of the matrices included; of others as many as
    take the same time. shared, l2, memory: bytes through shared memory, from L2 into
    multiprocessors, and from and to device memory.
    """

    cycles: float
    after: float
    flops: float
    shared: float
    l2: float
    memory: float
    rounds: float = 1

    def joules(self, gpu: Gpu) -> float:
        """The energy that all of it takes."""
        return (
            self.flops * gpu.per_flop
            + self.shared * gpu.per_shared_byte
            + self.l2 * gpu.per_l2_byte
            + self.memory * gpu.per_memory_byte
        )

    def _at_the_limit(self, gpu: Gpu) -> float:
        """The time that the power limit asks for: a last round that is not full is no shorter."""
        round_, full = self.joules(gpu) / gpu.watts / self.rounds, math.floor(self.rounds)
        last = self.rounds - full
        if last == 0:
            return full * round_
        return full * round_ + max(last * round_, self.cycles / gpu.clock / (full + 1))

    def seconds(self, gpu: Gpu) -> float:
        """The time that the slowest of it takes."""
        bounds = (
            self.cycles / gpu.clock,
            self.l2 / gpu.l2,
            self.memory / gpu.memory,
            self._at_the_limit(gpu),
        )
        # A little over the largest, so that of two with the same bound the one wins that has
        # less of the rest.
        return math.hypot(*(b**4 for b in bounds)) ** 0.25 + self.after / gpu.clock


def estimate(problem: Problem, config: Config, gpu: Gpu = H200) -> float:
    """Seconds that a product should take."""
    seconds = count(problem, config, gpu).seconds(gpu)
    return seconds + _copying(problem, gpu) if config.copies else seconds


def _copying(p: Problem, gpu: Gpu) -> float:
    """Seconds for copies of the operands that need one; of both where the problem does not say."""
    needed = [p.size != 2 and p.orders[0] != "row", p.size != 2 and p.orders[1] != "column"]
    extents = [n for n, one in zip((p.m, p.n), needed, strict=True) if one or not any(needed)]
    return sum(4 * p.batch * n * p.k * p.size / gpu.memory + 3e-6 for n in extents)


def count(problem: Problem, config: Config, gpu: Gpu = H200) -> Counts:
    """What a product costs."""
    p, c = problem, config
    if c.schedule == "split":
        return _count_split(p, c, gpu)
    if c.schedule == "narrow":
        return _count_narrow(p, c, gpu)
    high, wide = c.cluster
    rows = math.ceil(p.m / (c.block_m * high)) * high
    columns = math.ceil(p.n / (c.block_n * wide)) * wide
    tiles = p.batch * rows * columns
    steps = math.ceil(p.k / c.block_k)
    # Each warp group's product reads its 64 rows of A and all columns of B.
    groups = math.ceil(c.block_m / 64)
    stage = (c.block_m + c.block_n) * c.block_k * p.size
    shared = groups * (64 + c.block_n) * c.block_k * p.size + stage
    multiply = c.block_m * c.block_n * c.block_k * p.size / 4096  # 2048 of 16 bits a cycle
    step = max(multiply, shared / 128, stage / gpu.unit_l2)
    if not (p.described or c.copies):
        step *= 5  # element by element: measured 4.5 (fp32, turned) and 6.5 (fp16, odd rows)
    store = c.block_m * c.block_n * p.out_size / 16  # through registers and shared memory
    programs = _programs(p, c, gpu)
    resident = max(1.0, programs / gpu.units)
    exact = rounds = tiles / programs
    after = 2500 + store
    if not c.stream_k:
        rounds = math.ceil(exact)
    elif tiles % programs:
        # Sums go to another program; the one that finishes a tile takes them from all others.
        givers = max(1, math.ceil(programs / tiles) - 1)
        after += (1 + givers) * (c.block_m * c.block_n * 4 / gpu.partial + 1000)
    after += 4000 * (high * wide - 1)  # programs of a cluster wait for each other
    hidden = c.schedule == "pingpong" or c.stream_k or c.late_store
    if not hidden and resident == 1:
        # All programs store at a time, and nothing multiplies meanwhile; programs of a cluster
        # also wait for the other's store.
        after += (math.ceil(rounds) - 1) * store * (3 if high * wide > 1 else 1)
    # Fewer programs may have as many rounds, all of them full (``launches._even``).
    even = c.stream_k or tiles / math.ceil(exact) >= 0.95 * programs
    written = p.batch * p.m * p.n * p.out_size
    from_l2 = tiles * steps * (c.block_m / wide + c.block_n / high) * c.block_k * p.size
    return Counts(
        rounds * resident * steps * step, after, tiles * steps * multiply * 4096,
        tiles * steps * shared, from_l2 + written,
        _memory_bytes(p, c, rows, columns, gpu) + written, 1 if even else exact,
    )  # fmt: skip


def helpers_of(tiles: int, steps: int, programs: int) -> tuple[int, int, int]:
    """How many programs help those of ``gemm_split``, with how many tiles each, and how many of
    the steps of each of these.

    Giving sums takes about the time of four steps, and they are there eight before they are added
    (on an H200 44 of 256 steps were a little better than 40, 48 and 51: docs/kernels.md).
    """
    helpers = (programs - 2 * tiles) // 2 * 2
    if helpers <= 0:
        return 0, 0, 0
    each = math.ceil(tiles / helpers)
    helped = int((steps / 2 - 4 * each - 8) / (each + 0.5))
    if helped < 1 or steps - helped < 2:
        return 0, 0, 0
    return math.ceil(math.ceil(tiles / each) / 2) * 2, each, helped


def _count_split(p: Problem, c: Config, gpu: Gpu) -> Counts:
    """What a product costs of which two programs share a tile."""
    tiles, steps = p.tiles(c.block_m, c.block_n), math.ceil(p.k / c.block_k)
    helpers, _, helped = helpers_of(tiles, steps, gpu.units) if c.stream_k else (0, 0, 0)
    stage = (c.block_m + c.block_n) * c.block_k * p.size
    shared = 2 * (64 + c.block_n) * c.block_k * p.size + stage
    multiply = c.block_m * c.block_n * c.block_k * p.size / 4096
    step = max(multiply, shared / 128, stage / gpu.unit_l2)
    rounds = math.ceil((2 * tiles + helpers) / gpu.units)
    # Sums of half a tile come from the other program, others from a helper, and half is stored.
    half = c.block_m * c.block_n / 2
    after = 8000 + half * (4 / 32 + p.out_size / 16 + (4 / gpu.unit_l2 if helped else 0))
    given = tiles * c.block_m * c.block_n * 8 if helped else 0
    written = p.m * p.n * p.out_size
    return Counts(
        rounds * math.ceil((steps - helped) / 2) * step, after, tiles * steps * multiply * 4096,
        tiles * steps * shared, tiles * steps * stage + given + written,
        (p.m + p.n) * p.k * p.size + written,
    )  # fmt: skip


def _count_narrow(p: Problem, c: Config, gpu: Gpu) -> Counts:
    """What a product costs whose tiles' K programs share: fitted to 130 measurements, 5 % off."""
    share, tiles, steps = c.cluster[0], p.tiles(c.block_m, c.block_n), math.ceil(p.k / c.block_k)
    tile, stage = c.block_m * c.block_n, (c.block_m + c.block_n) * c.block_k * p.size
    multiply = tile * c.block_k * p.size / 4096
    # Two stages are not under way: one is multiplied, the one before has just been.
    step = max(multiply, 2 * stage / 128, gpu.latency / (c.stages - 2))
    rounds = math.ceil(tiles * share / gpu.units)
    written = p.m * p.n * p.out_size
    # Few programs do not keep memory busy all the time.
    busy = min(tiles * share / gpu.units, 1) ** 0.1
    after = 2000 + 0.13 * tile + (share > 1) * (700 + 0.3 * tile) + 300 * (rounds > 1)
    return Counts(
        rounds * math.ceil(steps / share) * step, after, tiles * steps * multiply * 4096,
        tiles * steps * 2 * stage, tiles * steps * stage + written,
        ((p.m + p.n) * p.k * p.size + written) / busy,
    )  # fmt: skip


def _programs(p: Problem, c: Config, gpu: Gpu) -> int:
    """Programs that run at a time; warps with tasks of their own take a multiprocessor."""
    if c.schedule != "pipelined":
        size = c.cluster[0] * c.cluster[1]
        return gpu.units // size * size
    stage = (c.block_m + c.block_n) * c.block_k * p.size
    return gpu.units * max(1, min(_SHARED // (c.stages * stage), 16 // c.num_warps))


def _memory_bytes(p: Problem, c: Config, rows: int, columns: int, gpu: Gpu) -> float:
    """Bytes of operands from device memory: what tiles that run together share comes once."""
    once = p.batch * (p.m + p.n) * p.k * p.size
    if (p.m + p.n) * p.k * p.size <= gpu.cache:
        return once
    high = min(c.group_m, rows)
    wide = min(math.ceil(gpu.units / high), columns)
    waves = p.batch * math.ceil(rows / high) * math.ceil(columns / wide)
    return max(once, waves * (high * c.block_m + wide * c.block_n) * p.k * p.size)


def candidates(problem: Problem, gpu: Gpu = H200, most: int = MOST) -> list[Config]:
    """The configurations for Hopper that may be the fastest, the likeliest first.

    Of those that differ only in the order of tiles one, because the count is closer between
    the others than between them.
    """
    best: dict[Config, Config] = {}
    for config in sorted(_all(problem, gpu), key=lambda c: (estimate(problem, c, gpu), repr(c))):
        best.setdefault(replace(config, group_m=0), config)
    return list(best.values())[:most]


#: Of warps with tasks of their own: schedule, and a tile's extents.
_TILES = (
    ("cooperative", 128, 256), ("cooperative", 256, 128), ("cooperative", 128, 128),
    ("pingpong", 64, 256), ("pingpong", 128, 128), ("pingpong", 64, 128),
)  # fmt: skip
_CLUSTERS = ((1, 1), (2, 1), (1, 2))


def _shared_tiles(p: Problem, gpu: Gpu) -> Iterator[Config]:
    """Configurations of which two programs share a tile, where rows and tiles are few.

    With 128 rows it was faster on an H200; with more than 256 none was tried.
    """
    if p.m > 256 or p.size != 2 or p.batch > 1 or p.k <= 512 or p.n * p.out_size % 16:
        return
    keep = "a" if p.m <= 128 else ""
    for n in (256, 128):
        left = _SHARED - 64 * n * 4 - 2 * 64 * 64 * p.out_size
        stages = min(8, left // ((128 + n) * 64 * p.size))
        tiles = p.tiles(128, n)
        # With few tiles that ``gemm_narrow`` cuts smaller it was slower.
        if 0.6 * gpu.units <= 2 * tiles <= gpu.units and stages >= 3:
            # With helpers where they have a part worth giving (docs/kernels.md: 5 %).
            steps = math.ceil(p.k / 64)
            helped = 10 * helpers_of(tiles, steps, gpu.units)[2] >= steps
            yield Config(128, n, 64, 8, stages, 4, "split", stream_k=helped, keep=keep)


def _narrow(p: Problem, gpu: Gpu) -> Iterator[Config]:
    """Configurations for few rows or few tiles, where all that counts is how B is read."""
    if p.batch > 1 or p.m * p.n > 128 * 128 * gpu.units:
        return
    least = min(128, max(16, 2 ** math.ceil(math.log2(p.m))))
    for m, n, share in product(sorted({least, min(least, 64)}), (64, 128), (1, 2, 4, 8)):
        # Clusters of 4 and 8 leave some multiprocessors idle (``_clusters_at_a_time``).
        room = gpu.units if share <= 2 else 0.9 * gpu.units
        if share > 1 and p.tiles(m, n) * share > room:
            continue
        # Sums of other programs; 64 columns of the result, which are laid out anew.
        left = _SHARED - (share - 1) * n * m * 4 - 64 * m * min(p.out_size, 4)
        for size in (256, 128):  # bytes of a row: few steps, but six that are under way at least
            depth = size // p.size
            stages = min(12, left // ((m + n) * size))
            if stages >= (6 if size == 256 else 4) and math.ceil(p.k / depth) >= share:
                yield Config(
                    m, n, depth, 1, stages, 4, "narrow", cluster=(share, 1),
                    keep="a" if p.m <= m else "", early=_early(p),
                )  # fmt: skip
                break


def _early(p: Problem) -> bool:
    """Whether to begin while the kernel before ends: what is short was 2 to 20 % faster on an H200,
    what takes more than some 40 us no faster, or up to 9 % slower."""
    return p.flops < 1e11 and p.batch * (p.m + p.n) * p.k * p.size < 1.5e8


def _groups(p: Problem, m: int) -> list[int]:
    """How many rows of tiles to work on together."""
    return sorted({min(g, 2 ** math.ceil(math.log2(max(p.m / m, 1)))) for g in (4, 8, 16, 32)})


def _all(problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """Every configuration that the kernels take."""
    depth = 128 // problem.size
    if not problem.described:
        for m, n, warps in (
            (128, 256, 8), (64, 256, 4), (128, 128, 4), (128, 64, 4), (64, 64, 4),
        ):  # fmt: skip
            for group in _groups(problem, m):
                yield Config(m, n, depth, group, 3, warps)
        for config in _all(replace(problem, described=True), gpu) if problem.k else ():
            if config.schedule != "split":
                yield replace(config, copies=True)
        return
    early = _early(problem)
    yield from _shared_tiles(problem, gpu)
    yield from _narrow(problem, gpu)
    for schedule, m, n in _TILES:
        cooperative = schedule == "cooperative"
        # Sums of 4 bytes that wait to be stored would not fit into registers beside the next ones.
        wide = problem.out_size > 2
        subtiles = 4 if problem.epilogue or wide else 2
        result = m * (1 if cooperative else 2) * n // subtiles * problem.out_size
        stages = min(8, (_SHARED - result) // ((m + n) * depth * problem.size))
        if stages < 3:
            continue
        if schedule == "pingpong" and m == 128 and problem.tiles(m, n) <= gpu.units:
            continue  # no second tile for the second consumer; two share one instead
        for cluster in _CLUSTERS:
            if problem.m <= m * (cluster[0] - 1) or problem.n <= n * (cluster[1] - 1):
                continue  # a tile of the cluster's would be outside
            # With one row of tiles B is read once, A by all programs (docs/kernels.md: 2 %).
            keep = "a" if problem.batch * problem.m <= m else ""
            for group in _groups(problem, m):
                config = Config(
                    m, n, depth, group, stages, 4, schedule, subtiles, cluster, keep=keep,
                    early=early,
                )  # fmt: skip
                yield config
                if not cooperative:
                    continue
                yield replace(config, stream_k=True)
                if problem.tiles(m, n) > gpu.units and not wide:
                    # There is a next tile, during which to store.
                    # Of tiles that are cut as well none was the fastest on an H200.
                    yield replace(config, late_store=True, subtiles=4, turn=True)
