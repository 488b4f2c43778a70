"""A value model as a folder of transformers: `hf:path`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.checkpoint import ValueCheckpoint
from amc_agents.critics.scoring import Prompt, Scores, ScoringCritic
from amc_agents.errors import MissingExtra

try:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class HFCritic(ScoringCritic):
    """An `AutoModelForSequenceClassification` with one label and last-token pooling, as training saves it.

    Args:
        folder: what `amc train value` wrote.
        device: where torch computes.
        dtype: "float32", "bfloat16" or "auto" (as saved).
        batch_size: prompts of one forward pass.
    """

    def __init__(self, folder: str | Path, *, device: str = "cpu", dtype: str = "auto", batch_size: int = 32) -> None:
        checkpoint = ValueCheckpoint.load(folder)
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        number_type: Any = dtype if dtype == "auto" else getattr(torch, dtype)
        model: Any = AutoModelForSequenceClassification.from_pretrained(str(folder), dtype=number_type)
        self._model = model.to(device).eval()
        self._batch_size = batch_size

        def tokenize(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

        super().__init__(f"hf:{folder}", checkpoint, tokenize)

    def _score(self, prompts: Sequence[Prompt]) -> Scores:
        rows = [[token for segment in prompt for token in segment] for prompt in prompts]
        scores = np.empty(len(rows))
        # Rows of like length go together, so that little is padding.
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            scores[chosen] = self._forward([rows[index] for index in chosen])
        return Scores(scores)

    def _forward(self, rows: Sequence[Sequence[int]]) -> Any:
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self._model.config.pad_token_id, dtype=torch.long)
        attend = torch.zeros((len(rows), length), dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            attend[index, : len(row)] = 1
        device = self._model.device
        with torch.inference_mode():
            logits = self._model(input_ids=ids.to(device), attention_mask=attend.to(device)).logits
        return logits[:, 0].double().cpu().numpy()
