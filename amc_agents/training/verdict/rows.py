"""Build rows of token ids from judged trajectories, so that a forward pass reads all verdicts of a trajectory.

A row is a small tree. Its trunk is a trajectory; the judged actions of each state branch off there, each followed by
the question. A branch attends to the trunk up to its state, and to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from amc_agents.critics.render import Encoder, newest_start, windows
from amc_agents.critics.tokenizing import Tokenize, as_stored
from amc_agents.critics.verdict.checkpoint import VerdictFormat
from amc_agents.training.verdict.data import Judged
from amc_agents.training.verdict.labels import Label
from amc_agents.types import Step, Task, Trajectory


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
