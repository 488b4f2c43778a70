"""The verdict critic: log-odds of success from the probabilities of two words.

    verdict:http://host:8000?model=org/name     a model on a vLLM server
    verdict:provider:model                      a chat API that reports log-probabilities
    verdict:embedded:crafting                   the shipped model

A language model is asked for a verdict on a trajectory, GOOD or BAD, and the probabilities of both words are its
judgement (LAC: Q(s, a) = log p(GOOD | s, a) - log p(BAD | s, a)). Any served model can be used; a model that was
trained for verdicts has a checkpoint with its own format and words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from amc_agents.critics.adapting import checked_values
from amc_agents.critics.judge.style import EXPLAINED, new_marker
from amc_agents.critics.render import PromptFormat
from amc_agents.critics.server.client import ModelServer, server_options
from amc_agents.critics.spec import allow, choice, needed, number, positive_integer, understood
from amc_agents.critics.uses import Judgements
from amc_agents.critics.verdict.checkpoint import STEPWISE, VerdictFormat, VerdictPrompt, Words
from amc_agents.critics.verdict.reading import CompletionsReader, VerdictReader, Verdicts
from amc_agents.errors import ConfigurationError, CriticError, CriticSpecError
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray, Step, Trajectory
from amc_agents.usage import Usage

Score = Literal["log_odds", "p_good"]
LEAST_MASS = 0.05
"""Minimum probability of both words together; below it, the model did not answer the question."""


class VerdictCritic:
    """A critic of whole runs (`values`) and of single decisions (`q_values`), from the probabilities of two words.

    Args:
        reader: reads the probabilities: `CompletionsReader` (vLLM), `TopKReader` (chat models) or
            `EmbeddedVerdictReader`.
        prompt_format: format of the prompt; a checkpoint's own format takes precedence. None: plain words for any
            language model, with a random marker of this critic (`marked_stepwise`).
        words: the words for success and failure; a checkpoint's own words take precedence.
        returns: returns of a certain failure and a certain success, in the world's reward units.
        least_mass: if both words together have less probability, the model did not answer: Q = 0, flagged.
        score: "log_odds", or "p_good" for Q = log p(GOOD), a variant of the paper (LAC, appendix A.2), which is not set
            to 0 below `least_mass`, since 0 would be certain success.

    Raises:
        ConfigurationError: a setting is invalid.
    """

    predicts = "return"
    """A verdict is about the whole attempt, also when the attempt is over."""

    def __init__(
        self,
        reader: VerdictReader,
        *,
        prompt_format: VerdictFormat | None = None,
        words: Words = ("GOOD", "BAD"),
        returns: tuple[float, float] = (0.0, 1.0),
        least_mass: float = LEAST_MASS,
        score: Score = "log_odds",
    ) -> None:
        low, high = returns
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigurationError(f"expected returns=(failure, success), finite and ascending, got {returns}")
        if not 0.0 <= least_mass < 1.0:
            raise ConfigurationError(f"least_mass must be a probability below 1, got {least_mass}")
        if score not in SCORES:
            raise ConfigurationError(f"score must be one of {', '.join(SCORES)}, got {quoted(score)}")
        if not all(word.strip() for word in words):
            raise ConfigurationError(f"expected two verdict words that are not empty, got {words}")
        self.reader, self.returns, self.score = reader, (low, high), score
        self._format = marked_stepwise(new_marker()) if prompt_format is None else prompt_format
        self._words, self._least_mass = words, least_mass

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.reader.name

    @property
    def usage(self) -> Usage:
        """Usage of all calls so far."""
        return self.reader.usage

    async def connect(self) -> None:
        """Find the model and compare its golden log-odds, as the first `verdicts` does. Raises as `verdicts`."""
        await self.reader.prepare()

    async def verdicts(self, trajectories: Sequence[Trajectory]) -> Verdicts:
        """Read `[N]` verdicts with both words' log-probabilities; equal prompts are read once.

        Raises:
            CriticError: a call failed, an answer is invalid, or a prompt is too long.
            CheckpointError: at the first use, if a trained model does not reproduce its golden log-odds.
        """
        if not trajectories:
            return Verdicts(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.bool_))
        checkpoint = await self.reader.prepare()
        prompt_format = checkpoint.prompt_format if checkpoint else self._format
        words = checkpoint.words if checkpoint else self._words
        distinct: dict[VerdictPrompt, int] = {}
        prompts = [prompt_format.prompt(trajectory, words) for trajectory in trajectories]
        rows = [distinct.setdefault(prompt, len(distinct)) for prompt in prompts]
        read = await self.reader.read(list(distinct), words)
        good, bad = (checked_values(values, len(distinct), self.name) for values in (read.log_good, read.log_bad))
        if np.shape(read.flagged) != (len(distinct),):
            raise CriticError(
                f"critic {self.name}: expected flags of shape [{len(distinct)}], got {np.shape(read.flagged)}"
            )
        read = Verdicts(good[rows], bad[rows], read.flagged[rows])
        return Verdicts(read.log_good, read.log_bad, read.flagged | (read.mass < self._least_mass))

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return Q `[N]`: log p(GOOD) - log p(BAD), or 0 below `least_mass`; with score "p_good", log p(GOOD).

        Raises as `verdicts`.
        """
        return (await self.judgements(trajectories)).q

    async def judgements(self, trajectories: Sequence[Trajectory]) -> Judgements:
        """Return Q `[N]` with the probabilities of both words. Raises as `verdicts`."""
        verdicts = await self.verdicts(trajectories)
        return Judgements(self._q(verdicts), verdicts.flagged, np.exp(verdicts.log_good), np.exp(verdicts.log_bad))

    async def q_values(self, trajectory: Trajectory, actions: Sequence[str]) -> FloatArray:
        """Return Q `[K]` of each action at the newest state, as a step without observation. Raises as `verdicts`."""
        return await self.log_odds([trajectory.extended(Step(action)) for action in actions])

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return the expected whole return `[N]`: `returns` interpolated by the probability of success.

        The probability is sigmoid(Q), or p(GOOD) = exp(Q) with score "p_good". Raises as `verdicts`.
        """
        q = await self.log_odds(trajectories)
        low, high = self.returns
        return low + (high - low) * np.exp(q if self.score == "p_good" else -np.logaddexp(0.0, -q))

    def _q(self, verdicts: Verdicts) -> FloatArray:
        if self.score == "p_good":
            return verdicts.log_good
        return np.where(verdicts.mass < self._least_mass, 0.0, verdicts.log_odds)


def from_spec(target: str, options: Mapping[str, str], *, trusted: bool = True) -> VerdictCritic:
    """Build the critic of a string.

    `verdict:http://host:8000?...` (vLLM) and `verdict:provider:model?...` (a chat API) accept low= and high= (returns
    of failure and success in reward units), score=, words=GOOD,BAD, least_mass=, key_env= and timeout=. The shipped
    model, `verdict:embedded:crafting`, only accepts low=, high= and score=.

    Raises:
        CriticSpecError: the string is invalid.
    """
    needed("verdict", target, "http://host:8000?model=org/name")
    reader = _reader(target, options, trusted)
    words = tuple(word.strip() for word in options.get("words", "GOOD,BAD").split(","))
    if len(words) != 2:
        raise CriticSpecError(
            f"critic kind 'verdict': expected words=success,failure as in GOOD,BAD, got {quoted(options['words'])}"
        )
    score: Any = choice("verdict", options, "score", "log_odds", SCORES)
    with understood("verdict"):
        return VerdictCritic(
            reader,
            words=(words[0], words[1]),
            returns=(number("verdict", options, "low", 0.0), number("verdict", options, "high", 1.0)),
            least_mass=number("verdict", options, "least_mass", LEAST_MASS, least=0.0),
            score=score,
        )


def _reader(target: str, options: Mapping[str, str], trusted: bool) -> VerdictReader:
    if target.startswith(("http://", "https://")):
        return _served(target, options, trusted)
    if target.startswith("embedded:"):
        from amc_agents.critics.verdict.embedded import from_spec as embedded

        return embedded(target.removeprefix("embedded:"), options)
    return _chat(target, options, trusted)


def _served(target: str, options: Mapping[str, str], trusted: bool) -> VerdictReader:
    allow("verdict", options, *_COMMON, "model", "checkpoint", "retry_for", "max_batch", "tolerance")
    return CompletionsReader(
        ModelServer(target, **server_options("verdict", options), trusted=trusted),
        model=options.get("model"),
        checkpoint=options.get("checkpoint"),
        max_batch=positive_integer("verdict", options, "max_batch", 512),
        tolerance=number("verdict", options, "tolerance", 0.0, least=0.0) if "tolerance" in options else None,
    )


def _chat(target: str, options: Mapping[str, str], trusted: bool) -> VerdictReader:
    from amc_agents.critics.asking import PATIENCE, build_model, chat_options
    from amc_agents.critics.verdict.top_k import TopKReader

    allow("verdict", options, *_COMMON, "base_url", "max_concurrent")
    chosen = chat_options("verdict", options)
    with understood("verdict"):
        model = build_model(target, **chosen)
    return TopKReader(
        model,
        name=target,
        max_concurrent=positive_integer("verdict", options, "max_concurrent", 16),
        timeout=chosen.get("timeout", PATIENCE),
        trusted=trusted,
    )


SCORES = ("log_odds", "p_good")
_COMMON = ("low", "high", "score", "words", "least_mass", "key_env", "timeout")


def marked_stepwise(marker: str) -> VerdictFormat:
    """Return `STEPWISE` with a marker in front of the record's own lines.

    No text of an agent or a world contains the marker, so none can end the record, or add a step or a verdict to it.

    Args:
        marker: see `amc_agents.critics.judge.style.new_marker`. It is constant, so that prompts stay append-only.
    """
    return VerdictFormat(
        rounds=PromptFormat(
            name="verdict-marked",
            opening=f"{EXPLAINED.format(marker=marker)}\n\n{marker} Task\n{{instruction}}",
            round=f"\n{marker} Step\n{{turn}}\n{marker} Observation: {{observation}}",
            marker="\n",
        ),
        question=f"\n{marker} End of the record\n{STEPWISE.question}",
    )
