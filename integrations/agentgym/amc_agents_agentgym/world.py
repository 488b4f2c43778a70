"""An environment of an AgentGym server as a text world without forks, which `ReplayFork` adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep
from amc_agents_agentgym.errors import AgentGymError
from amc_agents_agentgym.server import AgentGymServer


@dataclass(frozen=True)
class AgentGymTask:
    """Payload of a `Task` for an `AgentGymWorld`."""

    number: int
    """The task's number on the server."""


class AgentGymWorld:
    """One environment of a server (a `World`). Rewards are those of each step, with 1 for a full success.

    Args:
        server: the server; worlds that share it use the environments of ended worlds again if it cannot close them.
    """

    def __init__(self, server: AgentGymServer) -> None:
        self._server, self._dialect = server, server.dialect
        self._client: httpx.AsyncClient | None = None
        self._id: int | None = None
        self._total = 0.0
        self._active = False
        self._intact = True
        """False if a request broke off, so that the server may still be working on it."""

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with an `AgentGymTask` payload.

        Raises:
            AgentGymError: the server is unreachable or reported an error.
        """
        if not isinstance(task.payload, AgentGymTask):
            raise EnvironmentStateError(
                f"AgentGymWorld.reset expected a Task with an AgentGymTask payload, got "
                f"{type(task.payload).__name__} (task {task.id!r})"
            )
        self._active = False
        self._client = self._client or self._server.client()
        if self._id is None:
            self._id = await self._create()
        body = {self._dialect.task_field: task.payload.number, **self._dialect.reset}
        answer = await self._post("/reset", body)
        text, self._total = await self._with_actions(self._first_text(answer), answer), self._start_of(answer)
        self._active = True
        return TimeStep.restart("\n".join(filter(None, (self._dialect.rules, text))))

    async def step(self, action: str) -> TimeStep:
        """Execute an action on the server. Raises `AgentGymError` as `reset` does."""
        if self._client is None or not self._active:
            raise EnvironmentStateError("AgentGymWorld.step was called before reset or after the end: call reset")
        # JSON cannot carry half of a surrogate pair.
        text = (self._dialect.action_prefix + action).encode("utf-8", "replace").decode()
        answer = await self._post("/step", {"action": text})
        observation, reward, done = self._parsed(answer)
        failed = self._dialect.fails_below_zero and reward < 0
        self._active = not (done or failed)
        earned = self._earned(reward, ended=not self._active)
        if not self._active:
            return TimeStep.termination(observation, earned)
        return TimeStep.transition(await self._with_actions(observation, answer), earned)

    async def close(self) -> None:
        """Close the environment, or leave it to another world if the server cannot; safe to call twice."""
        client, self._client = self._client, None
        number, self._id = self._id, None
        self._active = False
        if client is None:
            return
        try:
            if number is not None and self._dialect.closes:
                await self._server.post(client, "/close", {self._dialect.id_field: number})
            elif number is not None and self._intact:
                self._server.leave(number)
        finally:
            await client.aclose()

    async def _create(self) -> int:
        if (unused := self._server.unused()) is not None:
            return unused
        assert self._client is not None
        answer = await self._server.post(self._client, "/create", self._dialect.create)
        number = answer.get("id") if isinstance(answer, dict) else answer
        if type(number) is not int:
            raise self._unexpected("/create", "the number of an environment", answer)
        return number

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        assert self._client is not None
        self._intact = False
        answer = await self._server.post(self._client, path, {self._dialect.id_field: self._id, **body})
        self._intact = True
        return answer

    def _first_text(self, answer: Any) -> str:
        if isinstance(answer, list) and answer:
            answer = answer[0]
        if isinstance(answer, dict):
            parts = (answer.get("task_description"), answer.get("observation"))
            answer = "\n".join(part for part in parts if isinstance(part, str))
        if not isinstance(answer, str) or not answer:
            raise self._unexpected("/reset", "a first observation", answer)
        return answer

    def _start_of(self, answer: Any) -> float:
        """Return the sum of rewards that a reset reports, such as the score of a ScienceWorld task."""
        start = answer.get(self._dialect.reward_field, 0.0) if isinstance(answer, dict) else 0.0
        try:
            return _finite(start) * self._dialect.reward_scale
        except (TypeError, ValueError, OverflowError) as error:
            raise self._unexpected("/reset", "a number as the reward", answer) from error

    def _parsed(self, answer: Any) -> tuple[str, float, bool]:
        """Return (observation, scaled reward as the server reports it, done)."""
        try:
            observation, done = answer[self._dialect.observation_field], answer["done"]
            reward = _finite(answer[self._dialect.reward_field]) * self._dialect.reward_scale
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise self._unexpected("/step", "an observation, a reward and done", answer) from error
        if not isinstance(observation, str):
            raise self._unexpected("/step", "an observation in text", answer)
        return observation, reward, bool(done)

    def _earned(self, reward: float, *, ended: bool) -> float:
        """Return the reward of this step alone."""
        if self._dialect.reward == "terminal":
            return reward if ended else 0.0
        if self._dialect.reward == "own":
            return reward
        earned, self._total = reward - self._total, reward
        return earned

    async def _with_actions(self, text: str, answer: Any) -> str:
        if self._dialect.listed is None:
            return text
        if self._dialect.listed == "answer":
            actions = answer.get("available_actions", []) if isinstance(answer, dict) else []
        else:
            actions = await self._requested_actions()
        if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
            raise self._unexpected("/step", "a list of actions in text", actions)
        return f"{text}\nAvailable actions: {', '.join(actions)}"

    async def _requested_actions(self) -> list[str]:
        assert self._client is not None
        path = "/available_actions"
        page = await self._server.get(self._client, path, {str(self._dialect.id_field): self._id})
        if not isinstance(page, dict) or not isinstance(page.get("clickables"), list):
            raise self._unexpected(path, "has_search_bar and clickables", page)
        search = ["search[KEYWORDS]"] if page.get("has_search_bar") else []
        return search + [f"click[{value}]" for value in page["clickables"]]

    def _unexpected(self, path: str, expected: str, answer: Any) -> AgentGymError:
        return AgentGymError(
            self._server.url + path,
            f"expected {expected}, got {answer!r:.200}: is this AgentGym's {self._dialect.name} server?",
        )


def _finite(value: Any) -> float:
    """Convert a reward. Raises `ValueError`, `TypeError` or `OverflowError` if it is no finite number."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite reward, got {number}")
    return number
