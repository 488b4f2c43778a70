"""Goals by a language model: good and bad futures that may come of a thought (PNLC, section 4.2)."""

from __future__ import annotations

import re
from functools import partial

from amc_agents.decisions.asking import Answers, strictly
from amc_agents.pnlc.prompts import PnlcPrompts
from amc_agents.pnlc.types import Proposed
from amc_agents.types import Trajectory


def read_goals(text: str, n: int) -> list[str] | None:
    r"""The goals of an answer; None where it has not exactly n different ones.

    >>> read_goals("Goal: The door is open.\nGoal 2: The key is found.", 2)
    ['The door is open.', 'The key is found.']
    >>> read_goals("1. The door is open.", 1) is None
    True
    """
    found = [" ".join(goal.split()) for goal in _GOAL.findall(text)]
    return found if len(found) == n == len(set(found)) else None


class ChatGoalProposer:
    """Asks a chat model for the goals: one request for the good ones, one for the bad ones, side by side.

    One request for all of a kind, so that they differ.

    Args:
        answers: asks a chat model.
        prompts: what it is asked with.
    """

    def __init__(self, answers: Answers, prompts: PnlcPrompts | None = None) -> None:
        self._answers, self._prompts = answers, prompts or PnlcPrompts()

    async def propose(self, trajectory: Trajectory, thought: str, n_positive: int, n_negative: int) -> Proposed:
        """So many goals of each kind, for the newest state; for any thought where it is empty.

        Raises:
            DecisionError: an answer could not be read, and neither could the second one; it is shown.
            CriticError: the model failed.
        """
        wanted = [(n, positive) for n, positive in ((n_positive, True), (n_negative, False)) if n]
        prompts = [self._prompts.to_propose(trajectory, thought, n, positive=positive) for n, positive in wanted]
        read = [partial(read_goals, n=n) for n, _ in wanted]
        found, trips = await strictly(self._answers, prompts, read, "goal proposer")
        of_kind = {positive: tuple(goals) for (_, positive), goals in zip(wanted, found, strict=True)}
        return Proposed(of_kind.get(True, ()), of_kind.get(False, ()), trips)


_GOAL = re.compile(r"^[ \t]*Goal(?:[ \t]+\d+)?:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
