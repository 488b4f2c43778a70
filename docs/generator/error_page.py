"""The page of errors: each class of amc_agents/errors.py with its cause and its remedy, from the docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from amc_agents import errors

INTRODUCTION = """# Errors

Find out why an error was raised, and what to do. Every error that the library raises on purpose is an `AmcError` and
comes from `amc_agents.errors`. Its message says what was expected, what was received and what to change. Its attributes
hold the facts.

An agent's mistake is not an error but an observation: the agent reads it and the critic judges it. Errors report
misuse, or the failure of a model, a world, a critic or a file. The command `amc` prints an error as a single line and
exits with status 2.

"""


def error_page() -> str:
    """Return the page in Markdown."""
    return INTRODUCTION + f"```text\n{error_tree()}\n```\n\n" + "\n".join(_section(kind) for kind in error_classes())


def error_tree() -> str:
    """The tree in the module's docstring, without the meanings, which follow in the sections."""
    lines = [line for line in (inspect.getdoc(errors) or "").splitlines() if line.startswith("    ")]
    return inspect.cleandoc("\n".join(re.sub(r"(?<=\w)  .*", "", line) for line in lines))


def error_classes() -> Iterator[type[errors.AmcError]]:
    """Yield each error class, in the order of the module."""
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.AmcError):
            yield kind


def cause_and_remedy(kind: type[Exception]) -> tuple[str, str]:
    """Split a docstring into its cause and its paragraph `Remedy: ...`; the remedy may be empty."""
    text = re.split(r"^Args:$", inspect.cleandoc(kind.__doc__ or ""), flags=re.MULTILINE)[0]
    cause, _, remedy = text.partition("Remedy:")
    return cause.strip(), " ".join(remedy.split())


def _section(kind: type[Exception]) -> str:
    cause, remedy = cause_and_remedy(kind)
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    lines = [f"## {kind.__name__}", f"Subclass of {bases}.", cause, f"**Remedy.** {remedy}" if remedy else ""]
    attributes = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", inspect.cleandoc(kind.__doc__ or ""), re.MULTILINE)
    lines += (
        ["Attributes:", "".join(f"- `{name}`: {' '.join(text.split())}\n" for name, text in attributes)]
        if attributes
        else []
    )
    return "\n\n".join(line for line in lines if line) + "\n"
