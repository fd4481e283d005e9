"""A stage with its edits, as the function that Triton's compiler calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remora.errors import (
    InvalidIR,
    OverrideRaised,
    OverrideReturned,
    PipelineError,
    RemoraError,
    StageFailed,
)
from remora.host import captured_stderr, generic_text
from remora.pipeline.edits import Check, Edit, Override
from remora.pipeline.reproducer import explain, messages
from remora.pipeline.runner import PUBLIC_FUNCTION, Runner, StockFailed
from remora.pipeline.stage import Box, Unknown, instrument, record


@dataclass
class Compilation:
    """What the stages of one compilation share.

    target: in words, "cuda:90". seen: the triggers that its modules held so far.
    kernels: its public functions, where they were asked for. done: the edits made.
    """

    target: str
    seen: set[str] = field(default_factory=set)
    kernels: list[str] = field(default_factory=list)
    done: list[Edit] = field(default_factory=list)


def edited_stage(
    name: str,
    stage: Callable[[Any, Any], Any],
    edits: Sequence[Edit],
    compilation: Compilation,
    *,
    by_name: bool = False,
) -> Callable[[Any, Any], Any]:
    """The function of a stage with its edits.

    A module for which no edit holds, and none held in an earlier stage, goes
    through the stock function, untouched.

    Args:
        by_name: an edit of this stage or of a later one asks for the kernel's name.
    """
    needs_text = by_name or any(e.trigger or e.when.module is not None for e in edits)

    def run(value: Any, metadata: Any) -> Any:
        if isinstance(value, Unknown):  # a dry run lists what the stage itself does
            return stage(value, metadata)
        text = value if isinstance(value, str) else ""
        if needs_text and not isinstance(value, (str, bytes)):
            text = generic_text(value, locations=False)
            compilation.kernels = PUBLIC_FUNCTION.findall(text) or compilation.kernels
        compilation.seen.update(e.trigger for e in edits if e.trigger and e.trigger in text)
        held = [e for e in edits if _holds(e, compilation.kernels, text)]
        of_passes = [e for e in held if not isinstance(e, (Check, Override)) and e.trigger in text]
        checks = [
            e
            for e in held
            if isinstance(e, Check) and (not e.trigger or e.trigger in compilation.seen)
        ]
        before = generic_text(value) if checks and not isinstance(value, (str, bytes)) else text
        compilation.done += of_passes

        def compile_(given: Any) -> Any:
            return _compile(name, stage, of_passes, compilation, given, metadata)

        whole: Callable[[Any], Any] = compile_
        for override in held:
            if isinstance(override, Override) and override.trigger in text:
                whole = _overridden(override, whole)
                compilation.done.append(override)
        result = whole(value)
        for check in checks:
            check.run(before, metadata)
        return result

    return run


def _holds(edit: Edit, kernels: list[str], text: str) -> bool:
    try:
        return edit.when.allows_module(kernels, text)
    except Exception as error:
        raise PipelineError(
            f"the condition raised {type(error).__name__}: {error}",
            where=f"{edit} (pipeline {edit.pipeline})",
            hint="module= takes a function of the module's text that returns a bool",
        ) from error


def _compile(
    name: str,
    stage: Callable[[Any, Any], Any],
    edits: Sequence[Edit],
    compilation: Compilation,
    value: Any,
    metadata: Any,
) -> Any:
    """The stage with the edits of its passes.

    Raises:
        StageFailed: stock passes failed after edits of this stage or an earlier one.
    """
    if not compilation.done:
        return stage(value, metadata)
    # To say more of a failure than that there was one.
    before = "" if edits or isinstance(value, (str, bytes)) else generic_text(value)
    try:
        if edits:
            return _with_passes(name, stage, edits, compilation.target, value, metadata)
        return stage(value, metadata)
    except StockFailed as failed:
        what, where = failed.what, failed.where
    except RemoraError:
        raise
    except RuntimeError as error:
        what, where = explain(before, record(stage), value.context) if before else (str(error), "")
    except Exception as error:  # ptxas, for one: Triton's autotuner knows its class
        error.add_note(f"after edits: {_in_words(compilation.done)}")
        raise
    raise StageFailed(
        f"stock passes failed after edits: {what or 'no message'}",
        where="; ".join(filter(None, (f"stage {name}", where)))
        + f"; {_in_words(compilation.done)}",
        hint="a later pass may need what an edit left out or changed",
    )


def _in_words(edits: Sequence[Edit]) -> str:
    return "; ".join(dict.fromkeys(f"{e} (pipeline {e.pipeline})" for e in edits))


def _with_passes(
    name: str,
    stage: Callable[[Any, Any], Any],
    edits: Sequence[Edit],
    target: str,
    module: Any,
    metadata: Any,
) -> Any:
    runner = Runner(name, edits, record(stage), target)
    box = Box(module)
    result = instrument(stage, runner)(box, metadata)
    if runner.plan.due:
        raise PipelineError(
            f"the stage {name} ended before its passes {runner.names[runner.done :]}",
            hint="its passes depend on the module; report it with the Triton release",
        )
    return box.module if isinstance(result, Box) else result


#: What each stage makes.
KINDS = {
    "ttir": "module", "glir": "module", "ttgir": "module", "llir": "str", "ptx": "str",
    "amdgcn": "str", "cubin": "bytes", "hsaco": "bytes",
}  # fmt: skip


def _overridden(override: Override, compile_: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A stage's function with another in its place, which gets the first."""
    where = f"{override} (pipeline {override.pipeline})"

    def run(value: Any) -> Any:
        from triton._C.libtriton import ir

        try:
            result = override.function(value, compile_)
        except RemoraError:
            raise
        except Exception as error:
            if getattr(error, "__notes__", None):  # the stage failed, not the function
                raise
            raise OverrideRaised(
                f"the function raised {type(error).__name__}: {error}", where=where
            ) from error
        kinds = {"module": ir.module, "str": str, "bytes": bytes}
        kind = KINDS.get(override.stage)
        if kind is not None and not isinstance(result, kinds[kind]):
            raise OverrideReturned(
                f"the function returned {type(result).__name__}, the stage makes {kind}",
                where=where,
                hint="return what compile_(value) returns, or the like",
            )
        if kind == "module":
            if not hasattr(result, "context"):  # parsed by hand
                result.context = value.context
            with captured_stderr() as output:
                verifies = result.verify()
            if not verifies:
                raise InvalidIR(
                    f"the function returned invalid IR: {messages(''.join(output))}", where=where
                )
        return result

    return run
