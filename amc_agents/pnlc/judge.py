"""What a PNLC decision is told of thoughts at one state: goals and their likelihoods, or one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.adapting import name_of
from amc_agents.critics.uses import for_lac, for_pnlc
from amc_agents.critics.validation import checked_values, failing_as_critic_error
from amc_agents.decisions.asking import Answers, strictly
from amc_agents.decisions.samples import Sample
from amc_agents.errors import CriticError
from amc_agents.pnlc.critique import critique_of_goals, critique_of_value, read_likelihoods, score_of
from amc_agents.pnlc.prompts import PnlcPrompts
from amc_agents.pnlc.types import Considered, Goal, PnlcSettings, PreparedCritic, Proposed, Proposer
from amc_agents.types import FloatArray, Step, Trajectory


def thought_of(turn: Sample) -> str:
    """What is judged of a turn: its thought, or its action where the agent wrote none."""
    return turn.thought or turn.action


class ThoughtJudge:
    """Judges thoughts at one state.

    Args:
        trajectory: what has happened so far.
        proposer: thinks of goals; None where the settings need none.
        critic: as in `amc_agents.pnlc.decision.decide`.
        settings: what thoughts are judged by.
        prompts: what the model itself is asked with.
        answers: asks the model itself.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        proposer: Proposer | None,
        critic: Any,
        settings: PnlcSettings,
        prompts: PnlcPrompts,
        answers: Answers,
    ) -> None:
        self._trajectory, self._proposer, self._critic = trajectory, proposer, critic
        self._settings, self._prompts, self._answers = settings, prompts, answers
        self.round_trips = 0
        """Calls so far that had to wait for one another, those of `proposed` not included."""

    async def prepare(self) -> None:
        """Let the critic read the state before there is a thought. Raises `CriticError`."""
        if self._settings.critique == "goals" and isinstance(self._critic, PreparedCritic):
            with failing_as_critic_error(f"critic {name_of(self._critic)}"):
                await self._critic.prepare(self._trajectory)

    async def criticised(self, turn: Sample) -> Considered:
        """One thought with its critique in words.

        Args:
            turn: the thought; a critic of values judges its action too.

        Raises:
            CriticError: the critic or the proposer failed.
            DecisionError: goals or likelihoods could not be read.
        """
        if self._settings.critique == "value":
            (judged,) = await self.scored([turn], None)
            return replace(judged, critique=critique_of_value(judged.score or 0.0))
        thought = thought_of(turn)
        proposed = await self.proposed(thought)
        self.round_trips += proposed.round_trips
        if self._settings.critique == "self":
            goals = _goals(proposed, await self._own_likelihoods(thought, _texts(proposed)))
            return Considered(thought, goals, score_of(goals), critique_of_goals(goals, by_critic=False))
        (judged,) = await self.scored([turn], proposed)
        return replace(judged, critique=critique_of_goals(judged.goals))

    async def scored(self, turns: Sequence[Sample], proposed: Proposed | None) -> list[Considered]:
        """Each thought with its score: by goals where some are proposed, else by its value alone.

        Raises:
            CriticError: the critic failed.
        """
        thoughts = [thought_of(one) for one in turns]
        self.round_trips += 1
        if proposed is None:
            return [Considered(one, score=p) for one, p in zip(thoughts, await self._successes(turns), strict=True)]
        found = await side_by_side(*(self._reach(one, _texts(proposed)) for one in thoughts))
        goals = [_goals(proposed, one) for one in found]
        return [Considered(one, of, score_of(of)) for one, of in zip(thoughts, goals, strict=True)]

    async def proposed(self, thought: str) -> Proposed:
        """As many goals as are asked for. Raises `CriticError`, `DecisionError`."""
        wanted = self._settings.n_positive, self._settings.n_negative
        if self._proposer is None:
            raise CriticError("nobody was given who proposes goals")
        with failing_as_critic_error("the goal proposer"):
            proposed = await self._proposer.propose(self._trajectory, thought, *wanted)
            came = len(proposed.positive), len(proposed.negative)
        if came != wanted:
            raise CriticError(f"the goal proposer gave {came} good and bad goals, expected {wanted}")
        return proposed

    async def _reach(self, thought: str, goals: Sequence[str]) -> FloatArray:
        """`[G]` likelihoods by the goal critic, in one batch."""
        name = name_of(self._critic)
        with failing_as_critic_error(f"critic {name}"):
            answer = await for_pnlc(self._critic).reach(self._trajectory, thought, goals)
        found = checked_values(answer, len(goals), name)
        if np.any((found < 0) | (found > 1)):
            raise CriticError(f"critic {name} answered likelihoods {found.tolist()}, expected numbers from 0 to 1")
        return found

    async def _own_likelihoods(self, thought: str, goals: Sequence[str]) -> Sequence[float]:
        """`[G]` likelihoods as the model itself says them (the paper's ReAct+Replan)."""
        prompt = self._prompts.to_estimate(self._trajectory, thought, goals)
        read = partial(read_likelihoods, n=len(goals))
        (found,), trips = await strictly(self._answers, [prompt], [read], "model's own estimate")
        self.round_trips += trips
        return found

    async def _successes(self, turns: Sequence[Sample]) -> list[float]:
        """Likelihood of success of each turn, by a critic of values (the paper's PNLC without goals)."""
        odds = for_lac(self._critic, returns=self._settings.returns)
        ends = [self._trajectory.extended(Step(one.action, thought=one.thought)) for one in turns]
        name = name_of(self._critic)
        with failing_as_critic_error(f"critic {name}"):
            answer = await odds.log_odds(ends)
        q = checked_values(answer, len(ends), name)
        return [float(p) for p in 1 / (1 + np.exp(-q))]


def _texts(proposed: Proposed) -> list[str]:
    return [*proposed.positive, *proposed.negative]


def _goals(proposed: Proposed, likelihoods: Sequence[float] | FloatArray) -> tuple[Goal, ...]:
    positive = [True] * len(proposed.positive) + [False] * len(proposed.negative)
    rows = zip(_texts(proposed), positive, likelihoods, strict=True)
    return tuple(Goal(text, good, float(p)) for text, good, p in rows)
