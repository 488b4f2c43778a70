"""Golden prompts of a new value model: a few validation states, their scores, and those of typical faults."""

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
    """A golden prompt that has no score yet."""

    segments: tuple[str, ...]
    token_ids: tuple[int, ...]


class GoldenScores(NamedTuple):
    """What goes into a checkpoint."""

    golden: tuple[Golden, ...]
    probe_scores: tuple[float, ...]


def golden_prompts(encoder: Encoder, trajectories: Sequence[Trajectory]) -> list[GoldenPrompt]:
    """One state each of a few trajectories: short ones and long ones."""
    chosen = [trajectories[i] for i in np.linspace(0, len(trajectories) - 1, _GOLDEN).round().astype(int)]
    found = []
    for index, whole in enumerate(chosen):
        state = whole.prefix(round(len(whole.steps) * index / (_GOLDEN - 1)))
        row = encoder.rows(state)[-1]
        texts = encoder.format.segments(state)
        kept = (texts[0], *texts[len(texts) - len(encoder.newest(state)) + 1 :])
        found.append(GoldenPrompt(tuple(as_stored(text, encoder.tokenize) for text in kept), row.ids))
    return found


def scores_without_adapter(model: Any, prompts: Sequence[GoldenPrompt]) -> list[float]:
    """What the trained head says over the base model alone, its adapter switched off (a `PeftModel`)."""
    base = model.get_base_model()
    with model.disable_adapter():
        hidden = [_hidden(base, prompt.token_ids)[-1] for prompt in prompts]
    # Switched on again: switching off takes the trained head away too.
    with torch.no_grad():
        return [float(base.score(one)[0]) for one in hidden]


def golden_scores(
    merged: Any, prompts: Sequence[GoldenPrompt], without_adapter: Sequence[float], encoder: Encoder
) -> GoldenScores:
    """Scores of the model as others will load it, and of its typical faults.

    Args:
        merged: the model, its adapter merged in. A float32 model is left in bfloat16: ask this last.
        prompts: `[n]` the golden prompts.
        without_adapter: `[n]` from `scores_without_adapter`, before the merge.
        encoder: what made the prompts; where its limit leaves no room for the probes, there are none.
    """
    found = [
        Golden(prompt.segments, prompt.token_ids, _score(merged, prompt.token_ids), _faults(merged, prompt, unadapted))
        for prompt, unadapted in zip(prompts, without_adapter, strict=True)
    ]
    rows = probes(found, encoder.prefix_ids)
    fits = encoder.max_tokens is None or len(rows[0]) <= encoder.max_tokens
    probe_scores = tuple(_score(merged, ids) for ids in rows) if fits else ()
    if merged.dtype == torch.float32:
        merged.to(torch.bfloat16)
        found = [replace(one, faults={**one.faults, BFLOAT16: _score(merged, one.token_ids)}) for one in found]
    return GoldenScores(tuple(found), probe_scores)


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
    """`[S]` what the head says at each token of a prompt."""
    with torch.no_grad():
        return torch.as_tensor(model.score(_hidden(model, ids))[:, 0]).float()


def _hidden(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """`[S, D]` normed final hidden states."""
    transformer = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        answer = transformer(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False)
    return torch.as_tensor(answer.last_hidden_state[0])


_GOLDEN = 5
"""Golden prompts of a checkpoint."""
