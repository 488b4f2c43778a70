"""Settings of reading logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

Kind = Literal["atif", "chat", "checkpoints", "langsmith", "spans"]
"""A kind of source: ATIF, OpenAI-style chats, a LangGraph checkpointer, LangSmith runs, OpenTelemetry spans."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source of logs is read."""

    kind: Kind | None = None
    """Kind of the source; None: recognised by its content."""
    step_after: tuple[str, ...] = ("tools",)
    """Nodes after which `amc()` pauses, for a checkpointer: the agent's messages are read where a run would read them.
    Matters only for agents that shorten or edit their messages."""
    turns: Literal["each", "one"] | None = None
    """What a user message after the agent's first message does. "each": it starts another run, as another call of the
    agent does. "one": it is an observation, as with a text agent whose world answers as the user. None: "one" for the
    forms of benchmarks, whose record has one outcome, otherwise "each"; `import_logs` asks where that would make many
    runs of each record."""
    system_is_task: bool = False
    """Whether a leading system message is part of the task. By default it is the agent's prompt, which no critic reads
    at run time."""
    thread: str | None = None
    """Field of a chat's record with the id of its conversation; None: `thread_id`, `conversation_id`, `session_id` or
    `id`."""
    task: str | None = None
    """Field of a record with the name of its task. None: `task_name`, `instance_id` or `task_id`; conversations without
    these belong to the same task if their first instruction is the same."""
    known: Callable[[str, str], bool] = lambda thread, version: False
    """(thread, version) -> whether it was imported before, so that it need not be read."""

    def __post_init__(self) -> None:
        """Refuse unknown values."""
        if self.kind is not None and self.kind not in get_args(Kind):
            raise ConfigurationError(f"the kind of logs is {quoted(self.kind)}: expected {', '.join(get_args(Kind))}")
        if self.turns not in ("each", "one", None):
            raise ConfigurationError(f'turns is {quoted(self.turns)}: expected "each" or "one"')
