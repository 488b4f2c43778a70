"""The probabilities of two words as the next text, from the top k tokens that a chat API reports.

Each word's probability lies in an interval. Reported tokens that contain the whole word count in full. A token that is
only the beginning of the word may or may not continue to it; if it is the generated token, the alternatives of the next
token show how likely it does. A word that is not reported in full has at most min(p_k, missing mass) in addition, where
p_k is the smallest reported probability. The verdict is the pair in both intervals with the smallest |log-odds|, which
is a lower bound, and is flagged if the intervals are wide.

(At most one spelling of a word is assumed outside the top k, and none if the word is reported in one token.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.allowed import redacted
from amc_agents.critics.asking import PATIENCE, CriticChatModel, name_of
from amc_agents.critics.judge.style import without_role_tokens
from amc_agents.critics.server.served import LEAST_LOGPROB, OVERWRITTEN
from amc_agents.critics.verdict.checkpoint import VerdictCheckpoint, VerdictPrompt, Words
from amc_agents.critics.verdict.reading import Verdicts
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.models.tokenizers import Segment
from amc_agents.quoting import quoted
from amc_agents.usage import Usage

TOP = 20
"""Number of alternatives requested for each token, OpenAI's maximum."""
MAX_TOKENS = 8
"""Maximum tokens of an answer, since a word may have several tokens."""
OPEN = 0.1
"""Maximum sum of the intervals' widths, in log-probability, of a verdict that is not flagged."""
ROUNDING = 1e-6
"""Rounding error of the sum of the reported probabilities."""


class Place(NamedTuple):
    """A generated token and its alternatives."""

    written: str
    """The generated token."""
    alternatives: tuple[tuple[str, float], ...]
    """The likeliest tokens with their probabilities, usually including the generated token."""


class Interval(NamedTuple):
    """Bounds of a word's probability."""

    low: float
    high: float
    reported: bool
    """True if the word was reported in full, in one token."""

    @property
    def width(self) -> float:
        """Width of the interval in log-probability."""
        if self.low == self.high:
            return 0.0
        return math.log(self.high / self.low) if self.low else math.inf


def intervals(places: Sequence[Place], words: Words, begun: str = "") -> tuple[Interval, Interval]:
    """Bound the probabilities that an answer begins with each word.

    Case and leading spaces are ignored. A word must not be followed by a letter or digit within its token.

    Args:
        places: the first tokens of the answer, at least one.
        words: the words for success and failure.
        begun: text before the first place that is the beginning of a word.
    """
    place, rest = places[0], places[1:]
    probabilities = [probability for _, probability in place.alternatives]
    unseen = min(min(probabilities), max(0.0, 1.0 - sum(probabilities)) + ROUNDING)
    further = intervals(rest, words, begun + place.written) if rest and _opens(begun + place.written, words) else None

    def of(index: int) -> Interval:
        low = high = 0.0
        reported = False
        for token, probability in place.alternatives:
            text = _plain(begun + token)
            if _begins_with_word(text, _plain(words[index])):
                low, high, reported = low + probability, high + probability, True
            elif token and _plain(words[index]).startswith(text):
                within = further[index] if further and token == place.written else Interval(0.0, 1.0, False)
                # The word in one token may still be outside the top k, so the interval stays open.
                low, high = low + probability * within.low, high + probability * within.high
        return Interval(low, min(1.0, high if reported else high + unseen), reported)

    return of(0), of(1)


def cautious(good: Interval, bad: Interval) -> tuple[float, float, bool]:
    """Return (p(GOOD), p(BAD), flagged): the pair in the intervals whose log-odds are nearest to 0."""
    flagged = good.width + bad.width > OPEN
    if good.low >= bad.high:
        return good.low, bad.high, flagged
    if bad.low >= good.high:
        return good.high, bad.low, flagged
    both = min(good.high, bad.high)
    return both, both, flagged


class TopKReader:
    """Read verdicts from a chat model that reports log-probabilities in OpenAI's format (`response_metadata`).

    Args:
        model: the chat model; `logprobs`, `top_logprobs`, `max_tokens` and `temperature` are bound to it.
        name: name of the model as `provider:name`, for messages and usage.
        max_concurrent: maximum number of concurrent requests.
        timeout: time limit of an answer in seconds, including LangChain's retries.
        trusted: False for a critic that a call names: its answers appear in the log only, not in errors.
    """

    def __init__(
        self,
        model: BaseChatModel,
        *,
        name: str = "",
        max_concurrent: int = 16,
        timeout: float = PATIENCE,
        trusted: bool = True,
    ) -> None:
        name, self._trusted = name or name_of(model), trusted
        self.name = f"verdict:{name}"
        settings = {"logprobs": True, "top_logprobs": TOP, "max_tokens": MAX_TOKENS, "temperature": 0.0}
        self._model = CriticChatModel(
            model,
            who=f"critic {self.name}",
            run_name="verdict",
            name=name,
            max_concurrent=max_concurrent,
            timeout=timeout,
            settings=settings,
        )

    @property
    def usage(self) -> Usage:
        """Usage of all calls so far."""
        return self._model.usage

    async def prepare(self) -> VerdictCheckpoint | None:
        """Return None, since a chat model has no checkpoint."""
        return None

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """Read `[N]` verdicts in N concurrent requests.

        Raises:
            ConfigurationError: a word begins with the other.
            CriticError: a call failed, or its answer has no log-probabilities.
        """
        good, bad = map(_plain, words)
        if good.startswith(bad) or bad.startswith(good):
            raise ConfigurationError(
                f"the verdict words {quoted(words[0])} and {quoted(words[1])} begin with one another: choose other "
                "words"
            )

        async def ask(prompt: VerdictPrompt) -> tuple[float, float, bool]:
            return cautious(*intervals(await self._places("".join(map(_guarded, prompt))), words))

        with nullcontext() if self._trusted else redacted(self.name):
            answers = await side_by_side(*map(ask, prompts))
        table = np.array([pair for *pair, _ in answers], dtype=np.float64).reshape(-1, 2)
        log_good, log_bad = np.log(np.maximum(table, _TINY)).T
        return Verdicts(log_good, log_bad, np.array([flagged for *_, flagged in answers], dtype=np.bool_))

    async def _places(self, prompt: str) -> list[Place]:
        metadata = (await self._model.ask([HumanMessage(prompt)])).response_metadata
        try:
            places = [_place(entry) for entry in (metadata["logprobs"] or {})["content"] or []]
        except CriticError as error:
            raise CriticError(f"critic {self.name}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise CriticError(
                f"critic {self.name}: expected response_metadata['logprobs'] with `content` and `top_logprobs` as "
                f"OpenAI gives them, got {quoted(metadata.get('logprobs'), 100)}: verdicts require a model that "
                "reports log-probabilities; ask this model for a number instead (judge:provider:model)"
            ) from error
        if not places:
            raise CriticError(f"critic {self.name}: expected a verdict as the first token, got an empty answer")
        return places


def _place(reported: Mapping[str, Any]) -> Place:
    """Read an entry of OpenAI's `content`. The k-th probability bounds the others only among the k likeliest tokens."""
    likeliest = sorted(reported["top_logprobs"], key=lambda entry: -float(entry["logprob"]))
    if not likeliest:
        raise ValueError("no alternatives")
    # Some servers add the generated token after the k likeliest.
    likeliest = likeliest[:TOP]
    least = likeliest[-1]
    if least["logprob"] < LEAST_LOGPROB:
        raise CriticError(f"token {quoted(least['token'], 40)} has log-probability {least['logprob']:g}. {OVERWRITTEN}")
    top = tuple((str(entry["token"]), math.exp(entry["logprob"])) for entry in likeliest)
    if not all(0.0 <= probability <= 1.0 + 1e-3 for _, probability in top):
        raise ValueError("not log-probabilities")
    return Place(str(reported["token"]), top)


def _guarded(text: str) -> str:
    """Break up the role tokens in a part of a prompt, except in the template's own words."""
    if not isinstance(text, Segment):
        return text
    return "".join(without_role_tokens(piece) if place % 2 else piece for place, piece in enumerate(text.pieces))


def _plain(text: str) -> str:
    return text.lstrip().casefold()


def _begins_with_word(text: str, word: str) -> bool:
    return text.startswith(word) and not text[len(word) : len(word) + 1].isalnum()


def _opens(text: str, words: Words) -> bool:
    """Return whether a text can continue to one of the words."""
    return any(_plain(word).startswith(_plain(text)) and _plain(word) != _plain(text) for word in words)


_TINY = 1e-300
