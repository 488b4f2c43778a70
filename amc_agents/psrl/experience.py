"""An episode's steps as text for language models, and the parser that exact updaters use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Step

NOTHING = "Nothing has happened yet."
"""Text of an episode without steps."""


def experience(steps: Sequence[Step], *, first: int = 0, rewards: bool = True) -> str:
    r"""Format steps as text, without thoughts: evidence about the world must not depend on the agent's beliefs.

    Args:
        steps: consecutive steps of one episode.
        first: index of the first of them in the episode, from 0.
        rewards: whether to include each step's reward; False if rewards are not measured.

    >>> print(experience([Step("look", "A door.\nA key.", reward=1.0)]))
    Step 1
    Action: look
    Observation: A door.
      A key.
    Reward: 1
    """
    return "\n".join(_text(number, step, rewards) for number, step in enumerate(steps, first + 1)) or NOTHING


def read_experience(text: str) -> tuple[Step, ...]:
    """Parse the steps that `experience` wrote. Text before the first step is ignored.

    Raises:
        ConfigurationError: a reward is not a number.
    """
    return tuple(
        Step(_plain(match["action"]), _plain(match["observation"]), reward=_reward(match["reward"]))
        for match in _STEP.finditer(text)
    )


def _reward(text: str | None) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        raise ConfigurationError(f"expected a number as the reward of a step, got {quoted(text)}") from None


def _text(number: int, step: Step, rewards: bool) -> str:
    lines = [f"Step {number}", f"Action: {_indented(step.action)}", f"Observation: {_indented(step.observation)}"]
    # All digits, so that an exact updater parses the same number.
    return "\n".join([*lines, f"Reward: {_number(step.reward)}"] if rewards else lines)


def _number(reward: float) -> str:
    return repr(float(reward)).removesuffix(".0")


def _indented(text: str) -> str:
    # Keeps a line of the world from being parsed as a field.
    return "\n  ".join(text.split("\n"))


def _plain(text: str) -> str:
    return "\n".join(line.removeprefix("  ") if i else line for i, line in enumerate(text.split("\n")))


_LINES = r"[^\n]*(?:\n  [^\n]*)*"
_STEP = re.compile(
    rf"^Step \d+\nAction: (?P<action>{_LINES})\nObservation: (?P<observation>{_LINES})(?:\nReward: (?P<reward>\S+))?$",
    re.MULTILINE,
)
