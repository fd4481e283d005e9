"""When an edit holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from remora.errors import PipelineError


@dataclass(frozen=True)
class Condition:
    """All that is given has to hold.

    target: a backend, or ``backend:arch``; several in a tuple.
    triton: releases, as patterns ("3.9.*").
    kernel: the kernel's name, as a pattern ("attn_*").
    module: a function of the module's text (generic form, without locations) as
        the stage gets it.
    """

    target: tuple[str, ...] = ()
    triton: tuple[str, ...] = ()
    kernel: str = ""
    module: Callable[[str], bool] | None = None

    def __str__(self) -> str:
        given = [f"target {' or '.join(self.target)}"] if self.target else []
        given += [f"Triton {' or '.join(self.triton)}"] if self.triton else []
        given += [f"kernel {self.kernel}"] if self.kernel else []
        given += [f"module {getattr(self.module, '__qualname__', '?')}"] if self.module else []
        return ", ".join(given)

    def allows_target(self, target: Any, release: str) -> bool:
        """What is known before a module is there."""
        names = (target.backend, f"{target.backend}:{target.arch}")
        return (not self.target or any(t in names for t in self.target)) and (
            not self.triton or any(fnmatchcase(release, t) for t in self.triton)
        )

    def allows_module(self, kernels: list[str], text: str) -> bool:
        """What the module decides."""
        named = not self.kernel or any(fnmatchcase(k, self.kernel) for k in kernels)
        return named and (self.module is None or bool(self.module(text)))

    @property
    def needs_module(self) -> bool:
        """Whether the module decides anything."""
        return bool(self.kernel) or self.module is not None

    def and_(self, other: Condition) -> Condition:
        """Both; what both give has to be given by one alone.

        Raises:
            PipelineError: both say something of the same.
        """
        merged = {}
        for name in ("target", "triton", "kernel", "module"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine and theirs and mine != theirs:
                raise PipelineError(
                    f"two conditions on {name}: {mine!r} and {theirs!r}",
                    hint="state each condition once",
                )
            merged[name] = mine or theirs
        return Condition(**merged)


ALWAYS = Condition()


def condition(
    target: str | tuple[str, ...] = (),
    triton: str | tuple[str, ...] = (),
    kernel: str = "",
    module: Callable[[str], bool] | None = None,
) -> Condition:
    """A ``Condition`` from single values or tuples."""

    def several(value: str | tuple[str, ...]) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else tuple(value)

    return Condition(several(target), several(triton), kernel, module)
