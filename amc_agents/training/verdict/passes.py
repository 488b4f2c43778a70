"""Forward passes over rows with many verdicts: losses and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.verdict.checkpoint import Words
from amc_agents.critics.verdict.spellings import Spellings
from amc_agents.errors import MissingExtra
from amc_agents.training.verdict.labels import LABELS
from amc_agents.training.verdict.metrics import RowPrediction
from amc_agents.training.verdict.rows import RowBuilder, VerdictRow

try:
    import torch
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def log_odds(model: Any, ids: Sequence[int], words: Words, tokenize: Tokenize) -> float:
    """Compute log p(GOOD) - log p(BAD) after a prompt, summed over spellings: the reference for all critics."""
    spellings = Spellings.of(words, tokenize)
    tables = {}
    for prefix in spellings.prefixes:
        with torch.no_grad():
            prompt = torch.tensor([[*ids, *prefix]], device=model.device)
            last = torch.log_softmax(model(input_ids=prompt, use_cache=False).logits[0, -1].double(), dim=-1)
        tables[prefix] = {token: float(last[token]) for token in spellings.token_ids}
    good, bad = spellings.verdict(tables)
    return good - bad


def predict(model: Any, rows: Sequence[VerdictRow], builder: RowBuilder, batch_size: int) -> list[RowPrediction]:
    """Predict the verdicts of rows. A word of several tokens is represented by its first."""
    firsts = [builder.spellings[label][0] for label in LABELS]
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    predictions: dict[int, RowPrediction] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [rows[index] for index in chosen]
            hidden = hidden_states(model, batch)
            for place, index in enumerate(chosen):
                predictions[index] = _predict_row(model, hidden[place], rows[index], firsts)
    model.train(was_training)
    return [predictions[index] for index in range(len(rows))]


def _predict_row(model: Any, hidden: torch.Tensor, row: VerdictRow, firsts: Sequence[int]) -> RowPrediction:
    head = _base(model).get_output_embeddings()
    reads = torch.tensor([places[0] for places, _ in row.verdicts], device=hidden.device)
    log_p = torch.log_softmax(head(hidden[reads]).float(), dim=-1)[:, list(firsts)]
    targets = [firsts.index(word[0]) for _, word in row.verdicts]
    weights = np.array([branch.weight for branch in row.branches])
    entropies = -log_p[torch.arange(len(targets)), targets].cpu().double().numpy()
    right = []
    for start, end in row.observed:
        if end > start:
            greedy = head(hidden[start - 1 : end - 1]).argmax(dim=-1).tolist()
            right.append(greedy == list(row.ids[start:end]))
    return RowPrediction(
        log_p.cpu().double().numpy(), float(entropies @ weights / weights.sum()), float(weights.sum()), tuple(right)
    )


def losses(model: Any, rows: Sequence[VerdictRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted mean cross-entropy of the verdicts, and the mean cross-entropy of observed tokens."""
    hidden = hidden_states(model, rows)
    head = _base(model).get_output_embeddings()
    device = hidden.device
    verdict_places: list[tuple[int, int]] = []
    verdict_tokens: list[int] = []
    weight: list[float] = []
    observed_places: list[tuple[int, int]] = []
    observed_tokens: list[int] = []
    for place, row in enumerate(rows):
        for (places, word), branch in zip(row.verdicts, row.branches, strict=True):
            verdict_places += [(place, index) for index in places]
            verdict_tokens += word
            weight += [branch.weight] * len(word)
        for start, end in row.observed:
            observed_places += [(place, index - 1) for index in range(start, end)]
            observed_tokens += row.ids[start:end]

    def entropy(places: Sequence[tuple[int, int]], targets: Sequence[int]) -> torch.Tensor:
        at = torch.tensor(places, device=device)
        logits = head(hidden[at[:, 0], at[:, 1]]).float()
        return torch.nn.functional.cross_entropy(logits, torch.tensor(targets, device=device), reduction="none")

    weights = torch.tensor(weight, device=device)
    verdicts = (entropy(verdict_places, verdict_tokens) * weights).sum() / weights.sum()
    observations = (
        entropy(observed_places, observed_tokens).mean() if observed_places else torch.zeros((), device=device)
    )
    return verdicts, observations


def hidden_states(model: Any, rows: Sequence[VerdictRow]) -> torch.Tensor:
    """Compute `[B, S, D]` final hidden states of padded rows, with the attention mask of each row."""
    base = _base(model)
    length = max(len(row.ids) for row in rows)
    shape = (len(rows), length)
    ids = torch.full(shape, base.config.pad_token_id, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    # Padding attends to itself: attention to nothing is undefined.
    attends = torch.eye(length, dtype=torch.bool).repeat(len(rows), 1, 1)
    for place, row in enumerate(rows):
        size = len(row.ids)
        ids[place, :size] = torch.tensor(row.ids)
        positions[place, :size] = torch.tensor(row.positions)
        attends[place, :size, :size] = _attention(row)
    mask = torch.zeros(attends.shape, dtype=base.dtype).masked_fill(~attends, torch.finfo(base.dtype).min)
    transformer = getattr(base, base.base_model_prefix)
    device = base.device
    return torch.as_tensor(
        transformer(
            input_ids=ids.to(device),
            attention_mask=mask[:, None].to(device),
            position_ids=positions.to(device),
            use_cache=False,
        ).last_hidden_state
    )


def _attention(row: VerdictRow) -> torch.Tensor:
    """`[S, S]` whether a token attends to another: the trunk up to its branching point, and its branch up to itself."""
    index = torch.arange(len(row.ids))
    until, branch = torch.tensor(row.until), torch.tensor(row.branch)
    trunk = (branch[None, :] == 0) & (index[None, :] < until[:, None])
    same_branch = (branch[None, :] == branch[:, None]) & (branch[:, None] > 0) & (index[None, :] <= index[:, None])
    return trunk | same_branch


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
