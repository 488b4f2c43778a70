"""Log-likelihoods of given texts under the policy, for the priors that score actions instead of counting samples.

A `TextScorer` scores texts after a dialogue: `vllm_text_scorer.CompletionsScorer` by a vLLM server,
`embedded_text_scorer.EmbeddedScorer` by the embedded model. `ChatRescorer` applies it to thoughts and actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray

Messages = Sequence[Mapping[str, Any]]
"""A dialogue in the form of chat APIs: each message has `role` and `content`."""


class Text(NamedTuple):
    """A text of the assistant in two parts."""

    given: str
    """The beginning, which is not scored; may be empty."""
    scored: str


class TextScorer(Protocol):
    """Scores texts under the policy."""

    async def log_likelihoods(self, messages: Messages, texts: Sequence[Text], temperature: float) -> FloatArray:
        """Return `[N]` log-probabilities of the scored parts after the dialogue, end token included."""
        ...


WriteTurn = Callable[[str, str], Text]
"""Maps (thought, action) to the policy's text: the thought is given, the action is scored."""


def written_turn(thought: str, action: str) -> Text:
    r"""Write a turn as the library's text agents do.

    >>> written_turn("look first", "open the door")
    Text(given='Thought: look first\nAction:', scored=' open the door')
    >>> written_turn("", "open the door")
    Text(given='Action:', scored=' open the door')
    """
    # The absence of a thought is given too. Each thought, empty or not, then counts by the share that was sampled.
    return Text(f"Thought: {thought}\nAction:" if thought else "Action:", f" {action}")


class ChatRescorer:
    """Scores actions under thoughts at one state: the `Rescorer` of `amc_agents.lac.decision.decide`.

    Args:
        scorer: scores the texts.
        messages: the dialogue up to the decision, as sent to the policy.
        temperature: sampling temperature of the samples. Samples drawn with top-p, top-k or penalties come from
            another distribution.
        write: writes a turn as the policy does. The default does not fit tool calls: each chat template writes them
            differently.
    """

    def __init__(
        self, scorer: TextScorer, messages: Messages, *, temperature: float = 1.0, write: WriteTurn = written_turn
    ) -> None:
        self._scorer, self._messages, self._temperature, self._write = scorer, messages, temperature, write

    async def log_likelihoods(self, thoughts: Sequence[str], actions: Sequence[str]) -> FloatArray:
        """Return `[K, A]` log pi(action a | thought k), end token included. Raises what the scorer raises."""
        texts = [self._write(thought, action) for thought in thoughts for action in actions]
        scores = await self._scorer.log_likelihoods(self._messages, texts, self._temperature)
        return scores.reshape(len(thoughts), len(actions))


class Written(NamedTuple):
    """A text as tokens."""

    ids: tuple[int, ...]
    """All tokens after the dialogue, the end token last."""
    start: int
    """Index of the first scored token."""


def written(texts: Sequence[Text], ids: Mapping[str, Sequence[int]], end: int) -> list[Written]:
    """Return the tokens of each text and the index where its scored part starts.

    Texts with the same `given` are scored from the same token: the end of the longest prefix that all of them and
    `given` itself share.

    Args:
        texts: the texts to score.
        ids: token ids of every whole text and of every `given`.
        end: the token that ends an answer.
    """
    whole = [tuple(ids[text.given + text.scored]) for text in texts]
    starts: dict[str, int] = {}
    for text, tokens in zip(texts, whole, strict=True):
        shared = _shared_length(ids[text.given], tokens) if text.given else 0
        starts[text.given] = min(shared, starts.get(text.given, shared))
    return [Written((*tokens, end), starts[text.given]) for text, tokens in zip(texts, whole, strict=True)]


def check_temperature(temperature: float) -> None:
    """Refuse a temperature without likelihoods. Raises `ConfigurationError`."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigurationError(
            f"likelihoods need a sampling temperature above 0, got {temperature:g}: at 0 the policy has a single "
            'answer. Use prior="frequency", or pass the temperature of the samples'
        )


def _shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    return next((i for i in range(length) if left[i] != right[i]), length)
