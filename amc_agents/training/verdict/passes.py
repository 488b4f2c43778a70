"""Rows with many verdicts, and forward passes over them: losses and predictions.

A row is a small tree. Its trunk is a trajectory; the judged actions of each state branch off there, each followed by
the question. A branch attends to the trunk up to its state, and to itself, so that a forward pass reads all verdicts
of a trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from amc_agents.critics.render import Encoder, newest_start, windows
from amc_agents.critics.verdict.checkpoint import VerdictFormat, Words
from amc_agents.critics.verdict.reading import Spellings
from amc_agents.errors import MissingExtra
from amc_agents.models.tokenizers import Tokenize, as_stored
from amc_agents.training.verdict.labelling import LABELS, Judged, Label
from amc_agents.types import FloatArray, Step, Task, Trajectory

try:
    import torch
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class Branch(NamedTuple):
    """A verdict to be learnt."""

    state: int
    """State s_t of the trunk after which it branches off."""
    step: Step
    """The judged step. If it has an observation, the verdict follows the observation."""
    label: Label
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A trunk with its branches, as a row of a batch; `S` tokens."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    """`[S]` position ids; a branch continues from where it leaves the trunk."""
    until: tuple[int, ...]
    """`[S]` number of trunk tokens that a token attends to."""
    branch: tuple[int, ...]
    """`[S]` number of a token's branch; 0: the trunk."""
    verdicts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """For each branch: the indices where its word's tokens are predicted, and these tokens."""
    branches: tuple[Branch, ...]
    observed: tuple[tuple[int, int], ...]
    """Spans of the trunk, start to end, that are observations: targets of the forward model."""


def branches(judged: Judged, *, disagreement: float = 1.0, observed: float = 0.0) -> list[Branch]:
    """List the verdicts to be learnt from a trajectory.

    If the candidates of a state do not disagree, only the action that was taken is learnt.

    Args:
        judged: the trajectory.
        disagreement: weight of a verdict where candidates disagree; elsewhere it is 1.
        observed: weight of the verdict on a step after its observation; 0: none.
    """
    verdicts = []
    for t, (step, label) in enumerate(zip(judged.trajectory.steps, judged.labels, strict=True)):
        if judged.disagree(t):
            verdicts += [Branch(t, option.step, option.label, disagreement) for option in judged.options[t]]
        else:
            verdicts.append(Branch(t, replace(step, observation="", reward=0.0), label))
        if observed and step.observation:
            verdicts.append(Branch(t, step, label, observed))
    return verdicts


class RowBuilder:
    """Builds rows from trajectories and their branches.

    Args:
        prompt_format: format of trajectories and question.
        encoder: renders and tokenizes the rounds, up to the maximum tokens of a prompt.
        tokenize: the encoder's tokenizer.
        spellings: tokens of each label's word.
    """

    def __init__(
        self,
        prompt_format: VerdictFormat,
        encoder: Encoder,
        tokenize: Tokenize,
        spellings: Mapping[Label, tuple[int, ...]],
    ) -> None:
        self.format, self.encoder, self.tokenize, self.spellings = prompt_format, encoder, tokenize, spellings
        self._question = tuple(tokenize(prompt_format.filled_question(("GOOD", "BAD"))))
        self._word = max(map(len, spellings.values()))

    def rows(self, trajectory: Trajectory, branches: Sequence[Branch]) -> list[VerdictRow]:
        """Build the rows of a trajectory, at least one per window with a branch."""
        branch_ids = [self._branch(branch) for branch in branches]
        trunk = self.encoder.segments(trajectory)
        limit = self.encoder.max_tokens
        reserved = max(map(len, branch_ids), default=0) + self._word
        rows = []
        for start, first, last in windows([len(ids) for ids in trunk], limit - reserved if limit else None):
            inside = [i for i, branch in enumerate(branches) if first <= self._leaves(branch) <= last]
            # Each row recomputes its trunk, and attention is quadratic in the length of a row.
            room = max(_BRANCH_TOKENS, sum(map(len, trunk[start : last + 1])))
            for part in _parts(inside, [len(branch_ids[i]) for i in inside], room):
                row = self._row(
                    trajectory, trunk, (start, last), [branches[i] for i in part], [branch_ids[i] for i in part]
                )
                # Observations of a window are learnt only once.
                rows.append(row if part[0] == inside[0] else replace(row, observed=()))
        return rows

    def prompt(self, trajectory: Trajectory, branch: Branch) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the texts and the token ids of a verdict's prompt, as at inference."""
        task, *rounds = self.format.segments(trajectory.prefix(branch.state).extended(branch.step))
        limit = self.encoder.max_tokens
        lengths = [
            len(self.encoder.prefix_ids) + len(self.tokenize(task)),
            *(len(self.tokenize(each)) for each in rounds),
        ]
        start = newest_start(lengths, limit - len(self._question) - self._word if limit else None)
        texts = (task, *rounds[start:], self.format.filled_question(("GOOD", "BAD")))
        ids = (*self.encoder.prefix_ids, *(token for text in texts for token in self.tokenize(text)))
        return tuple(as_stored(text, self.tokenize) for text in texts), ids

    @staticmethod
    def _leaves(branch: Branch) -> int:
        """Return the state at which a branch leaves the trunk."""
        return branch.state + 1 if branch.step.observation else branch.state

    def _branch(self, branch: Branch) -> tuple[int, ...]:
        """Return the token ids of a branch, with the question but without the word."""
        if branch.step.observation:
            return self._question
        newest = self.format.segments(Trajectory(Task("", ""), (branch.step,)))[-1]
        return (*self.tokenize(newest), *self._question)

    def _row(
        self,
        trajectory: Trajectory,
        trunk: Sequence[tuple[int, ...]],
        window: tuple[int, int],
        branches: Sequence[Branch],
        branch_ids: Sequence[tuple[int, ...]],
    ) -> VerdictRow:
        start, last = window
        ids = list(trunk[0])
        ends = {start: len(ids)}
        observed = []
        for t in range(start + 1, last + 1):
            before, after = self._around_observation(trajectory.steps[t - 1], trunk[t])
            observed.append((len(ids) + before, len(ids) + after))
            ids += trunk[t]
            ends[t] = len(ids)
        length = len(ids)
        positions, until, branch = list(range(length)), list(range(1, length + 1)), [0] * length
        verdicts = []
        for number, (judged, tokens) in enumerate(zip(branches, branch_ids, strict=True), start=1):
            left, word = ends[self._leaves(judged)], self.spellings[judged.label]
            read = len(ids) + len(tokens) - 1
            verdicts.append((tuple(range(read, read + len(word))), word))
            added = [*tokens, *word[:-1]]
            ids += added
            positions += range(left, left + len(added))
            until += [left] * len(added)
            branch += [number] * len(added)
        return VerdictRow(
            tuple(ids), tuple(positions), tuple(until), tuple(branch), tuple(verdicts), tuple(branches), tuple(observed)
        )

    def _around_observation(self, step: Step, ids: Sequence[int]) -> tuple[int, int]:
        """Return where the observation of a round starts and ends, including the token after it."""
        bare = self.tokenize(
            self.encoder.format.segments(Trajectory(Task("", ""), (replace(step, observation=""),)))[-1]
        )
        before = next((i for i, (a, b) in enumerate(zip(bare, ids, strict=False)) if a != b), len(bare))
        behind = len(bare) - before
        return before, min(len(ids), len(ids) - behind + 1)


def _parts(items: Sequence[int], sizes: Sequence[int], most: int) -> list[list[int]]:
    """Split a trajectory's branches into rows of at most `most` tokens in addition to the trunk."""
    parts: list[list[int]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not parts or size > room:
            parts.append([])
            room = most
        parts[-1].append(item)
        room -= size
    return parts


_BRANCH_TOKENS = 320
"""Maximum tokens of the branches of a row; the length of the trunk, if that is larger."""


class RowPrediction(NamedTuple):
    """A model's predictions for the branches of a row."""

    log_p: FloatArray
    """`[verdicts, 3]` log-probabilities of the labels' words."""
    loss: float
    """Weighted mean loss of the row's verdicts."""
    weight: float
    """Sum of the verdicts' weights."""
    observed_right: tuple[bool, ...]
    """For each observation, whether greedy decoding reproduces it."""


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
