"""Remove personal data from trajectories before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from amc_agents.errors import ConfigurationError
from amc_agents.operations.importing.personal import texts_of
from amc_agents.operations.importing.runs import digest
from amc_agents.types import Task, Trajectory

Redact = Callable[[str], str]
"""Text -> text without personal data."""


def redacted(trajectory: Trajectory, redact: Redact | None, where: str) -> Trajectory:
    """Redact every text of a trajectory, and make it valid Unicode, which a dataset requires.

    Raises:
        ConfigurationError: the function failed or does not return text. Nothing of the trajectory is written.
    """
    if redact is None and _is_valid("".join((trajectory.task.id, *texts_of(trajectory)))):
        return trajectory

    def clean(text: str) -> str:
        return _valid(text if redact is None else _checked(redact, text, where))

    task = trajectory.task
    steps = tuple(
        replace(
            step, action=clean(step.action), observation=clean(step.observation), thought=clean(step.thought)
        )
        for step in trajectory.steps
    )  # fmt: skip
    return replace(trajectory, task=Task(clean(task.id), clean(task.instruction)), steps=steps)


def stored_id(name: str, redact: Redact | None) -> str:
    """Return the id under which a conversation is stored: a fingerprint if the id itself contains personal data."""
    if redact is not None and _checked(redact, name, "an id") != name:
        return f"redacted-{digest(name)}"
    return _valid(name)


def _checked(redact: Redact, text: str, where: str) -> str:
    try:
        answer = redact(text)
    except Exception as error:
        # The error's own text may quote the conversation.
        raise ConfigurationError(f"{where}: the redaction function failed ({type(error).__name__}): fix it") from error
    if not isinstance(answer, str):
        raise ConfigurationError(f"{where}: the redaction function returned {type(answer).__name__}: expected text")
    return answer


def _valid(text: str) -> str:
    """Replace lone surrogates, which logs contain where a text was cut within a character."""
    return text if _is_valid(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
