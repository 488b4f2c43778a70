"""Judge thoughts at a state: goals with their likelihoods, or the likelihood of success."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.adapting import checked_values, failing_as_critic_error, name_of
from amc_agents.critics.uses import for_lac, for_pnlc
from amc_agents.decisions.asking import Answers, strictly
from amc_agents.decisions.samples import Sample
from amc_agents.errors import CriticError
from amc_agents.pnlc.critique import critique_of_goals, critique_of_value, read_likelihoods, score_of
from amc_agents.pnlc.prompts import PnlcPrompts
from amc_agents.pnlc.types import Considered, Goal, PnlcSettings, PreparedCritic, Proposed, Proposer
from amc_agents.types import FloatArray, Step, Trajectory


def thought_of(turn: Sample) -> str:
    """Return the thought of a turn, or its action if the agent wrote no thought."""
    return turn.thought or turn.action


class ThoughtJudge:
    """Judges thoughts at a state.

    Args:
        trajectory: the past.
        proposer: proposes goals; None if the settings need no goals.
        critic: as in `amc_agents.pnlc.decision.decide`.
        settings: select the kind of judgement.
        prompts: prompt templates for the policy's own estimates.
        answers: calls the policy.
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
        """Number of sequential calls so far, without those of `proposed`."""

    async def prepare(self) -> None:
        """Let the critic process the state before a thought exists. Raises `CriticError`."""
        if self._settings.critique == "goals" and isinstance(self._critic, PreparedCritic):
            with failing_as_critic_error(f"critic {name_of(self._critic)}"):
                await self._critic.prepare(self._trajectory)

    async def criticised(self, turn: Sample) -> Considered:
        """Judge a thought and write the critique in words.

        Args:
            turn: the thought; a critic of values judges its action too.

        Raises:
            CriticError: the critic or the proposer failed.
            DecisionError: goals or likelihoods could not be parsed.
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
        """Score each thought by the proposed goals, or by its value if `proposed` is None.

        Raises:
            CriticError: the critic failed.
        """
        thoughts = [thought_of(turn) for turn in turns]
        self.round_trips += 1
        if proposed is None:
            scores = await self._successes(turns)
            return [Considered(thought, score=p) for thought, p in zip(thoughts, scores, strict=True)]
        likelihoods = await side_by_side(*(self._reach(thought, _texts(proposed)) for thought in thoughts))
        judged = [(thought, _goals(proposed, reach)) for thought, reach in zip(thoughts, likelihoods, strict=True)]
        return [Considered(thought, goals, score_of(goals)) for thought, goals in judged]

    async def proposed(self, thought: str) -> Proposed:
        """Propose the numbers of goals in the settings. Raises `CriticError`, `DecisionError`."""
        wanted = self._settings.n_positive, self._settings.n_negative
        if self._proposer is None:
            raise CriticError("goals are to be judged, and a proposer is needed to propose them")
        with failing_as_critic_error("the goal proposer"):
            proposed = await self._proposer.propose(self._trajectory, thought, *wanted)
            came = len(proposed.positive), len(proposed.negative)
        if came != wanted:
            raise CriticError(f"the goal proposer gave {came} good and bad goals, expected {wanted}")
        return proposed

    async def _reach(self, thought: str, goals: Sequence[str]) -> FloatArray:
        """Return `[G]` likelihoods by the goal critic, in one batch."""
        name = name_of(self._critic)
        with failing_as_critic_error(f"critic {name}"):
            answer = await for_pnlc(self._critic).reach(self._trajectory, thought, goals)
        likelihoods = checked_values(answer, len(goals), name)
        if np.any((likelihoods < 0) | (likelihoods > 1)):
            raise CriticError(
                f"critic {name} answered likelihoods {likelihoods.tolist()}, expected numbers from 0 to 1"
            )
        return likelihoods

    async def _own_likelihoods(self, thought: str, goals: Sequence[str]) -> Sequence[float]:
        """Return `[G]` likelihoods by the policy's own estimate (the paper's ReAct+Replan)."""
        prompt = self._prompts.to_estimate(self._trajectory, thought, goals)
        read = partial(read_likelihoods, n=len(goals))
        (likelihoods,), trips = await strictly(self._answers, [prompt], [read], "model's own estimate")
        self.round_trips += trips
        return likelihoods

    async def _successes(self, turns: Sequence[Sample]) -> list[float]:
        """Return the likelihood of success of each turn by a critic of values (the paper's PNLC without goals)."""
        odds = for_lac(self._critic, returns=self._settings.returns)
        ends = [self._trajectory.extended(Step(turn.action, thought=turn.thought)) for turn in turns]
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
    return tuple(Goal(text, is_good, float(p)) for text, is_good, p in rows)
