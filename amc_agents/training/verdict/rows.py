"""Trajectories with verdicts -> rows of token ids, all verdicts of a trajectory in one forward pass.

A row is a small tree: its trunk is a trajectory, and after each state branch off the actions that are judged there,
each followed by the question. A branch sees the trunk up to its state, and itself.
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
    """One verdict that is asked for."""

    state: int
    """The trunk's state s_t after which it branches off."""
    step: Step
    """What is judged; with its observation, the verdict is asked for after it."""
    label: Label
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A trunk with its branches as one row of a batch; `S` tokens."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    """`[S]` a branch goes on counting where it left the trunk."""
    until: tuple[int, ...]
    """`[S]` how much of the trunk a token sees."""
    branch: tuple[int, ...]
    """`[S]` number of the branch that a token belongs to; 0: the trunk."""
    verdicts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """For each branch: the indices that its word's tokens are read at, and these tokens."""
    branches: tuple[Branch, ...]
    observed: tuple[tuple[int, int], ...]
    """Stretches of the trunk, start to end, that the world wrote: what a forward model learns."""


def branches(judged: Judged, *, disagreement: float = 1.0, observed: float = 0.0) -> list[Branch]:
    """The verdicts to be learnt of a trajectory.

    Where all candidates of a state are worth the same, the action that was taken stands for them.

    Args:
        judged: the trajectory.
        disagreement: weight of a verdict where candidates disagree; elsewhere it is 1.
        observed: weight of the verdict on a step that was made, asked after its observation; 0: not asked.
    """
    found = []
    for t, (step, label) in enumerate(zip(judged.trajectory.steps, judged.labels, strict=True)):
        if judged.disagree(t):
            found += [Branch(t, one.step, one.label, disagreement) for one in judged.options[t]]
        else:
            found.append(Branch(t, replace(step, observation="", reward=0.0), label))
        if observed and step.observation:
            found.append(Branch(t, step, label, observed))
    return found


class RowBuilder:
    """Trajectories with verdicts -> rows.

    Args:
        prompt_format: how they are written and asked about.
        encoder: renders and tokenizes the rounds, up to the most tokens of a prompt.
        tokenize: the same tokenizer.
        spellings: the tokens of each label's word.
    """

    def __init__(
        self,
        prompt_format: VerdictFormat,
        encoder: Encoder,
        tokenize: Tokenize,
        spellings: Mapping[Label, tuple[int, ...]],
    ) -> None:
        self.format, self.encoder, self.tokenize, self.spellings = prompt_format, encoder, tokenize, spellings
        self._question = tuple(tokenize(prompt_format.asked(("GOOD", "BAD"))))
        self._word = max(map(len, spellings.values()))

    def rows(self, trajectory: Trajectory, wanted: Sequence[Branch]) -> list[VerdictRow]:
        """One row per window of a trajectory in which a verdict is wanted."""
        own = [self._branch(one) for one in wanted]
        trunk = self.encoder.segments(trajectory)
        limit = self.encoder.max_tokens
        room = max(map(len, own), default=0) + self._word
        found = []
        for start, first, last in windows([len(ids) for ids in trunk], limit - room if limit else None):
            mine = [i for i, one in enumerate(wanted) if first <= self._leaves(one) <= last]
            # Each row computes its trunk anew, and attention costs the square of a row's length.
            beside = max(_BRANCH_TOKENS, sum(map(len, trunk[start : last + 1])))
            for part in _parts(mine, [len(own[i]) for i in mine], beside):
                row = self._row(trajectory, trunk, (start, last), [wanted[i] for i in part], [own[i] for i in part])
                # The world is learnt once of each trajectory.
                found.append(row if part[0] == mine[0] else replace(row, observed=()))
        return found

    def prompt(self, trajectory: Trajectory, branch: Branch) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The texts and the token ids of one verdict's prompt, as a critic is asked for it."""
        task, *rounds = self.format.segments(trajectory.prefix(branch.state).extended(branch.step))
        limit = self.encoder.max_tokens
        lengths = [
            len(self.encoder.prefix_ids) + len(self.tokenize(task)),
            *(len(self.tokenize(one)) for one in rounds),
        ]
        start = newest_start(lengths, limit - len(self._question) - self._word if limit else None)
        texts = (task, *rounds[start:], self.format.asked(("GOOD", "BAD")))
        ids = (*self.encoder.prefix_ids, *(token for text in texts for token in self.tokenize(text)))
        return tuple(as_stored(text, self.tokenize) for text in texts), ids

    @staticmethod
    def _leaves(one: Branch) -> int:
        """The trunk's state that a branch leaves at."""
        return one.state + 1 if one.step.observation else one.state

    def _branch(self, one: Branch) -> tuple[int, ...]:
        """Token ids of a branch, the question included and the word not."""
        if one.step.observation:
            return self._question
        newest = self.format.segments(Trajectory(Task("", ""), (one.step,)))[-1]
        return (*self.tokenize(newest), *self._question)

    def _row(
        self,
        trajectory: Trajectory,
        trunk: Sequence[tuple[int, ...]],
        cut: tuple[int, int],
        wanted: Sequence[Branch],
        own: Sequence[tuple[int, ...]],
    ) -> VerdictRow:
        start, last = cut
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
        for number, (one, tokens) in enumerate(zip(wanted, own, strict=True), start=1):
            left, word = ends[self._leaves(one)], self.spellings[one.label]
            read = len(ids) + len(tokens) - 1
            verdicts.append((tuple(range(read, read + len(word))), word))
            added = [*tokens, *word[:-1]]
            ids += added
            positions += range(left, left + len(added))
            until += [left] * len(added)
            branch += [number] * len(added)
        return VerdictRow(
            tuple(ids), tuple(positions), tuple(until), tuple(branch), tuple(verdicts), tuple(wanted), tuple(observed)
        )

    def _around_observation(self, step: Step, ids: Sequence[int]) -> tuple[int, int]:
        """Where in a round its observation begins, and where it ends, the token that follows it included."""
        bare = self.tokenize(
            self.encoder.format.segments(Trajectory(Task("", ""), (replace(step, observation=""),)))[-1]
        )
        before = next((i for i, (a, b) in enumerate(zip(bare, ids, strict=False)) if a != b), len(bare))
        behind = len(bare) - before
        return before, min(len(ids), len(ids) - behind + 1)


def _parts(items: Sequence[int], sizes: Sequence[int], most: int) -> list[list[int]]:
    """Cuts a trajectory's branches into rows of at most `most` tokens beside the trunk."""
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
"""Tokens of all branches of a row, where its trunk is not longer."""
