"""Layouts that an author can name."""

from __future__ import annotations

from typing import Any

from remora.dsl import Call


def shared_text(call: Call, layout: Any, shape: tuple[int, ...], dtype: Any) -> str | None:
    return None
