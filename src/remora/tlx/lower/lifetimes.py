"""How long a buffer's memory is its own.

To stock Triton a buffer is dead after its last use, and its memory is used
again. But a copy goes on writing into it, and a product goes on reading it,
until they were waited for; kernels that prefetch past the end of their loop
leave copies in flight. A ``ttg.local_dealloc`` keeps the memory until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from remora.dsl.lowering import CustomOp
from remora.ir.build import Builder, op_name


@dataclass
class Buffer:
    """An allocation with what happens to it.

    uses: all of its uses. copies: those that copy into it asynchronously, in groups.
    products: those that read it asynchronously. loads: those that copy into it, and Blackwell's
    products that read it, which complete on a barrier. stores: those that copy out of it.
    """

    allocation: CustomOp
    uses: list[CustomOp]
    copies: list[CustomOp]
    products: list[CustomOp]
    loads: list[CustomOp]
    stores: list[CustomOp]


#: What holds code that nothing can be moved out of, and what such code ends with.
_WHOLE = ("tt.func", "ttg.warp_specialize.partitions")
_ENDS = ("tt.return", "ttg.warp_return")


class Lifetimes:
    """Extends the lives of buffers to where nothing that touches them is in flight.

    drain: inserts a wait for all copies.
    """

    def __init__(self, ops: Sequence[CustomOp], drain: Callable[[Builder], None]) -> None:
        self._copy_waits = [op for op in ops if op.name == "tlx.async_load_wait_group"]
        self._product_waits = [op for op in ops if op.name == "tlx.async_dot_wait"]
        self._store_waits = [op for op in ops if op.name == "tlx.async_descriptor_store_wait"]
        self._barrier_waits = [op for op in ops if op.name == "tlx.barrier_wait"]
        self._drain = drain
        # Where the drained buffers of a block end, and who they are.
        self._drained: dict[Block, tuple[Operation, list[CustomOp]]] = {}
        # Tasks that leave copies in flight, which only their own warps can wait for.
        self._drained_tasks: dict[Block, None] = {}

    def extend(self, buffers: Iterable[Buffer]) -> None:
        """Extend the lives of buffers; call it once, before anything is lowered."""
        to_the_end: list[Buffer] = []
        for buffer in buffers:
            if not (buffer.copies or buffer.products or buffer.loads or buffer.stores):
                continue
            if _is_structured(buffer):
                self._extend_in_block(buffer)
            else:
                to_the_end.append(buffer)
        for end, allocations in self._drained.values():
            builder = Builder.after(end)
            self._drain(builder)
            for allocation in allocations:
                _deallocate(allocation, builder)
        for task in self._drained_tasks:
            assert task.last_op is not None
            self._drain(Builder.before(task.last_op))
        self._extend_to_returns(to_the_end)

    def _extend_in_block(self, buffer: Buffer) -> None:
        """One block, with its loops and branches, holds all uses."""
        ends: list[Operation] = []
        if buffer.products:
            ends.append(self._products_done(buffer))
        block = _block_of(buffer.allocation)
        last = _last(buffer.uses, block)
        ends.append(last)
        assert block.last_op is not None
        if buffer.stores:
            ends.append(_done(buffer.stores, self._store_waits, block) or block.last_op)
        if buffer.loads:
            ends.append(_waited(buffer.loads, self._barrier_waits, block) or block.last_op)
        if buffer.copies:
            done = self._copies_done(buffer.copies, block)
            if done is None:
                # One wait after the last of several buffers does for all of them.
                before, allocations = self._drained.get(block, (last, []))
                end = _before_terminator(max((before, *ends), key=_position))
                self._drained[block] = end, [*allocations, buffer.allocation]
                return
            ends.append(done)
        end = max(ends, key=_position)
        if end is block.last_op:
            _deallocate(buffer.allocation, Builder.before(end))
        elif end is not last:
            _deallocate(buffer.allocation, Builder.after(end))

    def _copies_done(self, copies: Sequence[CustomOp], block: Block) -> Operation | None:
        """As ``_done``; copies of a task are waited for in it, at its end at the latest."""
        outside = []
        for copy in copies:
            task = _task_of(copy.op, block)
            if task is None:
                outside.append(copy)
            elif _done([copy], self._copy_waits, task) is None:
                self._drained_tasks[task] = None
        if outside:
            return _done(outside, self._copy_waits, block)
        return _last(copies, block)

    def _products_done(self, buffer: Buffer) -> Operation:
        """Where no product reads the buffer any more; moves it out of loops that leave one."""
        while True:
            block = _block_of(buffer.allocation)
            done = _done(buffer.products, self._product_waits, block)
            holder = block.parent_op()
            if done is None and holder is not None and op_name(holder) not in _WHOLE:
                _move(buffer.allocation.op, InsertPoint.before(holder))
                continue
            end = done or block.last_op
            assert end is not None
            return end

    def _extend_to_returns(self, buffers: Sequence[Buffer]) -> None:
        """A return in the middle of a function: the memory is kept for the whole of it."""
        for region in dict.fromkeys(_region_of(b.allocation) for b in buffers):
            own = [b for b in buffers if _region_of(b.allocation) is region]
            for buffer in own:
                _move(buffer.allocation.op, InsertPoint.at_start(region.blocks[0]))
            for block in region.blocks:
                end = block.last_op
                if end is None or op_name(end) not in _ENDS:
                    continue
                builder = Builder.before(end)
                if any(b.copies for b in own):
                    self._drain(builder)
                for buffer in own:
                    _deallocate(buffer.allocation, builder)


def keep_to_the_end(allocation: Operation, memory: SSAValue) -> None:
    """Keep memory to the end of the region that allocates it.

    Stock Triton would use it again after the last use that it sees.
    """
    for use in [use for result in allocation.results for use in result.uses]:
        if op_name(use.operation) == "ttg.local_dealloc":
            Rewriter.erase_op(use.operation)
    block = allocation.parent
    assert block is not None
    assert block.parent is not None
    for end in block.parent.blocks:
        last = end.last_op
        if last is not None and not last.successors and _dominates(block, end):
            Builder.before(last).op("ttg.local_dealloc", [memory])


def _dominates(block: Block, other: Block) -> bool:
    """Whether every way from the start of a region to ``other`` leads through ``block``."""
    assert block.parent is not None
    seen, found = {block}, [block.parent.blocks[0]]
    while found:
        at = found.pop()
        if at not in seen:
            seen.add(at)
            found.extend(at.last_op.successors if at.last_op is not None else ())
    return other is block or other not in seen


def _done(started: Sequence[CustomOp], waits: Sequence[CustomOp], block: Block) -> Operation | None:
    """The operation of a block after which all that was started in it is done, or None."""
    last = _last(started, block)
    for wait in waits:
        in_block = wait.attributes["pendings"] == 0 and wait.op.parent is block
        if in_block and _position(wait.op) > _position(last):
            return wait.op
    inner = [b for region in last.regions for b in region.blocks]
    for nested in inner:
        own = [s for s in started if _is_within(s.op, nested)]
        if own and _done(own, waits, nested) is None:
            return None
    return last if inner else None


def _waited(
    started: Sequence[CustomOp], waits: Sequence[CustomOp], block: Block
) -> Operation | None:
    """The operation of a block that waits after the last one of ``started``, or None.

    Which barrier is waited for is not looked at: an author who waits after a loop for
    what the loop left in flight does so for all.
    """
    last = _last(started, block)
    holders = (_holder(wait.op, block) for wait in waits)
    after = [h for h in holders if h is not None and _position(h) > _position(last)]
    if after:
        return min(after, key=_position)
    inner = [b for region in last.regions for b in region.blocks]
    for nested in inner:
        own = [s for s in started if _is_within(s.op, nested)]
        if own and _waited(own, waits, nested) is None:
            return None
    return last if inner else None


def _deallocate(allocation: CustomOp, builder: Builder) -> None:
    # The handle becomes the buffer when the allocation is lowered.
    builder.op("ttg.local_dealloc", allocation.results)


def _move(op: Operation, point: InsertPoint) -> None:
    """An allocation can be made anywhere before its uses, if what it shares memory with is too."""
    op.detach()
    Rewriter.insert_op(op, point)
    for operand in op.operands:
        if isinstance(operand.owner, Operation) and not comes_after(op, operand.owner):
            _move(operand.owner, InsertPoint.before(op))


def comes_after(op: Operation, before: Operation) -> bool:
    """Whether an operation surely runs after another one, which surely ran."""
    block = before.parent
    holder: Operation | None = op
    while holder is not None and holder.parent is not block:
        holder = holder.parent_op()
    if holder is None or holder is before:
        return False
    assert block is not None
    return block.get_operation_index(holder) > block.get_operation_index(before)


def span_of(allocation: CustomOp, uses: Sequence[CustomOp]) -> tuple[int, int]:
    """The places in its block between which a buffer lives; all of them where that is not known."""
    block = _block_of(allocation)
    if op_name(block.parent_op() or allocation.op) != "tt.func" or not uses:
        return 0, 1 << 30
    holders = [_holder(part, block) for use in uses for part in use.parts]
    if not all(holders):
        return 0, 1 << 30
    return _position(allocation.op), max(_position(h) for h in holders if h is not None)


def _is_structured(buffer: Buffer) -> bool:
    block = _block_of(buffer.allocation)
    return all(_is_within(use.op, block) for use in buffer.uses)


def _block_of(op: CustomOp) -> Block:
    block = op.op.parent
    assert block is not None
    return block


def _region_of(op: CustomOp) -> Region:
    """The body of the function that holds an operation."""
    region = _block_of(op).parent
    assert region is not None
    while (holder := region.parent) is not None and op_name(holder) not in _WHOLE:
        region = holder.parent_region()
        assert region is not None
    return region


def _task_of(op: Operation, block: Block) -> Block | None:
    """The first block of the task, within ``block``, that runs an operation."""
    found = None
    holder: Operation | None = op
    while holder is not None and holder.parent is not block:
        region = holder.parent_region()
        holder = holder.parent_op()
        if holder is not None and op_name(holder) == "ttg.warp_specialize.partitions":
            assert region is not None
            found = region.blocks[0]
    return found


def _is_within(op: Operation, block: Block) -> bool:
    return _holder(op, block) is not None


def _holder(op: Operation | None, block: Block) -> Operation | None:
    """The operation of ``block`` that is ``op`` or holds it."""
    while op is not None and op.parent is not block:
        op = op.parent_op()
    return op


def _last(ops: Sequence[CustomOp], block: Block) -> Operation:
    """The last operation of a block that is one of ``ops`` or holds one."""
    holders = (_holder(part, block) for op in ops for part in op.parts)
    return max((h for h in holders if h is not None), key=_position)


def _position(op: Operation) -> int:
    assert op.parent is not None
    return op.parent.get_operation_index(op)


def _before_terminator(op: Operation) -> Operation:
    """``op``, or what stands before it where it ends its block."""
    block = op.parent
    assert block is not None
    if op is not block.last_op:
        return op
    before = op.prev_op
    assert before is not None
    return before
