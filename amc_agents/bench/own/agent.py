"""The user's own agent: what its module gives, and the arguments of `amc` for one of its tasks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.quoting import excerpt, quoted
from amc_agents.runtime.contract import Agent, check_agent, check_effects, pausing_nodes
from amc_agents.runtime.effects import Deferred, Effect, attempts_of
from amc_agents.types import Environment, Forkable, Task

ScoreFunction = Callable[[Any, Task], float | Awaitable[float]]
"""(state of the agent, task) -> the return so far."""
DEFAULT_HORIZON = 50
OPTIONS = ("step_after", "step_timeout", "run_timeout", "tools", "stateless_tools", "trajectory")
"""Arguments of `amc` that the module may give in `amc_options`. The comparison chooses the others."""


@dataclass(frozen=True)
class OwnAgent:
    """An agent of the user, with its worlds and scores."""

    name: str
    """`module` or `module:object`."""
    make_agent: Callable[[float], Agent]
    """Sampling temperature -> a compiled graph. Called for every run, so that runs share no state."""
    score: ScoreFunction | None = None
    """None: the worlds give the rewards."""
    make_environment: Callable[[Task], Any] | None = None
    """Task -> a fresh world; None: the agent needs no world."""
    make_input: Callable[[Task], Mapping[str, Any]] | None = None
    """Task -> input of the agent; None: the instruction as a user message."""
    temperature: float = 1.0
    """The temperature of the plain agent."""
    temperature_is_fixed: bool = False
    """`make_agent` ignores its argument: a compiled graph has the temperature that it was built with."""
    horizon: int = DEFAULT_HORIZON
    """Maximum number of steps of a trajectory."""
    success: float = 1.0
    """Minimum return that counts as a success, in the units of the score."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of `amc`, by the names in `OPTIONS`."""
    source_hash: str = ""
    """Fingerprint of the module's file: results of different code must not be mixed."""

    def input_of(self, task: Task) -> Mapping[str, Any]:
        """Return the agent's input for a task."""
        return self.make_input(task) if self.make_input else {"messages": [("user", task.instruction)]}

    def arguments_for(self, task: Task, graph: Agent) -> dict[str, Any]:
        """Return the arguments of `amc` that this agent determines.

        Args:
            task: the task of the run.
            graph: the agent, made for this run.
        """
        arguments: dict[str, Any] = {**self.options, "checkpointer": False, "tools": self.tools_for(graph)}
        if self.make_environment is not None:
            arguments["environment"] = self._environment(task)
        if self.score is not None:
            arguments |= {"reward": self._reward(task), "rewards": "function"}
        return arguments

    def tools_for(self, graph: Agent) -> dict[str, Effect]:
        """Return the declared effects of tools, with a stand-in for every commit tool.

        A comparison never acts in reality. A commit tool without a stand-in result ends its particle.

        Raises:
            AgentContractError: an effect is missing or impossible, or a node is declared "commit".
        """
        given: dict[str, Effect] = dict(self.options.get("tools") or {})
        declared = check_effects(
            graph,
            pausing_nodes(graph, self.options.get("step_after")),
            given,
            stateless_tools=bool(self.options.get("stateless_tools")),
            has_world=self.make_environment is not None,
        )
        if declared.commit_nodes:
            raise AgentContractError(
                f'node {min(declared.commit_nodes)} is declared "commit", and a comparison never acts in reality: move '
                'its action into a tool, or declare the node "read" in amc_options and let it act on a stand-in'
            )
        commits = {name: Deferred() for name, effect in declared.tools.items() if attempts_of(effect)}
        return {**given, **commits}

    def check(self) -> list[str]:
        """Build the agent once and check it, so that mistakes are found before anything is played.

        Returns:
            Names of the commit tools, which end their particle.

        Raises:
            ConfigurationError: `make_agent` failed, or its result cannot be run as particles.
        """
        try:
            graph = self.make_agent(self.temperature)
        except Exception as error:
            raise ConfigurationError(
                f"{self.name}: make_agent({self.temperature:g}) failed ({excerpt(f'{type(error).__name__}: {error}')})"
            ) from error
        try:
            check_agent(graph, gives_trajectory=self.options.get("trajectory") is not None)
            tools = self.tools_for(graph)
        except AgentContractError as error:
            raise AgentContractError(f"{self.name}: {error} (arguments of amc() go into its amc_options)") from error
        return sorted(name for name, kind in tools.items() if isinstance(kind, Deferred) and not kind.has_result)

    def _environment(self, task: Task) -> Callable[[Any], Awaitable[Any]]:
        async def make(_: Any) -> Any:
            assert self.make_environment is not None
            made = self.make_environment(task)
            world = await made if inspect.isawaitable(made) else made
            if not isinstance(world, Forkable):
                raise ConfigurationError(
                    f"{self.name}: make_environment returned {type(world).__name__} for task {quoted(task.id)}: "
                    "expected a world with fork(seed) and close(), and with reset and step if it gives rewards"
                )
            if self.score is None and not isinstance(world, Environment):
                raise ConfigurationError(
                    f"{self.name}: the world {type(world).__name__} gives no rewards (it has no reset and step), so "
                    "the module needs score(state)"
                )
            # Without a task, a critic reads the agent's own first messages, as it does in production.
            return (world, task) if isinstance(world, Environment) else world

        return make

    def _reward(self, task: Task) -> Callable[[Any], Awaitable[float]]:
        async def reward(state: Any) -> float:
            assert self.score is not None
            answer = self.score(state, task)
            value: Any = await answer if inspect.isawaitable(answer) else answer
            try:
                return float(value)
            except (TypeError, ValueError):
                raise ConfigurationError(
                    f"{self.name}: score returned {excerpt(repr(value), 80)} for task {quoted(task.id)}: expected a "
                    "number, 0 while the outcome is open"
                ) from None

        return reward
