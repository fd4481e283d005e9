"""The stages of a target and their passes, with what pipelines change in them, as values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from remora import host
from remora.errors import PipelineError
from remora.pipeline.active import edits_by_stage
from remora.pipeline.editing import KINDS
from remora.pipeline.edits import Check, Disable, Edit, Insert, Override, Passes, Pipeline, Replace
from remora.pipeline.plan import Plan
from remora.pipeline.stage import StockPass, anchors, record
from remora.pipeline.subjects import PassRef, describe


def overview(target: Any, language: str = "triton", pipelines: Sequence[Pipeline] = ()) -> Any:
    """What is compiled how: a dictionary that JSON can hold.

    Args:
        target: a ``triton.backends.compiler.GPUTarget``.
        language: "triton" or "gluon".
        pipelines: whose edits are marked.

    Raises:
        AnchorNotFound, ContradictingEdits: as a compilation would.
    """
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    if language.upper() not in Language.__members__:
        raise PipelineError(f"{language!r} is not a language", hint="write triton or gluon")
    backend = make_backend(target)
    arch = f"sm{target.arch}" if target.backend == "cuda" else target.arch
    stages: dict[str, Any] = {}
    backend.add_stages(stages, backend.parse_options({"arch": arch}), Language[language.upper()])
    name = f"{target.backend}:{target.arch}"
    edits = edits_by_stage(pipelines, target, list(stages))
    return {
        "target": name,
        "language": language,
        "triton": host.features().version,
        "pipelines": [p.name for p in pipelines],
        "stages": [_stage(s, stages[s], edits.get(s, []), name) for s in stages],
    }


def _stage(name: str, function: Any, edits: list[Edit], target: str) -> dict[str, Any]:
    makes = KINDS.get(name, "module")
    has_passes = makes == "module" or name == "llir"
    passes = record(function) if has_passes else []
    named = list(anchors(passes))
    plan = Plan.of(named, edits, target) if edits and named else Plan()
    rows: list[dict[str, Any]] = []
    for index, anchor in enumerate([*named, ""]):
        rows += [_inserted(e, plan.edits, name) for e in plan.due.get(index, [])]
        if anchor:
            rows.append(_stock(f"{name}/{anchor}", passes[index], plan, index))
    return {
        "stage": name,
        "makes": {"str": "text", "bytes": "binary"}.get(makes, makes),
        "edits": [_of(e) for e in edits if isinstance(e, (Override, Check))],
        "passes": rows,
    }


def _stock(anchor: str, stock: StockPass, plan: Plan, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "anchor": anchor,
        "pass": stock.group + stock.name if stock.group else "",
        "arguments": [*stock.arguments, *stock.keywords.items()] if stock.group else [],
    }
    if index in plan.instead:
        instead = plan.instead[index]
        row["edit"] = "disabled" if instead is None else f"replaced by {_in_full(instead)}"
        row["pipeline"] = next(
            e.pipeline for e in plan.edits if _is_at(e, anchor.partition("/")[2], instead)
        )
    return row


def _is_at(edit: Edit, anchor: str, instead: Any) -> bool:
    if isinstance(edit, Replace):
        return edit.anchor == anchor and edit.subject is instead
    return isinstance(edit, Passes) or (isinstance(edit, Disable) and edit.anchor == anchor)


def _inserted(subject: Any, edits: list[Edit], stage: str) -> dict[str, Any]:
    for edit in edits:
        if isinstance(edit, Insert) and edit.subject is subject:
            return {"inserted": _in_full(subject), "place": edit.place} | _of(edit)
    edit = next(e for e in edits if isinstance(e, Passes))
    return {"inserted": _in_full(subject), "place": f"instead of {stage}'s"} | _of(edit)


def _in_full(subject: Any) -> str:
    """What an edit puts in, with its arguments."""
    if isinstance(subject, PassRef) and subject.arguments:
        return f"{subject.target}{{{' '.join(f'{k}={v!r}' for k, v in subject.arguments)}}}"
    with suppress(Exception):  # a pass whose fields are no plain values
        return str(subject.pipeline_pass_spec())
    return describe(subject)


def _of(edit: Edit) -> dict[str, Any]:
    return {"edit": str(edit), "pipeline": edit.pipeline, "when": str(edit.when)}
