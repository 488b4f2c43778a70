"""Propose goals with a language model: good and bad outcomes of a thought (PNLC, section 4.2)."""

from __future__ import annotations

import re
from functools import partial

from amc_agents.decisions.asking import Answers, strictly
from amc_agents.pnlc.prompts import PnlcPrompts
from amc_agents.pnlc.types import Proposed
from amc_agents.types import Trajectory


def read_goals(text: str, n: int) -> list[str] | None:
    r"""Parse the goals of an answer; None unless it has exactly n different goals.

    >>> read_goals("Goal: The door is open.\nGoal 2: The key is found.", 2)
    ['The door is open.', 'The key is found.']
    >>> read_goals("1. The door is open.", 1) is None
    True
    """
    goals = [" ".join(goal.split()) for goal in _GOAL.findall(text)]
    return goals if len(goals) == n == len(set(goals)) else None


class ChatGoalProposer:
    """Proposes goals with a chat model: a request for all good goals and a request for all bad goals, concurrently.

    All goals of a kind share a request, so that they differ.

    Args:
        answers: calls a chat model.
        prompts: the prompt templates.
    """

    def __init__(self, answers: Answers, prompts: PnlcPrompts | None = None) -> None:
        self._answers, self._prompts = answers, prompts or PnlcPrompts()

    async def propose(self, trajectory: Trajectory, thought: str, n_positive: int, n_negative: int) -> Proposed:
        """Return the given numbers of goals for the newest state; an empty thought stands for any thought.

        Raises:
            DecisionError: an answer could not be parsed twice in a row; the message quotes it.
            CriticError: the model failed.
        """
        wanted = [(n, positive) for n, positive in ((n_positive, True), (n_negative, False)) if n]
        prompts = [self._prompts.to_propose(trajectory, thought, n, positive=positive) for n, positive in wanted]
        read = [partial(read_goals, n=n) for n, _ in wanted]
        answers, trips = await strictly(self._answers, prompts, read, "goal proposer")
        by_kind = {positive: tuple(goals) for (_, positive), goals in zip(wanted, answers, strict=True)}
        return Proposed(by_kind.get(True, ()), by_kind.get(False, ()), trips)


_GOAL = re.compile(r"^[ \t]*Goal(?:[ \t]+\d+)?:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
