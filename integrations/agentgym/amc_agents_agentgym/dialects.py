"""How the requests and answers of AgentGym's servers differ, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Dialect:
    """The requests and answers of one kind of server."""

    name: str
    id_field: Literal["id", "env_idx"]
    """Name of the environment's number in requests."""
    task_field: str
    """Name of the task's number in a reset."""
    reward: Literal["own", "terminal", "cumulative"]
    """What the server reports as reward: the step's own, the episode's (valid at its end), or the sum so far."""
    rules: str
    """The first lines of each task's instruction: which actions exist."""
    horizon: int
    """Default limit on the steps of an episode."""
    create: Mapping[str, Any] | None = None
    """Body of a creation; None: without a body."""
    reset: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a reset."""
    observation_field: str = "observation"
    reward_field: str = "reward"
    reward_scale: float = 1.0
    """Factor from the server's reward to the world's, in which 1 is a full success."""
    fails_below_zero: bool = False
    """A negative reward ends the episode, even if the server would go on."""
    closes: bool = False
    """The server has /close. Without it, environments are used again."""
    action_prefix: str = ""
    """Text that the server expects before an action."""
    listed: Literal["answer", "request"] | None = None
    """The possible actions are in each answer, or must be requested; they are added to observations."""


_TOOLS = (
    "Actions: NAME with Action Input: JSON, for example check_valid_actions with Action Input: {{}}\n"
    'End with: finish with Action Input: {{"answer": ...}}. The tools return {}.'
)

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "textcraft", "id", "data_idx", "own", create={}, closes=True, horizon=20,
            rules="Actions: get NUMBER ITEM, craft NUMBER ITEM using NUMBER INGREDIENT, ..., inventory",
        ),
        Dialect(
            "sciworld", "id", "data_idx", "cumulative", closes=True, horizon=20, reward_field="score",
            reward_scale=0.01, fails_below_zero=True,
            rules="Complete a task in a science laboratory, with one action at a time, such as look around, open door "
            "to kitchen, pick up thermometer, focus on thermometer, use thermometer on water, wait",
        ),
        Dialect(
            "babyai", "id", "data_idx", "cumulative", closes=True, horizon=20, reward_field="score",
            rules="Reach the goal in a grid of rooms. Actions: turn left, turn right, move forward, toggle, "
            "go to OBJECT NUMBER, pick up OBJECT NUMBER, go through DOOR NUMBER, toggle and go through DOOR NUMBER",
        ),
        Dialect(
            "alfworld", "id", "game", "terminal", horizon=30, reset={"world_type": "Text"}, listed="answer",
            rules="Do a household task, with one of the available actions at a time.",
        ),
        Dialect(
            "webshop", "env_idx", "session_id", "terminal", horizon=10, observation_field="state", listed="request",
            rules="Buy the product of the instruction. Actions: search[KEYWORDS], click[VALUE]",
        ),
        Dialect(
            "weather", "env_idx", "id", "cumulative", create={"id": 0}, horizon=10, action_prefix="Action: ",
            rules=_TOOLS.format("weather data"),
        ),
        Dialect(
            "movie", "env_idx", "id", "cumulative", create={"id": 0}, horizon=12, action_prefix="Action: ",
            rules=_TOOLS.format("facts on films and persons"),
        ),
        Dialect(
            "searchqa", "env_idx", "id", "own", create={"id": 0}, closes=True, horizon=6,
            rules="Actions: <search>QUERY</search> or <answer>ANSWER</answer>",
        ),
    )
}  # fmt: skip
"""Dialect by name."""
