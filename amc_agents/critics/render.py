"""Render a trajectory as a critic's prompt, append-only: the token ids of s_t are a prefix of those of s_{t+1}.

A prompt consists of segments: the task, then one segment per step. Each ends in a fixed marker and is tokenized on its
own. The value of s_t is read at the last token of segment t, so one forward pass over a trajectory gives the values of
all its states, and with a prefix cache a later score costs only the new tokens.

Training and serving use the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from amc_agents.errors import CheckpointError, ConfigurationError, PromptTooLong
from amc_agents.models.tokenizers import Segment, Template, Tokenize
from amc_agents.quoting import quoted
from amc_agents.types import Step, Trajectory

VERSION = 1
"""Version of the rules in this file; a checkpoint of another version is refused."""


@dataclass(frozen=True)
class PromptFormat:
    """Templates that write a trajectory for a critic. Part of a checkpoint."""

    name: str
    """Name of the format, such as "dialogue" or "plain"."""
    opening: str
    """Template of the task's segment, with the field {instruction}."""
    round: str
    """Template of a step's segment, with the fields {turn} (thought and action) or {action}, and {observation}."""
    marker: str
    """Ends every segment; the score is read at its last token."""
    version: int = VERSION
    """Version of the rendering rules."""

    def __post_init__(self) -> None:
        """Refuse another version, and templates that would lose text or contain more than plain fields."""
        if self.version != VERSION:
            raise CheckpointError(
                f"prompt format {quoted(self.name)} has version {self.version}, this library renders version "
                f"{VERSION}: train the critic again, or use the library version that wrote it"
            )
        for field, expected in (
            ("opening", [{"instruction"}]),
            ("round", [{"turn", "observation"}, {"action", "observation"}]),
        ):
            used = set(Template.parse(getattr(self, field), f"prompt format {self.name}, {field}").fields)
            if used not in expected:
                raise ConfigurationError(
                    f"prompt format {quoted(self.name)}: {field} uses the fields {sorted(used)}, expected "
                    + " or ".join(str(sorted(fields)) for fields in expected)
                )
        if not self.marker:
            raise ConfigurationError(
                f"prompt format {quoted(self.name)}: the marker is empty, but the score is read at it"
            )

    @property
    def opening_template(self) -> Template:
        """`opening`, parsed."""
        return Template.parse(self.opening, self.name)

    @property
    def round_template(self) -> Template:
        """`round`, parsed."""
        return Template.parse(self.round, self.name)

    def segments(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """`[T + 1]` texts of a trajectory: the task, then the steps."""
        opening = self.opening_template.fill(self.marker, instruction=trajectory.task.instruction)
        return (opening, *(filled_round(self.round_template, step, self.marker) for step in trajectory.steps))

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PromptFormat:
        """Restore from `to_json`. Raises `CheckpointError` for another version or unknown fields."""
        try:
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(f"a checkpoint's prompt format has unexpected fields: {sorted(values)}") from error


def turn(step: Step) -> str:
    """The agent's text in a step: `Thought: ...`, if it has a thought, then `Action: ...`."""
    action = f"Action: {step.action}"
    return f"Thought: {step.thought}\n{action}" if step.thought else action


def filled_round(template: Template, step: Step, ending: str = "") -> Segment:
    """Fill a template that may use {turn}, {action} and {observation} with a step."""
    return template.fill(ending, turn=turn(step), action=step.action, observation=step.observation)


class Window(NamedTuple):
    """Consecutive states that share one prompt: the task, then the rounds from `start` on."""

    start: int
    """Number of rounds dropped from the beginning."""
    first: int
    """First state scored in this window."""
    last: int
    """Last state scored in this window, inclusive."""


def newest_start(lengths: Sequence[int], limit: int | None) -> int:
    """Number of rounds dropped from the newest state's prompt, by the rule of `windows`.

    An older round may exceed the limit, because it is dropped once a newer round follows.

    Raises:
        PromptTooLong: the task and the newest round alone exceed the limit.
    """
    return _cut(lengths, limit, all_states=False)[-1].start


def windows(lengths: Sequence[int], limit: int | None) -> list[Window]:
    """Cut a trajectory into the windows in which its states are scored.

    When the prompt of a state exceeds the limit, the older half of its rounds is dropped at once: dropping a round at a
    time would make a prefix cache useless from then on. The task and the newest round are never dropped.

    Args:
        lengths: `[T + 1]` tokens of each segment, the task's first.
        limit: maximum number of tokens in a prompt; None: no limit, one window.

    Returns:
        Windows that cover the states 0 to T in order; each state is in exactly one window.

    Raises:
        PromptTooLong: the task and a single round exceed the limit.
    """
    return _cut(lengths, limit, all_states=True)


def _cut(lengths: Sequence[int], limit: int | None, *, all_states: bool) -> list[Window]:
    cut: list[Window] = []
    start = first = 0
    size = 0
    for state, length in enumerate(lengths):
        size += length
        previous = start
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
        if start != previous:
            cut.append(Window(previous, first, state - 1))
            first = state
    cut.append(Window(start, first, len(lengths) - 1))
    return cut


class Row(NamedTuple):
    """The token ids of one window, and the positions at which the scores of its states are read."""

    ids: tuple[int, ...]
    marks: tuple[int, ...]
    """Index in `ids` of the last token of each scored state."""
    states: tuple[int, ...]
    """Index t of each scored state s_t."""


class Encoder:
    """Renders and tokenizes trajectories. Caches the ids of segments, since siblings share most segments.

    Args:
        prompt_format: the templates.
        tokenize: maps the text of a segment to ids, adding no special tokens.
        max_tokens: maximum number of tokens in a prompt; None: no limit.
        prefix_ids: ids before the first segment (a model's beginning-of-text token).
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
        """Called with the texts of every trajectory; raises if the model cannot read them."""
        self._known: dict[Segment, tuple[int, ...]] = {}
        self._remembered = 0

    def segments(self, trajectory: Trajectory) -> list[tuple[int, ...]]:
        """Token ids of each segment; the first starts with `prefix_ids`."""
        texts = self.format.segments(trajectory)
        if self.check is not None:
            self.check(texts)
        first, *rounds = map(self._ids, texts)
        return [self.prefix_ids + first, *rounds]

    def rows(self, trajectory: Trajectory) -> list[Row]:
        """All states of a trajectory, one row per window, for training."""
        segments = self.segments(trajectory)
        return [_row(segments, window) for window in windows([len(ids) for ids in segments], self.max_tokens)]

    def newest(self, trajectory: Trajectory) -> list[tuple[int, ...]]:
        """The segments of the newest state's prompt, for serving; concatenated, they are its token ids."""
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


Prompt = tuple[tuple[int, ...], ...]
"""Token ids of a prompt's segments."""


class Batch(NamedTuple):
    """The distinct prompts of several trajectories: after a resampling many trajectories are equal."""

    prompts: list[Prompt]
    """Distinct prompts, in the order of their first trajectory."""
    rows: list[int]
    """`[N]` index in `prompts` of each trajectory's prompt."""

    @classmethod
    def of(cls, encoder: Encoder, trajectories: Sequence[Trajectory]) -> Batch:
        """The prompts of the trajectories' newest states. Raises `CriticError` if a prompt exceeds the limit."""
        rows: dict[Prompt, int] = {}
        # Copies of a particle are the same object, so they are rendered once.
        known: dict[int, int] = {}
        for trajectory in trajectories:
            if id(trajectory) not in known:
                known[id(trajectory)] = rows.setdefault(tuple(encoder.newest(trajectory)), len(rows))
        return cls(list(rows), [known[id(trajectory)] for trajectory in trajectories])


_REMEMBERED = 1_000_000
"""Maximum number of tokens in an encoder's cache, about 50 MB."""
_OVERHEAD = 8
"""Memory of a cached segment besides its tokens, in tokens."""

DIALOGUE = PromptFormat(
    name="dialogue",
    opening="<|user|>{instruction}",
    round="{turn}<|end|><|user|>{observation}",
    marker="<|assistant|>",
)
"""The chat format of the embedded policy."""

PLAIN = PromptFormat(
    name="plain",
    opening="{instruction}\n",
    round="\n{turn}\nObservation: {observation}\n",
    marker="Value:",
)
"""Plain text, for any language model."""
