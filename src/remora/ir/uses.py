"""The order of each value's uses, which no text carries and stock passes go by.

A pass of MLIR that asks for a value's users gets them in the order of a linked
list, not of the program; a module that comes back from text has them in the
order in which they were parsed. Some passes' results depend on it (which of
two equal conversions is kept, the order of a partition's arguments). MLIR can
print the users of every value; from that print before a pass and after it,
``UseOrder`` tells how the lists have to be sorted to be as they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from remora.ir.collector import paused

_HEAD = re.compile(r'\s*(?:(%\w+)(?::\d+)? = )?"')
_BLOCK = re.compile(r"\s*\^\w+")
_USERS = re.compile(r" // (?:users?: (.*)|unused|id: (%\d+))$")
_ARGUMENT = re.compile(r"\s*// (%\w+) is (?:used by (.*)|unused)$")
_VALUE = re.compile(r"%\w+")


class Contents:
    """What a module holds at a time, in the order of its text."""

    def __init__(self, module: ModuleOp) -> None:
        self.operations = list(module.walk())
        self.results = [operation.results for operation in self.operations]
        self.arguments = [a for block in _blocks(module) for a in block.args]


class UseOrder:
    """The users of every value of a module, first to last, as MLIR lists them.

    Made from what was in xDSL's module, and ``text``, MLIR's generic print of the
    same module with the users of each value (``host.generic_text(..., users=True)``).
    """

    def __init__(self, contents: Contents, text: str) -> None:
        with paused():
            listing = _Listing(text)
            operations = dict(zip(listing.operations, contents.operations, strict=True))
            names: dict[SSAValue, str] = {}
            for name, results in zip(operations, contents.results, strict=True):
                for index, result in enumerate(results):
                    names[result] = f"{name}#{index}" if len(results) > 1 else name
            names.update(zip(contents.arguments, listing.arguments, strict=True))
            self.users: dict[SSAValue, list[Operation]] = {
                value: [operations[user] for user in listing.users.get(name, ())]
                for value, name in names.items()
            }

    def sorted_as(self, old: UseOrder) -> Iterator[tuple[SSAValue, list[int]]]:
        """The values whose uses are not in the order of ``old``, with their uses' new places.

        Element ``i`` is where the use that now stands at ``i`` has to go. Uses
        that ``old`` did not have come first, as if MLIR had just added them.
        Two uses by one operation stay side by side.
        """
        for value, users in self.users.items():
            before = old.users.get(value)
            if before is None or len(users) < 2:
                continue
            rank = {user: place for place, user in enumerate(before)}
            uses = [u for u in users for _ in range(u.operands.count(value))]
            order = sorted(range(len(uses)), key=lambda i: rank.get(uses[i], -1))
            places = [0] * len(uses)
            for place, use in enumerate(order):
                places[use] = place
            if places != list(range(len(uses))):
                yield value, places


def restore_uses(
    module: ModuleOp,
    native: Any,
    old: UseOrder,
    new: UseOrder,
    shuffle: Callable[[Any, Sequence[int]], None],
) -> None:
    """Sort the uses of a module that was parsed anew as they were before.

    Args:
        module: xDSL's module; ``native`` was parsed from its text.
        native: a ``libtriton.ir.module``.
        old, new: the order before the text was read, and after it was parsed.
        shuffle: gives a ``libtriton.ir.value``'s uses their new places.
    """
    unsorted = list(new.sorted_as(old))
    if not unsorted:
        return
    operations: list[Any] = []
    native.walk(operations.append)
    native_of = dict(zip(_inside_out(module), operations, strict=True))
    for value, places in unsorted:
        if isinstance(value, OpResult):
            shuffle(native_of[value.op].get_result(value.index), places)
        elif isinstance(value, BlockArgument) and value.block.first_op is not None:
            block = native_of[value.block.first_op].get_block()
            shuffle(block.get_argument(value.index), places)


def _inside_out(operation: Operation) -> Iterator[Operation]:
    """The operations in the order in which MLIR walks them: what is inside one before it."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield from _inside_out(inner)
    yield operation


def _blocks(operation: Operation) -> Iterator[Block]:
    """The blocks in an operation, in the order of the text."""
    for region in operation.regions:
        for block in region.blocks:
            yield block
            for inner in block.ops:
                yield from _blocks(inner)


class _Listing:
    """The names in a print with users, in the order of the text, and each value's users by name.

    An operation goes by its first result's name, without results by its id.
    """

    def __init__(self, text: str) -> None:
        self.operations: list[str] = []
        self.arguments: list[str] = []
        self.users: dict[str, list[str]] = {}
        self._open: list[int] = []
        for line in text.splitlines():
            argument = _ARGUMENT.match(line)
            if argument is not None:
                self.users[argument[1]] = _names(argument[2])
            elif _BLOCK.match(line):
                self.arguments += _VALUE.findall(line.partition("//")[0])
            else:
                self._operation(line)

    def _operation(self, line: str) -> None:
        head = _HEAD.match(line)
        if head is not None:
            self._open.append(len(self.operations))
            self.operations.append(head[1] or f"operation {len(self.operations)}")
            if line.endswith("({"):
                return
        elif not line.lstrip().startswith("})"):
            return
        index = self._open.pop()
        comment = _USERS.search(line)
        if comment is not None:
            if comment[2]:
                self.operations[index] = comment[2]
            groups = re.findall(r"\(([^()]*)\)", comment[1] or "")
            for number, group in enumerate(groups):
                self.users[f"{self.operations[index]}#{number}"] = _names(group)
            if comment[1] and not groups:
                self.users[self.operations[index]] = _names(comment[1])


def _names(listed: str | None) -> list[str]:
    """The users in a comment: an operation with several results is listed with each."""
    return list(dict.fromkeys(_VALUE.findall(re.sub(r"#\d+", "", listed or ""))))
