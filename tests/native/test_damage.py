"""A sample of the damaged copies of ``damage.py``; all of them are run by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from native.damage import judge, use, variants, wheels_library

# Every so many of them.
_STEP = 60


@pytest.fixture(scope="module")
def expected():
    """What the whole library's pass makes of a module."""
    text = use(wheels_library())
    assert "foo_num_warps_7" in text
    return text


def test_no_damaged_copy_is_fine_unless_it_works(expected):
    content = wheels_library().read_bytes()
    damages = list(variants(content))
    assert len(damages) >= 1000
    verdicts = Counter(judge(damage, content, expected)[0] for damage in damages[::_STEP])
    assert verdicts["false fine"] == 0
    assert verdicts["damaged"] > verdicts.total() // 2


def test_no_truncated_copy_is_fine(expected):
    content = wheels_library().read_bytes()
    truncated = [d for d in variants(content) if d.new is None]
    powers = [d for d in truncated if d.at.bit_count() == 1] + truncated[-1:]
    assert len(powers) >= 20
    assert {judge(damage, content, expected)[0] for damage in powers} <= {
        "damaged",
        "not an ELF file",
    }
