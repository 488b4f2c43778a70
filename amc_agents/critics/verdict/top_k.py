"""The probabilities of two words as the next text, from the likeliest tokens that a chat API reports.

What is not reported is bounded. Each word's probability lies in an interval: its reported tokens are certain; a token
that only begins the word may or may not go on with it (where it is the one that was written, the next token's
alternatives say how likely it does); and a word that is not reported whole has at most min(p_k, missing mass) beside
that, p_k being the least reported probability. The verdict is the pair nearest to indecision in the two intervals: its
|log-odds| is a lower bound, and it is flagged where the intervals leave more than a little open.

(A word is taken to have one spelling below the k-th: of a word that is reported, others are neglected.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.asking import PATIENCE, CriticChatModel, name_of
from amc_agents.critics.judge.style import without_role_tokens
from amc_agents.critics.server.answers import LEAST_LOGPROB, OVERWRITTEN
from amc_agents.critics.server.redaction import redacted
from amc_agents.critics.template import Segment
from amc_agents.critics.verdict.checkpoint import VerdictCheckpoint, VerdictPrompt, Words
from amc_agents.critics.verdict.reading import Verdicts
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.quoting import quoted
from amc_agents.usage import Usage

TOP = 20
"""Alternatives asked for at each token: the most that OpenAI gives."""
MAX_TOKENS = 8
"""Tokens written at most: a word of several tokens is followed along them."""
OPEN = 0.1
"""What may stay open of log-odds that are not flagged."""
ROUNDING = 1e-6
"""What the reported probabilities may lack of their true sum by rounding."""


class Place(NamedTuple):
    """One token of an answer, and what might have stood there."""

    written: str
    """The token that was written."""
    alternatives: tuple[tuple[str, float], ...]
    """The likeliest tokens with their probabilities, the written one among them."""


class Interval(NamedTuple):
    """What is known of a word's probability."""

    low: float
    high: float
    found: bool
    """The whole word was reported."""

    @property
    def width(self) -> float:
        """Of the interval, in log-probability."""
        if self.low == self.high:
            return 0.0
        return math.log(self.high / self.low) if self.low else math.inf


def intervals(places: Sequence[Place], words: Words, begun: str = "") -> tuple[Interval, Interval]:
    """What an answer's first tokens say of the probabilities that it begins with each word.

    Case and leading spaces do not count; a word ends where no letter or digit follows within its token.

    Args:
        places: the answer's tokens, at least one.
        words: success, failure.
        begun: text before the first place, which begins a word.
    """
    place, rest = places[0], places[1:]
    probabilities = [probability for _, probability in place.alternatives]
    unseen = min(min(probabilities), max(0.0, 1.0 - sum(probabilities)) + ROUNDING)
    further = intervals(rest, words, begun + place.written) if rest and _opens(begun + place.written, words) else None

    def of(index: int) -> Interval:
        low = high = 0.0
        found = False
        for token, probability in place.alternatives:
            text = _plain(begun + token)
            if _says(text, _plain(words[index])):
                low, high, found = low + probability, high + probability, True
            elif token and _plain(words[index]).startswith(text):
                within = further[index] if further and token == place.written else Interval(0.0, 1.0, False)
                low, high = low + probability * within.low, high + probability * within.high
                found = found or within.found
        return Interval(low, min(1.0, high if found else high + unseen), found)

    return of(0), of(1)


def cautious(good: Interval, bad: Interval) -> tuple[float, float, bool]:
    """(p(GOOD), p(BAD), flagged): the pair in the intervals whose log-odds are nearest to 0."""
    flagged = good.width + bad.width > OPEN
    if good.low >= bad.high:
        return good.low, bad.high, flagged
    if bad.low >= good.high:
        return good.high, bad.low, flagged
    both = min(good.high, bad.high)
    return both, both, flagged


class TopKReader:
    """Reads verdicts from any chat model that reports log-probabilities in OpenAI's shape (`response_metadata`).

    Args:
        model: the chat model; `logprobs`, `top_logprobs`, `max_tokens` and `temperature` are bound to it.
        name: of the model, as `provider:name`, for messages and usage.
        max_concurrent: questions under way at the same time.
        timeout: seconds within which an answer has to be complete, LangChain's own retries included.
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
        self._asked = CriticChatModel(
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
        """All that it was asked so far."""
        return self._asked.usage

    async def prepare(self) -> VerdictCheckpoint | None:
        """Nothing to attach to."""
        return None

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """`[N]` verdicts, N questions side by side.

        Raises:
            ConfigurationError: one word begins with the other.
            CriticError: a call failed, or its answer has no log-probabilities.
        """
        good, bad = map(_plain, words)
        if good.startswith(bad) or bad.startswith(good):
            raise ConfigurationError(f"the verdict words {words[0]!r} and {words[1]!r} begin with one another")

        async def ask(prompt: VerdictPrompt) -> tuple[float, float, bool]:
            return cautious(*intervals(await self._places("".join(map(_guarded, prompt))), words))

        with redacted(self.name, trusted=self._trusted):
            found = await side_by_side(*map(ask, prompts))
        table = np.array([pair for *pair, _ in found], dtype=np.float64).reshape(-1, 2)
        log_good, log_bad = np.log(np.maximum(table, _TINY)).T
        return Verdicts(log_good, log_bad, np.array([flagged for *_, flagged in found], dtype=np.bool_))

    async def _places(self, prompt: str) -> list[Place]:
        told = (await self._asked.ask([HumanMessage(prompt)])).response_metadata
        try:
            places = [_place(one) for one in (told["logprobs"] or {})["content"] or []]
        except CriticError as error:
            raise CriticError(f"critic {self.name}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise CriticError(
                f"critic {self.name}: expected response_metadata['logprobs'] with `content` and `top_logprobs` as "
                f"OpenAI gives them, got {quoted(told.get('logprobs'), 100)}: verdicts need a model that reports "
                "log-probabilities; ask this one for a number instead, judge:provider:model"
            ) from error
        if not places:
            raise CriticError(f"critic {self.name}: the model wrote no token, and its first one is the verdict")
        return places


def _place(reported: Mapping[str, Any]) -> Place:
    """One entry of OpenAI's `content`. The k-th probability bounds the rest only among the k likeliest."""
    likeliest = sorted(reported["top_logprobs"], key=lambda one: -float(one["logprob"]))
    if not likeliest:
        raise ValueError("no alternatives")
    # Some servers add the written token behind the k likeliest.
    likeliest = likeliest[:TOP]
    least = likeliest[-1]
    if least["logprob"] < LEAST_LOGPROB:
        raise CriticError(f"token {quoted(least['token'], 40)} has log-probability {least['logprob']:g}. {OVERWRITTEN}")
    top = tuple((str(one["token"]), math.exp(one["logprob"])) for one in likeliest)
    if not all(0.0 <= probability <= 1.0 + 1e-3 for _, probability in top):
        raise ValueError("these are no log-probabilities")
    return Place(str(reported["token"]), top)


def _guarded(text: str) -> str:
    """A part of a prompt; what the template did not write has no role tokens."""
    if not isinstance(text, Segment):
        return text
    return "".join(without_role_tokens(piece) if place % 2 else piece for place, piece in enumerate(text.pieces))


def _plain(text: str) -> str:
    return text.lstrip().casefold()


def _says(text: str, word: str) -> bool:
    return text.startswith(word) and not text[len(word) : len(word) + 1].isalnum()


def _opens(text: str, words: Words) -> bool:
    """Whether a text may go on to be one of the words."""
    return any(_plain(word).startswith(_plain(text)) and _plain(word) != _plain(text) for word in words)


_TINY = 1e-300
