"""Forward passes over rows with many verdicts: what is learnt from them, and what a model says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.verdict.checkpoint import Words
from amc_agents.critics.verdict.spellings import Spellings
from amc_agents.errors import MissingExtra
from amc_agents.training.verdict.labels import LABELS
from amc_agents.training.verdict.metrics import Told
from amc_agents.training.verdict.rows import RowBuilder, VerdictRow

try:
    import torch
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def log_odds(model: Any, ids: Sequence[int], words: Words, tokenize: Tokenize) -> float:
    """Log-odds log p(GOOD) - log p(BAD) after a prompt, all spellings summed: the reference for every reader."""
    spellings = Spellings.of(words, tokenize)
    tables = {}
    for prefix in spellings.prefixes:
        with torch.no_grad():
            asked = torch.tensor([[*ids, *prefix]], device=model.device)
            last = torch.log_softmax(model(input_ids=asked, use_cache=False).logits[0, -1].double(), dim=-1)
        tables[prefix] = {token: float(last[token]) for token in spellings.token_ids}
    good, bad = spellings.verdict(tables)
    return good - bad


def told_verdicts(model: Any, rows: Sequence[VerdictRow], builder: RowBuilder, batch_size: int) -> list[Told]:
    """What a model says of rows; words of several tokens are told by their first."""
    firsts = [builder.spellings[label][0] for label in LABELS]
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    found: dict[int, Told] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = [rows[index] for index in chosen]
            hidden = hidden_states(model, batch)
            for place, index in enumerate(chosen):
                found[index] = _told(model, hidden[place], rows[index], firsts)
    model.train(was_training)
    return [found[index] for index in range(len(rows))]


def _told(model: Any, hidden: torch.Tensor, row: VerdictRow, firsts: Sequence[int]) -> Told:
    head = _base(model).get_output_embeddings()
    reads = torch.tensor([places[0] for places, _ in row.verdicts], device=hidden.device)
    log_p = torch.log_softmax(head(hidden[reads]).float(), dim=-1)[:, list(firsts)]
    picked = [firsts.index(word[0]) for _, word in row.verdicts]
    weights = np.array([one.weight for one in row.branches])
    entropies = -log_p[torch.arange(len(picked)), picked].cpu().double().numpy()
    right = []
    for start, end in row.observed:
        if end > start:
            likeliest = head(hidden[start - 1 : end - 1]).argmax(dim=-1).tolist()
            right.append(likeliest == list(row.ids[start:end]))
    return Told(
        log_p.cpu().double().numpy(), float(entropies @ weights / weights.sum()), float(weights.sum()), tuple(right)
    )


def losses(model: Any, rows: Sequence[VerdictRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean cross-entropy over the verdicts, and mean over the tokens that the world wrote."""
    hidden = hidden_states(model, rows)
    head = _base(model).get_output_embeddings()
    device = hidden.device
    read: list[tuple[int, int]] = []
    token: list[int] = []
    weight: list[float] = []
    seen: list[tuple[int, int]] = []
    written: list[int] = []
    for place, row in enumerate(rows):
        for (places, word), one in zip(row.verdicts, row.branches, strict=True):
            read += [(place, index) for index in places]
            token += word
            weight += [one.weight] * len(word)
        for start, end in row.observed:
            seen += [(place, index - 1) for index in range(start, end)]
            written += row.ids[start:end]

    def entropy(where: Sequence[tuple[int, int]], targets: Sequence[int]) -> torch.Tensor:
        at = torch.tensor(where, device=device)
        logits = head(hidden[at[:, 0], at[:, 1]]).float()
        return torch.nn.functional.cross_entropy(logits, torch.tensor(targets, device=device), reduction="none")

    weights = torch.tensor(weight, device=device)
    verdicts = (entropy(read, token) * weights).sum() / weights.sum()
    observations = entropy(seen, written).mean() if seen else torch.zeros((), device=device)
    return verdicts, observations


def hidden_states(model: Any, rows: Sequence[VerdictRow]) -> torch.Tensor:
    """`[B, S, D]` final hidden states of padded rows, each token seeing what its row says that it sees."""
    base = _base(model)
    length = max(len(row.ids) for row in rows)
    shape = (len(rows), length)
    ids = torch.full(shape, base.config.pad_token_id, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    # Padding sees itself alone: a token that sees nothing has no defined attention.
    sees = torch.eye(length, dtype=torch.bool).repeat(len(rows), 1, 1)
    for place, row in enumerate(rows):
        size = len(row.ids)
        ids[place, :size] = torch.tensor(row.ids)
        positions[place, :size] = torch.tensor(row.positions)
        sees[place, :size, :size] = _seen(row)
    mask = torch.zeros(sees.shape, dtype=base.dtype).masked_fill(~sees, torch.finfo(base.dtype).min)
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


def _seen(row: VerdictRow) -> torch.Tensor:
    """`[S, S]` what each token sees: the trunk up to where it left it, and its own branch up to itself."""
    index = torch.arange(len(row.ids))
    until, branch = torch.tensor(row.until), torch.tensor(row.branch)
    trunk = (branch[None, :] == 0) & (index[None, :] < until[:, None])
    own = (branch[None, :] == branch[:, None]) & (branch[:, None] > 0) & (index[None, :] <= index[:, None])
    return trunk | own


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
