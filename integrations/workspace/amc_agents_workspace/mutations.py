"""Small changes of Python source, each of a part of one line, that usually make it wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_OPERATORS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+",)),
    ast.FloorDiv: ("//", ("*", "%")),
    ast.Mod: ("%", ("//",)),
    ast.Div: ("/", ("*",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
}
"""Operator -> its text, and what may replace it."""
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, order=True)
class Mutation:
    """The replacement of a part of a line."""

    line: int
    """Number of the line, from 1."""
    first: int
    """Where the part begins in the line."""
    last: int
    """Where it ends, exclusive."""
    text: str
    """What replaces it."""

    def apply(self, source: str) -> str:
        """Return the changed source. The number of lines stays the same."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.first] + self.text + line[self.last :]
        return "".join(lines)


def mutations(source: str) -> list[Mutation]:
    """List the mutations of a source in ASCII: operators, whole numbers, booleans, `not`, min and max, any and all.

    Raises:
        SyntaxError: the source is not Python.
    """
    lines = source.splitlines()
    return sorted({mutation for node in ast.walk(ast.parse(source)) for mutation in _of_node(node, lines)})


def _of_node(node: ast.AST, lines: list[str]) -> Iterator[Mutation]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for op, before, after in zip(ops, [left, *comparators], comparators, strict=False):
                yield from _of_operator(op, before, after, lines)
        case ast.BinOp(left=before, op=op, right=after):
            yield from _of_operator(op, before, after, lines)
        case ast.BoolOp(op=op, values=values):
            for before, after in pairwise(values):
                yield from _of_operator(op, before, after, lines)
        case ast.UnaryOp(op=ast.Not(), operand=operand) if operand.lineno == node.lineno:
            yield Mutation(node.lineno, node.col_offset, operand.col_offset, "")
        case ast.Constant(value=bool() as value):
            yield _replaced(node, str(not value))
        case ast.Constant(value=int() as value):
            yield from (_replaced(node, str(other)) for other in (value - 1, value + 1) if other >= 0)
        case ast.Name(id=name) if name in _NAMES:
            yield _replaced(node, _NAMES[name])


def _of_operator(op: ast.AST, before: ast.expr, after: ast.expr, lines: list[str]) -> Iterator[Mutation]:
    text, replacements = _OPERATORS.get(type(op), ("", ()))
    if before.end_lineno != after.lineno or before.end_col_offset is None:
        return
    # Only parentheses can stand beside the operator.
    first = lines[after.lineno - 1].index(text, before.end_col_offset)
    for other in replacements:
        yield Mutation(after.lineno, first, first + len(text), other)


def _replaced(node: ast.expr, text: str) -> Mutation:
    return Mutation(node.lineno, node.col_offset, node.end_col_offset or node.col_offset, text)
