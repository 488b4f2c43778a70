"""Value models in this process: their base class, the shipped model in numpy (`embedded:crafting`), and its export."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from amc_agents.budget import charge_in_thread
from amc_agents.critics.adapting import checked_values
from amc_agents.critics.render import Batch, Prompt, Row
from amc_agents.critics.spec import allow, needed
from amc_agents.critics.value.checkpoint import FILE, CheckpointedCritic, ValueCheckpoint, weights_hash
from amc_agents.errors import CheckpointError, CriticError
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.weights import SHIPPED, export_merged
from amc_agents.models.tokenizers import TemplateTokenizer, Tokenize, WordTokenizer
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record


class PromptScores(NamedTuple):
    """A model's answer to several prompts."""

    scores: FloatArray
    """`[prompts]` raw scores."""
    cached_tokens: int = 0
    """Prompt tokens that came from a cache."""


class ScoringCritic(CheckpointedCritic, ABC):
    """A value model in this process. It computes one batch at a time, in a thread.

    Args:
        name: the critic's name in messages.
        checkpoint: its prompt format, scale and golden scores, which the first use compares.
        tokenize: maps the text of a segment to token ids.
    """

    def __init__(self, name: str, checkpoint: ValueCheckpoint, tokenize: Tokenize) -> None:
        self.name, self._checkpoint = name, checkpoint
        self.usage = Usage()
        """Total usage so far; a run reports the difference."""
        self._tokenize = tokenize
        self._encoder = checkpoint.encoder(tokenize)
        self._checked = False
        self._lock = threading.RLock()

    @property
    def charged_as(self) -> str:
        """Name of the model under which a budget is charged."""
        return self.name

    @property
    @override
    def checkpoint(self) -> ValueCheckpoint:
        return self._checkpoint

    async def connect(self) -> None:
        """Compare the golden scores, as the first `values` does, too. Raises `CheckpointError` if they differ."""
        await asyncio.to_thread(self._check)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions in reward units; equal prompts are scored once.

        Raises:
            CheckpointError: at the first use, if the golden scores differ.
            CriticError: a score is not finite, or a prompt exceeds the length limit.
        """
        return await asyncio.to_thread(self._values, tuple(trajectories))

    def state_values(self, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
        """`[T + 1]` values of all states of each trajectory, in one forward pass: equal to `values` of each prefix.

        For whole datasets, offline: the call blocks. Errors as in `values`.
        """
        if not trajectories:
            return []
        with self._lock:
            self._check()
            known: dict[Row, int] = {}
            windows = [
                [known.setdefault(row, len(known)) for row in self._encoder.rows(trajectory)]
                for trajectory in trajectories
            ]
            rows = list(known)
            ends = np.cumsum([len(row.marks) for row in rows])
            scores = checked_values(self._score_marks(rows), int(ends[-1]), self.name)
            self._count(Usage(calls=len(rows), input_tokens=sum(len(row.ids) for row in rows)))
        by_row = np.split(self.checkpoint.values(scores), ends[:-1])
        return [np.concatenate([by_row[index] for index in places]) for places in windows]

    @abstractmethod
    def _score(self, prompts: Sequence[Prompt]) -> PromptScores:
        """Raw scores of distinct prompts, read at their last tokens."""

    @abstractmethod
    def _score_marks(self, rows: Sequence[Row]) -> FloatArray:
        """Raw scores at the marks of all rows, in order; each row takes one forward pass."""

    def _values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        if not trajectories:
            return np.zeros(0)
        with self._lock:
            self._check()
            batch = Batch.of(self._encoder, trajectories)
            tokens = sum(len(segment) for prompt in batch.prompts for segment in prompt)
            charge_in_thread(self.name, Usage(calls=len(batch.prompts), input_tokens=tokens))
            answer = self._score(batch.prompts)
            scores = checked_values(answer.scores, len(batch.prompts), self.name)
            self._count(Usage(calls=len(batch.prompts), input_tokens=tokens, cached_tokens=answer.cached_tokens))
        return self.checkpoint.values(scores)[batch.rows]

    def _count(self, used: Usage) -> None:
        self.usage += used
        record("critic", used, self.name)

    def _check(self) -> None:
        with self._lock:
            if self._checked:
                return
            where = f"critic {self.name}"
            self.checkpoint.check_prompts(self._tokenize, where)
            rows = self.checkpoint.handshake_rows()
            self.checkpoint.check_scores(self._score([(row,) for row in rows]).scores, where)
            self._checked = True


ADAPTER = "value"
"""Name of the adapter's folder inside the policy's."""


def from_spec(target: str, options: Mapping[str, str]) -> EmbeddedCritic:
    """The critic of `embedded:target?adapter=folder`."""
    allow("embedded", options, "adapter")
    adapter = options.get("adapter")
    folder = shipped_folder(needed("embedded", target, "crafting"), ADAPTER)
    if adapter is None:
        return EmbeddedCritic(folder)
    return EmbeddedCritic(folder, folder / adapter if (folder / adapter).is_dir() else adapter)


def shipped_folder(name: str, adapter: str = ADAPTER) -> Path:
    """Find the folder of a shipped model, or check a folder of the same layout.

    Args:
        name: a shipped model's name, or a folder.
        adapter: name of the adapter's folder inside it.

    Raises:
        CheckpointError: no shipped model has this name and this adapter; the message lists the models that do.
    """
    if (Path(name) / "config.json").is_file():
        return Path(name)
    folder = SHIPPED / name
    if not (folder / adapter).is_dir():
        known = sorted(path.parent.name for path in SHIPPED.glob(f"*/{adapter}"))
        raise CheckpointError(f"no embedded model {quoted(name)} with a {adapter} adapter; shipped are {known}")
    return folder


def load_checkpoint(folder: Path, adapter: Path) -> ValueCheckpoint:
    """Load a value adapter's checkpoint. Raises `CheckpointError` if it was not trained on the weights in `folder`."""
    checkpoint = ValueCheckpoint.load(adapter)
    if checkpoint.base_model_hash != weights_hash(folder):
        raise CheckpointError(
            f"the value adapter in {adapter} was trained on other weights than those in {folder}: train it again"
        )
    return checkpoint


def check_words(tokenize: TemplateTokenizer, texts: Iterable[str], name: str) -> None:
    """Refuse texts with too many words unknown to a word-level model. Raises `CriticError`."""
    words = tokenize.unknown_words(texts)
    if words.too_many:
        raise CriticError(
            f"critic {name} cannot read this text: {words}. Its vocabulary covers only its own world: train a critic "
            "on similar text (amc train value --base with a language model), or name a critic that reads any text, "
            "such as judge:provider:model"
        )


class EmbeddedCritic(ScoringCritic):
    """The embedded policy's weights with the merged value adapter and a score head.

    Keys and values of earlier prompts are cached, so that a later state costs only its new tokens.

    Args:
        folder: the policy's folder.
        adapter: the value adapter's folder; None: `value/` inside the policy's folder.

    Raises:
        CheckpointError: a folder is not a model's, or the adapter was trained on other weights.
    """

    def __init__(self, folder: str | Path, adapter: str | Path | None = None) -> None:
        folder = Path(folder)
        adapter = folder / ADAPTER if adapter is None else Path(adapter)
        checkpoint = load_checkpoint(folder, adapter)
        self._scorer = LlamaScorer(NumpyLlama.load(folder, adapter))
        tokenize = TemplateTokenizer.of_words(WordTokenizer.from_folder(folder))
        super().__init__(f"embedded:{folder.name}", checkpoint, tokenize)
        self._encoder.check = partial(check_words, tokenize, name=self.name)

    @override
    def _score(self, prompts: Sequence[Prompt]) -> PromptScores:
        cached = self._scorer.cached_tokens
        scores = self._scorer.values([[token for segment in prompt for token in segment] for prompt in prompts])
        return PromptScores(scores, cached_tokens=self._scorer.cached_tokens - cached)

    @override
    def _score_marks(self, rows: Sequence[Row]) -> FloatArray:
        return self._scorer.values_at([row.ids for row in rows], [row.marks for row in rows])


def export_embedded_value(folder: str | Path, out: str | Path) -> Path:
    """Write an embedded policy with its merged value adapter, as a sequence classifier in float32.

    vLLM's pooling runner and `AutoModelForSequenceClassification` load the folder, and give the scores of `embedded:`.

    Args:
        folder: the policy's folder, with the adapter in `value/`.
        out: the folder to write, atomically; it must be new or empty.

    Returns:
        `out`.

    Raises:
        CheckpointError: `folder` is not a policy's folder, or the adapter was trained on other weights.
        ConfigurationError: `out` is not empty.
    """
    adapter = Path(folder) / ADAPTER
    load_checkpoint(Path(folder), adapter)
    copied = [*(Path(folder) / name for name in _TOKENIZER), adapter / FILE]
    # A classifier has no language-model head.
    without = ["lm_head.weight"]
    return export_merged(Path(folder), adapter, Path(out), config=_CLASSIFIER, copied=copied, without=without)


_CLASSIFIER = {
    "architectures": ["LlamaForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}
"""Changes to the policy's config.json. A single label is transformers' way to write num_labels=1."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
