"""Trajectory -> prompt of a critic, append-only: the token ids of s_t are a prefix of those of s_{t+1}.

A prompt is made of segments: first the task, then one per step; each ends in a fixed marker and is tokenized on
its own. The value of s_t is read at the last token of segment t, so one forward pass over a whole trajectory
holds the values of all its states, and a prefix cache makes each later score cost its new tokens alone.

The same functions render for training and for serving (design: "Prompts of a critic are append-only").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from amc_agents.critics.template import Segment, Template
from amc_agents.critics.tokenizing import Tokenize
from amc_agents.errors import CheckpointError, ConfigurationError, PromptTooLong
from amc_agents.types import Step, Trajectory

VERSION = 1
"""Version of the rules in this file; a checkpoint made by other rules is refused."""


@dataclass(frozen=True)
class PromptFormat:
    """How a trajectory is written for a critic. Saved with a checkpoint and read back."""

    name: str
    """What people call it; a known format is found by it."""
    opening: str
    """Template of the task's segment: uses {instruction}."""
    round: str
    """Template of a step's segment: uses {turn} (thought and action) or {action} alone, and {observation}."""
    marker: str
    """Ends every segment; the score is read at its last token."""
    version: int = VERSION
    """Version of the rendering rules that it was made for."""

    def __post_init__(self) -> None:
        """Refuse another version, and templates that would lose text or hold more than plain fields."""
        if self.version != VERSION:
            raise CheckpointError(
                f"prompt format {self.name!r} has version {self.version}, this library renders version {VERSION}: "
                "train the critic again, or use the library's version that made it"
            )
        for field, expected in (
            ("opening", [{"instruction"}]),
            ("round", [{"turn", "observation"}, {"action", "observation"}]),
        ):
            used = set(Template.parse(getattr(self, field), f"prompt format {self.name!r}, {field}").fields)
            if used not in expected:
                raise ConfigurationError(
                    f"prompt format {self.name!r}: {field} uses the fields {sorted(used)}, expected "
                    + " or ".join(str(sorted(one)) for one in expected)
                )
        if not self.marker:
            raise ConfigurationError(f"prompt format {self.name!r}: the marker is empty, and the score is read there")

    @property
    def opening_template(self) -> Template:
        """`opening`, read."""
        return Template.parse(self.opening, self.name)

    @property
    def round_template(self) -> Template:
        """`round`, read."""
        return Template.parse(self.round, self.name)

    def segments(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The texts of a trajectory, T + 1 of them: the task, then one per step."""
        opening = self.opening_template.fill(self.marker, instruction=trajectory.task.instruction)
        return (opening, *(filled_round(self.round_template, step, self.marker) for step in trajectory.steps))

    def to_json(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PromptFormat:
        """Back from `to_json`. Raises `CheckpointError` on another version or unknown fields."""
        try:
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(f"a checkpoint's prompt format has unexpected fields: {sorted(values)}") from error


def turn(step: Step) -> str:
    """What the agent wrote in a step: `Thought: ...` where there is one, then `Action: ...`."""
    action = f"Action: {step.action}"
    return f"Thought: {step.thought}\n{action}" if step.thought else action


def filled_round(template: Template, step: Step, ending: str = "") -> Segment:
    """A step in the words of a template that may use {turn}, {action} and {observation}."""
    return template.fill(ending, turn=turn(step), action=step.action, observation=step.observation)


class Window(NamedTuple):
    """A stretch of states that share one prompt: the task, then the rounds from `start` on."""

    start: int
    """Rounds dropped from the beginning."""
    first: int
    """First state that is scored in this window."""
    last: int
    """Last one, inclusive."""


def newest_start(lengths: Sequence[int], limit: int | None) -> int:
    """Rounds that are left out of the newest state's prompt, by the rule of `windows`.

    An older round that is longer than the limit does no harm: it is left out by the time that it is not the newest.

    Raises:
        PromptTooLong: the task and the newest round alone do not fit.
    """
    return _cut(lengths, limit, all_states=False)[-1].start


def windows(lengths: Sequence[int], limit: int | None) -> list[Window]:
    """Cuts a trajectory into the windows in which its states are scored.

    When the prompt of a state outgrows the limit, the oldest half of its rounds is dropped at once (not one by
    one: a prefix cache then stays useful for as long again); never the task, never the newest round.

    Args:
        lengths: `[T + 1]` tokens of each segment, the task's first.
        limit: the most tokens of a prompt; None: no limit, one window.

    Returns:
        Windows that cover the states 0 to T in order; each state is in exactly one.

    Raises:
        PromptTooLong: the task and one round alone do not fit.
    """
    return _cut(lengths, limit, all_states=True)


def _cut(lengths: Sequence[int], limit: int | None, *, all_states: bool) -> list[Window]:
    found: list[Window] = []
    start = first = 0
    size = 0
    for state, length in enumerate(lengths):
        size += length
        begun = start
        while limit is not None and size > limit:
            droppable = state - 1 - start
            if droppable < 1:
                if not all_states and state < len(lengths) - 1:
                    break
                raise PromptTooLong(
                    f"the task and the newest round of state {state} take {size} tokens and the critic's limit is "
                    f"{limit}: use a critic with a longer context, or shorter observations"
                )
            dropped = min(droppable, (state - start + 1) // 2)
            size -= sum(lengths[start + 1 : start + 1 + dropped])
            start += dropped
        if start != begun:
            found.append(Window(begun, first, state - 1))
            first = state
    found.append(Window(start, first, len(lengths) - 1))
    return found


class Row(NamedTuple):
    """One window as token ids, with the marks at which its states' scores are read."""

    ids: tuple[int, ...]
    marks: tuple[int, ...]
    """Index in `ids` of the last token of each scored state."""
    states: tuple[int, ...]
    """Number t of each scored state s_t."""


class Encoder:
    """Renders and tokenizes trajectories; remembers segments, as siblings share theirs.

    Args:
        prompt_format: how trajectories are written.
        tokenize: text of one segment -> ids, adding no special tokens.
        max_tokens: the most tokens of a prompt; None: no limit.
        prefix_ids: ids put before the first segment (a model's beginning-of-text token).
    """

    def __init__(
        self,
        prompt_format: PromptFormat,
        tokenize: Tokenize,
        max_tokens: int | None = None,
        prefix_ids: Sequence[int] = (),
    ) -> None:
        self.format, self.max_tokens, self.prefix_ids = prompt_format, max_tokens, tuple(prefix_ids)
        self.tokenize = tokenize
        self.check: Callable[[Sequence[Segment]], object] | None = None
        """Called with the texts of every trajectory; raises where they cannot be read."""
        self._known: dict[Segment, tuple[int, ...]] = {}
        self._remembered = 0

    def segments(self, trajectory: Trajectory) -> list[tuple[int, ...]]:
        """Token ids of each segment, `prefix_ids` in the first."""
        texts = self.format.segments(trajectory)
        if self.check is not None:
            self.check(texts)
        first, *rounds = map(self._ids, texts)
        return [self.prefix_ids + first, *rounds]

    def rows(self, trajectory: Trajectory) -> list[Row]:
        """Every state of a trajectory, one row per window: what training reads."""
        segments = self.segments(trajectory)
        return [_row(segments, window) for window in windows([len(ids) for ids in segments], self.max_tokens)]

    def newest(self, trajectory: Trajectory) -> list[tuple[int, ...]]:
        """The segments of the newest state's prompt: what serving reads. Concatenated they are its token ids."""
        segments = self.segments(trajectory)
        start = newest_start([len(ids) for ids in segments], self.max_tokens)
        return [segments[0], *segments[start + 1 :]]

    def _ids(self, text: Segment) -> tuple[int, ...]:
        ids = self._known.get(text)
        if ids is None:
            ids = tuple(self.tokenize(text))
            self._remembered += len(ids) + _OVERHEAD
            if self._remembered > _REMEMBERED:
                self._known.clear()
                self._remembered = len(ids) + _OVERHEAD
            self._known[text] = ids
        return ids


def _row(segments: Sequence[tuple[int, ...]], window: Window) -> Row:
    ids = list(segments[0])
    ends = {0: len(ids) - 1}
    for state in range(window.start + 1, window.last + 1):
        ids += segments[state]
        ends[state] = len(ids) - 1
    states = tuple(range(window.first, window.last + 1))
    return Row(tuple(ids), tuple(ends[state] for state in states), states)


_REMEMBERED = 1_000_000
"""Tokens of the segments that an encoder remembers, at most: some 50 MB."""
_OVERHEAD = 8
"""What remembering a segment costs besides its tokens, in tokens."""

DIALOGUE = PromptFormat(
    name="dialogue",
    opening="<|user|>{instruction}",
    round="{turn}<|end|><|user|>{observation}",
    marker="<|assistant|>",
)
"""The embedded policy's own chat text."""

PLAIN = PromptFormat(
    name="plain",
    opening="{instruction}\n",
    round="\n{turn}\nObservation: {observation}\n",
    marker="Value:",
)
"""Plain words, for any language model."""

FORMATS = {prompt_format.name: prompt_format for prompt_format in (DIALOGUE, PLAIN)}
"""The formats that have a name."""
