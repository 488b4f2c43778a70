"""A value model in a transformers folder: `hf:path`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from amc_agents.critics.render import Prompt, Row
from amc_agents.critics.spec import allow, choice, needed, positive_integer
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.local import PromptScores, ScoringCritic
from amc_agents.errors import CheckpointError, MissingExtra
from amc_agents.models.tokenizers import TemplateTokenizer
from amc_agents.quoting import excerpt
from amc_agents.types import FloatArray

try:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def from_spec(target: str, options: Mapping[str, str]) -> HFCritic:
    """The critic of `hf:target?device=&dtype=&batch_size=`."""
    allow("hf", options, "device", "dtype", "batch_size")
    return HFCritic(
        needed("hf", target, "path/to/value"),
        device=options.get("device", "cpu"),
        dtype=choice("hf", options, "dtype", "auto", ("auto", "float32", "bfloat16", "float16")),
        batch_size=positive_integer("hf", options, "batch_size", 32),
    )


class HFCritic(ScoringCritic):
    """An `AutoModelForSequenceClassification` with one label and last-token pooling, as training saves it.

    Args:
        folder: a folder that `amc train value` wrote.
        device: torch's device.
        dtype: "float32", "bfloat16", "float16" or "auto" (as saved).
        batch_size: maximum number of prompts, or whole trajectories, per forward pass.

    Raises:
        CheckpointError: the folder is not a value model's folder, or it is damaged.
    """

    def __init__(self, folder: str | Path, *, device: str = "cpu", dtype: str = "auto", batch_size: int = 32) -> None:
        checkpoint = ValueCheckpoint.load(folder)
        number_type: Any = dtype if dtype == "auto" else getattr(torch, dtype)
        try:
            # Code in the folder is never run.
            tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
            model: Any = AutoModelForSequenceClassification.from_pretrained(
                str(folder), dtype=number_type, trust_remote_code=False
            )
        except Exception as error:  # from transformers, tokenizers and safetensors
            detail = excerpt(f"{type(error).__name__}: {error}")
            raise CheckpointError(f"{folder} is not a value model's folder, or is damaged: {detail}") from error
        self._model = model.to(device).eval()
        self._batch_size = batch_size
        super().__init__(f"hf:{folder}", checkpoint, TemplateTokenizer.of_transformers(tokenizer))

    @override
    def _score(self, prompts: Sequence[Prompt]) -> PromptScores:
        ids = [tuple(token for segment in prompt for token in segment) for prompt in prompts]
        return PromptScores(self._score_marks([Row(prompt_ids, (len(prompt_ids) - 1,), (0,)) for prompt_ids in ids]))

    @override
    def _score_marks(self, rows: Sequence[Row]) -> FloatArray:
        by_row: dict[int, FloatArray] = {}
        for chosen in self._batches([len(row.ids) for row in rows]):
            scores = self._forward([rows[index] for index in chosen])
            ends = np.cumsum([len(rows[index].marks) for index in chosen])
            by_row |= dict(zip(chosen, np.split(scores, ends[:-1]), strict=True))
        return np.concatenate([by_row[index] for index in range(len(rows))]) if rows else np.zeros(0)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Batches of rows of similar length, with at most `batch_size` rows and `_TOKENS` tokens including padding."""
        chosen: list[int] = []
        for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
            if chosen and (len(chosen) == self._batch_size or (len(chosen) + 1) * lengths[index] > _TOKENS):
                yield chosen
                chosen = []
            chosen.append(index)
        if chosen:
            yield chosen

    def _forward(self, rows: Sequence[Row]) -> FloatArray:
        ids = torch.zeros((len(rows), max(len(row.ids) for row in rows)), dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row.ids)] = torch.tensor(row.ids)
        where = torch.tensor([index for index, row in enumerate(rows) for _ in row.marks])
        marks = torch.tensor([mark for row in rows for mark in row.marks])
        device = self._model.device
        transformer = getattr(self._model, self._model.base_model_prefix)
        with torch.inference_mode():
            # No attention mask: padding is on the right, which a causal model does not read, and the fastest kernels
            # take no mask. The head reads only the marks.
            hidden = transformer(input_ids=ids.to(device), use_cache=False).last_hidden_state
            scores = self._model.score(hidden[where.to(device), marks.to(device)])
        return np.asarray(scores[:, 0].double().cpu())


_TOKENS = 16_384
"""Maximum number of tokens per forward pass: enough to keep a large accelerator busy."""
