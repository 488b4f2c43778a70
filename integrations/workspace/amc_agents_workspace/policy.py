"""A scripted policy for the coding world. It knows the correct module, so its success says nothing about a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.messages import turn_of
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel
from amc_agents_workspace.bugs import original
from amc_agents_workspace.mutations import mutations

_MODULE = re.compile(r"has the files (\w+)\.py ")
_LINE = re.compile(r"^\d+: ?", re.MULTILINE)


def scripted_policy(p_fix: float) -> ScriptedChatModel:
    """Return a chat model that reads the module, and then edits a line and runs the tests in turn.

    Args:
        p_fix: probability that an edit restores a wrong line. Any other edit is a random mutation of the module, which
            is usually wrong.
    """

    def respond(messages: Sequence[BaseMessage]) -> str:
        name = _MODULE.search(messages[0].text)
        assert name is not None, "the conversation starts with the instruction of a generated bug"
        actions = [turn_of(message)[1] for message in messages if isinstance(message, AIMessage)]
        if not actions:
            return f"Action: read {name[1]}.py"
        if actions[-1].startswith("edit"):
            return "Action: test"
        read = _LINE.sub("", messages[2].text)
        line, text = _edited(original(name[1]), _after_edits(read, actions), p_fix)
        return f"Action: edit {name[1]}.py {line}-{line}\n{text}"

    return ScriptedChatModel(respond=respond)


def _after_edits(source: str, actions: Sequence[str]) -> list[str]:
    lines = source.split("\n")
    for action in actions:
        if action.startswith("edit"):
            command, text = action.split("\n")
            lines[int(command.rsplit("-", 1)[1]) - 1] = text
    return lines


def _edited(correct: str, lines: list[str], p_fix: float) -> tuple[int, str]:
    """Choose the number of a line, and its new text."""
    rng = particle_rng() or np.random.default_rng()
    pairs = enumerate(zip(lines, correct.split("\n"), strict=True), 1)
    wrong = [(number, right) for number, (line, right) in pairs if line != right]
    if wrong and rng.random() < p_fix:
        return wrong[int(rng.integers(len(wrong)))]
    source = "\n".join(lines)
    possible = mutations(source)
    mutation = possible[int(rng.integers(len(possible)))]
    return mutation.line, mutation.apply(source).split("\n")[mutation.line - 1]
