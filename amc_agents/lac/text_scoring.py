"""Log-likelihoods of given texts under the policy, for the priors that score actions instead of counting samples.

A `TextScorer` scores texts after a dialogue: `vllm_text_scorer.CompletionsScorer` by a vLLM server,
`embedded_text_scorer.EmbeddedScorer` by the embedded model. `ChatRescorer` applies it to thoughts and actions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from amc_agents.budget import charge_in_thread
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import NumpyLlama, WordTokenizer, model_folder
from amc_agents.models.engine import log_softmax
from amc_agents.types import FloatArray
from amc_agents.usage import Usage, record

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
    """

    def __init__(self, scorer: TextScorer, messages: Messages, *, temperature: float = 1.0) -> None:
        self._scorer, self._messages, self._temperature = scorer, messages, temperature

    async def log_likelihoods(self, thoughts: Sequence[str], actions: Sequence[str]) -> FloatArray:
        """Return `[K, A]` log pi(action a | thought k), end token included. Raises what the scorer raises."""
        texts = [written_turn(thought, action) for thought in thoughts for action in actions]
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


_ROWS = 64


class EmbeddedScorer:
    """Scores texts by a `NumpyLlama`; the dialogue is computed once for all texts.

    Args:
        model: the weights.
        tokenizer: tokenizer of the model.
        name: name of the model in usage reports.
    """

    def __init__(self, model: NumpyLlama, tokenizer: WordTokenizer, name: str = "embedded") -> None:
        self._model, self._tokenizer, self._name = model, tokenizer, name
        self.usage = Usage()

    @property
    def charged_as(self) -> str:
        """Name of the model under which a budget is charged."""
        return self._name

    @classmethod
    def load(cls, model: str | Path = "crafting") -> EmbeddedScorer:
        """Load a shipped model by name, or a model folder."""
        return cls(*_load(model_folder(model)), name=str(model))

    async def log_likelihoods(self, messages: Messages, texts: Sequence[Text], temperature: float) -> FloatArray:
        """Return `[N]` log-probabilities of the scored parts after the dialogue, end token included.

        Raises:
            ConfigurationError: the temperature is not above 0, or dialogue and text exceed the model's context.
        """
        check_temperature(temperature)
        if not texts:
            return np.zeros(0)
        return await asyncio.to_thread(self._score, messages, texts, temperature)

    def _score(self, messages: Messages, texts: Sequence[Text], temperature: float) -> FloatArray:
        prompt = self._tokenizer.encode_chat([(message["role"], message["content"]) for message in messages])
        ids = {
            part: self._tokenizer.encode(part, special=False)
            for text in texts
            for part in (text.given, text.given + text.scored)
        }
        rows = written(texts, ids, self._tokenizer.end_id)
        longest = len(prompt) + max(len(row.ids) for row in rows)
        if longest > self._model.config.context:
            raise ConfigurationError(
                f"dialogue and text have {longest} tokens, this model reads {self._model.config.context}: shorten the "
                "dialogue or use a model with a longer context"
            )
        read = sum(len(prompt) + len(row.ids) for row in rows)
        charge_in_thread(self._name, Usage(calls=1, input_tokens=read))
        batches = [self._batch(prompt, rows[at : at + _ROWS], temperature) for at in range(0, len(rows), _ROWS)]
        used = Usage(calls=1, input_tokens=read, cached_tokens=(len(rows) - len(batches)) * len(prompt))
        self.usage += used
        record("policy", used, model=self._name)
        return np.concatenate(batches)

    def _batch(self, prompt: Sequence[int], texts: Sequence[Written], temperature: float) -> FloatArray:
        model, rows = self._model, self._model.new_rows()
        # The last token of the dialogue is read with each text: its output predicts the text's first token.
        past = np.array(prompt[:-1], dtype=np.int64)
        if len(past):
            model.forward(past, np.array([len(past)]), rows, 0)
        rows.reserve(len(texts), len(past))
        for row in range(1, len(texts)):
            rows.copy(0, row)
        counts = np.array([len(text.ids) for text in texts])
        tokens = np.array([token for text in texts for token in (prompt[-1], *text.ids[:-1])])
        logits = model.logits(model.forward(tokens, counts, rows, 0))
        table = log_softmax(logits / np.float32(temperature))
        scores = table[np.arange(len(tokens)), [token for text in texts for token in text.ids]]
        ends = np.cumsum(counts)
        starts = ends - counts + [text.start for text in texts]
        return np.array([scores[start:end].sum() for start, end in zip(starts, ends, strict=True)])


@lru_cache(maxsize=4)
def _load(folder: Path) -> tuple[NumpyLlama, WordTokenizer]:
    return NumpyLlama.load(folder), WordTokenizer.from_folder(folder)
