"""Log-likelihoods of texts by the embedded model's forward pass: exact at any temperature."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from amc_agents.budget import charge_in_thread
from amc_agents.errors import ConfigurationError
from amc_agents.lac.text_scoring import Messages, Text, Written, check_temperature, written
from amc_agents.models.embedded import NumpyLlama, WordTokenizer, model_folder
from amc_agents.models.sampling import log_softmax
from amc_agents.types import FloatArray
from amc_agents.usage import Usage, record

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
