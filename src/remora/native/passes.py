"""A pass of a native plugin, as an edit of a pipeline takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from remora.errors import PipelineError
from remora.native.loading import is_bound
from remora.pipeline.stage import as_call
from remora.pipeline.subjects import CompiledPass

if TYPE_CHECKING:
    from remora.native.loading import Library


@dataclass(frozen=True, kw_only=True)
class NativePass(CompiledPass):
    """A pass of a native library; made by ``Library.pass_``. ``name`` is ``PLUGIN.PASS``."""

    library: Library
    kind: ClassVar[str] = "native"

    @classmethod
    def of(cls, library: Library, name: str, arguments: Sequence[str]) -> NativePass:
        """See ``Library.pass_``."""
        library.bound("pass", name)
        bare = name.removeprefix("add_")
        if not all(isinstance(a, str) for a in arguments):
            raise PipelineError(
                f"{arguments!r} are not the arguments of a native pass",
                where=f"{library.name}.{bare}",
                hint=f'native passes take texts: pass_("{bare}", "4")',
            )
        return cls(f"{library.name}.{bare}", tuple(arguments), library=library)

    @property
    def cache_key(self) -> str:
        """What the pass does depends on: the library's content, and the arguments."""
        return f"{self.library.report.content} {self.name} {self.arguments}"

    def adder(self) -> Callable[..., Any]:
        """See ``CompiledPass``.

        Raises:
            NativeTooLate: Triton was imported without the library.
        """
        from triton._C.libtriton import passes

        bound = self.library.bound("pass", self._bare)
        is_bound(self.library, passes.plugin, bound)
        add = getattr(passes.plugin, bound)
        return lambda manager, *arguments: add(manager, list(arguments))

    def on_command_line(self) -> str:
        """See ``CompiledPass``: by the library's file, so that it is found again."""
        return as_call(f"{self.library.path}:{self._bare}", self.arguments, {})

    @property
    def _bare(self) -> str:
        return self.name.removeprefix(f"{self.library.name}.")
