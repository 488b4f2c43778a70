"""PNLC: a decision, reconsidered with a critic's help (PNLC, section 4.2).

    thought -> goals -> Q of each -> critique in words -> keep, or a better thought -> action

Nothing is executed in the world before the decision. Thinker, proposer and critic are objects, so the module is
independent of any framework. `G` goals, `K` sampled thoughts.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.adapting import checked_values, failing_as_critic_error, name_of
from amc_agents.critics.render import turn as turn_text
from amc_agents.critics.uses import for_lac, for_pnlc
from amc_agents.decisions import Actor, Answers, Sample, no_action, strictly, with_actions
from amc_agents.errors import ConfigurationError, CriticError, DecisionError, UnreadableAnswer
from amc_agents.pnlc.prompts import (
    PnlcPrompts,
    critique_of_goals,
    critique_of_value,
    read_choice,
    read_likelihoods,
    read_reply,
    score_of,
)
from amc_agents.pnlc.types import (
    Considered,
    Goal,
    PnlcDecision,
    PnlcSettings,
    PreparedCritic,
    Proposed,
    Proposer,
    Thinker,
)
from amc_agents.types import FloatArray, Step, Trajectory

T = TypeVar("T")


async def decide(
    trajectory: Trajectory,
    thinker: Actor,
    proposer: Proposer | None,
    critic: Any,
    settings: PnlcSettings,
    *,
    prompts: PnlcPrompts | None = None,
) -> PnlcDecision:
    """Decide at the newest state of a trajectory.

    Args:
        trajectory: the past.
        thinker: the agent: a `Thinker`, or with `refine=False` and a critic any `Actor`.
        proposer: proposes goals; None if the settings need no goals.
        critic: a goal critic (`amc_agents.critics.uses.for_pnlc`); with `critique="value"` any critic that LAC takes;
            None with `critique="self"`.
        settings: the numbers of goals and thoughts, and what is switched off.
        prompts: the prompt templates.

    Raises:
        ConfigurationError: an object that the settings require is missing.
        DecisionError: no turn names an action; or goals, likelihoods or a choice could not be parsed twice in a row.
        CriticError: the critic or the proposer failed. Errors of the thinker while it thinks or acts are not wrapped.
    """
    _check(thinker, proposer, critic, settings)
    start = time.perf_counter()
    prompts = prompts or PnlcPrompts()
    judge = ThoughtJudge(trajectory, proposer, critic, settings, prompts, answers_of(thinker))
    thinking = _Thinking(trajectory, thinker, judge, settings, prompts)
    decision = await (thinking.refined() if settings.refine else thinking.best())
    return replace(decision, seconds=time.perf_counter() - start)


def _check(thinker: Actor, proposer: Proposer | None, critic: Any, settings: PnlcSettings) -> None:
    if settings.needs_critic and critic is None:
        raise ConfigurationError(f'critique="{settings.critique}" needs a critic: pass critic=, or set critique="self"')
    if settings.needs_proposer and proposer is None:
        raise ConfigurationError("goals are to be judged, and a proposer is needed to propose them")
    if (settings.refine or settings.critique == "self") and not isinstance(thinker, Thinker):
        raise ConfigurationError(
            f"{type(thinker).__name__} has no `answer` and `act`, which a critique needs: set refine=False, which "
            "takes the best of k thoughts by the critic"
        )


class _Thinking:
    """The state of a decision in progress."""

    def __init__(
        self,
        trajectory: Trajectory,
        thinker: Any,
        judge: ThoughtJudge,
        settings: PnlcSettings,
        prompts: PnlcPrompts,
    ) -> None:
        self.trajectory, self.thinker, self.judge = trajectory, thinker, judge
        self.settings, self.prompts = settings, prompts
        self.notes: list[str] = []
        self.round_trips = 0

    async def refined(self) -> PnlcDecision:
        """Refine the agent's thought until it is kept or m thoughts were made."""
        preparing = [self._or_none(self.judge.prepare())] if self.settings.m > 1 else []
        (turn,), *_ = await side_by_side(self._turns(1), *preparing)
        considered: list[Considered] = []
        for _ in range(self.settings.m - 1):
            if self.settings.critique == "value":
                turn = await self._with_action(turn)  # A critic of values reads whole turns.
            judged = await self._or_none(self.judge.criticised(turn))
            if judged is None:
                break
            answer = await self.thinker.answer(self.prompts.to_refine(self.trajectory, judged.thought, judged.critique))
            self.round_trips += 1
            considered.append(replace(judged, answer=answer))
            better = self._better(judged.thought, answer)
            if not better:
                return self._decision(considered, await self._with_action(turn))
            turn = Sample(better, "")
        considered.append(Considered(thought_of(turn)))
        return self._decision(considered, await self._with_action(turn))

    async def best(self) -> PnlcDecision:
        """Choose the best of K sampled thoughts, by the critic or by the model itself."""
        turns, proposed = await self._turns_and_goals()
        first: dict[tuple[str, str], Sample] = {}
        for turn in turns:
            first.setdefault((turn.thought, turn.action), turn)
        distinct = list(first.values())
        considered = [Considered(thought_of(turn)) for turn in distinct]
        if self.settings.critique == "self":
            chosen = await self._selected(distinct)
            return self._decision(considered, distinct[chosen], chosen)
        judged = None
        if proposed is not None or self.settings.critique == "value":
            judged = await self._or_none(self.judge.scored(distinct, proposed))
        if judged is None:
            return self._decision(considered, distinct[0], 0)
        chosen = int(np.argmax([thought.score or 0.0 for thought in judged]))
        return self._decision(judged, distinct[chosen], chosen)

    async def _turns_and_goals(self) -> tuple[list[Sample], Proposed | None]:
        """Sample K turns and, concurrently, propose the goals of the state, which all turns share."""
        if self.settings.critique != "goals":
            return await self._turns(self.settings.k), None
        turns, proposed, _ = await side_by_side(
            self._turns(self.settings.k),
            self._or_none(self.judge.proposed(ANY_THOUGHT)),
            self._or_none(self.judge.prepare()),
        )
        self.round_trips = max(self.round_trips, proposed.round_trips if proposed else 0)
        return turns, proposed

    async def _turns(self, k: int) -> list[Sample]:
        drawn = await self.thinker.sample(k)
        self.round_trips += 1
        turns, notes = with_actions(drawn, k)
        if not turns:
            raise no_action(len(drawn))
        self.notes += notes
        return turns

    async def _with_action(self, turn: Sample) -> Sample:
        """Return the turn; for a thought without an action, the turn that follows from it."""
        if turn.action:
            return turn
        acted: Sample = await self.thinker.act(turn.thought)
        self.round_trips += 1
        if not acted.action.strip():
            raise no_action(1)
        return acted

    async def _selected(self, turns: Sequence[Sample]) -> int:
        """Return the index of the turn that the model itself prefers (the paper's Self-Plan)."""
        if len(turns) == 1:
            return 0
        written = [turn_text(Step(turn.action, thought=turn.thought)) for turn in turns]
        prompt, read = self.prompts.to_select(self.trajectory, written), partial(read_choice, n=len(turns))
        (chosen,), trips = await strictly(answers_of(self.thinker), [prompt], [read], "model's own choice")
        self.round_trips += trips
        return chosen

    async def _or_none(self, judging: Coroutine[Any, Any, T]) -> T | None:
        """Await a judgement; None if it failed and `on_critic_error` keeps the thought, or cannot be read."""
        try:
            return await judging
        except (CriticError, DecisionError) as error:
            if self.settings.on_critic_error == "raise" and not isinstance(error, UnreadableAnswer):
                raise
            self.notes.append(f"nothing was judged, and the thought is kept: {type(error).__name__}: {error}")
            return None

    def _better(self, thought: str, answer: str) -> str:
        """Return the better thought of an answer; empty: the agent keeps its thought."""
        better = read_reply(answer)
        if better is None:
            self.notes.append("the agent's answer to the critique could not be parsed, and its thought is kept")
        # A thought with the same words is not new.
        return better if better and better.split() != thought.split() else ""

    def _decision(self, thoughts: Sequence[Considered], turn: Sample, chosen: int | None = None) -> PnlcDecision:
        at = len(thoughts) - 1 if chosen is None else chosen
        trips = self.round_trips + self.judge.round_trips
        return PnlcDecision(tuple(thoughts), at, turn, tuple(dict.fromkeys(self.notes)), trips)


def answers_of(thinker: Any) -> Answers:
    """Let a thinker answer several prompts concurrently."""

    async def answers(prompts: Sequence[str]) -> list[str]:
        return await side_by_side(*(thinker.answer(prompt) for prompt in prompts))

    return answers


ANY_THOUGHT = ""
"""An empty thought: the proposed goals then depend on the state alone."""


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
