"""An operation's symbol says all about it: what was written is read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remora.dsl.carrier import PREFIX, Symbol, decode, encode
from remora.errors import PluginError

NAMES = st.from_regex(r"[a-z_]{1,8}\.[a-z_]{1,8}", fullmatch=True)
CONSTANTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = st.lists(
    st.sampled_from(["i64", "tensor<128x64xf16>", "!tt.ptr<f16, 1>", "tensor<4x!tt.ptr<i8>>"]),
    max_size=3,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of one type, NaN like NaN and -0.0 unlike 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and repr(a) == repr(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(same, a.values(), b.values()))
    return bool(a == b)


@given(
    NAMES, st.from_regex(r"[a-z_]{1,5}(\.[a-z_]{1,5})?", fullmatch=True), st.text("hv", max_size=3),
    st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), CONSTANTS, max_size=4),
    TYPES, TYPES,
)  # fmt: skip
@example("a.b", "m", "h", {"x": "}:->{':"}, ["i64"], ["i64"])
@example("a.b", "m", "", {"x": "inf", "y": math.inf, "z": -math.inf, "w": math.nan}, [], [])
def test_round_trip(
    name: str, module: str, results: str, attributes: dict[str, Any], takes: Any, gives: Any
) -> None:
    text = encode(Symbol(name, module, results, attributes), takes, gives)
    assert text.startswith(PREFIX)
    assert text.isascii()
    assert text.isprintable()
    found = decode(text)
    assert (found.name, found.declared_in, found.results) == (name, module, results)
    assert same(found.attributes, dict(sorted(attributes.items())))


@pytest.mark.parametrize("value", [object(), float, lambda: 0, ..., range(3), {"a": [frozenset()]}])
def test_what_cannot_be_written_down(value: object) -> None:
    with pytest.raises(PluginError, match="cannot be written down"):
        encode(Symbol("a.b", "m", "", {"x": value}))
