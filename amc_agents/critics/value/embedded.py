"""The shipped value model, in numpy: `embedded:crafting`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from typing_extensions import override

import amc_agents.models.embedded
from amc_agents.critics.options import allow, needed
from amc_agents.critics.render import Prompt, Row
from amc_agents.critics.tokenizing import TemplateTokenizer
from amc_agents.critics.value.checkpoint import ValueCheckpoint, weights_hash
from amc_agents.critics.value.scoring import PromptScores, ScoringCritic
from amc_agents.errors import CheckpointError, CriticError
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.tokenizer import WordTokenizer
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray

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
    folder = _HOME / name
    if not (folder / adapter).is_dir():
        known = sorted(path.parent.name for path in _HOME.glob(f"*/{adapter}"))
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


def shipped_names() -> set[str]:
    """The names of the shipped models."""
    return {path.parent.name for path in _HOME.glob("*/config.json")}


_HOME = Path(amc_agents.models.embedded.__path__[0])


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
