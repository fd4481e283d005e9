"""Cuts a line of MLIR's generic form into pieces, without parsing them."""

from __future__ import annotations

import re
from fractions import Fraction

STRING = r'"(?:[^"\\]|\\.)*"'
_MARK = re.compile(STRING + r"|->|>=|//|[<({\[]|[>)}\]]|,")
_WORD = re.compile(
    STRING + r"|-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[A-Za-z_][\w$.]*|\S"
)


class NotAsPrinted(Exception):
    """A line is not laid out as MLIR prints it."""


def piece_end(text: str, start: int) -> int:
    """Where a piece ends: at the first comma or closing bracket that is not inside it.

    Raises:
        NotAsPrinted: a bracket stays open, or a comment begins.
    """
    depth = 0
    for match in _MARK.finditer(text, start):
        mark = match.group()
        if mark in "<({[":
            depth += 1
        elif mark in ">)}]":
            if depth == 0:
                return match.start()
            depth -= 1
        elif mark == "//":
            raise NotAsPrinted
        elif mark == "," and depth == 0:
            return match.start()
    if depth:
        raise NotAsPrinted
    return len(text)


def split_location(text: str) -> tuple[str, str]:
    """What stands before a trailing `` loc(...)``, and the location; "" where there is none."""
    at = text.rfind(" loc(")
    while at >= 0 and text.count('"', at) % 2:  # within a string: MLIR writes no quote in one
        at = text.rfind(" loc(", 0, at)
    return (text[:at], text[at + 1 :]) if at >= 0 else (text, "")


def same_but_for_spelling(written: str, printed: str) -> bool:
    """Whether two texts differ only in spaces, in how numbers are written, or in a default type."""
    left, right = _WORD.findall(written), _WORD.findall(printed)
    if right[-2:] in ([":", "i64"], [":", "f64"]) and ":" not in left:
        right = right[:-2]
    return len(left) == len(right) and all(map(_same_word, left, right))


def _same_word(left: str, right: str) -> bool:
    return left == right or (_number(left) is not None and _number(left) == _number(right))


def _number(word: str) -> Fraction | None:
    try:
        return Fraction(int(word, 16)) if "0x" in word else Fraction(word)
    except ValueError:
        return None


def after(text: str, at: int, expected: str) -> int:
    """The place after ``expected``, which has to stand at ``at``."""
    if not text.startswith(expected, at):
        raise NotAsPrinted
    return at + len(expected)
