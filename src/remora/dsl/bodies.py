"""Bodies of ``with`` statements as functions, for kernels that Triton interprets.

Python runs the body of a ``with`` once, in the frame that it stands in. To run those within a
region at the same time, their code is compiled once more, from the kernel's source, each as a
function of the names that it uses: names that it assigns are its own.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from remora.errors import LanguageError

#: Makes something of a ``with`` statement's word and of a function that runs its body, within it.
Spawn = Callable[[Any, Callable[[Any], None]], None]


def run_apart(frame: FrameType, word: str, spawn: Spawn) -> None:
    """Run the body of the ``with`` that a frame is in, but hand each ``with`` in it over.

    Args:
        frame: of a function that Triton interprets, at the line of the statement.
        word: the name of what stands after the ``with``, which tells it from others in one line.
        spawn: is given what stands after each ``with``, and a function that takes the same and
            runs the statement with it. Names have there the values that they have now.

    Raises:
        LanguageError: there is no source, or the code leaves its ``with`` (``break``).
    """
    code, known = frame.f_code, frame.f_locals
    where = f"{code.co_filename}:{frame.f_lineno}"
    try:
        names, outer, inner = _parts(code, frame.f_lineno, word, frozenset(known))
    except (OSError, SyntaxError) as error:
        raise LanguageError(
            f"the body of this `with` cannot be run by itself: {error}",
            where=where,
            hint="a kernel's source has to be in a file, and its tasks end where they end",
        ) from error

    def hand_over(word: Any, which: int) -> None:
        values = sys._getframe(1).f_locals
        used, body = inner[which]
        taken = {name: values[name] for name in used & values.keys()}
        made = _function(body, frozenset(taken), code.co_filename, frame.f_globals)
        spawn(word, lambda given: made(**taken, remora_word=given))

    made = _function(outer, names, code.co_filename, frame.f_globals)
    made(**{name: known[name] for name in names}, remora_spawn=hand_over)


class _Words(ast.NodeTransformer):
    """Replaces each ``with`` by a call of ``remora_spawn``, and keeps it."""

    def __init__(self) -> None:
        self.found: list[ast.stmt] = []

    def visit_With(self, node: ast.With) -> ast.stmt:
        first = node.items[0]
        call = ast.parse(f"remora_spawn(0, {len(self.found)})").body[0]
        assert isinstance(call, ast.Expr)
        assert isinstance(call.value, ast.Call)
        call.value.args[0] = first.context_expr
        kept = ast.withitem(ast.Name("remora_word", ast.Load()), first.optional_vars)
        self.found.append(ast.copy_location(ast.With([kept], _within(node, 0)), node))
        return _placed(call, node)


def _within(node: ast.With, item: int) -> list[ast.stmt]:
    """What stands within an item of a ``with``: the items after it are as more of them."""
    others = node.items[item + 1 :]
    return [ast.copy_location(ast.With(others, node.body), node)] if others else node.body


def _placed(new: Any, old: ast.AST) -> Any:
    for node in ast.walk(new):
        if not hasattr(node, "lineno") or node.lineno == 1:
            ast.copy_location(node, old)
    return new


@functools.lru_cache(maxsize=256)
def _parts(
    code: CodeType, line: int, word: str, known: frozenset[str]
) -> tuple[frozenset[str], ast.stmt, list[tuple[frozenset[str], ast.stmt]]]:
    """The names and the body of a ``with``, and those of each ``with`` in it."""
    lines, first = inspect.getsourcelines(code)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    node, item = _find(tree, line, word)
    names = _names(node) & known
    words = _Words()
    body = [words.visit(statement) for statement in _within(node, item)]
    outer = ast.copy_location(ast.If(ast.Constant(True), body, []), node)
    return names, outer, [(_names(w) - {"remora_word"}, w) for w in words.found]


def _find(tree: ast.AST, line: int, word: str) -> tuple[ast.With, int]:
    """The ``with`` at a line, and which of its items a word is: the first one of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            end = node.items[-1].context_expr.end_lineno or node.lineno
            if node.lineno <= line <= end:
                named = (ast.unparse(i.context_expr).partition("(")[0] for i in node.items)
                found = [n for n, name in enumerate(named) if name.rpartition(".")[2] == word]
                return node, found[0] if found else 0
    raise OSError(f"there is no `with` at line {line}")


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _function(
    body: ast.stmt, names: frozenset[str], file: str, scope: dict[str, Any]
) -> Callable[..., None]:
    """A function of names, and of what ``run_apart`` gives it, in a module's scope."""
    made: dict[str, Any] = {}
    exec(_compiled(body, names, file), scope, made)
    function: Callable[..., None] = made["task"]
    return function


@functools.lru_cache(maxsize=1024)
def _compiled(body: ast.stmt, names: frozenset[str], file: str) -> CodeType:
    from triton.runtime.interpreter import FunctionRewriter

    parameters = ", ".join([*sorted(names), "remora_spawn=None", "remora_word=None"])
    tree = ast.parse(f"def task({parameters}): pass")
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    # Triton's rewriting changes the tree that it is given.
    function.body = [FunctionRewriter.ast_transformer.visit(copy.deepcopy(body))]
    ast.fix_missing_locations(tree)
    return compile(tree, file, "exec")
