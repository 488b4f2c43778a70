"""Golden prompts of a new value model: a few validation states, their scores, and the scores under typical faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from amc_agents.critics.render import Encoder
from amc_agents.critics.server.golden import (
    BFLOAT16,
    FIRST_TOKEN_POOLING,
    MEAN_POOLING,
    WITHOUT_ADAPTER,
    Golden,
    probes,
)
from amc_agents.critics.tokenizing import as_stored
from amc_agents.errors import MissingExtra
from amc_agents.types import Trajectory

try:
    import torch
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class GoldenPrompt(NamedTuple):
    """A golden prompt without a score."""

    segments: tuple[str, ...]
    token_ids: tuple[int, ...]


class GoldenScores(NamedTuple):
    """Golden prompts with their scores, and the scores of the probes, for a checkpoint."""

    golden: tuple[Golden, ...]
    probe_scores: tuple[float, ...]


def golden_prompts(encoder: Encoder, trajectories: Sequence[Trajectory]) -> list[GoldenPrompt]:
    """Choose a state from each of a few trajectories: from the first state of the first to the last of the last."""
    chosen = [trajectories[i] for i in np.linspace(0, len(trajectories) - 1, _GOLDEN).round().astype(int)]
    prompts = []
    for index, whole in enumerate(chosen):
        state = whole.prefix(round(len(whole.steps) * index / (_GOLDEN - 1)))
        row = encoder.rows(state)[-1]
        texts = encoder.format.segments(state)
        kept = (texts[0], *texts[len(texts) - len(encoder.newest(state)) + 1 :])
        prompts.append(GoldenPrompt(tuple(as_stored(text, encoder.tokenize) for text in kept), row.ids))
    return prompts


def scores_without_adapter(model: Any, prompts: Sequence[GoldenPrompt]) -> list[float]:
    """Score prompts with the trained head over the base model, with the adapter of the `PeftModel` disabled."""
    base = model.get_base_model()
    with model.disable_adapter():
        hidden = [_hidden(base, prompt.token_ids)[-1] for prompt in prompts]
    # Disabling the adapter disables the trained head too, so the head is applied after the block.
    with torch.no_grad():
        return [float(base.score(state)[0]) for state in hidden]


def golden_scores(
    merged: Any, prompts: Sequence[GoldenPrompt], without_adapter: Sequence[float], encoder: Encoder
) -> GoldenScores:
    """Score prompts with the saved model and under its typical faults.

    Args:
        merged: the model with its adapter merged in. A float32 model is converted to bfloat16: call this last.
        prompts: `[n]` the golden prompts.
        without_adapter: `[n]` from `scores_without_adapter`, before the merge.
        encoder: made the prompts. If its limit leaves no room for the probes, they are omitted.
    """
    golden = [
        Golden(prompt.segments, prompt.token_ids, _score(merged, prompt.token_ids), _faults(merged, prompt, unadapted))
        for prompt, unadapted in zip(prompts, without_adapter, strict=True)
    ]
    rows = probes(golden, encoder.prefix_ids)
    fits = encoder.max_tokens is None or len(rows[0]) <= encoder.max_tokens
    probe_scores = tuple(_score(merged, ids) for ids in rows) if fits else ()
    if merged.dtype == torch.float32:
        merged.to(torch.bfloat16)
        golden = [
            replace(prompt, faults={**prompt.faults, BFLOAT16: _score(merged, prompt.token_ids)}) for prompt in golden
        ]
    return GoldenScores(tuple(golden), probe_scores)


def _faults(merged: Any, prompt: GoldenPrompt, without_adapter: float) -> dict[str, float]:
    scores = _token_scores(merged, prompt.token_ids)
    return {
        MEAN_POOLING: float(scores.mean()),
        FIRST_TOKEN_POOLING: float(scores[0]),
        WITHOUT_ADAPTER: without_adapter,
    }


def _score(model: Any, ids: Sequence[int]) -> float:
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([list(ids)], device=model.device)).logits[0, 0])


def _token_scores(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the `[S]` scores of the head at every token of a prompt."""
    with torch.no_grad():
        return torch.as_tensor(model.score(_hidden(model, ids))[:, 0]).float()


def _hidden(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the `[S, D]` normalised final hidden states."""
    transformer = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        output = transformer(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False)
    return torch.as_tensor(output.last_hidden_state[0])


_GOLDEN = 5
"""Number of golden prompts of a checkpoint."""
