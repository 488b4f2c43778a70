"""What happened in an episode, as text for language models, and back: an exact updater reads the same text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from amc_agents.types import Step

NOTHING = "Nothing has happened yet."
"""An episode that has just begun."""


def experience(steps: Sequence[Step], *, first: int = 0, rewards: bool = True) -> str:
    r"""Steps as text. Thoughts are left out: what is learnt of the world must not depend on what the agent believed.

    Args:
        steps: of one episode.
        first: where they begin in it, from 0.
        rewards: tell each step's reward; off where nobody measures it.

    >>> print(experience([Step("look", "A door.\nA key.", reward=1.0)]))
    Step 1
    Action: look
    Observation: A door.
      A key.
    Reward: 1
    """
    return "\n".join(_told(number, step, rewards) for number, step in enumerate(steps, first + 1)) or NOTHING


def read_experience(text: str) -> tuple[Step, ...]:
    """The steps that `experience` has written; what stands before the first is ignored."""
    return tuple(
        Step(_plain(match["action"]), _plain(match["observation"]), reward=float(match["reward"] or 0.0))
        for match in _STEP.finditer(text)
    )


def _told(number: int, step: Step, rewards: bool) -> str:
    lines = [f"Step {number}", f"Action: {_indented(step.action)}", f"Observation: {_indented(step.observation)}"]
    # All digits: an exact updater has to read the same number back.
    return "\n".join([*lines, f"Reward: {_number(step.reward)}"] if rewards else lines)


def _number(reward: float) -> str:
    return repr(float(reward)).removesuffix(".0")


def _indented(text: str) -> str:
    # A line of the world's own can then not be mistaken for one of ours.
    return "\n  ".join(text.split("\n"))


def _plain(text: str) -> str:
    return "\n".join(line.removeprefix("  ") if i else line for i, line in enumerate(text.split("\n")))


_LINES = r"[^\n]*(?:\n  [^\n]*)*"
_STEP = re.compile(
    rf"^Step \d+\nAction: (?P<action>{_LINES})\nObservation: (?P<observation>{_LINES})(?:\nReward: (?P<reward>\S+))?$",
    re.MULTILINE,
)
